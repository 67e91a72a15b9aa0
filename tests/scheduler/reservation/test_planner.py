"""Plans of one reservation after the other: their starts, and how much work they are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace as but
from typing import Any

import pytest
from msgspec.structs import replace

from phalanx.api.core import Pod
from phalanx.scheduler.cluster.cache import SchedulerCache
from phalanx.scheduler.cluster.snapshot import Snapshot
from phalanx.scheduler.decision import Binding
from phalanx.scheduler.policy import DEFAULT_POLICY, DEFAULT_PROFILES
from phalanx.scheduler.reservation import run_times
from phalanx.scheduler.reservation.end_timeline import CapacityGrowth
from phalanx.scheduler.reservation.planner import ReservationPlanner
from phalanx.scheduler.reservation.reservation import (
    Reservation,
    ReservationOrder,
    ReservationRequest,
)
from phalanx.scheduler.reservation.run_times import RunTimes
from phalanx.scheduler.reservation.tracker import ReservationTracker
from tests.scheduler.builders import entity, gang, node
from tests.scheduler.reservation.virtual_scheduler import ending_pod, job_owner


class PlannedCluster:
    """Nodes of 8 CPUs that run one pod each, and the gangs that are planned on them in order.

    `on_step` is called after each step of a plan.
    """

    def __init__(self, *seconds: int) -> None:
        self._cache, self._run_times = SchedulerCache(), RunTimes()
        self._planner: ReservationPlanner | None = None
        self.preemptors: list[tuple[str, list[Pod]]] = []
        self.on_step: Callable[[], None] = lambda: None
        self.planned: list[Reservation | None] = []
        for number, end in enumerate(seconds):
            made = node(f"n{number}", cpu="8")
            self._cache.update_node(made.metadata.name, made)
            running = ending_pod(f"p{number}", on=f"n{number}", cpu="8", expected=f"{end}s")
            self._cache.update_pod(running.metadata.key, running)
            self._run_times.observe_pod(running.metadata.key, running, 0.0)

    def nominate(self, name: str, pods: list[Pod], nodes: Sequence[str]) -> None:
        for one, chosen in zip(pods, nodes, strict=True):
            meta = one.metadata
            self._cache.update_pod(meta.key, one)
            self._cache.nominate([Binding(meta.key, meta.uid, chosen)])
        self.preemptors.append((name, pods))

    def snapshot(self) -> Snapshot:
        return self._cache.snapshot()

    def plan(self, name: str, pods: list[Pod]) -> float | None:
        """Plan a gang; returns its expected start."""
        if self._planner is None:
            for _ in self._run_times.update():
                pass
            preemptors = [
                entity(gang(one, len(members)), members) for one, members in self.preemptors
            ]
            self._planner = ReservationPlanner(
                self._cache.snapshot(), self._run_times, 0.0, preemptors=preemptors
            )
        made = entity(gang(name, len(pods)), pods)
        order = ReservationOrder(0, float(len(self.planned)), made.ref)
        steps = self._planner.plan(ReservationRequest(made, order, DEFAULT_POLICY))
        while True:
            try:
                next(steps)
            except StopIteration as end:
                self.on_step()
                self.planned.append(end.value)
                return end.value.expected_start if end.value else None
            self.on_step()


def members(name: str, count: int, seconds: int) -> list[Pod]:
    """Equal pods of a Job: they share one spec."""
    made = [
        ending_pod(f"{name}-{i}", name, cpu="8", expected=f"{seconds}s", owner=job_owner(name))
        for i in range(count)
    ]
    return [replace(one, spec=made[0].spec) for one in made]


def count_calls(monkeypatch: pytest.MonkeyPatch, owner: object, *names: str) -> Counter[str]:
    """Count how often functions are called from now on."""
    calls: Counter[str] = Counter()

    def counted(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            calls[name] += 1
            return original(*args, **kwargs)

        return call

    for name in names:
        monkeypatch.setattr(owner, name, counted(name, getattr(owner, name)))
    return calls


def test_one_step_examines_one_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """At 30 times enough nodes are free, but the gang would not end before the large one starts."""
    cluster, most = PlannedCluster(*range(100, 6_100, 100)), 0
    calls = count_calls(monkeypatch, CapacityGrowth, "_sum_domains")

    def note_step() -> None:
        nonlocal most
        most = max(most, calls["_sum_domains"])
        calls.clear()

    assert cluster.plan("large", members("large", 60, 500)) == 6_000
    calls.clear()
    cluster.on_step = note_step
    assert cluster.plan("long", members("long", 30, 4_000)) == 6_500
    # The first step also finds the first of the times.
    assert most == 2


def test_plan_computes_limits_once_and_orders_reserved_pods_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = PlannedCluster(*range(100, 6_100, 100))
    assert cluster.plan("large", members("large", 60, 500)) == 6_000
    limits = count_calls(monkeypatch, run_times, "parse_run_time")
    timelines = count_calls(monkeypatch, ReservationPlanner, "_timeline")
    waiting = members("short", 30, 1_000)
    assert cluster.plan("short", waiting) == 3_000
    # The limit, the end of the large gang, and the end of this one.
    assert limits.total() <= 3
    assert timelines.total() == 1


@pytest.mark.parametrize("equal", [[], ["e1"]])
def test_nominated_pods_of_a_gang_leave_it_its_own_start(equal: list[str]) -> None:
    """`e2` may use `n1`, which it is nominated for; an equal gang must not."""
    cluster = PlannedCluster(100, 1_700)
    nominated = members("e2", 1, 900)
    cluster.nominate("e2", nominated, ["n0"])
    assert cluster.plan("large", members("large", 2, 500)) == 1_700
    for name in equal:
        assert cluster.plan(name, members(name, 1, 900)) == 2_200
    assert cluster.plan("e2", nominated) == 100


def test_nominated_pod_of_a_lost_node_keeps_nothing() -> None:
    cluster = PlannedCluster(100, 1_700)
    cluster.nominate("e2", members("e2", 1, 900), ["gone"])
    assert cluster.plan("large", members("large", 2, 500)) == 1_700


def plan_three() -> tuple[PlannedCluster, list[Reservation]]:
    """The second gang starts beside the first one, the third one where both are."""
    cluster = PlannedCluster(100, 200, 300)
    for name, count in (("first", 1), ("second", 1), ("third", 2)):
        cluster.plan(name, members(name, count, 1_000))
    return cluster, [one for one in cluster.planned if one is not None]


def test_reservation_changes_only_beside_a_nominated_one_on_its_nodes() -> None:
    _, (first, second, third) = plan_three()
    assert second.subtract_nominated([first]) is second
    assert third.subtract_nominated([]) is third
    assert first.subtract_nominated([third]) is first
    earlier = replace(first, expected_end=None)
    assert third.subtract_nominated([earlier]) is not third


def test_attempts_after_a_plan_share_what_is_kept_beside_nominated_reservations(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster, planned = plan_three()
    cluster.nominate("first", members("first", 1, 1_000), planned[0].nodes)
    snapshot = cluster.snapshot()
    tracker = ReservationTracker(DEFAULT_PROFILES)
    tracker.restore(planned, ())
    tracker.run_times.ends.align(snapshot)
    late = but(entity(gang("late", 1), members("late", 1, 10)), ready_since=1e6)
    calls = count_calls(monkeypatch, Reservation, "subtract_nominated")
    found = [tracker.holds_for(late, snapshot, 0.0) for _ in range(3)]
    assert calls.total() == 2
    first, *others = (one.apply(snapshot).requested.tolist() for one in found if one is not None)
    assert others == [first, first]
    tracker.restore(planned, ())
    assert tracker.holds_for(late, snapshot, 0.0) is not None
    assert calls.total() == 4
