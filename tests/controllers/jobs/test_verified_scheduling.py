"""That a Job has what it asks for holds until something else is seen, and is cheap to tell."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest
from benchmarks.instruction_counts import count_instructions

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
    members_to_run,
)
from phalanx.controllers.jobs.workload_manager import JobSchedulingOptions
from phalanx.controllers.reconcile_loop import Informers
from phalanx.randomness import Random
from tests.builders import in_virtual_time
from tests.controllers.jobs import job_controller_harness as work
from tests.controllers.jobs.job_builders import job, pod, situation
from tests.controllers.trial_cluster import Runnable, TrialCluster, kubelets, running_parts


def workload(*sizes: int) -> Workload:
    return msgspec.convert(work.workload("w", *sizes), Workload)


def group(members: str = "") -> PodGroup:
    meta = {"annotations": {MEMBERS_TO_RUN_ANNOTATION: members} if members else {}}
    return msgspec.convert(work.group("g", "w", 3, meta=meta), PodGroup)


class FakeLister:
    """A view of some objects."""

    is_queue_long = False

    def __init__(self, workloads: Sequence[Workload], groups: Sequence[PodGroup]) -> None:
        self._workloads, self._groups = tuple(workloads), tuple(groups)

    def workloads(self, namespace: str, about: tuple[str, str, str]) -> Sequence[Workload]:
        return self._workloads if about == ("batch", "Job", "train") else ()

    def groups(self, workload: Workload) -> Sequence[PodGroup]:
        return self._groups

    async def wait_until_cached(self, workload: Workload) -> None:
        """It is there."""


def verified_scheduling(of: PodGroup, *, size: int | None = 3) -> VerifiedScheduling:
    view = FakeLister([workload(3)], [of])
    return VerifiedScheduling(
        GroupMembership("g", is_gang=True),
        workload(3),
        of,
        SchedulingObjects.from_lister(view, workload(3)),
        size,
    )


@pytest.mark.parametrize(
    ("workloads", "groups", "holds"),
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
def test_it_holds_as_long_as_the_same_objects_are_seen(
    workloads: list[Workload], groups: list[PodGroup], holds: bool
) -> None:
    three = [pod(name, group="g") for name in "abc"]
    now = situation(job(parallelism=3, completions=3), *three)
    assert verified_scheduling(group()).is_current(FakeLister(workloads, groups), now) == holds


@pytest.mark.parametrize(
    ("said", "succeeded", "size", "holds"),
    [("", 0, 3, True), ("", 1, 3, False), ("2", 1, 3, True), ("2", 0, 3, False),
     ("2", 2, 3, False), ("", 1, None, True)],
)  # fmt: skip
def test_it_holds_as_long_as_the_group_says_how_many_will_still_run(
    said: str, succeeded: int, size: int | None, holds: bool
) -> None:
    of = group(said)
    now = situation(job({"succeeded": succeeded}, parallelism=3, completions=3))
    assert (
        verified_scheduling(of, size=size).is_current(FakeLister([workload(3)], [of]), now) == holds
    )


def test_pods_outside_of_the_group_are_none_of_its_members() -> None:
    one = job(parallelism=3, completions=3)
    pods = pod("a", group="g"), pod("b", group="other"), pod("c")
    assert members_to_run(situation(one, *pods), "g", 3) == "1"
    assert members_to_run(situation(one, *pods), "none", 3) is None


@in_virtual_time
async def test_a_look_at_a_quiet_gang_takes_at_most_a_tenth_more_than_at_a_plain_job() -> None:
    stage = TrialCluster()
    await stage.server.start()
    made: list[JobController] = []

    def part(client: Client, informers: Informers, clock: Clock, chance: Random) -> list[Runnable]:
        recorder = EventRecorder(client, clock, chance, "job-controller")
        made.append(JobController(client, informers, clock, recorder, JobSchedulingOptions()))
        return [made[0].run]

    async with running_parts(stage, part, kubelets):
        many: Object = {"parallelism": 8, "completions": 8}
        alone: Object = {"gangPolicy": {"policy": "NoGang"}}
        await stage.create(work.job("gang", gang=True, **many), work.job("plain", **alone, **many))
        await stage.wait_until_idle()
        costs = [await cost(made[0], name) for name in ("gang", "plain")]
    assert costs[1] < costs[0] <= 1.1 * costs[1]


async def cost(jobs: JobController, name: str) -> int:
    """What a look takes when the one before it has found nothing to do."""
    for _ in range(3):
        with count_instructions() as tally:
            await jobs.reconcile(Key("default", name))
    return tally.count
