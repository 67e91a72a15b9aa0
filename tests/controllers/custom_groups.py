"""A server without the workload APIs, where groups of pods are custom resources."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from copy import deepcopy

from phalanx.api.custom_resources.workload_definitions import workload_definitions
from phalanx.api.feature_gates import FeatureGates, resolve_gates
from phalanx.api.kinds import CUSTOM_RESOURCE_DEFINITION, Kind
from phalanx.api.meta import Key
from phalanx.api.wire import Object
from phalanx.api.workload_sources import (
    COSCHEDULING_POD_GROUP,
    CUSTOM_POD_GROUP,
    POD_GROUP_LABEL,
    POLICY_ANNOTATION,
    TOPOLOGY_KEY_ANNOTATION,
    VOLCANO_POD_GROUP,
)
from phalanx.client.client import Client
from phalanx.client.transports import InProcessTransport, Transport
from phalanx.controllers.controller_manager import ControllerManager, ControllerManagerConfig
from phalanx.controllers.registry import ControllerSelection
from phalanx.controllers.scheduler_runner import (
    FOREIGN_SCHEDULER,
    SchedulerRunner,
    SchedulerRunnerConfig,
)
from phalanx.randomness import SeededRandom
from phalanx.scheduler.policy import DEFAULT_POLICY, Profiles
from phalanx.server.security.authorization import ADMIN
from tests.builders import pod
from tests.controllers.cluster import Cluster, cluster, simulated_nodes
from tests.recording_log import RecordingLog

#: The feature gates of a server that has neither the workload APIs nor GroupBindings.
FOREIGN_GATES = resolve_gates({"GenericWorkload": False, "GroupBinding": False})

_COUNT: Object = {"type": "integer", "format": "int32"}


def _compat_definition(kind: Kind, spec: Object, status: Object, **version: object) -> Object:
    properties = {
        "spec": {"type": "object", "properties": spec},
        "status": {"type": "object", "properties": status},
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": f"{kind.plural}.{kind.group}",
            # Required of groups of the Kubernetes project.
            "annotations": {"api-approved.kubernetes.io": "https://example.com"},
        },
        "spec": {
            "group": kind.group,
            "names": {"kind": kind.name, "plural": kind.plural},
            "scope": "Namespaced",
            "versions": [
                {
                    "name": kind.version,
                    "served": True,
                    "storage": True,
                    "schema": {"openAPIV3Schema": {"type": "object", "properties": properties}},
                    **version,
                }
            ],
        },
    }


_RESOURCES: Object = {
    "type": "object",
    "additionalProperties": {
        "anyOf": [{"type": "integer"}, {"type": "string"}], "x-kubernetes-int-or-string": True,
    },
}  # fmt: skip
_TIME: Object = {"type": "string", "format": "date-time"}
_COUNTS = dict.fromkeys(("running", "succeeded", "failed"), _COUNT)
#: All fields of the PodGroups of scheduler-plugins, with their types.
COSCHEDULING_DEFINITION = _compat_definition(
    COSCHEDULING_POD_GROUP,
    {"minMember": _COUNT, "minResources": _RESOURCES, "scheduleTimeoutSeconds": _COUNT},
    {
        "phase": {"type": "string"},
        "occupiedBy": {"type": "string"},
        "scheduleStartTime": _TIME,
        **_COUNTS,
    },
    subresources={"status": {}},
)
#: The fields of the PodGroups of Volcano, which have no status subresource, with their types.
VOLCANO_DEFINITION = _compat_definition(
    VOLCANO_POD_GROUP,
    {
        "minMember": _COUNT,
        "minResources": _RESOURCES,
        "minTaskMember": {"type": "object", "additionalProperties": _COUNT},
        "networkTopology": {
            "type": "object",
            "properties": {
                "mode": {"type": "string", "enum": ["hard", "soft"], "default": "hard"},
                "highestTierAllowed": {"type": "integer", "default": 1},
            },
        },
        "priorityClassName": {"type": "string"},
        "queue": {"type": "string"},
    },
    {
        "phase": {"type": "string"},
        "conditions": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {
                    name: {"type": "string"}
                    for name in ("type", "status", "reason", "message", "transitionID")
                }
                | {"lastTransitionTime": _TIME},
            },
        },
        **_COUNTS,
    },
)


@asynccontextmanager
async def custom_cluster(
    *definitions: Object, nodes: int = 3, without: Sequence[str] = ("scheduler", "controllers"),
    gates: FeatureGates = FOREIGN_GATES, **capacity: str,
) -> AsyncIterator[Cluster]:  # fmt: skip
    """A cluster on a foreign server with these definitions, by default that of our PodGroups."""
    hosted = simulated_nodes(nodes, **{"cpu": "4", **capacity})
    async with cluster(nodes=hosted, without=without, gates=gates) as c:
        for definition in definitions or workload_definitions()[-1:]:
            await c.client.create(CUSTOM_RESOURCE_DEFINITION, deepcopy(definition))
        yield c


@asynccontextmanager
async def running_scheduler(
    c: Cluster,
    transport: Transport | None = None,
    names: Sequence[str] = (FOREIGN_SCHEDULER,),
    compat: Sequence[str] = (),
    *,
    preempts_others: bool = False,
) -> AsyncIterator[RecordingLog]:
    """Run a scheduler beside the server; yields its log once it schedules."""
    ready, log = asyncio.Event(), RecordingLog()
    runner = SchedulerRunner(
        Client(transport or InProcessTransport(c.plane.server.handle, ADMIN)),
        c.clock,
        SeededRandom(1),
        on_ready=lambda names: ready.set(),
        config=SchedulerRunnerConfig(
            profiles=Profiles(dict.fromkeys(names, DEFAULT_POLICY)),
            compat=compat,
            preempts_others=preempts_others,
        ),
        log=log,
    )
    task = asyncio.create_task(runner.run())
    try:
        await ready.wait()
        yield log
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert task.cancelled() or task.exception() is None


def custom_group(name: str, minimum: int, kind: Kind = CUSTOM_POD_GROUP, **spec: object) -> Object:
    """A PodGroup of our custom resources."""
    policy = {"gang": {"minCount": minimum}}
    return {
        "apiVersion": kind.api_version,
        "kind": kind.name,
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"schedulingPolicy": policy, **spec},
    }


def compat_group(kind: Kind, name: str, **spec: object) -> Object:
    """A PodGroup of another project."""
    meta = {"name": name, "namespace": "default"}
    return {"apiVersion": kind.api_version, "kind": kind.name, "metadata": meta, "spec": spec}


def labelled_pods(
    group: str, count: int, label: str = POD_GROUP_LABEL, **amounts: str
) -> list[Object]:
    """Pods that name their group by a label, and our scheduler."""
    return [
        pod(
            f"{group}-{number}",
            meta={"labels": {label: group}},
            spec={"schedulerName": FOREIGN_SCHEDULER},
            asks=amounts,
        )
        for number in range(count)
    ]


async def get_group(c: Cluster, name: str, kind: Kind = CUSTOM_POD_GROUP) -> Object:
    return await c.client.get(kind, Key("default", name))


def annotated_job(name: str, *, on_template: bool, **spec: object) -> Object:
    """A Job of three pods whose annotations ask for a gang."""
    annotations = {POLICY_ANNOTATION: "gang", TOPOLOGY_KEY_ANNOTATION: "kubernetes.io/os"}
    template = pod(
        "x", spec={"schedulerName": FOREIGN_SCHEDULER, "restartPolicy": "Never"}, cpu="3"
    )
    job: Object = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "namespace": "default", "annotations": annotations},
        "spec": {
            "parallelism": 3,
            "completions": 3,
            "completionMode": "Indexed",
            "template": {"metadata": {}, "spec": template["spec"]},
            **spec,
        },
    }
    if on_template:
        del job["metadata"]["annotations"]
        job["spec"]["template"]["metadata"]["annotations"] = annotations
    return job


@asynccontextmanager
async def running_controllers(
    c: Cluster, transport: Transport | None = None
) -> AsyncIterator[None]:
    """Run the default controllers beside the server."""
    manager = ControllerManager(
        Client(transport or InProcessTransport(c.plane.server.handle, ADMIN)),
        c.clock,
        SeededRandom(2),
        on_ready=lambda names: None,
        config=ControllerManagerConfig(ControllerSelection()),
    )
    task = asyncio.create_task(manager.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert task.cancelled() or task.exception() is None
