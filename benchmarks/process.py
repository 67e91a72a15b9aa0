"""What a process has used, where Linux tells it; nan elsewhere.

The processor time of the server is the number to trust: what else the machine does hardly
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
class Spent:
    """Seconds that passed, and those that a server and the process that asks it worked."""

    wall: float = 0.0
    server: float = 0.0
    driver: float = 0.0

    @property
    def driver_share(self) -> float:
        """Per cent of a core that asking took: near 100, it is the asking that is measured."""
        return self.driver / self.wall * 100


@contextmanager
def spending(pid: int) -> Iterator[Spent]:
    """Measure what happens inside: the server is this process, the driver is ourselves."""
    spent = Spent()
    wall, server, driver = time.perf_counter(), cpu_seconds(pid), time.process_time()
    yield spent
    spent.wall = time.perf_counter() - wall
    spent.server = cpu_seconds(pid) - server
    spent.driver = time.process_time() - driver


def cpu_seconds(pid: int) -> float:
    """Seconds that the threads of a process have worked since its start."""
    if sys.platform != "linux" or not pid:
        return math.nan
    # The number of a process's own clock, as the C library's clock_getcpuclockid makes it.
    return time.clock_gettime(~pid << 3 | 2)


def resident(pid: int) -> float:
    """Its memory in MB."""
    status = Path(f"/proc/{pid}/status")
    found = re.search(r"VmRSS:\s+(\d+) kB", status.read_text()) if status.exists() else None
    return int(found[1]) / 1000 if found else math.nan
