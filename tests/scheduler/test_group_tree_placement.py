"""Trees of groups: minimums first, then surplus members, all or nothing."""

from __future__ import annotations

from dataclasses import replace

from msgspec.structs import replace as replace_fields

from phalanx.api.core import Node, Pod
from phalanx.scheduler.cycle import decide
from phalanx.scheduler.decision import ClusterEvent, Decision, Impossible, Placed, Waiting
from phalanx.scheduler.entity import Entity
from phalanx.scheduler.explain import explain
from phalanx.scheduler.policy import DEFAULT_POLICY
from tests.scheduler.builders import basic, cluster, composite, entity, gang, key, node, pod, tree


def leaf(
    name: str, *cpus: str, minimum: int = 0, topology: str = "", bound: tuple[str, ...] = (),
    selector: dict[str, str] | None = None,
) -> Entity:  # fmt: skip
    """A gang of pods with these CPU requests; `minimum` defaults to all of them."""
    group = gang(name, minimum or len(cpus) + len(bound), parent="t", topology=topology)
    pods = [pod(f"{name}-{i}", name, cpu=cpu, selector=selector) for i, cpu in enumerate(cpus)]
    others = [pod(f"{name}-on-{where}", name, cpu="1", on=where) for where in bound]
    return entity(group, pods, others)


def decide_on(nodes: list[Node], one: Entity) -> Decision:
    return decide(one, cluster(nodes, one.other_members).snapshot(), DEFAULT_POLICY)


def bound_nodes(decision: Decision) -> dict[str, str]:
    assert isinstance(decision, Placed), decision
    return {pod.name: where for pod, _, where in decision.bindings}


def group_messages(decision: Decision) -> dict[str, tuple[bool, str]]:
    return {part.ref.name: (part.is_placed, part.message) for part in explain(decision).groups}


def rack(name: str, where: str, cpu: str = "2", **more: str) -> Node:
    return node(name, {"rack": where, **more}, cpu=cpu)


def test_all_needed_groups_are_placed_together() -> None:
    decision = decide_on([node("n", cpu="4")], tree(composite("t", 2), leaf("a", "1", "1"),
                                                  leaf("b", "1", "1")))  # fmt: skip
    assert len(bound_nodes(decision)) == 4
    assert group_messages(decision) == {"t": (True, ""), "a": (True, ""), "b": (True, "")}


def test_no_group_is_placed_if_one_too_few_fits() -> None:
    one = tree(composite("t", 2), leaf("a", "1", "1"), leaf("b", "1", "1"))
    decision = decide_on([node("n", cpu="3")], one)
    assert isinstance(decision, Waiting)
    assert (decision.quorum, decision.scheduled, decision.remaining) == (2, 1, 0)
    assert {
        name: placed for name, (placed, _) in group_messages(decision).items()
    } == dict.fromkeys("tab", False)
    assert len(explain(decision).pods) == 4


def test_a_group_beyond_the_quorum_may_fail_alone() -> None:
    one = tree(composite("t", 2), leaf("a", "1"), leaf("b", "9"), leaf("c", "1"))
    decision = decide_on([node("n", cpu="4")], one)
    assert set(bound_nodes(decision)) == {"a-0", "c-0"}
    found = group_messages(decision)
    assert [found[name][0] for name in "tabc"] == [True, True, False, True]
    assert "minCount (1) cannot be satisfied" in found["b"][1]
    (refused,) = explain(decision).pods
    assert refused.pod == key("b-0")


def test_a_basic_root_places_the_groups_that_fit() -> None:
    one = tree(composite("t"), leaf("a", "9"), leaf("b", "1"))
    assert set(bound_nodes(decide_on([node("n")], one))) == {"b-0"}


def test_a_group_that_fits_is_not_placed_if_its_parent_fails() -> None:
    sub = composite("s", 2, parent="t")
    branch = tree(sub, leaf("a", "1"), leaf("b", "9"))
    decision = decide_on([node("n")], tree(composite("t", 1), branch, leaf("c", "1")))
    assert set(bound_nodes(decision)) == {"c-0"}
    assert [group_messages(decision)[name][0] for name in "tsabc"] == [
        True,
        False,
        False,
        False,
        True,
    ]


def test_the_minimum_of_a_group_comes_before_the_surplus_of_another() -> None:
    eager = leaf("a", "1", "1", "1", minimum=1)
    decision = decide_on([node("n", cpu="3")], tree(composite("t", 2), eager, leaf("b", "1", "1")))
    names = sorted(bound_nodes(decision))
    assert names == ["a-0", "b-0", "b-1"]


def test_surplus_members_of_a_refused_tree_are_reported_as_waiting() -> None:
    one = tree(composite("t", 2), leaf("a", "1", "1", minimum=1), leaf("b", "9"))
    decision = decide_on([node("n", cpu="4")], one)
    assert isinstance(decision, Waiting)
    assert sorted(one.pod.name for one in explain(decision).pods) == ["a-0", "a-1", "b-0"]


def test_surplus_members_are_placed_after_all_minimums() -> None:
    eager = leaf("a", "1", "1", "1", minimum=1)
    decision = decide_on([node("n", cpu="4")], tree(composite("t", 2), eager, leaf("b", "1", "1")))
    assert len(bound_nodes(decision)) == 4
    assert isinstance(decision, Placed)
    assert [one.pod.name for one in decision.leftovers] == ["a-2"]


def test_a_group_without_topology_leaves_the_rack_to_one_with_topology() -> None:
    nodes = [rack("a", "r1", "1"), rack("b", "r1", "1"), rack("c", "r2", "1"), rack("d", "r3", "1")]
    one = tree(composite("t", 2), leaf("free", "1", "1"), leaf("tied", "1", "1", topology="rack"))
    found = bound_nodes(decide_on(nodes, one))
    assert {found["tied-0"], found["tied-1"]} == {"a", "b"}


def test_the_larger_group_is_tried_first_if_the_oldest_first_order_fails() -> None:
    nodes = [node("a", cpu="3"), node("b", cpu="2")]
    one = tree(composite("t", 2), leaf("small", "2"), leaf("large", "3"))
    assert len(bound_nodes(decide_on(nodes, one))) == 2


def test_a_topology_key_of_the_root_keeps_all_groups_in_one_domain() -> None:
    nodes = [rack("a", "r1", "3"), rack("b", "r2"), rack("c", "r2")]
    one = tree(composite("t", 2, topology="rack"), leaf("x", "1", "1"), leaf("y", "1", "1"))
    assert set(bound_nodes(decide_on(nodes, one)).values()) == {"b", "c"}


def test_domains_of_groups_are_within_the_domain_of_their_parent() -> None:
    nodes = [
        rack("a", "r1", "2", zone="z1"), rack("b", "r2", "2", zone="z1"),
        rack("c", "r3", "3", zone="z2"),
    ]  # fmt: skip
    inside = [leaf(name, "1", "1", topology="rack") for name in ("x", "y")]
    found = bound_nodes(decide_on(nodes, tree(composite("t", 2, topology="zone"), *inside)))
    assert set(found.values()) == {"a", "b"}
    assert found["x-0"] == found["x-1"]


def test_placed_members_restrict_the_whole_tree_to_their_domain() -> None:
    nodes = [rack("a", "r1", "9"), rack("b", "r2", "3")]
    one = tree(composite("t", 2, topology="rack"), leaf("x", "1", bound=("b",)), leaf("y", "1"))
    assert set(bound_nodes(decide_on(nodes, one)).values()) == {"b"}


def test_members_in_two_domains_are_an_error() -> None:
    nodes = [rack("a", "r1"), rack("b", "r2")]
    parts = [leaf("x", "1", bound=("a",)), leaf("y", "1", bound=("b",))]
    decision = decide_on(nodes, tree(composite("t", 2, topology="rack"), *parts))
    assert isinstance(decision, Impossible)
    assert decision.reason == "SchedulerError"
    assert set(group_messages(decision)) == {"t", "x", "y"}


def test_a_child_group_with_enough_placed_members_counts() -> None:
    done = entity(gang("a", 1, parent="t"), [], [pod("a-on-n", "a", cpu="1", on="n")])
    one = tree(composite("t", 2), done, leaf("b", "1"))
    assert set(bound_nodes(decide_on([node("n")], one))) == {"b-0"}


def test_basic_child_groups_need_one_member_each() -> None:
    groups = [
        entity(basic(name, parent="t"), [pod(f"{name}-{i}", name, cpu="1") for i in range(2)])
        for name in ("a", "b")
    ]
    found = bound_nodes(decide_on([node("n", cpu="3")], tree(composite("t", 2), *groups)))
    assert len(found) == 3
    assert {name[0] for name in found} == {"a", "b"}


def test_the_groups_of_a_tree_report_the_result_of_preemption() -> None:
    one = tree(composite("t", 2, priority=10), leaf("a", "1"), leaf("b", "9"))
    members = [replace_fields(member, pod=with_priority(member.pod)) for member in one.members]
    parts = [
        replace(part, members=tuple(m for m in members if m.pod.group == part.key))
        for part in one.children
    ]
    one = replace(one, members=tuple(members), children=tuple(parts))
    cache = cluster([node("n", cpu="4")], [pod("low", on="n", cpu="4")])
    decision = decide(one, cache.snapshot(), DEFAULT_POLICY)
    assert isinstance(decision, Waiting)
    assert group_messages(decision)["t"][1] == explain(decision).message
    assert "preemption" in group_messages(decision)["t"][1]


def with_priority(one: Pod) -> Pod:
    return replace_fields(one, spec=replace_fields(one.spec, priority=10))


def test_a_pod_leaving_another_rack_than_the_best_wakes_the_gang() -> None:
    nodes = [rack("a", "a"), rack("b", "b", "6", disk="fast")]
    one = tree(composite("t", 1, topology="rack"), leaf("l", "2", selector={"disk": "fast"}))
    decision = decide(
        one, cluster(nodes, [pod("full", on="b", cpu="6")]).snapshot(), DEFAULT_POLICY
    )
    assert isinstance(decision, Waiting)
    assert ClusterEvent.POD_GONE in decision.wakes_on


def test_a_gang_wakes_when_a_node_may_bring_a_missing_topology_label() -> None:
    one = tree(composite("t", 1, topology="rack"), leaf("l", "2"))
    decision = decide(one, cluster([node("a", {}, cpu="4")], []).snapshot(), DEFAULT_POLICY)
    assert isinstance(decision, Waiting)
    assert {
        ClusterEvent.NODE_ADDED,
        ClusterEvent.NODE_UPDATED,
        ClusterEvent.MEMBER_CHANGED,
    } <= decision.wakes_on
