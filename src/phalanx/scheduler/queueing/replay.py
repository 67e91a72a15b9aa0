"""Replay: a record is told to another desk, and every decision made again and compared.

    lines ─▶ record.read ─▶ desk ─▶ what is decided now, beside what was decided then

A decision that differs is told and then taken as it was, so that the next ones can be compared too.
Where the queue gives another entity than it did, the story is another one from there on; nothing
more is compared until the next beginning. Does not read files.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from phalanx.scheduler.cycle import advanced
from phalanx.scheduler.decision import Decision
from phalanx.scheduler.policy import DEFAULT
from phalanx.scheduler.queueing.desk import Desk
from phalanx.scheduler.queueing.record import (
    FORMAT,
    Answered,
    Assumed,
    Begun,
    Brief,
    Decided,
    Fault,
    Promised,
    Record,
    Remembered,
    Searched,
    Spared,
    Took,
    Undone,
    brief,
    read,
    understood,
)
from phalanx.scheduler.rescue.program import Answer
from phalanx.scheduler.rescue.search import UNANSWERED, Search
from phalanx.scheduler.settings.configuration import Configuration
from phalanx.scheduler.settings.configuration import read as read_configuration
from phalanx.scheduler.settings.profiles import Profiles


@dataclass(frozen=True, slots=True)
class Replayed:
    """A decision that was made, and what is decided of the same today (None: nobody asked)."""

    line: int
    at: float
    entity: Brief
    then: Decision
    now: Decision | None = None

    @property
    def differs(self) -> bool:
        """Whether they are not the same to the last bit."""
        return self.now is not None and self.then != self.now


class _Lost(Exception):
    """The story cannot be followed any further."""


def replay(lines: Iterable[bytes]) -> Iterator[Replayed | Fault]:
    """Every decision of a record, made again; and every line that is not as it was written."""
    story = _Story()
    for found in read(lines):
        if isinstance(found, Fault):
            yield found
            continue
        number, record = found
        try:
            answer = story.tell(number, record)
        except _Lost as error:
            story = _Story()
            yield Fault(number, str(error))
        except Exception as error:
            # Nobody wrote that: what was tampered with can be any nonsense.
            story = _Story()
            yield Fault(number, f"cannot be replayed: {type(error).__name__}: {error}")
        else:
            if answer is not None:
                yield answer


def listed(lines: Iterable[bytes]) -> Iterator[Replayed | Fault]:
    """The same without making any decision again."""
    taken: Brief | None = None
    for found in read(lines):
        if isinstance(found, Fault):
            yield found
            continue
        number, record = found
        if isinstance(record, Took):
            taken = record.entity
        elif isinstance(record, Decided) and taken is not None:
            yield _understood(number, record, taken)


def _understood(line: int, record: Decided, entity: Brief) -> Replayed | Fault:
    try:
        return Replayed(line, record.at, entity, understood(record.decision))
    except ValueError as error:
        return Fault(line, f"makes no sense: {error}")


class _Story:
    """A desk, and the decision that is being compared; without a desk nothing is compared."""

    def __init__(self) -> None:
        self._desk: Desk | None = None
        self._taken: _Taken | None = None

    def tell(self, line: int, record: Record) -> Replayed | None:
        """The next record; a decision if it was one. Raises _Lost."""
        if isinstance(record, Begun):
            self._desk, self._taken = _desk(record), None
        elif self._desk is None:
            return None
        elif isinstance(record, Took):
            self._taken = _Taken(self._desk, record)
        elif isinstance(record, Answered):
            if self._taken is not None:
                self._taken.tell(record.answer)
        elif isinstance(record, Decided):
            return self._settle(self._desk, line, record)
        elif isinstance(record, Undone):
            self._desk.undo(record.bindings, record.at)
        elif isinstance(record, Searched):
            self._desk.searched(record.at)
        elif isinstance(record, Spared):
            self._desk.spare(record.pods, record.at)
        elif isinstance(record, Assumed | Promised | Remembered):
            self._desk.resume(record)
        else:
            self._desk.feed(record)
        return None

    def _settle(self, desk: Desk, line: int, record: Decided) -> Replayed:
        taken, then = self._taken, understood(record.decision)
        if taken is None or taken.entity.key != record.key:
            raise _Lost(f"decides about {record.key}, which was not taken")
        self._taken, now = None, taken.decision()
        desk.settle(taken.entity, then, record.at)
        return Replayed(line, record.at, brief(taken.entity), then, now)


def _desk(begun: Begun) -> Desk:
    if begun.format != FORMAT:
        raise _Lost(f"is of format {begun.format}; this version of phalanx reads {FORMAT}")
    profiles = _profiles(begun)
    desk = Desk(profiles if begun.groups_preempt else profiles.sparing)
    desk.queue.sequence = begun.sequence
    return desk


def _profiles(begun: Begun) -> Profiles:
    if begun.configuration is None:
        return Profiles(dict.fromkeys(begun.schedulers, DEFAULT))
    found = read_configuration(begun.configuration)
    if not isinstance(found, Configuration):
        raise _Lost(f"has a configuration that is no good here: {'; '.join(map(str, found))}")
    return found.profiles


class _Taken:
    """An entity that was taken, and how far it is decided about: up to the next question."""

    def __init__(self, desk: Desk, record: Took) -> None:
        entity = desk.take(record.at)
        found = brief(entity) if entity else None
        if entity is None or found != record.entity:
            got = found.key if found else "nothing"
            taken = record.entity.key
            raise _Lost(f"takes {taken}, but now the queue gives {got} or another state")
        self.entity, self._cycle = entity, desk.cycle(entity)
        self._state = advanced(self._cycle)

    def tell(self, answer: Answer) -> None:
        """What was answered then; nothing is done with it if nothing is asked now."""
        if isinstance(self._state, Search):
            self._state = advanced(self._cycle, answer)

    def decision(self) -> Decision:
        """What is decided; to what was not asked then there is no answer."""
        while isinstance(self._state, Search):
            self.tell(UNANSWERED)
        return self._state
