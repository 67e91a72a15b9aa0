"""Which pods a refused entity may evict, which it does, and when it evicts none."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Generator, Iterable
from pathlib import Path

import pytest
from msgspec.structs import replace as altered

from phalanx.api.core import (
    Affinity,
    ContainerPort,
    Node,
    Pod,
    PodAffinity,
    PodAffinityTerm,
)
from phalanx.api.meta import ObjectMeta, pod_group_ref
from phalanx.api.other_kinds import (
    PodDisruptionBudget,
    PodDisruptionBudgetSpec,
    PodDisruptionBudgetStatus,
)
from phalanx.scheduler.cluster.cache import SchedulerCache
from phalanx.scheduler.cluster.group_tree import Group, group_ref
from phalanx.scheduler.cluster.pod_index import PodIndex
from phalanx.scheduler.cycle import decide, run_cycle
from phalanx.scheduler.decision import Binding, Decision, Placed, Preempting, Waiting
from phalanx.scheduler.entity import Entity
from phalanx.scheduler.group_tree_placement import PlacementResult, place_entity
from phalanx.scheduler.placement.group_placement import PlacementContext
from phalanx.scheduler.policy import DEFAULT_POLICY, SchedulerPolicy
from phalanx.scheduler.preemption import (
    eviction_units,
    plan_search,
    victim_program,
    victim_search,
)
from phalanx.scheduler.preemption.evaluator import NOT_ALLOWED, NOT_HELPFUL, VICTIMS_TERMINATING
from phalanx.scheduler.preemption.victim_search import assignments_hold
from phalanx.scheduler.queue.scheduler_state import ClusterObjects, load_state
from phalanx.scheduler.search.solver import Steps
from tests.scheduler.builders import (
    alone,
    basic,
    composite,
    entity,
    gang,
    key,
    node,
    pod,
    tree,
)

ROOT = Path(__file__).parents[3]


def build_cache(
    nodes: Iterable[Node], pods: Iterable[Pod], groups: Iterable[Group] = (),
    budgets: Iterable[PodDisruptionBudget] = (),
) -> SchedulerCache:  # fmt: skip
    return load_state(ClusterObjects(nodes, groups, list(pods), budgets=budgets)).cache


def low_priority_pod(
    name: str, on: str, group: str = "", *, cpu: str = "1", priority: int = 10
) -> Pod:
    return pod(name, group, on=on, cpu=cpu, priority=priority, phase="Running")


def with_start_time(one: Pod, at: str) -> Pod:
    return altered(one, status=altered(one.status, start_time=at))


def high_priority_pod(cpu: str = "1") -> Entity:
    return alone(pod("vip", cpu=cpu, priority=100))


def high_priority_gang(members: int, *, minimum: int = 0, cpu: str = "1") -> Entity:
    group = gang("high", minimum or members, priority=100)
    pods = [pod(f"high-{i}", "high", cpu=cpu, priority=100) for i in range(members)]
    return entity(group, pods)


def decide_for(
    cache: SchedulerCache, one: Entity, policy: SchedulerPolicy = DEFAULT_POLICY
) -> Decision:
    return decide(one, cache.snapshot(), policy)


def victim_names(decision: Decision) -> list[str]:
    assert isinstance(decision, Preempting), decision
    return sorted(victim.pod.name for victim in decision.victims)


def nominated_nodes(decision: Decision) -> dict[str, str]:
    found = decision.waiting if isinstance(decision, Preempting) else decision
    assert isinstance(found, Waiting)
    return {pod.name: node for pod, _, node in found.nominated}


def budget(allowed: int, **labels: str) -> PodDisruptionBudget:
    return PodDisruptionBudget(
        ObjectMeta(name="b", namespace="default"), PodDisruptionBudgetSpec({"matchLabels": labels}),
        PodDisruptionBudgetStatus(disruptions_allowed=allowed),
    )  # fmt: skip


def with_labels(one: Pod, **labels: str) -> Pod:
    return altered(one, metadata=altered(one.metadata, labels=labels))


# ---- when pods are evicted -----------------------------------------------------------------------


def test_free_resources_are_used_before_pods_are_evicted() -> None:
    cache = build_cache([node("a", cpu="1"), node("b", cpu="1")], [low_priority_pod("x", "a")])
    assert isinstance(decide_for(cache, high_priority_pod()), Placed)


def test_gang_evicts_no_more_than_it_needs_and_nominates_their_nodes() -> None:
    cache = build_cache([node("a", cpu="4")], [low_priority_pod(f"x{i}", "a") for i in range(4)])
    decision = decide_for(cache, high_priority_gang(2))
    assert len(victim_names(decision)) == 2
    assert nominated_nodes(decision) == {"high-0": "a", "high-1": "a"}


def test_no_pod_is_evicted_if_the_gang_does_not_fit_afterwards() -> None:
    cache = build_cache(
        [node("a", cpu="2")], [low_priority_pod("x", "a"), low_priority_pod("y", "a", priority=100)]
    )
    decision = decide_for(cache, high_priority_gang(2))
    assert isinstance(decision, Waiting)
    assert (decision.preemption, decision.nominated) == (NOT_HELPFUL, ())


@pytest.mark.parametrize("priority", [100, 101])
def test_only_pods_of_lower_priority_are_evicted(priority: int) -> None:
    cache = build_cache([node("a", cpu="1")], [low_priority_pod("x", "a", priority=priority)])
    decision = decide_for(cache, high_priority_pod())
    assert isinstance(decision, Waiting)
    assert decision.preemption == ""


def test_preemption_policy_never_is_respected() -> None:
    cache = build_cache([node("a", cpu="1")], [low_priority_pod("x", "a")])
    one = alone(pod("vip", cpu="1", priority=100, preemption="Never"))
    decision = decide_for(cache, one)
    assert isinstance(decision, Waiting)
    assert decision.preemption == NOT_ALLOWED


@pytest.mark.parametrize(
    ("policy", "for_pod", "for_group"),
    [
        (SchedulerPolicy(), True, True),
        (SchedulerPolicy(groups_preempt=False), True, False),
        (SchedulerPolicy(pods_preempt=False), False, True),
    ],
)
def test_policy_may_disable_preemption_for_pods_or_groups(
    policy: SchedulerPolicy, for_pod: bool, for_group: bool
) -> None:
    cache = build_cache([node("a", cpu="1")], [low_priority_pod("x", "a")])
    assert isinstance(decide_for(cache, high_priority_pod(), policy), Preempting) is for_pod
    assert isinstance(decide_for(cache, high_priority_gang(1), policy), Preempting) is for_group


def test_no_pod_is_evicted_from_a_node_that_filters_reject() -> None:
    cache = build_cache([node("a", cpu="1"), node("b", cpu="1", labels={"disk": "ssd"})], [
        low_priority_pod("x", "a"), low_priority_pod("y", "b", priority=50),
    ])  # fmt: skip
    one = alone(pod("vip", cpu="1", priority=100, selector={"disk": "ssd"}))
    assert victim_names(decide_for(cache, one)) == ["y"]


def test_members_beyond_the_quorum_preempt_too() -> None:
    cache = build_cache(
        [node("a", cpu="3")], [low_priority_pod("x", "a"), low_priority_pod("y", "a", priority=200)]
    )
    one = entity(basic("high", priority=100), [
        pod(f"high-{i}", "high", cpu="1", priority=100) for i in range(3)
    ])  # fmt: skip
    for member in one.members:
        cache.update_pod(member.pod.metadata.key, member.pod)
    first = decide_for(cache, one)
    assert isinstance(first, Placed)
    cache.assume(first.bindings)
    rest = entity(basic("high", priority=100), [
        m.pod for m in one.members if m.pod.metadata.key not in {b.pod for b in first.bindings}
    ])  # fmt: skip
    second = decide_for(cache, rest)
    assert victim_names(second) == ["x"]
    assert len(nominated_nodes(second)) == 1


# ---- which pods are evicted ----------------------------------------------------------------------


def test_lowest_priority_is_evicted_first_even_if_more_pods_go() -> None:
    cache = build_cache(
        [node("a", cpu="2"), node("b", cpu="2")],
        [
            low_priority_pod("x", "a", priority=5),
            low_priority_pod("y", "a", priority=5),
            low_priority_pod("z", "b", cpu="2", priority=6),
        ],
    )
    assert victim_names(decide_for(cache, high_priority_pod("2"))) == ["x", "y"]


def test_fewer_pods_are_evicted_at_equal_priority() -> None:
    cache = build_cache([node("a", cpu="2"), node("b", cpu="2")], [
        low_priority_pod("x", "a"), low_priority_pod("y", "a"), low_priority_pod("z", "b", cpu="2"),
    ])  # fmt: skip
    assert victim_names(decide_for(cache, high_priority_pod("2"))) == ["z"]


def test_youngest_pod_is_evicted_at_equal_numbers() -> None:
    cache = build_cache([node("a", cpu="1"), node("b", cpu="1")], [
        with_start_time(low_priority_pod("old", "b"), "2026-01-01T00:00:00Z"),
        with_start_time(low_priority_pod("young", "a"), "2026-01-02T00:00:00Z"),
    ])  # fmt: skip
    assert victim_names(decide_for(cache, high_priority_pod())) == ["young"]


def test_pod_without_group_is_evicted_before_a_group_member() -> None:
    cache = build_cache(
        [node("a", cpu="1"), node("b", cpu="1")],
        [low_priority_pod("member", "a", "g"), low_priority_pod("plain", "b")],
        [gang("g", 1, priority=10)],
    )
    assert victim_names(decide_for(cache, high_priority_pod())) == ["plain"]


def test_group_of_mode_all_is_evicted_as_a_whole() -> None:
    cache = build_cache(
        [node("a", cpu="1"), node("b", cpu="1", labels={"only": "here"})],
        [low_priority_pod("m0", "a", "g"), low_priority_pod("m1", "b", "g")],
        [gang("g", 2, priority=10, disrupted_as_unit=True)],
    )
    decision = decide_for(
        cache, alone(pod("vip", cpu="1", priority=100, selector={"only": "here"}))
    )
    assert victim_names(decision) == ["m0", "m1"]
    assert isinstance(decision, Preempting)
    assert {victim.group for victim in decision.victims} == {pod_group_ref(key("g"))}


def test_member_of_mode_single_is_evicted_alone() -> None:
    cache = build_cache(
        [node("a", cpu="1"), node("b", cpu="1")],
        [low_priority_pod("m0", "a", "g"), low_priority_pod("m1", "b", "g")],
        [gang("g", 2, priority=10)],
    )
    decision = decide_for(cache, high_priority_pod())
    assert len(victim_names(decision)) == 1
    assert isinstance(decision, Preempting)
    assert decision.victims[0].group is None


@pytest.mark.parametrize(("mode", "number"), [(True, 3), (False, 1)])
def test_highest_ancestor_of_mode_all_is_the_eviction_unit(mode: bool, number: int) -> None:
    cache = build_cache(
        [node("a", cpu="1"), node("b", cpu="1"), node("c", cpu="1")],
        [
            low_priority_pod("m0", "a", "g"),
            low_priority_pod("m1", "b", "g"),
            low_priority_pod("m2", "c", "h"),
        ],
        [
            composite("t", 2, priority=10, disrupted_as_unit=mode),
            gang("g", 2, priority=10, parent="t"),
            gang("h", 1, priority=10, parent="t"),
        ],
    )
    assert len(victim_names(decide_for(cache, high_priority_pod()))) == number


def test_priority_of_the_root_counts_not_of_the_pod() -> None:
    cache = build_cache(
        [node("a", cpu="1"), node("b", cpu="1")],
        [low_priority_pod("m", "a", "g", priority=1), low_priority_pod("x", "b", priority=50)],
        [composite("t", 1, priority=500), gang("g", 1, priority=1, parent="t")],
    )
    assert victim_names(decide_for(cache, high_priority_pod())) == ["x"]


def test_member_of_a_deleted_group_counts_as_single_pod() -> None:
    cache = build_cache([node("a", cpu="1")], [low_priority_pod("m", "a", "g", priority=1)])
    assert victim_names(decide_for(cache, high_priority_pod())) == ["m"]


def test_disruption_budget_is_respected_if_others_can_be_evicted() -> None:
    cache = build_cache(
        [node("a", cpu="1"), node("b", cpu="1")],
        [
            with_labels(low_priority_pod("safe", "a", priority=1), app="db"),
            low_priority_pod("other", "b", priority=50),
        ],
        budgets=[budget(0, app="db")],
    )
    assert victim_names(decide_for(cache, high_priority_pod())) == ["other"]


def test_disruption_budget_is_violated_if_no_other_eviction_helps() -> None:
    cache = build_cache(
        [node("a", cpu="1")],
        [with_labels(low_priority_pod("safe", "a"), app="db")],
        budgets=[budget(0, app="db")],
    )
    assert victim_names(decide_for(cache, high_priority_pod())) == ["safe"]


def test_disruption_budget_is_not_exceeded_without_need() -> None:
    nodes = [node(name, cpu="1") for name in "abc"]
    pods = [with_labels(low_priority_pod(f"db-{n}", n, priority=1), app="db") for n in "ab"]
    cache = build_cache(
        nodes, [*pods, low_priority_pod("x", "c", priority=50)], budgets=[budget(1, app="db")]
    )
    found = victim_names(decide_for(cache, high_priority_gang(2)))
    assert "x" in found
    assert len(found) == 2


def test_pod_with_conflicting_host_port_is_evicted() -> None:
    port = (ContainerPort(container_port=80, host_port=80),)
    cache = build_cache([node("a", cpu="4")], [
        pod("web", on="a", cpu="100m", priority=10, ports=port), low_priority_pod("x", "a"),
    ])  # fmt: skip
    assert victim_names(
        decide_for(cache, alone(pod("vip", cpu="1", priority=100, ports=port)))
    ) == ["web"]


def test_gang_with_topology_evicts_in_one_rack_only() -> None:
    racks = {"a": "r1", "b": "r1", "c": "r2", "d": "r2"}
    nodes = [node(name, {"rack": rack}, cpu="1") for name, rack in racks.items()]
    pods = [low_priority_pod("x", "a"), low_priority_pod("y", "b"), low_priority_pod("z", "c")]
    group = gang("high", 2, priority=100, topology="rack")
    one = entity(group, [pod(f"high-{i}", "high", cpu="1", priority=100) for i in range(2)])
    decision = decide_for(build_cache(nodes, pods), one)
    assert victim_names(decision) == ["z"]
    assert set(nominated_nodes(decision).values()) == {"c", "d"}


def test_tree_preempts_for_all_of_its_groups_or_none() -> None:
    def branch(name: str, cpu: str) -> Entity:
        group = gang(name, 1, priority=100, parent="t")
        return entity(group, [pod(f"{name}-0", name, cpu=cpu, priority=100)])

    cache = build_cache(
        [node("a", cpu="2")], [low_priority_pod("x", "a"), low_priority_pod("y", "a")]
    )
    root = composite("t", 2, priority=100)
    fits = decide_for(cache, tree(root, branch("g", "1"), branch("h", "1")))
    assert victim_names(fits) == ["x", "y"]
    too_large = decide_for(cache, tree(root, branch("g", "1"), branch("h", "5")))
    assert isinstance(too_large, Waiting)


# ---- while victims terminate ---------------------------------------------------------------------


def test_nomination_holds_and_no_other_pod_is_evicted_while_victims_terminate() -> None:
    cache = build_cache([node("a", cpu="2"), node("b", cpu="2")], [
        low_priority_pod("x", "a", cpu="2"), low_priority_pod("y", "b", cpu="2"),
    ])  # fmt: skip
    one = high_priority_pod("2")
    cache.update_pod(one.key, one.members[0].pod)
    first = decide_for(cache, one)
    assert isinstance(first, Preempting)
    cache.mark_evicting((victim.pod, victim.uid) for victim in first.victims)
    cache.nominate(first.waiting.nominated)
    again = decide_for(cache, one)
    assert isinstance(again, Waiting)
    assert again.preemption == VICTIMS_TERMINATING
    assert again.nominated == first.waiting.nominated


def test_victim_of_a_failed_eviction_may_be_chosen_again() -> None:
    cache = build_cache([node("a", cpu="1")], [low_priority_pod("x", "a")])
    chosen = [(key("x"), "uid-x")]
    cache.mark_evicting(chosen)
    assert isinstance(decide_for(cache, high_priority_pod()), Waiting)
    cache.mark_evicting(chosen, evicting=False)
    assert victim_names(decide_for(cache, high_priority_pod())) == ["x"]


def test_terminating_pods_free_enough_without_a_nomination() -> None:
    leaving = pod("x", on="a", cpu="1", priority=500, deleting=True)
    cache = build_cache(
        [node("a", cpu="1"), node("b", cpu="1")], [leaving, low_priority_pod("y", "b")]
    )
    decision = decide_for(cache, high_priority_pod())
    assert isinstance(decision, Waiting)
    assert (decision.preemption, decision.nominated) == (VICTIMS_TERMINATING, ())


def nominate(cache: SchedulerCache, name: str, on: str, priority: int) -> None:
    waiting = pod(name, cpu="1", priority=priority)
    cache.update_pod(waiting.metadata.key, waiting)
    cache.nominate([Binding(waiting.metadata.key, waiting.metadata.uid, on)])


@pytest.mark.parametrize(("priority", "is_kept"), [(5, True), (10, True), (11, False)])
def test_nominated_node_is_reserved_against_pods_of_no_higher_priority(
    priority: int, is_kept: bool
) -> None:
    cache = build_cache([node("a", cpu="1")], [])
    nominate(cache, "first", "a", 10)
    decision = decide_for(cache, alone(pod("second", cpu="1", priority=priority)))
    assert isinstance(decision, Waiting) is is_kept


def test_nomination_ends_with_the_pod() -> None:
    cache = build_cache([node("a", cpu="1")], [])
    nominate(cache, "first", "a", 10)
    assert cache.update_pod(key("first"), None)
    assert isinstance(decide_for(cache, alone(pod("second", cpu="1"))), Placed)


def test_nomination_is_replaced_if_the_topology_forbids_it() -> None:
    zones = [node("a", {"zone": "a"}, cpu="1"), node("b", {"zone": "b"}, cpu="2")]
    leaving = [
        altered(low_priority_pod(name, name), metadata=pod(name, deleting=True).metadata)
        for name in "ab"
    ]
    group = gang("high", 1, priority=100, topology="zone")
    waiting = pod("high-1", "high", cpu="1", priority=100)
    placed = pod("high-0", "high", on="b", cpu="1", priority=100)
    cache = build_cache(zones, [*leaving, placed, waiting], [group])
    cache.nominate([Binding(waiting.metadata.key, waiting.metadata.uid, "a")])
    decision = decide_for(cache, entity(group, [waiting], [placed]))
    assert nominated_nodes(decision) == {"high-1": "b"}


# ---- cost ----------------------------------------------------------------------------------------


def test_subsets_that_free_too_little_are_not_evaluated(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[int] = []

    def counting(one: Entity, context: PlacementContext) -> Steps[PlacementResult]:
        tried.append(len(one.members))
        return (yield from place_entity(one, context))

    monkeypatch.setattr(plan_search, "place_entity", counting)
    names = "abcdefgh"
    cache = build_cache(
        [node(name, cpu="1") for name in names], [low_priority_pod(f"x{n}", n) for n in names]
    )
    decision = decide_for(cache, high_priority_gang(6))
    assert len(victim_names(decision)) == 6
    # The 218 subsets of up to 5 of 8 pods cannot free enough for 6.
    assert len(tried) < 20


def test_refused_entity_reads_no_pods(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = [node(name, cpu="1") for name in "ab"]
    pods = [low_priority_pod("x", "a", "g", priority=100), low_priority_pod("y", "b", priority=200)]
    cache = build_cache(nodes, pods, [gang("g", 1, priority=100)])
    snapshot = cache.snapshot()

    def forbidden(index: PodIndex) -> None:
        raise AssertionError("all pods are read")

    monkeypatch.setattr(PodIndex, "assigned_pods", forbidden)
    decision = decide(high_priority_pod(), snapshot, DEFAULT_POLICY)
    assert isinstance(decision, Waiting)
    assert decision.preemption == ""


def test_group_of_a_lower_root_priority_is_found_by_the_index() -> None:
    root, leaf = composite("t", 1, priority=1), gang("g", 1, priority=200, parent="t")
    pods = [low_priority_pod("m", "a", "g", priority=200)]
    cache = build_cache([node("a", cpu="1")], pods, [root, leaf])
    assert victim_names(decide_for(cache, high_priority_pod())) == ["m"]
    cache.update_group(group_ref(root), composite("t", 1, priority=300))
    assert isinstance(decide_for(cache, high_priority_pod()), Waiting)


def near_database(name: str, **labels: str) -> Entity:
    term = PodAffinityTerm(label_selector={"matchLabels": {"app": "db"}}, topology_key="host")
    near = PodAffinity(required_during_scheduling_ignored_during_execution=(term,))
    wanted = pod(name, cpu="2", priority=100, labels=labels, affinity=Affinity(pod_affinity=near))
    return alone(wanted)


def cluster_with_databases(nodes: int) -> SchedulerCache:
    """Each node has a pod of 3 CPU; one in seven has a database of 1 CPU beside it."""
    pods = [low_priority_pod(f"x{i}", f"n{i}", cpu="3") for i in range(nodes)]
    pods += [with_labels(low_priority_pod(f"db{i}", f"n{i}"), app="db") for i in range(3, nodes, 7)]
    return build_cache([node(f"n{i}", {"host": f"n{i}"}, cpu="4") for i in range(nodes)], pods)


@pytest.mark.parametrize("labels", [{"app": "web"}, {"app": "db"}])
def test_pods_that_a_pod_must_be_near_to_stay(
    labels: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def counting(*arguments: object) -> Generator[int, None, bool]:
        asked.append(1)
        return (yield from assignments_hold(*arguments))  # type: ignore[arg-type]

    monkeypatch.setattr(victim_search, "assignments_hold", counting)
    decision = decide_for(cluster_with_databases(200), near_database("vip", **labels))
    (victim,) = victim_names(decision)
    assert victim.startswith("x")
    assert (int(victim[1:]) - 3) % 7 == 0
    assert len(asked) <= 4 * victim_search.MAX_FILTER_QUESTIONS


def test_search_for_victims_lets_other_tasks_run_in_between(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Loops over all candidates yield: a cluster has ten thousands of them."""
    pods = [low_priority_pod(f"low-{i}", f"n{i % 12}", priority=1 + i % 3) for i in range(48)]
    cache = build_cache(
        [node(f"n{i}", cpu="4") for i in range(12)],
        [with_labels(one, app="low") for one in pods],
        budgets=[budget(3, app="low")],
    )

    def count_steps(units_per_step: int) -> int:
        for module in (victim_search, victim_program):
            monkeypatch.setattr(module, "UNITS_PER_STEP", units_per_step)
        monkeypatch.setattr(eviction_units, "PODS_PER_STEP", units_per_step)
        return sum(1 for _ in run_cycle(high_priority_gang(30), cache.snapshot(), DEFAULT_POLICY))

    # Candidates are found, and at least the victims proposed, reprieved, added to the program.
    assert count_steps(4) >= count_steps(1000) + 48 // 4 + 3 * 30 // 4


@pytest.mark.parametrize(
    ("limit", "value"),
    [
        ("phalanx.scheduler.preemption.node_relaxation.CELLS_PER_STEP", 30),
        ("phalanx.scheduler.preemption.victim_search.MEMBERS_PER_STEP", 1),
        ("phalanx.scheduler.preemption.plan_search.UNITS_PER_STEP", 4),
        ("phalanx.scheduler.preemption.evaluator.PODS_PER_STEP", 4),
    ],
)
def test_prices_and_verification_of_victims_let_other_tasks_run_in_between(
    limit: str, value: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    pods = [low_priority_pod(f"low-{i}", f"n{i % 12}") for i in range(48)]
    nodes = [node(f"n{i}", cpu="4") for i in range(12)]
    cache = build_cache(nodes, pods, budgets=[budget(40, app="other")])

    def count_steps() -> int:
        return sum(1 for _ in run_cycle(high_priority_gang(30), cache.snapshot(), DEFAULT_POLICY))

    usual = count_steps()
    monkeypatch.setattr(limit, value)
    assert count_steps() >= usual + 30 // 4


def test_first_preemption_imports_no_module() -> None:
    """NumPy loads `numpy.ma` with the first plain `np.unique`, which takes many milliseconds."""
    test = "test_gang_evicts_no_more_than_it_needs_and_nominates_their_nodes"
    code = f"import sys; from {__name__} import {test} as run; run(); print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert "numpy.ma" not in done.stdout.split()
