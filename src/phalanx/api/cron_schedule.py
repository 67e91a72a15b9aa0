"""Schedules of CronJobs: five cron fields, or a name such as @daily.

    minute  hour  day of month  month  day of week
    */15    8-18  *             *      mon-fri          every 15 minutes in working hours

`parse_schedule` returns the allowed values of each field; `occurrences` yields the times of a
schedule in a time zone. As in cron, a day matches if either day field matches where both are
restricted. Local times that a daylight saving change skips do not occur; repeated ones occur twice.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta, tzinfo
from fractions import Fraction
from typing import Final


class BadSchedule(ValueError):
    """The text is not a schedule; the message is that of Kubernetes."""


@dataclass(frozen=True, slots=True)
class _Field:
    """The range of a cron field, and the names of its values."""

    low: int
    high: int
    names: Mapping[str, int]


def _name_numbers(first: int, text: str) -> Mapping[str, int]:
    return {name: number for number, name in enumerate(text.split(), first)}


_FIELDS: Final = (
    _Field(0, 59, {}),
    _Field(0, 23, {}),
    _Field(1, 31, {}),
    _Field(1, 12, _name_numbers(1, "jan feb mar apr may jun jul aug sep oct nov dec")),
    _Field(0, 6, _name_numbers(0, "sun mon tue wed thu fri sat")),
)
_DESCRIPTORS: Final = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_EVERY = "@every "
_ZONE = re.compile(r"(?:CRON_)?TZ=(\S*)\s+(.*)")
_WILDCARDS = ("*", "?")
_NUMBER, _UNIT = r"\d+(?:\.\d*)?|\.\d+", "ns|us|µs|μs|ms|s|m|h"
_DURATION_PART = re.compile(f"({_NUMBER})({_UNIT})")
_DURATION = re.compile(f"[+-]?(?:0|(?:(?:{_NUMBER})(?:{_UNIT}))+)")
_SECONDS_PER_UNIT: Final = {
    "ns": Fraction(1, 10**9), "us": Fraction(1, 10**6), "µs": Fraction(1, 10**6),
    "μs": Fraction(1, 10**6), "ms": Fraction(1, 1000), "s": Fraction(1), "m": Fraction(60),
    "h": Fraction(3600),
}  # fmt: skip
#: The search for the next occurrence ends after so many years, or at this time.
_MAX_YEARS, _MAX_TIME = 5, 250_000_000_000
#: Go counts durations in 63-bit nanoseconds; no longer text is a duration.
_MAX_DURATION_SECONDS, _MAX_DURATION_LENGTH = 2**63 // 10**9, 100


@dataclass(frozen=True, slots=True)
class CronSchedule:
    """The allowed values of each cron field, or a fixed interval.

    `any_day` and `any_weekday` say that the field is not restricted.
    """

    minutes: frozenset[int] = frozenset()
    hours: frozenset[int] = frozenset()
    days: frozenset[int] = frozenset()
    months: frozenset[int] = frozenset()
    weekdays: frozenset[int] = frozenset()
    any_day: bool = False
    any_weekday: bool = False
    every: timedelta | None = None

    def has_day(self, day: datetime) -> bool:
        """Whether the schedule matches the day of a time whose month matches."""
        matches_day = day.day in self.days
        matches_weekday = day.isoweekday() % 7 in self.weekdays
        if self.any_day or self.any_weekday:
            return matches_day and matches_weekday
        return matches_day or matches_weekday


def parse_schedule(text: str) -> CronSchedule:
    """Parse a schedule. Raises BadSchedule."""
    if match := _ZONE.fullmatch(text):
        text = match[2]
    if text.startswith(_EVERY):
        return CronSchedule(every=_parse_duration(text.removeprefix(_EVERY)))
    if text.startswith("@"):
        if text not in _DESCRIPTORS:
            raise BadSchedule(f"unrecognized descriptor: {text}")
        text = _DESCRIPTORS[text]
    parts = text.split()
    if len(parts) != len(_FIELDS):
        found = f"found {len(parts)}: [{' '.join(parts)}]"
        raise BadSchedule(f"expected exactly {len(_FIELDS)} fields, {found}")
    minutes, hours, days, months, weekdays = map(_parse_field, parts, _FIELDS)
    any_day, any_weekday = _is_unrestricted(parts[2]), _is_unrestricted(parts[4])
    return CronSchedule(
        minutes,
        hours,
        days,
        months=months,
        weekdays=weekdays,
        any_day=any_day,
        any_weekday=any_weekday,
    )


def occurrences(schedule: CronSchedule, after: float, zone: tzinfo) -> Iterator[float]:
    """Yield the times of a schedule after a time, in seconds since the epoch."""
    moment = _next_occurrence(schedule, float(int(after)), zone)
    while moment is not None:
        yield moment
        moment = _next_occurrence(schedule, moment, zone)


def last_occurrence(
    schedule: CronSchedule, after: float, until: float, *, zone: tzinfo
) -> float | None:
    """Return the latest time of a schedule in (after, until], if there is one."""
    if schedule.every is not None:
        step, first = schedule.every.total_seconds(), float(int(after))
        steps = (until - first) // step
        return first + steps * step if steps > 0 else None

    def has_none_after(second: int) -> bool:
        following = _next_occurrence(schedule, second, zone)
        return following is None or following > until

    seconds = range(int(after), int(until))
    # Bisection: from some second on, no occurrence follows before `until`.
    first = bisect_left(seconds, True, key=has_none_after)
    return _next_occurrence(schedule, seconds[first - 1], zone) if first else None


def _next_occurrence(schedule: CronSchedule, after: float, zone: tzinfo) -> float | None:
    if schedule.every is not None:
        return after + schedule.every.total_seconds()
    moment = after // 60 * 60 + 60
    end = min(moment + _MAX_YEARS * 366 * 86400, _MAX_TIME)
    while moment < end:
        local = datetime.fromtimestamp(moment, zone)
        midnight = local.replace(hour=0, minute=0, second=0, fold=0)
        if local.month not in schedule.months:
            moment = (midnight.replace(day=1) + timedelta(days=32)).replace(day=1).timestamp()
        elif not schedule.has_day(local):
            moment = (midnight + timedelta(days=1)).timestamp()
        elif local.hour not in schedule.hours:
            moment += 60 * (60 - local.minute)
        elif local.minute not in schedule.minutes:
            moment += 60
        else:
            return moment
    return None


def _is_unrestricted(part: str) -> bool:
    """Whether any expression of a field is a star without a step."""
    return any(one.removesuffix("/1").split("-")[0] in _WILDCARDS for one in part.split(","))


def _parse_field(part: str, field: _Field) -> frozenset[int]:
    expressions = [one for one in part.split(",") if one]
    return frozenset(value for one in expressions for value in _parse_range(one, field))


def _parse_range(expression: str, field: _Field) -> range:
    ends, *steps = expression.split("/")
    low, high = _parse_ends(expression, ends.split("-"), field)
    if len(steps) > 1:
        raise BadSchedule(f"too many slashes: {expression}")
    step = _parse_number(steps[0]) if steps else 1
    if steps and "-" not in ends:
        high = field.high
    if low < field.low:
        what = f"beginning of range ({low}) below minimum ({field.low})"
    elif high > field.high:
        what = f"end of range ({high}) above maximum ({field.high})"
    elif low > high:
        what = f"beginning of range ({low}) beyond end of range ({high})"
    elif step == 0:
        what = "step of range should be a positive number"
    else:
        return range(low, high + 1, step)
    raise BadSchedule(f"{what}: {expression}")


def _parse_ends(expression: str, ends: list[str], field: _Field) -> tuple[int, int]:
    if ends[0] in _WILDCARDS:
        return field.low, field.high
    low = _parse_value(ends[0], field)
    if len(ends) > 2:
        raise BadSchedule(f"too many hyphens: {expression}")
    return low, _parse_value(ends[-1], field)


def _parse_value(text: str, field: _Field) -> int:
    named = field.names.get(text.lower())
    return _parse_number(text) if named is None else named


def _parse_number(text: str) -> int:
    if not re.fullmatch(r"[+-]?[0-9]{1,18}", text):
        why = f'strconv.Atoi: parsing "{text}": invalid syntax'
        raise BadSchedule(f"failed to parse int from {text}: {why}")
    if int(text) < 0:
        raise BadSchedule(f"negative number ({text}) not allowed: {text}")
    return int(text)


def _parse_duration(text: str) -> timedelta:
    """Parse `1h30m` to whole seconds, at least one."""
    fits = len(text) <= _MAX_DURATION_LENGTH and _DURATION.fullmatch(text)
    parts = _DURATION_PART.findall(text) if fits else []
    total = sum((Fraction(number) * _SECONDS_PER_UNIT[unit] for number, unit in parts), Fraction())
    if not fits or total > _MAX_DURATION_SECONDS:
        why = f'time: invalid duration "{text}"'
        raise BadSchedule(f"failed to parse duration {_EVERY}{text}: {why}")
    return timedelta(seconds=1 if text.startswith("-") else max(1, int(total)))
