"""Timestamps and durations: parsing, formatting and their parts.

Time zones are offsets such as `+02:00`. Names of time zones are not supported: they would need the
time zone database of the system, on which validation must not depend.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from fractions import Fraction

from phalanx.api.cel.declarations import (
    DURATION,
    INTEGER,
    STRING,
    TIMESTAMP,
    FunctionOverload,
    method,
)
from phalanx.api.cel.values import (
    Duration,
    EvaluationError,
    Timestamp,
    format_fraction,
    make_duration,
    make_timestamp,
)

_SECOND = 10**9
_UNITS = {
    "ns": 1, "us": 10**3, "µs": 10**3, "μs": 10**3, "ms": 10**6, "s": _SECOND, "m": 60 * _SECOND,
    "h": 3600 * _SECOND,
}  # fmt: skip
_DURATION_PART = re.compile(r"(\d+\.?\d*|\.\d+)(ns|us|µs|μs|ms|[smh])")
_RFC3339 = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)[Tt](\d\d):(\d\d):(\d\d)(\.\d{1,9})?(?:[Zz]|([+-])(\d\d):(\d\d))"
)
_ZONE = re.compile(r"([+-]?)(\d\d):(\d\d)")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def parse_duration(text: str) -> Duration:
    """Parse `1h30m`, `-1.5s`, `0`."""
    unsigned = text[1:] if text[:1] in ("+", "-") else text
    parts = _DURATION_PART.findall(unsigned)
    whole = "".join(number + unit for number, unit in parts)
    if unsigned != "0" and (not parts or whole != unsigned or len(text) > 64):
        raise EvaluationError(f'time: invalid duration "{text}"')
    nanos: int | Fraction = 0
    for number, unit in parts:
        integer, _, decimals = number.partition(".")
        amount, rest = divmod(int(integer + decimals) * _UNITS[unit], scale := 10 ** len(decimals))
        nanos += amount + Fraction(rest, scale) if rest else amount
    return make_duration(int(-nanos if text[:1] == "-" else nanos))


def format_duration(value: Duration) -> str:
    """Format a duration in seconds: `5400s`, `0.5s`."""
    return f"{format_fraction(Fraction(value.nanos, _SECOND), 9).rstrip('0').rstrip('.')}s"


def parse_timestamp(text: str) -> Timestamp:
    """Parse `2026-01-31T12:00:00Z`."""
    match = _RFC3339.fullmatch(text)
    try:
        if match is None:
            raise ValueError(text)
        *whole, part, sign, hours, minutes = match.groups()
        found = datetime(*map(int, whole), tzinfo=UTC)  # type: ignore[arg-type, misc]
    except ValueError:
        raise EvaluationError(f'parsing time "{text}" as RFC 3339: cannot parse') from None
    offset = (int(hours) * 60 + int(minutes)) * (-1 if sign == "-" else 1) if sign else 0
    seconds = (found - _EPOCH) // timedelta(seconds=1) - offset * 60
    return make_timestamp(seconds * _SECOND + int(Fraction(part or "0") * _SECOND))


def format_timestamp(value: Timestamp) -> str:
    """Format a timestamp in UTC."""
    seconds, nanos = divmod(value.nanos, _SECOND)
    text = (_EPOCH + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%S")
    year, rest = text.split("-", 1)
    part = f".{nanos:09}".rstrip("0") if nanos else ""
    return f"{year.rjust(4, '0')}-{rest}{part}Z"


def _parse_time_zone(text: str) -> timezone:
    match = _ZONE.fullmatch(text)
    if text in ("", "UTC"):
        return UTC
    if match is None or int(match[2]) > 23:
        raise EvaluationError(f"unknown time zone {text}")
    minutes = int(match[2]) * 60 + int(match[3])
    return timezone(timedelta(minutes=-minutes if match[1] == "-" else minutes))


#: Methods for the parts of a timestamp. Months and days start at zero, except for getDate.
_CALENDAR_FIELDS: dict[str, Callable[[datetime], int]] = {
    "getFullYear": lambda at: at.year,
    "getMonth": lambda at: at.month - 1,
    "getDate": lambda at: at.day,
    "getDayOfMonth": lambda at: at.day - 1,
    "getDayOfWeek": lambda at: at.isoweekday() % 7,
    "getDayOfYear": lambda at: at.timetuple().tm_yday - 1,
    "getHours": lambda at: at.hour,
    "getMinutes": lambda at: at.minute,
    "getSeconds": lambda at: at.second,
    "getMilliseconds": lambda at: at.microsecond // 1000,
}


def _calendar_getter(read: Callable[[datetime], int]) -> Callable[..., int]:
    def part(value: Timestamp, zone: str = "UTC") -> int:
        at = _EPOCH + timedelta(microseconds=value.nanos // 1000)
        try:
            return read(at.astimezone(_parse_time_zone(zone)))
        except OverflowError:
            raise EvaluationError("timestamp overflow") from None

    return part


def _duration_getter(unit: int) -> Callable[[Duration], int]:
    return lambda value: abs(value.nanos) // unit * (-1 if value.nanos < 0 else 1)


_DURATION_UNITS = {
    "getHours": 3600 * _SECOND, "getMinutes": 60 * _SECOND, "getSeconds": _SECOND,
    "getMilliseconds": 10**6,
}  # fmt: skip

TIME_FUNCTIONS: list[FunctionOverload] = [
    *(
        method(name, (TIMESTAMP,), INTEGER, _calendar_getter(read))
        for name, read in _CALENDAR_FIELDS.items()
    ),
    *(
        method(name, (TIMESTAMP, STRING), INTEGER, _calendar_getter(read))
        for name, read in _CALENDAR_FIELDS.items()
    ),
    *(
        method(name, (DURATION,), INTEGER, _duration_getter(unit))
        for name, unit in _DURATION_UNITS.items()
    ),
]
