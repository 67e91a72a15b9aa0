"""Compares simulations of the same jobs: paired differences with confidence intervals.

Waits of neighbouring jobs depend on each other, so single jobs are no independent observations. The
jobs are divided, in the order of submission, into batches; the differences of the batch means are
nearly independent, and Student's t distribution gives the interval (method of batch means).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import sqrt
from typing import Any

from phalanx.sim.reports.figures import bounded_slowdown_of, wait_of
from phalanx.sim.simulation_setup import JobRecord, SimulationResult

#: The number of batches, and the 97.5 % quantile of Student's t with one degree of freedom less.
BATCHES, T_QUANTILE = 20, 2.093

#: The figures that are compared job by job: name, and the figure of a record or None.
PAIRED_FIGURES: tuple[tuple[str, Callable[[JobRecord], float | None]], ...] = (
    ("waitSeconds", lambda record: wait_of(record) if record.first_start is not None else None),
    (
        "boundedSlowdown",
        lambda record: bounded_slowdown_of(record) if record.end is not None else None,
    ),
)


def compare_results(first: SimulationResult, other: SimulationResult) -> dict[str, Any]:
    """Return, by figure, the mean of the other simulation minus that of the first, per job."""
    found: dict[str, Any] = {}
    for name, figure in PAIRED_FIGURES:
        pairs = [
            (a, b)
            for one, two in zip(first.records, other.records, strict=True)
            if (a := figure(one)) is not None and (b := figure(two)) is not None
        ]
        found[name] = paired_difference([b - a for a, b in pairs])
    return found


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
