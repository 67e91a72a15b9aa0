"""Domains that cannot hold a group are not tried, and the others in the order of their bounds."""

from __future__ import annotations

import numpy as np
import pytest

from phalanx.api.core import Node, Pod
from phalanx.scheduler import group_tree_placement
from phalanx.scheduler.cluster.cache import SchedulerCache
from phalanx.scheduler.cluster.snapshot import Placement, Snapshot
from phalanx.scheduler.cycle import run_cycle
from phalanx.scheduler.decision import Decision, Placed, PlacementChoice, Waiting
from phalanx.scheduler.entity import Entity
from phalanx.scheduler.placement import domain_placement
from phalanx.scheduler.placement.domain_bounds import (
    CapacityBounds,
    rank_for_group,
    rank_for_tree,
    regions_of,
    required_amounts,
)
from phalanx.scheduler.placement.group_placement import GroupPlacement, PlacementContext
from phalanx.scheduler.placement.placement_simulation import PlacementSimulation
from phalanx.scheduler.policy import DEFAULT_POLICY
from tests.scheduler.builders import cluster, composite, entity, gang, node, pod, tree

RACK = "rack"


def leaf(name: str, *cpus: str, quorum: int = 0, topology: str = "") -> Entity:
    group = gang(name, quorum or len(cpus), parent="t", topology=topology)
    return entity(group, [pod(f"{name}-{i}", name, cpu=cpu) for i, cpu in enumerate(cpus)])


def racks(**nodes: str) -> list[Node]:
    """Nodes of each rack, by their CPU: `a="4 4"` is a rack of two nodes with 4 CPU each."""
    return [
        node(f"{name}{i}", {RACK: name}, cpu=cpu)
        for name, cpus in nodes.items()
        for i, cpu in enumerate(cpus.split())
    ]


def placements_of(snapshot: Snapshot) -> tuple[Placement, ...]:
    return snapshot.domains(RACK).placements


def possible_racks(one: Entity, nodes: list[Node], running: list[Pod] | None = None) -> list[str]:
    snapshot = cluster(nodes, running or []).snapshot()
    rank = rank_for_tree if one.is_composite else rank_for_group
    ranked = rank(one, placements_of(snapshot), snapshot, policy=DEFAULT_POLICY)
    return [one.placement.value for one in ranked if one.is_possible]


def test_racks_that_lack_capacity_are_not_possible() -> None:
    group = entity(gang("g", 2), [pod(f"p{i}", "g", cpu="3") for i in range(2)])
    assert possible_racks(group, racks(a="2 2 2", b="3 3", c="4")) == ["b"]


def test_the_sum_of_all_requests_counts_for_groups_of_different_members() -> None:
    group = entity(gang("g", 2), [pod("p", "g", cpu="3"), pod("q", "g", cpu="2")])
    assert possible_racks(group, racks(a="4", b="5", c="3 1")) == ["b"]


def test_fuller_racks_come_first() -> None:
    group = entity(gang("g", 2), [pod("p", "g", cpu="1"), pod("q", "g", cpu="2")])
    running = [pod("x", on="b0", cpu="4"), pod("y", on="c0", cpu="2")]
    assert possible_racks(group, racks(a="8", b="8", c="8"), running) == ["b", "c", "a"]


def test_a_tree_counts_child_groups_in_racks_inside_the_domain() -> None:
    nodes = [
        node("a", {RACK: "a", "zone": "z"}, cpu="2"), node("b", {RACK: "b", "zone": "z"}, cpu="2"),
        node("c", {RACK: "c", "zone": "y"}, cpu="3"),
    ]  # fmt: skip
    snapshot = cluster(nodes).snapshot()
    one = tree(composite("t", 2), leaf("x", "1", "1", "1", topology=RACK), leaf("y", "1"))
    ranked = rank_for_tree(
        one, snapshot.domains("zone").placements, snapshot, policy=DEFAULT_POLICY
    )
    assert {r.placement.value: r.is_possible for r in ranked} == {"y": False, "z": False}
    fewer = tree(composite("t", 1), leaf("x", "1", "1", "1", topology=RACK), leaf("y", "1"))
    ranked = rank_for_tree(
        fewer, snapshot.domains("zone").placements, snapshot, policy=DEFAULT_POLICY
    )
    assert {r.placement.value: r.is_possible for r in ranked} == {"y": True, "z": True}
    assert ranked[0].placement.value == "y"


def test_required_amounts_are_those_of_the_smallest_sufficient_part() -> None:
    one = tree(composite("t", 1), leaf("x", "1", "2", "4", quorum=2), leaf("y", "5"))
    snapshot = cluster(racks(a="4")).snapshot()
    assert required_amounts(one, snapshot)["cpu"] == 3000


def test_bounds_of_a_profile_without_capacity_filters_exclude_nothing() -> None:
    filters = {n: f for n, f in DEFAULT_POLICY.filters.items() if n != "NodeResourcesFit"}
    policy = type(DEFAULT_POLICY)(filters=filters)
    snapshot = cluster(racks(a="1")).snapshot()
    one = tree(composite("t", 1), leaf("x", "9", topology=RACK))
    bounds = CapacityBounds(snapshot, policy)
    regions = regions_of(placements_of(snapshot), snapshot)
    assert bounds.can_hold(one, regions).all()
    assert bounds.can_hold_inside(one, regions).all()
    assert np.array_equal(bounds.count_members(one, regions), [1])


NODES, RACKS = 1_000, 100


def rack_cluster(cpu_in_use: int = 0) -> SchedulerCache:
    nodes = [node(f"n{i:04}", {RACK: f"r{i % RACKS:03}"}, cpu="8") for i in range(NODES)]
    running = [
        pod(f"x{i}", on=f"n{i:04}", cpu=str(cpu_in_use)) for i in range(NODES if cpu_in_use else 0)
    ]
    # One rack is fuller than the others, and one cannot hold the tree.
    running += [pod("half", on="n0042", cpu="4"), pod("full", on="n0007", cpu="8")]
    return cluster(nodes, running)


def sixteen_pairs(root_key: str = "", group_key: str = "") -> Entity:
    parts = [leaf(f"g{k:02}", "2", "2", topology=group_key) for k in range(16)]
    return tree(composite("t", 16, topology=root_key), *parts)


@pytest.fixture
def tried_racks(monkeypatch: pytest.MonkeyPatch) -> list[set[int]]:
    """The racks of each attempt to place a group."""
    found: list[set[int]] = []

    class RecordedPlacement(GroupPlacement):
        def __init__(
            self, entity: Entity, context: PlacementContext, placement: Placement | None = None
        ) -> None:
            nodes = placement.nodes if placement else context.nodes
            assert nodes is not None
            found.append(set((nodes % RACKS).tolist()))
            super().__init__(entity, context, placement)

    for module in (group_tree_placement, domain_placement):
        monkeypatch.setattr(module, "GroupPlacement", RecordedPlacement)
    return found


def run_to_end(one: Entity, cache: SchedulerCache) -> Decision:
    cycle = run_cycle(one, cache.snapshot(), DEFAULT_POLICY)
    while True:
        try:
            next(cycle)
        except StopIteration as end:
            decision: Decision = end.value
            return decision


def test_a_tree_in_one_rack_looks_at_the_fullest_rack_only(
    tried_racks: list[set[int]],
) -> None:
    decision = run_to_end(sixteen_pairs(root_key=RACK), rack_cluster())
    assert isinstance(decision, Placed)
    assert {int(binding.node[1:]) % RACKS for binding in decision.bindings} == {7}
    assert tried_racks == [{7}] * 16
    assert decision.choice == PlacementChoice(RACKS, 1, 1)


def test_groups_in_racks_look_at_one_rack_each(tried_racks: list[set[int]]) -> None:
    decision = run_to_end(sixteen_pairs(group_key=RACK), rack_cluster())
    assert isinstance(decision, Placed)
    assert len(tried_racks) == 16
    assert all(len(found) == 1 for found in tried_racks)


def test_a_tree_that_fits_in_no_rack_is_tried_in_one(tried_racks: list[set[int]]) -> None:
    decision = run_to_end(sixteen_pairs(root_key=RACK), rack_cluster(cpu_in_use=6))
    assert isinstance(decision, Waiting)
    assert decision.reason == "Unschedulable"
    assert len({min(found) for found in tried_racks}) == 1


@pytest.mark.parametrize("group_key", ["", RACK])
@pytest.mark.parametrize("cpu_in_use", [0, 3, 6])
def test_a_large_tree_of_mixed_members_yields_after_few_pods(
    monkeypatch: pytest.MonkeyPatch, group_key: str, cpu_in_use: int
) -> None:
    tried_since_yield, most = [0], 0
    place_alike = PlacementSimulation.place_alike
    place_on = PlacementSimulation.place_on

    def count_alike(self: PlacementSimulation, members: list[object]) -> list[int]:
        tried_since_yield[0] += len(members)
        return place_alike(self, members)  # type: ignore[arg-type]

    def count_one(self: PlacementSimulation, member: object, i: int) -> bool:
        tried_since_yield[0] += 1
        return place_on(self, member, i)  # type: ignore[arg-type]

    monkeypatch.setattr(PlacementSimulation, "place_alike", count_alike)
    monkeypatch.setattr(PlacementSimulation, "place_on", count_one)
    parts = [
        leaf(f"g{k:02}", *[str(1 + (k + i) % 4) for i in range(8)], topology=group_key)
        for k in range(100)
    ]
    cycle = run_cycle(
        tree(composite("t", 100), *parts), rack_cluster(cpu_in_use).snapshot(), DEFAULT_POLICY
    )

    for _ in cycle:
        most, tried_since_yield[0] = max(most, tried_since_yield[0]), 0
    assert most <= 64
