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
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from msgspec import structs

from phalanx.api.scheduling import TOPOLOGY_ANNOTATION
from phalanx.scheduler.cluster.pod_shape import PodShape
from phalanx.scheduler.cluster.snapshot import (
    IntArray,
    NodeClass,
    Placement,
    Snapshot,
    SnapshotCache,
    TopologyDomains,
    label_value,
)
from phalanx.scheduler.decision import ENTITY_EVENTS, NODE_EVENTS, SCHEDULER_ERROR
from phalanx.scheduler.entity import Entity, EntityRejection
from phalanx.scheduler.placement.domain_scores import (
    avoided_nodes,
    domain_scoring,
    measure_utilization,
    packed_devices,
    penalize_avoided,
    score_members,
    share_of_free,
)
from phalanx.scheduler.placement.node_scores import NO_NODE, NodeScores, node_scores_of
from phalanx.scheduler.plugins.claim_assignments import claim_capacities
from phalanx.scheduler.plugins.dynamic_resources import DYNAMIC_RESOURCES
from phalanx.scheduler.plugins.filtering import run_filter
from phalanx.scheduler.plugins.load_scoring import columns_of
from phalanx.scheduler.plugins.node_plugins import NODE_PORTS
from phalanx.scheduler.plugins.plugin_context import initial_context
from phalanx.scheduler.plugins.volume_assignments import volume_capacities
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
    levels = parse_topology_levels(text)
    if levels is None:
        return EntityRejection(
            SCHEDULER_ERROR,
            f'invalid annotation {TOPOLOGY_ANNOTATION}: "{text}"',
            f'write it as in "rack, block after 30s, {ANYWHERE} after 5m"',
        )
    allowed = [level for level in levels if level.after_seconds <= entity.waited_seconds]
    if not (key := entity.topology_key):
        return allowed
    # The topology key of the spec is required at every level.
    return [
        level
        if key in level.key.split("+")
        else level._replace(key=f"{level.key}+{key}" if level.key else key)
        for level in allowed
    ]


def at_widest_level(entity: Entity) -> Entity:
    """Return the entity with only the widest level of every group: tighter ones are preferences."""
    children, group = tuple(at_widest_level(child) for child in entity.children), entity.group
    if group is not None:
        annotations = group.metadata.annotations
        levels = parse_topology_levels(annotations.get(TOPOLOGY_ANNOTATION, "")) or ()
        if len(levels) > 1:
            annotations = {**annotations, TOPOLOGY_ANNOTATION: levels[-1].key or ANYWHERE}
            meta = structs.replace(group.metadata, annotations=annotations)
            group = structs.replace(group, metadata=meta)
    return replace(entity, group=group, children=children)


def seconds_until_relaxed(entity: Entity) -> float | None:
    """Return the seconds until a wider level is allowed for some group; None if never."""
    pauses = [
        level.after_seconds - one.waited_seconds
        for one in entity.groups
        if one.group is not None
        for level in parse_topology_levels(
            one.group.metadata.annotations.get(TOPOLOGY_ANNOTATION, "")
        )
        or ()
        if level.after_seconds > one.waited_seconds
    ]
    return min(pauses, default=None)


def topology_label_keys(entity: Entity) -> frozenset[str]:
    """Return the node labels that select the domains of an entity, at any of its levels."""
    keys: set[str] = set()
    for one in entity.groups:
        assert one.group is not None
        levels = (
            parse_topology_levels(one.group.metadata.annotations.get(TOPOLOGY_ANNOTATION, "")) or ()
        )
        for key in (one.topology_key, *(level.key for level in levels)):
            keys.update(key.split("+") if key else ())
    return frozenset(keys)


def parse_topology_levels(text: str) -> list[TopologyLevel] | None:
    """Parse the levels of an annotation; None if it is invalid."""
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


_DOMAIN_CAPACITIES_LIMIT = 64
#: If more than one in so many nodes changed, recomputing all is cheaper than patching.
_PATCH_SHARE = 16
#: More pods than any group has.
_UNLIMITED = int(np.iinfo(np.int32).max)
#: Below the score of any placement.
_LOWEST = int(np.iinfo(np.int64).min)


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
    if shape.claims and DYNAMIC_RESOURCES.name in policy.filters:
        most = np.minimum(most, claim_capacities(snapshot, shape.claims))
    if shape.volumes.is_dynamic:
        most = np.minimum(most, volume_capacities(snapshot, shape.volumes))
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
        "_avoided_capacity",
        "_avoided_nodes",
        "_capacity_per_node",
        "_devices",
        "_domain_ids",
        "_free_devices",
        "_position",
        "_requested_per_node",
        "_scoring",
        "allocatable",
        "epoch",
        "placements",
        "pod_capacity",
        "requested",
    )

    def __init__(
        self,
        snapshot: Snapshot,
        policy: SchedulerPolicy,
        shape: PodShape,
        *,
        placements: Sequence[Placement],
    ) -> None:
        self.placements = placements
        self.epoch, self._position = snapshot.epoch, len(snapshot.changed_rows)
        inside = np.concatenate([one.nodes for one in placements])
        numbers = np.repeat(np.arange(len(placements)), [len(one.nodes) for one in placements])
        #: The number of the placement of each node; -1 for none.
        self._domain_ids = np.full(len(snapshot), -1)
        self._domain_ids[inside] = numbers
        self._scoring = domain_scoring(policy, shape, snapshot.columns)
        resources = self._scoring.resources
        #: What each node contributes to the sums.
        self._capacity_per_node = node_capacities(snapshot, policy, shape)
        columns = columns_of(snapshot)
        self._requested_per_node = [one.current(columns).tolist() for one in resources]

        def total(per_node: IntArray) -> IntArray:
            return np.bincount(numbers, per_node[inside], len(placements)).astype(np.int64)

        #: How many more pods of the shape fit, and how many of these on avoided nodes.
        self.pod_capacity = total(self._capacity_per_node)
        self._avoided_nodes = avoided_nodes(snapshot, policy, shape)
        self._avoided_capacity = np.zeros_like(self.pod_capacity)
        if self._avoided_nodes is not None:
            self._avoided_capacity = total(self._capacity_per_node * self._avoided_nodes)
        #: The allocatable amount of each scored resource, and the amount that scores count as used.
        self.allocatable = [total(snapshot.allocatable[:, one.column]) for one in resources]
        self.requested = [total(one.current(columns)) for one in resources]
        self._devices = packed_devices(policy, shape, snapshot)
        if self._devices is not None:
            self._free_devices = total(self._devices.free)

    def score(self, members: IntArray, most: int, scheduled: int) -> IntArray:
        """Score the placements by the members that they would hold, `scheduled` of them already."""
        added = members - scheduled
        # Members are placed on avoided nodes only when the others are full.
        avoided = np.maximum(added - (self.pod_capacity - self._avoided_capacity), 0)
        if self._devices is not None:
            utilization = share_of_free(self._devices.number * added, self._free_devices)
        else:
            requested = [
                amount + resource.requested * added
                for resource, amount in zip(self._scoring.resources, self.requested, strict=True)
            ]
            utilization = self._scoring.utilization(self.allocatable, requested, len(members))
        scores: IntArray = (
            score_members(members, most) + utilization - penalize_avoided(avoided, added)
        )
        return scores

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
        change = capacity - self._capacity_per_node[i]
        self.pod_capacity[number] += change
        if self._avoided_nodes is not None and self._avoided_nodes[i]:
            self._avoided_capacity[number] += change
        self._capacity_per_node[i] = capacity
        for resource, requested, per_node in zip(
            self._scoring.resources, self.requested, self._requested_per_node, strict=True
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
    """Return up-to-date capacities.

    They are kept if the placements are all those of the key and the pods have no claims.
    """
    has_claims = shape.claims or shape.volumes.is_dynamic
    if placements is not snapshot.domains(key).placements or has_claims:
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
    entity: Entity, snapshot: Snapshot, nodes: IntArray | None = None, *, key: str | None = None
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
    return _placements_within(nodes, snapshot.domains(key), occupied)


def find_placement_of(
    entity: Entity, snapshot: Snapshot, nodes: IntArray | None, *, used: Sequence[int]
) -> Placement | None:
    """Return the placement that contains all used nodes, at the tightest allowed level.

    None if the entity may use any node, or if it uses none and has several placements.
    """
    levels = topology_levels(entity)
    for level in () if isinstance(levels, EntityRejection) else levels:
        if not level.key:
            return None
        found = find_placements(entity, snapshot, nodes, key=level.key)
        ids, placements = snapshot.domains(level.key).ids, [] if found is None else found
        if isinstance(placements, EntityRejection):
            continue
        domains = {ids.item(node) for node in used}
        if len(domains) > 1 or (not used and len(placements) > 1):
            continue
        for placement in placements:
            if not used or ids[placement.nodes[0]] in domains:
                return placement
    return None


def _placements_within(
    nodes: IntArray, domains: TopologyDomains, occupied: set[str]
) -> list[Placement]:
    """Divide some nodes into placements; only these nodes are looked at."""
    ids = domains.ids[nodes]
    order = np.argsort(ids, kind="stable")
    order = order[ids[order] >= 0]
    numbers, starts = np.unique(ids[order], return_index=True)
    parts = np.split(nodes[order], starts[1:])
    found = (
        Placement(domains.values[number], part)
        for number, part in zip(numbers.tolist(), parts, strict=False)
    )
    return sorted(
        (one for one in found if not occupied or one.value in occupied),
        key=lambda placement: placement.value,
    )


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
    scores = capacities.score(members, max(int(members[feasible].max()), 1), scheduled)
    return capacities.placements[int(np.where(feasible, scores, _LOWEST).argmax())]


class PlacementCandidate(NamedTuple):
    """A feasible placement: how many members it would hold, the shapes of the new ones, and the
    indexes of their nodes.
    """

    placement: Placement
    members: int
    shapes: Sequence[PodShape]
    nodes: Sequence[int]


def choose_best_candidate(
    candidates: Sequence[PlacementCandidate], snapshot: Snapshot, policy: SchedulerPolicy
) -> PlacementCandidate:
    """Return the candidate with the highest score (`domain_scores.py`); of equals the first."""
    most = max(1, *(candidate.members for candidate in candidates))
    return max(candidates, key=lambda one: score_candidate(one, most, snapshot, policy=policy))


def score_candidate(
    candidate: PlacementCandidate, most: int, snapshot: Snapshot, *, policy: SchedulerPolicy
) -> int:
    """Score a candidate, where the best one holds `most` members."""
    placements, shapes, avoided = [candidate.placement], candidate.shapes, 0
    utilization = measure_utilization(placements, shapes, snapshot, policy=policy)
    masks = {shape: avoided_nodes(snapshot, policy, shape) for shape in dict.fromkeys(shapes)}
    for shape, node in zip(shapes, candidate.nodes, strict=True):
        mask = masks[shape]
        avoided += mask is not None and bool(mask[node])
    score: int = score_members(candidate.members, most) + int(utilization[0])
    return score - int(penalize_avoided(avoided, len(shapes)))
