"""Plans one reservation: the earliest time at which an entity fits, and where.

    known ends 09:10  09:20  09:20  09:45     at which end have enough pods ended?
    fits        no     no     yes    yes      expected start 09:20
    no time     every pod that ends is gone: does it fit then?   drain: no expected start
                                             no: no reservation

An estimate by capacity finds the time, and placing the entity with the code of the cycle confirms
it, so that topology, affinity, trees of groups, devices and volumes are respected.

With an expected start, the nodes that become free last are taken, so that nodes that are free now
stay open for others: on equal nodes this is EASY backfill. Without one, the nodes that are free now
are taken first, and the nodes change whenever others come nearer. What is free of them is kept, so
that the room that is missing never grows and the entity starts in the end.

A nominated pod counts as running from now on, whatever its priority: a preemptor was allowed to
evict pods because that delays no reservation, and a new plan must not take the room from it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from phalanx.api.meta import Key
from phalanx.scheduler.cluster.hypothetical import with_changes
from phalanx.scheduler.cluster.pod_index import AssignedPod
from phalanx.scheduler.cluster.snapshot import IntArray, Snapshot, label_value
from phalanx.scheduler.entity import Entity
from phalanx.scheduler.placement.capacity_estimate import count_needed
from phalanx.scheduler.placement.claim_placement import (
    find_gone_consumers,
    resolve_claims,
    resolve_volumes,
    with_device_nodes,
    with_nominated_pods,
)
from phalanx.scheduler.placement.group_placement import (
    Assignment,
    to_assigned_pods,
    to_bindings,
)
from phalanx.scheduler.plugins.settings_plugins import ReservationMode
from phalanx.scheduler.reservation.end_timeline import (
    CapacityGrowth,
    EndTimeline,
    ReservedPods,
)
from phalanx.scheduler.reservation.plan_basis import PlanBasis, needs_resources_only
from phalanx.scheduler.reservation.pod_ends import OVERDUE_SECONDS, amounts_per_node
from phalanx.scheduler.reservation.ranked_placement import place_by_rank, place_equal_members
from phalanx.scheduler.reservation.reservation import (
    KeptAmount,
    Reservation,
    ReservationOrder,
    ReservationRequest,
    starts_after_victims,
)
from phalanx.scheduler.reservation.reserved_claims import (
    find_reserved_claims,
    missing_devices,
    rank_by_free_devices,
)
from phalanx.scheduler.reservation.run_times import (
    MAX_NAMES,
    RunLimit,
    RunTimes,
    find_last_end,
    name_owner,
)
from phalanx.scheduler.search.solver import Steps

#: How many times are tried by placing the entity, after the estimate.
_MAX_TRIALS = 8
#: How many topology domains are tried for a reservation without an expected start.
_MAX_DOMAINS = 4


class _Plan(NamedTuple):
    """Where the entity fits, and when (`inf`: unknown)."""

    start: float
    assignments: Sequence[Assignment]
    #: What the entity needs on each node.
    needs: dict[int, IntArray]


class _PlanContext(NamedTuple):
    """The entity that is planned, and what its plan follows from."""

    request: ReservationRequest
    #: The cluster with the pods of earlier reservations, and with `nominated`.
    base: Snapshot
    growth: CapacityGrowth
    #: How long its members run at most; None if one of them may run for ever, or if there are no
    #: earlier reservations.
    limits: frozenset[RunLimit] | None
    #: The pods that run now, and the nominated ones; the pods of earlier reservations.
    running: tuple[EndTimeline, ...]
    reserved: tuple[EndTimeline, ...]
    #: The nominated pods that count as running.
    nominated: frozenset[Key] = frozenset()

    @property
    def ending(self) -> tuple[EndTimeline, ...]:
        """All pods that end."""
        return (*self.running, *self.reserved)

    def end_after(self, start: float) -> float:
        """Return when the entity has ended by its limits; `inf` without them."""
        end = find_last_end(self.limits, start)
        return np.inf if end is None else end


class ReservationPlanner:
    """Plans the reservations of one pass, in order: each beside those that were planned before."""

    def __init__(
        self,
        snapshot: Snapshot,
        run_times: RunTimes,
        now: float,
        *,
        reserved: frozenset[Key] = frozenset(),
        preemptors: Iterable[Entity] = (),
    ) -> None:
        #: The cluster as it is, and with the pods of earlier reservations of this pass.
        self._real, self._base = snapshot, snapshot
        self._run_times, self._now = run_times, now
        self._ends = run_times.ends
        self._ends.align(snapshot)
        #: What earlier reservations of this pass need on each node, and their pods.
        self._earlier: dict[int, IntArray] = {}
        self._reserved = ReservedPods(self._ends, size=len(snapshot))
        #: All pods that end.
        self._ending = self._timeline(self._ends.slots())
        #: The nominated pods, except those of the reservations of the last plan: their nominations
        #: follow from the plan.
        self._nominated = {
            key: pod for key, pod in snapshot.nominations.items() if key not in reserved
        }
        #: The nominated pods of entities whose victims hang, by the order of their entity.
        self._late: list[tuple[ReservationOrder, Key]] = []
        #: The pods that count as running in this pass only.
        self._added = self._add_nominated(preemptors) if self._nominated else {}
        self._growths: dict[Hashable, CapacityGrowth] = {}
        #: The reservation that was planned last. It counts for others from the next one on, and
        #: mostly there is none.
        self._last: tuple[_PlanContext, _Plan] | None = None

    def _timeline(self, slots: IntArray) -> EndTimeline:
        """Order pods by node and end; an unknown end is `inf`."""
        times, now = self._ends.ends(slots), self._now
        times = np.where(times < now - OVERDUE_SECONDS, np.inf, np.maximum(times, now))
        return EndTimeline(self._ends, slots, times, size=len(self._real))

    def _add_nominated(self, preemptors: Iterable[Entity]) -> dict[Key, str]:
        """Set the ends of nominated pods whose entity is known to end; returns their owners' names.

        The entity starts when its victims are gone.
        """
        found: dict[Key, str] = {}
        now, terminating = self._now, dict[str, list[AssignedPod]]()
        for pod in self._real.pod_index.terminating_pods():
            terminating.setdefault(pod.node, []).append(pod)
        for entity in preemptors:
            keys = [key for key in entity.pod_keys if key in self._nominated]
            nodes = dict.fromkeys(self._nominated[key].node for key in keys)
            leaving = [pod for node in nodes for pod in terminating.get(node, ())]
            start = starts_after_victims(leaving, now)
            if any(pod.is_overdue(now) for pod in leaving):
                order = ReservationOrder(-entity.priority, entity.ready_since, entity.ref)
                self._late += [(order, key) for key in keys]
            end = self._run_times.end_after(entity, start)
            if end is None or end == np.inf:
                continue
            for key in keys:
                pod = self._nominated[key]
                self._ends.set(key, pod.node, pod.shape, end=end)
                found[key] = name_owner(entity.members[0].pod)
        return found

    def close(self) -> None:
        """End the pass: reserved and nominated pods no longer count as running."""
        for key in self._added:
            self._ends.remove(key)

    def plan(self, request: ReservationRequest) -> Steps[Reservation | None]:
        """Plan a reservation; None if the entity cannot run even if all pods that end are gone."""
        if self._last is not None:
            last, self._last = self._last, None
            self._add(*last)
            yield 1
        plain = self._make_context(request)
        request = plain.request
        yield 1
        context = self._with_nominated(plain)
        plan = yield from self._find_start(context)
        previous = request.previous.expected_start if request.previous is not None else None
        is_delayed = previous is not None and (plan is None or plan.start > previous)
        if self._late and is_delayed:
            # The victims of a preemptor hang, so that it would end too late: it loses its room.
            for order, key in self._late:
                if order > request.order:
                    self._nominated.pop(key, None)
            context = self._with_nominated(plain)
            plan = yield from self._find_start(context)
        if plan is None and context.nominated:
            # Without a known start, nominated pods do not end before it.
            plan = yield from self._drain(plain._replace(base=context.base))
        if plan is None:
            plan = yield from self._drain(plain)
        if plan is None:
            return None
        if request.written_start is not None:
            # The scheduler knows more run times than the objects say.
            plan = plan._replace(start=max(request.written_start, self._now))
        self._last = (plain, plan)
        return (yield from self._build(plain, plan))

    def _make_context(self, request: ReservationRequest) -> _PlanContext:
        """Return what the plan for an entity is made from, without nominated pods."""
        running, ending = [pod.metadata.key for pod in request.entity.other_members], self._ending
        if running:
            # Members that run already do not end before the others start.
            ending = self._timeline(self._ends.slots([*running, *self._added]))
        entity = resolve_claims(request.entity, self._base)
        entity = resolve_volumes(entity, self._base, request.policy)
        request = request._replace(entity=entity)
        # Pods that are gone free their devices even if the claims do not say so yet.
        base = with_device_nodes(entity, self._base)
        base = with_changes(base, gone_consumers=find_gone_consumers(entity, base))
        return _PlanContext(
            request,
            base,
            self._find_growth(request, ending),
            self._run_times.find_limits(entity) if self._reserved else None,
            running=(ending,),
            reserved=(self._timeline(self._reserved.slots),) if self._reserved else (),
        )

    def basis(self) -> PlanBasis | None:
        """Return what the plan of the only reservation follows from; None if that is more.

        The members are equal and need nothing but resources, and start at a known time.
        """
        if self._last is None or self._earlier or self._nominated:
            return None
        context, plan = self._last
        request, snapshot = context.request, self._real
        entity = request.entity
        if (
            not self._now < plan.start < np.inf
            or count_needed(entity, snapshot) != entity.quorum
            or request.written_start is not None
            or not needs_resources_only(entity, snapshot, request.policy)
        ):
            return None
        return PlanBasis(
            entity,
            snapshot,
            request.policy,
            ends=self._ends,
            planned_at=self._now,
            start=plan.start,
            rows=plan.needs,
            growth=context.growth,
            timeline=self._ending,
        )

    def _add(self, context: _PlanContext, plan: _Plan) -> None:
        """Let the entity count as running, from now on, for the reservations that follow."""
        request = context.request
        entity, pods = request.entity, to_assigned_pods(plan.assignments, self._real.names)
        self._base = with_changes(self._base, added=tuple(pods))
        for i, amounts in plan.needs.items():
            self._earlier[i] = self._earlier.get(i, 0) + amounts
        for pod in pods:
            self._nominated.pop(pod.key, None)
        end = self._run_times.end_after(entity, plan.start)
        if end is None:
            return
        self._added |= dict.fromkeys((pod.key for pod in pods), name_owner(entity.members[0].pod))
        for pod in pods:
            self._ends.set(pod.key, pod.node, pod.shape, end=end)
        # A written start is not the one that follows from the ends that are known here.
        start = plan.start if request.written_start is None else np.inf
        self._reserved.add([pod.key for pod in pods], start)

    def _with_nominated(self, context: _PlanContext) -> _PlanContext:
        """Add the nominated pods, except those of the entity and of reservations.

        They start before the entity does, and may end before it starts.
        """
        own, base = context.request.entity.pod_keys, context.base
        others = [pod for key, pod in self._nominated.items() if key not in own]
        if not others:
            return context
        keys = frozenset(pod.key for pod in others)
        priority = min(pod.priority for pod in others)
        base = with_nominated_pods(base, priority, base.nominations.keys() - keys)
        running, slots = context.running, self._ends.slots_of(pod.key for pod in others)
        if len(slots):
            running = (*running, self._timeline(slots))
        return context._replace(base=base, running=running, nominated=keys)

    # ---- with an expected start ----------------------------------------------------------------

    def _find_start(self, context: _PlanContext) -> Steps[_Plan | None]:
        """Find the first time at which enough pods have ended by their known ends."""
        needed, plan = count_needed(context.request.entity, context.base), None
        time = context.growth.first_time(context.ending, context.base, needed)
        yield 1
        if time is not None:
            plan = yield from self._place_after(context, time)
            if plan is None:
                plan = yield from self._probe_later_times(context, time)
        if self._reserved and (plan is None or plan.start > self._now):
            earlier = yield from self._find_before_reserved(context, needed, plan=plan)
            plan = earlier or plan
        return None if plan is None else (yield from self._keep_start(context, plan))

    def _find_before_reserved(
        self, context: _PlanContext, needed: int, *, plan: _Plan | None
    ) -> Steps[_Plan | None]:
        """Find an earlier time if the entity declares to end before others need its nodes."""
        if context.limits is None:
            return None
        trials = 0
        for time, may_fit in self._reserved.examine_times(
            context.growth,
            context.running,
            context.base,
            nominated=context.nominated,
            needed=needed,
            seconds=context.end_after(self._now) - self._now,
            between=(self._now, plan.start if plan is not None else np.inf),
        ):
            yield 1
            if not may_fit:
                continue
            if (found := (yield from self._place_after(context, time))) is not None:
                return found
            trials += 1
            if trials == _MAX_TRIALS:
                break
        return None

    def _probe_later_times(self, context: _PlanContext, time: float) -> Steps[_Plan | None]:
        """Find the first later end at which the entity fits: the estimate was too optimistic.

        Probes in doubling steps, then the last end, then between the last two probes.
        """
        times = np.concatenate([one.times for one in context.ending])
        times = np.sort(times[(times > time) & (times < np.inf)])
        if not len(times):
            return None
        times = times[np.append(True, times[1:] > times[:-1])]
        # The entity does not fit at `failed`; it fits with `plan`, at `fits`.
        failed, fits, trials, plan = -1, -1, 1, None
        while plan is None:
            if failed == len(times) - 1:
                return None
            step = 1 << trials if trials < _MAX_TRIALS else len(times)
            fits = min(failed + step, len(times) - 1)
            plan = yield from self._place_after(context, float(times[fits]))
            failed, trials = (fits, trials + 1) if plan is None else (failed, trials)
        while fits - failed > 1:
            middle = (failed + fits) // 2
            found = yield from self._place_after(context, float(times[middle]))
            plan, failed, fits = (plan, middle, fits) if found is None else (found, failed, middle)
        return plan

    def _find_growth(self, request: ReservationRequest, running: EndTimeline) -> CapacityGrowth:
        """Return the capacity for an entity; equal entities share one."""
        shapes = Counter(member.shape for member in request.entity.members)
        key = tuple(shapes.items()), request.entity.topology_key, request.policy, running
        if key not in self._growths:
            self._growths[key] = CapacityGrowth(request.entity, self._real, request.policy)
        return self._growths[key]

    def _place_after(
        self, context: _PlanContext, time: float, *, nodes: IntArray | None = None
    ) -> Steps[_Plan | None]:
        """Place the entity after the pods that end until a time, on the nodes that are free last.

        `-inf`: nothing has ended.
        """
        last_ends = np.maximum.reduce([one.last_ends(time) for one in context.ending])
        # Nodes that become free at the same time have the same rank.
        _, ranks = np.unique(last_ends, return_inverse=True)
        snapshot = self._without_ended(context, time)
        yield 1
        found = yield from self._place(context, snapshot, ranks, nodes=nodes)
        return self._plan(max(time, self._now), found)

    def _place(
        self,
        context: _PlanContext,
        snapshot: Snapshot,
        ranks: IntArray,
        *,
        nodes: IntArray | None = None,
    ) -> Steps[Sequence[Assignment]]:
        """Place what the entity needs on the nodes with the highest ranks; empty if it cannot."""
        request = context.request
        found = place_equal_members(request, context.growth, snapshot, ranks=ranks, nodes=nodes)
        if found is None:
            found = yield from place_by_rank(request, snapshot, ranks, nodes=nodes)
        return found

    def _plan(self, start: float, found: Sequence[Assignment]) -> _Plan | None:
        """Return the plan to start on these nodes; None if the entity does not fit."""
        shapes = [(one.node, one.member.shape) for one in found]
        return _Plan(start, found, amounts_per_node(self._real, shapes)) if found else None

    def _without_ended(self, context: _PlanContext, time: float) -> Snapshot:
        """Return the snapshot at a time, with all that the entity may then use."""
        entity, start = context.request.entity, max(time, self._now)
        # Reserved pods that start when the entity has ended leave it their room.
        later = self._reserved.find_slots_apart(start, context.end_after(start))
        slots = np.concatenate([*(one.ended(time) for one in context.ending), later])
        released: IntArray = np.sum([one.released(time) for one in context.ending], axis=0)
        if len(later):
            released += self._reserved.sum_amounts(later)
        has_claims = any(one.shape.has_claims or one.shape.has_volumes for one in entity.members)
        return self._ends.without(
            context.base, slots, released, has_peers=_has_peers(entity), has_claims=has_claims
        )

    def _keep_start(self, context: _PlanContext, plan: _Plan) -> Steps[_Plan]:
        """Keep the nodes of the last plan if the new one would start later."""
        previous, index = context.request.previous, self._real.index
        start = previous.expected_start if previous else None
        if previous is None or start is None or not self._now <= start < plan.start:
            return plan
        rows = sorted({index[node] for node in previous.nodes if node in index})
        kept = yield from self._place_after(context, start, nodes=np.array(rows, np.int64))
        return plan if kept is None else kept

    # ---- without an expected start -------------------------------------------------------------

    def _drain(self, context: _PlanContext) -> Steps[_Plan | None]:
        """Place the entity as if all pods that end were gone, on the nodes that are free first."""
        request, base, growth = context.request, context.base, context.growth
        final = self._without_ended(context, np.inf)
        if not growth.is_sufficient(final, count_needed(request.entity, base)):
            return None
        free_now = growth.capacity(base)
        if any(member.shape.claims for member in request.entity.members):
            free_now = rank_by_free_devices(request.entity, base, free_now)
        plans: list[_Plan] = []
        for nodes in self._preferred_nodes(request, free_now):
            found = yield from self._place(context, final, free_now, nodes=nodes)
            if plan := self._plan(np.inf, found):
                plans.append(plan)
                break
        previous, index = request.previous, self._real.index
        if previous is not None:
            rows = sorted({index[node] for node in previous.nodes if node in index})
            nodes = np.array(rows, np.int64)
            found = yield from self._place(context, final, free_now, nodes=nodes)
            if plan := self._plan(np.inf, found):
                plans.append(plan)
        if not plans:
            found = yield from place_by_rank(request, final, free_now, allows_search=True)
            return self._plan(np.inf, found)
        return min(plans, key=self._missing)

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

    def _build(self, context: _PlanContext, plan: _Plan) -> Steps[Reservation]:
        request, start = context.request, None if plan.start == np.inf else plan.start
        previous = request.previous
        end = self._run_times.end_after(request.entity, plan.start)
        yield 1
        missing = self._missing(plan)
        has_progress = (
            previous is None
            or start is not None
            or previous.expected_start is not None
            or missing < previous.missing
        )
        key = next(
            (group.topology_key for group in request.entity.groups if group.topology_key), ""
        )
        kept = self._list_kept(context, plan)
        yield 1
        waits_for = self._name_awaited(context, plan)
        yield 1
        # How many of its nodes are in which topology domain, the largest domain first.
        rows = sorted({one.node for one in plan.assignments}) if key else ()
        domains = Counter(label_value(self._real.labels[i], key) or "" for i in rows)
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
            domains=tuple(domains.most_common(MAX_NAMES)),
            claims=find_reserved_claims(plan.assignments, self._real.names),
            needs=self._list_amounts(plan.needs),
            expected_end=None if end is None or end == np.inf else end,
        )

    def _list_kept(self, context: _PlanContext, plan: _Plan) -> tuple[KeptAmount, ...]:
        """List what the reservation keeps on its nodes, beside earlier ones that run then."""
        nodes = np.array(sorted(plan.needs), np.int64)
        released = np.sum([one.released(plan.start, nodes) for one in context.ending], axis=0)
        later = self._reserved.find_slots_after(plan.start)
        released += self._reserved.sum_amounts(later)[nodes]
        needs, earlier = plan.needs, self._earlier
        needed = [needs[i] + earlier.get(i, 0) for i in nodes.tolist()]
        amounts = np.array(needed) - released[:, :-2]
        # Ports and constraints between pods are kept by keeping others off the node.
        if _has_peers(context.request.entity):
            amounts = np.maximum(amounts, self._real.allocatable[nodes])
        return self._list_amounts(dict(zip(nodes.tolist(), amounts, strict=True)))

    def _list_amounts(self, amounts: Mapping[int, IntArray]) -> tuple[KeptAmount, ...]:
        """List amounts by node and resource, without zeros."""
        names, columns = self._real.names, self._real.columns
        return tuple(
            KeptAmount(names[i], resource, row[column])
            for i, row in ((i, amounts[i].tolist()) for i in sorted(amounts))
            for resource, column in columns.items()
            if row[column]
        )

    def _name_awaited(self, context: _PlanContext, plan: _Plan) -> tuple[str, ...]:
        """Name the objects that must end before the entity starts, the last one first."""
        nodes = np.array(sorted(plan.needs), np.int64)
        ending = np.concatenate([one.ended(plan.start, nodes) for one in context.ending])
        ends = zip(self._ends.keys(ending), self._ends.ends(ending).tolist(), strict=True)
        namespace = context.request.entity.ref.namespace
        return self._run_times.name_last(dict(ends), self._added, namespace)

    def _missing(self, plan: _Plan) -> float:
        """Measure what the entity needs on its nodes and is not free: 1.0 is all of a resource."""
        rows = list(plan.needs)
        needed = np.array(list(plan.needs.values()))
        free = np.maximum(self._real.allocatable[rows] - self._real.requested[rows], 0)
        lacking = np.maximum(needed - free, 0).sum(axis=0)
        resources = float((lacking / np.maximum(needed.sum(axis=0), 1)).sum())
        claims = find_reserved_claims(plan.assignments, self._real.names)
        return resources + missing_devices(self._real, claims)


def _has_peers(entity: Entity) -> bool:
    """Whether members have ports or constraints on other pods."""
    return any(one.shape.has_peer_constraints or one.shape.ports for one in entity.members)
