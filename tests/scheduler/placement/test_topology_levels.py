"""Topology levels: required and preferred topologies of a group."""

from __future__ import annotations

from dataclasses import replace

import pytest
from msgspec.structs import replace as replace_fields

from phalanx.api.core import Node
from phalanx.api.scheduling import TOPOLOGY_ANNOTATION
from phalanx.scheduler.cycle import decide
from phalanx.scheduler.decision import Decision, Impossible, Placed, Waiting
from phalanx.scheduler.entity import Entity
from phalanx.scheduler.placement.topology_domains import TopologyLevel, topology_levels
from phalanx.scheduler.policy import DEFAULT_POLICY
from tests.scheduler.builders import cluster, composite, entity, gang, node, pod, tree


def group_with_levels(
    text: str, members: int = 2, *, topology: str = "", waited: float = 0.0
) -> Entity:
    """A gang with a topology annotation."""
    group = gang("g", members, topology=topology)
    group = replace_fields(
        group, metadata=replace_fields(group.metadata, annotations={TOPOLOGY_ANNOTATION: text})
    )
    built = entity(group, [pod(f"g-{i}", "g", cpu="1") for i in range(members)])
    return replace(built, waited_seconds=waited)


def machine(name: str, rack: str, block: str, cpu: str = "1") -> Node:
    return node(name, {"rack": rack, "block": block}, cpu=cpu)


def decide_on(nodes: list[Node], one: Entity) -> Decision:
    return decide(one, cluster(nodes, one.other_members).snapshot(), DEFAULT_POLICY)


def bound_nodes(decision: Decision) -> list[str]:
    assert isinstance(decision, Placed), decision
    return sorted(on for _, _, on in decision.bindings)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("rack", [("rack", 0)]),
        ("rack,block", [("rack", 0), ("block", 0)]),
        (" rack , block after 30s , * after 5m ", [("rack", 0), ("block", 30), ("", 300)]),
        ("rack after 9s, block", [("rack", 0), ("block", 9)]),
        ("rack, block after 1h, * after 1s", [("rack", 0), ("block", 3600), ("", 3600)]),
        ("zone+rack, *", [("zone+rack", 0), ("", 0)]),
        ("example.com/rack", [("example.com/rack", 0)]),
    ],
)
def test_topology_levels_are_parsed(text: str, found: list[tuple[str, float]]) -> None:
    assert topology_levels(group_with_levels(text, waited=1e9)) == [
        TopologyLevel(*one) for one in found
    ]


@pytest.mark.parametrize(
    "text", [",", "rack,", "rack block", "rack after", "rack after 5", "a,b,c,d,e,f,g,h,i", "x y z"]
)
def test_an_invalid_annotation_is_rejected_with_an_example(text: str) -> None:
    decision = decide_on([node("a")], group_with_levels(text))
    assert isinstance(decision, Impossible)
    assert decision.message == f'invalid annotation {TOPOLOGY_ANNOTATION}: "{text}"'
    assert "rack, block after 30s" in decision.cure


def test_without_annotation_the_topology_of_the_spec_is_the_only_level() -> None:
    assert topology_levels(entity(gang("g", 1, topology="rack"), [pod("a", "g")])) == [
        TopologyLevel("rack")
    ]


def test_the_tightest_level_that_holds_all_members_wins() -> None:
    nodes = [machine("a", "r1", "b1"), machine("b", "r2", "b2"), machine("c", "r2", "b2")]
    assert bound_nodes(decide_on(nodes, group_with_levels("rack, block, *"))) == ["b", "c"]


def test_a_wider_level_is_used_if_a_tighter_one_does_not_fit() -> None:
    nodes = [machine("a", "r1", "b1"), machine("b", "r2", "b2"), machine("c", "r3", "b2")]
    assert bound_nodes(decide_on(nodes, group_with_levels("rack, block, *"))) == ["b", "c"]
    assert bound_nodes(decide_on(nodes[:2], group_with_levels("rack, block, *"))) == ["a", "b"]


def test_without_a_star_the_last_level_stays_required() -> None:
    nodes = [machine("a", "r1", "b1"), machine("b", "r2", "b2")]
    assert isinstance(decide_on(nodes, group_with_levels("rack, block")), Waiting)


@pytest.mark.parametrize(("waited", "is_placed"), [(0.0, False), (29.9, False), (30.0, True)])
def test_a_wider_level_is_allowed_only_after_its_delay(waited: float, is_placed: bool) -> None:
    nodes = [machine("a", "r1", "b1"), machine("b", "r2", "b1")]
    decision = decide_on(nodes, group_with_levels("rack, block after 30s", waited=waited))
    assert isinstance(decision, Placed) is is_placed


def test_joined_labels_must_all_be_shared() -> None:
    nodes = [machine("a", "r1", "b1"), machine("b", "r1", "b2"), machine("c", "r2", "b2", "2")]
    assert bound_nodes(decide_on(nodes, group_with_levels("rack+block"))) == ["c", "c"]


def test_preferred_levels_stay_within_the_required_topology() -> None:
    nodes = [machine("a", "r1", "b1"), machine("b", "r2", "b1"), machine("c", "r2", "b2")]
    assert bound_nodes(decide_on(nodes, group_with_levels("rack, *", topology="block"))) == [
        "a",
        "b",
    ]


def test_a_wider_level_that_holds_all_members_beats_one_that_holds_enough() -> None:
    nodes = [machine("a", "r1", "b1"), machine("b", "r1", "b1"), machine("c", "r2", "b1")]
    one = group_with_levels("rack, block", 3)
    assert one.group is not None
    short = gang("g", 2)
    group = replace_fields(short, metadata=one.group.metadata)
    assert bound_nodes(decide_on(nodes, replace(one, group=group))) == ["a", "b", "c"]
    assert bound_nodes(decide_on(nodes[:2], replace(one, group=group))) == ["a", "b"]


def test_a_tree_may_have_preferred_topology_levels() -> None:
    root = composite("t", 2)
    root = replace_fields(
        root, metadata=replace_fields(root.metadata, annotations={TOPOLOGY_ANNOTATION: "block, *"})
    )
    parts = [
        entity(gang(name, 1, parent="t"), [pod(f"{name}-0", name, cpu="1")]) for name in ("x", "y")
    ]
    nodes = [machine("a", "r1", "b1"), machine("b", "r2", "b2"), machine("c", "r3", "b2")]
    assert bound_nodes(decide_on(nodes, tree(root, *parts))) == ["b", "c"]
    assert bound_nodes(decide_on(nodes[:2], tree(root, *parts))) == ["a", "b"]


def test_late_members_stay_in_the_domain_of_placed_members() -> None:
    nodes = [machine("a", "r1", "b1", "2"), machine("b", "r2", "b2", "9")]
    placed = pod("g-on-a", "g", cpu="1", on="a")
    one = replace(group_with_levels("rack, *", 1), other_members=(placed,))
    assert bound_nodes(decide_on(nodes, one)) == ["a"]
