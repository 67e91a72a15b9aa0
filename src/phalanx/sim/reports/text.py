"""The summary of a simulation for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import inf

from phalanx.sim.reports.figures import Report

_UNITS = ((86400.0, "d"), (3600.0, "h"), (60.0, "min"))
#: The state of a simulation in which jobs are unfinished, by what ended it.
_ENDS = {
    "interrupted": "interrupted at {}: figures of the time so far",
    "horizon": "cut by the horizon at {}: figures of the time so far",
    "idle": "nothing happens after {}: unfinished jobs never start, or never end",
}
#: The classes of sizes in the summary, with their upper bounds in pods.
_SIZE_CLASSES = ((1, "1"), (8, "2 to 8"), (64, "9 to 64"), (512, "65 to 512"), (inf, "over 512"))
#: How many of the longest waits the summary has.
_MAX_WAITS = 3


def format_seconds(seconds: float | None) -> str:
    """Format a time with one unit: `114.3 min`, `12 s`; `-` if there is none."""
    if seconds is None:
        return "-"
    for size, unit in _UNITS:
        if abs(seconds) >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.3g} s"


def format_share(share: float | None) -> str:
    """Format a share as per cent."""
    return "-" if share is None else f"{share * 100:.1f} %"


def format_count(count: int, noun: str) -> str:
    """Format a count with its noun: `1 job`, `2 jobs`."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def summary_rows(report: Report) -> Iterator[tuple[str, str]]:
    """Yield the lines of the summary as name and value."""
    simulated = format_seconds(report["simulatedSeconds"])
    if report["end"] in _ENDS:
        yield "state", _ENDS[report["end"]].format(simulated)
    yield "jobs", f"{report['jobs']} ({report['unfinished']} unfinished)"
    if report["skipped"]:
        yield (
            "skipped",
            ", ".join(f"{reason} ({count})" for reason, count in report["skipped"].items()),
        )
    yield "simulated", f"{simulated} on {format_count(report['nodes'], 'node')}"
    yield from _describe_waits(report)
    slowdown = report["slowdown"]["boundedMean"]
    yield "bounded slowdown", "-" if slowdown is None else f"{slowdown:.2f}"
    for resource, share in report["utilisation"].items():
        yield f"utilisation {resource}", format_share(share)
    queue = report["queue"]
    yield "queue", f"mean {queue['meanJobs'] or 0:.1f} jobs, longest {queue['maxJobs']}"
    yield "fragmentation", f"{format_share(report['fragmentation']['blockedShare'])} of the time"
    yield "preemptions", str(report["preemptions"])
    if report["disruptions"]:
        yield "disruptions", str(report["disruptions"])
    if report["lostPodSeconds"]:
        yield "lost work", f"{format_seconds(report['lostPodSeconds'])} of pods"
    fairness = report["fairness"]["jain"]
    yield "fairness (Jain)", "-" if fairness is None else f"{fairness:.3f}"
    expected = report["expectedStarts"]
    if expected["jobs"]:
        error = format_seconds(expected["meanAbsoluteErrorSeconds"])
        yield "expected starts", f"{format_count(expected['jobs'], 'job')}, mean error {error}"
    counted = " (free nodes counted)" if report["isCounted"] else ""
    yield "engine", f"{report['engine']}{counted}, seed {report['seed']}"
    for note in report["notes"]:
        yield "note", note


def _describe_waits(report: Report) -> Iterator[tuple[str, str]]:
    """Yield the lines about waits: all, of jobs that have not started, by size, the longest."""

    def format_figures(found: Mapping[str, float | None], *names: str) -> str:
        return ", ".join(f"{name} {format_seconds(found[f'{name}Seconds'])}" for name in names)

    wait = report["wait"]
    yield "wait", format_figures(wait, "mean", "p50", "p95", "p99", "max")
    if (absent := wait["notStarted"])["jobs"]:
        times = format_figures(absent, "mean", "max")
        yield (
            "not started",
            f"{format_count(absent['jobs'], 'job')}, not in the means: so far {times}",
        )
    totals: dict[str, tuple[int, float]] = {}
    for one in wait["bySize"]:
        largest = one["maxPods"] or inf
        name = next(name for bound, name in _SIZE_CLASSES if largest <= bound)
        jobs, seconds = totals.get(name, (0, 0.0))
        totals[name] = jobs + one["jobs"], seconds + one["jobs"] * one["meanSeconds"]
    if len(totals) > 1:
        means = (
            f"{name}: {format_seconds(total / jobs)}" for name, (jobs, total) in totals.items()
        )
        yield "wait by size", ", ".join(means)
    if report["starvation"]:
        longest = (
            f"{format_seconds(one['waitSeconds'])} "
            f"(job {one['job']}{'' if one['started'] else ', not started'})"
            for one in report["starvation"][:_MAX_WAITS]
        )
        yield "longest waits", ", ".join(longest)
