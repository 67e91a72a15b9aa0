"""Rules of CronJobs: the schedule, its time zone, limits, and the template of Jobs."""

from __future__ import annotations

import re
import zoneinfo
from functools import cache
from typing import Any

from phalanx.api.causes import Causes, invalid, required
from phalanx.api.cron import BadSchedule, parse
from phalanx.api.errors import Cause
from phalanx.api.rules.checks import (
    CREATED,
    Check,
    at_creation,
    at_least,
    changed,
    every,
    given,
    needed,
    one_of,
    present,
    struct,
)
from phalanx.api.rules.job import JOB_TEMPLATE_SPEC

#: Jobs are called after their CronJob and the minute in which they begin.
MAX_NAME = 52
_ZONE_PART = re.compile(r"[A-Za-z0-9.\-_+]{1,14}").fullmatch
_NATURAL = given(at_least(0))


def _schedule(new: Any, old: Any) -> Causes:
    """A zone within the schedule is only kept where it has always been."""
    text = new.get("schedule", "")
    if not text:
        return [required("schedule")]
    found: list[Cause] = []
    try:
        parse(text)
    except BadSchedule as error:
        found.append(invalid("schedule", text, str(error)))
    had_zone = old is not CREATED and "TZ" in (old or {}).get("schedule", "")
    if "TZ" in text and not had_zone:
        detail = "cannot use TZ or CRON_TZ in schedule, use timeZone field instead"
        found.append(invalid("schedule", text, detail))
    elif "TZ" in text and new.get("timeZone") is not None:
        detail = "cannot use both timeZone field and TZ or CRON_TZ in schedule"
        found.append(invalid("schedule", text, detail))
    return found


@cache
def _zones() -> frozenset[str]:
    """The time zones that this machine knows."""
    return frozenset(zoneinfo.available_timezones())


def _zone(new: Any, old: Any) -> Causes:
    if not new:
        return [invalid("", new, "timeZone must be nil or non-empty string")]
    if new.lower() == "local":
        detail = "timeZone must be an explicit time zone as defined in "
        return [invalid("", new, f"{detail}https://www.iana.org/time-zones")]
    well_formed = all(
        _ZONE_PART(part) and part not in (".", "..") and part[0] != "-" for part in new.split("/")
    )
    # A machine that knows no zones at all is no reason to refuse them all.
    if well_formed and (new in _zones() or not _zones()):
        return ()
    return [invalid("", new, f"unknown time zone {new}")]


def _short_name(new: Any, old: Any) -> Causes:
    name = new["metadata"].get("name", "")
    if len(name) <= MAX_NAME:
        return ()
    return [invalid("metadata.name", name, f"must be no more than {MAX_NAME} characters")]


_SPEC = every(
    _schedule,
    struct(
        ("startingDeadlineSeconds", _NATURAL),
        ("timeZone", changed(present(_zone))),
        ("concurrencyPolicy", needed(one_of("Allow", "Forbid", "Replace"))),
        ("jobTemplate", struct(("spec", present(JOB_TEMPLATE_SPEC)))),
        ("successfulJobsHistoryLimit", _NATURAL),
        ("failedJobsHistoryLimit", _NATURAL),
    ),
)

CRON_JOB: Check = every(struct(("spec", present(_SPEC))), at_creation(_short_name))
