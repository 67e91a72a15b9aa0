"""Entities that a reservation holds up are attempted only after a change that may help them."""

from __future__ import annotations

import pytest

from tests.scheduler.builders import gang, node
from tests.scheduler.reservation.test_reservation import (
    members,
    nodes,
    reserve_large,
    two_busy_nodes,
)
from tests.scheduler.reservation.virtual_scheduler import VirtualScheduler, ending_pod


def attempts_of(scheduler: VirtualScheduler) -> list[str]:
    """The entities that are attempted in the next pass."""
    scheduler.decisions.clear()
    scheduler.run_pass()
    return list(scheduler.decisions)


@pytest.fixture
def draining() -> VirtualScheduler:
    """Four nodes of 4 CPU that a gang waits for, and equal gangs of one pod that it holds up."""
    scheduler = VirtualScheduler(nodes(4))
    scheduler.run_pods(
        *(ending_pod(f"r{n}", on=f"n{n}", cpu="3") for n in range(4)),
        *(ending_pod(f"little-{n}", on=f"n{n}", cpu="500m") for n in range(4)),
        *(ending_pod(f"nothing-{n}", on=f"n{n}", cpu="0") for n in range(4)),
    )
    reserve_large(scheduler, 4)
    for n in range(20):
        scheduler.submit(f"held-{n}", members(f"held-{n}", 1, cpu="2"))
    scheduler.end("r0")
    scheduler.run_pass()
    assert "held by a reservation" in scheduler.message("held-0")
    return scheduler


def test_held_entities_are_woken_only_by_changes_that_may_give_them_room(
    draining: VirtualScheduler,
) -> None:
    draining.end("nothing-0")
    assert attempts_of(draining) == []
    draining.end("little-1")
    assert attempts_of(draining) == []


def test_freed_room_wakes_the_first_of_equal_held_entities(draining: VirtualScheduler) -> None:
    draining.end("r1")
    assert set(attempts_of(draining)) <= {"large", "held-0"}
    draining.add_nodes(node("n4", cpu="2"), node("n5", cpu="2"))
    draining.run_pass()
    assert {"held-0", "held-1"} <= draining.bound.keys()


def test_all_held_entities_are_attempted_when_the_reservation_ends(
    draining: VirtualScheduler,
) -> None:
    draining.add_group(gang("large", 5))
    attempts = attempts_of(draining)
    assert {f"held-{n}" for n in range(20)} <= set(attempts)
    assert "held-0" in draining.bound


def test_strict_starts_nothing_behind_a_head_that_is_about_to_start() -> None:
    scheduler = two_busy_nodes(mode="Strict")
    scheduler.submit("large", members("large", 2))
    scheduler.run_pass(0)
    scheduler.submit("small", members("small", 1, cpu="1", seconds=1))
    scheduler.add_nodes(node("n3", cpu="1"))
    assert scheduler.run_pass(980) == []
    assert len(scheduler.state.cache.snapshot().nominations) == 2
    assert scheduler.run_pass(981) == []
