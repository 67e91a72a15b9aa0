"""Compares simulations of the same jobs: paired differences with confidence intervals.

Waits of neighbouring jobs depend on each other, so single jobs are no independent observations. The
jobs are divided, in the order of submission, into batches; the differences of the batch means are
nearly independent, and Student's t distribution gives the interval (method of batch means).

Over several seeds the difference of a job is its mean over them. The means of the seeds are a
second sample, of what faults do. The interval is the wider one of both.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import sqrt
from typing import Any, NamedTuple

from phalanx.sim.reports.figures import Report, bounded_slowdown_of, wait_of
from phalanx.sim.reports.text import summary_rows
from phalanx.sim.simulation_setup import JobRecord, SimulationResult

#: The number of batches, and the 97.5 % quantile of Student's t with one degree of freedom less.
BATCHES, T_QUANTILE = 20, 2.093
#: The same quantile for 1 to 30 degrees of freedom; the last one serves for more.
T_QUANTILES = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
    2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086,
    2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip

#: The figures that are compared job by job: name, and the figure of a record or None.
PAIRED_FIGURES: tuple[tuple[str, Callable[[JobRecord], float | None]], ...] = (
    ("waitSeconds", lambda record: wait_of(record) if record.first_start is not None else None),
    (
        "boundedSlowdown",
        lambda record: bounded_slowdown_of(record) if record.end is not None else None,
    ),
)

#: The lines of a summary that say what its figures leave out.
_REMARKS = ("state", "skipped", "not started", "note")


class ComparisonRemark(NamedTuple):
    """What to know about some of the compared simulations: a line of their summaries."""

    kind: str
    text: str
    #: The files that it is about; none if it is about all.
    files: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Return the text behind the files that it is about."""
        return f"{', '.join(self.files)}: {self.text}" if self.files else self.text


def collect_remarks(names: Sequence[str], reports: Sequence[Report]) -> list[ComparisonRemark]:
    """Collect what the figures leave out: cut simulations, jobs that never start, skipped jobs."""
    found: dict[tuple[str, str], list[str]] = {}
    for name, report in zip(names, reports, strict=True):
        for row in summary_rows(report):
            if row[0] in _REMARKS:
                found.setdefault(row, []).append(name)
    rows = sorted(found.items(), key=lambda item: _REMARKS.index(item[0][0]))
    return [
        ComparisonRemark(kind, text, () if len(files) == len(names) else tuple(files))
        for (kind, text), files in rows
    ]


def compare_seeds(
    firsts: Sequence[SimulationResult], others: Sequence[SimulationResult]
) -> dict[str, Any]:
    """Compare two setups, each simulated with the same seeds in the same order."""
    found: dict[str, Any] = {}
    for name, figure in PAIRED_FIGURES:
        by_job: dict[int, list[float]] = {}
        seed_means: list[float] = []
        for first, other in zip(firsts, others, strict=True):
            differences = []
            for number, (one, two) in enumerate(zip(first.records, other.records, strict=True)):
                a, b = figure(one), figure(two)
                if a is not None and b is not None:
                    differences.append(b - a)
                    by_job.setdefault(number, []).append(b - a)
            if differences:
                seed_means.append(sum(differences) / len(differences))
        jobs = [sum(values) / len(values) for _, values in sorted(by_job.items())]
        found[name] = _widen(paired_difference(jobs), seed_means)
    return found


def _widen(found: dict[str, Any], seed_means: Sequence[float]) -> dict[str, Any]:
    """Widen an interval to what the means of several seeds say."""
    count, mean = len(seed_means), found["mean"]
    if count < 2 or mean is None or len(set(seed_means)) == 1:
        return found
    centre = sum(seed_means) / count
    deviation = sqrt(sum((one - centre) ** 2 for one in seed_means) / (count - 1))
    margin = T_QUANTILES[min(count - 1, len(T_QUANTILES)) - 1] * deviation / sqrt(count)
    low, high = round(mean - margin, 6), round(mean + margin, 6)
    if found["low"] is not None:
        low, high = min(low, found["low"]), max(high, found["high"])
    return {**found, "low": low, "high": high}


def paired_difference(differences: Sequence[float]) -> dict[str, Any]:
    """Return the mean of some differences and its 95 % confidence interval.

    The interval is None for fewer differences than two per batch.
    """
    count = len(differences)
    mean = sum(differences) / count if count else None
    found: dict[str, Any] = {"jobs": count, "mean": None if mean is None else round(mean, 6)}
    if mean is None or count < 2 * BATCHES:
        return {**found, "low": None, "high": None}
    batches = [
        differences[i * count // BATCHES : (i + 1) * count // BATCHES] for i in range(BATCHES)
    ]
    means = [sum(batch) / len(batch) for batch in batches]
    centre = sum(means) / BATCHES
    deviation = sqrt(sum((one - centre) ** 2 for one in means) / (BATCHES - 1))
    margin = T_QUANTILE * deviation / sqrt(BATCHES)
    return {**found, "low": round(mean - margin, 6), "high": round(mean + margin, 6)}
