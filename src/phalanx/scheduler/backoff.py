"""BackOff: how long a rejected entity waits before its next attempt. The queue keeps the time."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

_MAX_DOUBLINGS = 32
#: Seconds until the next attempt where back-off is disabled and no event wakes the entity.
MAX_UNSCHEDULABLE_SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class BackOff:
    """Seconds after the first failure, doubled with each further failure up to a maximum.

    The maximum grows with the square root of the number of pods. `max_seconds=0` disables back-off:
    an unschedulable entity waits for an event, and one that failed to bind is tried at once.
    """

    initial_seconds: float = 1.0
    max_seconds: float = 10.0

    def delay_after(self, failures: int, pods: int) -> float:
        """Return the seconds to wait after consecutive failures of an entity of so many pods."""
        if not self.max_seconds:
            return MAX_UNSCHEDULABLE_SECONDS
        doublings = min(max(failures, 1) - 1, _MAX_DOUBLINGS)
        return min(self.initial_seconds * (1 << doublings), self.max_seconds * sqrt(max(pods, 1)))


DEFAULT_BACKOFF = BackOff()
