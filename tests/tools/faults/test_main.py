"""The tool that runs ordeals: it tells, counts and makes failures small."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from phalanx.api.kinds import NODE, POD
from phalanx.api.meta import Key
from phalanx.controllers.reconcile_loop import Create, Delete, Patch
from phalanx.sim.simulation import InvariantViolation
from tools.faults import __main__ as faults
from tools.faults.__main__ import describe_step, main, shrink_steps
from tools.faults.steps import PlanStep, StartScheduler


def test_an_ordeal_that_goes_well_is_told_in_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seeds", "1-2", "--events", "40"]) == 0
    assert [line.split(",")[0] for line in capsys.readouterr().out.splitlines()] == [
        "seed 1: well",
        "seed 2: well",
    ]


@pytest.mark.parametrize("needed", [[3], [0, 99], [10, 11, 12, 60]])
def test_of_many_steps_those_remain_that_are_needed(needed: list[int]) -> None:
    steps = [PlanStep(float(number), StartScheduler(number)) for number in range(100)]

    def breaks(some: object) -> bool:
        assert isinstance(some, list)
        return {step.act.slot for step in some} >= set(needed)

    assert [step.at for step in shrink_steps(steps, breaks)] == needed


def test_looking_for_fewer_steps_ends() -> None:
    tried: list[int] = []

    def breaks(some: object) -> bool:
        tried.append(1)
        return False

    steps = [PlanStep(float(number), StartScheduler(number)) for number in range(1000)]
    assert shrink_steps(steps, breaks, attempts=30) == steps
    assert len(tried) == 30


def test_steps_are_spelled_in_a_few_words() -> None:
    meta = {"name": "p", "namespace": "default"}
    key = Key("default", "p")
    assert describe_step(Create(POD, {"metadata": meta, "spec": {"a": 1}})) == (
        'create Pod default/p {"a":1}'
    )
    assert describe_step(Patch(NODE, Key("", "n"), {"spec": {}})) == 'patch Node n {"spec":{}}'
    assert describe_step(Delete(POD, key, "", 30)) == "delete Pod default/p within 30 s"
    assert describe_step(StartScheduler(1)) == "Start(slot=1)"


def test_what_is_broken_is_told_with_the_way_to_see_it_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def endure(seed: int, steps: Sequence[PlanStep], share: int) -> None:
        if any(isinstance(step.action, StartScheduler) for step in steps):
            raise InvariantViolation(seed, 7, 1.5, "pod default/p66 is lost")

    monkeypatch.setattr(faults, "run_with_verifier", endure)
    assert main(["--seed", "4", "--events", "30", "--shrink"]) == 1
    assert capsys.readouterr().out == (
        "broken: seed 4, revision 7, t=1.500: pod default/p66 is lost\n"
        "  python -m tools.faults --seed 4 --events 30 --shrink\n"
        "1 of 30 steps break the same:\n"
        "  t=0         Start(slot=0)\n"
    )
