"""Back-off: how long a rejected entity waits."""

from __future__ import annotations

from math import sqrt

import pytest

from phalanx.scheduler.policy import DEFAULT_BACKOFF, MAX_UNSCHEDULABLE_SECONDS, BackOff


@pytest.mark.parametrize(
    ("failures", "pods", "seconds"),
    [
        (0, 1, 1.0),
        (1, 1, 1.0),
        (2, 1, 2.0),
        (4, 1, 8.0),
        (5, 1, 10.0),
        (500, 1, 10.0),
        (1, 100, 1.0),
        (7, 100, 64.0),
        (8, 100, 100.0),
        (9, 3, 10 * sqrt(3)),
    ],
)
def test_back_off_doubles_up_to_a_limit_that_grows_with_the_group(
    failures: int, pods: int, seconds: float
) -> None:
    assert DEFAULT_BACKOFF.delay_after(failures, pods) == pytest.approx(seconds)


def test_initial_and_maximum_back_off_can_be_set() -> None:
    assert [BackOff(2, 5).delay_after(n, 1) for n in (1, 2, 3)] == [2, 4, 5]


def test_without_back_off_only_the_maximum_unschedulable_time_applies() -> None:
    assert BackOff(1, 0).delay_after(9, 4) == MAX_UNSCHEDULABLE_SECONDS
