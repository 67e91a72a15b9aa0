"""Upper bounds of what topology domains hold of a group or a tree, and the order to try domains in.

Never too low: shapes are counted as if they did not compete for resources, the sum of all requests
is compared with the sum of what is free, and constraints between pods are left out. So a domain
that a bound excludes holds no placement, and only the other domains are tried, the most promising
first:

    PodGroup    by the score that the domain can reach at most; the attempt ends when no other
                domain can reach the best score found
    tree        by how many child groups it may hold, then the fullest; the attempt ends at the
                first domain that holds them all

Bounds of many domains are computed at once, from arrays with one entry per node.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from phalanx.scheduler.cluster.pod_shape import PodShape
from phalanx.scheduler.cluster.snapshot import BoolArray, IntArray, Placement, Snapshot
from phalanx.scheduler.entity import Entity, EntityRejection
from phalanx.scheduler.placement.domain_scores import (
    WHOLE,
    avoided_nodes,
    measure_utilization,
    penalize_avoided,
    score_members,
)
from phalanx.scheduler.placement.group_placement import count_scheduled, sort_members
from phalanx.scheduler.placement.topology_domains import node_capacities, topology_levels
from phalanx.scheduler.policy import SchedulerPolicy

#: Sums of large amounts are rounded; so much less than requested still counts as enough.
_ROUNDING = 1e-9


@dataclass(frozen=True, eq=False, slots=True)
class NodeRegions:
    """Disjoint sets of nodes: `ids` holds the region of each node, -1 for none."""

    ids: IntArray
    size: int

    def total(self, per_node: IntArray) -> NDArray[np.float64]:
        """Sum a number per node over each region."""
        inside = self.ids >= 0
        weights = per_node[inside].astype(np.float64)
        sums = np.bincount(self.ids[inside], weights, self.size)
        return np.asarray(sums, np.float64)


def regions_of(placements: Sequence[Placement], snapshot: Snapshot) -> NodeRegions:
    """The nodes of each placement as a region."""
    ids = np.full(len(snapshot), -1, np.int64)
    if placements:
        sizes = [len(one.nodes) for one in placements]
        ids[np.concatenate([one.nodes for one in placements])] = np.repeat(
            np.arange(len(placements)), sizes
        )
    return NodeRegions(ids, len(placements))


class CapacityBounds:
    """Which regions of a snapshot may hold what an entity needs."""

    def __init__(self, snapshot: Snapshot, policy: SchedulerPolicy) -> None:
        self._snapshot, self._policy = snapshot, policy
        #: How many pods of a shape, and how much of a resource, each region holds.
        self._held: dict[tuple[NodeRegions, PodShape], NDArray[np.float64]] = {}
        self._free: dict[tuple[NodeRegions, str], NDArray[np.float64]] = {}
        #: The answers for equal groups in the same regions.
        self._known: dict[tuple[object, ...], BoolArray] = {}

    def can_hold(self, entity: Entity, regions: NodeRegions) -> BoolArray:
        """Whether each region may hold what an entity needs, in one of its own domains."""
        levels = topology_levels(entity)
        if not self._policy.checks_capacity or isinstance(levels, EntityRejection):
            return np.ones(regions.size, bool)
        found = np.zeros(regions.size, bool)
        for level in levels:
            if not level.key:
                return self.can_hold_inside(entity, regions)
            found |= self._can_hold_in_domain(entity, regions, level.key)
        return found

    def can_hold_inside(self, entity: Entity, regions: NodeRegions) -> BoolArray:
        """The same without the topology constraint of the entity itself."""
        if not self._policy.checks_capacity:
            return np.ones(regions.size, bool)
        if not entity.is_composite:
            return self._can_hold_members(entity, regions)
        enough = self.count_children(entity, regions) >= entity.quorum
        return enough & self._has_free_amounts(entity, regions)

    def count_children(self, entity: Entity, regions: NodeRegions) -> IntArray:
        """How many child groups each region may hold, as if they did not compete."""
        counts = np.zeros(regions.size, np.int64)
        for child in entity.children:
            counts += self.can_hold(child, regions)
        return counts

    def count_members(self, entity: Entity, regions: NodeRegions) -> IntArray:
        """How many pending members each region may hold, as if shapes did not compete."""
        counts = np.zeros(regions.size, np.int64)
        for shape, count in Counter(member.shape for member in entity.members).items():
            if self._policy.checks_capacity:
                counts += np.minimum(self._count_held(shape, regions), count).astype(np.int64)
            else:
                counts += count
        return counts

    def count_avoided(self, shapes: Iterable[PodShape], regions: NodeRegions) -> IntArray:
        """How many pods of each region must at least be on nodes that they avoid."""
        avoided = np.zeros(regions.size, np.int64)
        for shape, count in Counter(shapes).items():
            mask = avoided_nodes(self._snapshot, self._policy, shape)
            if mask is not None:
                capacities = node_capacities(self._snapshot, self._policy, shape)
                others = regions.total(np.where(mask, 0, capacities))
                avoided += np.maximum(count - others, 0).astype(np.int64)
        return avoided

    def _can_hold_members(self, entity: Entity, regions: NodeRegions) -> BoolArray:
        needed = entity.quorum - count_scheduled(entity, self._snapshot)
        shapes = Counter(member.shape for member in entity.members)
        key = ("members", regions, needed, *shapes.items())
        found = self._known.get(key)
        if found is None:
            found = self.count_members(entity, regions) >= needed
            found &= self._has_free_amounts(entity, regions)
            spare = len(entity.members) - needed
            # A filter of another plugin may accept larger pods on more nodes.
            for shape in () if self._policy.has_unmodelled_filters else shapes:
                larger = sum(count for one, count in shapes.items() if is_at_least(one, shape))
                found &= self._count_held(shape, regions) >= larger - spare
            self._known[key] = found
        return found

    def _can_hold_in_domain(self, entity: Entity, regions: NodeRegions, topology: str) -> BoolArray:
        domains = self._snapshot.domains(topology)
        shapes = Counter(member.shape for member in entity.members)
        needed = entity.quorum - count_scheduled(entity, self._snapshot)
        is_leaf = not entity.is_composite
        key = ("domain", regions, topology, needed, *shapes.items())
        if is_leaf and key in self._known:
            return self._known[key]
        inside = (regions.ids >= 0) & (domains.ids >= 0)
        pairs, numbers = np.unique(
            regions.ids[inside] * max(domains.size, 1) + domains.ids[inside], return_inverse=True
        )
        ids = np.full(len(self._snapshot), -1, np.int64)
        ids[inside] = numbers
        holds = self.can_hold_inside(entity, NodeRegions(ids, len(pairs)))
        found = np.zeros(regions.size, bool)
        found[pairs[holds] // max(domains.size, 1)] = True
        if is_leaf:
            self._known[key] = found
        return found

    def _count_held(self, shape: PodShape, regions: NodeRegions) -> NDArray[np.float64]:
        held = self._held.get((regions, shape))
        if held is None:
            capacities = node_capacities(self._snapshot, self._policy, shape)
            held = self._held[regions, shape] = regions.total(capacities)
        return held

    def _has_free_amounts(self, entity: Entity, regions: NodeRegions) -> BoolArray:
        """Whether the free amounts of each region are at least the sum that an entity requests."""
        snapshot, found = self._snapshot, np.ones(regions.size, bool)
        for name, amount in required_amounts(entity, snapshot).items():
            column = snapshot.columns.get(name)
            if column is None:
                continue
            free = self._free.get((regions, name))
            if free is None:
                per_node = snapshot.allocatable[:, column] - snapshot.requested[:, column]
                free = self._free[regions, name] = regions.total(np.maximum(per_node, 0))
            found &= free >= amount * (1 - _ROUNDING)
        return found


def is_at_least(shape: PodShape, other: PodShape) -> bool:
    """Whether a node that takes a pod of one shape could take a pod of the other instead."""
    requests = dict(shape.requests)
    return (
        shape.node_constraints == other.node_constraints
        and all(requests.get(name, 0) >= amount for name, amount in other.requests)
        and (not other.ports or shape.ports == other.ports)
        and (not other.claims or shape.claims == other.claims)
        and (not other.volumes or shape.volumes == other.volumes)
    )


def required_amounts(entity: Entity, snapshot: Snapshot) -> dict[str, int]:
    """The least that an entity requests of each resource when it is placed."""
    if not entity.is_composite:
        needed = max(entity.quorum - count_scheduled(entity, snapshot), 0)
        requests = [dict(member.shape.requests) for member in entity.members]
    else:
        needed = entity.quorum
        requests = [required_amounts(child, snapshot) for child in entity.children]
    names = dict.fromkeys(name for one in requests for name in one)
    return {name: sum(sorted(one.get(name, 0) for one in requests)[:needed]) for name in names}


def required_shapes(entity: Entity, snapshot: Snapshot) -> list[PodShape]:
    """The shapes of the members that are tried first for the minimum of each PodGroup."""
    return [
        member.shape
        for leaf in entity.leaves
        for member in sort_members(leaf.members)[
            : max(leaf.quorum - count_scheduled(leaf, snapshot), 0)
        ]
    ]


class RankedPlacement(NamedTuple):
    """A placement to try, its position among all placements, and the score that it can reach."""

    placement: Placement
    position: int
    bound: int
    #: Whether it may hold the quorum; if not, no placement exists in it.
    is_possible: bool


def count_evaluated(ranked: Sequence[RankedPlacement], tried: Sequence[int]) -> int:
    """Count the placements that were tried, by position, or excluded by their bounds."""
    return sum(not one.is_possible or one.position in tried for one in ranked)


def rank_for_group(
    entity: Entity, placements: Sequence[Placement], snapshot: Snapshot, *, policy: SchedulerPolicy
) -> list[RankedPlacement]:
    """Sort placements by the score that they can reach; those that may hold the quorum first."""
    scheduled = count_scheduled(entity, snapshot)
    bounds, regions = CapacityBounds(snapshot, policy), regions_of(placements, snapshot)
    members = bounds.count_members(entity, regions) + scheduled
    shapes = [member.shape for member in entity.members]
    total = scheduled + len(shapes)
    used = {(shape.claims, *(name for name, _ in shape.requests)) for shape in shapes}
    if entity.quorum < total and len(used) > 1:
        # Fewer members may use other resources, so any utilization is possible.
        scores = score_members(members, total) + WHOLE
    else:
        scores = score_members(members, total) + measure_utilization(
            placements, shapes, snapshot, policy=policy
        )
    possible = bounds.can_hold_inside(entity, regions) & (members > scheduled)
    return _sort_placements(placements, possible, np.where(possible, scores, members))


def rank_for_tree(
    entity: Entity, placements: Sequence[Placement], snapshot: Snapshot, *, policy: SchedulerPolicy
) -> list[RankedPlacement]:
    """Sort placements by how many child groups they may hold, then by their score."""
    bounds, regions = CapacityBounds(snapshot, policy), regions_of(placements, snapshot)
    children, shapes = bounds.count_children(entity, regions), required_shapes(entity, snapshot)
    scores = measure_utilization(placements, shapes, snapshot, policy=policy)
    scores -= penalize_avoided(bounds.count_avoided(shapes, regions), len(shapes))
    possible = bounds.can_hold_inside(entity, regions)
    return _sort_placements(placements, possible, children * 10 * WHOLE + scores)


def _sort_placements(
    placements: Sequence[Placement], possible: BoolArray, scores: IntArray
) -> list[RankedPlacement]:
    found = map(
        RankedPlacement, placements, range(len(placements)), scores.tolist(), possible.tolist()
    )
    return sorted(found, key=lambda one: (not one.is_possible, -one.bound))
