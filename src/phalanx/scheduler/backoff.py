"""BackOff: how long what was refused is left alone. A value; the queue keeps the time."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

_MAX_DOUBLINGS = 32
#: Seconds after which what was refused is tried again whatever happens, where nobody backs off.
MAX_UNSCHEDULABLE_SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class BackOff:
    """Seconds after the first failure, doubled with each further one up to the longest.

    The longest grows with the square root of the number of pods. Without one there are no pauses:
    what was refused waits for what may cure that, and what was not to blame is tried at once.
    """

    initial_seconds: float = 1.0
    max_seconds: float = 10.0

    def delay_after(self, failures: int, pods: int) -> float:
        """Seconds to wait after so many failures in a row of so many pods."""
        if not self.max_seconds:
            return MAX_UNSCHEDULABLE_SECONDS
        doublings = min(max(failures, 1) - 1, _MAX_DOUBLINGS)
        return min(self.initial_seconds * (1 << doublings), self.max_seconds * sqrt(max(pods, 1)))


DEFAULT_BACKOFF = BackOff()
