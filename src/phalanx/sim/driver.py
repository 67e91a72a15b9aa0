"""Executes a scenario: each event becomes API requests, as a user or a kubelet sends them.

Stands between `scenario` and the control plane, of which it has only a client. `ScenarioNodes`
registers the nodes of a scenario and runs their simulated kubelets.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import assert_never

from phalanx.api.core import Node, Pod
from phalanx.api.errors import ApiError, BadRequest
from phalanx.api.kinds import COMPOSITE_POD_GROUP, KINDS, NODE, POD, POD_GROUP, PRIORITY_CLASS
from phalanx.api.meta import Key, timestamp
from phalanx.api.scheduling import MEMBERS_TO_RUN_ANNOTATION, TOPOLOGY_ANNOTATION
from phalanx.api.wire import STRATEGIC_PATCH, Object
from phalanx.client.client import Client
from phalanx.clock import Clock
from phalanx.controllers import reconcile_loop as actions
from phalanx.controllers.nodes.node_pool import HostedNodePool, SimulatedNode
from phalanx.controllers.nodes.simulated_kubelet import RUN_SECONDS
from phalanx.controllers.reconcile_loop import Delete, Informers, perform
from phalanx.randomness import Random
from phalanx.sim.events import (
    AddNodes,
    CordonNode,
    CreateCompositePodGroup,
    CreateGang,
    CreateManifest,
    CreatePodGroup,
    CreatePods,
    DeleteTarget,
    EventTarget,
    FinishPods,
    ForceDeleteGroup,
    GroupOptions,
    RemoveNode,
    RemoveSchedulingGates,
    ScenarioEvent,
    ScenarioNode,
    ScenarioPodTemplate,
    SetMembersToRun,
    SetMinCount,
)
from phalanx.sim.scenario import ScenarioMoment


class ScenarioNodes:
    """Registers and removes nodes, and runs their kubelets while `run` runs."""

    def __init__(self, client: Client, clock: Clock, random: Random) -> None:
        self._client, self._clock = client, clock
        self._informers = Informers(client, random)
        self._informers.of(Pod)
        self._informers.of(Node)
        self._added: asyncio.Queue[HostedNodePool] = asyncio.Queue()

    async def run(self) -> None:
        """Run the kubelets of all registered nodes until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._informers.run())
            while True:
                pool = await self._added.get()
                group.create_task(pool.run())

    async def add(self, new_nodes: Sequence[ScenarioNode]) -> None:
        """Register nodes that are ready and have only their own taints."""
        nodes = [SimulatedNode(new.name, new.allocatable, new.labels) for new in new_nodes]
        for node, scenario_node in zip(nodes, new_nodes, strict=True):
            await self._client.create(NODE, node.manifest(timestamp(self._clock.now())))
            taints = [
                {"key": taint.key, "value": taint.value, "effect": taint.effect}
                for taint in scenario_node.taints
            ]
            ready = {"spec": {"taints": taints or None}}
            await self._client.patch(NODE, Key("", node.name), ready)
        self._added.put_nowait(
            HostedNodePool(self._client, self._informers, self._clock, nodes=nodes)
        )

    async def remove(self, name: str) -> None:
        """Delete a node, then its pods, as pod garbage collection does."""
        await self._client.delete(NODE, Key("", name))
        pods = await self._client.list(POD, Pod, field_selector=f"spec.nodeName={name}")
        for pod in pods.items:
            await perform(self._client, Delete(POD, pod.metadata.key, pod.metadata.uid, grace=0))


#: The namespace of all objects.
NAMESPACE = "default"


class ScenarioRejected(RuntimeError):
    """The API server refused the request of an event; the scenario cannot continue."""

    def __init__(self, at: float, error: ApiError) -> None:
        super().__init__(f"at {at:g}: the API server refused: {error}")


class ScenarioDriver:
    """Executes the events of a scenario."""

    def __init__(self, client: Client, machines: ScenarioNodes) -> None:
        self._client, self._machines = client, machines

    async def create_priority_classes(self, moments: Iterable[ScenarioMoment]) -> None:
        """Create the priority classes that pods and groups refer to."""
        priorities = {_priority_of(event) for moment in moments for event in moment.events}
        for priority in sorted(priorities - {0}):
            priority_class = {
                "metadata": {"name": _priority_class_name(priority)},
                "value": priority,
            }
            await self._client.create(PRIORITY_CLASS, priority_class)

    async def run(self, moments: Iterable[ScenarioMoment], start: float) -> None:
        """Execute all events at their times, relative to `start`."""
        loop = asyncio.get_running_loop()
        async with asyncio.TaskGroup() as group:
            for moment in moments:
                await asyncio.sleep(start + moment.at - loop.time())
                for event in moment.events:
                    group.create_task(self._run_event(moment.at, event))

    async def _run_event(self, at: float, event: ScenarioEvent) -> None:
        try:
            await self._perform(event)
        except ApiError as error:
            raise ScenarioRejected(at, error) from error

    async def _perform(self, event: ScenarioEvent) -> None:
        match event:
            case CreateGang(name, quorum, pods, options):
                group = _group_manifest(name, quorum, pods.template.priority, options=options)
                await self._client.create(POD_GROUP, group)
                await self._create_pods(pods)
            case CreatePodGroup(name, quorum, priority, options):
                await self._client.create(
                    POD_GROUP, _group_manifest(name, quorum, priority, options=options)
                )
            case CreateCompositePodGroup(name, quorum, priority, options):
                await self._client.create(
                    COMPOSITE_POD_GROUP,
                    _composite_manifest(name, quorum, priority, options=options),
                )
            case CreateManifest(manifest):
                await self._create_manifest(dict(manifest))
            case CreatePods():
                await self._create_pods(event)
            case FinishPods():
                await self._finish(event.target)
            case DeleteTarget():
                await self._delete(event.target)
            case RemoveSchedulingGates():
                for pod in await self._list_pods(event.target):
                    gone = {"spec": {"schedulingGates": None}}
                    await self._client.patch(POD, pod.metadata.key, gone)
            case ForceDeleteGroup():
                await self._client.delete(POD_GROUP, Key(NAMESPACE, event.name))
                await self._patch_group(event.name, {"metadata": {"finalizers": None}})
            case SetMinCount(gang, quorum):
                policy = {"gang": {"minCount": quorum}}
                await self._patch_group(gang, {"spec": {"schedulingPolicy": policy}})
            case SetMembersToRun(gang, members):
                annotations = {MEMBERS_TO_RUN_ANNOTATION: str(members)}
                await self._patch_group(gang, {"metadata": {"annotations": annotations}})
            case CordonNode(node, cordoned):
                change: Object = {"spec": {"unschedulable": cordoned or None}}
                await self._client.patch(NODE, Key("", node), change)
            case AddNodes():
                await self._machines.add(event.nodes)
            case RemoveNode():
                await self._machines.remove(event.node)
            case _:
                assert_never(event)

    async def _create_manifest(self, manifest: Object) -> None:
        kind_key = manifest.get("apiVersion"), manifest.get("kind")
        kind = next(
            (
                candidate
                for candidate in KINDS
                if (candidate.api_version, candidate.name) == kind_key
            ),
            None,
        )
        if kind is None:
            raise BadRequest(f"there is no kind {kind_key[1]} in {kind_key[0]}")
        defaults = {"namespace": NAMESPACE} if kind.namespaced else {}
        meta = {**defaults, **manifest.get("metadata", {})}
        await self._client.create(kind, {**manifest, "metadata": meta})

    async def _create_pods(self, pods: CreatePods) -> None:
        for name in pods.names:
            await self._client.create(POD, _pod_manifest(name, pods.template, pods.gang))

    async def _finish(self, target: EventTarget) -> None:
        patches = [
            actions.Patch(
                POD,
                pod.metadata.key,
                {"metadata": {"uid": pod.metadata.uid}, "status": _SUCCEEDED_STATUS},
                subresource="status",
                content=STRATEGIC_PATCH,
            )
            for pod in await self._list_pods(target)
            if pod.status.phase == "Running"
        ]
        await asyncio.gather(*(actions.perform(self._client, patch) for patch in patches))

    async def _delete(self, target: EventTarget) -> None:
        # The group first, so that observers can tell a deletion from a loss.
        if target.is_gang:
            await self._client.delete(POD_GROUP, Key(NAMESPACE, target.name))
        pods = [pod.metadata for pod in await self._list_pods(target)]
        deletions = [actions.Delete(POD, pod.key, pod.uid) for pod in pods]
        await asyncio.gather(*(actions.perform(self._client, deletion) for deletion in deletions))

    async def _patch_group(self, group: str, change: Object) -> None:
        await self._client.patch(POD_GROUP, Key(NAMESPACE, group), change)

    async def _list_pods(self, target: EventTarget) -> list[Pod]:
        key = Key(NAMESPACE, target.name)
        if not target.is_gang:
            return [await self._client.get(POD, key, Pod)]
        listing = await self._client.list(POD, Pod, namespace=NAMESPACE)
        return [pod for pod in listing.items if pod.group == key]


#: The status of a pod whose containers have all succeeded.
_SUCCEEDED_STATUS: Object = {
    "phase": "Succeeded",
    "conditions": [
        {"type": "Ready", "status": "False", "reason": "PodCompleted"},
        {"type": "ContainersReady", "status": "False", "reason": "PodCompleted"},
    ],
}


def _group_manifest(
    name: str, quorum: int | None, priority: int, *, options: GroupOptions
) -> Object:
    policy: Object = {"basic": {}} if quorum is None else {"gang": {"minCount": quorum}}
    return _group_object(name, policy, priority, options=options)


def _composite_manifest(
    name: str, quorum: int | None, priority: int, *, options: GroupOptions
) -> Object:
    policy: Object = {"basic": {}} if quorum is None else {"gang": {"minGroupCount": quorum}}
    manifest = _group_object(name, policy, priority, options=options)
    manifest["spec"]["workloadRef"] = _workload_ref(name)
    return manifest


def _group_object(name: str, policy: Object, priority: int, *, options: GroupOptions) -> Object:
    meta: Object = {"name": name, "namespace": NAMESPACE}
    spec: Object = {"schedulingPolicy": policy, **_priority_fields(priority)}
    if options.preferred_topology:
        meta["annotations"] = {TOPOLOGY_ANNOTATION: options.preferred_topology}
    if options.topology:
        spec["schedulingConstraints"] = {"topology": [{"key": options.topology}]}
    if options.evict_whole:
        spec["disruptionMode"] = {"all": {}}
    if options.parent:
        spec["parentCompositePodGroupName"] = options.parent
        spec["workloadRef"] = _workload_ref(name)
    return {"metadata": meta, "spec": spec}


def _workload_ref(name: str) -> Object:
    """Return a reference to a Workload, which need not exist."""
    return {"workloadName": "scenario", "templateName": name}


def _pod_manifest(name: str, template: ScenarioPodTemplate, gang: str) -> Object:
    meta: Object = {"name": name, "namespace": NAMESPACE, "labels": dict(template.labels)}
    if template.run_seconds is not None:
        meta["annotations"] = {RUN_SECONDS: str(template.run_seconds)}
    resources = dict(template.requests)
    spec: Object = {
        "containers": [{
            "name": "main", "image": "simulated",
            "resources": {"requests": resources, "limits": resources},
        }],
        "restartPolicy": "Never",
        "nodeSelector": dict(template.selector),
        "tolerations": [
            {"key": taint.key, "value": taint.value, "effect": taint.effect, "operator": "Equal"}
            for taint in template.tolerations
        ],
        "schedulingGates": [{"name": gate} for gate in template.gates],
        **_priority_fields(template.priority),
        **template.spec,
    }  # fmt: skip
    if gang:
        spec["schedulingGroup"] = {"podGroupName": gang}
    return {"metadata": meta, "spec": spec}


def _priority_fields(priority: int) -> Object:
    return {"priorityClassName": _priority_class_name(priority)} if priority else {}


def _priority_of(event: ScenarioEvent) -> int:
    """Return the priority of an event; 0 by default."""
    match event:
        case CreateGang():
            return event.pods.template.priority
        case CreatePods():
            return event.template.priority
        case CreatePodGroup() | CreateCompositePodGroup():
            return event.priority
        case _:
            return 0


def _priority_class_name(priority: int) -> str:
    return f"priority-{priority}"
