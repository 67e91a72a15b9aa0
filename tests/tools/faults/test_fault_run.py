"""The fault programme: whatever a seed draws, what must hold holds (I1, I2, I5 to I9, I21 to I31).

A failure says how to see it again. `make soak` goes through thousands more.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from phalanx.sim.simulation import InvariantViolation
from tools.faults.__main__ import DEFAULT_STEPS, reproduce_command, run_with_verifier, steps_of
from tools.faults.fault_run import FaultRunResult

ROOT = Path(__file__).parents[3]
SEEDS = range(40)
#: The long programme: so many portions of so many seeds.
PORTIONS, PORTION = 100, 20
REGRESSIONS = [
    tuple(map(int, line.split()[:2]))
    for line in (Path(__file__).parent / "regressions.txt").read_text().splitlines()
    if not line.startswith("#")
]
#: Of all steps that users take, so many are refused at most: the others must have had an effect.
REFUSED = 0.3


def endured(seed: int, events: int, **options: int) -> FaultRunResult:
    steps = steps_of(seed, events)
    try:
        outcome = run_with_verifier(seed, steps, **options)
    except InvariantViolation as violation:
        pytest.fail(f"{violation}\n{reproduce_command(seed, events)}", pytrace=False)
    refused = sum(n for name, n in outcome.step_counts.items() if name.startswith("refused"))
    assert refused < REFUSED * len(steps)
    assert sum(outcome.step_counts.values()) == len(steps)
    return outcome


@pytest.mark.timeout(240)
@pytest.mark.parametrize("seed", SEEDS)
def test_nothing_that_must_hold_breaks_whatever_happens(seed: int) -> None:
    endured(seed, DEFAULT_STEPS)


@pytest.mark.timeout(240)
@pytest.mark.parametrize(("seed", "events"), REGRESSIONS)
def test_what_once_broke_something_does_not_any_more(seed: int, events: int) -> None:
    endured(seed, events, share=2)


@pytest.mark.soak
@pytest.mark.parametrize("portion", range(PORTIONS))
def test_nothing_breaks_in_the_long_run(portion: int) -> None:
    for seed in range(1000 + portion * PORTION, 1000 + (portion + 1) * PORTION):
        endured(seed, DEFAULT_STEPS, share=2)


def test_the_same_seed_gives_the_same_bytes_whatever_the_hash_seed() -> None:
    command = [
        sys.executable,
        "-m",
        "tools.faults",
        "--seed",
        "3",
        "--events",
        "300",
        "--digest",
    ]
    outputs = [
        subprocess.run(
            command, cwd=ROOT, env={**os.environ, "PYTHONHASHSEED": seed}, check=True,
            capture_output=True, text=True,
        ).stdout
        for seed in ("1", "2")
    ]  # fmt: skip
    assert outputs[0] == outputs[1]
    assert "well" in outputs[0]
