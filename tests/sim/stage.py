"""A recorded scenario acted out in virtual time: its steps against a whole control plane.

    create   objects, some of them in copies; a node is reported ready, as its kubelet would
    delete   what is at a path               patch    what is at a path, by merging
    finish   running pods, as kubelets would until    a state, or a limit of time
    settle   nothing has changed for so many seconds

Asks only what a user can ask. `outcome` says what it came to.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import orjson

from phalanx.api.core import Pod
from phalanx.api.kinds import (
    COMPOSITE_POD_GROUP,
    CRON_JOB,
    EVENT,
    JOB,
    NODE,
    POD,
    POD_DISRUPTION_BUDGET,
    POD_GROUP,
    PRIORITY_CLASS,
    WORKLOAD,
)
from phalanx.api.meta import Key, timestamp
from phalanx.api.wire import JSON, MERGE_PATCH, STRATEGIC_PATCH, Object, Reply, Request
from phalanx.chance import SeededChance
from phalanx.clock import LoopClock
from phalanx.control_plane import ControlPlane
from phalanx.controllers.actions import Delete, Patch, Plan
from phalanx.controllers.loop import Informers, Loop
from phalanx.crew import Staff
from phalanx.server.access import ADMIN
from phalanx.sim.run import EPOCH, LATENCY
from phalanx.store.memory import MemoryStore
from tests.recorded_cases import fill
from tests.sim.outcome import (
    ON_THE_WAY,
    deviations,
    group_of,
    outcome,
    unplaced_reason,
    wanted_of,
)

KINDS = {
    kind.name: kind
    for kind in (
        NODE, POD, PRIORITY_CLASS, POD_GROUP, WORKLOAD, COMPOSITE_POD_GROUP, JOB, CRON_JOB,
        POD_DISRUPTION_BUDGET, EVENT,
    )
}  # fmt: skip
#: Seconds that a kubelet needs to notice.
REACTION = 0.15
#: Seconds between two looks, for a state to come about, and for everything to come to rest.
LOOK, PATIENCE, LONGEST_UNREST = 0.2, 20.0, 45.0
#: What must not change for a cluster to be at rest.
RESTLESS = ("Pod", "PodGroup", "Job", "Workload")
INDEX = "batch.kubernetes.io/job-completion-index"


async def act_out(case: Object) -> list[str]:
    """Perform the steps of a recorded scenario; where its outcome is another than recorded."""
    async with _stage() as stage:
        then = []
        for number, step in enumerate(case["steps"], 1):
            ((word, what),) = step.items()
            await STEPS[word](stage, what)
            if word == "settle" and number < len(case["steps"]):
                so_far = await stage.outcome()
                then.append({part: so_far[part] for part in ON_THE_WAY})
        got = {**await stage.outcome(), "then": then}
    return [*_refusals(case, stage.refused), *deviations(case, got)]


def _refusals(case: Object, refused: list[str]) -> list[str]:
    """What was refused here and not there, or there and not here."""
    want = wanted_of(case).get("refused", [])
    codes = [re.findall(r": (\d{3}) ", "\n".join(texts)) for texts in (want, refused)]
    return [] if codes[0] == codes[1] else [f"recorded as refused {want}, here {refused}"]


@asynccontextmanager
async def _stage() -> AsyncIterator[Stage]:
    clock, chance = LoopClock(asyncio.get_running_loop(), EPOCH), SeededChance(1)
    store = MemoryStore(lambda: chance.between(*LATENCY))
    plane = ControlPlane(store, clock, chance, Staff(without=("nodes",)))
    informers = Informers(plane.client("kubelets"), chance)
    kubelets = Kubelets(plane, informers, clock)
    async with plane.running(), asyncio.TaskGroup() as group:
        tasks = [group.create_task(informers.run()), group.create_task(kubelets.run())]
        yield Stage(plane, clock)
        for task in tasks:
            task.cancel()


class Kubelets:
    """Bound pods run, deleted pods go, unless they are annotated to hold on."""

    def __init__(self, plane: ControlPlane, informers: Informers, clock: LoopClock) -> None:
        self._pods, self._clock = informers.of(POD, Pod).cache, clock
        self._loop: Loop[Key] = Loop(plane.client("kubelets"), self._reconcile)
        self._pods.subscribe(self._changed)

    async def run(self) -> None:
        await self._loop.run()

    def _changed(self, old: Pod | None, new: Pod | None) -> None:
        if new is not None:
            self._loop.queue.add_after(new.metadata.key, REACTION)

    def _reconcile(self, key: Key) -> Plan:
        pod = self._pods.get(key)
        if pod is None:
            return Plan()
        if pod.metadata.deletion_timestamp:
            if "hold" in pod.metadata.annotations:
                return Plan()
            failed = [] if pod.ended else [self._report(pod, "Failed", "False")]
            return Plan([*failed, Delete(POD, key, pod.metadata.uid, grace=0)])
        if pod.spec.node_name and pod.status.phase == "Pending":
            return Plan([self._report(pod, "Running", "True")])
        return Plan()

    def _report(self, pod: Pod, phase: str, ready: str) -> Patch:
        now = timestamp(self._clock.now())
        status: Object = {"phase": phase, "conditions": [{"type": "Ready", "status": ready}]}
        if phase == "Running":
            status["startTime"] = now
        change = {"metadata": {"uid": pod.metadata.uid}, "status": status}
        return Patch(POD, pod.metadata.key, change, "status", STRATEGIC_PATCH)


class Stage:
    """A control plane, and what was done to it so far."""

    def __init__(self, plane: ControlPlane, clock: LoopClock) -> None:
        self._plane, self._clock = plane, clock
        self._created: set[str] = set()
        self.refused: list[str] = []

    async def outcome(self) -> Object:
        """What it has come to."""
        return outcome({kind: await self.items(kind) for kind in KINDS}, self._created)

    async def items(self, kind: str) -> list[Object]:
        """All objects of a kind."""
        _, listing = await self.ask("GET", KINDS[kind].path("default"))
        return list(listing.get("items") or ())

    async def ask(
        self, method: str, path: str, body: object = None, content: str = JSON
    ) -> tuple[int, Any]:
        """One request; its code and its answer."""
        path, _, query = path.partition("?")
        data = b"" if body is None else orjson.dumps(body)
        asked = Request(method, path, query, {"content-type": content}, data, ADMIN)
        reply = await self._plane.server.handle(asked)
        assert isinstance(reply, Reply)
        return reply.code, orjson.loads(reply.body)

    async def create(self, objects: list[Object]) -> None:
        for obj in objects:
            for number in range(obj.get("copies", 1)):
                await self._create_one(fill(obj, {"i": str(number)}))

    async def delete(self, path: str) -> None:
        await self.ask("DELETE", await self._known(path))

    async def patch(self, what: tuple[str, Object]) -> None:
        path = await self._known(what[0])
        await self._must(f"patch {path}", "PATCH", path, what[1], MERGE_PATCH)

    async def finish(self, what: Object) -> None:
        """End running pods in the order of their names."""
        wanted = what.get("indexes")
        count = what.get("count", 1) if wanted is None else len(wanted)

        async def enough() -> bool:
            return len(await self._running(what)) >= count

        await self._wait(enough, PATIENCE)
        assert await enough(), f"too few pods run to finish {what}"
        for pod in (await self._running(what))[:count]:
            path = POD.path("default", pod["metadata"]["name"], "status")
            status = {"status": _ended(pod, what, timestamp(self._clock.now()))}
            await self._must(f"finish {path}", "PATCH", path, status, STRATEGIC_PATCH)

    async def until(self, what: Object) -> None:
        """Wait for a state; if it does not come about, the outcome shows it."""
        await self._wait(lambda: self._is_so(what), what.get("limit", PATIENCE))

    async def settle(self, seconds: float) -> None:
        """Wait until nothing has changed for so long."""
        loop = asyncio.get_running_loop()
        last: object = None
        since = begin = loop.time()
        while loop.time() < begin + LONGEST_UNREST:
            now = [(await self.items(kind)) for kind in RESTLESS]
            if now != last:
                last, since = now, loop.time()
            elif loop.time() - since >= seconds:
                return
            await asyncio.sleep(LOOK)

    async def _create_one(self, obj: Object) -> None:
        obj.pop("copies", None)
        kind, meta = KINDS[obj["kind"]], obj["metadata"]
        path = obj.pop("at", None) or kind.path(meta.get("namespace", "default"))
        body = json.loads(await self._known(json.dumps(obj)))
        answer = await self._must(f"create {kind.name} {meta.get('name')}", "POST", path, body)
        if kind is POD and "metadata" in answer:
            self._created.add(answer["metadata"].get("name", ""))
        if kind is NODE and obj.get("status"):
            await self._report_node(obj)

    async def _report_node(self, node: Object) -> None:
        """Say of a node what its kubelet would: what it has, and that it is ready."""
        path = NODE.path("", node["metadata"]["name"])
        await self.ask("PATCH", f"{path}/status", {"status": node["status"]}, MERGE_PATCH)
        taints = (node.get("spec") or {}).get("taints")
        await self.ask("PATCH", path, {"spec": {"taints": taints}}, MERGE_PATCH)

    async def _must(
        self, what: str, method: str, path: str, body: object, content: str = JSON
    ) -> Object:
        code, answer = await self.ask(method, path, body, content)
        if code >= 400:
            self.refused.append(f"{what}: {code} {answer.get('message', '')}")
        return answer if code < 400 else {}

    async def _known(self, text: str) -> str:
        """A text with the names and uids filled in that only the server knows."""
        for found in re.finditer(r"\{(\w+) of ([^}]*)\}", text):
            text = text.replace(found[0], await self._owned(found[1], found[2]))
        for found in re.finditer(r"\{uid (\w+)/([^}]*)\}", text):
            _, obj = await self.ask("GET", KINDS[found[1]].path("default", found[2]))
            text = text.replace(found[0], obj["metadata"]["uid"])
        return text

    async def _owned(self, kind: str, job: str) -> str:
        """The name of the object of that kind that a Job controls."""

        async def is_there() -> bool:
            return any(_is_of(obj, job) for obj in await self.items(kind))

        await self._wait(is_there, PATIENCE)
        owned = [str(o["metadata"]["name"]) for o in await self.items(kind) if _is_of(o, job)]
        return owned[0] if owned else "nothing"

    async def _wait(self, there: Callable[[], Awaitable[bool]], limit: float) -> None:
        loop = asyncio.get_running_loop()
        end = loop.time() + limit
        while not await there():
            if loop.time() >= end:
                return
            await asyncio.sleep(LOOK)

    async def _running(self, what: Object) -> list[Object]:
        """The pods that are to end, as far as they run."""
        found = [
            pod
            for pod in await self.items("Pod")
            if pod["status"].get("phase") == "Running"
            and not pod["metadata"].get("deletionTimestamp")
            and (_is_of(pod, what.get("job", "")) or pod["metadata"]["name"] == what.get("pod"))
            and ("indexes" not in what or _index(pod) in what["indexes"])
        ]
        return sorted(found, key=lambda pod: str(pod["metadata"]["name"]))

    async def _is_so(self, what: Object) -> bool:
        if "missing" in what:
            return (await self.ask("GET", what["missing"]))[0] == 404
        pods = await self.items("Pod")
        if "gone" in what:
            return all(pod["metadata"]["name"] != what["gone"] for pod in pods)
        if "group" in what:
            return _is_so_of_group(what, [pod for pod in pods if group_of(pod) == what["group"]])
        jobs = [job for job in await self.items("Job") if job["metadata"]["name"] == what["job"]]
        return any(_is_so_of_job(what, job.get("status") or {}, pods) for job in jobs)


Step = Callable[[Stage, Any], Awaitable[None]]

STEPS: Mapping[str, Step] = {
    "create": Stage.create,
    "delete": Stage.delete,
    "patch": Stage.patch,
    "finish": Stage.finish,
    "until": Stage.until,
    "settle": Stage.settle,
}


def _is_so_of_group(what: Object, pods: list[Object]) -> bool:
    if "bound" in what:
        wanted, found = what["bound"], [bool(pod["spec"].get("nodeName")) for pod in pods]
    else:
        wanted, found = what.get("count", 1), [unplaced_reason(p) == what["reason"] for p in pods]
    return sum(found) == int(wanted)


def _is_so_of_job(what: Object, status: Object, pods: list[Object]) -> bool:
    if "condition" in what:
        conditions = status.get("conditions") or ()
        return any((c["type"], c["status"]) == (what["condition"], "True") for c in conditions)
    if "bound" in what:
        own = [pod for pod in pods if _is_of(pod, what["job"]) and pod["spec"].get("nodeName")]
        alive = sum(not pod["metadata"].get("deletionTimestamp") for pod in own)
        return alive == int(what["bound"])
    counts = [name for name in ("active", "succeeded", "failed", "ready") if name in what]
    return all(status.get(name, 0) == what[name] for name in counts)


def _is_of(obj: Object, job: str) -> bool:
    owners = obj["metadata"].get("ownerReferences", ())
    return any((owner["kind"], owner["name"]) == ("Job", job) for owner in owners)


def _index(pod: Object) -> int:
    return int((pod["metadata"].get("annotations") or {}).get(INDEX, -1))


def _ended(pod: Object, what: Object, now: str) -> Object:
    """What a kubelet says of a pod whose containers have ended."""
    code = what.get("exitCode", 0 if what["phase"] == "Succeeded" else 1)
    ended = {"terminated": {"exitCode": code, "finishedAt": now, "startedAt": now}}
    conditions = [{"type": "Ready", "status": "False"}]
    if "condition" in what:
        conditions.append({"type": what["condition"], "status": "True", "reason": "Test"})
    containers = [
        {
            "name": one["name"], "image": one["image"], "imageID": "", "ready": False,
            "restartCount": 0, "state": ended,
        }
        for one in pod["spec"]["containers"]
    ]  # fmt: skip
    return {"phase": what["phase"], "conditions": conditions, "containerStatuses": containers}
