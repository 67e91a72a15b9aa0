from __future__ import annotations

import subprocess
import sys

from tests.cli.commands import ROOT


def test_the_demo_shows_a_gang_that_fits_and_one_that_does_not_and_why() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "demo.py")],
        capture_output=True, text=True, timeout=50, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert "\npodgroup/train: Scheduled\n" in done.stdout
    placed = [line.split() for line in done.stdout.splitlines() if line.startswith("  train-")]
    assert [name for name, _ in placed] == [f"train-{n}" for n in range(6)]
    assert {node for _, node in placed} == {"node-0", "node-1"}
    assert "podgroup/too-big: Unschedulable minCount (3) cannot be satisfied" in done.stdout
    assert done.stdout.count("no node") == 3
    assert "It would help to:" in done.stdout
