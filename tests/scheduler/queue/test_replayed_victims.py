"""Victims, promises and trees: told again, they are decided again to the last bit."""

from __future__ import annotations

from phalanx.scheduler.decision import Decision, Placed, Preempting, Waiting
from phalanx.scheduler.queue.decision_log import DecisionLogRecord, Observation
from phalanx.scheduler.queue.replay import ReplayedDecision
from tests.scheduler.builders import composite, gang, key, node, pod
from tests.scheduler.queue.test_replay import RecordedScheduler, log_started, replay_records


def scheduler_with_victims() -> RecordedScheduler:
    """A node full of somebody who goes as a whole, and a tree that is more important."""
    told = RecordedScheduler()
    low = gang("low", 1, goes_whole=True)
    told.observe(node("n", cpu="2"), node("m", cpu="1"), low)
    told.observe(*(pod(f"low-{i}", "low", on="n", cpu="1", phase="Running") for i in range(2)))
    told.observe(composite("t", 2, priority=10), *(gang(name, 1, parent="t", priority=10)
                                                 for name in "ab"))  # fmt: skip
    told.observe(*(pod(f"{name}-0", name, cpu="1", priority=10) for name in "ab"))
    return told


def decode_decisions(records: list[DecisionLogRecord]) -> list[Decision]:
    """What is decided of a record, which must be what was decided then."""
    found = replay_records(records)
    assert all(
        isinstance(one, ReplayedDecision) and one.recorded == one.replayed for one in found
    ), found
    return [one.recorded for one in found if isinstance(one, ReplayedDecision)]


def test_victims_promises_and_trees_are_decided_again_bit_for_bit() -> None:
    told = scheduler_with_victims()
    told.attempt(1.0)
    told.observe(pod("late", cpu="1"), at=1.5)
    told.attempt(2.0)
    told.state.cancel_evictions([(key("low-0"), "uid-low-0"), (key("low-1"), "uid-low-1")], 2.5)
    told.attempt(100.0)
    told.attempt(101.0)
    found = decode_decisions(told.records)
    assert [type(one) for one in found] == [Preempting, Waiting, Preempting, Placed]
    assert all(one.waiting.parts for one in found if isinstance(one, Preempting))


def test_a_record_may_begin_while_others_are_making_way() -> None:
    told = scheduler_with_victims()
    told.attempt(1.0)
    late = pod("late", cpu="1")
    told.observe(late, at=1.5)
    pods = [told.state.cache.unreported_nominations(), told.state.cache.evicting_pods()]
    assert all(pods), "somebody was promised something, somebody is to go"
    things: list[DecisionLogRecord] = [one for one in told.records if isinstance(one, Observation)]
    middle = [log_started(told.state, 2.0), *things, *told.state.checkpoint(2.0)]
    before = len(told.records)
    told.attempt(2.0)
    told.attempt(100.0)
    after = decode_decisions([*middle, *told.records[before:]])
    assert [type(one) for one in after] == [Waiting, Waiting]
    assert any(one.nominated for one in after if isinstance(one, Waiting))
