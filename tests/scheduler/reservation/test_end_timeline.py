"""What ending pods release, and when members fit, against sums over the pods one by one."""

from __future__ import annotations

from math import inf
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from phalanx.scheduler.cluster.cache import SchedulerCache
from phalanx.scheduler.cluster.pod_shape import shape_of
from phalanx.scheduler.cluster.snapshot import IntArray, Snapshot
from phalanx.scheduler.policy import DEFAULT_POLICY
from phalanx.scheduler.reservation.end_timeline import CapacityGrowth, EndTimeline, ReservedPods
from phalanx.scheduler.reservation.pod_ends import PodEnds
from tests.scheduler.builders import entity, gang, node, pod

NODES, CPUS = 6, 8

#: Node, CPUs and end of a pod.
running_pods = st.lists(
    st.tuples(st.integers(0, NODES - 1), st.integers(1, 3), st.sampled_from([10, 20, 30, inf])),
    max_size=12,
)


def make_snapshot(running: list[tuple[int, int, float]]) -> Snapshot:
    cache = SchedulerCache()
    for number in range(NODES):
        made = node(f"n{number}", {"rack": f"r{number // 2}"}, cpu=str(CPUS))
        cache.update_node(made.metadata.name, made)
    for number, (row, cpus, _) in enumerate(running):
        bound = pod(f"p{number}", on=f"n{row}", cpu=str(cpus))
        cache.update_pod(bound.metadata.key, bound)
    return cache.snapshot()


def make_timelines(
    running: list[tuple[int, int, float]], snapshot: Snapshot, split: int
) -> list[EndTimeline]:
    """Two timelines: the first pods, and the others."""
    ends = PodEnds()
    ends.align(snapshot)
    keys = []
    for number, (row, cpus, end) in enumerate(running):
        made = pod(f"p{number}", cpu=str(cpus))
        keys.append(made.metadata.key)
        ends.set(made.metadata.key, f"n{row}", shape_of(made), end=end)
    parts = [ends.slots_of(part) for part in (keys[:split], keys[split:])]
    return [EndTimeline(ends, part, ends.ends(part), size=len(snapshot)) for part in parts]


def free_cpus(running: list[tuple[int, int, float]], time: float) -> list[int]:
    free = [CPUS] * NODES
    for row, cpus, end in running:
        free[row] -= 0 if end <= time else cpus
    return free


def released_cpus(snapshot: Snapshot, timelines: list[EndTimeline], time: float) -> list[int]:
    total: IntArray = np.sum([one.released(time) for one in timelines], axis=0)
    return [int(amount) // 1000 for amount in total[:, snapshot.columns["cpu"]]]


@given(running_pods, st.integers(0, 12), st.integers(0, 25))
def test_timelines_release_what_the_ended_pods_requested(
    running: list[tuple[int, int, float]], split: int, time: int
) -> None:
    snapshot = make_snapshot(running)
    timelines = make_timelines(running, snapshot, split)
    released = [0] * NODES
    last = [-inf] * NODES
    for row, cpus, end in running:
        if end <= time:
            released[row], last[row] = released[row] + cpus, max(last[row], end)
    assert released_cpus(snapshot, timelines, time) == released
    chosen = np.array([1, 4])
    some: IntArray = np.sum([one.released(time, chosen) for one in timelines], axis=0)
    assert (some[:, snapshot.columns["cpu"]] // 1000).tolist() == [released[1], released[4]]
    found: Any = np.maximum.reduce([one.last_ends(time) for one in timelines])
    assert found.tolist() == last
    assert sum(len(one.ended(time, np.arange(3))) for one in timelines) == sum(
        end <= time and row < 3 for row, _, end in running
    )


@given(
    running_pods,
    st.integers(0, 12),
    st.integers(1, 5),
    st.integers(1, 8),
    st.sampled_from(["", "rack"]),
)
def test_first_time_is_the_first_end_at_which_enough_members_fit(
    running: list[tuple[int, int, float]], split: int, cpus: int, size: int, topology: str
) -> None:
    snapshot = make_snapshot(running)
    timelines = make_timelines(running, snapshot, split)
    members = [pod(f"m{number}", "g", cpu=str(cpus)) for number in range(size)]
    waiting = entity(gang("g", size, topology=topology), members)
    growth = CapacityGrowth(waiting, snapshot, DEFAULT_POLICY)

    def fits(time: float) -> bool:
        counts = [min(free // cpus, size) for free in free_cpus(running, time)]
        racks = [sum(counts[begin : begin + 2]) for begin in range(0, NODES, 2)]
        return max(racks if topology else [sum(counts)]) >= size

    times = [time for time in (-inf, 10, 20, 30) if fits(time)]
    # The second time finds the same with what it knows from the first one.
    for _ in range(2):
        assert growth.first_time(timelines, snapshot, size) == (times[0] if times else None)
    assert growth.is_sufficient(snapshot, size) == fits(-inf)


#: Node, CPUs, start (`inf`: unknown) and end of a reserved pod.
reserved_pods = st.lists(
    st.tuples(
        st.integers(0, NODES - 1),
        st.integers(1, 4),
        st.sampled_from([(15, 25), (20, 30), (10, 20), (20, inf), (inf, inf)]),
    ),
    max_size=5,
)


@given(
    running_pods,
    reserved_pods,
    st.sampled_from([1, 5, 10, 15]),
    st.integers(1, 5),
    st.integers(1, 8),
    st.sampled_from(["", "rack"]),
)
def test_times_beside_reserved_pods_are_those_at_which_enough_members_fit(
    running: list[tuple[int, int, float]],
    planned: list[tuple[int, int, tuple[float, float]]],
    seconds: int,
    cpus: int,
    size: int,
    topology: str,
) -> None:
    """At a time, a member may use what no reserved pod needs until the member has ended."""
    now, until = 5.0, 40.0
    snapshot = make_snapshot(running)
    timelines = make_timelines(running, snapshot, len(running))
    ends = timelines[0]._ends
    with_reserved = snapshot.fork()
    reserved = ReservedPods(ends, size=len(snapshot))
    for number, (row, amount, (start, end)) in enumerate(planned):
        made = pod(f"r{number}", cpu=str(amount))
        ends.set(made.metadata.key, f"n{row}", shape_of(made), end=end)
        reserved.add([made.metadata.key], start)
        with_reserved.requested[row] += ends.amounts(reserved.slots[-1:])[0, :-2]
    members = [pod(f"m{number}", "g", cpu=str(cpus)) for number in range(size)]
    growth = CapacityGrowth(
        entity(gang("g", size, topology=topology), members), snapshot, DEFAULT_POLICY
    )

    def fits(time: float) -> bool:
        free = free_cpus(running, time)
        for row, amount, (start, end) in planned:
            is_apart = end <= time or (start < inf and start >= time + seconds)
            free[row] -= 0 if is_apart else amount
        counts = [min(max(one, 0) // cpus, size) for one in free]
        racks = [sum(counts[begin : begin + 2]) for begin in range(0, NODES, 2)]
        return max(racks if topology else [sum(counts)]) >= size

    candidates = {now, *(end for *_, end in running), *(end for *_, (_, end) in planned)}
    expected = [time for time in sorted(candidates) if now <= time < until and fits(time)]
    # The second time continues where the first one has found its answer.
    for _ in range(2):
        times = reserved.examine_times(
            growth,
            timelines[:1],
            with_reserved,
            nominated=frozenset(),
            needed=size,
            seconds=seconds,
            between=(now, until),
        )
        first = next((time for time, may_fit in times if may_fit), None)
        assert first == (expected[0] if expected else None)
