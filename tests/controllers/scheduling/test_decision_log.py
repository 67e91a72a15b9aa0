from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given

from phalanx.api.feature_gates import resolve_gates
from phalanx.controllers.scheduling.decision_log import (
    RESTART_DELAY,
    DecisionLog,
    DecisionLogFile,
    write_in_thread,
    write_inline,
)
from phalanx.scheduler.decision import Placed, Waiting
from phalanx.scheduler.queue.decision_log import (
    FORMAT,
    DecisionLogRecord,
    DecisionMade,
    LogStarted,
    NodeObserved,
    RecordEncoder,
)
from phalanx.scheduler.queue.replay import ReplayedDecision, replay
from phalanx.sim.scenario import parse_scenario
from phalanx.sim.simulation import run_scenario
from phalanx.sim.virtual_time import VirtualLoop
from tests.builders import in_virtual_time, share_of_examples
from tests.recording_log import captured_lines
from tests.sim.test_simulation import scenarios

START = LogStarted(0.0, FORMAT, "test", ("default-scheduler",))


def node(number: float) -> NodeObserved:
    return NodeObserved(float(number), f"n{number:g}", None)


class InMemoryLog:
    """Keeps written records, a list per checkpoint; can be full or broken."""

    def __init__(self, full: int = 1_000_000) -> None:
        self.checkpoints: list[list[DecisionLogRecord]] = []
        self.full = full
        self.broken = False

    def write(self, records: Sequence[DecisionLogRecord]) -> bool:
        if self.broken:
            raise OSError("no space left on device")
        for record in records:
            if isinstance(record, LogStarted):
                self.checkpoints.append([])
            self.checkpoints[-1].append(record)
        return bool(self.checkpoints) and len(self.checkpoints[-1]) >= self.full

    def log(self, **settings: int) -> DecisionLog:
        return DecisionLog(write_inline(self.write), **settings)


def replay_records(records: list[DecisionLogRecord]) -> list[ReplayedDecision]:
    found = list(replay(RecordEncoder().encode(records)))
    assert [one for one in found if not isinstance(one, ReplayedDecision) or one.differs] == []
    return [one for one in found if isinstance(one, ReplayedDecision)]


# ---- records -------------------------------------------------------------------------------------


@given(scenarios(disturbed=True))
@share_of_examples(0.1)
def test_decisions_can_be_replayed_from_the_log(text: str) -> None:
    memory = InMemoryLog()
    run_scenario(parse_scenario(text), memory.log())
    (records,) = memory.checkpoints
    assert (
        len(replay_records(records))
        == sum(isinstance(record, DecisionMade) for record in records)
        > 0
    )


@given(scenarios(disturbed=True))
@share_of_examples(0.1)
def test_every_checkpoint_of_a_log_can_be_replayed(text: str) -> None:
    memory = InMemoryLog(full=1)
    run_scenario(parse_scenario(text), memory.log())
    assert len(memory.checkpoints) > 1
    for records in memory.checkpoints:
        assert len(replay_records(records)) == sum(
            isinstance(record, DecisionMade) for record in records
        )


TWO_GANGS = """
nodes: {each: {gpu: 4}}
at 0: [{gang: a, pods: 3, each: {gpu: 1}}, {gang: b, pods: 3, each: {gpu: 1}, run: 5}]
at 10: {finish: a}
until: 60
"""


def test_a_log_contains_placed_and_waiting_entities() -> None:
    memory = InMemoryLog()
    run_scenario(parse_scenario(TWO_GANGS), memory.log())
    kinds = [
        (one.entity.key.name, type(one.recorded)) for one in replay_records(memory.checkpoints[0])
    ]
    assert kinds[0] == ("a", Placed)
    assert ("b", Waiting) in kinds
    assert kinds[-1] == ("b", Placed)


def test_without_groups_the_log_contains_pods() -> None:
    memory, scenario = InMemoryLog(), parse_scenario(TWO_GANGS)
    run_scenario(replace(scenario, gates=resolve_gates({"GangScheduling": False})), memory.log())
    names = [one.entity.key.name for one in replay_records(memory.checkpoints[0])]
    assert {"a-0", "a-1", "a-2"} < set(names)


def test_a_log_does_not_change_decisions() -> None:
    scenario = parse_scenario(TWO_GANGS)
    assert (
        run_scenario(scenario, InMemoryLog(full=10).log()).text() == run_scenario(scenario).text()
    )


# ---- the buffer ----------------------------------------------------------------------------------


@asynccontextmanager
async def running_log(log: DecisionLog) -> AsyncIterator[None]:
    """Run the log while the context lasts."""
    running = asyncio.create_task(log.run())
    await asyncio.sleep(0)
    try:
        yield
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


@in_virtual_time
async def test_records_before_the_first_checkpoint_are_dropped() -> None:
    memory = InMemoryLog()
    log = memory.log()
    async with running_log(log):
        assert log.needs_checkpoint
        log.record(node(1))
        log.begin([START])
        log.record(node(2))
        assert not log.needs_checkpoint
        await asyncio.sleep(1)
        assert memory.checkpoints == [[START, node(2)]]


@in_virtual_time
async def test_the_rest_is_written_at_the_end_and_a_new_run_needs_a_checkpoint() -> None:
    memory = InMemoryLog()
    log = memory.log()
    async with running_log(log):
        log.begin([START, node(1)])
    assert memory.checkpoints == [[START, node(1)]]
    assert log.needs_checkpoint


@in_virtual_time
async def test_a_full_file_requires_a_checkpoint() -> None:
    memory = InMemoryLog(full=3)
    log = memory.log()
    async with running_log(log):
        log.begin([START])
        log.record(node(1))
        await asyncio.sleep(1)
        assert not log.needs_checkpoint
        log.record(node(2))
        await asyncio.sleep(1)
        assert log.needs_checkpoint
        log.record(node(3))
        log.begin([START])
    assert memory.checkpoints == [[START, node(1), node(2), node(3)], [START]]


@in_virtual_time
async def test_records_beyond_the_buffer_are_dropped_until_a_checkpoint(
    caplog: pytest.LogCaptureFixture,
) -> None:
    memory = InMemoryLog()
    log = memory.log(capacity=2)
    async with running_log(log):
        log.begin([START, node(0)])
        for number in range(1, 9):
            log.record(node(number))
        assert not log.needs_checkpoint
        await asyncio.sleep(RESTART_DELAY)
        assert memory.checkpoints == [[START, node(0), node(1), node(2)]]
        (line,) = captured_lines(caplog, "scheduler")
        assert (line.level, line.message) == ("WARNING", "decision log has a gap")
        assert line.fields["reason"] == "the buffer is full"
        assert log.needs_checkpoint
        log.begin([START])
        log.record(node(9))
    assert memory.checkpoints[1:] == [[START, node(9)]]


@in_virtual_time
async def test_after_a_write_error_the_log_starts_again_with_a_checkpoint(
    caplog: pytest.LogCaptureFixture,
) -> None:
    memory = InMemoryLog()
    log = memory.log()
    memory.broken = True
    async with running_log(log):
        log.begin([START])
        await asyncio.sleep(1)
        (line,) = captured_lines(caplog, "scheduler")
        assert (line.level, line.message) == ("WARNING", "decision log has a gap")
        assert line.fields["reason"] == "no space left on device"
        memory.broken = False
        log.record(node(1))
        assert not log.needs_checkpoint
        await asyncio.sleep(RESTART_DELAY)
        assert log.needs_checkpoint
        log.begin([START])
    assert memory.checkpoints == [[START]]


# ---- the file ------------------------------------------------------------------------------------


def text_of(*records: DecisionLogRecord) -> bytes:
    return b"".join(RecordEncoder().encode(records))


def test_a_checkpoint_starts_a_new_file_and_some_old_ones_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "log"
    file = DecisionLogFile(path, max_backups=2)
    for number in range(5):
        file.write([START, node(number)])
    assert path.read_bytes() == text_of(START, node(4))
    assert path.with_name("log.1").read_bytes() == text_of(START, node(3))
    assert path.with_name("log.2").read_bytes() == text_of(START, node(2))
    assert len(list(tmp_path.iterdir())) == 3


def test_several_checkpoints_may_be_in_one_batch(tmp_path: Path) -> None:
    path = tmp_path / "log"
    DecisionLogFile(path).write([START, node(1), START, node(2)])
    assert path.read_bytes() == text_of(START, node(2))
    assert path.with_name("log.1").read_bytes() == text_of(START, node(1))


def test_a_file_reports_when_it_is_full_and_is_private(tmp_path: Path) -> None:
    path = tmp_path / "log"
    file = DecisionLogFile(path, max_bytes=len(text_of(START, node(1))))
    assert not file.write([])
    assert not file.write([START])
    assert file.write([node(1)])
    assert path.read_bytes() == text_of(START, node(1))
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_failed_write_rotates_no_file(tmp_path: Path) -> None:
    path = tmp_path / "log"
    file = DecisionLogFile(path, max_backups=1)
    file.write([START, node(1)])
    unwritable: DecisionLogRecord = NodeObserved(0.0, "n", object())  # type: ignore[arg-type]
    for _ in range(3):
        with pytest.raises(TypeError):
            file.write([START, unwritable])
    assert path.with_name("log.1").read_bytes() == text_of(START, node(1))


def test_batches_are_written_in_order_in_a_thread(tmp_path: Path) -> None:
    path = tmp_path / "log"

    async def work() -> None:
        write = write_in_thread(DecisionLogFile(path).write)
        writes = [write([START]), *(write([node(number)]) for number in range(50))]
        await asyncio.gather(*writes)

    asyncio.run(work())
    assert path.read_bytes() == text_of(START, *(node(number) for number in range(50)))


def test_there_are_no_threads_in_virtual_time() -> None:
    with pytest.raises(RuntimeError, match="no threads"), asyncio.Runner(
        loop_factory=VirtualLoop
    ) as runner:  # fmt: skip
        runner.run(_write_in_thread())


async def _write_in_thread() -> None:
    await write_in_thread(InMemoryLog().write)([])
