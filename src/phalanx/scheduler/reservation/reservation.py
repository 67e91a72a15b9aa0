"""Reservation: the nodes that are kept for one waiting entity, and from which others.

A reservation says where its entity will be placed and when that is expected. On each of its nodes
it keeps what the entity needs and what pods that end in time do not release:

    node n1   free 2, a pod of 4 ends before the expected start, the entity needs 6    keeps 2
    node n2   free 8, nothing ends, the entity needs 6                                 keeps 6

Devices and attach slots are kept too (`reserved_claims.py`).

An entity behind the reserved one may use the rest: it then fits now, and beside the reserved entity
at its expected start. An entity that ends before the expected start may use all of it (backfill).
Without an expected start nothing is backfilled.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from math import inf
from typing import NamedTuple

import numpy as np
from msgspec import Struct
from msgspec.structs import replace as but

from phalanx.api.meta import Key, Ref, parse_timestamp, timestamp
from phalanx.scheduler.cluster.pod_index import TERMINATION_SECONDS, AssignedPod
from phalanx.scheduler.cluster.snapshot import IntArray, Snapshot
from phalanx.scheduler.decision import Binding, ClaimReservation
from phalanx.scheduler.entity import Entity
from phalanx.scheduler.policy import SchedulerPolicy
from phalanx.scheduler.reservation.pod_ends import PodEnds, amounts_per_node
from phalanx.scheduler.reservation.reserved_claims import (
    ReservedClaims,
    contests_claims,
    take_reserved_claims,
)

#: From so many seconds before the expected start on, the nodes are nominated.
IMMINENT_SECONDS = 30.0


#: The reasons of the condition `Reserved` while there is a reservation.
START_EXPECTED, START_UNKNOWN = "StartExpected", "StartUnknown"
_EXPECTED_START = re.compile(r"; expected start (\d[^\s,]*)")


class ReservationOrder(NamedTuple):
    """The order of waiting entities: a higher priority, then a longer wait."""

    negated_priority: int
    #: Since when the entity waits, or since when its last turn is over.
    since: float
    ref: Ref


class KeptAmount(NamedTuple):
    """What a reservation keeps on a node; a negative amount is left over at the expected start."""

    node: str
    resource: str
    amount: int


class Reservation(Struct, frozen=True):
    """The room that is kept for one entity."""

    order: ReservationOrder
    #: When the entity is expected to start; None if that is unknown.
    expected_start: float | None
    bindings: tuple[Binding, ...]
    kept: tuple[KeptAmount, ...]
    reserved_at: float
    #: When it last came nearer: it had an expected start, or needed less that is not free.
    progress_at: float
    #: How much of what it needs is not free yet: 1.0 is all of one resource.
    missing: float
    #: Whether nothing behind the entity may start.
    is_strict: bool = False
    #: Which objects must end before, the last one first.
    waits_for: tuple[str, ...] = ()
    #: The PodGroups of the entity.
    groups: tuple[Key, ...] = ()
    #: The topology label that the entity is placed by ("" for none), and the nodes of each value.
    topology_key: str = ""
    domains: tuple[tuple[str, int], ...] = ()
    #: The devices and volumes of its pods.
    claims: ReservedClaims = ReservedClaims()
    #: What the entity itself needs on each node, and when it is expected to end; None: unknown.
    needs: tuple[KeptAmount, ...] = ()
    expected_end: float | None = None

    @property
    def ref(self) -> Ref:
        """The entity."""
        return self.order.ref

    @property
    def nodes(self) -> tuple[str, ...]:
        """The nodes, sorted."""
        return tuple(sorted({binding.node for binding in self.bindings}))

    def runs_at_start_of(self, earlier: Reservation) -> bool:
        """Whether the entity runs when that of an earlier reservation starts.

        If so, the node keeps the room of both from the earlier start on. `kept` of this reservation
        covers only its own start.
        """
        start, other = self.expected_start, earlier.expected_start
        if start is None or other is None or self.order <= earlier.order:
            return False
        return start < other and (self.expected_end is None or self.expected_end > other)

    def subtract_nominated(self, others: Iterable[Reservation]) -> Reservation:
        """Subtract what earlier nominated entities need from what this reservation keeps.

        Their nominations count as requested already, so it would be kept twice.
        """
        start = self.expected_start
        beside = [
            other
            for other in others
            if start is not None
            and other.expected_start is not None
            and other.order < self.order
            and other.expected_start <= start < (other.expected_end or inf)
        ]
        nodes = {binding.node for binding in self.bindings} if beside else set[str]()
        needs = [need for other in beside for need in other.needs if need.node in nodes]
        if not needs:
            return self
        kept = {(node, resource): amount for node, resource, amount in self.kept}
        for node, resource, amount in needs:
            kept[node, resource] = kept.get((node, resource), 0) - amount
        return but(self, kept=tuple([KeptAmount(*key, amount) for key, amount in kept.items()]))

    def is_imminent(self, now: float) -> bool:
        """Whether the entity is about to start."""
        start = self.expected_start
        return start is not None and start <= now + IMMINENT_SECONDS

    @property
    def reason(self) -> str:
        """The reason of the condition: whether the start can be foreseen."""
        return START_UNKNOWN if self.expected_start is None else START_EXPECTED

    @property
    def message(self) -> str:
        """Say how many nodes are reserved, where, and until when."""
        count = len(self.nodes)
        text = f"{count} node{'' if count == 1 else 's'} reserved"
        if self.domains:
            where = ", ".join(f"{value}: {nodes}" for value, nodes in self.domains)
            text += f" ({self.topology_key} {where})"
        if self.expected_start is None:
            return f"{text}; expected start unknown{self._describe_awaited()}"
        return f"{text}; expected start {timestamp(self.expected_start)}{self._describe_awaited()}"

    def _describe_awaited(self) -> str:
        verb = "ends" if len(self.waits_for) == 1 else "end"
        return f", when {join_and(self.waits_for)} {verb}" if self.waits_for else ""

    def describe(self) -> str:
        """Name the reservation in a refusal: `podgroup/x (expected start 2026-…)`."""
        when = "unknown" if self.expected_start is None else timestamp(self.expected_start)
        return f"{self.ref.kind.lower()}/{self.ref.name} (expected start {when})"


class ReservationRequest(NamedTuple):
    """An entity that may get a reservation, and the one that it had in the last plan."""

    entity: Entity
    order: ReservationOrder
    policy: SchedulerPolicy
    previous: Reservation | None = None
    #: The start that the scheduler has written, if another planner asks; `inf`: unknown.
    written_start: float | None = None


def parse_expected_start(reason: str, message: str) -> float | None:
    """Return the expected start that a condition `Reserved` names; `inf` if it is unknown.

    None if the condition does not say it.
    """
    if reason == START_UNKNOWN:
        return inf
    found = _EXPECTED_START.search(message)
    return parse_timestamp(found[1]) if found else None


def starts_after_victims(
    terminating: Iterable[AssignedPod], now: float, victims: Sequence[AssignedPod] = ()
) -> float:
    """Return when an entity can start on its nominated nodes: its victims must be gone.

    `victims` are about to be evicted; others are `terminating` there. Without any it is now.
    """
    leaving = [pod for pod in terminating if pod.leaves_by > now]
    gone = max((pod.gone_at(now) for pod in (*victims, *leaving)), default=now)
    return gone + TERMINATION_SECONDS if leaving or gone > now else now


#: Returns when an entity ends that starts at a time; None if it does not declare that.
DeclaredEnd = Callable[[float], float | None]


def ends_before(end: float | None, reservation: Reservation) -> bool:
    """Whether an entity that ends at a time may use the room of a reservation until then."""
    start = reservation.expected_start
    return not reservation.is_strict and end is not None and start is not None and end <= start


def join_and(names: Sequence[str], limit: int = 3) -> str:
    """Join names as in a sentence: `job/a, job/b and 2 more`."""
    shown = [*names[:limit], *([f"{len(names) - limit} more"] if len(names) > limit else [])]
    return " and ".join(filter(None, (", ".join(shown[:-1]), shown[-1])))


class ReservationHolds:
    """What reservations keep from one entity, and the nodes of its own reservation.

    `own` are the bindings of its own reservation, `nominated` the same if it is about to start.
    `avoided` are the reservations behind the entity: it leaves their room to them if it can.
    `ignored` are the pods of those reservations: their nominations keep nothing from the entity.
    `backfilled` are the reservations before which the entity ends if it starts now; `declared_end`
    returns when it ends if it starts later.
    """

    def __init__(
        self,
        reservations: Sequence[Reservation],
        ends: PodEnds,
        *,
        own: tuple[Binding, ...] = (),
        nominated: tuple[Binding, ...] = (),
        avoided: Sequence[Reservation] = (),
        ignored: frozenset[Key] = frozenset(),
        backfilled: Sequence[Reservation] = (),
        declared_end: DeclaredEnd = lambda start: None,
    ) -> None:
        self._reservations, self._ends, self._own = reservations, ends, own
        self.nominated, self._avoided, self.ignored = nominated, avoided, ignored
        self._backfilled, self._declared_end = backfilled, declared_end

    def starting_at(self, time: float) -> ReservationHolds:
        """Return what is kept from the entity if it starts at a time.

        A preemptor starts when its victims are gone: it may then end too late for a backfill.
        """
        end = self._declared_end(time) if self._backfilled else None
        late = [one for one in self._backfilled if not ends_before(end, one)]
        if not late:
            return self
        return ReservationHolds(
            sorted([*self._reservations, *late], key=lambda one: one.order),
            self._ends,
            own=self._own,
            nominated=self.nominated,
            avoided=self._avoided,
            ignored=self.ignored,
        )

    @property
    def with_avoided(self) -> ReservationHolds | None:
        """The same with the reservations behind the entity; None if there are none."""
        if not self._avoided:
            return None
        return ReservationHolds([*self._reservations, *self._avoided], self._ends)

    def own_rows(self, snapshot: Snapshot) -> IntArray | None:
        """Return the nodes of the entity's own reservation; None if it has none."""
        rows = {snapshot.index[one.node] for one in self._own if one.node in snapshot.index}
        return np.array(sorted(rows), np.int64) if rows else None

    def unreserved_rows(self, snapshot: Snapshot) -> IntArray:
        """Return the nodes on which nothing is kept from the entity; none beside `Strict`."""
        if any(reservation.is_strict for reservation in self._reservations):
            return np.empty(0, np.int64)
        is_open = np.ones(len(snapshot), bool)
        is_open[list(self._kept_per_node(snapshot, ()))] = False
        return np.flatnonzero(is_open)

    def __bool__(self) -> bool:
        """Whether anything is kept from the entity."""
        return bool(self._reservations)

    @property
    def holders(self) -> tuple[Ref, ...]:
        """The entities whose reservations keep room."""
        return tuple(reservation.ref for reservation in self._reservations)

    def describe(self) -> str:
        """Name the reservations that keep room."""
        return ", ".join(reservation.describe() for reservation in self._reservations)

    def apply(self, snapshot: Snapshot) -> Snapshot:
        """Return the snapshot as the entity may use it: kept amounts count as requested."""
        forked = snapshot.fork()
        requested = forked.requested
        if any(reservation.is_strict for reservation in self._reservations):
            np.maximum(requested, snapshot.allocatable, out=requested)
            return forked
        for i, kept in self._kept_per_node(snapshot, ()).items():
            requested[i] += np.maximum(kept, 0)
        if reserved := self._reserved_claims:
            take_reserved_claims(forked, reserved)
        return forked

    @property
    def _reserved_claims(self) -> list[ReservedClaims]:
        return [one.claims for one in self._reservations if one.claims]

    def conflicts(
        self,
        entity: Entity,
        bindings: Iterable[Binding],
        snapshot: Snapshot,
        *,
        victims: Iterable[Key] = (),
        claims: Iterable[ClaimReservation] | None = None,
    ) -> bool:
        """Whether the entity would take kept room on these nodes after the victims are gone.

        A victim that would have ended before the expected start anyway adds nothing to the room
        that the reserved entity counts on. `claims` has the devices that the entity gets, if that
        is known.
        """
        if any(reservation.is_strict for reservation in self._reservations):
            return True
        bindings = tuple(bindings)
        if reserved := self._reserved_claims:
            nodes = {one.node for one in bindings}
            if contests_claims(entity, nodes, snapshot, reserved=reserved, claims=claims):
                return True
        shapes = {member.pod.metadata.uid: member.shape for member in entity.members}
        index, victim_keys = snapshot.index, tuple(victims)
        used = amounts_per_node(snapshot, [(index[b.node], shapes[b.uid]) for b in bindings])
        kept = self._kept_per_node(snapshot, victim_keys)
        free = snapshot.allocatable - snapshot.requested
        return any(
            bool(((used[i] > free[i] - kept[i]) & (used[i] > 0)).any()) for i in used if i in kept
        )

    def _kept_per_node(self, snapshot: Snapshot, victims: Sequence[Key]) -> dict[int, IntArray]:
        """Return the largest amount that any reservation keeps, by node and resource."""
        found: dict[int, IntArray] = {}
        for reservation in self._reservations:
            # A node is reserved even if it keeps nothing now: pods that end in time release exactly
            # what the entity needs there, and their room is free for no other entity.
            own: dict[int, IntArray] = {
                snapshot.index[one.node]: np.zeros(len(snapshot.columns), np.int64)
                for one in reservation.bindings
                if one.node in snapshot.index
            }
            beside = [one.needs for one in self._reservations if one.runs_at_start_of(reservation)]
            for node, resource, amount in chain(reservation.kept, *beside):
                if snapshot.index.get(node) in own and resource in snapshot.columns:
                    own[snapshot.index[node]][snapshot.columns[resource]] += amount
            for i, amounts in _freed_late(snapshot, victims, reservation, ends=self._ends).items():
                if i in own:
                    own[i] -= amounts
            for i, row in own.items():
                found[i] = np.maximum(found[i], row) if i in found else row
        return found


def _freed_late(
    snapshot: Snapshot, victims: Sequence[Key], reservation: Reservation, *, ends: PodEnds
) -> dict[int, IntArray]:
    """Sum the requests of the victims that would still run at the expected start, per node."""
    start, late = reservation.expected_start, []
    for key in victims:
        pod, end = snapshot.pod_index.assigned_pod(key), ends.end_of(key)
        is_late = end is None or (start is not None and end > start)
        if pod is not None and pod.node in snapshot.index and is_late:
            late.append((snapshot.index[pod.node], pod.shape))
    return amounts_per_node(snapshot, late)
