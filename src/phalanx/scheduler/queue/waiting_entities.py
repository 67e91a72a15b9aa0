"""What waits for what: refused entities for changes of the cluster, pending pods for claims.

WaitingEntities holds the refused entities by their wake condition. Entities with equal wake
conditions are decided alike. A change wakes the first of them, in queue order, and its decision
holds for all:

    refused again, for the same condition    nothing else is attempted
    placed, changed or deleted               the next one is attempted

So one freed node costs one or two attempts, however many equal gangs wait for it.

ClaimIndex holds the pending pods by the claims, of devices or of volumes, that they name.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from heapq import heappop, heappush

from phalanx.api.meta import Key, Ref
from phalanx.scheduler.cluster.cluster_delta import ClusterDelta
from phalanx.scheduler.decision import ClusterEvent
from phalanx.scheduler.queue.queued_entity import QueuedEntity, QueueSortKey
from phalanx.scheduler.queue.wake_condition import WakeCondition


@dataclass(slots=True)
class _EqualEntities:
    """The entities that wait under one condition."""

    condition: WakeCondition
    #: The sort key of each waiting entity, and a heap of them that may contain others.
    waiting: dict[Ref, QueueSortKey] = field(default_factory=dict)
    order: list[tuple[QueueSortKey, Ref]] = field(default_factory=list)
    #: The entity that was woken and is attempted for all.
    attempted: Ref | None = None
    #: How many members still lack a node, after the changes since the last refusal.
    lacking: int = 1

    def first(self) -> Ref | None:
        while self.order:
            key, ref = self.order[0]
            if self.waiting.get(ref) == key:
                return ref
            heappop(self.order)
        return None


class WaitingEntities:
    """Entities that wait for a change."""

    def __init__(self) -> None:
        self._entries: dict[Ref, QueuedEntity] = {}
        #: When the back-off of each entity ends, as a heap that may contain earlier timers.
        self._timers: list[tuple[float, Ref]] = []
        self._by_condition: dict[WakeCondition, _EqualEntities] = {}
        self._by_event: dict[ClusterEvent, dict[WakeCondition, None]] = {
            event: {} for event in ClusterEvent
        }

    def add(self, entry: QueuedEntity, condition: WakeCondition, lacking: int) -> None:
        """Let an entity wait until changes may give so many of its members a node."""
        equal = self._by_condition.get(condition)
        if equal is None:
            equal = self._by_condition[condition] = _EqualEntities(condition)
            for event in condition.events:
                self._by_event[event][condition] = None
        if equal.attempted == entry.ref:
            equal.attempted = None
        # Equal entities share one object, which is found fastest.
        entry.condition = equal.condition
        equal.lacking = lacking
        equal.waiting[entry.ref] = key = entry.sort_key
        heappush(equal.order, (key, entry.ref))

    def remove(self, entry: QueuedEntity, condition: WakeCondition, *, is_attempted: bool) -> None:
        """Remove an entity. If it is attempted, then for all equal ones, unless another one is."""
        equal = self._by_condition[condition]
        del equal.waiting[entry.ref]
        self._entries.pop(entry.ref, None)
        if is_attempted and equal.attempted is None:
            equal.attempted = entry.ref
        self._drop_if_unused(condition, equal)

    def set_timer(self, entry: QueuedEntity, until: float) -> None:
        """Let an entity wait until this time at most."""
        entry.backoff_until = until
        heappush(self._timers, (until, entry.ref))
        self._entries[entry.ref] = entry

    def next_expiry(self) -> float | None:
        """Return when the next back-off ends; None if no entity waits."""
        while self._timers:
            until, ref = self._timers[0]
            entry = self._entries.get(ref)
            if entry is not None and entry.backoff_until == until:
                return until
            heappop(self._timers)
        return None

    def pop_expired(self, now: float) -> QueuedEntity | None:
        """Return an entity whose back-off has ended; None if there is none."""
        until = self.next_expiry()
        return (
            self._entries[heappop(self._timers)[1]] if until is not None and until <= now else None
        )

    def is_first(self, entry: QueuedEntity, condition: WakeCondition) -> bool:
        """Whether an entity is the first under its condition, and no other one is attempted."""
        equal = self._by_condition[condition]
        return equal.attempted is None and equal.first() == entry.ref

    def awaits(self, event: ClusterEvent) -> bool:
        """Whether an entity waits for an event."""
        return bool(self._by_event[event])

    def cured_by(self, change: ClusterDelta) -> list[Ref]:
        """Return the first entity, or each, under every condition that a change may cure.

        A condition under which an entity is attempted is left out: the attempt reads the changed
        cluster, and holds for the others unless the change concerns each of them.
        """
        found: list[Ref] = []
        for condition in self._by_event[change.event]:
            equal = self._by_condition[condition]
            if equal.attempted is not None and not change.concerns_each:
                continue
            equal.lacking -= condition.count_cured(change)
            if equal.lacking <= 0 and change.concerns_each:
                found += sorted(equal.waiting, key=equal.waiting.__getitem__)
            elif equal.lacking <= 0:
                first = equal.first()
                assert first is not None
                found.append(first)
        return found

    def count_lacking(self, condition: WakeCondition) -> int:
        """Count the members that still lack a node under a condition."""
        return self._by_condition[condition].lacking

    def next_after(self, ref: Ref, condition: WakeCondition) -> Ref | None:
        """Return the next entity under a condition under which another one is attempted no more."""
        equal = self._by_condition.get(condition)
        if equal is None or equal.attempted != ref:
            return None
        equal.attempted = None
        self._drop_if_unused(condition, equal)
        return equal.first()

    def _drop_if_unused(self, condition: WakeCondition, equal: _EqualEntities) -> None:
        if not equal.waiting and equal.attempted is None:
            del self._by_condition[condition]
            for event in condition.events:
                del self._by_event[event][condition]

    def attempted_entities(self) -> list[tuple[Ref, WakeCondition]]:
        """Return the entities that are attempted for others too, with their conditions."""
        return [
            (equal.attempted, condition)
            for condition, equal in self._by_condition.items()
            if equal.attempted is not None
        ]


class ClaimIndex:
    """The claims that pending pods name."""

    def __init__(self) -> None:
        self._pods_by_claim: dict[Key, dict[Key, None]] = {}
        self._claims_by_pod: dict[Key, tuple[Key, ...]] = {}

    def __contains__(self, pod: Key) -> bool:
        return pod in self._claims_by_pod

    def update(self, pod: Key, claims: Iterable[Key]) -> None:
        """Note which claims a pending pod names; none if it is not pending."""
        for claim in self._claims_by_pod.pop(pod, ()):
            del self._pods_by_claim[claim][pod]
            if not self._pods_by_claim[claim]:
                del self._pods_by_claim[claim]
        if named := tuple(dict.fromkeys(claims)):
            self._claims_by_pod[pod] = named
            for claim in named:
                self._pods_by_claim.setdefault(claim, {})[pod] = None

    def pods_of(self, claim: Key) -> list[Key]:
        """Return the pending pods that name a claim."""
        return list(self._pods_by_claim.get(claim, ()))
