"""Paired differences of simulations."""

from __future__ import annotations

import pytest

from phalanx.sim.core_engine import CoreEngine
from phalanx.sim.reports.comparison import compare_seeds, paired_difference
from tests.sim.test_core_engine import job, setup


def test_equal_differences_have_an_interval_of_no_width() -> None:
    assert paired_difference([3.0] * 40) == {"jobs": 40, "mean": 3.0, "low": 3.0, "high": 3.0}


def test_interval_follows_from_the_batch_means() -> None:
    found = paired_difference([-1.0, -1.0, 1.0, 1.0] * 10)
    # Twenty batches of two jobs with the means -1 and 1: deviation sqrt(20/19).
    margin = 2.093 * (20 / 19) ** 0.5 / 20**0.5
    assert found["mean"] == 0
    assert (found["low"], found["high"]) == pytest.approx((-margin, margin), abs=1e-6)


def test_few_differences_have_no_interval() -> None:
    assert paired_difference([1.0, 2.0]) == {"jobs": 2, "mean": 1.5, "low": None, "high": None}
    assert paired_difference([])["mean"] is None


def test_more_nodes_shorten_waits_and_jobs_that_never_start_are_left_out() -> None:
    jobs = (job(0, 100, 4), job(10, 50, 2), job(20, 10, 7))
    small = CoreEngine(setup(*jobs)).run()
    large = CoreEngine(setup(*jobs, nodes=6)).run()
    found = compare_seeds([small], [large])
    assert (found["waitSeconds"]["jobs"], found["waitSeconds"]["mean"]) == (2, -45)
    assert found["boundedSlowdown"]["mean"] == pytest.approx((0 + 1 - 140 / 50) / 2)


def test_interval_covers_the_differences_of_the_seeds() -> None:
    jobs = (job(0, 100, 4), job(10, 50, 2))
    small = CoreEngine(setup(*jobs)).run()
    large = CoreEngine(setup(*jobs, nodes=6)).run()
    alike = compare_seeds([small, small], [large, large])["waitSeconds"]
    assert (alike["mean"], alike["low"]) == (-45, None)
    found = compare_seeds([small, small], [large, small])["waitSeconds"]
    # Two seeds with the means -45 and 0: deviation 31.82, and one degree of freedom.
    margin = 12.706 * (45 / 2**0.5) / 2**0.5
    assert found["mean"] == -22.5
    assert (found["low"], found["high"]) == pytest.approx(
        (-22.5 - margin, -22.5 + margin), abs=1e-3
    )
