"""Entities that a reservation holds up are attempted only after a change that may help them."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from phalanx.api.batch import EXPECTED_RUN_TIME_ANNOTATION, JobRunTime
from phalanx.api.core import Taint
from phalanx.api.scheduling import PodGroup
from tests.scheduler.builders import gang, node
from tests.scheduler.reservation.test_reservation import (
    members,
    nodes,
    reserve_large,
    two_busy_nodes,
)
from tests.scheduler.reservation.virtual_scheduler import (
    VirtualScheduler,
    ending_pod,
    job_owner,
    profiles,
)


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


def test_freed_room_wakes_the_first_of_equal_entities_before_a_reservation_of_lower_priority() -> (
    None
):
    scheduler = VirtualScheduler(nodes(2), profiles(after_seconds=0))
    running = (ending_pod(f"r{n}", on=f"n{n}", priority=100, seconds=1000) for n in range(2))
    scheduler.run_pods(*running)
    for n in range(20):
        scheduler.submit(f"low-{n}", members(f"low-{n}", 1))
        scheduler.submit(f"high-{n}", members(f"high-{n}", 1, priority=10))
    scheduler.run_pass()
    reserved = {one.ref.name for one in scheduler.state.reservations.current}
    assert reserved == {"high-0", "low-0"}
    scheduler.end("r0")
    assert set(attempts_of(scheduler)) <= {"high-0", "high-1", "high-2", "low-0", "low-1"}
    assert "high-0" in scheduler.bound
    scheduler.end("r1")
    scheduler.run_pass()
    assert "high-1" in scheduler.bound


def test_all_held_entities_are_attempted_when_the_reservation_ends(
    draining: VirtualScheduler,
) -> None:
    draining.add_group(gang("large", 5))
    attempts = attempts_of(draining)
    assert {f"held-{n}" for n in range(20)} <= set(attempts)
    assert "held-0" in draining.bound


def with_run_time(group: PodGroup, run_time: str) -> PodGroup:
    meta = replace(group.metadata, annotations={EXPECTED_RUN_TIME_ANNOTATION: run_time})
    return replace(group, metadata=meta)


def test_run_time_of_a_new_gang_wakes_no_other_entity(draining: VirtualScheduler) -> None:
    draining.add_job("new", JobRunTime(job_owner("new").uid, expected_run_time=60.0))
    pods = members("new", 1, cpu="2", owner=job_owner("new"))
    draining.submit("new", pods, with_run_time(gang("new", 1), "1h"))
    assert attempts_of(draining) == ["new"]
    draining.add_job("new", None)
    assert attempts_of(draining) == []


def test_held_gang_is_attempted_again_when_its_group_declares_a_run_time() -> None:
    scheduler = two_busy_nodes()
    reserve_large(scheduler)
    scheduler.submit("small", members("small", 1))
    assert scheduler.run_pass() == []
    scheduler.add_group(with_run_time(gang("small", 1), "60s"))
    assert scheduler.run_pass() == ["small"]


def test_only_changes_of_refused_entities_and_running_pods_lead_to_new_plans(
    draining: VirtualScheduler,
) -> None:
    tracker = draining.state.reservations
    draining.submit("new", members("new", 1), with_run_time(gang("new", 1), "1h"))
    assert not tracker.is_due(draining.now)
    draining.submit_pods(*members("large", 4))
    assert not tracker.is_due(draining.now)
    draining.submit_pods(*members("large", 4, cpu="1"))
    assert tracker.is_due(draining.now)
    draining.run_pass()
    draining.end("little-2")
    assert tracker.is_due(draining.now)


def test_strict_starts_nothing_behind_a_head_that_is_about_to_start() -> None:
    scheduler = two_busy_nodes(mode="Strict")
    scheduler.submit("large", members("large", 2))
    scheduler.run_pass(0)
    scheduler.submit("small", members("small", 1, cpu="1", seconds=1))
    scheduler.add_nodes(node("n3", cpu="1"))
    assert scheduler.run_pass(980) == []
    assert len(scheduler.state.cache.snapshot().nominations) == 2
    assert scheduler.run_pass(981) == []


def test_held_entity_is_attempted_when_a_node_becomes_ready(draining: VirtualScheduler) -> None:
    taint = Taint(key="node.kubernetes.io/not-ready", effect="NoSchedule")
    ready = node("n4", cpu="2")
    draining.add_nodes(replace(ready, spec=replace(ready.spec, taints=(taint,))))
    assert draining.run_pass() == []
    draining.add_nodes(ready)
    assert draining.run_pass() == ["held-0"]
