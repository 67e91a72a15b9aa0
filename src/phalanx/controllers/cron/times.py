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

from phalanx.api.cron import BadSchedule, Schedule, last, occurrences, parse

#: More starts than this that were missed point to a mistake.
MANY = 100


class Remark(NamedTuple):
    """Something to tell about a CronJob; of each subject once, as long as it stays so."""

    reason: str
    message: str
    type: str = "Normal"
    subject: str = ""


class Missed(NamedTuple):
    """The latest of the starts that have not been made, and whether there were too many of them."""

    latest: float | None = None
    are_many: bool = False


class Timetable(NamedTuple):
    """When a CronJob is to start Jobs."""

    schedule: Schedule
    zone: tzinfo

    def missed(self, since: float, now: float) -> Missed:
        """The starts after one moment and not after another."""
        ahead = occurrences(self.schedule, since, self.zone)
        found = list(islice(takewhile(lambda start: start <= now, ahead), MANY + 1))
        if len(found) <= MANY:
            return Missed(found[-1] if found else None)
        return Missed(last(self.schedule, found[-2], now, self.zone), are_many=True)

    def following(self, now: float) -> float | None:
        """The next start; None if there is none in years."""
        return next(occurrences(self.schedule, now, self.zone), None)

    def written(self, moment: float) -> str:
        """A moment on the clocks of the zone."""
        return datetime.fromtimestamp(moment, self.zone).isoformat().replace("+00:00", "Z")


def timetable(schedule: str, zone: str | None) -> Timetable | Remark:
    """The timetable of a schedule in a zone, or what is wrong with either."""
    place: tzinfo = UTC
    if zone is not None:
        try:
            place = ZoneInfo(zone)
        # A machine may know no zones, or have something else in the place of one.
        except (KeyError, ValueError, OSError):
            text = f'invalid timeZone: "{zone}": unknown time zone {zone}'
            return Remark("UnknownTimeZone", text, "Warning")
    try:
        return Timetable(parse(schedule), place)
    except BadSchedule as error:
        text = f'unparseable schedule: "{schedule}" : {error}'
        return Remark("UnparseableSchedule", text, "Warning")
