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
from tests.builders import in_virtual_time, tried
from tests.sim.test_simulation import scenarios

BEGINNING = LogStarted(0.0, FORMAT, "test", ("default-scheduler",))


def node(number: float) -> NodeObserved:
    return NodeObserved(float(number), f"n{number:g}", None)


class InMemoryLog:
    """Keeps what is written, a list per beginning. Full after so many records; may break."""

    def __init__(self, full: int = 1_000_000) -> None:
        self.stories: list[list[DecisionLogRecord]] = []
        self.full = full
        self.broken = False

    def write(self, records: Sequence[DecisionLogRecord]) -> bool:
        if self.broken:
            raise OSError("no space left on device")
        for record in records:
            if isinstance(record, LogStarted):
                self.stories.append([])
            self.stories[-1].append(record)
        return bool(self.stories) and len(self.stories[-1]) >= self.full

    def log(self, **settings: int) -> DecisionLog:
        return DecisionLog(write_inline(self.write), **settings)


def replay_scenario(story: list[DecisionLogRecord]) -> list[ReplayedDecision]:
    found = list(replay(RecordEncoder().encode(story)))
    assert [one for one in found if not isinstance(one, ReplayedDecision) or one.differs] == []
    return [one for one in found if isinstance(one, ReplayedDecision)]


# ---- what it records -----------------------------------------------------------------------------


@given(scenarios(disturbed=True))
@tried(0.1)
def test_what_a_scheduler_does_can_be_replayed_from_its_log(text: str) -> None:
    memory = InMemoryLog()
    run_scenario(parse_scenario(text), memory.log())
    (story,) = memory.stories
    assert (
        len(replay_scenario(story)) == sum(isinstance(record, DecisionMade) for record in story) > 0
    )


@given(scenarios(disturbed=True))
@tried(0.1)
def test_every_part_of_a_log_can_be_replayed_by_itself(text: str) -> None:
    memory = InMemoryLog(full=1)
    run_scenario(parse_scenario(text), memory.log())
    assert len(memory.stories) > 1
    for story in memory.stories:
        assert len(replay_scenario(story)) == sum(
            isinstance(record, DecisionMade) for record in story
        )


TWO_GANGS = """
nodes: {each: {gpu: 4}}
at 0: [{gang: a, pods: 3, each: {gpu: 1}}, {gang: b, pods: 3, each: {gpu: 1}, run: 5}]
at 10: {finish: a}
until: 60
"""


def test_a_log_tells_who_was_refused_and_who_was_placed() -> None:
    memory = InMemoryLog()
    run_scenario(parse_scenario(TWO_GANGS), memory.log())
    kinds = [
        (one.entity.key.name, type(one.recorded)) for one in replay_scenario(memory.stories[0])
    ]
    assert kinds[0] == ("a", Placed)
    assert ("b", Waiting) in kinds
    assert kinds[-1] == ("b", Placed)


def test_where_groups_do_not_count_the_log_says_the_same_of_pods() -> None:
    memory, scenario = InMemoryLog(), parse_scenario(TWO_GANGS)
    run_scenario(replace(scenario, gates=resolve_gates({"GangScheduling": False})), memory.log())
    names = [one.entity.key.name for one in replay_scenario(memory.stories[0])]
    assert {"a-0", "a-1", "a-2"} < set(names)


def test_a_log_changes_nothing_about_what_is_decided() -> None:
    scenario = parse_scenario(TWO_GANGS)
    assert (
        run_scenario(scenario, InMemoryLog(full=10).log()).text() == run_scenario(scenario).text()
    )


# ---- the buffer ----------------------------------------------------------------------------------


@asynccontextmanager
async def running_log(log: DecisionLog) -> AsyncIterator[None]:
    """The log is written while the context lasts."""
    running = asyncio.create_task(log.run())
    await asyncio.sleep(0)
    try:
        yield
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


@in_virtual_time
async def test_nothing_is_kept_before_there_is_a_beginning() -> None:
    memory = InMemoryLog()
    log = memory.log()
    async with running_log(log):
        assert log.needs_checkpoint
        log.record(node(1))
        log.begin([BEGINNING])
        log.record(node(2))
        assert not log.needs_checkpoint
        await asyncio.sleep(1)
        assert memory.stories == [[BEGINNING, node(2)]]


@in_virtual_time
async def test_what_is_left_when_the_scheduler_ends_is_written_and_what_follows_begins_anew() -> (
    None
):
    memory = InMemoryLog()
    log = memory.log()
    async with running_log(log):
        log.begin([BEGINNING, node(1)])
    assert memory.stories == [[BEGINNING, node(1)]]
    assert log.needs_checkpoint


@in_virtual_time
async def test_when_a_file_is_full_a_new_beginning_is_asked_for() -> None:
    memory = InMemoryLog(full=3)
    log = memory.log()
    async with running_log(log):
        log.begin([BEGINNING])
        log.record(node(1))
        await asyncio.sleep(1)
        assert not log.needs_checkpoint
        log.record(node(2))
        await asyncio.sleep(1)
        assert log.needs_checkpoint
        log.record(node(3))
        log.begin([BEGINNING])
    assert memory.stories == [[BEGINNING, node(1), node(2), node(3)], [BEGINNING]]


@in_virtual_time
async def test_what_is_too_much_is_dropped_until_a_new_beginning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    memory = InMemoryLog()
    log = memory.log(capacity=2)
    async with running_log(log):
        log.begin([BEGINNING, node(0)])
        for number in range(1, 9):
            log.record(node(number))
        assert not log.needs_checkpoint
        await asyncio.sleep(RESTART_DELAY)
        assert memory.stories == [[BEGINNING, node(0), node(1), node(2)]]
        assert caplog.messages == ["the decision log has a gap: it cannot keep up"]
        assert log.needs_checkpoint
        log.begin([BEGINNING])
        log.record(node(9))
    assert memory.stories[1:] == [[BEGINNING, node(9)]]


@in_virtual_time
async def test_a_disk_that_is_full_is_tried_again_after_a_while(
    caplog: pytest.LogCaptureFixture,
) -> None:
    memory = InMemoryLog()
    log = memory.log()
    memory.broken = True
    async with running_log(log):
        log.begin([BEGINNING])
        await asyncio.sleep(1)
        assert caplog.messages == ["the decision log has a gap: no space left on device"]
        memory.broken = False
        log.record(node(1))
        assert not log.needs_checkpoint
        await asyncio.sleep(RESTART_DELAY)
        assert log.needs_checkpoint
        log.begin([BEGINNING])
    assert memory.stories == [[BEGINNING]]


# ---- the file ------------------------------------------------------------------------------------


def text_of(*records: DecisionLogRecord) -> bytes:
    return b"".join(RecordEncoder().encode(records))


def test_a_beginning_begins_a_new_file_and_some_old_ones_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "log"
    file = DecisionLogFile(path, max_backups=2)
    for number in range(5):
        file.write([BEGINNING, node(number)])
    assert path.read_bytes() == text_of(BEGINNING, node(4))
    assert path.with_name("log.1").read_bytes() == text_of(BEGINNING, node(3))
    assert path.with_name("log.2").read_bytes() == text_of(BEGINNING, node(2))
    assert len(list(tmp_path.iterdir())) == 3


def test_several_beginnings_may_come_at_once(tmp_path: Path) -> None:
    path = tmp_path / "log"
    DecisionLogFile(path).write([BEGINNING, node(1), BEGINNING, node(2)])
    assert path.read_bytes() == text_of(BEGINNING, node(2))
    assert path.with_name("log.1").read_bytes() == text_of(BEGINNING, node(1))


def test_a_file_says_when_it_is_full_and_is_for_ourselves_alone(tmp_path: Path) -> None:
    path = tmp_path / "log"
    file = DecisionLogFile(path, max_bytes=len(text_of(BEGINNING, node(1))))
    assert not file.write([])
    assert not file.write([BEGINNING])
    assert file.write([node(1)])
    assert path.read_bytes() == text_of(BEGINNING, node(1))
    assert path.stat().st_mode & 0o777 == 0o600


def test_what_could_not_be_written_pushes_nothing_out(tmp_path: Path) -> None:
    path = tmp_path / "log"
    file = DecisionLogFile(path, max_backups=1)
    file.write([BEGINNING, node(1)])
    unwritable: DecisionLogRecord = NodeObserved(0.0, "n", object())  # type: ignore[arg-type]
    for _ in range(3):
        with pytest.raises(TypeError):
            file.write([BEGINNING, unwritable])
    assert path.with_name("log.1").read_bytes() == text_of(BEGINNING, node(1))


def test_batches_are_written_in_order_in_a_thread(tmp_path: Path) -> None:
    path = tmp_path / "log"

    async def work() -> None:
        write = write_in_thread(DecisionLogFile(path).write)
        writes = [write([BEGINNING]), *(write([node(number)]) for number in range(50))]
        await asyncio.gather(*writes)

    asyncio.run(work())
    assert path.read_bytes() == text_of(BEGINNING, *(node(number) for number in range(50)))


def test_there_are_no_threads_in_virtual_time() -> None:
    with pytest.raises(RuntimeError, match="no threads"), asyncio.Runner(
        loop_factory=VirtualLoop
    ) as runner:  # fmt: skip
        runner.run(_write_in_thread())


async def _write_in_thread() -> None:
    await write_in_thread(InMemoryLog().write)([])
