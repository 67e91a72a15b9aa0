"""The choice of victims against all possible choices, in families of random instances."""

from __future__ import annotations

import sys

import pytest

from phalanx.scheduler.cycle import decide
from phalanx.scheduler.decision import Placed, Preempting
from phalanx.scheduler.policy import DEFAULT_POLICY
from tests.scheduler.preemption_instances import FAMILIES, Cost, PreemptionInstance, build_instance


def chosen_victims(one: PreemptionInstance) -> tuple[Cost | None, list[str]]:
    """The cost and the names of the victims that the scheduler chooses; None for no eviction."""
    decision = decide(one.entity(), one.cache().snapshot(), DEFAULT_POLICY)
    if isinstance(decision, Placed):
        return one.cost([]), []
    if not isinstance(decision, Preempting):
        return None, []
    names = {victim.pod.name for victim in decision.victims}
    units = [unit for unit in one.units() if unit[0].name in names]
    assert {pod.name for unit in units for pod in unit} == names, "a unit goes whole"
    assert one.fits(units), "no pod is evicted without effect"
    return one.cost(units), sorted(names)


def compare_with_optimum(family: str, seeds: range) -> tuple[int, int, list[str]]:
    """The number of instances, of optimal choices, and the other choices."""
    best, all_of_them, worse = 0, 0, []
    for seed in seeds:
        one = build_instance(seed, family)
        lowest, (cost, names) = one.lowest_cost(), chosen_victims(one)
        all_of_them += 1
        best += lowest == cost
        if lowest != cost:
            worse.append(f"{family} {seed}: {cost} by evicting {names}, best is {lowest}")
    return best, all_of_them, worse


@pytest.mark.parametrize("family", FAMILIES)
def test_victims_are_optimal_in_nearly_all_instances(family: str) -> None:
    best, all_of_them, worse = compare_with_optimum(family, range(60))
    assert best >= 0.95 * all_of_them, "\n".join(worse)


@pytest.mark.soak
@pytest.mark.parametrize("family", FAMILIES)
def test_victims_are_optimal_in_nearly_all_of_many_instances(family: str) -> None:
    best, all_of_them, worse = compare_with_optimum(family, range(2000))
    sys.stdout.write("\n".join([f"{family}: the best in {best} of {all_of_them}", *worse[:20], ""]))
    assert best >= 0.95 * all_of_them


@pytest.mark.parametrize("family", FAMILIES)
def test_no_victim_could_stay_beside_the_nominated_members(family: str) -> None:
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
    """Whether all members fit on their nominated nodes if only these pods are evicted."""
    free = list(one.nodes)
    for running in one.running_pods:
        if running.name not in gone:
            free[running.node] -= running.cpu
    for pod, _, node in decision.waiting.nominated:
        free[int(node[1:])] -= one.wanted[int(pod.name.removeprefix("high-"))]
    concerned = {int(node[1:]) for _, _, node in decision.waiting.nominated}
    return all(free[i] >= 0 for i in concerned)
