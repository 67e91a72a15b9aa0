"""Plans one reservation: the earliest time at which an entity fits, and where.

    known ends 09:10  09:20  09:20  09:45     bisect: at which end do enough pods have ended?
    fits        no     no     yes    yes      expected start 09:20
    no time     every pod that ends is gone: does it fit then?   drain: no expected start
                                             no: no reservation

An estimate by capacity finds the time, and placing the entity with the code of the cycle confirms
it, so that topology, affinity, trees of groups, devices and volumes are respected.

With an expected start, the nodes that become free last are taken, so that nodes that are free now
stay open for others: on equal nodes this is EASY backfill. Without one, the nodes that are free now
are taken first, and the nodes change whenever others come nearer. What is free of them is kept, so
that the room that is missing never grows and the entity starts in the end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from phalanx.api.meta import Key
from phalanx.scheduler.cluster.hypothetical import with_changes
from phalanx.scheduler.cluster.snapshot import BoolArray, IntArray, Snapshot, label_value
from phalanx.scheduler.entity import Entity, EntityRejection
from phalanx.scheduler.group_tree_placement import place_required
from phalanx.scheduler.placement.capacity_estimate import count_needed
from phalanx.scheduler.placement.claim_placement import (
    find_gone_consumers,
    resolve_claims,
    with_nominated_pods,
)
from phalanx.scheduler.placement.group_placement import (
    Assignment,
    GroupPlacement,
    PlacementContext,
    to_assigned_pods,
    to_bindings,
)
from phalanx.scheduler.placement.node_scores import node_scores_of
from phalanx.scheduler.placement.volume_placement import resolve_volumes
from phalanx.scheduler.plugins.plugin import StaticScore
from phalanx.scheduler.plugins.reservation import ReservationMode
from phalanx.scheduler.policy import SchedulerPolicy, WeightedScore
from phalanx.scheduler.reservation.pod_ends import FloatArray, amounts_per_node
from phalanx.scheduler.reservation.reservation import (
    KeptAmount,
    Reservation,
    ReservationOrder,
)
from phalanx.scheduler.reservation.run_times import RunTimes
from phalanx.scheduler.search.solver import NO_SOLVER_ANSWER, SolverRequest, Steps

#: A pod that runs longer than expected is expected to end now for so many seconds, then its end is
#: unknown.
OVERDUE_SECONDS = 30.0
#: How many times are tried by placing the entity, after the estimate.
_MAX_TRIALS = 8
#: How many topology domains are tried for a reservation without an expected start.
_MAX_DOMAINS = 4
#: How many objects `waits_for` names.
_MAX_NAMES = 8


class ReservationRequest(NamedTuple):
    """An entity that may get a reservation, and the one that it had in the last plan."""

    entity: Entity
    order: ReservationOrder
    policy: SchedulerPolicy
    previous: Reservation | None = None


class _Plan(NamedTuple):
    """Where the entity fits, and when (`inf`: unknown)."""

    start: float
    assignments: Sequence[Assignment]


class ReservationPlanner:
    """Plans the reservations of one pass, in order: each beside those that were planned before."""

    def __init__(
        self,
        snapshot: Snapshot,
        run_times: RunTimes,
        now: float,
        *,
        reserved: frozenset[Key] = frozenset(),
    ) -> None:
        #: The pods of the reservations of the last plan: their nominations follow from the plan.
        self._reserved = reserved
        self._real, self._base, self._run_times, self._now = snapshot, snapshot, run_times, now
        self._ends = run_times.ends
        self._ends.align(snapshot)
        #: What earlier reservations of this pass need on each node, and their pods.
        self._earlier: dict[int, IntArray] = {}
        self._reserved_pods: list[Key] = []
        self._is_sorted = False

    def _sort_ends(self, excluded: Iterable[Key] = ()) -> None:
        """Sort the pods that end, the earliest first; those with an unknown end come last."""
        slots = self._ends.slots(excluded)
        times, now = self._ends.ends(slots), self._now
        times = np.where(times < now - OVERDUE_SECONDS, np.inf, np.maximum(times, now))
        order = np.argsort(times, kind="stable")
        self._slots: IntArray = slots[order]
        self._times: FloatArray = times[order]
        self._known = int(np.searchsorted(self._times, np.inf))

    def close(self) -> None:
        """End the pass: reserved entities no longer count as running."""
        for key in self._reserved_pods:
            self._ends.remove(key)

    def plan(self, request: ReservationRequest) -> Steps[Reservation | None]:
        """Plan a reservation; None if the entity cannot run even if all pods that end are gone."""
        running = [pod.metadata.key for pod in request.entity.other_members]
        if running or not self._is_sorted:
            # Members that run already do not end before the others start.
            self._sort_ends(running)
        entity = resolve_claims(request.entity, self._base)
        entity = resolve_volumes(entity, self._base, request.policy)
        request = request._replace(entity=entity)
        # Pods that are gone free their devices even if the claims do not say so yet.
        base = with_changes(self._base, gone_consumers=find_gone_consumers(entity, self._base))
        plan = yield from self._find_start(request, base)
        if plan is None:
            plan = yield from self._drain(request, base)
        reservation = self._build(request, plan) if plan is not None else None
        if plan is not None:
            self._add(request.entity, plan)
        self._is_sorted = not running and plan is None
        return reservation

    def _add(self, entity: Entity, plan: _Plan) -> None:
        """Let the entity count as running, from now on, for the reservations that follow."""
        pods = to_assigned_pods(plan.assignments, self._real.names)
        self._base = with_changes(self._base, added=tuple(pods))
        for i, amounts in self._amounts(plan.assignments).items():
            self._earlier[i] = self._earlier.get(i, 0) + amounts
        end = self._run_times.end_after(entity, plan.start)
        if end is not None:
            for pod in pods:
                self._ends.set(pod.key, pod.node, pod.shape, end=end)
                self._reserved_pods.append(pod.key)

    # ---- with an expected start ----------------------------------------------------------------

    def _find_start(self, request: ReservationRequest, base: Snapshot) -> Steps[_Plan | None]:
        """Find the first time at which enough pods have ended by their known ends."""
        # Other nominated pods start before the entity does, and when they end is unknown.
        entity = request.entity
        own = self._reserved.union(entity.pod_keys)
        base = with_nominated_pods(base, entity.priority, own)
        estimate = _FitEstimate(request.entity, base, request.policy)
        low, high = 0, self._known
        requested = base.requested.copy()
        if not estimate.is_sufficient(requested - self._released(0, high)):
            return None
        # The smallest number of ended pods that the estimate accepts is in (low, high], or 0.
        if estimate.is_sufficient(requested):
            high = 0
        while high - low > 1:
            middle = (low + high) // 2
            released = self._released(low, middle)
            if estimate.is_sufficient(requested - released):
                high = middle
            else:
                low, requested = middle, requested - released
            yield middle
        first = self._whole_step(high)
        plan = yield from self._place_after(request, base, first)
        trials, low, high = 1, first, self._known
        while plan is None and low < high and trials < _MAX_TRIALS:
            # The estimate was too optimistic. Probe upwards in doubling steps, then stop.
            low = self._whole_step(min(high, max(low + 1, low + (1 << trials))))
            plan = yield from self._place_after(request, base, low)
            trials += 1
        if plan is None and low < self._known:
            plan = yield from self._place_after(request, base, self._known)
        return None if plan is None else (yield from self._keep_start(request, base, plan))

    def _whole_step(self, count: int) -> int:
        """Extend a number of ended pods by those that end at the same time as the last one."""
        if not count:
            return 0
        return int(np.searchsorted(self._times[: self._known], self._times[count - 1], "right"))

    def _place_after(
        self,
        request: ReservationRequest,
        base: Snapshot,
        count: int,
        *,
        nodes: IntArray | None = None,
    ) -> Steps[_Plan | None]:
        """Place the entity after the first pods have ended, on the nodes that are free last."""
        slots = self._slots[:count]
        release = np.full(len(self._real), -np.inf)
        np.maximum.at(release, self._ends.rows(slots), self._times[:count])
        # Nodes that become free at the same time have the same rank.
        _, ranks = np.unique(release, return_inverse=True)
        snapshot = self._without(base, slots, request.entity)
        found = yield from _place(request, snapshot, ranks, nodes=nodes)
        start = float(self._times[count - 1]) if count else self._now
        return _Plan(start, found) if found else None

    def _without(self, base: Snapshot, slots: IntArray, entity: Entity) -> Snapshot:
        """Return the snapshot as if pods had ended, with all that the entity may then use."""
        has_claims = any(one.shape.has_claims or one.shape.has_volumes for one in entity.members)
        return self._ends.without(base, slots, has_peers=_has_peers(entity), has_claims=has_claims)

    def _keep_start(self, request: ReservationRequest, base: Snapshot, plan: _Plan) -> Steps[_Plan]:
        """Keep the nodes of the last plan if the new one would start later."""
        previous, index = request.previous, self._real.index
        start = previous.expected_start if previous else None
        if previous is None or start is None or not self._now <= start < plan.start:
            return plan
        rows = sorted({index[node] for node in previous.nodes if node in index})
        count = int(np.searchsorted(self._times[: self._known], start, "right"))
        kept = yield from self._place_after(request, base, count, nodes=np.array(rows, np.int64))
        return plan if kept is None else kept

    # ---- without an expected start -------------------------------------------------------------

    def _drain(self, request: ReservationRequest, base: Snapshot) -> Steps[_Plan | None]:
        """Place the entity as if all pods that end were gone, on the nodes that are free first."""
        entity, policy = request.entity, request.policy
        final = self._without(base, self._slots, entity)
        estimate = _FitEstimate(entity, base, policy)
        if not estimate.is_sufficient(final.requested):
            return None
        free_now = estimate.capacity(base.requested)
        plans: list[_Plan] = []
        for nodes in self._preferred_nodes(request, free_now):
            found = yield from _place(request, final, free_now, nodes=nodes)
            if found:
                plans.append(_Plan(np.inf, found))
                break
        previous, index = request.previous, self._real.index
        if previous is not None:
            rows = sorted({index[node] for node in previous.nodes if node in index})
            nodes = np.array(rows, np.int64)
            found = yield from _place(request, final, free_now, nodes=nodes)
            if found:
                plans.append(_Plan(np.inf, found))
        if not plans:
            found = yield from _place(request, final, free_now, allows_search=True)
            return _Plan(np.inf, found) if found else None
        return min(plans, key=lambda plan: self._missing(plan.assignments))

    def _preferred_nodes(
        self, request: ReservationRequest, free_now: IntArray
    ) -> list[IntArray | None]:
        """Return the topology domains that hold most members now, then all nodes."""
        key = request.entity.topology_key
        if not key:
            return [None]
        domains = self._real.domains(key)
        inside = domains.ids >= 0
        free = np.bincount(domains.ids[inside], free_now[inside], domains.size)
        best = np.argsort(-free, kind="stable")[:_MAX_DOMAINS].tolist()
        return [*(domains.nodes(number) for number in best), None]

    # ---- the result ----------------------------------------------------------------------------

    def _build(self, request: ReservationRequest, plan: _Plan) -> Reservation:
        previous, start = request.previous, None if plan.start == np.inf else plan.start
        missing = self._missing(plan.assignments)
        has_progress = (
            previous is None
            or start is not None
            or previous.expected_start is not None
            or missing < previous.missing
        )
        kept, waits_for = self._kept(request, plan)
        key = next(
            (group.topology_key for group in request.entity.groups if group.topology_key), ""
        )
        return Reservation(
            request.order,
            start,
            tuple(to_bindings(plan.assignments, self._real.names)),
            kept,
            reserved_at=previous.reserved_at if previous else self._now,
            progress_at=self._now if has_progress or previous is None else previous.progress_at,
            missing=missing,
            is_strict=request.policy.reservation.mode == ReservationMode.STRICT,
            waits_for=waits_for,
            groups=tuple(leaf.key for leaf in request.entity.leaves),
            topology_key=key,
            domains=self._count_domains(plan.assignments, key),
        )

    def _count_domains(
        self, assignments: Sequence[Assignment], key: str
    ) -> tuple[tuple[str, int], ...]:
        """Count the nodes of each value of a topology key; the largest first."""
        rows = sorted({one.node for one in assignments}) if key else ()
        values = (label_value(self._real.labels[i], key) or "" for i in rows)
        return tuple(Counter(values).most_common(_MAX_NAMES))

    def _kept(
        self, request: ReservationRequest, plan: _Plan
    ) -> tuple[tuple[KeptAmount, ...], tuple[str, ...]]:
        """Return what the reservation keeps on its nodes, and the objects that must end."""
        snapshot, needs = self._real, self._amounts(plan.assignments)
        rows = np.zeros(len(snapshot), bool)
        rows[list(needs)] = True
        ending = self._slots[: int(np.searchsorted(self._times, plan.start, "right"))]
        ending = self._ends.on_rows(ending, rows)
        released = self._ends.released(ending, len(snapshot))
        # Ports and constraints between pods are kept by keeping others off the node.
        is_exclusive = _has_peers(request.entity)
        kept = []
        for i, amounts in sorted(needs.items()):
            amounts = amounts + self._earlier.get(i, 0) - released[i, :-2]
            if is_exclusive:
                amounts = np.maximum(amounts, snapshot.allocatable[i])
            kept += [
                KeptAmount(snapshot.names[i], resource, int(amounts[column]))
                for resource, column in snapshot.columns.items()
                if amounts[column]
            ]
        ends = dict(zip(self._ends.keys(ending), self._ends.ends(ending).tolist(), strict=True))
        # Equal ends are ordered by name: the same cluster gives the same message.
        last_first = sorted(ends, key=lambda key: (-ends[key], key))
        names = [self._run_times.owner_of(key) for key in last_first]
        return tuple(kept), tuple(list(dict.fromkeys(names))[:_MAX_NAMES])

    def _missing(self, assignments: Sequence[Assignment]) -> float:
        """Measure what the entity needs on its nodes and is not free: 1.0 is all of a resource."""
        needs = self._amounts(assignments)
        rows = list(needs)
        needed = np.array([needs[i] for i in rows])
        free = np.maximum((self._real.allocatable - self._real.requested)[rows], 0)
        lacking = np.maximum(needed - free, 0).sum(axis=0)
        return float((lacking / np.maximum(needed.sum(axis=0), 1)).sum())

    def _amounts(self, assignments: Sequence[Assignment]) -> dict[int, IntArray]:
        return amounts_per_node(self._real, [(one.node, one.member.shape) for one in assignments])

    def _released(self, first: int, last: int) -> IntArray:
        """Sum what the pods between two positions release, by node and resource."""
        return self._ends.released(self._slots[first:last], len(self._real))[:, :-2]


class _FitEstimate:
    """An upper bound of how many members fit, by the requested amounts of each node."""

    def __init__(self, entity: Entity, snapshot: Snapshot, policy: SchedulerPolicy) -> None:
        self._allocatable = snapshot.allocatable
        self._needed = count_needed(entity, snapshot)
        key = entity.topology_key
        self._domains: IntArray = (
            snapshot.domains(key).ids if key else np.zeros(len(snapshot), np.int64)
        )
        counts: dict[object, int] = {}
        for member in entity.members:
            counts[member.shape] = counts.get(member.shape, 0) + 1
        self._shapes: list[tuple[BoolArray, list[tuple[int, int]], int]] = []
        for shape in dict.fromkeys(member.shape for member in entity.members):
            request = shape.request_vector(snapshot.columns)
            allowed = node_scores_of(snapshot, policy, shape).allowed_nodes & (self._domains >= 0)
            if request.has_unknown_resource:
                allowed = np.zeros(len(snapshot), bool)
            self._shapes.append((allowed, list(request.amounts), counts[shape]))

    def capacity(self, requested: IntArray) -> IntArray:
        """Return how many members each node holds, as if shapes did not compete."""
        free = np.maximum(self._allocatable - requested, 0)
        total = np.zeros(len(free), np.int64)
        for allowed, amounts, count in self._shapes:
            capacity = np.where(allowed, count, 0)
            for column, amount in amounts:
                if amount:
                    capacity = np.minimum(capacity, free[:, column] // amount)
            total += capacity
        return total

    def is_sufficient(self, requested: IntArray) -> bool:
        """Whether enough members may fit in one domain."""
        capacity, inside = self.capacity(requested), self._domains >= 0
        if not inside.any():
            return False
        return bool((np.bincount(self._domains[inside], capacity[inside]) >= self._needed).any())


def _has_peers(entity: Entity) -> bool:
    """Whether members have ports or constraints on other pods."""
    return any(one.shape.has_peer_constraints or one.shape.ports for one in entity.members)


def _place(
    request: ReservationRequest,
    snapshot: Snapshot,
    ranks: IntArray,
    *,
    nodes: IntArray | None = None,
    allows_search: bool = False,
) -> Steps[Sequence[Assignment]]:
    """Place what the entity needs, on the nodes with the highest ranks; empty if it does not fit.

    The exact solver is never asked.
    """
    score = StaticScore(lambda snapshot, shape: ranks)
    policy = replace(request.policy, scores=(WeightedScore("Reservation", 1, score),))
    context = PlacementContext(snapshot, policy, nodes=nodes, allows_search=allows_search)
    steps, answer = place_required(request.entity, context), None
    while True:
        try:
            step = steps.send(answer)
        except StopIteration as end:
            result = end.value
            break
        answer = NO_SOLVER_ANSWER if isinstance(step, SolverRequest) else None
        yield 1
    if isinstance(result, EntityRejection) or not result.is_feasible:
        return ()
    if isinstance(result, GroupPlacement):
        result.trim_to_quorum()
    found: Sequence[Assignment] = result.assignments
    return found
