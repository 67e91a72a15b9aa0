"""How near to each other members would like to be, and what they are content with."""

from __future__ import annotations

from dataclasses import replace

import pytest
from msgspec.structs import replace as altered

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
    """A gang that would like its members to be so near."""
    group = gang("g", members, topology=topology)
    group = altered(
        group, metadata=altered(group.metadata, annotations={TOPOLOGY_ANNOTATION: text})
    )
    made = entity(group, [pod(f"g-{i}", "g", cpu="1") for i in range(members)])
    return replace(made, waited_seconds=waited)


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
def test_what_is_liked_is_read(text: str, found: list[tuple[str, float]]) -> None:
    assert topology_levels(group_with_levels(text, waited=1e9)) == [
        TopologyLevel(*one) for one in found
    ]


@pytest.mark.parametrize(
    "text", [",", "rack,", "rack block", "rack after", "rack after 5", "a,b,c,d,e,f,g,h,i", "x y z"]
)
def test_what_cannot_be_read_is_told_with_an_example(text: str) -> None:
    decision = decide_on([node("a")], group_with_levels(text))
    assert isinstance(decision, Impossible)
    assert decision.message == f'annotation {TOPOLOGY_ANNOTATION} cannot be read: "{text}"'
    assert "rack, block after 30s" in decision.cure


def test_without_a_like_what_the_spec_insists_on_is_all() -> None:
    assert topology_levels(entity(gang("g", 1, topology="rack"), [pod("a", "g")])) == [
        TopologyLevel("rack")
    ]


def test_the_tightest_that_holds_all_wins() -> None:
    nodes = [machine("a", "r1", "b1"), machine("b", "r2", "b2"), machine("c", "r2", "b2")]
    assert bound_nodes(decide_on(nodes, group_with_levels("rack, block, *"))) == ["b", "c"]


def test_a_wider_one_will_do_if_there_is_no_room_in_a_tight_one() -> None:
    nodes = [machine("a", "r1", "b1"), machine("b", "r2", "b2"), machine("c", "r3", "b2")]
    assert bound_nodes(decide_on(nodes, group_with_levels("rack, block, *"))) == ["b", "c"]
    assert bound_nodes(decide_on(nodes[:2], group_with_levels("rack, block, *"))) == ["a", "b"]


def test_without_a_star_the_last_one_is_insisted_on() -> None:
    nodes = [machine("a", "r1", "b1"), machine("b", "r2", "b2")]
    assert isinstance(decide_on(nodes, group_with_levels("rack, block")), Waiting)


@pytest.mark.parametrize(("waited", "is_placed"), [(0.0, False), (29.9, False), (30.0, True)])
def test_a_wider_one_will_do_only_after_a_while(waited: float, is_placed: bool) -> None:
    nodes = [machine("a", "r1", "b1"), machine("b", "r2", "b1")]
    decision = decide_on(nodes, group_with_levels("rack, block after 30s", waited=waited))
    assert isinstance(decision, Placed) is is_placed


def test_labels_that_are_joined_must_all_be_shared() -> None:
    nodes = [machine("a", "r1", "b1"), machine("b", "r1", "b2"), machine("c", "r2", "b2", "2")]
    assert bound_nodes(decide_on(nodes, group_with_levels("rack+block"))) == ["c", "c"]


def test_what_is_liked_stays_within_what_the_spec_insists_on() -> None:
    nodes = [machine("a", "r1", "b1"), machine("b", "r2", "b1"), machine("c", "r2", "b2")]
    assert bound_nodes(decide_on(nodes, group_with_levels("rack, *", topology="block"))) == [
        "a",
        "b",
    ]


def test_where_enough_are_but_not_all_a_wider_one_is_preferred_that_holds_all() -> None:
    nodes = [machine("a", "r1", "b1"), machine("b", "r1", "b1"), machine("c", "r2", "b1")]
    one = group_with_levels("rack, block", 3)
    assert one.group is not None
    short = gang("g", 2)
    group = altered(short, metadata=one.group.metadata)
    assert bound_nodes(decide_on(nodes, replace(one, group=group))) == ["a", "b", "c"]
    assert bound_nodes(decide_on(nodes[:2], replace(one, group=group))) == ["a", "b"]


def test_a_tree_may_like_to_be_near_too() -> None:
    root = composite("t", 2)
    root = altered(
        root, metadata=altered(root.metadata, annotations={TOPOLOGY_ANNOTATION: "block, *"})
    )
    parts = [
        entity(gang(name, 1, parent="t"), [pod(f"{name}-0", name, cpu="1")]) for name in ("x", "y")
    ]
    nodes = [machine("a", "r1", "b1"), machine("b", "r2", "b2"), machine("c", "r3", "b2")]
    assert bound_nodes(decide_on(nodes, tree(root, *parts))) == ["b", "c"]
    assert bound_nodes(decide_on(nodes[:2], tree(root, *parts))) == ["a", "b"]


def test_late_members_stay_near_those_that_are_placed() -> None:
    nodes = [machine("a", "r1", "b1", "2"), machine("b", "r2", "b2", "9")]
    placed = pod("g-on-a", "g", cpu="1", on="a")
    one = replace(group_with_levels("rack, *", 1), other_members=(placed,))
    assert bound_nodes(decide_on(nodes, one)) == ["a"]
