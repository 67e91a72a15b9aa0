"""Computes the figures of a report from the result of a simulation. Pure.

`build_report` returns plain values: the object that `-o json` prints, and that the other forms of
the report are made from. `docs/simulation.md` defines every figure.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from math import ceil
from typing import Any, TypeVar

from phalanx.sim.simulation_setup import AllocationSample, JobRecord, SimulationResult
from phalanx.version import __version__

Report = dict[str, Any]
_Key = TypeVar("_Key", int, str)

#: The run time below which a job counts as so long in its slowdown.
SLOWDOWN_BOUND = 10.0
#: How many points a series has at most, and how many users and starving jobs are listed.
SERIES_POINTS, MAX_LISTED = 240, 20
#: The upper bounds of the classes of job sizes, in pods.
SIZE_CLASSES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)


def build_report(result: SimulationResult, inputs: Mapping[str, str]) -> Report:
    """Compute every figure. `inputs` are the hashes of the files by name."""
    records, setup = result.records, result.setup
    arrived = [one for one in records if one.job.submit <= result.ended_at]
    started = [one for one in arrived if one.first_start is not None]
    waiting = [one for one in arrived if one.first_start is None]
    finished = [one for one in arrived if one.end is not None]
    unfinished = len(records) - len(finished)
    by_size = _group_waits(
        started, lambda one: bisect_left(SIZE_CLASSES, one.job.pods), _describe_size
    )
    by_owner = _group_waits(started, lambda one: one.job.owner, lambda owner: {"name": owner})
    by_owner.sort(key=lambda group: (-group["jobs"], group["name"]))
    return {
        "version": __version__,
        "engine": result.engine.value,
        "isCounted": result.is_counted,
        "seed": setup.seed,
        "inputs": dict(inputs),
        "isPartial": result.is_partial,
        "end": _describe_end(result, unfinished),
        "simulatedSeconds": _round(result.ended_at),
        "nodes": len(setup.nodes),
        "jobs": len(records),
        "finished": len(finished),
        "unfinished": unfinished,
        "skipped": dict(setup.workload.skipped),
        "notes": list(setup.workload.notes),
        "startedPods": result.started_pods,
        "decisions": result.decisions,
        "wait": {
            **summarize([wait_of(one) for one in started]),
            "notStarted": _summarize_not_started(waiting, result.ended_at),
            "bySize": by_size,
            "byOwner": by_owner[:MAX_LISTED],
            "owners": len(by_owner),
        },
        "slowdown": {"boundedMean": _mean([bounded_slowdown_of(one) for one in finished])},
        "utilisation": _utilisation(result),
        "fragmentation": {
            "blockedShare": _mean_over_time(result, lambda one: float(one.is_fragmented))
        },
        "queue": {
            "meanJobs": _mean_over_time(result, lambda one: float(one.waiting_jobs)),
            "maxJobs": max((one.waiting_jobs for one in result.samples), default=0),
        },
        "preemptions": sum(one.preemptions for one in records),
        "disruptions": sum(one.disruptions for one in records),
        "lostPodSeconds": _round(sum(one.lost_seconds for one in records)),
        "fairness": {"jain": _jain(_owner_slowdowns(finished))},
        "expectedStarts": _expected_starts(started),
        "starvation": _starving(arrived, result.ended_at),
        "series": _series(result),
    }


def _describe_end(result: SimulationResult, unfinished: int) -> str:
    """Say what ended a simulation. A horizon ends it only if jobs are unfinished then."""
    if result.is_partial:
        return "interrupted"
    if not unfinished:
        return "complete"
    return "horizon" if _round(result.ended_at) >= _round(result.setup.horizon) else "idle"


def summarize(values: Sequence[float]) -> Report:
    """Return the mean, percentiles (nearest rank) and the largest of some seconds."""
    ordered = sorted(values)
    return {
        "meanSeconds": _mean(ordered),
        "p50Seconds": percentile(ordered, 50),
        "p95Seconds": percentile(ordered, 95),
        "p99Seconds": percentile(ordered, 99),
        "maxSeconds": _round(ordered[-1]) if ordered else None,
    }


def percentile(ordered: Sequence[float], percent: float) -> float | None:
    """Return the smallest value that at least so many per cent of the values do not exceed."""
    if not ordered:
        return None
    return _round(ordered[max(ceil(len(ordered) * percent / 100), 1) - 1])


def _round(value: float) -> float:
    return round(value, 6)


def _mean(values: Sequence[float]) -> float | None:
    return _round(sum(values) / len(values)) if values else None


def wait_of(record: JobRecord) -> float:
    """Return the seconds from the submission of a job to its first start."""
    assert record.first_start is not None
    return record.first_start - record.job.submit


def bounded_slowdown_of(record: JobRecord) -> float:
    """Return how many times longer a job took than its run time, which counts at least 10 s."""
    assert record.end is not None
    turnaround = record.end - record.job.submit
    return max(turnaround / max(record.job.run_time, SLOWDOWN_BOUND), 1.0)


def _summarize_not_started(waiting: Sequence[JobRecord], end: float) -> Report:
    """Return how long the jobs that have not started have waited until the end."""
    waits = [end - one.job.submit for one in waiting]
    return {
        "jobs": len(waits),
        "meanSeconds": _mean(waits),
        "maxSeconds": _round(max(waits)) if waits else None,
    }


def _describe_size(number: int) -> Report:
    """Return the name and the upper bound of a class of job sizes."""
    low = SIZE_CLASSES[number - 1] + 1 if number else 1
    if number == len(SIZE_CLASSES):
        return {"name": f"more than {low - 1}", "maxPods": None}
    high = SIZE_CLASSES[number]
    return {"name": str(high) if low == high else f"{low} to {high}", "maxPods": high}


def _group_waits(
    records: Iterable[JobRecord],
    key_of: Callable[[JobRecord], _Key],
    describe: Callable[[_Key], Report],
) -> list[Report]:
    """Return the mean wait of each group of jobs, in the order of their keys."""
    groups: dict[_Key, list[float]] = {}
    for one in records:
        groups.setdefault(key_of(one), []).append(wait_of(one))
    return [
        {**describe(key), "jobs": len(waits), "meanSeconds": _mean(waits)}
        for key, waits in sorted(groups.items())
    ]


def _intervals(result: SimulationResult) -> Iterable[tuple[AllocationSample, float]]:
    """Yield each sample with the seconds that it lasted."""
    samples = result.samples
    for one, following in pairwise(samples):
        yield one, following.at - one.at
    if samples:
        yield samples[-1], max(result.ended_at - samples[-1].at, 0.0)


def _utilisation(result: SimulationResult) -> dict[str, float | None]:
    """Divide what was allocated by what the nodes had, over the whole time."""
    used, had = [0.0] * len(result.resources), [0.0] * len(result.resources)
    for one, seconds in _intervals(result):
        for i in range(len(result.resources)):
            used[i] += one.allocated[i] * seconds
            had[i] += one.capacity[i] * seconds
    return {
        name: _round(used[i] / had[i]) if had[i] else None
        for i, name in enumerate(result.resources)
    }


def _mean_over_time(
    result: SimulationResult, value_of: Callable[[AllocationSample], float]
) -> float | None:
    total = seconds_total = 0.0
    for one, seconds in _intervals(result):
        total += value_of(one) * seconds
        seconds_total += seconds
    return _round(total / seconds_total) if seconds_total else None


def _owner_slowdowns(finished: Iterable[JobRecord]) -> list[float]:
    by_owner: dict[str, list[float]] = {}
    for one in finished:
        by_owner.setdefault(one.job.owner, []).append(bounded_slowdown_of(one))
    return [sum(values) / len(values) for _, values in sorted(by_owner.items())]


def _jain(values: Sequence[float]) -> float | None:
    """Return Jain's index: 1 if all values are equal, 1/n if one has everything."""
    squares = sum(value * value for value in values)
    return _round(sum(values) ** 2 / (len(values) * squares)) if squares else None


def _expected_starts(started: Iterable[JobRecord]) -> Report:
    """Compare the first expected start of each reserved job with its start."""
    errors = [
        one.first_start - one.expected_start
        for one in started
        if one.expected_start is not None and one.first_start is not None
    ]
    absolute = sorted(abs(error) for error in errors)
    return {
        "jobs": len(errors),
        "meanErrorSeconds": _mean(errors),
        "meanAbsoluteErrorSeconds": _mean(absolute),
        "p95AbsoluteErrorSeconds": percentile(absolute, 95),
    }


def _starving(arrived: Iterable[JobRecord], end: float) -> list[dict[str, Any]]:
    """List the jobs that waited longest, with those that never started."""
    waits = [
        ((one.first_start if one.first_start is not None else end) - one.job.submit, i, one)
        for i, one in enumerate(arrived)
    ]
    longest = sorted(waits, key=lambda item: (-item[0], item[1]))[:MAX_LISTED]
    return [
        {
            "job": number,
            "owner": one.job.owner,
            "pods": one.job.pods,
            "submitSeconds": _round(one.job.submit),
            "waitSeconds": _round(wait),
            "started": one.first_start is not None,
        }
        for wait, number, one in longest
        if wait > 0
    ]


def _series(result: SimulationResult) -> Report:
    """Return means over equal intervals of time: allocation, queue length and fragmentation."""
    count, end = SERIES_POINTS, result.ended_at
    step = end / count if end > 0 else 1.0
    used = [[0.0] * count for _ in result.resources]
    had = [[0.0] * count for _ in result.resources]
    queue, blocked = [0.0] * count, [0.0] * count
    for one, seconds in _intervals(result):
        begin, rest = one.at, seconds
        while rest > 0:
            i = min(int(begin / step), count - 1)
            part = min(rest, (i + 1) * step - begin) if i < count - 1 else rest
            if part <= 0:
                # Rounding: the interval begins at the very end of a step.
                i, part = i + 1, min(rest, step)
            for j in range(len(used)):
                used[j][i] += one.allocated[j] * part
                had[j][i] += one.capacity[j] * part
            queue[i] += one.waiting_jobs * part
            blocked[i] += one.is_fragmented * part
            begin, rest = begin + part, rest - part
    return {
        "stepSeconds": _round(step),
        "allocation": {
            name: [_round(used[j][i] / had[j][i]) if had[j][i] else None for i in range(count)]
            for j, name in enumerate(result.resources)
        },
        "queueJobs": [_round(value / step) for value in queue],
        "blockedShare": [_round(value / step) for value in blocked],
    }
