"""Between which times waiting entities start: simulations of the queue ahead."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from phalanx.api.core import (
    ContainerState,
    ContainerStateTerminated,
    ContainerStatus,
    Pod,
)
from phalanx.api.meta import pod_group_ref, timestamp
from phalanx.scheduler.diagnosis.expected_starts import expected_starts
from phalanx.scheduler.diagnosis.start_forecast import StartRange, add_ranges, forecast_ranges
from phalanx.scheduler.queue.scheduler_state import ClusterObjects, SchedulerState
from phalanx.scheduler.search.solver import Steps
from tests.scheduler import device_builders
from tests.scheduler.builders import gang, key, node
from tests.scheduler.reservation.virtual_scheduler import ending_pod, job_owner

NOW = 10_000.0
GANG = pod_group_ref(key("g"))


def ended_pod(name: str, owner: str, seconds: float) -> Pod:
    """A pod of a Job that has succeeded after so many seconds."""
    begin = NOW - 5000
    made = ending_pod(name, on="n0", owner=job_owner(owner), started=timestamp(begin))
    ended = ContainerStateTerminated(0, timestamp(begin + seconds))
    statuses = (ContainerStatus("main", state=ContainerState(ended)),)
    status = replace(made.status, phase="Succeeded", container_statuses=statuses)
    return replace(made, status=status)


def cluster(*pods: Pod, nodes: int = 1, waiting: int = 1) -> ClusterObjects:
    """A cluster of nodes with room for one pod each, and a gang that waits."""
    members = [ending_pod(f"g-{n}", "g", seconds=300) for n in range(waiting)]
    return ClusterObjects(
        nodes=[node(f"n{n}") for n in range(nodes)],
        groups=[gang("g", waiting)],
        pods=[*pods, *members],
    )


def running(name: str, on: str = "n0", **options: object) -> Pod:
    begin = timestamp(NOW - 60)
    return ending_pod(name, on=on, owner=job_owner("a"), started=begin, **options)  # type: ignore[arg-type]


def test_deadline_is_the_latest_end_and_any_moment_before_it_possible() -> None:
    found = forecast_ranges(cluster(running("a-0", seconds=600)), now=NOW)
    assert found == {GANG: StartRange(NOW, NOW + 540)}


def test_observed_run_times_are_the_range() -> None:
    earlier = [ended_pod(f"a-{n}", "a", 100 * n) for n in (1, 2, 4)]
    objects = cluster(running("a-9"), *earlier)
    assert forecast_ranges(objects, now=NOW) == {GANG: StartRange(NOW + 40, NOW + 340)}
    start = add_ranges(expected_starts(objects, now=NOW), objects, now=NOW)[GANG]
    assert (start.earliest, start.time, start.latest) == (NOW + 40, NOW + 140, NOW + 340)
    assert start.describe(NOW) == "expected in 2 min (40 s to 6 min), when job/a ends"


def test_deadline_limits_the_observed_run_times() -> None:
    earlier = [ended_pod(f"a-{n}", "a", 100 * n) for n in (1, 2, 4)]
    found = forecast_ranges(cluster(running("a-9", seconds=300), *earlier), now=NOW)
    assert found == {GANG: StartRange(NOW + 40, NOW + 240)}


def test_unknown_end_makes_the_latest_start_unknown() -> None:
    objects = cluster(running("a-0"))
    assert forecast_ranges(objects, now=NOW) == {GANG: StartRange(NOW, None)}
    start = add_ranges(expected_starts(objects, now=NOW), objects, now=NOW)[GANG]
    assert (start.time, start.latest) == (None, None)
    assert start.describe(NOW) == "unknown, when job/a ends"


def test_pod_that_outlives_every_earlier_one_has_an_unknown_end() -> None:
    objects = cluster(running("a-9"), ended_pod("a-1", "a", 30))
    assert forecast_ranges(objects, now=NOW) == {GANG: StartRange(NOW, None)}


def test_gang_behind_another_starts_after_that_has_run() -> None:
    behind = [ending_pod("h-0", "h", seconds=50)]
    objects = cluster(running("a-0", seconds=600))
    objects = ClusterObjects(
        nodes=objects.nodes,
        groups=[*objects.groups, gang("h", 1)],
        pods=[*objects.pods, *behind],
    )
    found = forecast_ranges(objects, now=NOW)
    assert found[GANG] == StartRange(NOW, NOW + 540)
    assert found[pod_group_ref(key("h"))] == StartRange(NOW, NOW + 840)


def test_pods_that_never_end_leave_no_range() -> None:
    service = running("a-0")
    service = replace(service, spec=replace(service.spec, restart_policy="Always"))
    assert forecast_ranges(cluster(service), now=NOW) == {}


def test_gang_that_fits_starts_now() -> None:
    objects = cluster(nodes=2, waiting=2)
    assert forecast_ranges(objects, now=NOW) == {GANG: StartRange(NOW, NOW)}


@pytest.mark.parametrize("gangs", [2, 400])
def test_work_is_bounded(gangs: int) -> None:
    pods = [ending_pod(f"q{n}-0", f"q{n}", seconds=10) for n in range(gangs)]
    objects = ClusterObjects(
        nodes=[node("n0")], groups=[gang(f"q{n}", 1) for n in range(gangs)], pods=pods
    )
    found = forecast_ranges(objects, now=NOW)
    assert len(found) == min(gangs, 32)


def with_claim(pod: Pod, name: str) -> Pod:
    """The pod with a ResourceClaim."""
    claims = device_builders.pod(name, name).spec.resource_claims
    return replace(pod, spec=replace(pod.spec, resource_claims=claims))


@pytest.mark.slow
def test_gang_that_waits_for_devices_of_unknown_end_is_planned_a_limited_number_of_times(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    held = {"a-0": "n0/gpu-0", "a-1": "n0/gpu-1", "a-2": "n1/gpu-0"}
    objects = ClusterObjects(
        nodes=[device_builders.node(name) for name in ("n0", "n1")],
        groups=[gang("g", 3)],
        pods=[
            *(with_claim(running(name, on=one[:2]), name) for name, one in held.items()),
            *(device_builders.pod(f"g-{n}", f"wanted-{n}", group="g") for n in range(3)),
        ],
        devices=[
            *(
                device_builders.resource_slice(name, device_builders.gpus(2))
                for name in ("n0", "n1")
            ),
            device_builders.device_class(),
            *(device_builders.allocated(name, one, name) for name, one in held.items()),
            *(device_builders.claim(f"wanted-{n}") for n in range(3)),
        ],
    )
    plan, calls = SchedulerState.plan_reservations, []

    def counted(state: SchedulerState, now: float) -> Steps[None]:
        calls.append(now)
        assert len(calls) < 1000
        return plan(state, now)

    monkeypatch.setattr(SchedulerState, "plan_reservations", counted)
    assert forecast_ranges(objects, now=NOW) == {}
    assert calls


def test_devices_of_a_pod_that_ends_are_free_for_the_next_ones() -> None:
    holder = device_builders.pod("held", "held", on="n0")
    spec = replace(holder.spec, restart_policy="Never", active_deadline_seconds=600)
    status = replace(holder.status, start_time=timestamp(NOW - 60), phase="Running")
    members = [device_builders.pod(f"g{n}-0", f"wanted-{n}", group=f"g{n}") for n in range(2)]
    waiting = [
        replace(one, spec=replace(one.spec, restart_policy="Never", active_deadline_seconds=300))
        for one in members
    ]
    objects = ClusterObjects(
        nodes=[device_builders.node("n0")],
        groups=[device_builders.gang(f"g{n}", 1) for n in range(2)],
        pods=[replace(holder, spec=spec, status=status), *waiting],
        devices=[
            device_builders.resource_slice("n0", device_builders.gpus(1)),
            device_builders.device_class(),
            device_builders.allocated("held", "n0/gpu-0", "held"),
            *(device_builders.claim(f"wanted-{n}") for n in range(2)),
        ],
    )
    starts = add_ranges(expected_starts(objects, now=NOW), objects, now=NOW)
    first, second = (starts[pod_group_ref(key(f"g{n}"))] for n in range(2))
    assert (first.time, first.latest) == (NOW + 540, NOW + 540)
    assert second.latest == NOW + 840
