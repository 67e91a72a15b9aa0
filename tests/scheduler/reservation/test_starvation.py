"""A large gang beside a stream of small ones of equal priority, against EASY backfill."""

from __future__ import annotations

from itertools import product
from statistics import mean

import pytest

from tests.scheduler.reservation.starvation import (
    ARRIVAL,
    HOUR,
    NODES,
    SimulatedGang,
    StarvationRun,
    run_easy,
    small_gangs,
)
from tests.scheduler.reservation.virtual_scheduler import profiles

LOADS, SIZES, SEEDS = (0.7, 0.8, 0.9), (16, 32, 48), range(1, 11)
#: When a run is given up in which the large gang does not start.
LAST = ARRIVAL + 40 * HOUR


def wait_of(gangs: list[SimulatedGang], large: int, *, is_known: bool) -> float:
    """Return how long a large gang waits."""
    run = StarvationRun(gangs, large, is_known=is_known)
    run.run(LAST, stops_at_start=True)
    return run.wait


@pytest.mark.parametrize("is_known", [True, False])
def test_large_gang_starts_about_as_early_as_under_easy_backfill(is_known: bool) -> None:
    gangs = small_gangs(0.7, 1, 30)
    assert wait_of(gangs, 48, is_known=is_known) <= 1.25 * run_easy(gangs, 48)


@pytest.mark.slow
def test_large_gang_starves_without_reservations() -> None:
    run = StarvationRun(small_gangs(0.7, 1, 36), 48, profiles=profiles(mode="Off"))
    run.run(36 * HOUR)
    assert run.started_at is None


@pytest.mark.mostly_soak(slow_every=5)
@pytest.mark.parametrize(("load", "large"), list(product(LOADS, SIZES)))
def test_mean_wait_is_near_easy(load: float, large: int) -> None:
    streams = [small_gangs(load, seed, 24 + 40) for seed in SEEDS]
    easy = mean(run_easy(gangs, large) for gangs in streams)
    # The 60 s of afterSeconds count where EASY starts the gang nearly at once.
    bound = 1.25 * max(easy, 240)
    assert mean(wait_of(gangs, large, is_known=True) for gangs in streams) <= bound


@pytest.mark.mostly_soak(slow_every=5)
@pytest.mark.parametrize(("load", "large"), list(product(LOADS, SIZES)))
def test_wait_is_bounded_without_known_run_times(load: float, large: int) -> None:
    for seed in SEEDS:
        gangs = small_gangs(load, seed, 24 + 40)
        assert wait_of(gangs, large, is_known=False) < 4 * HOUR, f"seed {seed}"


@pytest.mark.mostly_soak(slow_every=5)
@pytest.mark.parametrize(("load", "seed"), list(product(LOADS, (1, 2, 3))))
def test_reservations_cost_little_utilization(load: float, seed: int) -> None:
    """One large gang in a day, measured over the day that begins with its arrival."""
    gangs, utilization = small_gangs(load, seed, 48), []
    for mode in ("Off", "Easy"):
        run = StarvationRun(gangs, 32, profiles=profiles(mode=mode))
        run.run(ARRIVAL - 1)
        busy = run.busy
        run.run(ARRIVAL + 24 * HOUR)
        utilization.append((run.busy - busy) / (24 * HOUR * NODES))
    without, with_reservations = utilization
    assert without - with_reservations <= 0.03
