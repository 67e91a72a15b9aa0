"""Reservation: the nodes that are kept for one waiting entity, and from which others.

A reservation says where its entity will be placed and when that is expected. On each of its nodes
it keeps what the entity needs and what pods that end in time do not release:

    node n1   free 2, a pod of 4 ends before the expected start, the entity needs 6    keeps 2
    node n2   free 8, nothing ends, the entity needs 6                                 keeps 6

An entity behind the reserved one may use the rest: it then fits now, and beside the reserved entity
at its expected start. An entity that ends before the expected start may use all of it (backfill).
Without an expected start nothing is backfilled.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from msgspec import Struct

from phalanx.api.meta import Key, Ref, timestamp
from phalanx.scheduler.cluster.snapshot import IntArray, Snapshot
from phalanx.scheduler.decision import Binding
from phalanx.scheduler.entity import Entity
from phalanx.scheduler.reservation.pod_ends import PodEnds, amounts_per_node

#: From so many seconds before the expected start on, the nodes are nominated.
IMMINENT_SECONDS = 30.0


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

    @property
    def ref(self) -> Ref:
        """The entity."""
        return self.order.ref

    @property
    def nodes(self) -> tuple[str, ...]:
        """The nodes, sorted."""
        return tuple(sorted({binding.node for binding in self.bindings}))

    def is_imminent(self, now: float) -> bool:
        """Whether the entity is about to start."""
        start = self.expected_start
        return start is not None and start <= now + IMMINENT_SECONDS

    @property
    def reason(self) -> str:
        """The reason of the condition: whether the start can be foreseen."""
        return "StartUnknown" if self.expected_start is None else "StartExpected"

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


def join_and(names: Sequence[str], limit: int = 3) -> str:
    """Join names as in a sentence: `job/a, job/b and 2 more`."""
    shown = [*names[:limit], *([f"{len(names) - limit} more"] if len(names) > limit else [])]
    return " and ".join(filter(None, (", ".join(shown[:-1]), shown[-1])))


class ReservationHolds:
    """What reservations keep from one entity, and the nodes of its own reservation.

    `own` are the bindings of its own reservation, `nominated` the same if it is about to start.
    `avoided` are the reservations behind the entity: it leaves their room to them if it can.
    `ignored` are the pods of those reservations: their nominations keep nothing from the entity.
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
    ) -> None:
        self._reservations, self._ends, self._own = reservations, ends, own
        self.nominated, self._avoided, self.ignored = nominated, avoided, ignored

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

    def __bool__(self) -> bool:
        """Whether anything is kept from the entity."""
        return bool(self._reservations)

    @property
    def is_ahead(self) -> bool:
        """Whether the entity has a reservation, or one is behind it."""
        return bool(self._own or self._avoided or self.ignored)

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
        return forked

    def conflicts(
        self,
        entity: Entity,
        bindings: Iterable[Binding],
        snapshot: Snapshot,
        victims: Iterable[Key] = (),
    ) -> bool:
        """Whether the entity would take kept room on these nodes after the victims are gone.

        A victim that would have ended before the expected start anyway adds nothing to the room
        that the reserved entity counts on.
        """
        if any(reservation.is_strict for reservation in self._reservations):
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
            own: dict[int, IntArray] = {}
            for node, resource, amount in reservation.kept:
                if node in snapshot.index and resource in snapshot.columns:
                    row = own.setdefault(
                        snapshot.index[node], np.zeros(len(snapshot.columns), np.int64)
                    )
                    row[snapshot.columns[resource]] = amount
            for i, amounts in _freed_late(snapshot, victims, reservation, self._ends).items():
                if i in own:
                    own[i] -= amounts
            for i, row in own.items():
                found[i] = np.maximum(found[i], row) if i in found else row
        return found


def _freed_late(
    snapshot: Snapshot, victims: Sequence[Key], reservation: Reservation, ends: PodEnds
) -> dict[int, IntArray]:
    """Sum the requests of the victims that would still run at the expected start, per node."""
    start, late = reservation.expected_start, []
    for key in victims:
        pod, end = snapshot.pod_index.assigned_pod(key), ends.end_of(key)
        is_late = end is None or (start is not None and end > start)
        if pod is not None and pod.node in snapshot.index and is_late:
            late.append((snapshot.index[pod.node], pod.shape))
    return amounts_per_node(snapshot, late)
