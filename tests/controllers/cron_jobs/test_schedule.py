"""Schedules in time zones: missed start times, the next one, and invalid texts."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from phalanx.controllers.cron_jobs.controller import (
    MAX_MISSED_STARTS,
    CronJobSchedule,
    MissedStarts,
    parse_cron_job_schedule,
)
from phalanx.controllers.cron_jobs.history import CronJobEvent

NOW = datetime(2027, 1, 15, 8, tzinfo=UTC).timestamp()


def parsed_schedule(schedule: str, zone: str | None = None) -> CronJobSchedule:
    found = parse_cron_job_schedule(schedule, zone)
    assert isinstance(found, CronJobSchedule)
    return found


@pytest.mark.parametrize(
    ("minutes", "expected"),
    [
        (0, MissedStarts()),
        (1, MissedStarts(NOW)),
        (MAX_MISSED_STARTS, MissedStarts(NOW)),
        (MAX_MISSED_STARTS + 1, MissedStarts(NOW, is_over_limit=True)),
        (100 * MAX_MISSED_STARTS, MissedStarts(NOW, is_over_limit=True)),
    ],
)
def test_latest_missed_start_time_is_found(minutes: int, expected: MissedStarts) -> None:
    assert parsed_schedule("* * * * *").missed_starts(NOW - 60 * minutes, NOW) == expected


def test_latest_missed_start_time_is_found_over_a_gap() -> None:
    long_ago, yesterday = NOW - 30 * 86400, datetime(2027, 1, 14, 9, 59, tzinfo=UTC).timestamp()
    assert parsed_schedule("* 9 * * *").missed_starts(long_ago, NOW) == MissedStarts(
        yesterday, is_over_limit=True
    )


def test_next_start_is_after_now_or_none() -> None:
    assert parsed_schedule("* * * * *").next_start(NOW) == NOW + 60
    assert parsed_schedule("59 23 31 2 *").next_start(NOW) is None


def test_times_are_formatted_with_the_offset_of_the_zone() -> None:
    assert parsed_schedule("@daily").format_time(NOW) == "2027-01-15T08:00:00Z"
    assert parsed_schedule("@daily", "UTC").format_time(NOW) == "2027-01-15T08:00:00Z"
    assert parsed_schedule("@daily", "Asia/Kolkata").format_time(NOW) == "2027-01-15T13:30:00+05:30"


@pytest.mark.parametrize("zone", ["Nowhere/Land", "", "../etc/passwd", "Europe"])
def test_invalid_time_zone_is_an_event(zone: str) -> None:
    text = f'invalid timeZone: "{zone}": unknown time zone {zone}'
    assert parse_cron_job_schedule("@daily", zone) == CronJobEvent(
        "UnknownTimeZone", text, "Warning"
    )


def test_invalid_schedule_is_an_event() -> None:
    found = parse_cron_job_schedule("now and then", None)
    assert isinstance(found, CronJobEvent)
    assert found.reason == "UnparseableSchedule"
    assert found.message.startswith('unparseable schedule: "now and then" : expected exactly 5')
