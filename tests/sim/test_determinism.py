from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from phalanx.sim.scenario import parse_scenario
from phalanx.sim.simulation import run_scenario

FOLDER = Path(__file__).parent.parent / "scenarios"
PROGRAM = """
import pathlib, sys
from phalanx.sim.simulation import run_scenario
from phalanx.sim.scenario import parse_scenario
for file in sorted(pathlib.Path(sys.argv[1]).glob("*.yaml"))[::3]:
    timeline = run_scenario(parse_scenario(file.read_text()))
    print(file.stem, timeline.digest, timeline.text(decimals=9), sep="\\n")
"""


def output(hash_seed: str) -> bytes:
    command = [sys.executable, "-c", PROGRAM, str(FOLDER)]
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    return subprocess.run(command, env=environment, check=True, capture_output=True).stdout


@pytest.mark.slow
def test_timelines_do_not_depend_on_the_hash_seed() -> None:
    first = output("1")
    assert b"train" in first
    assert output("2") == first


def test_another_seed_gives_another_run() -> None:
    scenario = parse_scenario((FOLDER / "gang-waits-for-capacity.yaml").read_text())
    assert run_scenario(scenario) == run_scenario(scenario)
    assert run_scenario(replace(scenario, seed=8)).digest != run_scenario(scenario).digest
