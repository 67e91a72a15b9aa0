"""WaitingEntities: the refused entities by the question that they ask, and which one asks it next.

Entities with equal wake conditions ask one question. A change wakes the first of them, in queue
order, and the answer holds for all:

    refused again, for the same condition    nothing else is attempted
    placed, changed or deleted               the next one is attempted

So one freed node costs one or two attempts, however many equal gangs wait for it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from heapq import heappop, heappush

from phalanx.api.meta import Ref
from phalanx.scheduler.cluster.cluster_delta import ClusterDelta
from phalanx.scheduler.decision import ClusterEvent
from phalanx.scheduler.queue.queued_entity import QueuedEntity, QueueSortKey
from phalanx.scheduler.queue.wake_condition import WakeCondition


@dataclass(slots=True)
class _Question:
    """The entities that wait under one condition."""

    #: The sort key of each waiting entity, and a heap of them that may contain others.
    waiting: dict[Ref, QueueSortKey] = field(default_factory=dict)
    order: list[tuple[QueueSortKey, Ref]] = field(default_factory=list)
    #: The entity that was woken and whose answer is awaited.
    asked_by: Ref | None = None
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
        self._questions: dict[WakeCondition, _Question] = {}
        self._by_event: dict[ClusterEvent, dict[WakeCondition, None]] = {
            event: {} for event in ClusterEvent
        }

    def add(self, entry: QueuedEntity, condition: WakeCondition, lacking: int) -> None:
        """Let an entity wait until changes may give so many of its members a node."""
        question = self._questions.get(condition)
        if question is None:
            question = self._questions[condition] = _Question()
            for event in condition.events:
                self._by_event[event][condition] = None
        if question.asked_by == entry.ref:
            question.asked_by = None
        question.lacking = lacking
        question.waiting[entry.ref] = key = entry.sort_key
        heappush(question.order, (key, entry.ref))

    def remove(self, entry: QueuedEntity, condition: WakeCondition, *, asks: bool) -> None:
        """Remove an entity. If it is attempted it asks its question, unless another one does."""
        question = self._questions[condition]
        del question.waiting[entry.ref]
        self._entries.pop(entry.ref, None)
        if asks and question.asked_by is None:
            question.asked_by = entry.ref
        self._drop_if_unused(condition, question)

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

    def may_ask(self, entry: QueuedEntity, condition: WakeCondition) -> bool:
        """Whether an entity is the first under its condition, and no other one is attempted."""
        question = self._questions[condition]
        return question.asked_by is None and question.first() == entry.ref

    def awaits(self, event: ClusterEvent) -> bool:
        """Whether an entity waits for an event."""
        return bool(self._by_event[event])

    def cured_by(self, change: ClusterDelta) -> list[Ref]:
        """Return the first entity, or each, of every question that a change may answer otherwise.

        A question that is being asked is left out: its attempt sees the change, and answers for the
        others unless the change concerns each of them.
        """
        found: list[Ref] = []
        for condition in self._by_event[change.event]:
            question = self._questions[condition]
            if question.asked_by is not None and not change.concerns_each:
                continue
            question.lacking -= condition.count_cured(change)
            if question.lacking <= 0 and change.concerns_each:
                found += sorted(question.waiting, key=question.waiting.__getitem__)
            elif question.lacking <= 0:
                first = question.first()
                assert first is not None
                found.append(first)
        return found

    def count_lacking(self, condition: WakeCondition) -> int:
        """Count the members that still lack a node under a condition."""
        return self._questions[condition].lacking

    def pass_on(self, ref: Ref, condition: WakeCondition) -> Ref | None:
        """Return the next entity under a condition whose question another one asks no more."""
        question = self._questions.get(condition)
        if question is None or question.asked_by != ref:
            return None
        question.asked_by = None
        self._drop_if_unused(condition, question)
        return question.first()

    def _drop_if_unused(self, condition: WakeCondition, question: _Question) -> None:
        if not question.waiting and question.asked_by is None:
            del self._questions[condition]
            for event in condition.events:
                del self._by_event[event][condition]

    def questions_being_asked(self) -> list[tuple[Ref, WakeCondition]]:
        """Return the questions whose answer is awaited, and the entities that ask them."""
        return [
            (question.asked_by, condition)
            for condition, question in self._questions.items()
            if question.asked_by is not None
        ]
