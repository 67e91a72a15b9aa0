"""BackOff: how long what was refused is left alone. A value; the queue keeps the time."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

_DOUBLINGS = 32
#: Seconds after which what was refused is tried again whatever happens, where nobody backs off.
PATIENCE = 300.0


@dataclass(frozen=True, slots=True)
class BackOff:
    """Seconds after the first failure, doubled with each further one up to the longest.

    The longest grows with the square root of the number of pods. Without one there are no pauses:
    what was refused waits for what may cure that, and what was not to blame is tried at once.
    """

    first: float = 1.0
    longest: float = 10.0

    def after(self, failures: int, pods: int) -> float:
        """Seconds to wait after so many failures in a row of so many pods."""
        if not self.longest:
            return PATIENCE
        doublings = min(max(failures, 1) - 1, _DOUBLINGS)
        return min(self.first * (1 << doublings), self.longest * sqrt(max(pods, 1)))


USUAL = BackOff()
