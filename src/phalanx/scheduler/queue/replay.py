"""Replays a decision log: applies its records to a new state and repeats every decision.

    lines ─▶ read_records ─▶ SchedulerState ─▶ the decision now, beside the recorded one

A decision that differs is reported; then the recorded one is committed, so that the following ones
can be compared too. If the queue returns another entity than the recorded one, the replay has
diverged: nothing is compared until the next beginning. Nothing here reads files.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from phalanx.scheduler.configuration.scheduler_configuration import (
    SchedulerConfiguration,
    parse_configuration,
)
from phalanx.scheduler.cycle import resume_cycle
from phalanx.scheduler.decision import Decision
from phalanx.scheduler.entity import reject_after_error
from phalanx.scheduler.plugins.plugin import Plugin
from phalanx.scheduler.policy import DEFAULT_POLICY, Profiles
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
    ReservationsPlanned,
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
    """A recorded decision, and the decision for the same input now (None: not repeated)."""

    line: int
    at: float
    entity: EntityVersion
    recorded: Decision
    replayed: Decision | None = None

    @property
    def differs(self) -> bool:
        """Whether the two decisions differ in any field."""
        return self.replayed is not None and self.recorded != self.replayed


class _ReplayDiverged(Exception):
    """The state no longer matches the log."""


def replay(
    lines: Iterable[bytes], plugins: Sequence[Plugin] = ()
) -> Iterator[ReplayedDecision | RecordFault]:
    """Repeat every decision of a log, and report every line that is damaged.

    `plugins` are the out-of-tree plugins that the recorded configuration may name.
    """
    session = _ReplaySession(plugins)
    for found in read_records(lines):
        if isinstance(found, RecordFault):
            yield found
            continue
        number, record = found
        try:
            answer = session.apply(number, record)
        except _ReplayDiverged as error:
            session = _ReplaySession(plugins)
            yield RecordFault(number, str(error))
        except Exception as error:
            # A log that was edited can contain anything.
            session = _ReplaySession(plugins)
            yield RecordFault(number, f"cannot be replayed: {type(error).__name__}: {error}")
        else:
            if answer is not None:
                yield answer


def list_decisions(lines: Iterable[bytes]) -> Iterator[ReplayedDecision | RecordFault]:
    """List the recorded decisions without repeating them."""
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
        return ReplayedDecision(line, record.at, entity, recorded=decode_decision(record.decision))
    except ValueError as error:
        return RecordFault(line, f"cannot be decoded: {error}")


class _ReplaySession:
    """The state since the last beginning, and the entity that was popped last."""

    def __init__(self, plugins: Sequence[Plugin]) -> None:
        self._plugins = plugins
        self._state: SchedulerState | None = None
        self._popped: _PoppedEntity | None = None

    def apply(self, line: int, record: DecisionLogRecord) -> ReplayedDecision | None:
        """Apply a record; returns the comparison of a decision. Raises _ReplayDiverged."""
        if isinstance(record, LogStarted):
            self._state, self._popped = _start_state(record, self._plugins), None
        elif self._state is None:
            return None
        elif isinstance(record, EntityPopped):
            self._popped = _PoppedEntity(self._state, record)
        elif isinstance(record, SolverAnswered):
            if self._popped is not None:
                self._popped.resume(record.answer)
        elif isinstance(record, DecisionMade):
            return self._compare(self._state, line, record)
        elif isinstance(record, BindingsRolledBack):
            self._state.rollback(record.bindings, record.at)
        elif isinstance(record, SearchFinished):
            self._state.finish_search(record.at)
        elif isinstance(record, EvictionsCancelled):
            self._state.cancel_evictions(record.pods, record.at)
        elif isinstance(record, ReservationsPlanned):
            self._state.restore_reservations(record)
        elif isinstance(record, PodsAssumed | PodsNominated | EntityRestored):
            self._state.restore(record)
        else:
            self._state.observe(record)
        return None

    def _compare(self, state: SchedulerState, line: int, record: DecisionMade) -> ReplayedDecision:
        popped, recorded = self._popped, decode_decision(record.decision)
        if popped is None or popped.entity.key != record.key:
            raise _ReplayDiverged(f"decides about {record.key}, which was not popped")
        self._popped, replayed = None, popped.decide()
        state.commit(popped.entity, recorded, record.at)
        version = entity_version(popped.entity)
        return ReplayedDecision(line, record.at, version, recorded=recorded, replayed=replayed)


def _start_state(started: LogStarted, plugins: Sequence[Plugin]) -> SchedulerState:
    if started.format != FORMAT:
        raise _ReplayDiverged(
            f"has format {started.format}; this version of phalanx reads format {FORMAT}"
        )
    profiles = _load_profiles(started, plugins)
    state = SchedulerState(
        profiles if started.groups_preempt else profiles.without_group_preemption
    )
    state.queue.sequence = started.sequence
    return state


def _load_profiles(started: LogStarted, plugins: Sequence[Plugin]) -> Profiles:
    if started.configuration is None:
        return Profiles(dict.fromkeys(started.schedulers, DEFAULT_POLICY))
    found = parse_configuration(started.configuration, plugins)
    if not isinstance(found, SchedulerConfiguration):
        raise _ReplayDiverged(f"has an invalid configuration: {'; '.join(map(str, found))}")
    return found.profiles


class _PoppedEntity:
    """A popped entity, and its cycle up to the next solver request."""

    def __init__(self, state: SchedulerState, record: EntityPopped) -> None:
        entity = state.pop(record.at)
        found = entity_version(entity) if entity else None
        if entity is None or found != record.entity:
            returned = found.key if found else "nothing"
            expected = record.entity.key
            raise _ReplayDiverged(
                f"pops {expected}, but the queue returns {returned} or another version"
            )
        self.entity, self._cycle = entity, state.cycle(entity)
        self._step = self._run_to_next_step()

    def resume(self, answer: SolverAnswer) -> None:
        """Send the recorded answer; ignored if the cycle asks nothing now."""
        if isinstance(self._step, SolverRequest):
            self._step = self._run_to_next_step(answer)

    def _run_to_next_step(self, answer: SolverAnswer | None = None) -> SolverRequest | Decision:
        try:
            return resume_cycle(self._cycle, answer)
        except Exception as error:
            # The scheduler decides the same: its bug is in the log and can be reproduced.
            return reject_after_error(self.entity, error)

    def decide(self) -> Decision:
        """Return the decision; requests without a recorded answer get NO_SOLVER_ANSWER."""
        while isinstance(self._step, SolverRequest):
            self.resume(NO_SOLVER_ANSWER)
        return self._step
