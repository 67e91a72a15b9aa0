"""PlanBasis: what the plan of one reservation follows from, to tell whether a new plan is the same.

Most starts and ends of other pods leave a reservation as it is. For equal members that need nothing
but resources, two numbers per node say so: how many members fit just before the expected start, and
how many at it. Only nodes that have changed since the plan are looked at:

    expected start 09:20 on n7, where a pod ends then      n1 n2 n3 n4 n5 n6 n7    sum
    members that fit before 09:20                           0  0  0  0  0  0  0      0
    members that fit at 09:20                               0  0  0  0  0  0  1      1
    a pod of n3 ends                                        -  - 0,0 -  -  -  -    the same plan
    a pod of n3 ends, and n3 has room for a member          -  - 1,1 -  -  -  -    plan again
    a pod of n7 ends                                                               plan again

The tests compare the reservations of random runs with those of plans that are always made anew.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import inf

import numpy as np

from phalanx.api.scheduling import TOPOLOGY_ANNOTATION
from phalanx.scheduler.cluster.snapshot import IntArray, Snapshot
from phalanx.scheduler.entity import Entity
from phalanx.scheduler.placement.group_placement import count_scheduled
from phalanx.scheduler.policy import SchedulerPolicy
from phalanx.scheduler.reservation.end_timeline import CapacityGrowth, EndTimeline
from phalanx.scheduler.reservation.pod_ends import OVERDUE_SECONDS, PodEnds

#: With more changed nodes than this a plan is made anew.
_MAX_CHANGED = 64


class PlanBasis:
    """A plan for `entity`, the only reservation, to start at `start` on these rows of nodes."""

    def __init__(
        self,
        entity: Entity,
        snapshot: Snapshot,
        policy: SchedulerPolicy,
        *,
        ends: PodEnds,
        planned_at: float,
        start: float,
        rows: Iterable[int],
        growth: CapacityGrowth,
        timeline: EndTimeline,
    ) -> None:
        self._entity, self._policy, self._ends = entity, policy, ends
        self._planned_at, self._index, self._start = planned_at, snapshot.index, start
        self._growth, self._requested = growth, snapshot.requested.copy()
        free = snapshot.allocatable - snapshot.requested
        just_before = float(np.nextafter(start, -inf))
        before, at = (
            growth.count(free + timeline.released(time)[:, :-2]) for time in (just_before, start)
        )
        self._before, self._at = before.tolist(), at.tolist()
        self._total_before, self._total_at = sum(self._before), sum(self._at)
        #: The nodes of the plan, and where its last one is in the order of nodes.
        self._rows = frozenset(rows)
        last_ends = timeline.last_ends(start)
        self._last_used = max((-float(last_ends[row]), row) for row in self._rows)

    def still_holds(self, entity: Entity, snapshot: Snapshot, now: float) -> bool:
        """Whether a plan for the entity now is the same; the nodes and the queue have not changed.

        `ends.touched` are the nodes on which pods that end have changed.
        """
        if not (
            self._planned_at <= now < self._start
            and snapshot.index is self._index
            and snapshot.requested.shape == self._requested.shape
            and _is_same(entity, self._entity)
            and not count_scheduled(entity, snapshot)
            and needs_resources_only(entity, snapshot, self._policy)
            and not self._ends.has_end_between(self._planned_at - OVERDUE_SECONDS, now)
        ):
            return False
        differs = (snapshot.requested != self._requested).any(axis=1)
        changed = set(np.flatnonzero(differs).tolist())
        changed |= {snapshot.index[name] for name in self._ends.touched if name in snapshot.index}
        if len(changed) > _MAX_CHANGED or not changed.isdisjoint(self._rows):
            return False
        for row in changed:
            before, at, last_end = self._count_on(snapshot, row, now)
            if at and (-last_end, row) < self._last_used:
                return False
            self._total_before += before - self._before[row]
            self._total_at += at - self._at[row]
            self._before[row], self._at[row] = before, at
            self._requested[row] = snapshot.requested[row]
        self._planned_at = now
        self._ends.touched.clear()
        return bool(self._total_before < entity.quorum <= self._total_at)

    def _count_on(self, snapshot: Snapshot, row: int, now: float) -> tuple[int, int, float]:
        """Count the members that fit on a node before and at the start; with the last end till it.

        The last end is `-inf` if no pod ends there until the start.
        """
        before: IntArray = snapshot.allocatable[row] - snapshot.requested[row]
        at, last_end, slots = before.copy(), -inf, self._ends.slots_on(row)
        ends, amounts = self._ends.ends(slots).tolist(), self._ends.amounts(slots)[:, :-2]
        for end, released in zip(ends, amounts, strict=True):
            time = max(end, now) if end >= now - OVERDUE_SECONDS else inf
            if time <= self._start:
                at += released
                last_end = max(last_end, time)
            if time < self._start:
                before = before + released
        return self._growth.count_on(row, before), self._growth.count_on(row, at), last_end


def needs_resources_only(entity: Entity, snapshot: Snapshot, policy: SchedulerPolicy) -> bool:
    """Whether members are equal, and each node that has enough resources takes them."""
    first, group, pods = entity.members[0].shape, entity.group, snapshot.pod_index
    has_others = first.has_peer_constraints or first.has_claims or first.has_volumes or first.ports
    has_peers = pods.existing_terms or (pods.services and policy.spread_defaults.spreads)
    has_topology = entity.topology_key or (
        group is not None and TOPOLOGY_ANNOTATION in group.metadata.annotations
    )
    return (
        not (entity.children or has_others or has_peers or has_topology)
        and policy.has_default_filters
        and all(member.shape is first or member.shape == first for member in entity.members)
    )


def _is_same(entity: Entity, other: Entity) -> bool:
    """Whether nothing that a plan reads of an entity has changed."""
    return (
        entity.group is other.group
        and len(entity.members) == len(other.members)
        and not entity.other_members
        and all(one.pod is two.pod for one, two in zip(entity.members, other.members, strict=True))
    )
