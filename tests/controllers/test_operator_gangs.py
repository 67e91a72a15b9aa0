"""Gangs in the form in which operators of other projects create them.

Each row is a PodGroup and its pods as Kubeflow Trainer, the MPI Operator, KubeRay, LeaderWorkerSet,
Spark or Volcano itself writes them: the fields of the group, the way in which pods name it, and
their schedulerName.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from phalanx.api.kinds import Kind
from phalanx.api.wire import Object
from phalanx.api.workload_sources import COSCHEDULING_POD_GROUP, VOLCANO_POD_GROUP
from tests.builders import in_virtual_time, pod
from tests.controllers.custom_groups import (
    COSCHEDULING_DEFINITION,
    VOLCANO_DEFINITION,
    compat_group,
    custom_cluster,
    get_group,
    running_scheduler,
)

COSCHEDULING, VOLCANO = "scheduler-plugins", "volcano"
KINDS: dict[str, tuple[Kind, Object]] = {
    COSCHEDULING: (COSCHEDULING_POD_GROUP, COSCHEDULING_DEFINITION),
    VOLCANO: (VOLCANO_POD_GROUP, VOLCANO_DEFINITION),
}
SCHEDULER_NAMES = {COSCHEDULING: "scheduler-plugins-scheduler", VOLCANO: "volcano"}
RESOURCES = {"cpu": "6", "memory": "3Gi"}


@dataclass(frozen=True, slots=True)
class OperatorGang:
    """A gang of one operator: its PodGroup, and metadata and names of its pods."""

    project: str
    group: str
    spec: Object
    pods: Sequence[str]
    labels: dict[str, str] = field(default_factory=dict)
    annotations: dict[str, str] = field(default_factory=dict)
    status: Object | None = None


def by_label(group: str) -> dict[str, str]:
    return {"scheduling.x-k8s.io/pod-group": group}


def by_annotation(group: str, **more: str) -> dict[str, str]:
    return {"scheduling.k8s.io/group-name": group, **more}


WORKERS = ("pi-launcher-x7k2p", "pi-worker-0", "pi-worker-1")
GANGS = {
    "Kubeflow Trainer with coscheduling": OperatorGang(
        COSCHEDULING,
        "torch",
        {"minMember": 3, "minResources": RESOURCES, "scheduleTimeoutSeconds": 60},
        [f"torch-node-0-{number}-abcde" for number in range(3)],
        labels={**by_label("torch"), "jobset.sigs.k8s.io/jobset-name": "torch"},
    ),
    "Kubeflow Trainer with Volcano": OperatorGang(
        VOLCANO,
        "torch",
        {
            "minMember": 3,
            "minResources": RESOURCES,
            "queue": "research",
            "networkTopology": {"mode": "soft", "highestTierAllowed": 2},
        },
        [f"torch-node-0-{number}-abcde" for number in range(3)],
        labels={
            "scheduling.volcano.sh/group-name": "torch",
            "jobset.sigs.k8s.io/jobset-name": "torch",
        },
    ),
    "MPI Operator with scheduler-plugins": OperatorGang(
        COSCHEDULING,
        "pi",
        {"minMember": 3, "minResources": RESOURCES, "scheduleTimeoutSeconds": 0},
        WORKERS,
        labels={**by_label("pi"), "training.kubeflow.org/job-name": "pi"},
    ),
    "MPI Operator with Volcano": OperatorGang(
        VOLCANO,
        "pi",
        {"minMember": 3, "minResources": RESOURCES, "priorityClassName": "absent"},
        WORKERS,
        annotations=by_annotation("pi"),
    ),
    "KubeRay with scheduler-plugins": OperatorGang(
        COSCHEDULING,
        "raycluster",
        {"minMember": 3, "minResources": RESOURCES},
        ["raycluster-head-a", "raycluster-small-worker-b", "raycluster-small-worker-c"],
        labels={**by_label("raycluster"), "ray.io/cluster": "raycluster"},
    ),
    "KubeRay with Volcano": OperatorGang(
        VOLCANO,
        "ray-raycluster-pg",
        {"minMember": 3, "minResources": RESOURCES, "queue": "research"},
        ["raycluster-head-a", "raycluster-small-worker-b", "raycluster-small-worker-c"],
        annotations=by_annotation("ray-raycluster-pg", **{"volcano.sh/task-spec": "headgroup"}),
        status={"phase": "Pending"},
    ),
    "LeaderWorkerSet with Volcano": OperatorGang(
        VOLCANO,
        "lws-0-5d8f7c6b9",
        {"minMember": 3, "minResources": RESOURCES, "queue": "lws-queue"},
        ["lws-0", "lws-0-1", "lws-0-2"],
        annotations=by_annotation("lws-0-5d8f7c6b9"),
    ),
    "Spark with Volcano": OperatorGang(
        VOLCANO,
        "spark-1a2b-podgroup",
        {"minMember": 1, "minResources": {"cpu": "2"}, "queue": "default"},
        ["pi-driver", "pi-exec-1", "pi-exec-2"],
        annotations=by_annotation("spark-1a2b-podgroup"),
    ),
    "Volcano Job": OperatorGang(
        VOLCANO,
        "job-1f0c",
        {
            "minMember": 3,
            "minTaskMember": {"ps": 1, "worker": 2},
            "minResources": RESOURCES,
            "queue": "default",
        },
        ["job-ps-0", "job-worker-0", "job-worker-1"],
        annotations=by_annotation("job-1f0c", **{"volcano.sh/task-spec": "worker"}),
        status={"phase": "Pending"},
    ),
}


def pods_of(gang: OperatorGang) -> list[Object]:
    meta = {"labels": gang.labels, "annotations": gang.annotations}
    spec = {"schedulerName": SCHEDULER_NAMES[gang.project]}
    return [pod(name, meta=meta, spec=spec, cpu="3") for name in gang.pods]


@pytest.mark.parametrize("name", GANGS)
@in_virtual_time
async def test_gang_of_an_operator_starts_as_a_whole_and_its_status_is_written(name: str) -> None:
    gang = GANGS[name]
    kind, definition = KINDS[gang.project]
    scheduler_name = SCHEDULER_NAMES[gang.project]
    async with (
        custom_cluster(definition) as c,
        running_scheduler(c, names=[scheduler_name], compat=[gang.project]),
    ):
        group = compat_group(kind, gang.group, **gang.spec)
        if gang.status:
            group["status"] = gang.status
        await c.client.create(kind, group)
        first, *others = pods_of(gang)
        if gang.project == VOLCANO:
            # Controllers of Volcano create pods once the group may be queued.
            await asyncio.sleep(3)
            assert (await get_group(c, gang.group, kind))["status"]["phase"] == "Inqueue"
        await c.create(first)
        await asyncio.sleep(10)
        minimum = gang.spec["minMember"]
        assert len(await c.node_by_pod()) == (1 if minimum == 1 else 0)
        await c.create(*others)
        await c.until_placed(*gang.pods)
        await asyncio.sleep(10)
        found = await get_group(c, gang.group, kind)
        assert (found["status"]["phase"], found["status"]["running"]) == ("Running", 3)
        # Nothing is written but the status: operators compare the spec with their own.
        assert found["spec"] == gang.spec


@pytest.mark.parametrize("name", GANGS)
@in_virtual_time
async def test_gang_of_an_operator_that_does_not_fit_has_no_node(name: str) -> None:
    gang = GANGS[name]
    kind, definition = KINDS[gang.project]
    if gang.spec["minMember"] == 1:
        return
    async with (
        custom_cluster(definition, nodes=2) as c,
        running_scheduler(c, names=[SCHEDULER_NAMES[gang.project]], compat=[gang.project]),
    ):
        await c.client.create(kind, compat_group(kind, gang.group, **gang.spec))
        await c.create(*pods_of(gang))
        await asyncio.sleep(60)
        assert await c.node_by_pod() == {}
        status = (await get_group(c, gang.group, kind))["status"]
        if gang.project == VOLCANO:
            (condition,) = status["conditions"]
            assert (status["phase"], condition["type"]) == ("Inqueue", "Unschedulable")
        else:
            assert status["phase"] == "Scheduling"
