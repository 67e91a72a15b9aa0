"""The Job controller at work on a stage, and Jobs in one line each."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from phalanx.api.feature_gates import DEFAULT_GATES, FeatureGates
from phalanx.api.kinds import JOB, POD_GROUP, WORKLOAD
from phalanx.api.wire import Object
from phalanx.builder.ownership import GROUP_TEMPLATE
from phalanx.client.client import Client
from phalanx.clock import Clock
from phalanx.controllers.event_recorder import EventRecorder
from phalanx.controllers.garbage_collector import GarbageCollector
from phalanx.controllers.jobs.controller import JobController
from phalanx.controllers.jobs.workload_manager import JobSchedulingOptions
from phalanx.controllers.pod_groups.protection import PodGroupProtection
from phalanx.controllers.reconcile_loop import Informers
from phalanx.randomness import Random
from tests.controllers.trial_cluster import (
    PartBuilder,
    Runnable,
    TrialCluster,
    kubelets,
    running_parts,
)

SETTINGS = JobSchedulingOptions()
#: A parent whose parts are Jobs, and how a Workload refers to it.
PARENT = {"apiVersion": "example.com/v1", "kind": "Training", "name": "llm", "uid": "u",
          "controller": True}  # fmt: skip
PARENT_TARGET = ("example.com", "Training", "llm")


def job_controller(settings: JobSchedulingOptions | None = SETTINGS, **more: Any) -> PartBuilder:
    """The Job controller, which tells what it does."""

    def part(client: Client, informers: Informers, clock: Clock, chance: Random) -> list[Runnable]:
        recorder = EventRecorder(client, clock, chance, "job-controller")
        return [
            JobController(client, informers, clock, recorder, settings, **more).run,
            recorder.run,
        ]

    return part


def garbage_collectors(
    client: Client, informers: Informers, clock: Clock, chance: Random
) -> list[Runnable]:
    """Those who clear away what nobody needs any more."""
    return [PodGroupProtection(client, informers).run, GarbageCollector(client, informers).run]


@asynccontextmanager
async def running_job_controller(
    settings: JobSchedulingOptions | None = SETTINGS,
    *,
    gates: FeatureGates = DEFAULT_GATES,
    **more: Any,
) -> AsyncIterator[TrialCluster]:
    """A stage on which Jobs are run."""
    stage = TrialCluster(gates)
    await stage.server.start()
    async with running_parts(stage, job_controller(settings, **more), kubelets, garbage_collectors):
        yield stage


def job(
    name: str = "train", *, gang: bool = False, meta: Object | None = None, **spec: Any
) -> Object:
    """A Job of one container."""
    container = {"name": "main", "image": "registry.example/main:1"}
    template = {"spec": {"restartPolicy": "Never", "containers": [container]}}
    block: Object = {"scheduling": {"schedulingPolicy": {"gang": {}}}} if gang else {}
    return {
        "apiVersion": "batch/v1", "kind": "Job",
        "metadata": {"name": name, "namespace": "default", **(meta or {})},
        "spec": {"template": template, **block, **spec},
    }  # fmt: skip


def indexed(count: int, **more: Any) -> Object:
    """A Job of so many numbered pods."""
    return job(parallelism=count, completions=count, completionMode="Indexed", **more)


def workload(
    name: str, *sizes: int, about: tuple[str, str, str] = ("batch", "Job", "train"),
    meta: Object | None = None,
) -> Object:  # fmt: skip
    """A Workload of gangs of these sizes; one of size 0 is basic."""
    reference = dict(zip(("apiGroup", "kind", "name"), about, strict=True))
    policies: list[Object] = [{"gang": {"minCount": n}} if n else {"basic": {}} for n in sizes]
    templates = [
        {"name": f"workers-{n}", "schedulingPolicy": one} for n, one in enumerate(policies)
    ]
    return {
        "apiVersion": WORKLOAD.api_version, "kind": WORKLOAD.name,
        "metadata": {"name": name, "namespace": "default", **(meta or {})},
        "spec": {"controllerRef": reference, "podGroupTemplates": templates},
    }  # fmt: skip


def group(name: str, of: str, size: int = 0, *, meta: Object | None = None) -> Object:
    """A PodGroup of the first template of a Workload."""
    policy: Object = {"gang": {"minCount": size}} if size else {"basic": {}}
    return {
        "apiVersion": "scheduling.k8s.io/v1beta1", "kind": "PodGroup",
        "metadata": {"name": name, "namespace": "default", **(meta or {})},
        "spec": {
            "workloadRef": {"workloadName": of, "templateName": "workers-0"},
            "schedulingPolicy": policy,
        },
    }  # fmt: skip


def groups_of(pods: list[Object]) -> list[str]:
    """The group of each pod; "" if it is in none."""
    found = (pod["spec"].get("schedulingGroup") or {} for pod in pods)
    return sorted(one.get("podGroupName", "") for one in found)


def conditions_of(obj: Object) -> dict[str, tuple[str, str]]:
    """Status and reason of each condition of an object."""
    conditions = obj.get("status", {}).get("conditions") or ()
    return {one["type"]: (one["status"], one.get("reason", "")) for one in conditions}


def child_metadata(template: str = "workers-0", **more: str) -> Object:
    """The metadata of a Job that is a part of its parent."""
    return {"ownerReferences": [PARENT], "annotations": {GROUP_TEMPLATE: template, **more}}


def policy(obj: Object) -> Object:
    """How a group is to be placed."""
    found: Object = obj["spec"].get("schedulingPolicy") or {}
    return found


async def gang_sizes(stage: TrialCluster) -> tuple[object, object]:
    """The size that the Workload and that the PodGroup name."""
    made, of = await stage.get_only(WORKLOAD), await stage.get_only(POD_GROUP)
    template = made["spec"]["podGroupTemplates"][0]["schedulingPolicy"]
    return template["gang"]["minCount"], policy(of)["gang"]["minCount"]


async def fallback_condition(stage: TrialCluster) -> tuple[str, str]:
    """What the Job says of its pods being scheduled one by one."""
    return conditions_of(await stage.get_only(JOB))["SchedulingFallback"]
