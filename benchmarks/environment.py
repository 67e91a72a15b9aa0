"""Where benchmarks run, at which size, and what they return.

A section gets a `BenchmarkEnvironment`, which gives it control planes of its own, and yields one
`Result` for each measurement.
"""

from __future__ import annotations

import contextlib
import math
import os
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tools.control_plane import ControlPlane

MEMORY = ":memory:"
#: The API server alone.
WITHOUT_COMPONENTS = ("--nodes", "0", "--without", "scheduler,controllers,nodes")
#: Seconds until a control plane must be ready: thousands of nodes register first.
READY_LIMIT = 300.0
FLUSHES, FLUSHED = 200, bytes(4096)
#: The heading of the table whose rows are `Result.line`.
HEADING = f"{'':46} {'ours':>12}{'target':>12}{'kubernetes':>12}"


class BenchmarkFailed(Exception):
    """A benchmark that did not finish, with the reason."""


@dataclass(frozen=True, slots=True)
class BenchmarkEnvironment:
    """The directory for data (or `:memory:`) and the size of a run."""

    data: str
    is_quick: bool

    def size(self, full: int, part: int = 10) -> int:
        """Return a number, or with `--quick` one `part`-th of it."""
        return full // part if self.is_quick else full

    def target(self, full: float | None) -> float | None:
        """Return a target, which applies to the full size only."""
        return None if self.is_quick else full

    @contextlib.contextmanager
    def plane(self, *options: str) -> Iterator[ControlPlane]:
        """Run an empty control plane. Raises BenchmarkFailed if the connection breaks."""
        with self.folder() as folder:
            data = MEMORY if self.data == MEMORY else str(folder)
            with ControlPlane("--data", data, *options, limit=READY_LIMIT) as plane:
                try:
                    yield plane
                except ConnectionError as error:
                    said = "" if plane.alive else f", the server ended: {plane.stderr_tail()}"
                    raise BenchmarkFailed(f"{error}{said}") from error

    @contextlib.contextmanager
    def folder(self) -> Iterator[Path]:
        """Provide an empty directory on the measured disk, removed at the end."""
        parent = None if self.data == MEMORY else self.data
        with tempfile.TemporaryDirectory(prefix="phalanx-benchmark-", dir=parent) as name:
            yield Path(name)

    def flush_milliseconds(self) -> float:
        """Return the median time of a flushed append of 4 KiB."""
        with self.folder() as folder, (folder / "flushed").open("wb", buffering=0) as file:
            return statistics.median(_flush(file.fileno()) for _ in range(FLUSHES)) * 1000


def _flush(file: int) -> float:
    begin = time.perf_counter()
    os.write(file, FLUSHED)
    os.fdatasync(file)
    return time.perf_counter() - begin


@dataclass(frozen=True, slots=True)
class Result:
    """One number, or nan where this machine cannot measure it.

    `kubernetes` is the number of real Kubernetes, `at_least` says that more is better, `beside`
    holds related measurements, `note` says why it does not count.
    """

    name: str
    value: float
    unit: str
    target: float | None = None
    kubernetes: float | None = None
    at_least: bool = False
    beside: Mapping[str, float] = field(default_factory=dict)
    note: str = ""

    @property
    def mark(self) -> str:
        """The verdict: ok, slow, INCOMPLETE with a note, or "" without a target or a number."""
        if self.note:
            return "INCOMPLETE"
        if self.target is None or math.isnan(self.value):
            return ""
        is_met = self.value >= self.target if self.at_least else self.value <= self.target
        return "ok" if is_met else "slow"

    def line(self) -> str:
        """Return one row of the table."""
        numbers = (self.value, self.target, self.kubernetes)
        cells = "".join(f"{_shown(number):>12}" for number in numbers)
        beside = ", ".join(f"{name} {_shown(value)}" for name, value in self.beside.items())
        words = (f"{self.unit:9}", f"{self.mark:4}", self.note, f"({beside})" if beside else "")
        return f"{self.name:46} {cells}  {' '.join(filter(None, words))}".rstrip()

    def row(self) -> dict[str, Any]:
        """Return the row as JSON."""
        row = {**asdict(self), "mark": self.mark}
        row["value"] = _known(self.value)
        row["beside"] = {name: _known(value) for name, value in self.beside.items()}
        return row


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the smallest value that so many per cent of the values do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)] if ordered else math.nan


def _shown(number: float | None) -> str:
    if number is None:
        return "-"
    return f"{number:,.0f}" if abs(number) >= 1000 else f"{number:.3g}"


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value
