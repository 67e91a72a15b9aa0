"""That a Job has what it asks for holds until something else is seen, and is cheap to tell."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest

from benchmarks.counting import instructions
from phalanx.api.meta import Key
from phalanx.api.scheduling import MEMBERS_TO_RUN, PodGroup, Workload
from phalanx.api.wire import Object
from phalanx.chance import Chance
from phalanx.client.client import Client
from phalanx.clock import Clock
from phalanx.controllers.jobs.controller import Jobs
from phalanx.controllers.jobs.groups import Settings
from phalanx.controllers.jobs.standing import Objects, Place, Standing, members_to_run
from phalanx.controllers.loop import Informers
from phalanx.controllers.recorder import Recorder
from tests.builders import in_virtual_time
from tests.controllers.jobs import work
from tests.controllers.jobs.making import job, pod, situation
from tests.controllers.trialstage import Run, Stage, acting, kubelets


def workload(*sizes: int) -> Workload:
    return msgspec.convert(work.workload("w", *sizes), Workload)


def group(members: str = "") -> PodGroup:
    meta = {"annotations": {MEMBERS_TO_RUN: members} if members else {}}
    return msgspec.convert(work.group("g", "w", 3, meta=meta), PodGroup)


class Shown:
    """A view of some objects."""

    many_wait = False

    def __init__(self, workloads: Sequence[Workload], groups: Sequence[PodGroup]) -> None:
        self._workloads, self._groups = tuple(workloads), tuple(groups)

    def workloads(self, namespace: str, about: tuple[str, str, str]) -> Sequence[Workload]:
        return self._workloads if about == ("batch", "Job", "train") else ()

    def groups(self, workload: Workload) -> Sequence[PodGroup]:
        return self._groups

    async def arrival(self, workload: Workload) -> None:
        """It is there."""


def standing(of: PodGroup, *, size: int | None = 3) -> Standing:
    view = Shown([workload(3)], [of])
    return Standing(
        Place("g", is_gang=True), workload(3), of, Objects.seen(view, workload(3)), size
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
    assert standing(group()).holds(Shown(workloads, groups), now) == holds


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
    assert standing(of, size=size).holds(Shown([workload(3)], [of]), now) == holds


def test_pods_outside_of_the_group_are_none_of_its_members() -> None:
    one = job(parallelism=3, completions=3)
    pods = pod("a", group="g"), pod("b", group="other"), pod("c")
    assert members_to_run(situation(one, *pods), "g", 3) == "1"
    assert members_to_run(situation(one, *pods), "none", 3) is None


@in_virtual_time
async def test_a_look_at_a_quiet_gang_takes_at_most_a_tenth_more_than_at_a_plain_job() -> None:
    stage = Stage()
    await stage.server.start()
    made: list[Jobs] = []

    def part(client: Client, informers: Informers, clock: Clock, chance: Chance) -> list[Run]:
        recorder = Recorder(client, clock, chance, "job-controller")
        made.append(Jobs(client, informers, clock, recorder, Settings()))
        return [made[0].run]

    async with acting(stage, part, kubelets):
        many: Object = {"parallelism": 8, "completions": 8}
        alone: Object = {"gangPolicy": {"policy": "NoGang"}}
        await stage.create(work.job("gang", gang=True, **many), work.job("plain", **alone, **many))
        await stage.rest()
        costs = [await cost(made[0], name) for name in ("gang", "plain")]
    assert costs[1] < costs[0] <= 1.1 * costs[1]


async def cost(jobs: Jobs, name: str) -> int:
    """What a look takes when the one before it has found nothing to do."""
    for _ in range(3):
        with instructions() as tally:
            await jobs.look(Key("default", name))
    return tally.count
