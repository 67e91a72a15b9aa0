"""Where the time goes: seconds and counts per stage, as Prometheus text.

Imports nothing of ours. Measures; never decides.
"""

from __future__ import annotations

import time


class Stage:
    """One pass of a stage of the work: what happens inside is measured."""

    __slots__ = ("_begin", "_meter", "_name")

    def __init__(self, meter: Meter, name: str) -> None:
        self._meter, self._name = meter, name

    def __enter__(self) -> None:
        self._begin = time.perf_counter()

    def __exit__(self, *failure: object) -> None:
        self._meter.add(self._name, time.perf_counter() - self._begin)


class Meter:
    """Seconds and counts per stage of the work, since the start."""

    def __init__(self) -> None:
        self._totals: dict[str, list[float]] = {}

    def stage(self, name: str) -> Stage:
        """Measure what happens inside as one pass of a stage."""
        return Stage(self, name)

    def add(self, name: str, seconds: float) -> None:
        """Count one pass."""
        total = self._totals.setdefault(name, [0.0, 0])
        total[0] += seconds
        total[1] += 1

    def text(self) -> str:
        """All of it in the exposition format of Prometheus."""
        lines = ["# TYPE phalanx_stage_seconds summary"]
        for name, (seconds, count) in sorted(self._totals.items()):
            label = f'{{stage="{name}"}}'
            lines.append(f"phalanx_stage_seconds_sum{label} {seconds:.9f}")
            lines.append(f"phalanx_stage_seconds_count{label} {count:.0f}")
        return "\n".join(lines) + "\n"
