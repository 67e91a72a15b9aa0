"""Topology: the levels and domains in which a group may be placed, and how much each domain holds.

Levels. The topology key in a group's spec is required. An annotation may add preferred levels, from
the tightest to the widest, and how long the group waits before the next one is allowed:

    phalanx.dev/topology: "rack, block after 30s, * after 5m"

One rack if possible, a block after half a minute, any node after five minutes. Labels joined by `+`
must all be shared. Without `*` at the end the last level stays required.

Placements. Each value of a topology key is a placement: the nodes of which one set must hold all
members. Members that have a node already leave only their placement.

Capacities. For members of one shape `DomainCapacities` knows what every placement holds, so that
only the best one is tried. The sums are kept with the snapshot (`DOMAIN_CAPACITIES`) and patched: a
node whose load changes moves the sums of its domain.

    pod_capacity [12, 8, 30]    so many more pods of the shape fit in each domain
    a gang lands on node 4      node 4 is in domain 1, held 3 more and holds 1 now: [12, 6, 30]
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from phalanx.api.scheduling import TOPOLOGY_ANNOTATION
from phalanx.scheduler.cluster.node_class import NodeClass
from phalanx.scheduler.cluster.pod_shape import PodShape
from phalanx.scheduler.cluster.snapshot import (
    IntArray,
    Placement,
    Snapshot,
    SnapshotCache,
    label_value,
    mask_of,
)
from phalanx.scheduler.decision import ENTITY_EVENTS, NODE_EVENTS, SCHEDULER_ERROR
from phalanx.scheduler.entity import Entity, EntityRejection
from phalanx.scheduler.placement.node_scores import NO_NODE, NodeScores, node_scores_of
from phalanx.scheduler.plugins.load_scoring import (
    ONE_NODE,
    columns_of,
    nonzero_scored_resources,
)
from phalanx.scheduler.plugins.node_ports import NODE_PORTS
from phalanx.scheduler.plugins.node_resources_fit import MOST_ALLOCATED, allocation_scorer
from phalanx.scheduler.plugins.plugin_context import initial_context
from phalanx.scheduler.plugins.refusal import run_filter
from phalanx.scheduler.policy import SchedulerPolicy

ANYWHERE = "*"
#: The maximum number of levels; an annotation with more is invalid.
MAX_LEVELS = 8

_LEVEL_PATTERN = re.compile(r"\s*([^\s,]+)(?:\s+after\s+(\d{1,7})(s|m|h))?\s*")
_UNITS = {"s": 1, "m": 60, "h": 3600}


class TopologyLevel(NamedTuple):
    """A label, or several joined by `+`, whose value all members share; "" for any node."""

    key: str
    #: Seconds of waiting after which the level is allowed.
    after_seconds: float = 0.0


_ANY_TOPOLOGY = (TopologyLevel(""),)


def topology_levels(entity: Entity) -> Sequence[TopologyLevel] | EntityRejection:
    """Return the levels that are allowed by now, the tightest first."""
    text = entity.group.metadata.annotations.get(TOPOLOGY_ANNOTATION, "") if entity.group else ""
    if not text:
        return [TopologyLevel(entity.topology_key)] if entity.topology_key else _ANY_TOPOLOGY
    levels = _parse_levels(text)
    if levels is None:
        return EntityRejection(
            SCHEDULER_ERROR,
            f'invalid annotation {TOPOLOGY_ANNOTATION}: "{text}"',
            f'write it as in "rack, block after 30s, {ANYWHERE} after 5m"',
        )
    return [
        _restrict_level(level, entity.topology_key)
        for level in levels
        if level.after_seconds <= entity.waited_seconds
    ]


def seconds_until_relaxed(entity: Entity) -> float | None:
    """Return the seconds until a wider level is allowed for some group; None if never."""
    pauses = [
        level.after_seconds - one.waited_seconds
        for one in entity.groups
        if one.group is not None
        for level in _parse_levels(one.group.metadata.annotations.get(TOPOLOGY_ANNOTATION, ""))
        or ()
        if level.after_seconds > one.waited_seconds
    ]
    return min(pauses, default=None)


def _parse_levels(text: str) -> list[TopologyLevel] | None:
    found: list[TopologyLevel] = []
    begin = 0.0
    for part in text.split(","):
        match = _LEVEL_PATTERN.fullmatch(part)
        if match is None or len(found) == MAX_LEVELS:
            return None
        key, count, unit = match.groups()
        begin = max(begin, float(count) * _UNITS[unit] if count else 0.0)
        found.append(TopologyLevel("" if key == ANYWHERE else key, begin if found else 0.0))
    return found


def _restrict_level(level: TopologyLevel, key: str) -> TopologyLevel:
    """Add the topology key of the spec, which is always required, to a level."""
    if not key or key in level.key.split("+"):
        return level
    return TopologyLevel(f"{level.key}+{key}" if level.key else key, level.after_seconds)


_DOMAIN_CAPACITIES_LIMIT = 64
#: If more than one in so many nodes changed, recomputing all is cheaper than patching.
_PATCH_SHARE = 16
#: More pods than any group has.
_UNLIMITED = int(np.iinfo(np.int32).max)


def node_capacities(snapshot: Snapshot, policy: SchedulerPolicy, shape: PodShape) -> IntArray:
    """Return how many more pods of a shape each node holds."""
    scores = node_scores_of(snapshot, policy, shape)
    if scores.request.has_unknown_resource:
        return np.zeros(len(snapshot), np.int64)
    most: IntArray = np.where(scores.allowed_nodes, _UNLIMITED, 0)
    for column, amount in scores.request.amounts:
        free = snapshot.allocatable[:, column] - snapshot.requested[:, column]
        most = np.minimum(most, np.maximum(free // amount, 0))
    if shape.ports:
        most = np.minimum(most, 1)
        # Not the keys: a filter of another plugin may admit a node later.
        if ports := policy.filters.get(NODE_PORTS.name):
            most = np.where(run_filter(ports, initial_context(snapshot, shape)), 0, most)
    return most


def _node_capacity(node_scores: NodeScores, i: int, node_class: NodeClass) -> int:
    if node_scores.key_of(i, node_class) >= NO_NODE:
        return 0
    allocatable, requested = node_class.allocatable, node_class.requested
    most = 1 if node_scores.request.ports else _UNLIMITED
    amounts = node_scores.request.amounts
    return min([most, *((allocatable[c] - requested[c]) // amount for c, amount in amounts)])


class DomainCapacities:
    """How much each placement holds for one shape, in the order of the placements."""

    __slots__ = (
        "_capacity_per_node",
        "_domain_ids",
        "_position",
        "_requested_per_node",
        "allocatable",
        "epoch",
        "placements",
        "pod_capacity",
        "requested",
        "scored_resources",
    )

    def __init__(
        self,
        snapshot: Snapshot,
        policy: SchedulerPolicy,
        shape: PodShape,
        placements: Sequence[Placement],
    ) -> None:
        self.placements = placements
        self.epoch, self._position = snapshot.epoch, len(snapshot.changed_rows)
        inside = np.concatenate([one.nodes for one in placements])
        numbers = np.repeat(np.arange(len(placements)), [len(one.nodes) for one in placements])
        #: The number of the placement of each node; -1 for none.
        self._domain_ids = np.full(len(snapshot), -1)
        self._domain_ids[inside] = numbers
        #: The resources by whose utilization placements are compared.
        self.scored_resources = resources = nonzero_scored_resources(
            shape, snapshot.columns, policy.packing_resources
        )
        #: What each node contributes to the sums.
        self._capacity_per_node = node_capacities(snapshot, policy, shape)
        columns = columns_of(snapshot)
        self._requested_per_node = [one.current(columns).tolist() for one in resources]

        def total(per_node: IntArray) -> IntArray:
            return np.bincount(numbers, per_node[inside], len(placements)).astype(np.int64)

        #: How many more pods of the shape fit.
        self.pod_capacity = total(self._capacity_per_node)
        #: The allocatable amount of each scored resource, and the amount that scores count as used.
        self.allocatable = [total(snapshot.allocatable[:, one.column]) for one in resources]
        self.requested = [total(one.current(columns)) for one in resources]

    def update(self, node_scores: NodeScores) -> None:
        """Update the sums by the nodes whose load changed since the last update."""
        snapshot = node_scores.snapshot
        changed = snapshot.changed_rows[self._position :]
        self._position = len(snapshot.changed_rows)
        for i in dict.fromkeys(changed):
            if (number := self._domain_ids.item(i)) >= 0:
                self._update_node(i, number, snapshot.node_class(i), node_scores=node_scores)

    def is_outdated(self, snapshot: Snapshot) -> bool:
        """Whether recomputing all is cheaper than an update."""
        changed = len(snapshot.changed_rows) - self._position
        return self.epoch != snapshot.epoch or changed * _PATCH_SHARE > len(snapshot)

    def _update_node(
        self, i: int, number: int, node_class: NodeClass, *, node_scores: NodeScores
    ) -> None:
        capacity = _node_capacity(node_scores, i, node_class)
        self.pod_capacity[number] += capacity - self._capacity_per_node[i]
        self._capacity_per_node[i] = capacity
        for resource, requested, per_node in zip(
            self.scored_resources, self.requested, self._requested_per_node, strict=True
        ):
            current = resource.current(node_class)
            requested[number] += current - per_node[i]
            per_node[i] = current


#: The capacities of each snapshot, the least recently used first.
DOMAIN_CAPACITIES: SnapshotCache[dict[tuple[SchedulerPolicy, PodShape, str], DomainCapacities]] = (
    SnapshotCache(dict)
)


def domain_capacities_of(
    snapshot: Snapshot,
    policy: SchedulerPolicy,
    shape: PodShape,
    *,
    placements: Sequence[Placement],
    key: str,
) -> DomainCapacities:
    """Return up-to-date capacities; they are kept if the placements are all those of the key."""
    if placements is not snapshot.domains(key).placements:
        return DomainCapacities(snapshot, policy, shape, placements=placements)
    cached, cache_key = DOMAIN_CAPACITIES.of(snapshot), (policy, shape, key)
    capacities = cached.pop(cache_key, None)
    if capacities is None or capacities.is_outdated(snapshot):
        capacities = DomainCapacities(snapshot, policy, shape, placements=placements)
    else:
        capacities.update(node_scores_of(snapshot, policy, shape))
    cached[cache_key] = capacities
    if len(cached) > _DOMAIN_CAPACITIES_LIMIT:
        del cached[next(iter(cached))]
    return capacities


def find_placements(
    entity: Entity, snapshot: Snapshot, nodes: IntArray | None = None, key: str | None = None
) -> Sequence[Placement] | EntityRejection | None:
    """Return the placements among these nodes (None: all); None without topology constraint.

    `key` defaults to the topology key of the group.
    """
    key = entity.topology_key if key is None else key
    if not key:
        return None
    occupied = _occupied_domains(entity, snapshot, key)
    if isinstance(occupied, EntityRejection):
        return occupied
    placements: Sequence[Placement] = snapshot.domains(key).placements
    if occupied:
        placements = [placement for placement in placements if placement.value in occupied]
    if nodes is None:
        return placements
    within = mask_of(nodes, len(snapshot))
    inside = [one._replace(nodes=one.nodes[within[one.nodes]]) for one in placements]
    return [placement for placement in inside if placement.nodes.size]


def _occupied_domains(entity: Entity, snapshot: Snapshot, key: str) -> set[str] | EntityRejection:
    """Return the domain of the members that have a node; several domains are a contradiction."""
    occupied: set[str] = set()
    for pod in entity.other_members:
        name = pod.occupied_node or snapshot.pod_index.node_of(pod.metadata.key)
        if not name:
            continue
        index = snapshot.index.get(name)
        value = None if index is None else label_value(snapshot.labels[index], key)
        if value is None:
            return _undeterminable_domain(
                f"node {name} of pod {pod.metadata.key} has no label {key}"
            )
        occupied.add(value)
    if len(occupied) > 1:
        return _undeterminable_domain(f"they are in {' and '.join(sorted(occupied))}")
    return occupied


def _undeterminable_domain(reason: str) -> EntityRejection:
    return EntityRejection(
        SCHEDULER_ERROR,
        f"cannot determine domain for already scheduled pods: {reason}",
        "delete the members outside the domain of the others",
        wakes_on=ENTITY_EVENTS | NODE_EVENTS,
    )


def predict_best_placement(
    entity: Entity, capacities: DomainCapacities, scheduled: int
) -> Placement:
    """Return the placement that will be chosen for equal members, without trying any."""
    members = np.minimum(capacities.pod_capacity, len(entity.members)) + scheduled
    feasible = (members >= entity.quorum) & (members > scheduled)
    if not feasible.any():
        feasible[:] = True
    loads = [
        (resource.weight, allocatable, requested + resource.requested * (members - scheduled))
        for resource, allocatable, requested in zip(
            capacities.scored_resources, capacities.allocatable, capacities.requested, strict=True
        )
    ]
    scores = members * 100 // max(int(members[feasible].max()), 1) + _utilization(loads)
    return capacities.placements[int(np.where(feasible, scores, -1).argmax())]


class PlacementCandidate(NamedTuple):
    """A feasible placement: how many members it would hold, and the shapes of the new ones."""

    placement: Placement
    members: int
    shapes: Sequence[PodShape]


def choose_best_candidate(
    candidates: Sequence[PlacementCandidate], snapshot: Snapshot, policy: SchedulerPolicy
) -> PlacementCandidate:
    """Return the candidate with most members and the highest utilization; of equals the first."""
    most = max(1, *(candidate.members for candidate in candidates))

    def score(candidate: PlacementCandidate) -> int:
        return candidate.members * 100 // most + _utilization_with(candidate, snapshot, policy)

    return max(candidates, key=score)


def _utilization_with(
    candidate: PlacementCandidate, snapshot: Snapshot, policy: SchedulerPolicy
) -> int:
    """Compute the utilization of a placement with the new members, in per cent."""
    tables = (snapshot.allocatable, snapshot.requested, snapshot.nonzero_requested)
    sums = (table[candidate.placement.nodes].sum(axis=0).tolist() for table in tables)
    allocatable, requested, nonzero_requested = map(tuple, sums)
    resources = nonzero_scored_resources(
        _combine_shapes(candidate.shapes), snapshot.columns, policy.packing_resources
    )
    score = allocation_scorer(MOST_ALLOCATED, resources)
    utilization: int = score(
        NodeClass(allocatable, requested, nonzero_requested, used_ports=()), ONE_NODE
    )
    return utilization


def _combine_shapes(shapes: Iterable[PodShape]) -> PodShape:
    """Build the shape of one pod that requests as much as all of these."""
    requests: Counter[str] = Counter()
    cpu = memory = 0
    for shape, count in Counter(shapes).items():
        for name, amount in shape.requests:
            requests[name] += amount * count
        cpu += shape.nonzero_requests[0] * count
        memory += shape.nonzero_requests[1] * count
    return PodShape(tuple(sorted(requests.items())), (cpu, memory))


def _utilization(loads: Sequence[tuple[int, IntArray, IntArray]]) -> IntArray | int:
    """Compute the weighted mean utilization of placements, in per cent.

    `loads` has for each resource: weight, allocatable amounts, requested amounts.
    """
    total: IntArray | int = 0
    weights: IntArray | int = 0
    for weight, allocatable, requested in loads:
        share = np.minimum(requested, allocatable) * 100 // np.maximum(allocatable, 1)
        total, weights = total + weight * share, weights + weight * (allocatable > 0)
    return total // np.maximum(weights, 1)
