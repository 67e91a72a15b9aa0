"""Preemption beside reservations: a preemptor evicts pods only if it can start after that."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from phalanx.api.core import Pod
from phalanx.scheduler.cluster.pod_index import AssignedPod
from phalanx.scheduler.decision import Preempting, Waiting
from phalanx.scheduler.queue.decision_log import PodObserved
from tests.scheduler.builders import key, node
from tests.scheduler.reservation.test_reservation import members, nodes
from tests.scheduler.reservation.virtual_scheduler import VirtualScheduler, ending_pod


def is_running(scheduler: VirtualScheduler, name: str) -> bool:
    return scheduler.state.cache.snapshot().pod_index.assigned_pod(key(name)) is not None


def with_grace(pod: Pod, seconds: int) -> Pod:
    return replace(pod, spec=replace(pod.spec, termination_grace_period_seconds=seconds))


def backfilled_node() -> VirtualScheduler:
    """A gang waits for n0 to n2 until 1,000 s; until 900 s a backfilled pod runs on n0."""
    scheduler = VirtualScheduler(nodes(3))
    scheduler.run_pods(
        *(ending_pod(f"busy-{name}", on=name, seconds=1000, priority=9) for name in ("n1", "n2")),
    )
    scheduler.submit("large", members("large", 3, priority=9))
    scheduler.run_pass(0)
    scheduler.run_pass(61)
    scheduler.submit("backfilled", members("backfilled", 1, seconds=800))
    assert scheduler.run_pass(100) == ["backfilled"]
    assert scheduler.reservations["large"].expected_start == 1000
    return scheduler


@pytest.mark.parametrize("priority", [5, 9])
def test_backfilled_pod_is_not_evicted_for_a_gang_that_the_reservation_holds(
    priority: int,
) -> None:
    scheduler = backfilled_node()
    scheduler.submit("long", members("long", 1, priority=priority, seconds=5000))
    assert scheduler.run_pass(101) == []
    decision = scheduler.decisions["long"]
    assert isinstance(decision, Waiting)
    assert not decision.nominated
    assert [holder.name for holder in decision.holders] == ["large"]
    assert is_running(scheduler, "backfilled-0")


@pytest.mark.parametrize("priority", [5, 9])
def test_backfilled_pod_is_evicted_for_a_gang_that_ends_before_the_expected_start(
    priority: int,
) -> None:
    scheduler = backfilled_node()
    scheduler.submit("brief", members("brief", 1, priority=priority, seconds=850))
    assert scheduler.run_pass(101) == ["brief"]
    assert scheduler.reservations["large"].expected_start == 1000


@pytest.mark.parametrize("priority", [5, 9])
def test_room_of_victims_is_not_reserved_before_their_preemptor_starts(priority: int) -> None:
    scheduler = VirtualScheduler(nodes(3))
    scheduler.run_pods(
        ending_pod("low", on="n0", seconds=5000),
        ending_pod("first", on="n1", seconds=1000, priority=9),
        ending_pod("second", on="n2", seconds=2000, priority=9),
    )
    scheduler.submit("large", members("large", 2, priority=9))
    scheduler.run_pass(0)
    scheduler.run_pass(61)
    # The nodes that become free first without the eviction of a pod.
    assert scheduler.reservations["large"].nodes == ("n1", "n2")
    scheduler.submit("long", members("long", 1, priority=priority, seconds=5000))
    assert scheduler.run_pass(100) == ["long"]
    reservation = scheduler.reservations["large"]
    assert (reservation.nodes, reservation.expected_start) == (("n1", "n2"), 2000)


def test_gang_is_not_nominated_for_reserved_room_that_terminating_pods_leave() -> None:
    scheduler = backfilled_node()
    scheduler.grace_seconds = 30.0
    scheduler.evict(key("backfilled-0"))
    scheduler.submit("long", members("long", 1, priority=5, seconds=5000))
    scheduler.run_pass(101)
    decision = scheduler.decisions["long"]
    assert isinstance(decision, Waiting)
    assert not decision.nominated


def test_gang_evicts_other_pods_if_reserved_room_holds_the_cheapest_victims() -> None:
    scheduler = backfilled_node()
    scheduler.add_nodes(node("n3"))
    scheduler.run_pods(ending_pod("other", on="n3", seconds=5000, priority=1))
    scheduler.submit("long", members("long", 1, priority=5, seconds=5000))
    assert scheduler.run_pass(101) == ["long"]
    assert scheduler.bound["long"][0].spec.node_name == "n3"
    assert is_running(scheduler, "backfilled-0")


def graceful_node(grace: int) -> VirtualScheduler:
    """The same; the backfilled pod takes some seconds to terminate."""
    scheduler = VirtualScheduler(nodes(3))
    scheduler.grace_seconds = grace
    scheduler.run_pods(
        *(ending_pod(f"busy-{name}", on=name, seconds=1000, priority=9) for name in ("n1", "n2")),
    )
    scheduler.submit("large", members("large", 3, priority=9))
    scheduler.run_pass(0)
    scheduler.run_pass(61)
    backfilled = members("backfilled", 1, seconds=800)
    scheduler.submit("backfilled", [with_grace(one, grace) for one in backfilled])
    assert scheduler.run_pass(100) == ["backfilled"]
    assert scheduler.reservations["large"].expected_start == 1000
    return scheduler


@pytest.mark.parametrize("priority", [5, 9])
def test_no_pod_is_evicted_whose_grace_period_makes_the_preemptor_end_too_late(
    priority: int,
) -> None:
    scheduler = graceful_node(120)
    scheduler.submit("brief", members("brief", 1, priority=priority, seconds=850))
    assert scheduler.run_pass(101) == []
    decision = scheduler.decisions["brief"]
    assert isinstance(decision, Waiting)
    assert not decision.nominated
    assert [holder.name for holder in decision.holders] == ["large"]
    assert is_running(scheduler, "backfilled-0")


@pytest.mark.parametrize("priority", [5, 9])
def test_preemptor_that_ends_in_time_after_the_grace_period_starts(priority: int) -> None:
    scheduler = graceful_node(120)
    scheduler.submit("brief", members("brief", 1, priority=priority, seconds=700))
    assert scheduler.run_pass(101) == []
    assert isinstance(scheduler.decisions["brief"], Preempting)
    for now in (110, 160, 220):
        scheduler.run_pass(now)
        assert scheduler.reservations["large"].expected_start == 1000
    scheduler.state.observe(PodObserved(221, key("backfilled-0"), None))
    assert scheduler.run_pass(221) == ["brief"]
    assert scheduler.reservations["large"].expected_start == 1000


def test_preemptor_evicts_a_pod_that_terminates_faster() -> None:
    scheduler = graceful_node(120)
    scheduler.add_nodes(node("n3"))
    scheduler.run_pods(ending_pod("other", on="n3", seconds=5000, priority=1))
    scheduler.submit("brief", members("brief", 1, priority=5, seconds=850))
    scheduler.run_pass(101)
    decision = scheduler.decisions["brief"]
    assert isinstance(decision, Preempting)
    assert [victim.pod.name for victim in decision.victims] == ["other"]


def test_preemptor_whose_victim_hangs_loses_the_reserved_room() -> None:
    scheduler = graceful_node(120)
    scheduler.submit("brief", members("brief", 1, priority=5, seconds=770))
    scheduler.run_pass(101)
    assert isinstance(scheduler.decisions["brief"], Preempting)
    # The victim should have been gone at 221 s.
    for now in (222, 240, 251):
        scheduler.run_pass(now)
        assert scheduler.reservations["large"].expected_start == 1000
    scheduler.state.observe(PodObserved(252, key("backfilled-0"), None))
    assert scheduler.run_pass(252) == []
    assert scheduler.reservations["large"].expected_start == 1000
    assert not scheduler.state.cache.snapshot().nominations


def test_equal_gang_with_a_shorter_limit_is_asked_itself() -> None:
    scheduler = graceful_node(120)
    scheduler.submit("longer", members("longer", 1, priority=5, seconds=850))
    scheduler.submit("shorter", members("shorter", 1, priority=5, seconds=700))
    scheduler.run_pass(101)
    assert isinstance(scheduler.decisions["longer"], Waiting)
    assert isinstance(scheduler.decisions["shorter"], Preempting)


def test_plan_compares_preemptors_with_the_victims_on_their_own_nodes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scheduler, number = graceful_node(120), 20
    for index in range(number):
        scheduler.add_nodes(node(f"more-{index}"))
        scheduler.run_pods(ending_pod(f"other-{index}", on=f"more-{index}", seconds=5000))
        scheduler.submit(f"brief-{index}", members(f"brief-{index}", 1, priority=5, seconds=850))
    scheduler.run_pass(101)
    assert len(scheduler.state.cache.snapshot().nominations) >= number
    compared, original = 0, AssignedPod.is_overdue

    def count(pod: AssignedPod, now: float) -> bool:
        nonlocal compared
        compared += 1
        return original(pod, now)

    monkeypatch.setattr(AssignedPod, "is_overdue", count)
    # A pod ends: the reservation is planned again.
    scheduler.state.observe(PodObserved(110, key("busy-n1"), None))
    scheduler.run_pass(110)
    assert 0 < compared <= 3 * number
