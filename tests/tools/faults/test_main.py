"""The command line of fault runs: output, exit codes and shrinking."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from phalanx.api.kinds import NODE, POD
from phalanx.api.meta import Key
from phalanx.controllers.reconcile_loop import Create, Delete, Patch
from phalanx.sim.simulation import InvariantViolation
from tools.faults import __main__ as faults
from tools.faults.__main__ import describe_step, main, shrink_steps
from tools.faults.environment import RunOptions
from tools.faults.steps import PlanStep, StartScheduler


def test_successful_run_prints_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seeds", "1-2", "--events", "40"]) == 0
    assert [line.split(",")[0] for line in capsys.readouterr().out.splitlines()] == [
        "seed 1: no violation",
        "seed 2: no violation",
    ]


@pytest.mark.parametrize("needed", [[3], [0, 99], [10, 11, 12, 60]])
def test_shrinking_keeps_the_needed_steps(needed: list[int]) -> None:
    steps = [PlanStep(float(number), StartScheduler(number)) for number in range(100)]

    def fails(candidate: object) -> bool:
        assert isinstance(candidate, list)
        return {step.action.slot for step in candidate} >= set(needed)

    assert [step.at for step in shrink_steps(steps, fails)] == needed


def test_shrinking_is_bounded() -> None:
    attempts_made: list[int] = []

    def fails(candidate: object) -> bool:
        attempts_made.append(1)
        return False

    steps = [PlanStep(float(number), StartScheduler(number)) for number in range(1000)]
    assert shrink_steps(steps, fails, attempts=30) == steps
    assert len(attempts_made) == 30


def test_steps_are_described_briefly() -> None:
    metadata = {"name": "p", "namespace": "default"}
    key = Key("default", "p")
    assert describe_step(Create(POD, {"metadata": metadata, "spec": {"a": 1}})) == (
        'create Pod default/p {"a":1}'
    )
    assert describe_step(Patch(NODE, Key("", "n"), {"spec": {}})) == 'patch Node n {"spec":{}}'
    assert describe_step(Delete(POD, key, "", 30)) == "delete Pod default/p within 30 s"
    assert describe_step(StartScheduler(1)) == "StartScheduler(slot=1)"


def test_violation_is_printed_with_the_command_that_reproduces_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run_until_violation(
        seed: int, steps: Sequence[PlanStep], share: int, options: RunOptions
    ) -> None:
        if any(isinstance(step.action, StartScheduler) for step in steps):
            raise InvariantViolation(seed, 7, 1.5, sentence="pod default/p66 is lost")

    monkeypatch.setattr(faults, "run_with_verifier", run_until_violation)
    assert main(["--seed", "4", "--events", "30", "--shrink"]) == 1
    assert capsys.readouterr().out == (
        "violation: seed 4, revision 7, t=1.500: pod default/p66 is lost\n"
        "  python -m tools.faults --seed 4 --events 30 --shrink\n"
        "1 of 30 steps violate the same invariant:\n"
        "  t=0         StartScheduler(slot=0)\n"
    )
