"""Whom a refused entity may evict, whom it does, and when it does not."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from msgspec.structs import replace as altered

from phalanx.api.budget import Budget, BudgetSpec, BudgetStatus
from phalanx.api.core import ContainerPort, Node, Pod
from phalanx.api.meta import Meta
from phalanx.scheduler.branches import Grown, whole
from phalanx.scheduler.cluster.cache import Cache
from phalanx.scheduler.cluster.forest import Group, name_of
from phalanx.scheduler.cycle import decide
from phalanx.scheduler.decision import Binding, Decision, Placed, Preempting, Waiting
from phalanx.scheduler.entity import Entity
from phalanx.scheduler.evicting import preemption
from phalanx.scheduler.evicting.preemption import NO_HELP, NOT_ALLOWED, UNDER_WAY
from phalanx.scheduler.placing.attempt import Ground
from phalanx.scheduler.policy import DEFAULT, Policy
from phalanx.scheduler.rescue.search import Steps
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


def world(
    nodes: Iterable[Node], pods: Iterable[Pod], groups: Iterable[Group] = (),
    budgets: Iterable[Budget] = (),
) -> Cache:  # fmt: skip
    cache = Cache()
    for one in nodes:
        cache.node(one.metadata.name, one)
    for group in groups:
        cache.group(name_of(group), group)
    for budget in budgets:
        cache.budget(budget.metadata.key, budget)
    for running in pods:
        cache.pod(running.metadata.key, running)
    return cache


def low(name: str, on: str, group: str = "", *, cpu: str = "1", priority: int = 10) -> Pod:
    return pod(name, group, on=on, cpu=cpu, priority=priority, phase="Running")


def started(one: Pod, at: str) -> Pod:
    return altered(one, status=altered(one.status, start_time=at))


def vip(cpu: str = "1") -> Entity:
    return alone(pod("vip", cpu=cpu, priority=100))


def high(members: int, *, minimum: int = 0, cpu: str = "1") -> Entity:
    group = gang("high", minimum or members, priority=100)
    pods = [pod(f"high-{i}", "high", cpu=cpu, priority=100) for i in range(members)]
    return entity(group, pods)


def decided(cache: Cache, one: Entity, policy: Policy = DEFAULT) -> Decision:
    return decide(one, cache.snapshot(), policy)


def victims(decision: Decision) -> list[str]:
    assert isinstance(decision, Preempting), decision
    return sorted(victim.pod.name for victim in decision.victims)


def promised(decision: Decision) -> dict[str, str]:
    found = decision.waiting if isinstance(decision, Preempting) else decision
    assert isinstance(found, Waiting)
    return {pod.name: node for pod, _, node in found.promised}


def budget(allowed: int, **labels: str) -> Budget:
    return Budget(
        Meta(name="b", namespace="default"), BudgetSpec({"matchLabels": labels}),
        BudgetStatus(disruptions_allowed=allowed),
    )  # fmt: skip


def labelled(one: Pod, **labels: str) -> Pod:
    return altered(one, metadata=altered(one.metadata, labels=labels))


# ---- whether -------------------------------------------------------------------------------------


def test_free_room_is_used_before_anybody_is_evicted() -> None:
    cache = world([node("a", cpu="1"), node("b", cpu="1")], [low("x", "a")])
    assert isinstance(decided(cache, vip()), Placed)


def test_a_gang_evicts_no_more_than_it_needs_and_is_promised_their_nodes() -> None:
    cache = world([node("a", cpu="4")], [low(f"x{i}", "a") for i in range(4)])
    decision = decided(cache, high(2))
    assert len(victims(decision)) == 2
    assert promised(decision) == {"high-0": "a", "high-1": "a"}


def test_nobody_goes_if_the_gang_does_not_fit_even_then() -> None:
    cache = world([node("a", cpu="2")], [low("x", "a"), low("y", "a", priority=100)])
    decision = decided(cache, high(2))
    assert isinstance(decision, Waiting)
    assert (decision.preemption, decision.promised) == (NO_HELP, ())


@pytest.mark.parametrize("priority", [100, 101])
def test_only_who_is_less_important_goes(priority: int) -> None:
    cache = world([node("a", cpu="1")], [low("x", "a", priority=priority)])
    decision = decided(cache, vip())
    assert isinstance(decision, Waiting)
    assert decision.preemption == ""


def test_who_may_never_preempt_does_not() -> None:
    cache = world([node("a", cpu="1")], [low("x", "a")])
    one = alone(pod("vip", cpu="1", priority=100, preemption="Never"))
    decision = decided(cache, one)
    assert isinstance(decision, Waiting)
    assert decision.preemption == NOT_ALLOWED


@pytest.mark.parametrize(
    ("policy", "for_pod", "for_group"),
    [
        (Policy(), True, True),
        (Policy(groups_preempt=False), True, False),
        (Policy(preempts=False), False, True),
    ],
)
def test_a_policy_may_keep_pods_from_it_or_groups(
    policy: Policy, for_pod: bool, for_group: bool
) -> None:
    cache = world([node("a", cpu="1")], [low("x", "a")])
    assert isinstance(decided(cache, vip(), policy), Preempting) is for_pod
    assert isinstance(decided(cache, high(1), policy), Preempting) is for_group


def test_nobody_is_evicted_for_a_node_that_the_pod_may_not_use_anyway() -> None:
    cache = world([node("a", cpu="1"), node("b", cpu="1", labels={"disk": "ssd"})], [
        low("x", "a"), low("y", "b", priority=50),
    ])  # fmt: skip
    one = alone(pod("vip", cpu="1", priority=100, selector={"disk": "ssd"}))
    assert victims(decided(cache, one)) == ["y"]


def test_extra_members_evict_too_as_many_as_find_room() -> None:
    cache = world([node("a", cpu="3")], [low("x", "a"), low("y", "a", priority=200)])
    one = entity(basic("high", priority=100), [
        pod(f"high-{i}", "high", cpu="1", priority=100) for i in range(3)
    ])  # fmt: skip
    for member in one.members:
        cache.pod(member.pod.metadata.key, member.pod)
    first = decided(cache, one)
    assert isinstance(first, Placed)
    cache.assume(first.bindings)
    rest = entity(basic("high", priority=100), [
        m.pod for m in one.members if m.pod.metadata.key not in {b.pod for b in first.bindings}
    ])  # fmt: skip
    second = decided(cache, rest)
    assert victims(second) == ["x"]
    assert len(promised(second)) == 1


# ---- whom ----------------------------------------------------------------------------------------


def test_the_lowest_priority_goes_first_even_if_these_are_more_pods() -> None:
    cache = world([node("a", cpu="2"), node("b", cpu="2")], [
        low("x", "a", priority=5), low("y", "a", priority=5), low("z", "b", cpu="2", priority=6),
    ])  # fmt: skip
    assert victims(decided(cache, vip("2"))) == ["x", "y"]


def test_of_equal_priority_fewer_pods_go() -> None:
    cache = world([node("a", cpu="2"), node("b", cpu="2")], [
        low("x", "a"), low("y", "a"), low("z", "b", cpu="2"),
    ])  # fmt: skip
    assert victims(decided(cache, vip("2"))) == ["z"]


def test_of_equal_numbers_the_youngest_goes() -> None:
    cache = world([node("a", cpu="1"), node("b", cpu="1")], [
        started(low("old", "b"), "2026-01-01T00:00:00Z"),
        started(low("young", "a"), "2026-01-02T00:00:00Z"),
    ])  # fmt: skip
    assert victims(decided(cache, vip())) == ["young"]


def test_a_pod_without_a_group_goes_before_a_member() -> None:
    cache = world(
        [node("a", cpu="1"), node("b", cpu="1")],
        [low("member", "a", "g"), low("plain", "b")],
        [gang("g", 1, priority=10)],
    )
    assert victims(decided(cache, vip())) == ["plain"]


def test_a_group_of_mode_all_goes_whole_wherever_its_members_are() -> None:
    cache = world(
        [node("a", cpu="1"), node("b", cpu="1", labels={"only": "here"})],
        [low("m0", "a", "g"), low("m1", "b", "g")],
        [gang("g", 2, priority=10, goes_whole=True)],
    )
    decision = decided(cache, alone(pod("vip", cpu="1", priority=100, selector={"only": "here"})))
    assert victims(decision) == ["m0", "m1"]
    assert isinstance(decision, Preempting)
    assert {victim.group for victim in decision.victims} == {key("g")}


def test_a_member_of_a_group_of_mode_single_goes_alone() -> None:
    cache = world(
        [node("a", cpu="1"), node("b", cpu="1")],
        [low("m0", "a", "g"), low("m1", "b", "g")],
        [gang("g", 2, priority=10)],
    )
    decision = decided(cache, vip())
    assert len(victims(decision)) == 1
    assert isinstance(decision, Preempting)
    assert decision.victims[0].group is None


@pytest.mark.parametrize(("mode", "number"), [(True, 3), (False, 1)])
def test_the_highest_ancestor_of_mode_all_decides_who_goes_together(
    mode: bool, number: int
) -> None:
    cache = world(
        [node("a", cpu="1"), node("b", cpu="1"), node("c", cpu="1")],
        [low("m0", "a", "g"), low("m1", "b", "g"), low("m2", "c", "h")],
        [
            composite("t", 2, priority=10, goes_whole=mode),
            gang("g", 2, priority=10, parent="t"),
            gang("h", 1, priority=10, parent="t"),
        ],
    )
    assert len(victims(decided(cache, vip()))) == number


def test_what_counts_is_the_priority_of_the_root_not_of_the_pod() -> None:
    cache = world(
        [node("a", cpu="1"), node("b", cpu="1")],
        [low("m", "a", "g", priority=1), low("x", "b", priority=50)],
        [composite("t", 1, priority=500), gang("g", 1, priority=1, parent="t")],
    )
    assert victims(decided(cache, vip())) == ["x"]


def test_a_member_whose_group_is_gone_counts_by_itself() -> None:
    cache = world([node("a", cpu="1")], [low("m", "a", "g", priority=1)])
    assert victims(decided(cache, vip())) == ["m"]


def test_a_budget_is_respected_if_somebody_else_can_go() -> None:
    cache = world(
        [node("a", cpu="1"), node("b", cpu="1")],
        [labelled(low("safe", "a", priority=1), app="db"), low("other", "b", priority=50)],
        budgets=[budget(0, app="db")],
    )
    assert victims(decided(cache, vip())) == ["other"]


def test_a_budget_does_not_save_those_who_alone_can_make_room() -> None:
    cache = world(
        [node("a", cpu="1")], [labelled(low("safe", "a"), app="db")], budgets=[budget(0, app="db")]
    )
    assert victims(decided(cache, vip())) == ["safe"]


def test_a_budget_is_spent_no_further_than_it_allows_if_that_will_do() -> None:
    nodes = [node(name, cpu="1") for name in "abc"]
    pods = [labelled(low(f"db-{n}", n, priority=1), app="db") for n in "ab"]
    cache = world(nodes, [*pods, low("x", "c", priority=50)], budgets=[budget(1, app="db")])
    found = victims(decided(cache, high(2)))
    assert "x" in found
    assert len(found) == 2


def test_who_is_in_the_way_by_a_port_goes_however_small() -> None:
    port = (ContainerPort(container_port=80, host_port=80),)
    cache = world([node("a", cpu="4")], [
        pod("web", on="a", cpu="100m", priority=10, ports=port), low("x", "a"),
    ])  # fmt: skip
    assert victims(decided(cache, alone(pod("vip", cpu="1", priority=100, ports=port)))) == ["web"]


def test_all_of_a_gang_in_one_rack_evicts_only_there() -> None:
    racks = {"a": "r1", "b": "r1", "c": "r2", "d": "r2"}
    nodes = [node(name, {"rack": rack}, cpu="1") for name, rack in racks.items()]
    pods = [low("x", "a"), low("y", "b"), low("z", "c")]
    group = gang("high", 2, priority=100, topology="rack")
    one = entity(group, [pod(f"high-{i}", "high", cpu="1", priority=100) for i in range(2)])
    decision = decided(world(nodes, pods), one)
    assert victims(decision) == ["z"]
    assert set(promised(decision).values()) == {"c", "d"}


def test_a_tree_evicts_for_all_of_its_groups_or_for_none() -> None:
    def branch(name: str, cpu: str) -> Entity:
        group = gang(name, 1, priority=100, parent="t")
        return entity(group, [pod(f"{name}-0", name, cpu=cpu, priority=100)])

    cache = world([node("a", cpu="2")], [low("x", "a"), low("y", "a")])
    root = composite("t", 2, priority=100)
    fits = decided(cache, tree(root, branch("g", "1"), branch("h", "1")))
    assert victims(fits) == ["x", "y"]
    too_large = decided(cache, tree(root, branch("g", "1"), branch("h", "5")))
    assert isinstance(too_large, Waiting)


# ---- while others leave --------------------------------------------------------------------------


def test_while_victims_leave_nobody_else_has_to_and_the_promise_holds() -> None:
    cache = world([node("a", cpu="2"), node("b", cpu="2")], [
        low("x", "a", cpu="2"), low("y", "b", cpu="2"),
    ])  # fmt: skip
    one = vip("2")
    cache.pod(one.key, one.members[0].pod)
    first = decided(cache, one)
    assert isinstance(first, Preempting)
    cache.doom((victim.pod, victim.uid) for victim in first.victims)
    cache.promise(first.waiting.promised)
    again = decided(cache, one)
    assert isinstance(again, Waiting)
    assert again.preemption == UNDER_WAY
    assert again.promised == first.waiting.promised


def test_who_was_to_be_evicted_and_was_not_may_be_chosen_again() -> None:
    cache = world([node("a", cpu="1")], [low("x", "a")])
    chosen = [(key("x"), "uid-x")]
    cache.doom(chosen)
    assert isinstance(decided(cache, vip()), Waiting)
    cache.doom(chosen, doomed=False)
    assert victims(decided(cache, vip())) == ["x"]


def test_those_who_leave_anyway_make_room_enough_without_a_promise() -> None:
    leaving = pod("x", on="a", cpu="1", priority=500, deleting=True)
    cache = world([node("a", cpu="1"), node("b", cpu="1")], [leaving, low("y", "b")])
    decision = decided(cache, vip())
    assert isinstance(decision, Waiting)
    assert (decision.preemption, decision.promised) == (UNDER_WAY, ())


def promised_to(cache: Cache, name: str, on: str, priority: int) -> None:
    waiting = pod(name, cpu="1", priority=priority)
    cache.pod(waiting.metadata.key, waiting)
    cache.promise([Binding(waiting.metadata.key, waiting.metadata.uid, on)])


@pytest.mark.parametrize(("priority", "is_kept"), [(5, True), (10, True), (11, False)])
def test_what_is_promised_is_kept_from_whoever_is_not_more_important(
    priority: int, is_kept: bool
) -> None:
    cache = world([node("a", cpu="1")], [])
    promised_to(cache, "first", "a", 10)
    decision = decided(cache, alone(pod("second", cpu="1", priority=priority)))
    assert isinstance(decision, Waiting) is is_kept


def test_a_promise_ends_with_the_pod_and_frees_its_room() -> None:
    cache = world([node("a", cpu="1")], [])
    promised_to(cache, "first", "a", 10)
    assert cache.pod(key("first"), None)
    assert isinstance(decided(cache, alone(pod("second", cpu="1"))), Placed)


def test_a_promise_is_not_kept_where_the_group_may_not_be_any_more() -> None:
    zones = [node("a", {"zone": "a"}, cpu="1"), node("b", {"zone": "b"}, cpu="2")]
    leaving = [
        altered(low(name, name), metadata=pod(name, deleting=True).metadata) for name in "ab"
    ]
    group = gang("high", 1, priority=100, topology="zone")
    waiting = pod("high-1", "high", cpu="1", priority=100)
    placed = pod("high-0", "high", on="b", cpu="1", priority=100)
    cache = world(zones, [*leaving, placed, waiting], [group])
    cache.promise([Binding(waiting.metadata.key, waiting.metadata.uid, "a")])
    decision = decided(cache, entity(group, [waiting], [placed]))
    assert promised(decision) == {"high-1": "b"}


# ---- at what price -------------------------------------------------------------------------------


def test_sets_that_leave_too_little_room_are_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[int] = []

    def counting(one: Entity, ground: Ground) -> Steps[Grown]:
        tried.append(len(one.members))
        return (yield from whole(one, ground))

    monkeypatch.setattr(preemption, "whole", counting)
    names = "abcdefgh"
    cache = world([node(name, cpu="1") for name in names], [low(f"x{n}", n) for n in names])
    decision = decided(cache, high(6))
    assert len(victims(decision)) == 6
    # Of 8 there are 218 sets of up to 5, which cannot be enough for 6.
    assert len(tried) < 20
