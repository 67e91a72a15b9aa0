"""How often conditions and events of pending entities are reported."""

from __future__ import annotations

import pytest

from phalanx.api.meta import Condition
from phalanx.controllers.scheduling import report_limits
from phalanx.controllers.scheduling.report_limits import FailureEvents, MessageLimit


class ManualClock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.time = 0.0

    def now(self) -> float:
        return self.time


OLD = (Condition(type="PodScheduled", status="False", reason="Unschedulable", message="3 nodes"),)


def change(message: str, reason: str = "Unschedulable", status: str = "False") -> dict[str, str]:
    return {"type": "PodScheduled", "status": status, "reason": reason, "message": message}


def test_changed_numbers_wait_ten_seconds_after_the_last_ones() -> None:
    clock = ManualClock()
    limit = MessageLimit(clock)
    assert limit.delay("uid", OLD, [change("4 nodes")]) == 0
    clock.time = 4.0
    assert limit.delay("uid", OLD, [change("5 nodes")]) == 6
    assert limit.delay("other", OLD, [change("5 nodes")]) == 0
    clock.time = 10.0
    assert limit.delay("uid", OLD, [change("5 nodes")]) == 0


@pytest.mark.parametrize(
    "changed",
    [
        change("", reason="SchedulerError"),
        change("", status="True"),
        {**change("4 nodes"), "observedGeneration": 2},
        {"type": "PodScheduled", "$patch": "delete"},
        {**change("4 nodes"), "type": "Other"},
    ],
)
def test_change_of_more_than_the_message_is_written_at_once(changed: dict[str, str]) -> None:
    limit = MessageLimit(ManualClock())
    assert limit.delay("uid", OLD, [change("4 nodes")]) == 0
    assert limit.delay("uid", OLD, [change("5 nodes")]) > 0
    assert limit.delay("uid", OLD, [changed]) == 0


def test_limits_remember_a_bounded_number_of_objects(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report_limits, "_MAX_REMEMBERED", 2)
    clock = ManualClock()
    limit, events = MessageLimit(clock), FailureEvents(clock)
    for n in range(5):
        clock.time += 20.0
        assert limit.delay(f"uid-{n}", OLD, [change("4 nodes")]) == 0
        assert events.is_new(f"uid-{n}", "Unschedulable")
    assert limit.delay("uid-4", OLD, [change("5 nodes")]) > 0
    assert not events.is_new("uid-4", "Unschedulable")
    assert events.is_new("uid-0", "Unschedulable")


def test_group_gets_one_event_per_reason() -> None:
    clock = ManualClock()
    events = FailureEvents(clock)
    assert events.is_new("uid", "Unschedulable")
    clock.time = 1000.0
    assert not events.is_new("uid", "Unschedulable")
    assert events.is_new("uid", "SchedulingUndecided")
    events.forget("uid")
    assert events.is_new("uid", "SchedulingUndecided")


def test_pod_gets_an_event_for_another_message_after_ten_seconds() -> None:
    clock = ManualClock()
    events = FailureEvents(clock)
    assert events.is_new("uid", "Unschedulable", "3 nodes")
    assert not events.is_new("uid", "Unschedulable", "4 nodes")
    clock.time = 10.0
    assert not events.is_new("uid", "Unschedulable", "3 nodes")
    assert events.is_new("uid", "Unschedulable", "4 nodes")
