"""What a control plane has used in all its processes, where Linux tells it; nan elsewhere.

The processor time is the number to trust: what else the machine does hardly changes it.
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
    """Seconds that passed, and those that a server and the process that asks it worked."""

    wall: float = 0.0
    server: float = 0.0
    driver: float = 0.0

    @property
    def driver_share(self) -> float:
        """Per cent of a core that asking took: near 100, it is the asking that is measured."""
        return self.driver / self.wall * 100


@contextmanager
def measure_cpu(pid: int) -> Iterator[CpuUsage]:
    """Measure what happens inside: the server is this process and its crew."""
    spent = CpuUsage()
    wall, server, driver = time.perf_counter(), cpu_seconds(pid), time.process_time()
    yield spent
    spent.wall = time.perf_counter() - wall
    spent.server = cpu_seconds(pid) - server
    spent.driver = time.process_time() - driver


def cpu_seconds(pid: int) -> float:
    """Seconds that a process and those that it has started have worked since their start."""
    if sys.platform != "linux" or not pid:
        return math.nan
    # The number of a process's own clock, as the C library's clock_getcpuclockid makes it.
    return sum(time.clock_gettime(~one << 3 | 2) for one in _process_tree(pid))


def resident_megabytes(pid: int) -> float:
    """Their memory in MB; what they share counts once."""
    rolled = [Path(f"/proc/{one}/smaps_rollup") for one in _process_tree(pid)]
    found = [re.search(r"^Pss:\s+(\d+) kB", file.read_text(), re.MULTILINE) for file in rolled]
    return sum(int(each[1]) for each in found if each) / 1000 if all(found) else math.nan


def _process_tree(pid: int) -> list[int]:
    """A process and those that it has started."""
    children = Path(f"/proc/{pid}/task/{pid}/children")
    return [pid, *map(int, children.read_text().split())] if children.exists() else []
