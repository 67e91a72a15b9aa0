from __future__ import annotations

import re
import subprocess
import sys

import pytest

from tests.cli.commands import ROOT


@pytest.mark.slow
def test_demo_shows_a_deadlock_its_cure_and_a_diagnosis() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "demo.py")],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert "  red ▶▶▶·   blue ▶▶▶·\n  deadlock: each job waits for its fourth worker" in done.stdout
    assert "  red ■■■■   blue ■■■■\n  red: rank 0: the sum is 30\n" in done.stdout
    assert "minCount (8) cannot be satisfied" in done.stdout
    assert "gangs:       red 4 of 4, then blue 4 of 4, and both finish" in done.stdout


def test_demo_uses_the_files_of_the_tutorial_in_order() -> None:
    tutorial = (ROOT / "docs" / "tutorial.md").read_text()
    demo = (ROOT / "examples" / "demo.py").read_text()
    files = [f"tutorial/{name}.yaml" for name in ("allow", "plain", "gang", "too-big")]
    for text in (tutorial, demo):
        begin = [text.index(file) for file in files]
        assert begin == sorted(begin)
    (options,) = re.findall(r'OPTIONS = "(.*)"', demo)
    assert f"phalanx up --detach --name tutorial {options}\n" in tutorial
