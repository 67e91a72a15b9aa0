"""What ending pods release on each node, what reserved pods take, and how many members fit when.

    EndTimeline      n1   09:10 a-0 releases 2 CPUs    09:20 b-0 releases 2 CPUs
                     n7   inf   c-0 releases 8 CPUs            it will end, but its end is unknown
    ReservedPods     n1   from 10:00 to 12:00 d-0 takes 4 CPUs
    CapacityGrowth   for members of 4 CPUs:  n1 from 09:20 on 1,  n7 at an unknown time 2
                     beside d-0, if they run for 40 minutes at most:  n1 from 09:20 on 1
                     beside d-0, if they run for an hour:             n1 from 12:00 on 1

The estimate is never too low: constraints between pods are left out of account, and the planner
confirms a time by placing the entity.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from phalanx.api.meta import Key
from phalanx.scheduler.cluster.snapshot import BoolArray, IntArray, Snapshot
from phalanx.scheduler.entity import Entity
from phalanx.scheduler.placement.node_scores import node_scores_of
from phalanx.scheduler.policy import SchedulerPolicy
from phalanx.scheduler.reservation.pod_ends import FloatArray, PodEnds
from phalanx.scheduler.reservation.reservation import IMMINENT_SECONDS

#: How many times before earlier reservations are estimated at most.
_MAX_TIMES = 128


class EndTimeline:
    """Pods that end, ordered by node and then by time."""

    def __init__(self, ends: PodEnds, slots: IntArray, times: FloatArray, *, size: int) -> None:
        rows = ends.rows(slots)
        order = np.lexsort((times, rows))
        self.slots: IntArray = slots[order]
        self.rows: IntArray = rows[order]
        self.times: FloatArray = times[order]
        #: What the pods before each position release together, and the first position of each node.
        amounts = ends.amounts(self.slots)
        self.sums: IntArray = np.zeros((len(slots) + 1, amounts.shape[1]), np.int64)
        np.cumsum(amounts, axis=0, out=self.sums[1:])
        self.first: IntArray = np.searchsorted(self.rows, np.arange(size))
        self._ends, self._size = ends, size

    def _stops(self, time: float) -> IntArray:
        """Return the first position of each node whose pod ends after a time."""
        ended = self.rows[self.times <= time]
        return self.first + np.bincount(ended, minlength=self._size)

    def released(self, time: float, nodes: IntArray | None = None) -> IntArray:
        """Sum what the pods that end until a time release, on all nodes or on each of some."""
        first, stops = self.first, self._stops(time)
        if nodes is not None:
            first, stops = first[nodes], stops[nodes]
        has_ended = np.flatnonzero(stops > first)
        released: IntArray = np.zeros((len(first), self.sums.shape[1]), np.int64)
        released[has_ended] = self.sums[stops[has_ended]] - self.sums[first[has_ended]]
        return released

    def last_ends(self, time: float) -> FloatArray:
        """Return the last end on each node until a time; `-inf` if no pod ends there."""
        stops = self._stops(time)
        has_ended = stops > self.first
        found = np.full(self._size, -np.inf)
        found[has_ended] = self.times[stops[has_ended] - 1]
        return found

    def ended(self, time: float, nodes: IntArray | None = None) -> IntArray:
        """Return the slots of the pods that end until a time, on all nodes or on some."""
        has_ended = self.times <= time
        if nodes is not None:
            is_here = np.zeros(self._size, bool)
            is_here[nodes] = True
            has_ended &= is_here[self.rows]
        return self.slots[has_ended]

    def find_changes(self, times: FloatArray, nodes: BoolArray) -> _Changes:
        """Return what the pods on some nodes release at times."""
        numbers = np.searchsorted(times, self.times)
        chosen = np.flatnonzero(nodes[self.rows] & (numbers < len(times)))
        amounts = self._ends.amounts(self.slots[chosen])
        return _Changes(numbers[chosen], self.rows[chosen], amounts)

    def on_nodes(self, others: Sequence[EndTimeline], nodes: BoolArray) -> EndTimeline:
        """Merge the pods of this and other timelines on some nodes."""
        parts = [(one, nodes[one.rows]) for one in (self, *others)]
        slots = np.concatenate([one.slots[chosen] for one, chosen in parts])
        times = np.concatenate([one.times[chosen] for one, chosen in parts])
        return EndTimeline(self._ends, slots, times, size=self._size)


class ReservedPods:
    """The pods of earlier reservations: they occupy their nodes from their start to their end."""

    def __init__(self, ends: PodEnds, *, size: int) -> None:
        self._ends, self._size = ends, size
        self.slots: IntArray = np.empty(0, np.int64)
        #: When they start; `-inf` if that is unknown, so that nothing can end before.
        self.starts: FloatArray = np.empty(0)
        #: The last times that were examined for equal entities: by capacity, nominated pods that
        #: count, number and seconds.
        self._last_examined: dict[tuple[CapacityGrowth, frozenset[Key], int, float], float] = {}

    def __bool__(self) -> bool:
        return bool(len(self.slots))

    def add(self, keys: Iterable[Key], start: float) -> None:
        """Add the pods of a reservation. Those that never end count as running."""
        slots = self._ends.slots_of(keys)
        starts = np.full(len(slots), start if start < np.inf else -np.inf)
        self.slots = np.concatenate((self.slots, slots))
        self.starts = np.concatenate((self.starts, starts))

    def find_slots_after(self, time: float) -> IntArray:
        """Return the slots of the pods that start after a time."""
        return self.slots[self.starts > time]

    def find_slots_apart(self, start: float, end: float) -> IntArray:
        """Return the slots of the pods that do not run beside an entity with this start and end.

        They start when the entity has ended, and are not about to start when it starts: nothing is
        backfilled then.
        """
        return self.slots[(self.starts >= end) & (self.starts > start + IMMINENT_SECONDS)]

    def find_changes(self, times: FloatArray, seconds: float) -> _Changes:
        """Return what the pods take and release for entities that start at times and run so long.

        From one of the times on, a pod no longer starts after the end of the entity
        (`find_slots_apart`); from another one on, it has ended.
        """
        taken = np.minimum(
            np.searchsorted(times + seconds, self.starts, side="right"),
            np.searchsorted(times + IMMINENT_SECONDS, self.starts, side="left"),
        )
        released = np.searchsorted(times, self.ends)
        runs = np.flatnonzero(taken < released)
        rows, amounts = self._ends.rows(self.slots[runs]), self._ends.amounts(self.slots[runs])
        return _Changes(
            np.concatenate((taken[runs], released[runs])),
            np.concatenate((rows, rows)),
            np.concatenate((-amounts, amounts)),
        )

    @property
    def ends(self) -> FloatArray:
        """When they end."""
        return self._ends.ends(self.slots)

    @property
    def is_on_node(self) -> BoolArray:
        """Whether any of them is on each node."""
        found = np.zeros(self._size, bool)
        found[self._ends.rows(self.slots)] = True
        return found

    def examine_times(
        self,
        growth: CapacityGrowth,
        running: Sequence[EndTimeline],
        snapshot: Snapshot,
        *,
        nominated: frozenset[Key],
        needed: int,
        seconds: float,
        between: tuple[float, float],
    ) -> Iterator[tuple[float, bool]]:
        """Yield times between two, and whether so many members may fit from then for some seconds.

        The members end before the reserved pods start, or fit beside them. `nominated` are the
        nominated pods that count as running in the snapshot.
        """
        key, (now, until) = (growth, nominated, needed, seconds), between
        unreserved = self.subtract_from(snapshot)
        # An equal entity that was planned before leaves no earlier time.
        begin = self._last_examined.get(key)
        if begin is None:
            begin = growth.first_time(running, unreserved, needed)
        if begin is None or begin >= until:
            return
        between, examined = (max(begin, now), until), 0
        for time, may_fit in growth.examine_times_beside(
            self, running, unreserved, needed=needed, seconds=seconds, between=between
        ):
            self._last_examined[key], examined = time, examined + 1
            yield time, may_fit
        if examined < _MAX_TIMES:
            self._last_examined[key] = until

    def subtract_from(self, snapshot: Snapshot) -> Snapshot:
        """Return the loads of a snapshot as if there were no reservations."""
        amounts = self.sum_amounts(self.slots)
        return self._ends.without(snapshot, self.slots, amounts, has_peers=False)

    def sum_amounts(self, slots: IntArray) -> IntArray:
        """Sum what some of the pods request on each node."""
        amounts = self._ends.amounts(slots)
        total: IntArray = np.zeros((self._size, amounts.shape[1]), np.int64)
        np.add.at(total, self._ends.rows(slots), amounts)
        return total


class _Changes(NamedTuple):
    """Amounts by which nodes change at some of a list of times.

    A number that is not in the list is that of no time: the change is left out.
    """

    numbers: IntArray
    rows: IntArray
    amounts: IntArray

    def split(self, count: int) -> Iterator[tuple[IntArray, IntArray]]:
        """Yield the rows and amounts of each of so many times."""
        order = np.argsort(self.numbers, kind="stable")
        bounds = np.searchsorted(self.numbers[order], np.arange(count + 1)).tolist()
        for first, stop in pairwise(bounds):
            chosen = order[first:stop]
            yield self.rows[chosen], self.amounts[chosen]


class _Growth(NamedTuple):
    """By how many members the capacity of a node grows at a time."""

    rows: IntArray
    times: FloatArray
    gains: IntArray


class CapacityGrowth:
    """How many members of an entity fit on each node, now and at each end of a pod.

    Computed for all nodes once. After that only nodes are looked at whose load differs, or on which
    pods of other reservations end: entities of equal shapes share one instance.
    """

    def __init__(self, entity: Entity, snapshot: Snapshot, policy: SchedulerPolicy) -> None:
        self._allocatable, key = snapshot.allocatable, entity.topology_key
        self._domains: IntArray = (
            snapshot.domains(key).ids if key else np.zeros(len(snapshot), np.int64)
        )
        #: Of each shape: the nodes that it may use, its amounts by column, its number of members.
        self._shapes: list[tuple[BoolArray, list[tuple[int, int]], int]] = []
        for shape, count in Counter(member.shape for member in entity.members).items():
            request = shape.request_vector(snapshot.columns)
            allowed = node_scores_of(snapshot, policy, shape).allowed_nodes & (self._domains >= 0)
            if request.has_unknown_resource:
                allowed = np.zeros(len(snapshot), bool)
            amounts = [(column, amount) for column, amount in request.amounts if amount]
            self._shapes.append((allowed, amounts, count))
        #: How the capacity grows with these loads, those without reserved and nominated pods.
        self._requested = snapshot.requested.copy()
        self._growth: _Growth | None = None

    def capacity(self, snapshot: Snapshot) -> IntArray:
        """Return how many members each node holds, as if shapes did not compete."""
        return self.count(self._allocatable - snapshot.requested)

    def count(self, free: IntArray) -> IntArray:
        """Count the members that each node holds if so much is left."""
        return self._count(np.arange(len(free)), free)

    def count_on(self, row: int, free: IntArray) -> int:
        """Count the members that one node holds if so much is left."""
        return int(self._count(np.array([row]), free[np.newaxis])[0])

    def _count(self, rows: IntArray, free: IntArray) -> IntArray:
        """Count the members that nodes hold that have so much left of each resource."""
        total = np.zeros(len(rows), np.int64)
        for allowed, amounts, count in self._shapes:
            capacity = np.where(allowed[rows], count, 0)
            for column, amount in amounts:
                np.minimum(capacity, np.maximum(free[:, column], 0) // amount, out=capacity)
            total += capacity
        return total

    def is_sufficient(self, snapshot: Snapshot, needed: int) -> bool:
        """Whether so many members may fit in one domain."""
        return bool((self._per_domain(snapshot) >= needed).any())

    def _per_domain(self, snapshot: Snapshot) -> IntArray:
        return self._sum_domains(self.capacity(snapshot))

    def _sum_domains(self, capacity: IntArray) -> IntArray:
        inside = self._domains >= 0
        return np.bincount(self._domains[inside], capacity[inside], 1).astype(np.int64)

    def first_time(
        self, timelines: Sequence[EndTimeline], snapshot: Snapshot, needed: int
    ) -> float | None:
        """Return the first end after which so many members may fit in one domain.

        `-inf`: they may fit now. None: not at any known end.
        """
        now = self._per_domain(snapshot)
        if (now >= needed).any():
            return -np.inf
        rows, times, gains = self._update(timelines, snapshot)
        domains = self._domains[rows]
        order = np.lexsort((times, domains))
        domains, times, gains = domains[order], times[order], gains[order]
        reached = np.cumsum(gains)
        # The sums go on from domain to domain.
        first = np.searchsorted(domains, domains)
        reached += now[domains] - (reached[first] - gains[first])
        found = times[reached >= needed]
        return float(found.min()) if len(found) and found.min() < np.inf else None

    def examine_times_beside(
        self,
        reserved: ReservedPods,
        running: Sequence[EndTimeline],
        snapshot: Snapshot,
        *,
        needed: int,
        seconds: float,
        between: tuple[float, float],
    ) -> Iterator[tuple[float, bool]]:
        """Yield times between two, and whether so many members may fit from then for some seconds.

        `snapshot` is without the reserved pods. Only their nodes may lose capacity: the members on
        these are counted again whenever a pod starts or ends there.
        """
        begin, until = between
        growth, is_shared = self._update(running, snapshot), reserved.is_on_node
        is_gain = ~is_shared[growth.rows]
        found = [reserved.ends, growth.times[is_gain]]
        found += [one.times[is_shared[one.rows]] for one in running]
        times = np.unique(np.concatenate(found))
        times = times[(times > begin) & (times < until)]
        times = np.append(begin, times[: _MAX_TIMES - 1])
        parts = [reserved.find_changes(times, seconds)]
        parts += [one.find_changes(times, is_shared) for one in running]
        changes = _Changes(*map(np.concatenate, zip(*parts, strict=True)))
        gains = _Changes(
            np.searchsorted(times, growth.times[is_gain]),
            growth.rows[is_gain],
            growth.gains[is_gain],
        )
        free = self._allocatable - snapshot.requested
        counts = self.count(free)
        for time, (rows, amounts), (others, gained) in zip(
            times.tolist(), changes.split(len(times)), gains.split(len(times)), strict=True
        ):
            np.add.at(free, rows, amounts[:, :-2])
            counts[rows] = self._count(rows, free[rows])
            np.add.at(counts, others, gained)
            yield time, bool((self._sum_domains(counts) >= needed).any())

    def _update(self, timelines: Sequence[EndTimeline], snapshot: Snapshot) -> _Growth:
        """Return how the capacity grows on all nodes with the loads of a snapshot."""
        main, others = timelines[0], timelines[1:]
        if self._growth is None:
            self._growth = self._grow(main, self._requested)
        differs = (self._requested != snapshot.requested).any(axis=1)
        for one in others:
            differs[one.rows] = True
        if not differs.any():
            return self._growth
        here = self._grow(main.on_nodes(others, differs), snapshot.requested)
        is_equal = ~differs[self._growth.rows]
        parts = zip(self._growth, here, strict=True)
        return _Growth(*(np.concatenate((old[is_equal], new)) for old, new in parts))

    def _grow(self, timeline: EndTimeline, requested: IntArray) -> _Growth:
        """Return when the capacity grows on the nodes of a timeline."""
        rows, sums, first = timeline.rows, timeline.sums, timeline.first
        free = self._allocatable - requested
        after = self._count(rows, free[rows] + (sums[1:] - sums[first[rows]])[:, :-2])
        before = np.roll(after, 1)
        is_first = first[rows] == np.arange(len(rows))
        before[is_first] = self._count(rows[is_first], free[rows[is_first]])
        grows = after > before
        return _Growth(rows[grows], timeline.times[grows], (after - before)[grows])
