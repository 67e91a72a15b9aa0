"""Checks the manifests in tests/seeds against the texts of the five proposals.

    python -m tools.seeds --check FOLDER    is everything that the texts print in tests/seeds?

`tests/seeds/index.yaml` lists the collection: one file per printed manifest, verbatim, and a diff
where it needs an edit before it can be applied. The texts are not part of this repository.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import dropwhile
from pathlib import Path

import yaml

FOLDER = Path(__file__).resolve().parent.parent / "tests" / "seeds"
_FENCE = re.compile(r"\s*```\s*(\w*)\s*")
#: The first line of a manifest in plain text: of a whole object, or of a part.
_BEGIN = re.compile(r"apiVersion: \S+|(spec|status|metadata):")
#: A line of YAML: a key, an item, a comment, a quoted text, an ellipsis.
_YAML = re.compile(r'\s*((- )?[\w./-]+:( .*)?|- .*|#.*|".*"|\.\.\.)\s*')
_HUNK = re.compile(r"@@ -(\d+)(?:,\d+)? \+\d+(?:,\d+)? @@.*")


@dataclass(frozen=True, slots=True)
class Snippet:
    """A piece of YAML in a text, and the number of its first line."""

    line: int
    text: str

    @property
    def sha256(self) -> str:
        """Return a hash that does not depend on lost indentation."""
        lines = (line.strip() for line in self.text.splitlines())
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Manifest:
    """A row of the index: where a manifest is printed, and the reason for its edit, if any."""

    file: str
    proposal: str
    line: int
    sha256: str
    version: str
    repaired: bool
    edit: str

    @property
    def diff(self) -> Path:
        """Return the path of the diff, which exists if the row names a reason for an edit."""
        return (FOLDER / self.file).with_suffix(".diff")

    @property
    def printed(self) -> str:
        """Return the manifest as printed."""
        return (FOLDER / self.file).read_text()

    @property
    def edited(self) -> str:
        """Return the manifest as it can be applied."""
        return apply_diff(self.printed, self.diff.read_text()) if self.edit else self.printed


def load_manifests() -> list[Manifest]:
    """Return the index in the order of the texts."""
    rows = yaml.safe_load((FOLDER / "index.yaml").read_text())
    return [
        Manifest(
            row["file"], proposal["title"], row["line"], row["sha256"], row["version"],
            proposal.get("indentation") == "repaired", row.get("edit", ""),
        )
        for proposal in rows
        for row in proposal["manifests"]
    ]  # fmt: skip


# ---- reading texts -------------------------------------------------------------------------------


def find_snippets(text: str) -> Iterator[Snippet]:
    """Yield every piece of YAML in a text, fenced or not."""
    begin, fence = 0, ""
    lines = text.splitlines()
    for number, line in enumerate([*lines, ""], start=1):
        mark = _FENCE.fullmatch(line)
        inside = bool(begin) and not mark and line != "---" and (fence or _YAML.fullmatch(line))
        if begin and not inside:
            found = lines[begin - 1 : number - 1]
            if any(text.strip() for text in found):
                yield Snippet(begin, "\n".join(found) + "\n")
            begin = 0
        if mark:
            fence = "" if fence else mark[1] or "text"
        if begin or mark or line == "---":
            continue
        if fence == "yaml" or (not fence and _BEGIN.fullmatch(line)):
            begin = number


def title(text: str) -> str:
    """Return the first line of a text with content."""
    return next((line.lstrip("# ") for line in text.splitlines() if line.strip()), "")


# ---- diffs ---------------------------------------------------------------------------------------


def apply_diff(text: str, diff: str) -> str:
    """Apply a unified diff, which must match exactly."""
    old, new, at = text.splitlines(), [], 0
    # The lines before the first hunk name the files.
    for line in dropwhile(lambda line: not _HUNK.fullmatch(line), diff.splitlines()):
        if hunk := _HUNK.fullmatch(line):
            new += old[at : max(int(hunk[1]) - 1, 0)]
            at = max(int(hunk[1]) - 1, 0)
        elif line.startswith("+"):
            new.append(line[1:])
        else:
            if old[at : at + 1] != [line[1:]]:
                raise ValueError(f"the diff does not fit line {at + 1}: {line[1:]!r}")
            new += [line[1:]] if line.startswith(" ") else []
            at += 1
    return "\n".join([*new, *old[at:]]) + "\n"


# ---- the check -----------------------------------------------------------------------------------


def find_problems(texts: Iterable[str]) -> list[str]:
    """Return the differences between the collection and the texts."""
    known = {(row.proposal, row.line): row for row in load_manifests()}
    found = [
        complaint
        for text in texts
        for snippet in find_snippets(text)
        for complaint in _manifest_problems(
            known.pop((title(text), snippet.line), None), text, snippet
        )
    ]
    gone = [f"{row.file}: nothing is printed in line {row.line}" for row in known.values()]
    return found + gone


def _manifest_problems(row: Manifest | None, text: str, snippet: Snippet) -> Iterator[str]:
    if row is None:
        yield f"{title(text)}: what is printed in line {snippet.line} is not collected"
    elif row.sha256 != snippet.sha256:
        yield f"{row.file}: its digest is {snippet.sha256}"
    elif not row.repaired and row.printed != snippet.text:
        yield f"{row.file}: it is printed with another indentation"


def main(args: Sequence[str] | None = None) -> int:
    """Print what is missing, changed or superfluous; return 1 if anything is."""
    parser = argparse.ArgumentParser(prog="python -m tools.seeds", description=__doc__)
    parser.add_argument("--check", metavar="FOLDER", type=Path, required=True)
    folder: Path = parser.parse_args(args).check
    texts = [path.read_text() for path in sorted(folder.glob("*.txt"))]
    found = find_problems(texts)
    print(
        "\n".join(found)
        or f"{len(texts)} texts, {len(load_manifests())} manifests: all is as printed"
    )
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
