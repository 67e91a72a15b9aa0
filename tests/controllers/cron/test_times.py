"""Timetables: what was missed, what comes next, and texts that make none."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from phalanx.controllers.cron.times import MANY, Missed, Remark, Timetable, timetable

NOW = datetime(2027, 1, 15, 8, tzinfo=UTC).timestamp()


def made(schedule: str, zone: str | None = None) -> Timetable:
    found = timetable(schedule, zone)
    assert isinstance(found, Timetable)
    return found


@pytest.mark.parametrize(
    ("minutes", "expected"),
    [
        (0, Missed()),
        (1, Missed(NOW)),
        (MANY, Missed(NOW)),
        (MANY + 1, Missed(NOW, are_many=True)),
        (100 * MANY, Missed(NOW, are_many=True)),
    ],
)
def test_the_latest_of_what_was_missed_counts(minutes: int, expected: Missed) -> None:
    assert made("* * * * *").missed(NOW - 60 * minutes, NOW) == expected


def test_the_latest_is_found_though_the_last_hours_had_none() -> None:
    long_ago, yesterday = NOW - 30 * 86400, datetime(2027, 1, 14, 9, 59, tzinfo=UTC).timestamp()
    assert made("* 9 * * *").missed(long_ago, NOW) == Missed(yesterday, are_many=True)


def test_the_next_start_comes_after_now_or_never() -> None:
    assert made("* * * * *").following(NOW) == NOW + 60
    assert made("59 23 31 2 *").following(NOW) is None


def test_moments_are_written_with_the_offset_of_the_zone() -> None:
    assert made("@daily").written(NOW) == "2027-01-15T08:00:00Z"
    assert made("@daily", "UTC").written(NOW) == "2027-01-15T08:00:00Z"
    assert made("@daily", "Asia/Kolkata").written(NOW) == "2027-01-15T13:30:00+05:30"


@pytest.mark.parametrize("zone", ["Nowhere/Land", "", "../etc/passwd", "Europe"])
def test_a_zone_that_is_none_is_told(zone: str) -> None:
    text = f'invalid timeZone: "{zone}": unknown time zone {zone}'
    assert timetable("@daily", zone) == Remark("UnknownTimeZone", text, "Warning")


def test_a_schedule_that_is_none_is_told() -> None:
    found = timetable("now and then", None)
    assert isinstance(found, Remark)
    assert found.reason == "UnparseableSchedule"
    assert found.message.startswith('unparseable schedule: "now and then" : expected exactly 5')
