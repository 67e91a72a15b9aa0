"""docs/troubleshooting.md explains every reason code, and no others."""

from __future__ import annotations

import re

from tests.cli.commands import ROOT
from tests.docs.reasons import reasons

TEXT = (ROOT / "docs" / "troubleshooting.md").read_text()
#: The reasons in the first cells of all tables.
EXPLAINED = {
    word
    for line in TEXT.splitlines()
    if line.startswith("| `")
    for word in re.findall(r"`([A-Z][A-Za-z]+)`", line.split(" | ")[0])
}


def test_every_reason_is_explained() -> None:
    assert reasons() - EXPLAINED == set()


def test_every_explained_reason_occurs_in_the_source() -> None:
    assert EXPLAINED - reasons() == set()
