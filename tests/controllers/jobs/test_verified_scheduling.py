"""The verified Workload and PodGroup of a Job: while they are current, a sync is cheap."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest

from benchmarks.costs import count_instructions
from phalanx.api.meta import Key
from phalanx.api.scheduling import MEMBERS_TO_RUN_ANNOTATION, PodGroup, Workload
from phalanx.api.wire import Object
from phalanx.client.client import Client
from phalanx.clock import Clock
from phalanx.controllers.event_recorder import EventRecorder
from phalanx.controllers.jobs.controller import JobController
from phalanx.controllers.jobs.scheduling_intent import (
    GroupMembership,
    SchedulingObjects,
    VerifiedScheduling,
    count_members_to_run,
)
from phalanx.controllers.jobs.workload_manager import JobSchedulingOptions
from phalanx.controllers.reconcile_loop import Informers
from phalanx.randomness import Random
from tests.builders import in_virtual_time
from tests.controllers.jobs import job_controller_harness as harness
from tests.controllers.jobs.job_builders import job, pod, snapshot
from tests.controllers.trial_cluster import Runnable, TrialCluster, kubelets, running_parts


def workload(*sizes: int) -> Workload:
    return msgspec.convert(harness.workload("w", *sizes), Workload)


def group(members: str = "") -> PodGroup:
    meta = {"annotations": {MEMBERS_TO_RUN_ANNOTATION: members} if members else {}}
    return msgspec.convert(harness.group("g", "w", 3, meta=meta), PodGroup)


class FakeLister:
    """Lists the given objects."""

    is_queue_long = False

    def __init__(self, workloads: Sequence[Workload], groups: Sequence[PodGroup]) -> None:
        self._workloads, self._groups = tuple(workloads), tuple(groups)

    def workloads(self, namespace: str, target: tuple[str, str, str]) -> Sequence[Workload]:
        return self._workloads if target == ("batch", "Job", "train") else ()

    def groups(self, workload: Workload) -> Sequence[PodGroup]:
        return self._groups

    def workload(self, key: Key) -> Workload | None:
        return self._workloads[0] if self._workloads else None

    def remember_ancestors(self, job: Key, above: Sequence[tuple[str, str, str, str]]) -> None:
        """The Workload is the Job's own."""

    async def wait_until_cached(self, workload: Workload) -> None:
        """The Workload is there."""


def verified_scheduling(pod_group: PodGroup, *, size: int | None = 3) -> VerifiedScheduling:
    lister = FakeLister([workload(3)], [pod_group])
    return VerifiedScheduling(
        GroupMembership("g", is_gang=True),
        workload(3),
        pod_group,
        SchedulingObjects.from_lister(lister, workload(3)),
        size,
    )


@pytest.mark.parametrize(
    ("workloads", "groups", "is_current"),
    [
        ([workload(3)], [group()], True),
        ([workload(4)], [group()], False),
        ([], [group()], False),
        ([workload(3), workload(3)], [group()], False),
        ([workload(3)], [], False),
        ([workload(3)], [group("2")], False),
        ([workload(3)], [group(), group()], False),
    ],
)
def test_verification_is_current_while_the_caches_show_the_same_objects(
    workloads: list[Workload], groups: list[PodGroup], is_current: bool
) -> None:
    three = [pod(name, group="g") for name in "abc"]
    now = snapshot(job(parallelism=3, completions=3), *three)
    assert verified_scheduling(group()).is_current(FakeLister(workloads, groups), now) == is_current


@pytest.mark.parametrize(
    ("annotated", "succeeded", "size", "is_current"),
    [
        ("", 0, 3, True),
        ("", 1, 3, False),
        ("2", 1, 3, True),
        ("2", 0, 3, False),
        ("2", 2, 3, False),
        ("", 1, None, True),
    ],
)
def test_verification_is_current_while_the_members_to_run_annotation_is_right(
    annotated: str, succeeded: int, size: int | None, is_current: bool
) -> None:
    pod_group = group(annotated)
    now = snapshot(job({"succeeded": succeeded}, parallelism=3, completions=3))
    assert (
        verified_scheduling(pod_group, size=size).is_current(
            FakeLister([workload(3)], [pod_group]), now
        )
        == is_current
    )


def test_pods_outside_the_group_are_no_members() -> None:
    one = job(parallelism=3, completions=3)
    pods = pod("a", group="g"), pod("b", group="other"), pod("c")
    assert count_members_to_run(snapshot(one, *pods), "g") == 1
    assert count_members_to_run(snapshot(one, *pods), "none") == 0


@in_virtual_time
async def test_sync_of_an_unchanged_gang_costs_at_most_a_tenth_more_than_of_a_basic_job() -> None:
    cluster = TrialCluster()
    await cluster.server.start()
    controllers: list[JobController] = []

    def part(client: Client, informers: Informers, clock: Clock, random: Random) -> list[Runnable]:
        recorder = EventRecorder(client, clock, random, component="job-controller")
        controllers.append(
            JobController(
                client, informers, clock, recorder=recorder, options=JobSchedulingOptions()
            )
        )
        return [controllers[0].run]

    async with running_parts(cluster, part, kubelets):
        many: Object = {"parallelism": 8, "completions": 8}
        alone: Object = {"gangPolicy": {"policy": "NoGang"}}
        await cluster.create(
            harness.job("gang", gang=True, **many), harness.job("plain", **alone, **many)
        )
        await cluster.wait_until_idle()
        costs = [await cost(controllers[0], name) for name in ("gang", "plain")]
    assert costs[1] < costs[0] <= 1.1 * costs[1]


async def cost(jobs: JobController, name: str) -> int:
    """Count the instructions of a sync after syncs that had nothing to do."""
    for _ in range(3):
        with count_instructions() as counter:
            await jobs.reconcile(Key("default", name))
    return counter.count
