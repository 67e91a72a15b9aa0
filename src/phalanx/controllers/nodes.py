"""Simulated nodes: one loop that is the kubelet of all of them.

They register, renew their leases, run the pods that are bound to them (a pod with the annotation
`phalanx.dev/run-seconds` ends well after so long, others run until they are deleted) and take
deleted pods down. Nothing is executed. A real cluster has real kubelets and never runs this.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from phalanx.api.core import Container, Pod
from phalanx.api.errors import AlreadyExists
from phalanx.api.kinds import NODE, POD
from phalanx.api.meta import Key, seconds, timestamp
from phalanx.api.wire import STRATEGIC_PATCH, Object
from phalanx.client.client import Client
from phalanx.clock import Clock
from phalanx.controllers.actions import Delete, Patch, Plan
from phalanx.controllers.leases import Leases
from phalanx.controllers.loop import Informers, Loop
from phalanx.controllers.recovery import Recovery

RUN_SECONDS = "phalanx.dev/run-seconds"
#: What a node has unless told otherwise.
SHAPE: Mapping[str, str] = {"cpu": "8", "memory": "32Gi", "pods": "110"}
_WORKERS = 16
_REGISTERING = 32
_KILLED = 143


@dataclass(frozen=True, slots=True)
class SimulatedNode:
    """A node that we pretend to have."""

    name: str
    room: Mapping[str, str] = field(default_factory=lambda: SHAPE)
    labels: Mapping[str, str] = field(default_factory=dict)

    def manifest(self, now: str) -> Object:
        """The Node object that it registers as."""
        labels = {"kubernetes.io/hostname": self.name, "kubernetes.io/os": "linux", **self.labels}
        ready = {
            "type": "Ready", "status": "True", "reason": "KubeletReady",
            "message": "simulated kubelet is posting ready status",
            "lastHeartbeatTime": now, "lastTransitionTime": now,
        }  # fmt: skip
        status = {
            "capacity": dict(self.room), "allocatable": dict(self.room), "conditions": [ready],
            "nodeInfo": {"kubeletVersion": "phalanx-simulated", "operatingSystem": "linux"},
        }  # fmt: skip
        return {"metadata": {"name": self.name, "labels": labels}, "status": status}


class Nodes:
    """All simulated nodes of a cluster."""

    def __init__(
        self, client: Client, informers: Informers, clock: Clock, nodes: Sequence[SimulatedNode]
    ) -> None:
        self._client, self._clock = client, clock
        self._nodes = {node.name: node for node in nodes}
        self._pods = informers.of(POD, Pod).cache
        self._loop: Loop[Key] = Loop(client, self.reconcile, _WORKERS)
        self._leases = Leases(client, clock, self._nodes)
        self._recovery = Recovery(client, informers, clock, self._nodes)
        self._pods.subscribe(self._changed)

    async def run(self) -> None:
        """Be their kubelets until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._loop.run())
            group.create_task(self._leases.run())
            group.create_task(self._recovery.run())

    async def register(self) -> None:
        """Make the Node objects, ready to be used."""
        turn = asyncio.Semaphore(_REGISTERING)

        async def one(node: SimulatedNode) -> None:
            async with turn:
                await self._register(node)

        await asyncio.gather(*(one(node) for node in self._nodes.values()))

    async def _register(self, node: SimulatedNode) -> None:
        try:
            await self._client.create(NODE, node.manifest(timestamp(self._clock.now())))
        except AlreadyExists:
            return
        # A new node is tainted until it says that it is ready, which ours is at once.
        await self._client.patch(NODE, Key("", node.name), {"spec": {"taints": None}})

    def reconcile(self, key: Key) -> Plan:
        """What the kubelet of its node does about a pod."""
        pod = self._pods.get(key)
        if pod is None or pod.spec.node_name not in self._nodes:
            return Plan()
        if pod.metadata.deletion_timestamp:
            return self._take_down(pod)
        if pod.status.phase == "Pending":
            return Plan([self._report(pod, _running(pod, self._now()))])
        left = self._time_left(pod)
        if left is None or left > 0:
            return Plan(again=left)
        return Plan([self._report(pod, _ended(pod, "Succeeded", 0, self._now()))])

    def _take_down(self, pod: Pod) -> Plan:
        gone = Delete(POD, pod.metadata.key, pod.metadata.uid, grace=0)
        if pod.ended:
            return Plan([gone])
        return Plan([self._report(pod, _ended(pod, "Failed", _KILLED, self._now())), gone])

    def _report(self, pod: Pod, status: Object) -> Patch:
        """Say how it goes, of this very pod: a namesake that came meanwhile is not meant."""
        change = {"metadata": {"uid": pod.metadata.uid}, "status": status}
        return Patch(POD, pod.metadata.key, change, "status", STRATEGIC_PATCH)

    def _time_left(self, pod: Pod) -> float | None:
        """Seconds until a running pod ends by itself; None if it does not, or has."""
        wish = pod.metadata.annotations.get(RUN_SECONDS, "")
        if pod.status.phase != "Running" or not wish.isdecimal() or not pod.status.start_time:
            return None
        return seconds(pod.status.start_time) + int(wish) - self._clock.now()

    def _now(self) -> str:
        return timestamp(self._clock.now())

    def _changed(self, old: Pod | None, new: Pod | None) -> None:
        if new is not None and new.spec.node_name in self._nodes:
            self._loop.queue.add(new.metadata.key)


_READINESS = ("Initialized", "ContainersReady", "Ready")


def _running(pod: Pod, now: str) -> Object:
    containers = [
        _container(c, {"running": {"startedAt": now}}, ready=True) for c in pod.spec.containers
    ]
    conditions = [_condition(kind, "True", now) for kind in _READINESS]
    return {
        "phase": "Running", "startTime": now, "containerStatuses": containers,
        "conditions": conditions,
    }  # fmt: skip


def _ended(pod: Pod, phase: str, code: int, now: str) -> Object:
    ended = {
        "exitCode": code, "reason": "Completed" if code == 0 else "Error",
        "startedAt": pod.status.start_time or now, "finishedAt": now,
    }  # fmt: skip
    containers = [_container(c, {"terminated": ended}, ready=False) for c in pod.spec.containers]
    conditions = [_condition(kind, "False", now) for kind in _READINESS[1:]]
    return {"phase": phase, "containerStatuses": containers, "conditions": conditions}


def _condition(kind: str, status: str, now: str) -> Object:
    return {"type": kind, "status": status, "lastTransitionTime": now}


def _container(container: Container, state: Object, *, ready: bool) -> Object:
    return {
        "name": container.name, "image": container.image, "imageID": "", "restartCount": 0,
        "ready": ready, "started": ready, "state": state,
    }  # fmt: skip
