"""Place: one line of the queue as people see it. Values only; `queue.py` moves the entities."""

from __future__ import annotations

from dataclasses import dataclass

from phalanx.api.meta import Key
from phalanx.scheduler.decision import Decision, Unready
from phalanx.scheduler.queueing.entry import Entry, Id, Rank, State

_ORDER = (
    State.IN_FLIGHT,
    State.ACTIVE,
    State.BACKING_OFF,
    State.GATED,
    State.INCOMPLETE,
)


@dataclass(frozen=True, slots=True)
class Place:
    """One line of the queue, for people: an entity, where it stands and why."""

    key: Key
    is_group: bool
    state: State
    priority: int
    pods: tuple[Key, ...]
    attempts: int
    timestamp: float
    #: When it is tried again at the latest, if it is backing off.
    until: float | None
    unready: Unready | None
    outcome: Decision | None
    is_composite: bool = False

    @property
    def id(self) -> Id:
        """The entity by name."""
        return Id(self.is_group, self.key, self.is_composite)


def position(entry: Entry) -> tuple[int, Rank]:
    """Where an entity stands in the queue as a whole."""
    return _ORDER.index(entry.state), entry.rank


def place_of(entry: Entry) -> Place:
    """The line of an entity."""
    resting = entry.state is State.BACKING_OFF
    return Place(
        key=entry.id.key,
        is_group=entry.id.is_group,
        state=entry.state,
        priority=entry.priority,
        pods=tuple(entry.pending),
        attempts=entry.attempts,
        timestamp=entry.timestamp,
        until=entry.until if resting else None,
        unready=entry.unready,
        outcome=entry.outcome,
        is_composite=entry.id.is_composite,
    )
