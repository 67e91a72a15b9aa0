"""Interruptions of gangs, and gangs whose pods are deleted after they ran."""

from __future__ import annotations

import msgspec
import pytest

from phalanx.api.core import Pod
from phalanx.api.meta import Key, pod_group_ref
from phalanx.api.wire import Object
from phalanx.cli.run_outcome import InterruptionCounter, RunHistory
from phalanx.scheduler.diagnosis.queue_order import WorkloadRow, WorkloadState
from phalanx.scheduler.queue.scheduler_state import ClusterObjects
from tests.builders import pod


def seen(*pods: Object) -> ClusterObjects:
    return ClusterObjects(nodes=(), groups=(), pods=[msgspec.convert(one, Pod) for one in pods])


def one(uid: str, *, phase: str = "Running", disrupted: bool = False) -> Object:
    made = pod("a", on="n0", meta={"uid": uid})
    conditions = [{"type": "DisruptionTarget", "status": "True"}] if disrupted else []
    return {**made, "status": {"phase": phase, "conditions": conditions}}


def count(*observed: ClusterObjects) -> list[int]:
    counter = InterruptionCounter()
    for one in observed:
        counter.observe(one)
    return list(counter.values())


def test_pod_that_ends_is_no_interruption() -> None:
    assert count(seen(one("1")), seen(one("1", phase="Succeeded")), seen()) == []


def test_disrupted_or_deleted_pod_is_one_interruption() -> None:
    leaving = seen(one("1", disrupted=True))
    assert count(seen(one("1")), leaving, seen(one("1", phase="Failed", disrupted=True))) == [1]
    assert count(seen(one("1")), seen(one("2"))) == [1]


def test_gang_can_be_interrupted_again() -> None:
    observed = [
        seen(one("1")),
        seen(),
        seen(one("2")),
        seen(one("2", disrupted=True)),
        seen(),
    ]
    assert count(*observed) == [2]


GANG = pod_group_ref(Key("default", "training"))


def row(
    state: WorkloadState, *, started: int = 0, ended: int = 0, failed: int = 0, needed: int = 9
) -> WorkloadRow:
    return WorkloadRow(
        GANG, state, position=0, priority=0, since=0.0, placed=started, pending=0, ended=ended,
        needed=needed, reason="", message="", nodes=(), scheduler="", started=started,
        failed=failed, owner="JobSet/training",
    )  # fmt: skip


def members(count: int) -> ClusterObjects:
    group = {"schedulingGroup": {"podGroupName": "training"}}
    pods = [
        pod(f"p{index}", on=f"n{index}", spec=group, meta={"uid": f"u{index}"})
        for index in range(count)
    ]
    return seen(*({**one, "status": {"phase": "Running"}} for one in pods))


def test_gang_that_ran_counts_although_its_pods_are_deleted_at_the_end() -> None:
    history = RunHistory()
    history.observe(members(9), [row(WorkloadState.RUNNING, started=9)])
    rest = row(WorkloadState.ENDED, ended=1)
    history.observe(members(1), [rest])
    [gang], nodes, _ = history.restore(members(1), [rest])
    assert gang.has_run
    assert (gang.state, gang.ended, gang.members) == (WorkloadState.ENDED, 9, 9)
    assert len(nodes[GANG]) == 9
    # All of it is deleted, such as by a TTL.
    [gone], _, _ = history.restore(members(0), [])
    assert gone == gang


@pytest.mark.parametrize(
    "partial",
    [
        [row(WorkloadState.ENDED, ended=5, needed=2)],
        [row(WorkloadState.RUNNING, started=4, ended=1, needed=2)],
    ],
    ids=["ended", "still running"],
)
def test_gang_counts_with_all_members_that_ran_if_some_are_deleted(
    partial: list[WorkloadRow],
) -> None:
    # A tree of groups needs two groups: five of its nine pods are enough for has_run.
    history = RunHistory()
    history.observe(members(9), [row(WorkloadState.RUNNING, started=9, needed=2)])
    history.observe(members(5), partial)
    last = [row(WorkloadState.ENDED, ended=5, needed=2)]
    history.observe(members(5), last)
    [gang], nodes, _ = history.restore(members(5), last)
    assert (gang.state, gang.ended, gang.members) == (WorkloadState.ENDED, 9, 9)
    assert nodes[GANG].total() == 9
    # The rest is deleted too.
    assert history.restore(members(0), [])[0] == [gang]


def test_gang_that_shrank_while_it_ran_counts_with_the_members_that_are_left() -> None:
    history = RunHistory()
    history.observe(members(9), [row(WorkloadState.RUNNING, started=9, needed=2)])
    history.observe(members(5), [row(WorkloadState.RUNNING, started=5, needed=2)])
    last = [row(WorkloadState.ENDED, ended=5, needed=2)]
    history.observe(members(5), last)
    assert history.restore(members(5), last)[0] == last


def test_gang_that_waits_again_or_has_failed_has_not_run() -> None:
    history = RunHistory()
    history.observe(members(9), [row(WorkloadState.RUNNING, started=9)])
    for last in (row(WorkloadState.WAITING), row(WorkloadState.ENDED, ended=9, failed=9)):
        history.observe(members(9), [last])
        assert history.restore(members(9), [last])[0] == [last]


def test_members_of_an_ended_gang_are_not_interrupted() -> None:
    counter = InterruptionCounter()
    counter.observe(members(2))
    counter.observe(members(1), ended=[GANG])
    assert not counter
