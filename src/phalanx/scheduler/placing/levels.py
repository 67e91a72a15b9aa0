"""Levels: how near to each other the members of a group would like to be, the nearest first.

What a group asks for in its spec it insists on. Beyond that, an annotation may say what it would
like, from the tightest to the widest, and how long it waits before it is content with the next:

    phalanx.dev/topology: "rack, block after 30s, * after 5m"

One rack if it can be had; a block after half a minute; anywhere after five. Several labels joined
by `+` must all be shared. Without `*` at the end the last one is insisted on. Says nothing about
where there is room; `topology.py` finds the nodes of a level.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from phalanx.api.scheduling import TOPOLOGY
from phalanx.scheduler.decision import SCHEDULER_ERROR
from phalanx.scheduler.entity import Entity
from phalanx.scheduler.placing.objections import Objection

ANYWHERE = "*"
#: More levels than this are a slip of the pen.
MOST_LEVELS = 8

_LEVEL = re.compile(r"\s*([^\s,]+)(?:\s+after\s+(\d{1,7})(s|m|h))?\s*")
_UNITS = {"s": 1, "m": 60, "h": 3600}


class Level(NamedTuple):
    """A label, or several joined by `+`, whose value all members share; "" for anywhere."""

    key: str
    #: Seconds after which it will do.
    after: float = 0.0


_NO_WISH = (Level(""),)


def levels(entity: Entity) -> Sequence[Level] | Objection:
    """What will do by now, the best first; the last of all is insisted on."""
    text = entity.group.metadata.annotations.get(TOPOLOGY, "") if entity.group else ""
    if not text:
        return [Level(entity.topology)] if entity.topology else _NO_WISH
    wanted = _read(text)
    if wanted is None:
        return Objection(
            SCHEDULER_ERROR,
            f'annotation {TOPOLOGY} cannot be read: "{text}"',
            f'say it like "rack, block after 30s, {ANYWHERE} after 5m"',
        )
    return [_within(level, entity.topology) for level in wanted if level.after <= entity.waited]


def relaxes(entity: Entity) -> float | None:
    """Seconds until some group of an entity is content with less; None if none ever is."""
    pauses = [
        level.after - one.waited
        for one in entity.groups
        if one.group is not None
        for level in _read(one.group.metadata.annotations.get(TOPOLOGY, "")) or ()
        if level.after > one.waited
    ]
    return min(pauses, default=None)


def _read(text: str) -> list[Level] | None:
    found: list[Level] = []
    begin = 0.0
    for part in text.split(","):
        match = _LEVEL.fullmatch(part)
        if match is None or len(found) == MOST_LEVELS:
            return None
        key, count, unit = match.groups()
        begin = max(begin, float(count) * _UNITS[unit] if count else 0.0)
        found.append(Level("" if key == ANYWHERE else key, begin if found else 0.0))
    return found


def _within(level: Level, key: str) -> Level:
    """A level that is inside what the spec insists on anyway."""
    if not key or key in level.key.split("+"):
        return level
    return Level(f"{level.key}+{key}" if level.key else key, level.after)
