"""The collected manifests are complete and unchanged, and the tool reports differences."""

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
each_manifest = pytest.mark.parametrize("row", ROWS, ids=[row.file for row in ROWS])

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


def test_every_manifest_has_an_index_row_and_every_edit_a_diff() -> None:
    files = {path.name for path in FOLDER.glob("*.yaml")} - {"index.yaml"}
    assert files == {row.file for row in ROWS}
    assert set(FOLDER.glob("*.diff")) == {row.diff for row in ROWS if row.edit}


@each_manifest
def test_manifest_equals_the_printed_text(row: Manifest) -> None:
    assert Snippet(row.line, row.printed).sha256 == row.sha256


@each_manifest
def test_edited_manifest_is_a_complete_object_of_the_printed_version(
    row: Manifest,
) -> None:
    document = yaml.safe_load(row.edited)
    for obj in document.get("items", [document]):
        assert obj["apiVersion"] == row.version
        assert obj["metadata"]["name"]
        assert row.file.endswith(f"-{obj['kind'].lower()}.yaml")


def test_proposals_print_exactly_the_collected_manifests() -> None:
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


def test_missing_snippet_is_reported() -> None:
    problems = find_problems([TEXT])
    assert "A proposal: what is printed in line 25 is not collected" in problems
    assert f"{ROWS[0].file}: nothing is printed in line {ROWS[0].line}" in problems


def test_changed_snippet_is_reported() -> None:
    row = next(row for row in ROWS if not row.repaired)
    blank = "\n" * (row.line - 2)

    def problems_of_row(text: str) -> list[str]:
        found = find_problems([f"{row.proposal}\n{blank}{text}"])
        return [line for line in found if line.startswith(row.file)]

    assert problems_of_row(row.printed) == []
    assert problems_of_row(row.printed.replace("  ", " ")) == [
        f"{row.file}: it is printed with another indentation"
    ]
    assert "its digest is" in problems_of_row(row.printed.replace("kind: ", "kind: Other"))[0]


def test_folder_without_proposals_lacks_every_manifest(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--check", str(tmp_path)]) == 1
    assert len(capsys.readouterr().out.splitlines()) == len(ROWS)


def test_diff_changes_removes_and_adds_lines() -> None:
    diff = "reason\n--- a\n+++ b\n@@ -1,2 +1,2 @@\n-a\n+A\n b\n@@ -4 +4,2 @@\n d\n+e\n"
    assert apply_diff("a\nb\nc\nd\nf\n", diff) == "A\nb\nc\nd\ne\nf\n"
    assert apply_diff("a\n", "@@ -0,0 +1 @@\n+new\n") == "new\na\n"


def test_diff_that_does_not_apply_is_rejected() -> None:
    with pytest.raises(ValueError, match="the diff does not fit line 1: 'a'"):
        apply_diff("b\n", "@@ -1 +1 @@\n-a\n+c\n")
