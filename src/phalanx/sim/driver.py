"""Acts a scenario out: each event becomes requests to the API, as a user or a kubelet sends them.

Between `scenario`, which says what happens, and the control plane, of which it has only a client.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import assert_never

from phalanx.api.core import Pod
from phalanx.api.errors import ApiError, BadRequest
from phalanx.api.kinds import COMPOSITE_POD_GROUP, KINDS, NODE, POD, POD_GROUP, PRIORITY_CLASS
from phalanx.api.meta import Key
from phalanx.api.scheduling import MEMBERS_TO_RUN, TOPOLOGY
from phalanx.api.wire import STRATEGIC_PATCH, Object
from phalanx.client.client import Client
from phalanx.controllers import actions
from phalanx.controllers.nodes.stages import RUN_SECONDS
from phalanx.sim.events import (
    AddNodes,
    Cordon,
    Delete,
    DropGroup,
    Event,
    Finish,
    Gang,
    Group,
    Make,
    Pods,
    RemoveNode,
    SetLeft,
    SetMin,
    Target,
    Template,
    Terms,
    Tree,
    Ungate,
)
from phalanx.sim.machines import Machines
from phalanx.sim.scenario import Moment

#: Where everything happens.
NAMESPACE = "default"


class Refused(RuntimeError):
    """The API server would not do what an event asks for: the scenario cannot go on."""

    def __init__(self, at: float, error: ApiError) -> None:
        super().__init__(f"at {at:g}: the API server refused: {error}")


class Driver:
    """Makes the events of a scenario happen."""

    def __init__(self, client: Client, machines: Machines) -> None:
        self._client, self._machines = client, machines

    async def prepare(self, moments: Iterable[Moment]) -> None:
        """Make the priority classes that pods and groups will name."""
        used = {_priority_of(event) for moment in moments for event in moment.events}
        for priority in sorted(used - {0}):
            wanted = {"metadata": {"name": _class_name(priority)}, "value": priority}
            await self._client.create(PRIORITY_CLASS, wanted)

    async def drive(self, moments: Iterable[Moment], start: float) -> None:
        """Have everything happen at its time, counted from `start`."""
        loop = asyncio.get_running_loop()
        async with asyncio.TaskGroup() as group:
            for moment in moments:
                await asyncio.sleep(start + moment.at - loop.time())
                for event in moment.events:
                    group.create_task(self._make_happen(moment.at, event))

    async def _make_happen(self, at: float, event: Event) -> None:
        try:
            await self._perform(event)
        except ApiError as error:
            raise Refused(at, error) from error

    async def _perform(self, event: Event) -> None:
        match event:
            case Gang(name, quorum, pods, terms):
                group = _group(name, quorum, pods.template.priority, terms)
                await self._client.create(POD_GROUP, group)
                await self._create(pods)
            case Group(name, quorum, priority, terms):
                await self._client.create(POD_GROUP, _group(name, quorum, priority, terms))
            case Tree(name, quorum, priority, terms):
                await self._client.create(COMPOSITE_POD_GROUP, _tree(name, quorum, priority, terms))
            case Make(manifest):
                await self._make(dict(manifest))
            case Pods():
                await self._create(event)
            case Finish():
                await self._finish(event.target)
            case Delete():
                await self._delete(event.target)
            case Ungate():
                await self._ungate(event.target)
            case DropGroup():
                await self._drop(event.name)
            case SetMin(gang, quorum):
                policy = {"gang": {"minCount": quorum}}
                await self._change(gang, {"spec": {"schedulingPolicy": policy}})
            case SetLeft(gang, members):
                left = {MEMBERS_TO_RUN: str(members)}
                await self._change(gang, {"metadata": {"annotations": left}})
            case Cordon():
                await self._cordon(event)
            case AddNodes():
                await self._machines.add(event.nodes)
            case RemoveNode():
                await self._machines.remove(event.node)
            case _:
                assert_never(event)

    async def _make(self, manifest: Object) -> None:
        called = manifest.get("apiVersion"), manifest.get("kind")
        kind = next((one for one in KINDS if (one.api_version, one.name) == called), None)
        if kind is None:
            raise BadRequest(f"there is no kind {called[1]} in {called[0]}")
        place = {"namespace": NAMESPACE} if kind.namespaced else {}
        meta = {**place, **manifest.get("metadata", {})}
        await self._client.create(kind, {**manifest, "metadata": meta})

    async def _create(self, pods: Pods) -> None:
        for name in pods.names:
            await self._client.create(POD, _pod(name, pods.template, pods.gang))

    async def _finish(self, target: Target) -> None:
        running = [pod for pod in await self._pods(target) if pod.status.phase == "Running"]
        await asyncio.gather(*(actions.perform(self._client, _end(pod)) for pod in running))

    async def _delete(self, target: Target) -> None:
        # The group first, so that whoever looks can tell an end from a loss.
        if target.is_gang:
            await self._client.delete(POD_GROUP, Key(NAMESPACE, target.name))
        pods = [pod.metadata for pod in await self._pods(target)]
        wishes = [actions.Delete(POD, pod.key, pod.uid) for pod in pods]
        await asyncio.gather(*(actions.perform(self._client, wish) for wish in wishes))

    async def _ungate(self, target: Target) -> None:
        free = {"spec": {"schedulingGates": None}}
        for pod in await self._pods(target):
            await self._client.patch(POD, pod.metadata.key, free)

    async def _drop(self, group: str) -> None:
        await self._client.delete(POD_GROUP, Key(NAMESPACE, group))
        await self._change(group, {"metadata": {"finalizers": None}})

    async def _change(self, group: str, change: Object) -> None:
        await self._client.patch(POD_GROUP, Key(NAMESPACE, group), change)

    async def _cordon(self, event: Cordon) -> None:
        change = {"spec": {"unschedulable": event.cordoned or None}}
        await self._client.patch(NODE, Key("", event.node), change)

    async def _pods(self, target: Target) -> list[Pod]:
        key = Key(NAMESPACE, target.name)
        if not target.is_gang:
            return [await self._client.get(POD, key, Pod)]
        listing = await self._client.list(POD, Pod, namespace=NAMESPACE)
        return [pod for pod in listing.items if pod.group == key]


#: What a kubelet says of a pod whose containers have all ended well.
_SUCCEEDED: Object = {
    "phase": "Succeeded",
    "conditions": [
        {"type": "Ready", "status": "False", "reason": "PodCompleted"},
        {"type": "ContainersReady", "status": "False", "reason": "PodCompleted"},
    ],
}


def _end(pod: Pod) -> actions.Patch:
    change = {"metadata": {"uid": pod.metadata.uid}, "status": _SUCCEEDED}
    return actions.Patch(POD, pod.metadata.key, change, "status", STRATEGIC_PATCH)


def _group(name: str, quorum: int | None, priority: int, terms: Terms) -> Object:
    policy: Object = {"basic": {}} if quorum is None else {"gang": {"minCount": quorum}}
    return _asking(name, policy, priority, terms)


def _tree(name: str, quorum: int | None, priority: int, terms: Terms) -> Object:
    policy: Object = {"basic": {}} if quorum is None else {"gang": {"minGroupCount": quorum}}
    made = _asking(name, policy, priority, terms)
    made["spec"]["workloadRef"] = _template_of(name)
    return made


def _asking(name: str, policy: Object, priority: int, terms: Terms) -> Object:
    meta: Object = {"name": name, "namespace": NAMESPACE}
    spec: Object = {"schedulingPolicy": policy, **_priority(priority)}
    if terms.near:
        meta["annotations"] = {TOPOLOGY: terms.near}
    if terms.topology:
        spec["schedulingConstraints"] = {"topology": [{"key": terms.topology}]}
    if terms.goes_whole:
        spec["disruptionMode"] = {"all": {}}
    if terms.parent:
        spec["parentCompositePodGroupName"] = terms.parent
        spec["workloadRef"] = _template_of(name)
    return {"metadata": meta, "spec": spec}


def _template_of(name: str) -> Object:
    """The groups of a tree name a Workload, which need not be there."""
    return {"workloadName": "scenario", "templateName": name}


def _pod(name: str, template: Template, gang: str) -> Object:
    meta: Object = {"name": name, "namespace": NAMESPACE, "labels": dict(template.labels)}
    if template.seconds is not None:
        meta["annotations"] = {RUN_SECONDS: str(template.seconds)}
    amounts = dict(template.requests)
    spec: Object = {
        "containers": [{
            "name": "main", "image": "simulated",
            "resources": {"requests": amounts, "limits": amounts},
        }],
        "restartPolicy": "Never",
        "nodeSelector": dict(template.selector),
        "tolerations": [
            {"key": one.key, "value": one.value, "effect": one.effect, "operator": "Equal"}
            for one in template.tolerates
        ],
        "schedulingGates": [{"name": gate} for gate in template.gates],
        **_priority(template.priority),
        **template.spec,
    }  # fmt: skip
    if gang:
        spec["schedulingGroup"] = {"podGroupName": gang}
    return {"metadata": meta, "spec": spec}


def _priority(priority: int) -> Object:
    return {"priorityClassName": _class_name(priority)} if priority else {}


def _priority_of(event: Event) -> int:
    """The priority that an event asks for, 0 if it asks for none."""
    match event:
        case Gang():
            return event.pods.template.priority
        case Pods():
            return event.template.priority
        case Group() | Tree():
            return event.priority
        case _:
            return 0


def _class_name(priority: int) -> str:
    return f"priority-{priority}"
