"""Usage of real processes; `tests/cli/test_process_nodes.py` tests the metrics of pods."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from phalanx.controllers.nodes import process_metrics as consumption
from phalanx.controllers.nodes.process_metrics import usage_by_session

#: Longer than the test asks for: the kernel rounds the times of each process down to 10 ms.
BURN = "import time\nwhile time.process_time() < .25: pass\nprint('done', flush=True)\ninput()"


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="there is no /proc")
def test_the_usage_of_a_session_is_that_of_all_its_processes() -> None:
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {BURN!r}])"
    with subprocess.Popen(
        [sys.executable, "-c", parent],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"done\n"
        spent = usage_by_session()[process.pid]
        process.communicate(b"\n")
    assert 0.2 <= spent.cpu < 10
    assert spent.memory > 1_000_000
    assert os.getsid(0) in usage_by_session()
    assert process.pid not in usage_by_session()


def test_without_proc_nothing_is_measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(consumption, "_PROC", tmp_path / "absent")
    assert usage_by_session() == {}
