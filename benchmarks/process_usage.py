"""CPU time and memory of all processes of a control plane, on Linux only.

Elsewhere the CPU time is nan and the memory 0. CPU time is the number to trust: other load hardly
changes it.
"""

from __future__ import annotations

import math
import re
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path


@dataclass(slots=True)
class CpuUsage:
    """Elapsed seconds, and the CPU seconds of server and driver."""

    wall: float = 0.0
    server: float = 0.0
    driver: float = 0.0

    @property
    def driver_share(self) -> float:
        """Per cent of a core that the driver used: near 100 the driver is the bottleneck."""
        return self.driver / self.wall * 100


@contextmanager
def measure_cpu(pid: int) -> Iterator[CpuUsage]:
    """Measure what happens inside the context; `pid` is the process of the server."""
    spent = CpuUsage()
    wall, server, driver = time.perf_counter(), cpu_seconds(pid), time.process_time()
    yield spent
    spent.wall = time.perf_counter() - wall
    spent.server = cpu_seconds(pid) - server
    spent.driver = time.process_time() - driver


def cpu_seconds(pid: int) -> float:
    """Return the CPU seconds of a process and its children."""
    if sys.platform != "linux" or not pid:
        return math.nan
    # The clock id of another process, as clock_getcpuclockid of the C library computes it.
    return sum(time.clock_gettime(~one << 3 | 2) for one in _process_tree(pid))


def resident_megabytes(pid: int) -> float:
    """Return the memory of the processes in MB; shared memory counts once."""
    rolled = [Path(f"/proc/{one}/smaps_rollup") for one in _process_tree(pid)]
    found = [re.search(r"^Pss:\s+(\d+) kB", file.read_text(), re.MULTILINE) for file in rolled]
    return sum(int(each[1]) for each in found if each) / 1000 if all(found) else math.nan


def peak_megabytes(pid: int) -> float:
    """Return the largest memory that the processes have had, in MB; shared memory counts twice."""
    found = [
        re.search(r"^VmHWM:\s+(\d+) kB", Path(f"/proc/{one}/status").read_text(), re.MULTILINE)
        for one in _process_tree(pid)
    ]
    return sum(int(each[1]) for each in found if each) / 1000 if all(found) else math.nan


def _process_tree(pid: int) -> list[int]:
    """Return a process and its direct children."""
    children = Path(f"/proc/{pid}/task/{pid}/children")
    return [pid, *map(int, children.read_text().split())] if children.exists() else []
