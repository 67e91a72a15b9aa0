from __future__ import annotations

from phalanx.api.kinds import KINDS
from tools.supported_apis import FILE, render_document


def test_document_equals_the_tables() -> None:
    assert FILE.read_text() == render_document(), "run: python -m tools.supported_apis --write"


def test_document_lists_every_version_of_every_kind() -> None:
    rows = [line.split(" | ") for line in render_document().splitlines() if line.startswith("| ")]
    listed = {
        (row[0].removeprefix("| "), version) for row in rows for version in row[1].split(", ")
    }
    assert [kind for kind in KINDS if (kind.name, kind.version) not in listed] == []
