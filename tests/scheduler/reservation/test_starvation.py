"""A large gang beside a stream of small ones of equal priority, against EASY backfill."""

from __future__ import annotations

from itertools import product
from statistics import mean

import pytest

from tests.scheduler.reservation.starvation import (
    ARRIVAL,
    HOUR,
    SimulatedGang,
    run_easy,
    run_phalanx,
    small_gangs,
)
from tests.scheduler.reservation.virtual_scheduler import profiles

LOADS, SIZES, SEEDS = (0.7, 0.8, 0.9), (16, 32, 48), range(1, 11)


def wait_of(gangs: list[SimulatedGang], large: int, *, is_known: bool) -> float:
    wait = run_phalanx(gangs, large, is_known=is_known).wait
    assert wait is not None
    return wait


@pytest.mark.parametrize("is_known", [True, False])
def test_large_gang_starts_about_as_early_as_under_easy_backfill(is_known: bool) -> None:
    gangs = small_gangs(0.7, 1, 30)
    assert wait_of(gangs, 48, is_known=is_known) <= 1.25 * run_easy(gangs, 48)


def test_large_gang_starves_without_reservations() -> None:
    gangs = small_gangs(0.7, 1, 36)
    result = run_phalanx(gangs, 48, profiles=profiles(mode="Off"), until=36 * HOUR)
    assert result.wait is None


@pytest.mark.slow
@pytest.mark.parametrize(("load", "large"), list(product(LOADS, SIZES)))
def test_mean_wait_is_near_easy_and_bounded_without_known_run_times(
    load: float, large: int
) -> None:
    streams = [small_gangs(load, seed, 24 + 40) for seed in SEEDS]
    easy = mean(run_easy(gangs, large) for gangs in streams)
    known = mean(wait_of(gangs, large, is_known=True) for gangs in streams)
    # The patience of 60 s counts where EASY starts the gang nearly at once.
    assert known <= 1.25 * max(easy, 240)
    assert max(wait_of(gangs, large, is_known=False) for gangs in streams) < 4 * HOUR


@pytest.mark.slow
@pytest.mark.parametrize("load", LOADS)
def test_reservations_cost_little_utilization(load: float) -> None:
    until, differences = ARRIVAL + 24 * HOUR, []
    for seed in (1, 2, 3):
        gangs = small_gangs(load, seed, 48)
        with_reservations = run_phalanx(gangs, 32, until=until)
        without = run_phalanx(gangs, 32, profiles=profiles(mode="Off"), until=until)
        differences.append(without.utilization - with_reservations.utilization)
    assert mean(differences) <= 0.03
