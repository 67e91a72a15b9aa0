"""Fault runs: no seed violates an invariant (I1, I2, I5 to I9, I21 to I31).

A failure names the command that reproduces it. `make test` runs a few short ones, `make test-all`
all seeds and regressions in full length, `make soak` thousands more.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from phalanx.sim.simulation import InvariantViolation
from tools.faults.__main__ import (
    DEFAULT_SHARE,
    DEFAULT_STEPS,
    reproduce_command,
    run_with_verifier,
    steps_of,
)
from tools.faults.environment import DEFAULT_OPTIONS, RunOptions
from tools.faults.fault_run import FaultRunResult

ROOT = Path(__file__).parents[3]
SEEDS = range(40)
SHORT_SEEDS, SHORT_STEPS = range(100, 106), 150
#: Runs with volumes and devices, on our server and on a foreign one.
WITH_CLAIMS, FOREIGN = RunOptions(claims=True), RunOptions(claims=True, is_foreign=True)
CLAIM_SEEDS, CLAIM_STEPS = range(6), 400
#: The soak: number of portions, and seeds per portion.
SOAK_PORTIONS, SEEDS_PER_PORTION = 100, 20
MODES = {"--claims": WITH_CLAIMS, "--foreign": FOREIGN}
REGRESSIONS = [
    (int(seed), int(events), MODES.get(mode, DEFAULT_OPTIONS))
    for line in (Path(__file__).parent / "regressions.txt").read_text().splitlines()
    if not line.startswith("#")
    for seed, events, mode in [line.split()[:3]]
]
#: The largest share of user steps that may be rejected: the others must take effect.
MAX_REJECTED_SHARE = 0.3


def run_seed(
    seed: int, events: int, share: int = DEFAULT_SHARE, options: RunOptions = DEFAULT_OPTIONS
) -> FaultRunResult:
    steps = steps_of(seed, events, options)
    try:
        result = run_with_verifier(seed, steps, share, options=options)
    except InvariantViolation as violation:
        pytest.fail(f"{violation}\n{reproduce_command(seed, events, options)}", pytrace=False)
    rejected = sum(n for name, n in result.step_counts.items() if name.startswith("refused"))
    assert rejected < MAX_REJECTED_SHARE * len(steps)
    assert sum(result.step_counts.values()) == len(steps)
    return result


@pytest.mark.mostly_slow(quick_every=3)
@pytest.mark.parametrize("seed", SHORT_SEEDS)
def test_short_fault_run_violates_no_invariant(seed: int) -> None:
    run_seed(seed, SHORT_STEPS)


@pytest.mark.mostly_soak(slow_every=8)
@pytest.mark.parametrize("seed", SEEDS)
def test_fault_run_violates_no_invariant(seed: int) -> None:
    run_seed(seed, DEFAULT_STEPS)


@pytest.mark.parametrize("options", [WITH_CLAIMS, FOREIGN], ids=["own", "foreign"])
def test_short_fault_run_with_claims_leaks_nothing(options: RunOptions) -> None:
    run_seed(200, SHORT_STEPS, options=options)


@pytest.mark.slow
@pytest.mark.parametrize("options", [WITH_CLAIMS, FOREIGN], ids=["own", "foreign"])
@pytest.mark.parametrize("seed", CLAIM_SEEDS)
def test_fault_run_with_claims_leaks_nothing(seed: int, options: RunOptions) -> None:
    run_seed(seed, CLAIM_STEPS, options=options)


@pytest.mark.mostly_soak(slow_every=3)
@pytest.mark.parametrize(("seed", "events", "options"), REGRESSIONS)
def test_regression_seed_violates_no_invariant(seed: int, events: int, options: RunOptions) -> None:
    run_seed(seed, events, share=2, options=options)


@pytest.mark.soak
@pytest.mark.parametrize("portion", range(SOAK_PORTIONS))
def test_soak_violates_no_invariant(portion: int) -> None:
    for seed in range(1000 + portion * SEEDS_PER_PORTION, 1000 + (portion + 1) * SEEDS_PER_PORTION):
        run_seed(seed, DEFAULT_STEPS, share=2)
        run_seed(seed, CLAIM_STEPS, options=FOREIGN if seed % 2 else WITH_CLAIMS)


@pytest.mark.slow
def test_fault_run_does_not_depend_on_the_hash_seed() -> None:
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
    assert "no violation" in outputs[0]
