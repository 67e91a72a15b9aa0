"""The timetable of a CronJob: its schedule on the clocks of its time zone, and what was missed.

    since            startingDeadlineSeconds           now
    ──┬───────┬─────────────┼────┬──────────┬───────────┼───────┬──
      missed  missed        ╰─── starts that may still be made: the latest of them is due

Reads nothing but the zones, which the machine knows.
"""

from __future__ import annotations

from datetime import UTC, datetime, tzinfo
from itertools import islice, takewhile
from typing import NamedTuple
from zoneinfo import ZoneInfo

from phalanx.api.cron_schedule import (
    BadSchedule,
    CronSchedule,
    last_occurrence,
    occurrences,
    parse_schedule,
)

#: More starts than this that were missed point to a mistake.
MAX_MISSED_STARTS = 100


class CronJobEvent(NamedTuple):
    """Something to tell about a CronJob; of each subject once, as long as it stays so."""

    reason: str
    message: str
    type: str = "Normal"
    subject: str = ""


class MissedStarts(NamedTuple):
    """The latest of the starts that have not been made, and whether there were too many of them."""

    latest: float | None = None
    is_over_limit: bool = False


class CronJobSchedule(NamedTuple):
    """When a CronJob is to start Jobs."""

    schedule: CronSchedule
    zone: tzinfo

    def missed_starts(self, since: float, now: float) -> MissedStarts:
        """The starts after one moment and not after another."""
        ahead = occurrences(self.schedule, since, self.zone)
        found = list(islice(takewhile(lambda start: start <= now, ahead), MAX_MISSED_STARTS + 1))
        if len(found) <= MAX_MISSED_STARTS:
            return MissedStarts(found[-1] if found else None)
        return MissedStarts(
            last_occurrence(self.schedule, found[-2], now, self.zone), is_over_limit=True
        )

    def next_start(self, now: float) -> float | None:
        """The next start; None if there is none in years."""
        return next(occurrences(self.schedule, now, self.zone), None)

    def format_time(self, moment: float) -> str:
        """A moment on the clocks of the zone."""
        return datetime.fromtimestamp(moment, self.zone).isoformat().replace("+00:00", "Z")


def parse_cron_job_schedule(schedule: str, zone: str | None) -> CronJobSchedule | CronJobEvent:
    """The timetable of a schedule in a zone, or what is wrong with either."""
    place: tzinfo = UTC
    if zone is not None:
        try:
            place = ZoneInfo(zone)
        # A machine may know no zones, or have something else in the place of one.
        except (KeyError, ValueError, OSError):
            text = f'invalid timeZone: "{zone}": unknown time zone {zone}'
            return CronJobEvent("UnknownTimeZone", text, "Warning")
    try:
        return CronJobSchedule(parse_schedule(schedule), place)
    except BadSchedule as error:
        text = f'unparseable schedule: "{schedule}" : {error}'
        return CronJobEvent("UnparseableSchedule", text, "Warning")
