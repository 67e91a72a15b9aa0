"""A slow, obvious model of EASY backfilling by counting processors: the oracle of the core engine.

At one instant jobs end, then arrive, then one pass starts jobs in the order of submission. The
first job that does not fit gets the earliest time at which enough processors are free by estimate.
A later job starts if it ends before that time, or uses processors that stay free then.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

from phalanx.sim.workloads.workload import TraceJob


@dataclass(slots=True)
class _Machine:
    free: int
    #: (end, expected end, processors) of each running job.
    running: list[tuple[float, float, int]]


def start_times(jobs: Sequence[TraceJob], processors: int, *, backfills: bool) -> list[float]:
    """Return when each job starts; without backfilling, strictly in order."""
    machine, starts = _Machine(processors, []), [-1.0] * len(jobs)
    queue: list[int] = []
    arrived = 0
    while arrived < len(jobs) or machine.running:
        ends = machine.running[0][0] if machine.running else float("inf")
        arrives = jobs[arrived].submit if arrived < len(jobs) else float("inf")
        now = min(ends, arrives)
        while machine.running and machine.running[0][0] <= now:
            machine.free += heappop(machine.running)[2]
        while arrived < len(jobs) and jobs[arrived].submit <= now:
            queue.append(arrived)
            arrived += 1
        for number in _choose(jobs, queue, machine, now, backfills=backfills):
            queue.remove(number)
            starts[number] = now
    return starts


def _choose(
    jobs: Sequence[TraceJob], queue: list[int], machine: _Machine, now: float, *, backfills: bool
) -> list[int]:
    chosen: list[int] = []
    reserved_start, extra = 0.0, -1
    for number in queue:
        job = jobs[number]
        expected_end = now + (job.estimate or 0.0)
        if extra < 0 and job.pods > machine.free:
            if not backfills:
                break
            reserved_start, extra = _find_reserved_start(job.pods, machine)
            continue
        if extra >= 0:
            if job.pods > machine.free or (expected_end > reserved_start and job.pods > extra):
                continue
            extra -= job.pods if expected_end > reserved_start else 0
        machine.free -= job.pods
        heappush(machine.running, (now + job.run_time, expected_end, job.pods))
        chosen.append(number)
    return chosen


def _find_reserved_start(needed: int, machine: _Machine) -> tuple[float, int]:
    """Return when enough processors are free, and how many more than needed."""
    free, reserved_start = machine.free, 0.0
    for _, expected_end, pods in sorted(machine.running, key=lambda one: one[1]):
        if free >= needed and expected_end > reserved_start:
            break
        free, reserved_start = free + pods, expected_end
    return reserved_start, free - needed
