"""Troubleshooting by reason: all that can be said is explained, and nothing that cannot."""

from __future__ import annotations

import re

from tests.cli.commands import ROOT
from tests.docs.reasons import reasons

TEXT = (ROOT / "docs" / "troubleshooting.md").read_text()
#: The first cells of all tables that begin with a reason.
EXPLAINED = {
    word
    for line in TEXT.splitlines()
    if line.startswith("| `")
    for word in re.findall(r"`([A-Z][A-Za-z]+)`", line.split(" | ")[0])
}


def test_every_reason_is_explained() -> None:
    assert reasons() - EXPLAINED == set()


def test_no_reason_is_explained_that_is_never_given() -> None:
    assert EXPLAINED - reasons() == set()
