"""When a gang that cannot replace lost members is restarted."""

from __future__ import annotations

import msgspec
import pytest

from phalanx.api.core import Pod
from phalanx.api.meta import timestamp
from phalanx.api.scheduling import PodGroup
from phalanx.controllers.jobs.completion import JobSnapshot
from phalanx.controllers.jobs.job_pods import JobPods
from phalanx.controllers.jobs.restart import GangRestart, find_restart, restart_time
from phalanx.controllers.jobs.sync import plan_sync
from tests.builders import pod_group
from tests.controllers.jobs.job_builders import NOW, job, pod

ASKS = {"annotations": {"phalanx.dev/on-degraded": "Restart"}}


def group(reason: str = "ReplacementUnschedulable", status: str = "True", **notes: str) -> PodGroup:
    made = pod_group("g", 2)
    made["metadata"]["annotations"] = {f"phalanx.dev/{key}": text for key, text in notes.items()}
    degraded = {"type": "Degraded", "status": status, "reason": reason, "message": "rack full"}
    return msgspec.convert({**made, "status": {"conditions": [degraded]}}, PodGroup)


def member(node: str = "n") -> Pod:
    return pod("a", group="g", node=node)


def restarted(count: int, ago: float) -> dict[str, str]:
    return {"restarts": str(count), "restarted-at": timestamp(NOW - ago)}


def test_first_restart_is_due_at_once() -> None:
    due = find_restart(job(meta=ASKS), [group()], [member()], now=NOW + 0.5)
    assert isinstance(due, GangRestart)
    assert due.cause == "rack full"
    assert due.annotations == {
        "phalanx.dev/restarts": "1",
        "phalanx.dev/restarted-at": timestamp(NOW + 1),
    }


@pytest.mark.parametrize(
    "case", ["not asked", "not degraded", "being replaced", "nothing runs", "old pods", "no group"]
)
def test_no_restart(case: str) -> None:
    groups = {
        "not degraded": [group(status="False")],
        "being replaced": [group("MembersLost")],
        # The members are older than the last restart: they are being evicted.
        "old pods": [group(**restarted(1, 50))],
        "no group": [],
    }.get(case, [group()])
    one = job(meta=None if case == "not asked" else ASKS)
    running = [member("")] if case == "nothing runs" else [member()]
    assert find_restart(one, groups, running, now=NOW) is None


@pytest.mark.parametrize(
    ("count", "ago", "wait"),
    [(1, 200, None), (2, 110, 10), (3, 150, 90), (99, 3000, 600), (99, 3700, None)],
)
def test_restarts_back_off(count: int, ago: float, wait: float | None) -> None:
    one = job(meta=ASKS)
    # The members are 100 seconds old, younger than the last restart.
    due = find_restart(one, [group(**restarted(count, ago))], [member()], now=NOW)
    if wait is None:
        assert isinstance(due, GangRestart)
        assert due.annotations["phalanx.dev/restarts"] == str(count + 1)
    else:
        assert due == wait


def test_malformed_annotations_count_as_none() -> None:
    odd = group(restarts="many", **{"restarted-at": "yesterday"})
    assert restart_time(odd) == 0.0
    due = find_restart(job(meta=ASKS), [odd], [member()], now=NOW)
    assert isinstance(due, GangRestart)
    assert due.annotations["phalanx.dev/restarts"] == "1"


def test_older_pods_are_evicted_and_new_ones_wait_for_the_full_second() -> None:
    one = job(parallelism=2, completions=2)
    old = [pod(name, of=one, group="g", node="n") for name in ("a", "b")]
    snapshot = JobSnapshot(JobPods(one, old), NOW, restarted_at=NOW + 1)
    plan = plan_sync(snapshot)
    assert [one.metadata.name for one in plan.pods_to_discard] == ["a", "b"]
    assert plan.replicas.restarts_gang
    waiting = plan_sync(JobSnapshot(JobPods(one, []), NOW + 0.25, restarted_at=NOW + 1))
    assert (waiting.pods_to_create, waiting.requeue_after) == ((), 0.75)
    again = plan_sync(JobSnapshot(JobPods(one, []), NOW + 1, restarted_at=NOW + 1))
    assert len(again.pods_to_create) == 2
