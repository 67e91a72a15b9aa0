"""Replay: a record is told to another desk, and every decision made again and compared.

    lines ─▶ record.read ─▶ desk ─▶ what is decided now, beside what was decided then

A decision that differs is told and then taken as it was, so that the next ones can be compared too.
Where the queue gives another entity than it did, the story is another one from there on; nothing
more is compared until the next beginning. Does not read files.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from phalanx.scheduler.configuration.profiles import Profiles
from phalanx.scheduler.configuration.scheduler_configuration import SchedulerConfiguration
from phalanx.scheduler.configuration.scheduler_configuration import (
    parse_configuration as read_configuration,
)
from phalanx.scheduler.cycle import resume_cycle
from phalanx.scheduler.decision import Decision
from phalanx.scheduler.policy import DEFAULT_POLICY
from phalanx.scheduler.queue.decision_log import (
    FORMAT,
    BindingsRolledBack,
    DecisionLogRecord,
    DecisionMade,
    EntityPopped,
    EntityRestored,
    EntityVersion,
    EvictionsCancelled,
    LogStarted,
    PodsAssumed,
    PodsNominated,
    RecordFault,
    SearchFinished,
    SolverAnswered,
    decode_decision,
    entity_version,
    read_records,
)
from phalanx.scheduler.queue.scheduler_state import SchedulerState
from phalanx.scheduler.search.solver import NO_SOLVER_ANSWER, SolverAnswer, SolverRequest


@dataclass(frozen=True, slots=True)
class ReplayedDecision:
    """A decision that was made, and what is decided of the same today (None: nobody asked)."""

    line: int
    at: float
    entity: EntityVersion
    recorded: Decision
    replayed: Decision | None = None

    @property
    def differs(self) -> bool:
        """Whether they are not the same to the last bit."""
        return self.replayed is not None and self.recorded != self.replayed


class _ReplayDiverged(Exception):
    """The story cannot be followed any further."""


def replay(lines: Iterable[bytes]) -> Iterator[ReplayedDecision | RecordFault]:
    """Every decision of a record, made again; and every line that is not as it was written."""
    story = _ReplaySession()
    for found in read_records(lines):
        if isinstance(found, RecordFault):
            yield found
            continue
        number, record = found
        try:
            answer = story.apply(number, record)
        except _ReplayDiverged as error:
            story = _ReplaySession()
            yield RecordFault(number, str(error))
        except Exception as error:
            # Nobody wrote that: what was tampered with can be any nonsense.
            story = _ReplaySession()
            yield RecordFault(number, f"cannot be replayed: {type(error).__name__}: {error}")
        else:
            if answer is not None:
                yield answer


def list_decisions(lines: Iterable[bytes]) -> Iterator[ReplayedDecision | RecordFault]:
    """The same without making any decision again."""
    taken: EntityVersion | None = None
    for found in read_records(lines):
        if isinstance(found, RecordFault):
            yield found
            continue
        number, record = found
        if isinstance(record, EntityPopped):
            taken = record.entity
        elif isinstance(record, DecisionMade) and taken is not None:
            yield _decode_recorded(number, record, taken)


def _decode_recorded(
    line: int, record: DecisionMade, entity: EntityVersion
) -> ReplayedDecision | RecordFault:
    try:
        return ReplayedDecision(line, record.at, entity, decode_decision(record.decision))
    except ValueError as error:
        return RecordFault(line, f"makes no sense: {error}")


class _ReplaySession:
    """A desk, and the decision that is being compared; without a desk nothing is compared."""

    def __init__(self) -> None:
        self._state: SchedulerState | None = None
        self._popped: _PoppedEntity | None = None

    def apply(self, line: int, record: DecisionLogRecord) -> ReplayedDecision | None:
        """The next record; a decision if it was one. Raises _Lost."""
        if isinstance(record, LogStarted):
            self._state, self._popped = _start_state(record), None
        elif self._state is None:
            return None
        elif isinstance(record, EntityPopped):
            self._popped = _PoppedEntity(self._state, record)
        elif isinstance(record, SolverAnswered):
            if self._popped is not None:
                self._popped.send_answer(record.answer)
        elif isinstance(record, DecisionMade):
            return self._compare(self._state, line, record)
        elif isinstance(record, BindingsRolledBack):
            self._state.rollback(record.bindings, record.at)
        elif isinstance(record, SearchFinished):
            self._state.finish_search(record.at)
        elif isinstance(record, EvictionsCancelled):
            self._state.cancel_evictions(record.pods, record.at)
        elif isinstance(record, PodsAssumed | PodsNominated | EntityRestored):
            self._state.restore(record)
        else:
            self._state.observe(record)
        return None

    def _compare(self, state: SchedulerState, line: int, record: DecisionMade) -> ReplayedDecision:
        taken, then = self._popped, decode_decision(record.decision)
        if taken is None or taken.entity.key != record.key:
            raise _ReplayDiverged(f"decides about {record.key}, which was not taken")
        self._popped, now = None, taken.decide()
        state.commit(taken.entity, then, record.at)
        return ReplayedDecision(line, record.at, entity_version(taken.entity), then, now)


def _start_state(started: LogStarted) -> SchedulerState:
    if started.format != FORMAT:
        raise _ReplayDiverged(
            f"is of format {started.format}; this version of phalanx reads {FORMAT}"
        )
    profiles = _recorded_profiles(started)
    desk = SchedulerState(profiles if started.groups_preempt else profiles.without_group_preemption)
    desk.queue.sequence = started.sequence
    return desk


def _recorded_profiles(started: LogStarted) -> Profiles:
    if started.configuration is None:
        return Profiles(dict.fromkeys(started.schedulers, DEFAULT_POLICY))
    found = read_configuration(started.configuration)
    if not isinstance(found, SchedulerConfiguration):
        raise _ReplayDiverged(
            f"has a configuration that is no good here: {'; '.join(map(str, found))}"
        )
    return found.profiles


class _PoppedEntity:
    """An entity that was taken, and how far it is decided about: up to the next question."""

    def __init__(self, state: SchedulerState, record: EntityPopped) -> None:
        entity = state.pop(record.at)
        found = entity_version(entity) if entity else None
        if entity is None or found != record.entity:
            got = found.key if found else "nothing"
            taken = record.entity.key
            raise _ReplayDiverged(f"takes {taken}, but now the queue gives {got} or another state")
        self.entity, self._cycle = entity, state.cycle(entity)
        self._step = resume_cycle(self._cycle)

    def send_answer(self, answer: SolverAnswer) -> None:
        """What was answered then; nothing is done with it if nothing is asked now."""
        if isinstance(self._step, SolverRequest):
            self._step = resume_cycle(self._cycle, answer)

    def decide(self) -> Decision:
        """What is decided; to what was not asked then there is no answer."""
        while isinstance(self._step, SolverRequest):
            self.send_answer(NO_SOLVER_ANSWER)
        return self._step
