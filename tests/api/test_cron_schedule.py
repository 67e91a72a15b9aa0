"""Schedules of CronJobs: parsing, and their occurrences in time zones."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from itertools import islice
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.api.cron_schedule import (
    BadSchedule,
    CronSchedule,
    last_occurrence,
    occurrences,
    parse_schedule,
)

ALL_MINUTES = frozenset(range(60))


@pytest.mark.parametrize(
    ("text", "minutes"),
    [
        ("*", ALL_MINUTES),
        ("?", ALL_MINUTES),
        ("5", {5}),
        ("*/20", {0, 20, 40}),
        ("50/5", {50, 55}),
        ("1-4", {1, 2, 3, 4}),
        ("1-9/4", {1, 5, 9}),
        ("1,2-3,58", {1, 2, 3, 58}),
    ],
)
def test_field_is_a_list_of_ranges_with_steps(text: str, minutes: set[int]) -> None:
    assert parse_schedule(f"{text} * * * *").minutes == minutes


def test_months_and_weekdays_have_names() -> None:
    schedule = parse_schedule("0 0 1 JAN-mar sun,Tue")
    assert schedule.months == {1, 2, 3}
    assert schedule.weekdays == {0, 2}
    assert schedule.days == {1}
    assert not schedule.any_day
    assert not schedule.any_weekday


def test_unrestricted_day_field_matches_any_day() -> None:
    schedule = parse_schedule("0 0 * * mon")
    assert schedule.any_day
    assert not schedule.any_weekday
    assert not parse_schedule("0 0 */2 * *").any_day


@pytest.mark.parametrize(
    ("word", "same"),
    [
        ("@yearly", "0 0 1 1 *"),
        ("@annually", "0 0 1 1 *"),
        ("@monthly", "0 0 1 * *"),
        ("@weekly", "0 0 * * 0"),
        ("@daily", "0 0 * * *"),
        ("@midnight", "0 0 * * *"),
        ("@hourly", "0 * * * *"),
        ("TZ=Europe/Berlin 0 6 * * *", "0 6 * * *"),
        ("CRON_TZ=UTC @daily", "@daily"),
    ],
)
def test_descriptors_expand_to_schedules(word: str, same: str) -> None:
    assert parse_schedule(word) == parse_schedule(same)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("1h30m", 5400), ("90s", 90), ("1.5m", 90), ("10ms", 1), ("0", 1), ("-5s", 1), ("+2s", 2)],
)
def test_schedule_may_be_an_interval(text: str, seconds: int) -> None:
    assert parse_schedule(f"@every {text}").every == timedelta(seconds=seconds)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("often", "expected exactly 5 fields, found 1: [often]"),
        ("* * * * * *", "expected exactly 5 fields, found 6: [* * * * * *]"),
        ("TZ=UTC", "expected exactly 5 fields, found 1: [TZ=UTC]"),
        ("61 * * * *", "end of range (61) above maximum (59): 61"),
        ("* 24 * * *", "end of range (24) above maximum (23): 24"),
        ("* * 0 * *", "beginning of range (0) below minimum (1): 0"),
        ("* * * 13 *", "end of range (13) above maximum (12): 13"),
        ("* * * * 7", "end of range (7) above maximum (6): 7"),
        ("9-5 * * * *", "beginning of range (9) beyond end of range (5): 9-5"),
        ("*/0 * * * *", "step of range should be a positive number: */0"),
        ("1-2-3 * * * *", "too many hyphens: 1-2-3"),
        ("1/2/3 * * * *", "too many slashes: 1/2/3"),
        ("x * * * *", 'failed to parse int from x: strconv.Atoi: parsing "x": invalid syntax'),
        ("*/-5 * * * *", "negative number (-5) not allowed: -5"),
        ("@never", "unrecognized descriptor: @never"),
        ("@every day", 'failed to parse duration @every day: time: invalid duration "day"'),
        ("@every 99999999999h", "failed to parse duration"),
        ("@every " + "9" * 9000 + "h", "failed to parse duration"),
    ],
)
def test_malformed_schedule_is_refused_with_the_reason(text: str, why: str) -> None:
    with pytest.raises(BadSchedule, match=re.escape(why)):
        parse_schedule(text)


@given(st.text(alphabet="*/-,?0159 @TZ=evrymonjan", max_size=40))
def test_any_text_parses_or_raises_bad_schedule(text: str) -> None:
    try:
        schedule = parse_schedule(text)
    except BadSchedule:
        return
    assert schedule.every is not None or schedule.minutes <= ALL_MINUTES


# ---- occurrences ---------------------------------------------------------------------------------

NEW_YORK = ZoneInfo("America/New_York")
#: 2026-03-07T12:00:00 in New York, the day before daylight saving time begins.
SATURDAY = datetime(2026, 3, 7, 12, tzinfo=NEW_YORK).timestamp()


def find_occurrences(text: str, number: int, after: float = SATURDAY) -> list[str]:
    """Return the next occurrences in the time zone of New York."""
    moments = islice(occurrences(parse_schedule(text), after, NEW_YORK), number)
    return [datetime.fromtimestamp(one, NEW_YORK).isoformat() for one in moments]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("* * * * *", "2026-03-07T12:01:00-05:00"),
        ("0 12 * * *", "2026-03-08T12:00:00-04:00"),
        ("*/15 8-18 * * mon-fri", "2026-03-09T08:00:00-04:00"),
        ("0 0 1 * *", "2026-04-01T00:00:00-04:00"),
        ("0 0 13 * fri", "2026-03-13T00:00:00-04:00"),
        ("0 0 31 * *", "2026-03-31T00:00:00-04:00"),
        ("30 6 29 2 *", "2028-02-29T06:30:00-05:00"),
        ("0 0 1 1 *", "2027-01-01T00:00:00-05:00"),
        ("@every 90s", "2026-03-07T12:01:30-05:00"),
    ],
)
def test_next_occurrence_is_the_first_match_after_a_time(text: str, expected: str) -> None:
    assert find_occurrences(text, 1) == [expected]


def test_either_day_field_suffices_where_both_are_restricted() -> None:
    assert find_occurrences("0 0 1,15 * sun", 3) == [
        "2026-03-08T00:00:00-05:00", "2026-03-15T00:00:00-04:00", "2026-03-22T00:00:00-04:00",
    ]  # fmt: skip


def test_local_times_skipped_in_spring_do_not_occur() -> None:
    assert find_occurrences("30 2 * * *", 2) == [
        "2026-03-09T02:30:00-04:00",
        "2026-03-10T02:30:00-04:00",
    ]


def test_local_times_repeated_in_autumn_occur_twice() -> None:
    before = datetime(2026, 10, 31, 12, tzinfo=NEW_YORK).timestamp()
    assert find_occurrences("30 1 * * *", 3, before) == [
        "2026-11-01T01:30:00-04:00", "2026-11-01T01:30:00-05:00", "2026-11-02T01:30:00-05:00",
    ]  # fmt: skip


def test_day_without_midnight_begins_with_its_first_local_time() -> None:
    havana = ZoneInfo("America/Havana")
    before = datetime(2026, 3, 7, 23, 30, tzinfo=havana).timestamp()
    moment = next(occurrences(parse_schedule("0 * 8 3 *"), before, havana))
    assert datetime.fromtimestamp(moment, havana).isoformat() == "2026-03-08T01:00:00-04:00"


def test_schedule_without_match_in_five_years_has_no_occurrence() -> None:
    assert find_occurrences("59 23 31 2 *", 1) == []
    assert find_occurrences("* * * * *", 1, after=253_402_300_000.0) == []


SCHEDULES = st.sampled_from(
    ["* * * * *", "*/7 3-5 * * *", "0 9 * * mon", "30 1 1 11 *", "0 0 29 2 *", "@every 13m"]
)


@given(SCHEDULES, st.integers(0, 5000), st.integers(0, 60 * 60))
def test_occurrences_are_exactly_the_matching_minutes(text: str, hours: int, seconds: int) -> None:
    schedule, after = parse_schedule(text), SATURDAY + 3600 * hours + seconds
    first = next(occurrences(schedule, after, UTC))
    if schedule.every is None:
        begin = after // 60 * 60 + 60
        minutes = (begin + 60 * n for n in range(2000))
        expected = next((m for m in minutes if is_in_schedule(schedule, m)), None)
        assert first == expected if expected is not None else first >= begin + 60 * 2000
        assert is_in_schedule(schedule, first)


def is_in_schedule(schedule: CronSchedule, moment: float) -> bool:
    local = datetime.fromtimestamp(moment, UTC)
    return (
        local.minute in schedule.minutes
        and local.hour in schedule.hours
        and local.month in schedule.months
        and schedule.has_day(local)
    )


@given(SCHEDULES, st.integers(0, 100_000), st.integers(0, 400))
def test_last_occurrence_is_the_last_of_all_occurrences(
    text: str, start: int, minutes: int
) -> None:
    schedule, after = parse_schedule(text), SATURDAY + start
    until = after + 60 * minutes + 0.5
    everything = islice(occurrences(schedule, after, NEW_YORK), 500)
    expected = [moment for moment in everything if moment <= until]
    assert last_occurrence(schedule, after, until, zone=NEW_YORK) == (
        expected[-1] if expected else None
    )
