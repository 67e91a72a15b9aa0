"""Acts a scenario out: each event becomes requests to the API, as a user or a kubelet sends them.

Between `scenario`, which says what happens, and the control plane, of which it has only a client.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import assert_never

from phalanx.api.core import Pod
from phalanx.api.errors import ApiError
from phalanx.api.kinds import NODE, POD, POD_GROUP, PRIORITY_CLASS
from phalanx.api.meta import Key
from phalanx.api.wire import STRATEGIC_PATCH, Object
from phalanx.client.client import Client
from phalanx.controllers import actions
from phalanx.controllers.nodes import RUN_SECONDS
from phalanx.sim.events import (
    AddNodes,
    Cordon,
    Delete,
    Event,
    Finish,
    Gang,
    Pods,
    RemoveNode,
    SetMin,
    Target,
    Template,
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
        events = [event for moment in moments for event in moment.events]
        pods = [event.pods if isinstance(event, Gang) else event for event in events]
        used = {event.template.priority for event in pods if isinstance(event, Pods)}
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
            case Gang():
                await self._client.create(POD_GROUP, _group(event))
                await self._create(event.pods)
            case Pods():
                await self._create(event)
            case Finish():
                await self._finish(event.target)
            case Delete():
                await self._delete(event.target)
            case SetMin():
                await self._set_min(event)
            case Cordon():
                await self._cordon(event)
            case AddNodes():
                await self._machines.add(event.nodes)
            case RemoveNode():
                await self._machines.remove(event.node)
            case _:
                assert_never(event)

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

    async def _set_min(self, event: SetMin) -> None:
        policy = {"gang": {"minCount": event.quorum}}
        change = {"spec": {"schedulingPolicy": policy}}
        await self._client.patch(POD_GROUP, Key(NAMESPACE, event.gang), change)

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


def _group(gang: Gang) -> Object:
    policy: Object = {"basic": {}} if gang.quorum is None else {"gang": {"minCount": gang.quorum}}
    return {
        "metadata": {"name": gang.name, "namespace": NAMESPACE},
        "spec": {"schedulingPolicy": policy, **_priority(gang.pods.template)},
    }


def _pod(name: str, template: Template, gang: str) -> Object:
    meta: Object = {"name": name, "namespace": NAMESPACE}
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
        **_priority(template),
    }  # fmt: skip
    if gang:
        spec["schedulingGroup"] = {"podGroupName": gang}
    return {"metadata": meta, "spec": spec}


def _priority(template: Template) -> Object:
    return {"priorityClassName": _class_name(template.priority)} if template.priority else {}


def _class_name(priority: int) -> str:
    return f"priority-{priority}"
