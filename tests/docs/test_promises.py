"""`docs/security.md`: every promise names tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
ROW = re.compile(r"^\| (?P<promise>.+?) \| (?P<tests>`test_.+) \|$", re.MULTILINE)


def promises() -> dict[str, list[str]]:
    _, _, section = (ROOT / "docs" / "security.md").read_text().partition("\n## Promises\n")
    return {row["promise"]: re.findall(r"`(\w+)`", row["tests"]) for row in ROW.finditer(section)}


def test_every_promise_names_tests_that_exist() -> None:
    existing = {
        name
        for path in (ROOT / "tests").rglob("test_*.py")
        for name in re.findall(r"^ *(?:async )?def (test_\w+)", path.read_text(), re.MULTILINE)
    }
    assert len(promises()) > 40
    missing = {
        promise: sorted(set(tests) - existing)
        for promise, tests in promises().items()
        if not tests or set(tests) - existing
    }
    assert missing == {}
