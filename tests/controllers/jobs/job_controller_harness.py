"""Runs the Job controller in a trial cluster; builders of Jobs, Workloads and PodGroups."""

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
from phalanx.controllers.pod_groups import PodGroupProtection
from phalanx.controllers.reconcile_loop import Informers
from phalanx.randomness import Random
from tests.controllers.trial_cluster import (
    PartBuilder,
    Runnable,
    TrialCluster,
    kubelets,
    running_parts,
)

OPTIONS = JobSchedulingOptions()
#: The controller of child Jobs, and how a Workload refers to it.
PARENT = {
    "apiVersion": "example.com/v1",
    "kind": "Training",
    "name": "llm",
    "uid": "u",
    "controller": True,
}
PARENT_TARGET = ("example.com", "Training", "llm")


def job_controller(options: JobSchedulingOptions | None = OPTIONS, **more: Any) -> PartBuilder:
    """Build the Job controller with an event recorder."""

    def part(client: Client, informers: Informers, clock: Clock, random: Random) -> list[Runnable]:
        recorder = EventRecorder(client, clock, random, component="job-controller")
        return [
            JobController(client, informers, clock, recorder=recorder, options=options, **more).run,
            recorder.run,
        ]

    return part


def garbage_collectors(
    client: Client, informers: Informers, clock: Clock, random: Random
) -> list[Runnable]:
    """Build the garbage collector and the PodGroup protection controller."""
    return [PodGroupProtection(client, informers).run, GarbageCollector(client, informers).run]


@asynccontextmanager
async def running_job_controller(
    options: JobSchedulingOptions | None = OPTIONS,
    *,
    gates: FeatureGates = DEFAULT_GATES,
    **more: Any,
) -> AsyncIterator[TrialCluster]:
    """Run the Job controller, kubelets and garbage collectors in a trial cluster."""
    cluster = TrialCluster(gates)
    await cluster.server.start()
    async with running_parts(
        cluster, job_controller(options, **more), kubelets, garbage_collectors
    ):
        yield cluster


def job(
    name: str = "train", *, gang: bool = False, meta: Object | None = None, **spec: Any
) -> Object:
    """Build a Job with one container."""
    container = {"name": "main", "image": "registry.example/main:1"}
    template = {"spec": {"restartPolicy": "Never", "containers": [container]}}
    block: Object = {"scheduling": {"schedulingPolicy": {"gang": {}}}} if gang else {}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "namespace": "default", **(meta or {})},
        "spec": {"template": template, **block, **spec},
    }


def indexed(count: int, **more: Any) -> Object:
    """Build an indexed Job of `count` pods."""
    return job(parallelism=count, completions=count, completionMode="Indexed", **more)


def workload(
    name: str,
    *sizes: int,
    target: tuple[str, str, str] = ("batch", "Job", "train"),
    meta: Object | None = None,
) -> Object:
    """Build a Workload with a gang template for each size; size 0 is basic."""
    reference = dict(zip(("apiGroup", "kind", "name"), target, strict=True))
    policies: list[Object] = [{"gang": {"minCount": n}} if n else {"basic": {}} for n in sizes]
    templates = [
        {"name": f"workers-{n}", "schedulingPolicy": one} for n, one in enumerate(policies)
    ]
    return {
        "apiVersion": WORKLOAD.api_version,
        "kind": WORKLOAD.name,
        "metadata": {"name": name, "namespace": "default", **(meta or {})},
        "spec": {"controllerRef": reference, "podGroupTemplates": templates},
    }


def group(name: str, workload: str, size: int = 0, *, meta: Object | None = None) -> Object:
    """Build a PodGroup of the first template of a Workload."""
    policy: Object = {"gang": {"minCount": size}} if size else {"basic": {}}
    return {
        "apiVersion": "scheduling.k8s.io/v1beta1",
        "kind": "PodGroup",
        "metadata": {"name": name, "namespace": "default", **(meta or {})},
        "spec": {
            "workloadRef": {"workloadName": workload, "templateName": "workers-0"},
            "schedulingPolicy": policy,
        },
    }


def groups_of(pods: list[Object]) -> list[str]:
    """Return the PodGroup of each pod; "" for none."""
    groups = (pod["spec"].get("schedulingGroup") or {} for pod in pods)
    return sorted(group.get("podGroupName", "") for group in groups)


def conditions_of(obj: Object) -> dict[str, tuple[str, str]]:
    """Return status and reason of each condition of an object."""
    conditions = obj.get("status", {}).get("conditions") or ()
    return {one["type"]: (one["status"], one.get("reason", "")) for one in conditions}


def child_metadata(template: str = "workers-0", **more: str) -> Object:
    """Build the metadata of a child Job."""
    return {"ownerReferences": [PARENT], "annotations": {GROUP_TEMPLATE: template, **more}}


def policy(obj: Object) -> Object:
    """Return the scheduling policy of a group."""
    found: Object = obj["spec"].get("schedulingPolicy") or {}
    return found


async def gang_sizes(cluster: TrialCluster) -> tuple[object, object]:
    """Return `minCount` of the Workload and of the PodGroup."""
    workload, pod_group = await cluster.get_only(WORKLOAD), await cluster.get_only(POD_GROUP)
    template = workload["spec"]["podGroupTemplates"][0]["schedulingPolicy"]
    return template["gang"]["minCount"], policy(pod_group)["gang"]["minCount"]


async def fallback_condition(cluster: TrialCluster) -> tuple[str, str]:
    """Return status and reason of the condition SchedulingFallback of the Job."""
    return conditions_of(await cluster.get_only(JOB))["SchedulingFallback"]
