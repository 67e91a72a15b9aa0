"""How well topology domains suit a group: of the domains that fit, the highest score wins.

    score =   members that the domain would hold, in per cent of the most that a domain holds
            + utilization of the domain with these members, in per cent
            - the share of its new members that would be on avoided nodes, in per cent, twice

So a rack is filled before the next one is begun. For pods that request GPUs the utilization is that
of GPUs, for pods with claims the share that they take of the free devices, for other pods that of
CPU and memory. Avoided nodes are those with an extended resource that the pods do not request
(`plugins/extended_resource_scoring.py`): a group that needs no GPUs leaves racks of GPU nodes to
others.

Scores are counted in hundredths of a per cent. As in Kubernetes, members, CPU and memory are cut to
whole per cents; packed resources are not, since one GPU of a large domain is less than that.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from operator import or_
from typing import NamedTuple

import numpy as np

from phalanx.scheduler.cluster.pod_shape import PodShape
from phalanx.scheduler.cluster.snapshot import BoolArray, IntArray, Placement, Snapshot
from phalanx.scheduler.plugins.claim_assignments import first_counted_request, free_device_counts
from phalanx.scheduler.plugins.load_scoring import (
    CPU_AND_MEMORY,
    NodeColumns,
    PerNode,
    ScoredResource,
    exact_scored_resources,
    nonzero_scored_resources,
)
from phalanx.scheduler.plugins.plugin import StaticScore
from phalanx.scheduler.policy import SchedulerPolicy

#: A hundred per cent, and one.
WHOLE, _PERCENT = 10_000, 100


class DomainScoring(NamedTuple):
    """By which resources domains are compared for pods of a shape."""

    resources: Sequence[ScoredResource]
    #: Whether these are packed resources, of which hundredths of a per cent count.
    is_packed: bool

    def utilization(
        self, allocatable: Sequence[IntArray], requested: Sequence[IntArray], size: int
    ) -> IntArray:
        """Compute the weighted mean utilization of domains, given the amounts of each resource."""
        total, weights = np.zeros(size, np.int64), np.zeros(size, np.int64)
        unit = 1 if self.is_packed else _PERCENT
        for resource, capacity, used in zip(self.resources, allocatable, requested, strict=True):
            share = np.minimum(used, capacity) * (WHOLE // unit) // np.maximum(capacity, 1)
            total += resource.weight * share
            weights += resource.weight * (capacity > 0)
        found: IntArray = total // np.maximum(weights, 1) * unit
        return found


def domain_scoring(
    policy: SchedulerPolicy, shape: PodShape, columns: Mapping[str, int]
) -> DomainScoring:
    """Choose the resources by which domains are compared for pods of a shape."""
    packed = exact_scored_resources(shape, columns, policy.packed_resources(shape))
    if packed:
        return DomainScoring(packed, is_packed=True)
    resources = nonzero_scored_resources(shape, columns, policy.packing_resources)
    return DomainScoring(resources, is_packed=False)


class PackedDevices(NamedTuple):
    """The devices by which domains are compared for pods with claims."""

    #: The free devices of each node, and how many of them a pod takes.
    free: IntArray
    number: int


def packed_devices(
    policy: SchedulerPolicy, shape: PodShape, snapshot: Snapshot
) -> PackedDevices | None:
    """Choose the devices by which domains are compared; None without devices of its own."""
    if not shape.claims or shape.claims.has_shared or policy.packing_resources != CPU_AND_MEMORY:
        return None
    request = first_counted_request(snapshot, shape.claims)
    if request is None or not request.number:
        return None
    return PackedDevices(free_device_counts(snapshot, request.requirement), request.number)


def share_of_free(taken: IntArray, free: IntArray) -> IntArray:
    """Return which share of the free devices is taken; a tight domain comes before a wide one."""
    share: IntArray = np.minimum(taken, free) * WHOLE // np.maximum(free, 1)
    return share


def score_members(members: PerNode, most: int) -> PerNode:
    """Score the members that a domain would hold, where the best one holds `most`."""
    return members * 100 // most * _PERCENT


def penalize_avoided(avoided: PerNode, added: PerNode) -> PerNode:
    """Return what is subtracted if so many of the added members would be on avoided nodes."""
    return 2 * WHOLE * avoided // (added + (added == 0))


def measure_utilization(
    placements: Sequence[Placement],
    shapes: Iterable[PodShape],
    snapshot: Snapshot,
    *,
    policy: SchedulerPolicy,
) -> IntArray:
    """Compute the utilization of each placement if it held these members too."""
    inside = np.concatenate([one.nodes for one in placements])
    starts = np.cumsum([0, *(len(one.nodes) for one in placements[:-1])])

    def total(table: IntArray) -> IntArray:
        sums: IntArray = np.add.reduceat(table[inside], starts, axis=0)
        return sums.T

    counts = Counter(shapes)
    found = ((packed_devices(policy, shape, snapshot), counts[shape]) for shape in counts)
    devices = [(one, count) for one, count in found if one is not None]
    if devices:
        free = devices[0][0].free
        taken = sum(one.number * count for one, count in devices if one.free is free)
        return share_of_free(np.full(len(placements), taken), total(free))
    scoring = domain_scoring(policy, _combine_shapes(counts), snapshot.columns)
    tables = (snapshot.allocatable, snapshot.requested, snapshot.nonzero_requested)
    columns = NodeColumns(*map(total, tables))
    return scoring.utilization(
        [columns.allocatable[one.column] for one in scoring.resources],
        [one.current(columns) + one.requested for one in scoring.resources],
        len(placements),
    )


def avoided_nodes(snapshot: Snapshot, policy: SchedulerPolicy, shape: PodShape) -> BoolArray | None:
    """Find the nodes that pods of a shape avoid; None if there are none."""
    masks = [
        mask
        for _, score in policy.scores_of(StaticScore, shape)
        if score.find_avoided and (mask := score.find_avoided(snapshot, shape)) is not None
    ]
    return reduce(or_, masks) if masks else None


def _combine_shapes(shapes: Counter[PodShape]) -> PodShape:
    """Build the shape of one pod that requests as much as all of these."""
    requests: Counter[str] = Counter()
    cpu = memory = 0
    for shape, count in shapes.items():
        for name, amount in shape.requests:
            requests[name] += amount * count
        cpu += shape.nonzero_requests[0] * count
        memory += shape.nonzero_requests[1] * count
    return PodShape(tuple(sorted(requests.items())), (cpu, memory))
