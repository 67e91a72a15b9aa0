"""Where benchmarks run and at which size; each has a control plane of its own."""

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
#: The API server alone.
WITHOUT_COMPONENTS = ("--nodes", "0", "--without", "scheduler,controllers,nodes")
#: Seconds until a control plane must be ready: thousands of nodes register first.
READY_LIMIT = 300.0
FLUSHES, FLUSHED = 200, bytes(4096)


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
