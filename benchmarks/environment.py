"""Where measurements run, and at which size: every one has a control plane of its own."""

from __future__ import annotations

import contextlib
import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tools.control_plane import ControlPlane

MEMORY = ":memory:"
#: The API server alone: what a request costs without what others make of it.
WITHOUT_COMPONENTS = ("--nodes", "0", "--without", "scheduler,controllers,nodes")
#: Seconds that a control plane may take until it is ready: thousands of nodes register first.
READY_LIMIT = 300.0
FLUSHES, FLUSHED = 200, bytes(4096)


class BenchmarkFailed(Exception):
    """A measurement that came to no end, and why."""


@dataclass(frozen=True, slots=True)
class BenchmarkEnvironment:
    """`data` is the folder below which control planes keep their objects, or `:memory:`."""

    data: str
    is_quick: bool

    def size(self, full: int, part: int = 10) -> int:
        """So many, or for a first look only a tenth (or another part) of it."""
        return full // part if self.is_quick else full

    def target(self, full: float | None) -> float | None:
        """A target that is meant for the full size."""
        return None if self.is_quick else full

    @contextlib.contextmanager
    def plane(self, *options: str) -> Iterator[ControlPlane]:
        """A control plane with nothing in it."""
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
        """An empty folder on the disk that is measured, gone at the end."""
        parent = None if self.data == MEMORY else self.data
        with tempfile.TemporaryDirectory(prefix="phalanx-bench-", dir=parent) as name:
            yield Path(name)

    def flush_milliseconds(self) -> float:
        """How long the disk takes to keep 4 KiB: the median of many appends, each flushed."""
        with self.folder() as folder, (folder / "flushed").open("wb", buffering=0) as file:
            return statistics.median(_flush(file.fileno()) for _ in range(FLUSHES)) * 1000


def _flush(file: int) -> float:
    begin = time.perf_counter()
    os.write(file, FLUSHED)
    os.fdatasync(file)
    return time.perf_counter() - begin
