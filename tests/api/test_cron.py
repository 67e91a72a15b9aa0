"""Schedules of CronJobs, read from their text."""

from __future__ import annotations

import re
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.api.cron import BadSchedule, parse

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
def test_a_field_is_a_list_of_ranges_with_steps(text: str, minutes: set[int]) -> None:
    assert parse(f"{text} * * * *").minutes == minutes


def test_months_and_weekdays_have_names() -> None:
    schedule = parse("0 0 1 JAN-mar sun,Tue")
    assert schedule.months == {1, 2, 3}
    assert schedule.weekdays == {0, 2}
    assert schedule.days == {1}
    assert not schedule.any_day
    assert not schedule.any_weekday


def test_a_day_that_is_not_restricted_is_any_day() -> None:
    schedule = parse("0 0 * * mon")
    assert schedule.any_day
    assert not schedule.any_weekday
    assert not parse("0 0 */2 * *").any_day


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
def test_words_stand_for_schedules(word: str, same: str) -> None:
    assert parse(word) == parse(same)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("1h30m", 5400), ("90s", 90), ("1.5m", 90), ("10ms", 1), ("0", 1), ("-5s", 1), ("+2s", 2)],
)
def test_a_schedule_may_be_a_distance(text: str, seconds: int) -> None:
    assert parse(f"@every {text}").every == timedelta(seconds=seconds)


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
def test_what_is_no_schedule_is_refused_with_the_reason(text: str, why: str) -> None:
    with pytest.raises(BadSchedule, match=re.escape(why)):
        parse(text)


@given(st.text(alphabet="*/-,?0159 @TZ=evrymonjan", max_size=40))
def test_any_text_is_a_schedule_or_refused(text: str) -> None:
    try:
        schedule = parse(text)
    except BadSchedule:
        return
    assert schedule.every is not None or schedule.minutes <= ALL_MINUTES
