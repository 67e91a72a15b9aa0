"""ReservationTracker: which waiting entities get a reservation, and what they keep from others.

`SchedulerState` owns one. Between two cycles it plans again if something has changed:

    refused ─▶ waits afterSeconds ─▶ eligible, in order ─▶ planner ─▶ reservations ─▶ holds

The order is the priority, then the wait. An entity whose reservation stayed without an expected
start and came no nearer for `maxHoldSeconds` has had its turn: it is ordered behind all that wait
at that time. Reservations are planned in this order, each beside those before it, and a reservation
keeps room only from entities behind its own in the same order: no two wait for each other.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial
from heapq import heappop, heappush
from math import floor, inf
from typing import NamedTuple

from msgspec.structs import replace as but

from phalanx.api.batch import JobRunTime
from phalanx.api.core import Pod
from phalanx.api.meta import Key, ObjectMeta, Ref, pod_group_ref, pod_ref
from phalanx.scheduler.cluster.snapshot import Snapshot
from phalanx.scheduler.decision import Binding, Decision, Placed, Waiting, nominations_of
from phalanx.scheduler.entity import Entity
from phalanx.scheduler.plugins.settings_plugins import ReservationArgs, ReservationMode
from phalanx.scheduler.policy import Profiles
from phalanx.scheduler.reservation.plan_basis import PlanBasis
from phalanx.scheduler.reservation.planner import ReservationPlanner
from phalanx.scheduler.reservation.reservation import (
    IMMINENT_SECONDS,
    Reservation,
    ReservationHolds,
    ReservationOrder,
    ReservationRequest,
    ends_before,
)
from phalanx.scheduler.reservation.run_times import RunTimes
from phalanx.scheduler.search.solver import Steps

#: How many priority levels have a reservation at most (mode `Easy`).
MAX_LEVELS = 32
#: How many entities that cannot run even if all pods that end are gone a plan examines at most; the
#: next plan examines others. For how many seconds such an entity is not examined again.
MAX_INFEASIBLE, INFEASIBLE_SECONDS = 32, 60.0
#: How many preemptors are remembered; the nominated pods of others count as never ending.
MAX_PREEMPTORS = 1024


def next_review_time(after: float) -> float:
    """Return when reservations may be planned again after a time although nothing has happened.

    At whole seconds: the reviews do not depend on when a request has led to the last plan.
    """
    return floor(after) + 1.0 if after < inf else inf


class _WaitingEntity(NamedTuple):
    """A refused entity, in the order of reservations, with the arguments of its profile."""

    order: ReservationOrder
    ready_since: float
    args: ReservationArgs


class FreedRoom(NamedTuple):
    """What a plan no longer keeps from entities that reservations hold."""

    #: Whether a reservation has ended, or may keep room from other entities than before.
    is_any: bool
    #: Whether entities that differ in names and run times only may get different answers.
    concerns_each: bool
    #: The nodes on which less is kept.
    nodes: tuple[str, ...]


class Holders(NamedTuple):
    """The entities whose reservations keep room from another, and whether that declares its end."""

    refs: tuple[Ref, ...]
    has_limit: bool


NO_HOLDERS = Holders((), has_limit=False)

#: Returns the entity that waits under a name, as the queue has it; None if it does not wait.
EntityLookup = Callable[[Ref, float], Entity | None]


class ReservationTracker:
    """The reservations of one scheduler."""

    def __init__(self, profiles: Profiles) -> None:
        self._profiles, self.run_times = profiles, RunTimes()
        self.current: tuple[Reservation, ...] = ()
        #: What the reservations keep beside earlier nominated ones: by their entity and by those.
        self._beside_nominated: dict[tuple[Ref, tuple[Ref, ...]], Reservation] = {}
        #: The reservations that the last plan did not continue.
        self._dropped: tuple[Reservation, ...] = ()
        #: How often the reservations have changed.
        self.version = 0
        modes = {policy.reservation.mode for policy in profiles.policies.values()}
        self._is_enabled = modes != {ReservationMode.OFF}
        #: Whether every level of priority has one reservation at most.
        self._is_easy = modes <= {ReservationMode.EASY, ReservationMode.OFF}
        #: The refused entities.
        self._waiting: dict[Ref, _WaitingEntity] = {}
        #: Whether a tree of groups was refused: its groups are not in `_waiting` themselves.
        self._has_trees = False
        #: Those that have not waited long enough, as a heap by the time at which they have; and
        #: those that have, in order.
        self._not_yet_eligible: list[tuple[float, _WaitingEntity]] = []
        self._eligible: list[_WaitingEntity] = []
        #: The entities that have nominated nodes, the last one last.
        self._preemptors: dict[Ref, Entity] = {}
        #: When the last turn of an entity was over.
        self._turns: dict[Ref, float] = {}
        #: Until when an entity that cannot run is not examined again.
        self._infeasible: dict[Ref, float] = {}
        #: Whether the last plan ended at MAX_INFEASIBLE.
        self._has_unexamined = False
        self._is_changed, self._next_time = False, float("inf")
        #: What the last plan follows from, if it is easily compared, and whether anything else than
        #: the pods on nodes has changed since.
        self._basis: PlanBasis | None = None
        self._may_differ = False

    # ---- what happens --------------------------------------------------------------------------

    def observe_group(self, key: Key, meta: ObjectMeta | None) -> bool:
        """A PodGroup was created, changed or (None) deleted; whether run times have changed."""
        is_changed = self.run_times.observe_group(key, meta)
        if is_changed:
            self.observe_entity(pod_group_ref(key))
        return is_changed

    def observe_job(self, key: Key, job: JobRunTime | None) -> bool:
        """A Job was created, changed or (None) deleted; whether its limits have changed.

        `observe_entity` must follow for its waiting entities.
        """
        return self.run_times.observe_job(key, job)

    @property
    def has_waiting(self) -> bool:
        """Whether an entity waits that may get a reservation."""
        return bool(self._waiting)

    def observe_node(self) -> None:
        """A node was added, changed or removed."""
        self._infeasible.clear()
        self._note_change()

    def observe_entity(self, ref: Ref) -> None:
        """A group or a pending pod changed: its entity may be incomplete, or need other room.

        Nothing is planned for an entity that was not refused yet.
        """
        if ref in self._waiting or self._has_trees:
            self._note_change()

    def _note_change(self) -> None:
        """Something has changed that only a new plan can take into account."""
        self._is_changed = self._may_differ = True

    def observe_pending_pod(self, pod: Pod) -> None:
        """A pending pod was created or changed."""
        if self._waiting:
            self.observe_entity(
                pod_group_ref(pod.group) if pod.group else pod_ref(pod.metadata.key)
            )

    def note_decision(self, entity: Entity, decision: Decision, now: float) -> bool:
        """A decision was made; whether that ended a reservation."""
        if isinstance(decision, Placed):
            nodes = {pod: node for pod, _, node in decision.bindings}
            for member in entity.members:
                key = member.pod.metadata.key
                if node := nodes.get(key):
                    self.run_times.assume_pod(key, member.pod, node, now=now)
            self._is_changed = True
            return self._forget(entity.ref)
        if not self._is_enabled:
            return False
        self._note_preemptor(entity, decision)
        args = self._profiles.policy(entity).reservation
        # A preemptor whose victims terminate waits for room too: its nominations end with the first
        # attempt that finds other obstacles, its reservation does not.
        lacks_room = isinstance(decision, Waiting) and decision.lacks_quorum
        if args.mode == ReservationMode.OFF or not lacks_room:
            return self._forget(entity.ref)
        self._note_waiting(entity, args)
        return False

    def _note_preemptor(self, entity: Entity, decision: Decision) -> None:
        """Keep an entity with nominated nodes: a plan must know when it ends."""
        self._preemptors.pop(entity.ref, None)
        if nominations_of(decision):
            self._preemptors[entity.ref] = entity
            if len(self._preemptors) > MAX_PREEMPTORS:
                del self._preemptors[next(iter(self._preemptors))]

    def return_pods(self, pods: Iterable[Key], now: float) -> None:
        """Bindings failed: the pods are on no node."""
        for key in pods:
            self.run_times.observe_pod(key, None, now)
        self._note_change()

    def _note_waiting(self, entity: Entity, args: ReservationArgs) -> None:
        waiting = _WaitingEntity(self.order_of(entity), entity.ready_since, args)
        if self._waiting.get(entity.ref) != waiting:
            self._remove(entity.ref)
            self._waiting[entity.ref] = waiting
            self._has_trees |= entity.is_composite
            heappush(self._not_yet_eligible, (entity.ready_since + args.delay_seconds, waiting))

    def _forget(self, ref: Ref) -> bool:
        """The entity no longer waits; whether it had a reservation."""
        self._remove(ref)
        self._turns.pop(ref, None)
        self._infeasible.pop(ref, None)
        kept = tuple(one for one in self.current if one.ref != ref)
        is_reserved, self.current = len(kept) < len(self.current), kept
        self.version += is_reserved
        return is_reserved

    def _remove(self, ref: Ref) -> None:
        waiting = self._waiting.pop(ref, None)
        if waiting is None:
            return
        at = bisect_left(self._eligible, waiting)
        if self._eligible[at : at + 1] == [waiting]:
            del self._eligible[at]

    # ---- planning ------------------------------------------------------------------------------

    def is_due(self, now: float) -> bool:
        """Whether the reservations must be planned again."""
        if self._not_yet_eligible and self._not_yet_eligible[0][0] <= now:
            return True
        is_needed = bool(self._eligible or self.current)
        is_changed = self._is_changed or self.run_times.is_changed
        return is_needed and (is_changed or now >= self._next_time)

    def next_time(self) -> float | None:
        """Return when the reservations must be planned again even if nothing happens."""
        first = self._not_yet_eligible[0][0] if self._not_yet_eligible else float("inf")
        soonest = min(first, self._next_time if self._eligible else float("inf"))
        return None if soonest == float("inf") else soonest

    def plan(self, snapshot: Snapshot, lookup: EntityLookup, now: float) -> Steps[FreedRoom]:
        """Plan all reservations again; returns the room that others may now use."""
        yield from self.run_times.update()
        is_changed = self._is_changed or self.run_times.is_changed or now >= self._next_time
        before, self._is_changed, self.run_times.is_changed = self.current, False, False
        # A plan that is not carried through leaves no basis.
        basis, self._basis = None if self._may_differ else self._basis, None
        self._may_differ = False
        promoted = self._promote(now)
        if not is_changed and all(map(self._is_behind_reservation, promoted)):
            self._basis = basis
            return FreedRoom(is_any=False, concerns_each=False, nodes=())
        reserved = frozenset(pod for one in before for pod, _, _ in one.bindings)
        self._preemptors = {
            ref: entity
            for ref, entity in self._preemptors.items()
            if not entity.pod_keys.isdisjoint(snapshot.nominations)
        }
        if (
            basis is not None
            and snapshot.nominations.keys() <= reserved
            and (entity := self._find_reserved(lookup, now)) is not None
            and basis.still_holds(entity, snapshot, now)
        ):
            self._basis = basis
            self._keep_plan([but(before[0], progress_at=now)], now)
            return FreedRoom(is_any=False, concerns_each=False, nodes=())
        self._end_turns(now)
        planner = ReservationPlanner(
            snapshot,
            self.run_times,
            now,
            reserved=reserved,
            preemptors=self._preemptors.values(),
        )
        try:
            found = yield from self._plan_in_order(planner, lookup, now)
            self._basis = planner.basis() if len(found) == 1 else None
        finally:
            planner.close()
        self.run_times.ends.touched.clear()
        self._keep_plan(found, now)
        return _freed_room(before, found)

    def _keep_plan(self, found: Sequence[Reservation], now: float) -> None:
        """Replace the reservations by those of a plan."""
        before, self.current = self.current, tuple(found)
        self.version += self.current != before
        self._dropped = _without_successor(before, found)
        self._beside_nominated.clear()
        review_times = [self._review_time(one, now) for one in found]
        if found:
            # From then on the end of a pod is unknown.
            overdue_at = self.run_times.ends.next_overdue_time(now)
            review_times.append(next_review_time(overdue_at))
        if self._has_unexamined:
            review_times.append(next_review_time(now))
        self._next_time = min(review_times, default=float("inf"))

    def _find_reserved(self, lookup: EntityLookup, now: float) -> Entity | None:
        """Return the entity with the only reservation, if no other may get one in a new plan."""
        if not (self._is_easy and self._eligible and len(self.current) == 1) or self._infeasible:
            return None
        order, waiting = self.current[0].order, self._eligible[0]
        last = self._eligible[-1].order
        if waiting.order != order or last.negated_priority != order.negated_priority:
            return None
        entity = lookup(order.ref, now)
        return entity if entity and entity.ready_since == waiting.ready_since else None

    def restore(
        self, found: Sequence[Reservation], turns: Sequence[tuple[Ref, float]]
    ) -> FreedRoom:
        """Set reservations that were planned before; returns the room that others may now use."""
        before, self.current, self._turns = self.current, tuple(found), dict(turns)
        self.version += self.current != before
        self._dropped, self._basis = _without_successor(before, found), None
        self._beside_nominated.clear()
        return _freed_room(before, found)

    def _promote(self, now: float) -> list[_WaitingEntity]:
        """Make entities eligible that have waited long enough; returns them."""
        promoted = []
        while self._not_yet_eligible and self._not_yet_eligible[0][0] <= now:
            _, waiting = heappop(self._not_yet_eligible)
            if self._waiting.get(waiting.order.ref) is waiting:
                insort(self._eligible, waiting)
                promoted.append(waiting)
        return promoted

    def _is_behind_reservation(self, waiting: _WaitingEntity) -> bool:
        """Whether an entity gets no reservation because one of its level is before it."""
        level, order = waiting.order.negated_priority, waiting.order
        return waiting.args.mode == ReservationMode.EASY and any(
            one.order.negated_priority == level and one.order < order for one in self.current
        )

    def _end_turns(self, now: float) -> None:
        """Order entities behind the others that wait if their reservation comes no nearer."""
        for one in self.current:
            waiting = self._waiting.get(one.ref)
            if waiting is None or one.expected_start is not None:
                continue
            if now - one.progress_at >= waiting.args.max_hold_seconds:
                self._turns[one.ref] = now
                self._remove(one.ref)
                order = one.order._replace(since=now)
                waiting = waiting._replace(order=order)
                self._waiting[one.ref] = waiting
                insort(self._eligible, waiting)

    def _plan_in_order(
        self, planner: ReservationPlanner, lookup: EntityLookup, now: float
    ) -> Steps[list[Reservation]]:
        previous = {one.order: one for one in self.current}
        found: list[Reservation] = []
        levels: set[int] = set()
        infeasible, self._has_unexamined = 0, False
        for waiting in self._candidates(levels):
            order, mode = waiting.order, waiting.args.mode
            limit = waiting.args.depth if mode == ReservationMode.CONSERVATIVE else MAX_LEVELS
            self._has_unexamined = infeasible >= MAX_INFEASIBLE
            if len(found) >= limit or self._has_unexamined:
                break
            if mode == ReservationMode.EASY and order.negated_priority in levels:
                continue
            if self._infeasible.get(order.ref, now) > now:
                continue
            entity = lookup(order.ref, now)
            if entity is None or entity.ready_since != waiting.ready_since:
                self._forget(order.ref)
                continue
            policy, old = self._profiles.policy(entity), previous.get(order)
            made = yield from planner.plan(ReservationRequest(entity, order, policy, previous=old))
            if made is None:
                self._infeasible[order.ref] = now + INFEASIBLE_SECONDS
                infeasible += 1
                continue
            found.append(made)
            levels.add(order.negated_priority)
            if mode == ReservationMode.STRICT:
                break
        return found

    def _candidates(self, reserved_levels: Collection[int]) -> Iterator[_WaitingEntity]:
        """Yield the eligible entities in order; where it suffices, one of each level.

        Thousands may wait: those behind the reservation of their level are not visited. The caller
        may forget the entity at hand.
        """
        eligible, at = self._eligible, 0
        while at < len(eligible):
            waiting = eligible[at]
            level = waiting.order.negated_priority
            if self._is_easy and level in reserved_levels:
                at = bisect_right(eligible, level, at, key=lambda one: one.order.negated_priority)
                continue
            yield waiting
            if at < len(eligible) and eligible[at] is waiting:
                at += 1

    def _review_time(self, one: Reservation, now: float) -> float:
        """Return when a reservation must be planned again even if nothing happens."""
        waiting, start = self._waiting.get(one.ref), one.expected_start
        if start is not None:
            time = start - (0 if one.is_imminent(now) else IMMINENT_SECONDS)
        else:
            time = one.progress_at + (waiting.args.max_hold_seconds if waiting else 0)
        return max(time, next_review_time(now))

    # ---- what is kept --------------------------------------------------------------------------

    @property
    def turns(self) -> tuple[tuple[Ref, float], ...]:
        """The entities whose last turn is over, and since when."""
        return tuple(self._turns.items())

    def order_of(self, entity: Entity) -> ReservationOrder:
        """Return the position of an entity in the order of reservations."""
        since = max(entity.ready_since, self._turns.get(entity.ref, entity.ready_since))
        return ReservationOrder(-entity.priority, since, entity.ref)

    def has_limit(self, entity: Entity, now: float) -> bool:
        """Whether the entity declares when it ends, which matters beside reservations."""
        return bool(self.current) and self.run_times.declared_end(entity, now) is not None

    def is_before_equal(self, entity: Entity) -> bool:
        """Whether the entity has a reservation, or is before one of its priority in the order.

        The decision about an equal entity may then differ. All entities of one priority are on the
        same side of a reservation of another priority.
        """
        order = self.order_of(entity)
        return any(
            one.ref == entity.ref
            or (one.order.negated_priority == order.negated_priority and one.order >= order)
            for one in self.current
        )

    def entities_to_nominate(self, snapshot: Snapshot, now: float) -> list[Ref]:
        """Return the entities whose nominated nodes are not those of their reservation.

        Those that are about to start are nominated for its nodes, the others for none.
        """
        found = [
            one.ref
            for one in self.current
            if (
                not _is_nominated(one, snapshot)
                if one.is_imminent(now)
                else _has_nominations(one, snapshot)
            )
        ]
        return found + [one.ref for one in self._dropped if _has_nominations(one, snapshot)]

    def holder_finder(self, snapshot: Snapshot, now: float) -> Callable[[Entity], Holders | None]:
        """Return how to find whose reservations keep room from an entity, as `holds_for` does.

        None is found if the decision about an equal entity may differ (`is_before_equal`).
        """
        reservations = [
            (one.order, one, one.is_strict or bool(one.claims) or not _is_nominated(one, snapshot))
            for one in self.current
        ]

        def find(entity: Entity) -> Holders | None:
            if not reservations:
                return NO_HOLDERS
            order, before = self.order_of(entity), list[Reservation]()
            for other, one, keeps_room in reservations:
                if other < order:
                    if keeps_room:
                        before.append(one)
                elif other.negated_priority == order.negated_priority:
                    return None
            end = self.run_times.declared_end(entity, now)
            refs = tuple([one.ref for one in before if not ends_before(end, one)])
            return Holders(refs, end is not None)

        return find

    def holds_for(self, entity: Entity, snapshot: Snapshot, now: float) -> ReservationHolds | None:
        """Return what the reservations keep from an entity that is about to be decided."""
        if not self.current:
            return None
        order = self.order_of(entity)
        own = nominated = tuple[Binding, ...]()
        before: list[Reservation] = []
        behind: list[Reservation] = []
        counted: list[Reservation] = []
        for one in self.current:
            if one.ref == entity.ref:
                own, nominated = one.bindings, one.bindings if one.is_imminent(now) else ()
            elif one.order > order:
                behind.append(one)
            elif one.is_strict or not _is_nominated(one, snapshot):
                before.append(one)
            else:
                counted.append(one)
        if counted:
            before = [self._subtract_nominated(one, counted) for one in before]
            # Nominations keep the resources, but no devices that are about to be freed.
            before += [but(one, kept=(), needs=()) for one in counted if one.claims]
            before.sort(key=lambda one: one.order)
        for _ in self.run_times.update() if before else ():
            pass
        declared_end = partial(self.run_times.declared_end, entity)
        end = declared_end(now) if before else None
        backfilled = [one for one in before if ends_before(end, one)]
        avoided = [one for one in behind if not one.is_strict]
        return ReservationHolds(
            [one for one in before if one not in backfilled] if backfilled else before,
            self.run_times.ends,
            own=own,
            nominated=nominated,
            avoided=avoided,
            ignored=frozenset(pod for one in behind for pod, _, _ in one.bindings),
            backfilled=backfilled,
            declared_end=declared_end,
        )

    def _subtract_nominated(
        self, reservation: Reservation, nominated: Sequence[Reservation]
    ) -> Reservation:
        """Return what a reservation keeps beside nominated ones; computed once after each plan."""
        earlier = [one for one in nominated if one.order < reservation.order]
        key = reservation.ref, tuple([one.ref for one in earlier])
        found = self._beside_nominated.get(key)
        if found is None:
            found = self._beside_nominated[key] = reservation.subtract_nominated(earlier)
        return found


def _is_nominated(reservation: Reservation, snapshot: Snapshot) -> bool:
    """Whether the nominations of the reserved pods keep the room already.

    Nominations for the nodes of an earlier plan do not.
    """
    found = snapshot.nominations
    return all(pod in found and found[pod].node == node for pod, _, node in reservation.bindings)


def _has_nominations(reservation: Reservation, snapshot: Snapshot) -> bool:
    """Whether a reserved pod is nominated for a node."""
    return any(pod in snapshot.nominations for pod, _, _ in reservation.bindings)


def _without_successor(
    before: Sequence[Reservation], found: Sequence[Reservation]
) -> tuple[Reservation, ...]:
    """Return the reservations of entities that no longer have one."""
    refs = {one.ref for one in found}
    return tuple(one for one in before if one.ref not in refs)


def _freed_room(before: Sequence[Reservation], found: Sequence[Reservation]) -> FreedRoom:
    """Compare two plans: where the second one keeps less, or keeps it for later."""
    successors = {one.ref: one for one in found}
    is_any = concerns_each = False
    nodes: dict[str, None] = {}
    for old in before:
        new = successors.get(old.ref)
        if new is None:
            is_any = True
            continue
        was, start = old.expected_start, new.expected_start
        concerns_each |= new.order != old.order
        concerns_each |= start is not None and (was is None or start > was)
        kept = {(node, resource): amount for node, resource, amount in new.kept}
        for node, resource, amount in old.kept:
            if amount > max(kept.get((node, resource), 0), 0):
                nodes[node] = None
        if new.claims != old.claims:
            nodes |= dict.fromkeys(old.nodes)
    return FreedRoom(is_any or concerns_each, concerns_each, tuple(nodes))
