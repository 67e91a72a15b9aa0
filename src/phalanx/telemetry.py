"""Where the time goes: seconds and counts per stage, as Prometheus text.

Imports nothing of ours. Measures; never decides.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager


class Meter:
    """Seconds and counts per stage of the work, since the start."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}
        self._counts: dict[str, int] = {}

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Measure what happens inside as one pass of a stage."""
        begin = time.perf_counter()
        try:
            yield
        finally:
            self._seconds[name] = self._seconds.get(name, 0.0) + time.perf_counter() - begin
            self._counts[name] = self._counts.get(name, 0) + 1

    def text(self) -> str:
        """All of it in the exposition format of Prometheus."""
        lines = ["# TYPE phalanx_stage_seconds summary"]
        for name in sorted(self._seconds):
            label = f'{{stage="{name}"}}'
            lines.append(f"phalanx_stage_seconds_sum{label} {self._seconds[name]:.9f}")
            lines.append(f"phalanx_stage_seconds_count{label} {self._counts[name]}")
        return "\n".join(lines) + "\n"
