"""Victims against all possible choices of them, family by family."""

from __future__ import annotations

import sys

import pytest

from phalanx.scheduler.cycle import decide
from phalanx.scheduler.decision import Placed, Preempting
from phalanx.scheduler.policy import DEFAULT_POLICY
from tests.scheduler.preemption_instances import FAMILIES, Cost, PreemptionInstance, build_instance


def chosen_victims(one: PreemptionInstance) -> tuple[Cost | None, list[str]]:
    """What the scheduler's choice costs, and who goes; no cost if nobody does."""
    decision = decide(one.entity(), one.cache().snapshot(), DEFAULT_POLICY)
    if isinstance(decision, Placed):
        return one.cost([]), []
    if not isinstance(decision, Preempting):
        return None, []
    names = {victim.pod.name for victim in decision.victims}
    units = [unit for unit in one.units() if unit[0].name in names]
    assert {pod.name for unit in units for pod in unit} == names, "a unit goes whole"
    assert one.fits(units), "nobody goes in vain"
    return one.cost(units), sorted(names)


def compare_with_optimum(family: str, seeds: range) -> tuple[int, int, list[str]]:
    """Of how many hunts there were, in how many the choice was the best, and where it was not."""
    best, all_of_them, worse = 0, 0, []
    for seed in seeds:
        one = build_instance(seed, family)
        wanted, (got, who) = one.lowest_cost(), chosen_victims(one)
        all_of_them += 1
        best += wanted == got
        if wanted != got:
            worse.append(f"{family} {seed}: {got} by evicting {who}, best is {wanted}")
    return best, all_of_them, worse


@pytest.mark.parametrize("family", FAMILIES)
def test_victims_are_the_best_in_nearly_all_hunts(family: str) -> None:
    best, all_of_them, worse = compare_with_optimum(family, range(60))
    assert best >= 0.95 * all_of_them, "\n".join(worse)


@pytest.mark.soak
@pytest.mark.parametrize("family", FAMILIES)
def test_victims_are_the_best_in_nearly_all_of_many_hunts(family: str) -> None:
    best, all_of_them, worse = compare_with_optimum(family, range(2000))
    sys.stdout.write("\n".join([f"{family}: the best in {best} of {all_of_them}", *worse[:20], ""]))
    assert best >= 0.95 * all_of_them


@pytest.mark.parametrize("family", FAMILIES)
def test_nobody_goes_who_could_stay_where_the_members_are_promised_to_be(family: str) -> None:
    for seed in range(60):
        one = build_instance(seed, family)
        decision = decide(one.entity(), one.cache().snapshot(), DEFAULT_POLICY)
        if not isinstance(decision, Preempting):
            continue
        names = {victim.pod.name for victim in decision.victims}
        units = [unit for unit in one.units() if unit[0].name in names]
        for spared in units:
            others = {pod.name for unit in units if unit is not spared for pod in unit}
            assert not _still_fits(one, decision, others), f"{family} {seed}: {spared} could stay"


def _still_fits(one: PreemptionInstance, decision: Preempting, gone: set[str]) -> bool:
    """Whether all members may be where they are promised to be with only these gone."""
    free = list(one.nodes)
    for resident in one.residents:
        if resident.name not in gone:
            free[resident.node] -= resident.cpu
    for pod, _, node in decision.waiting.nominated:
        free[int(node[1:])] -= one.wanted[int(pod.name.removeprefix("high-"))]
    concerned = {int(node[1:]) for _, _, node in decision.waiting.nominated}
    return all(free[i] >= 0 for i in concerned)
