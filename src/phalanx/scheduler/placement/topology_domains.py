"""Levels: how near to each other the members of a group would like to be, the nearest first.

What a group asks for in its spec it insists on. Beyond that, an annotation may say what it would
like, from the tightest to the widest, and how long it waits before it is content with the next:

    phalanx.dev/topology: "rack, block after 30s, * after 5m"

One rack if it can be had; a block after half a minute; anywhere after five. Several labels joined
by `+` must all be shared. Without `*` at the end the last one is insisted on. Says nothing about
where there is room; `topology.py` finds the nodes of a level.

Sites: how much each of some placements holds, as one shape sees it. Kept across cycles, patched.

What a `View` is for nodes this is for whole racks or zones: the sums are made once, and a node
whose load has changed moves those of the site that it is in.

    held [12, 8, 30]            so many more pods of the shape in each
    a gang lands on node 4      node 4 is in site 1, it held 3 more and holds 1 now: [12, 6, 30]

Topology: the sets of nodes of which one must hold all members of a group.

A group may name a label whose value its nodes must share. Each value is a placement; members that
have a node already leave only theirs. For members of one sort it is known what every placement
holds (`sites.py`), so that only the best one is tried.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from phalanx.api.scheduling import TOPOLOGY_ANNOTATION
from phalanx.scheduler.cluster.node_class import NodeClass
from phalanx.scheduler.cluster.pod_shape import PodShape
from phalanx.scheduler.cluster.snapshot import (
    BoolArray,
    IntArray,
    Placement,
    Snapshot,
    label_value,
    mask_of,
)
from phalanx.scheduler.decision import ENTITY_EVENTS, NODE_EVENTS, SCHEDULER_ERROR
from phalanx.scheduler.entity import Entity, EntityRejection
from phalanx.scheduler.placement.node_scores import NO_NODE, NodeScores, node_scores_of
from phalanx.scheduler.plugins.node_resources import (
    MOST_ALLOCATED,
    AllocationScorer,
    nonzero_scored_resources,
)
from phalanx.scheduler.policy import SchedulerPolicy

ANYWHERE = "*"
#: More levels than this are a slip of the pen.
MAX_LEVELS = 8

_LEVEL_PATTERN = re.compile(r"\s*([^\s,]+)(?:\s+after\s+(\d{1,7})(s|m|h))?\s*")
_UNITS = {"s": 1, "m": 60, "h": 3600}


class TopologyLevel(NamedTuple):
    """A label, or several joined by `+`, whose value all members share; "" for anywhere."""

    key: str
    #: Seconds after which it will do.
    after_seconds: float = 0.0


_ANY_TOPOLOGY = (TopologyLevel(""),)


def topology_levels(entity: Entity) -> Sequence[TopologyLevel] | EntityRejection:
    """What will do by now, the best first; the last of all is insisted on."""
    text = entity.group.metadata.annotations.get(TOPOLOGY_ANNOTATION, "") if entity.group else ""
    if not text:
        return [TopologyLevel(entity.topology_key)] if entity.topology_key else _ANY_TOPOLOGY
    wanted = _parse_levels(text)
    if wanted is None:
        return EntityRejection(
            SCHEDULER_ERROR,
            f'annotation {TOPOLOGY_ANNOTATION} cannot be read: "{text}"',
            f'say it like "rack, block after 30s, {ANYWHERE} after 5m"',
        )
    return [
        _restrict_level(level, entity.topology_key)
        for level in wanted
        if level.after_seconds <= entity.waited_seconds
    ]


def seconds_until_relaxed(entity: Entity) -> float | None:
    """Seconds until some group of an entity is content with less; None if none ever is."""
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
    """A level that is inside what the spec insists on anyway."""
    if not key or key in level.key.split("+"):
        return level
    return TopologyLevel(f"{level.key}+{key}" if level.key else key, level.after_seconds)


_DOMAIN_CAPACITIES_LIMIT = 64
#: From this share of changed nodes on it is cheaper to start anew.
_PATCH_SHARE = 16
#: As many as anybody could want.
_UNLIMITED = int(np.iinfo(np.int32).max)


def node_capacities(snapshot: Snapshot, policy: SchedulerPolicy, shape: PodShape) -> IntArray:
    """How many more pods of a shape each node holds."""
    view = node_scores_of(snapshot, policy, shape)
    if view.request.has_unknown_resource:
        return np.zeros(len(snapshot), np.int64)
    most: IntArray = np.where(view.allowed_nodes, _UNLIMITED, 0)
    for column, amount in view.request.amounts:
        free = snapshot.allocatable[:, column] - snapshot.requested[:, column]
        most = np.minimum(most, np.maximum(free // amount, 0))
    if shape.ports:
        most = np.minimum(most, view.keys < NO_NODE)
    return most


def _node_capacity(node_scores: NodeScores, i: int, node_class: NodeClass) -> int:
    """The same of one node that is such a spot."""
    if node_scores.key_of(i, node_class) >= NO_NODE:
        return 0
    room, used = node_class.allocatable, node_class.requested
    most = 1 if node_scores.request.ports else _UNLIMITED
    return min(
        [most, *((room[c] - used[c]) // amount for c, amount in node_scores.request.amounts)]
    )


class DomainCapacities:
    """Sums over the nodes of each placement, in the order of the placements."""

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
    )  # fmt: skip

    def __init__(
        self,
        snapshot: Snapshot,
        policy: SchedulerPolicy,
        shape: PodShape,
        placements: Sequence[Placement],
    ) -> None:
        self.placements, self.epoch, self._position = (
            placements,
            snapshot.epoch,
            len(snapshot.changed_rows),
        )
        inside = np.concatenate([place.nodes for place in placements])
        numbers = np.repeat(np.arange(len(placements)), [len(place.nodes) for place in placements])
        #: The site that each node is in; -1 for none.
        self._domain_ids = np.full(len(snapshot), -1)
        self._domain_ids[inside] = numbers
        #: By what of how full they are sites are compared.
        self.scored_resources = stakes = nonzero_scored_resources(
            shape, snapshot.columns, policy.packing_resources
        )
        #: What each node counts for in the sums.
        self._capacity_per_node = node_capacities(snapshot, policy, shape)
        self._requested_per_node = [stake.current_all(snapshot).tolist() for stake in stakes]

        def total(per_node: IntArray) -> IntArray:
            return np.bincount(numbers, per_node[inside], len(placements)).astype(np.int64)

        #: How many more pods of the shape there is room for.
        self.pod_capacity = total(self._capacity_per_node)
        #: What there is of each stake, and what scores count as used of it.
        self.allocatable = [total(snapshot.allocatable[:, stake.column]) for stake in stakes]
        self.requested = [total(stake.current_all(snapshot)) for stake in stakes]

    def update(self, node_scores: NodeScores) -> None:
        """Repeat the nodes whose load has changed since the last look."""
        snapshot = node_scores.snapshot
        changed = snapshot.changed_rows[self._position :]
        self._position = len(snapshot.changed_rows)
        for i in dict.fromkeys(changed):
            if (number := self._domain_ids.item(i)) >= 0:
                self._update_node(i, number, snapshot.node_class(i), node_scores)

    def is_outdated(self, snapshot: Snapshot) -> bool:
        """Whether too much has changed to be worth repeating."""
        changed = len(snapshot.changed_rows) - self._position
        return self.epoch != snapshot.epoch or changed * _PATCH_SHARE > len(snapshot)

    def _update_node(
        self, i: int, number: int, node_class: NodeClass, node_scores: NodeScores
    ) -> None:
        holds = _node_capacity(node_scores, i, node_class)
        self.pod_capacity[number] += holds - self._capacity_per_node[i]
        self._capacity_per_node[i] = holds
        for stake, taken, each in zip(
            self.scored_resources, self.requested, self._requested_per_node, strict=True
        ):
            there = stake.current(node_class)
            taken[number] += there - each[i]
            each[i] = there


def domain_capacities_of(
    snapshot: Snapshot,
    policy: SchedulerPolicy,
    shape: PodShape,
    placements: Sequence[Placement],
    key: str,
) -> DomainCapacities:
    """The sites of a shape, brought up to date; kept if they are all there are of a label."""
    if placements is not snapshot.domains(key).placements:
        return DomainCapacities(snapshot, policy, shape, placements)
    kept, name = snapshot.domain_capacities, (policy, shape, key)
    sites = kept.pop(name, None)
    if sites is None or sites.is_outdated(snapshot):
        sites = DomainCapacities(snapshot, policy, shape, placements)
    else:
        sites.update(node_scores_of(snapshot, policy, shape))
    kept[name] = sites
    if len(kept) > _DOMAIN_CAPACITIES_LIMIT:
        del kept[next(iter(kept))]
    return sites


def find_placements(
    entity: Entity, snapshot: Snapshot, nodes: IntArray | None = None, key: str | None = None
) -> Sequence[Placement] | EntityRejection | None:
    """The placements among these nodes (None: all) to choose from; None if it may be anywhere.

    Without a key they are those that the group insists on.
    """
    key = entity.topology_key if key is None else key
    if not key:
        return None
    homes = _occupied_domains(entity, snapshot, key)
    if isinstance(homes, EntityRejection):
        return homes
    found: Sequence[Placement] = snapshot.domains(key).placements
    if homes:
        found = [placement for placement in found if placement.value in homes]
    return (
        found if nodes is None else list(_restrict_placements(found, mask_of(nodes, len(snapshot))))
    )


def _restrict_placements(found: Iterable[Placement], within: BoolArray) -> Iterator[Placement]:
    """The placements as far as they are within some nodes."""
    for placement in found:
        inside = placement.nodes[within[placement.nodes]]
        if inside.size:
            yield placement._replace(nodes=inside)


def _occupied_domains(entity: Entity, snapshot: Snapshot, key: str) -> set[str] | EntityRejection:
    """The values that members with a node have; more than one is a contradiction."""
    homes: set[str] = set()
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
        homes.add(value)
    if len(homes) > 1:
        return _undeterminable_domain(f"they are in {' and '.join(sorted(homes))}")
    return homes


def _undeterminable_domain(why: str) -> EntityRejection:
    return EntityRejection(
        SCHEDULER_ERROR,
        f"cannot determine domain for already scheduled pods: {why}",
        "delete the members that are not where the others are",
        ENTITY_EVENTS | NODE_EVENTS,
    )


def predict_best_placement(
    entity: Entity, capacities: DomainCapacities, scheduled: int
) -> Placement:
    """The placement that will hold most of equal members, or comes nearest to enough of them."""
    members = np.minimum(capacities.pod_capacity, len(entity.members)) + scheduled
    enough = (members >= entity.quorum) & (members > scheduled)
    if not enough.any():
        enough[:] = True
    loads = [
        (stake.weight, room, taken + stake.requested * (members - scheduled))
        for stake, room, taken in zip(
            capacities.scored_resources, capacities.allocatable, capacities.requested, strict=True
        )
    ]
    worth = members * 100 // max(int(members[enough].max()), 1) + _utilization(loads)
    return capacities.placements[int(np.where(enough, worth, -1).argmax())]


class PlacementCandidate(NamedTuple):
    """What a placement would hold of a group: how many members, and the shapes of the new ones."""

    placement: Placement
    members: int
    shapes: Sequence[PodShape]


def choose_best_candidate(
    candidates: Sequence[PlacementCandidate], snapshot: Snapshot, policy: SchedulerPolicy
) -> PlacementCandidate:
    """The offer that holds most members in the fullest placement; of equal ones the first."""
    most = max(1, *(offer.members for offer in candidates))
    return max(
        candidates,
        key=lambda offer: offer.members * 100 // most + _utilization_with(offer, snapshot, policy),
    )


def _utilization_with(
    candidate: PlacementCandidate, snapshot: Snapshot, policy: SchedulerPolicy
) -> int:
    """How full a placement would be, in per cent."""
    tables = (snapshot.allocatable, snapshot.requested, snapshot.nonzero_requested)
    sums = (table[candidate.placement.nodes].sum(axis=0).tolist() for table in tables)
    room, used, scored = map(tuple, sums)
    stakes = nonzero_scored_resources(
        _combine_shapes(candidate.shapes), snapshot.columns, policy.packing_resources
    )
    return AllocationScorer(MOST_ALLOCATED, stakes).score_node(NodeClass(room, used, scored, ()))


def _combine_shapes(shapes: Iterable[PodShape]) -> PodShape:
    """One pod that asks for as much as all of these."""
    requests: Counter[str] = Counter()
    cpu = memory = 0
    for shape, count in Counter(shapes).items():
        for name, amount in shape.requests:
            requests[name] += amount * count
        cpu, memory = (
            cpu + shape.nonzero_requests[0] * count,
            memory + shape.nonzero_requests[1] * count,
        )
    return PodShape(tuple(sorted(requests.items())), (cpu, memory))


def _utilization(loads: Sequence[tuple[int, IntArray, IntArray]]) -> IntArray | int:
    """The weighted mean of the used shares of all that placements have, in per cent."""
    total: IntArray | int = 0
    weights: IntArray | int = 0
    for weight, room, used in loads:
        share = np.minimum(used, room) * 100 // np.maximum(room, 1)
        total, weights = total + weight * share, weights + weight * (room > 0)
    return total // np.maximum(weights, 1)
