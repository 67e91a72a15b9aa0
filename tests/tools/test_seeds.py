"""The collection of printed manifests must be whole and unchanged, and its tool must notice."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import yaml

from tools.seeds import (
    FOLDER,
    Manifest,
    Snippet,
    apply_diff,
    find_problems,
    find_snippets,
    load_manifests,
    main,
)

ROWS = load_manifests()
each = pytest.mark.parametrize("row", ROWS, ids=[row.file for row in ROWS])

TEXT = """A proposal

An object in plain text, then one behind it, then prose:

apiVersion: v1
kind: Pod
spec:
  ...
---
apiVersion: batch/v1
kind: Job
Example 1: what follows is prose.

```go
apiVersion: nothing
```

```yaml
  workloadRef:
    name: a

    podGroup: b
```

status:
  active: 1
"""


# ---- the collection ------------------------------------------------------------------------------


def test_every_file_has_its_row_and_every_edit_its_diff() -> None:
    files = {path.name for path in FOLDER.glob("*.yaml")} - {"index.yaml"}
    assert files == {row.file for row in ROWS}
    assert set(FOLDER.glob("*.diff")) == {row.diff for row in ROWS if row.edit}


@each
def test_a_file_is_what_was_printed(row: Manifest) -> None:
    assert Snippet(row.line, row.printed).sha256 == row.sha256


@each
def test_an_edited_manifest_is_a_whole_object_of_the_version_that_was_printed(
    row: Manifest,
) -> None:
    whole = yaml.safe_load(row.edited)
    for obj in whole.get("items", [whole]):
        assert obj["apiVersion"] == row.version
        assert obj["metadata"]["name"]
        assert row.file.endswith(f"-{obj['kind'].lower()}.yaml")


def test_the_texts_print_what_is_collected_and_nothing_else() -> None:
    if "SEEDS" not in os.environ:
        pytest.skip("SEEDS names no folder with the texts of the proposals")
    assert main(["--check", os.environ["SEEDS"]]) == 0


# ---- the tool ------------------------------------------------------------------------------------


def test_snippets_are_found_in_fences_and_in_plain_text() -> None:
    assert [(found.line, found.text) for found in find_snippets(TEXT)] == [
        (5, "apiVersion: v1\nkind: Pod\nspec:\n  ...\n"),
        (10, "apiVersion: batch/v1\nkind: Job\n"),
        (19, "  workloadRef:\n    name: a\n\n    podGroup: b\n"),
        (25, "status:\n  active: 1\n"),
    ]


def test_what_is_missing_is_told() -> None:
    told = find_problems([TEXT])
    assert "A proposal: what is printed in line 25 is not collected" in told
    assert f"{ROWS[0].file}: nothing is printed in line {ROWS[0].line}" in told


def test_what_was_changed_is_told() -> None:
    row = next(row for row in ROWS if not row.repaired)
    blank = "\n" * (row.line - 2)

    def told(text: str) -> list[str]:
        found = find_problems([f"{row.proposal}\n{blank}{text}"])
        return [line for line in found if line.startswith(row.file)]

    assert told(row.printed) == []
    assert told(row.printed.replace("  ", " ")) == [
        f"{row.file}: it is printed with another indentation"
    ]
    assert "its digest is" in told(row.printed.replace("kind: ", "kind: Other"))[0]


def test_a_folder_without_texts_lacks_everything(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--check", str(tmp_path)]) == 1
    assert len(capsys.readouterr().out.splitlines()) == len(ROWS)


def test_a_diff_changes_removes_and_adds() -> None:
    diff = "reason\n--- a\n+++ b\n@@ -1,2 +1,2 @@\n-a\n+A\n b\n@@ -4 +4,2 @@\n d\n+e\n"
    assert apply_diff("a\nb\nc\nd\nf\n", diff) == "A\nb\nc\nd\ne\nf\n"
    assert apply_diff("a\n", "@@ -0,0 +1 @@\n+new\n") == "new\na\n"


def test_a_diff_that_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="the diff does not fit line 1: 'a'"):
        apply_diff("b\n", "@@ -1 +1 @@\n-a\n+c\n")
