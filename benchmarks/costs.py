"""What work costs: instructions and bytes in this process, CPU time and memory of a control plane.

Bytecode instructions and bytes do not depend on the load of the machine. Of a control plane, CPU
time is the number to trust: other load hardly changes it. CPU time and memory of other processes
are measured on Linux only; elsewhere the CPU time is nan and the memory 0.
"""

from __future__ import annotations

import gc
import math
import re
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any


class InstructionCounter:
    """A counter whose count is complete when the context ends."""

    def __init__(self) -> None:
        self.count = 0

    def trace(self, frame: FrameType, event: str, argument: Any) -> Callable[..., Any]:
        """Trace function: called for every function and every instruction."""
        if event == "opcode":
            self.count += 1
        elif event == "call":
            frame.f_trace_lines, frame.f_trace_opcodes = False, True
        return self.trace


@contextmanager
def count_instructions() -> Iterator[InstructionCounter]:
    """Count the instructions inside the context, on this thread, without garbage collection."""
    tally, before, is_collecting = InstructionCounter(), sys.gettrace(), gc.isenabled()
    gc.disable()
    sys.settrace(tally.trace)
    try:
        yield tally
    finally:
        sys.settrace(before)
        if is_collecting:
            gc.enable()


@contextmanager
def count_allocated_bytes() -> Iterator[InstructionCounter]:
    """Count the bytes that are allocated inside the context and still held at its end."""
    tally, was_tracing = InstructionCounter(), tracemalloc.is_tracing()
    gc.collect()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    try:
        yield tally
        gc.collect()
        tally.count = tracemalloc.get_traced_memory()[0] - before
    finally:
        if not was_tracing:
            tracemalloc.stop()


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
