"""The lines that entities stand in while they wait, for whoever counts them. Values only.

`Entry.line` says which line that is, `queue.Queue` who stands there and who has come.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from phalanx.scheduler.decision import Refusing
from phalanx.scheduler.queueing.entry import State


class Line(NamedTuple):
    """A line, and of what sort those are who stand in it."""

    name: str
    is_group: bool


class Arrival(NamedTuple):
    """Somebody came to stand in a line: because of an Event, or of another Stimulus."""

    line: Line
    cause: Enum


class Stand(NamedTuple):
    """Somebody who stands in a line: how many pods, for which scheduler, and why if refused."""

    line: Line
    state: State
    pods: int
    scheduler: str
    outcome: Refusing | None
