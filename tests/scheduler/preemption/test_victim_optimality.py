"""The choice of victims against all possible choices, in families of random instances.

Small instances are compared with all sets of victims, large ones with an integer program. A
decision that says that it is optimal always is.
"""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest

from phalanx.api.meta import ObjectMeta
from phalanx.api.other_kinds import (
    PodDisruptionBudget,
    PodDisruptionBudgetSpec,
    PodDisruptionBudgetStatus,
)
from phalanx.controllers.scheduling.exact_solver import HighsSolver
from phalanx.scheduler.cluster.group_tree import group_ref
from phalanx.scheduler.cycle import decide
from phalanx.scheduler.decision import ClusterEvent, Decision, Placed, Preempting, Waiting
from phalanx.scheduler.policy import DEFAULT_POLICY
from phalanx.scheduler.preemption.evaluator import NOT_PROVEN, SEARCH_RUNNING
from phalanx.scheduler.preemption.plan_search import MAX_SOLVER_WAIT
from phalanx.scheduler.search.solver import SolverPending
from tests.scheduler.builders import cluster, entity, gang, node, pod
from tests.scheduler.large_preemption_instances import (
    LARGE_FAMILIES,
    build_large_instance,
    lowest_cost,
)
from tests.scheduler.preemption_instances import FAMILIES, Cost, PreemptionInstance, build_instance


def chosen_victims(one: PreemptionInstance, decision: Decision) -> tuple[Cost | None, list[str]]:
    """The cost and the names of the victims of a decision; None for no eviction."""
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
        decision = decide(one.entity(), one.cache().snapshot(), DEFAULT_POLICY)
        lowest, (cost, names) = one.lowest_cost(), chosen_victims(one, decision)
        all_of_them += 1
        best += lowest == cost
        if lowest != cost:
            worse.append(f"{family} {seed}: {cost} by evicting {names}, best is {lowest}")
    return best, all_of_them, worse


@pytest.mark.mostly_slow(quick_every=3)
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


def solve(family: str, nodes: int, seeds: range) -> list[str]:
    """The large instances in which the victims are not optimal although the decision says so."""
    wrong, solver = [], HighsSolver()
    for seed in seeds:
        one = build_large_instance(seed, family, nodes)
        decision = decide(one.entity(), one.cache().snapshot(), DEFAULT_POLICY, solver=solver)
        lowest, (cost, names) = lowest_cost(one), chosen_victims(one, decision)
        if lowest != cost and not isinstance(decision, Placed):
            wrong.append(f"{family} {seed}: {cost} by evicting {names}, best is {lowest}")
        if isinstance(decision, Preempting):
            assert decision.optimal is (lowest == cost), f"{family} {seed}"
            assert decision.violations == cost[0] if cost else None
            assert len(decision.broken_groups) == cost[2] if cost else None
    return wrong


@pytest.mark.mostly_slow(quick_every=3)
@pytest.mark.parametrize("family", LARGE_FAMILIES)
@pytest.mark.parametrize(("nodes", "seeds"), [(4, 5), (14, 3), (50, 1)])
def test_victims_are_optimal_up_to_50_nodes(family: str, nodes: int, seeds: int) -> None:
    assert solve(family, nodes, range(seeds)) == []


@pytest.mark.mostly_soak(slow_every=4)
@pytest.mark.parametrize("family", LARGE_FAMILIES)
@pytest.mark.parametrize("nodes", [4, 8, 16, 32, 50])
def test_victims_are_optimal_in_many_instances(family: str, nodes: int) -> None:
    assert solve(family, nodes, range(100, 140)) == []


@pytest.mark.mostly_soak(slow_every=4)
@pytest.mark.parametrize("first", [100, 105, 110, 115])
def test_victims_are_optimal_in_nearly_all_large_instances(first: int) -> None:
    seeds = range(first, first + 5)
    wrong = [line for family in LARGE_FAMILIES for line in solve(family, 200, seeds)]
    assert len(wrong) <= 0.01 * len(LARGE_FAMILIES) * len(seeds), "\n".join(wrong)


def test_decision_at_the_limit_of_the_search_says_so() -> None:
    one = build_large_instance(1, "budgets", 20)
    at_limit = decide(one.entity(), one.cache().snapshot(), DEFAULT_POLICY)
    assert isinstance(at_limit, Preempting)
    assert not at_limit.optimal
    assert at_limit.waiting.preemption.endswith(NOT_PROVEN)
    best = decide(one.entity(), one.cache().snapshot(), DEFAULT_POLICY, solver=HighsSolver())
    assert isinstance(best, Preempting)
    assert best.optimal
    assert NOT_PROVEN not in best.waiting.preemption


def test_exact_search_for_victims_that_is_running_is_waited_for() -> None:
    one = build_large_instance(1, "budgets", 20)
    pending = decide(
        one.entity(), one.cache().snapshot(), DEFAULT_POLICY, solver=lambda program: SolverPending()
    )
    assert isinstance(pending, Waiting)
    assert pending.preemption == SEARCH_RUNNING
    assert ClusterEvent.SEARCH_ENDED in pending.wakes_on
    long_waiting = replace(one.entity(), waited_seconds=MAX_SOLVER_WAIT + 1)
    decision = decide(
        long_waiting, one.cache().snapshot(), DEFAULT_POLICY, solver=lambda program: SolverPending()
    )
    assert isinstance(decision, Preempting), "but not forever"


@pytest.mark.parametrize("nodes", [6, 13, 200])
def test_no_budget_is_exceeded_needlessly(nodes: int) -> None:
    cache = cluster(
        [node(f"n{i:03}", cpu="1") for i in range(nodes)],
        [
            pod(f"v{i:03}", on=f"n{i:03}", cpu="1", labels={"app": "ab"[i % 2]})
            for i in range(nodes)
        ],
    )
    guarded = PodDisruptionBudget(
        ObjectMeta(name="b", namespace="default"),
        PodDisruptionBudgetSpec({"matchLabels": {"app": "a"}}),
        PodDisruptionBudgetStatus(disruptions_allowed=0),
    )
    cache.update_budget(guarded.metadata.key, guarded)
    own = [pod(f"g-{i}", "g", cpu="1", priority=100) for i in range(3)]
    decision = decide(entity(gang("g", 3, priority=100), own), cache.snapshot(), DEFAULT_POLICY)
    assert isinstance(decision, Preempting)
    assert (decision.violations, len(decision.victims), decision.optimal) == (0, 3, True)


def gangs_on_eight_nodes(*quorums: int) -> Decision:
    """Two gangs of four pods, one pod on each node, and a gang that needs two nodes."""
    cache = cluster(
        [node(f"n{i}", cpu="1") for i in range(8)],
        [pod(f"{'ab'[i % 2]}-{i}", "ab"[i % 2], on=f"n{i}", cpu="1") for i in range(8)],
    )
    for name, quorum in zip("ab", quorums, strict=True):
        cache.update_group(group_ref(gang(name, quorum)), gang(name, quorum))
    own = [pod(f"g-{i}", "g", cpu="1", priority=100) for i in range(2)]
    return decide(
        entity(gang("g", 2, priority=100), own),
        cache.snapshot(),
        DEFAULT_POLICY,
        solver=HighsSolver(),
    )


def test_one_gang_is_broken_rather_than_two() -> None:
    decision = gangs_on_eight_nodes(4, 4)
    assert isinstance(decision, Preempting)
    assert len({victim.pod.name[0] for victim in decision.victims}) == 1
    assert len(decision.broken_groups) == 1


def test_spare_members_are_evicted_before_a_gang_is_broken() -> None:
    decision = gangs_on_eight_nodes(2, 4)
    assert isinstance(decision, Preempting)
    assert {victim.pod.name[0] for victim in decision.victims} == {"a"}
    assert (decision.broken_groups, decision.optimal) == ((), True)


@pytest.mark.mostly_slow(quick_every=3)
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
    for name, _, on in decision.waiting.nominated:
        free[int(on[1:])] -= one.wanted[int(name.name.removeprefix("high-"))]
    concerned = {int(on[1:]) for _, _, on in decision.waiting.nominated}
    return all(free[i] >= 0 for i in concerned)
