"""Limits how often pending entities are reported: conditions and events.

A change of status, reason or nomination is reported at once. Of changes in a message alone, mostly
of numbers ("3 Insufficient cpu"), an object gets one every ten seconds. A refused group gets
one `FailedScheduling` event per reason, however often it is attempted; a pod without a group gets
one when its reason or message changes. An attempt that changes nothing reports nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from phalanx.api.meta import Condition, find_condition
from phalanx.api.wire import Object
from phalanx.clock import Clock

#: Seconds between two changes of a message alone.
MESSAGE_INTERVAL = 10.0
#: The objects that are remembered before those that no longer matter are forgotten.
_MAX_REMEMBERED = 4096


class MessageLimit:
    """Delays conditions of which only the message has changed."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        #: When a changed message was last written, by uid.
        self._written: dict[str, float] = {}

    def delay(self, uid: str, current: tuple[Condition, ...], changes: Iterable[Object]) -> float:
        """Return for how many seconds changed conditions must wait; 0 if they are written now."""
        if not all(_is_message_change(current, change) for change in changes):
            self._written.pop(uid, None)
            return 0.0
        now = self._clock.now()
        left = self._written.get(uid, now - MESSAGE_INTERVAL) + MESSAGE_INTERVAL - now
        if left > 0:
            return left
        if len(self._written) >= _MAX_REMEMBERED:
            recent = self._written.items()
            self._written = {one: at for one, at in recent if now - at < MESSAGE_INTERVAL}
        self._written[uid] = now
        return 0.0


def _is_message_change(current: tuple[Condition, ...], change: Object) -> bool:
    """Whether a condition differs from the current one in its message alone."""
    old = find_condition(current, change["type"])
    if old is None or "$patch" in change:
        return False
    generation = change.get("observedGeneration", old.observed_generation)
    return (old.status, old.reason, old.observed_generation) == (
        change["status"],
        change["reason"],
        generation,
    )


class _ReportedFailure(NamedTuple):
    reason: str
    message: str
    at: float


class FailureEvents:
    """Remembers which failures have an event already."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._reported: dict[str, _ReportedFailure] = {}

    def is_new(self, uid: str, reason: str, message: str = "") -> bool:
        """Whether a failure needs an event; it is remembered then.

        A group passes no message: its condition has the numbers.
        """
        now, known = self._clock.now(), self._reported.get(uid)
        if known and known.reason == reason:
            is_recent = now - known.at < MESSAGE_INTERVAL
            if known.message == message or is_recent:
                return False
        self._reported.pop(uid, None)
        if len(self._reported) >= _MAX_REMEMBERED:
            del self._reported[next(iter(self._reported))]
        self._reported[uid] = _ReportedFailure(reason, message, now)
        return True

    def forget(self, uid: str) -> None:
        """Forget an object that was placed or deleted: its next failure gets an event."""
        self._reported.pop(uid, None)
