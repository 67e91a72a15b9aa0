"""The summary of a simulation for a terminal."""

from __future__ import annotations

from collections.abc import Iterator

from phalanx.sim.reports.figures import Report

_UNITS = ((86400.0, "d"), (3600.0, "h"), (60.0, "min"))


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


def summary_rows(report: Report) -> Iterator[tuple[str, str]]:
    """Yield the lines of the summary as name and value."""
    wait, queue = report["wait"], report["queue"]
    if report["isPartial"]:
        yield "state", f"stopped at {format_seconds(report['simulatedSeconds'])}: partial figures"
    yield "jobs", f"{report['jobs']} ({report['unfinished']} unfinished)"
    for reason, count in report["skipped"].items():
        yield "skipped", f"{count}: {reason}"
    yield "simulated", f"{format_seconds(report['simulatedSeconds'])} on {report['nodes']} nodes"
    yield (
        "wait",
        f"mean {format_seconds(wait['meanSeconds'])}, "
        + ", ".join(
            f"{name} {format_seconds(wait[f'{name}Seconds'])}" for name in ("p50", "p95", "max")
        ),
    )
    slowdown = report["slowdown"]["boundedMean"]
    yield "bounded slowdown", "-" if slowdown is None else f"{slowdown:.2f}"
    for resource, share in report["utilisation"].items():
        yield f"utilisation {resource}", format_share(share)
    mean = queue["meanJobs"]
    yield "queue", f"mean {mean or 0:.1f} jobs, longest {queue['maxJobs']}"
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
        yield "expected starts", f"{expected['jobs']} jobs, mean error {error}"
    counted = " (free nodes counted)" if report["isCounted"] else ""
    yield "engine", f"{report['engine']}{counted}, seed {report['seed']}"
    for note in report["notes"]:
        yield "note", note
