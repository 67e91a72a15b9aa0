"""Builders of JobSets, and a cluster on which they run."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from typing import Any

from phalanx.api.job_sets import JobSet
from phalanx.api.kinds import EVENT, JOB, JOB_SET, NODE, POD, POD_GROUP, Kind
from phalanx.api.meta import Key, timestamp
from phalanx.api.wire import STRATEGIC_PATCH, Object
from phalanx.client.client import Client
from phalanx.clock import Clock
from phalanx.controllers.job_sets.controller import JobSetController
from phalanx.controllers.nodes.node_pool import SimulatedNode
from phalanx.controllers.reconcile_loop import Informers
from phalanx.randomness import Random
from tests.controllers.cluster import Cluster, cluster
from tests.controllers.trial_cluster import Runnable

ROLE = "jobset.sigs.k8s.io/replicatedjob-name"
INDEX = "jobset.sigs.k8s.io/job-index"


def role(
    name: str,
    replicas: int = 1,
    pods: int = 1,
    *,
    cpu: str = "1",
    pod: Object | None = None,
    meta: Object | None = None,
    job: Object | None = None,
    **fields: Any,
) -> Object:
    """Return a replicated Job of Indexed Jobs whose pods fail with their first container."""
    container = {"name": "main", "image": "i", "resources": {"requests": {"cpu": cpu}}}
    spec = {"restartPolicy": "Never", "containers": [container], **(pod or {})}
    template = {
        "parallelism": pods,
        "completions": pods,
        "backoffLimit": 0,
        "template": {"spec": spec},
        **(job or {}),
    }
    metadata = {"metadata": meta} if meta else {}
    return {
        "name": name,
        "replicas": replicas,
        "template": {**metadata, "spec": template},
        **fields,
    }


def job_set(*roles: Object, name: str = "train", meta: Object | None = None, **spec: Any) -> Object:
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": name, "namespace": "default", **(meta or {})},
        "spec": {"replicatedJobs": list(roles), **spec},
    }


def job_set_controller(
    client: Client, informers: Informers, clock: Clock, random: Random
) -> list[Runnable]:
    """Build the controller for fault trials."""
    return [JobSetController(client, informers, clock).run]


class JobSetCluster:
    """A control plane whose pods run until a test ends them."""

    def __init__(self, inner: Cluster) -> None:
        self.inner, self.client = inner, inner.client

    async def create(self, *objects: Object) -> None:
        await self.inner.create(*objects)

    async def settle(self, seconds: float = 5.0) -> None:
        await asyncio.sleep(seconds)

    async def get(self, name: str = "train") -> JobSet:
        return await self.client.get(JOB_SET, Key("default", name), JobSet)

    async def patch(self, change: Object, kind: Kind = JOB_SET, name: str = "train") -> None:
        await self.client.patch(kind, Key("default", name), change)

    async def objects(self, kind: Kind) -> list[Object]:
        return sorted((await self.client.list(kind)).items, key=lambda o: o["metadata"]["name"])

    async def names(self, kind: Kind) -> list[str]:
        return [one["metadata"]["name"] for one in await self.objects(kind)]

    async def job(self, name: str) -> Object:
        return await self.client.get(JOB, Key("default", name))

    async def running(self) -> dict[str, int]:
        """The number of running pods by replicated Job."""
        counts: dict[str, int] = {}
        for pod in await self.objects(POD):
            if (
                pod["status"].get("phase") == "Running"
                and "deletionTimestamp" not in pod["metadata"]
            ):
                name = pod["metadata"]["labels"].get(ROLE, "")
                counts[name] = counts.get(name, 0) + 1
        return counts

    async def end(
        self, phase: str, role: str, *, jobs: Collection[int] | None = None, pods: int | None = None
    ) -> None:
        """End running pods of a role as their kubelets would: of some Jobs, or so many of them."""
        left = pods if pods is not None else -1
        for pod in await self.objects(POD):
            labels = pod["metadata"]["labels"]
            selected = labels.get(ROLE) == role and (jobs is None or int(labels[INDEX]) in jobs)
            if not selected or pod["status"].get("phase") != "Running" or left == 0:
                continue
            left -= 1
            now = timestamp(self.inner.clock.now())
            code = 0 if phase == "Succeeded" else 1
            ended = {"exitCode": code, "finishedAt": now, "startedAt": now}
            containers = [
                {"name": "main", "image": "i", "imageID": "", "ready": False, "restartCount": 0}
                | {"state": {"terminated": ended}}
            ]
            status = {"phase": phase, "containerStatuses": containers}
            key = Key("default", pod["metadata"]["name"])
            await self.client.patch(
                POD, key, {"status": status}, content=STRATEGIC_PATCH, subresource="status"
            )
        await self.settle()

    async def open_node(self) -> None:
        """Label a node for the pods that wait for it."""
        await self.client.patch(NODE, Key("", "n0"), {"metadata": {"labels": {"open": "yes"}}})
        await self.settle(30)

    async def conditions(self, name: str = "train") -> dict[str, tuple[str, str]]:
        """Status and reason of each condition."""
        return {
            one.type: (one.status, one.reason) for one in (await self.get(name)).status.conditions
        }

    async def events(self, name: str = "train") -> list[str]:
        """The reasons of the events about a JobSet, sorted."""
        found = (await self.client.list(EVENT)).items
        return sorted(
            one["reason"]
            for one in found
            if one["involvedObject"]["name"] == name and one["involvedObject"]["kind"] == "JobSet"
        )

    async def group_sizes(self) -> dict[str, int | None]:
        """The `minCount` of each PodGroup by its template; None if it is Basic."""
        return {
            one["spec"]["workloadRef"]["templateName"]: one["spec"]["schedulingPolicy"]
            .get("gang", {})
            .get("minCount")
            for one in await self.objects(POD_GROUP)
        }


@asynccontextmanager
async def job_set_cluster(
    nodes: int = 2, *, cpu: int = 8, labels: Sequence[Object] = (), **more: Any
) -> AsyncIterator[JobSetCluster]:
    """Run a control plane with nodes, of which the first have labels."""
    capacity = {"cpu": str(cpu), "memory": "64Gi", "pods": "110"}
    hosted = [
        SimulatedNode(f"n{at}", capacity, labels=labels[at] if at < len(labels) else {})
        for at in range(nodes)
    ]
    async with cluster(nodes=hosted, **more) as inner:
        yield JobSetCluster(inner)
