"""Victims, nominations and trees are replayed exactly."""

from __future__ import annotations

from phalanx.scheduler.decision import Decision, Placed, Preempting, Waiting
from phalanx.scheduler.queue.decision_log import DecisionLogRecord, Observation
from phalanx.scheduler.queue.replay import ReplayedDecision
from tests.scheduler.builders import composite, gang, key, node, pod
from tests.scheduler.queue.test_replay import RecordedScheduler, log_started, replay_records


def scheduler_with_victims() -> RecordedScheduler:
    """A node full of a group of mode `all`, and a tree of higher priority."""
    scheduler = RecordedScheduler()
    low = gang("low", 1, disrupted_as_unit=True)
    scheduler.observe(node("n", cpu="2"), node("m", cpu="1"), low)
    scheduler.observe(*(pod(f"low-{i}", "low", on="n", cpu="1", phase="Running") for i in range(2)))
    scheduler.observe(composite("t", 2, priority=10), *(gang(name, 1, parent="t", priority=10)
                                                 for name in "ab"))  # fmt: skip
    scheduler.observe(*(pod(f"{name}-0", name, cpu="1", priority=10) for name in "ab"))
    return scheduler


def decode_decisions(records: list[DecisionLogRecord]) -> list[Decision]:
    """The replayed decisions of a log, which must equal the recorded ones."""
    found = replay_records(records)
    assert all(
        isinstance(one, ReplayedDecision) and one.recorded == one.replayed for one in found
    ), found
    return [one.recorded for one in found if isinstance(one, ReplayedDecision)]


def test_victims_nominations_and_trees_are_replayed_exactly() -> None:
    scheduler = scheduler_with_victims()
    scheduler.attempt(1.0)
    scheduler.observe(pod("late", cpu="1"), at=1.5)
    scheduler.attempt(2.0)
    scheduler.state.cancel_evictions(
        [(key("low-0"), "uid-low-0"), (key("low-1"), "uid-low-1")], 2.5
    )
    scheduler.attempt(100.0)
    scheduler.attempt(101.0)
    found = decode_decisions(scheduler.records)
    assert [type(one) for one in found] == [Preempting, Waiting, Preempting, Placed]
    assert all(one.waiting.parts for one in found if isinstance(one, Preempting))


def test_log_may_begin_while_victims_terminate() -> None:
    scheduler = scheduler_with_victims()
    scheduler.attempt(1.0)
    late = pod("late", cpu="1")
    scheduler.observe(late, at=1.5)
    pods = [scheduler.state.cache.unreported_nominations(), scheduler.state.cache.evicting_pods()]
    assert all(pods), "there are nominations and evictions"
    things: list[DecisionLogRecord] = [
        one for one in scheduler.records if isinstance(one, Observation)
    ]
    middle = [log_started(scheduler.state, 2.0), *things, *scheduler.state.checkpoint(2.0)]
    before = len(scheduler.records)
    scheduler.attempt(2.0)
    scheduler.attempt(100.0)
    after = decode_decisions([*middle, *scheduler.records[before:]])
    assert [type(one) for one in after] == [Waiting, Waiting]
    assert any(one.nominated for one in after if isinstance(one, Waiting))
