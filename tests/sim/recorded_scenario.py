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
from phalanx.clock import LoopClock
from phalanx.components import ComponentConfig
from phalanx.control_plane import ControlPlane
from phalanx.controllers.reconcile_loop import (
    Delete,
    Informers,
    Patch,
    ReconcileLoop,
    ReconcilePlan,
)
from phalanx.randomness import SeededRandom
from phalanx.server.security.authorization import ADMIN
from phalanx.sim.simulation import EPOCH, LATENCY
from phalanx.store.memory import MemoryStore
from tests.recorded_cases import fill
from tests.sim.recorded_outcome import (
    INTERMEDIATE_PARTS,
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
KUBELET_DELAY = 0.15
#: Seconds between two looks, for a state to come about, and for everything to come to rest.
POLL_INTERVAL, STATE_TIMEOUT, QUIET_TIMEOUT = 0.2, 20.0, 45.0
#: What must not change for a cluster to be at rest.
QUIET_KINDS = ("Pod", "PodGroup", "Job", "Workload")
INDEX = "batch.kubernetes.io/job-completion-index"


async def run_recorded_scenario(case: Object) -> list[str]:
    """Perform the steps of a recorded scenario; where its outcome is another than recorded."""
    async with _running_scenario() as stage:
        then = []
        for number, step in enumerate(case["steps"], 1):
            ((word, what),) = step.items()
            await STEPS[word](stage, what)
            if word == "settle" and number < len(case["steps"]):
                so_far = await stage.outcome()
                then.append({part: so_far[part] for part in INTERMEDIATE_PARTS})
        got = {**await stage.outcome(), "then": then}
    return [*_refusals(case, stage.refused), *deviations(case, got)]


def _refusals(case: Object, refused: list[str]) -> list[str]:
    """What was refused here and not there, or there and not here."""
    want = wanted_of(case).get("refused", [])
    codes = [re.findall(r": (\d{3}) ", "\n".join(texts)) for texts in (want, refused)]
    return [] if codes[0] == codes[1] else [f"recorded as refused {want}, here {refused}"]


@asynccontextmanager
async def _running_scenario() -> AsyncIterator[RecordedScenario]:
    clock, chance = LoopClock(asyncio.get_running_loop(), EPOCH), SeededRandom(1)
    store = MemoryStore(lambda: chance.between(*LATENCY))
    plane = ControlPlane(store, clock, chance, ComponentConfig(without=("nodes",)))
    informers = Informers(plane.client("kubelets"), chance)
    kubelets = Kubelets(plane, informers, clock)
    async with plane.running(), asyncio.TaskGroup() as group:
        tasks = [group.create_task(informers.run()), group.create_task(kubelets.run())]
        yield RecordedScenario(plane, clock)
        for task in tasks:
            task.cancel()


class Kubelets:
    """Bound pods run, deleted pods go, unless they are annotated to hold on."""

    def __init__(self, plane: ControlPlane, informers: Informers, clock: LoopClock) -> None:
        self._pods, self._clock = informers.of(Pod).cache, clock
        self._loop: ReconcileLoop[Key] = ReconcileLoop(plane.client("kubelets"), self._reconcile)
        self._pods.subscribe(self._changed)

    async def run(self) -> None:
        await self._loop.run()

    def _changed(self, old: Pod | None, new: Pod | None) -> None:
        if new is not None:
            self._loop.queue.add_after(new.metadata.key, KUBELET_DELAY)

    def _reconcile(self, key: Key) -> ReconcilePlan:
        pod = self._pods.get(key)
        if pod is None:
            return ReconcilePlan()
        if pod.metadata.deletion_timestamp:
            if "hold" in pod.metadata.annotations:
                return ReconcilePlan()
            failed = [] if pod.is_terminal else [self._report(pod, "Failed", "False")]
            return ReconcilePlan([*failed, Delete(POD, key, pod.metadata.uid, grace=0)])
        if pod.spec.node_name and pod.status.phase == "Pending":
            return ReconcilePlan([self._report(pod, "Running", "True")])
        return ReconcilePlan()

    def _report(self, pod: Pod, phase: str, ready: str) -> Patch:
        now = timestamp(self._clock.now())
        status: Object = {"phase": phase, "conditions": [{"type": "Ready", "status": ready}]}
        if phase == "Running":
            status["startTime"] = now
        change = {"metadata": {"uid": pod.metadata.uid}, "status": status}
        return Patch(POD, pod.metadata.key, change, "status", STRATEGIC_PATCH)


class RecordedScenario:
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
        _, listing = await self.request("GET", KINDS[kind].url_path("default"))
        return list(listing.get("items") or ())

    async def request(
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
        await self.request("DELETE", await self._resolve_placeholders(path))

    async def patch(self, what: tuple[str, Object]) -> None:
        path = await self._resolve_placeholders(what[0])
        await self._request_or_reject(f"patch {path}", "PATCH", path, what[1], MERGE_PATCH)

    async def finish(self, what: Object) -> None:
        """End running pods in the order of their names."""
        wanted = what.get("indexes")
        count = what.get("count", 1) if wanted is None else len(wanted)

        async def enough() -> bool:
            return len(await self._running(what)) >= count

        await self._wait(enough, STATE_TIMEOUT)
        assert await enough(), f"too few pods run to finish {what}"
        for pod in (await self._running(what))[:count]:
            path = POD.url_path("default", pod["metadata"]["name"], "status")
            status = {"status": _terminated_status(pod, what, timestamp(self._clock.now()))}
            await self._request_or_reject(f"finish {path}", "PATCH", path, status, STRATEGIC_PATCH)

    async def until(self, what: Object) -> None:
        """Wait for a state; if it does not come about, the outcome shows it."""
        await self._wait(lambda: self._has_state(what), what.get("limit", STATE_TIMEOUT))

    async def settle(self, seconds: float) -> None:
        """Wait until nothing has changed for so long."""
        loop = asyncio.get_running_loop()
        last: object = None
        since = begin = loop.time()
        while loop.time() < begin + QUIET_TIMEOUT:
            now = [(await self.items(kind)) for kind in QUIET_KINDS]
            if now != last:
                last, since = now, loop.time()
            elif loop.time() - since >= seconds:
                return
            await asyncio.sleep(POLL_INTERVAL)

    async def _create_one(self, obj: Object) -> None:
        obj.pop("copies", None)
        kind, meta = KINDS[obj["kind"]], obj["metadata"]
        path = obj.pop("at", None) or kind.url_path(meta.get("namespace", "default"))
        body = json.loads(await self._resolve_placeholders(json.dumps(obj)))
        answer = await self._request_or_reject(
            f"create {kind.name} {meta.get('name')}", "POST", path, body
        )
        if kind is POD and "metadata" in answer:
            self._created.add(answer["metadata"].get("name", ""))
        if kind is NODE and obj.get("status"):
            await self._report_node(obj)

    async def _report_node(self, node: Object) -> None:
        """Say of a node what its kubelet would: what it has, and that it is ready."""
        path = NODE.url_path("", node["metadata"]["name"])
        await self.request("PATCH", f"{path}/status", {"status": node["status"]}, MERGE_PATCH)
        taints = (node.get("spec") or {}).get("taints")
        await self.request("PATCH", path, {"spec": {"taints": taints}}, MERGE_PATCH)

    async def _request_or_reject(
        self, what: str, method: str, path: str, body: object, content: str = JSON
    ) -> Object:
        code, answer = await self.request(method, path, body, content)
        if code >= 400:
            self.refused.append(f"{what}: {code} {answer.get('message', '')}")
        return answer if code < 400 else {}

    async def _resolve_placeholders(self, text: str) -> str:
        """A text with the names and uids filled in that only the server knows."""
        for found in re.finditer(r"\{(\w+) of ([^}]*)\}", text):
            text = text.replace(found[0], await self._owned_name(found[1], found[2]))
        for found in re.finditer(r"\{uid (\w+)/([^}]*)\}", text):
            _, obj = await self.request("GET", KINDS[found[1]].url_path("default", found[2]))
            text = text.replace(found[0], obj["metadata"]["uid"])
        return text

    async def _owned_name(self, kind: str, job: str) -> str:
        """The name of the object of that kind that a Job controls."""

        async def is_there() -> bool:
            return any(_is_owned_by(obj, job) for obj in await self.items(kind))

        await self._wait(is_there, STATE_TIMEOUT)
        owned = [str(o["metadata"]["name"]) for o in await self.items(kind) if _is_owned_by(o, job)]
        return owned[0] if owned else "nothing"

    async def _wait(self, there: Callable[[], Awaitable[bool]], limit: float) -> None:
        loop = asyncio.get_running_loop()
        end = loop.time() + limit
        while not await there():
            if loop.time() >= end:
                return
            await asyncio.sleep(POLL_INTERVAL)

    async def _running(self, what: Object) -> list[Object]:
        """The pods that are to end, as far as they run."""
        found = [
            pod
            for pod in await self.items("Pod")
            if pod["status"].get("phase") == "Running"
            and not pod["metadata"].get("deletionTimestamp")
            and (
                _is_owned_by(pod, what.get("job", "")) or pod["metadata"]["name"] == what.get("pod")
            )
            and ("indexes" not in what or _index(pod) in what["indexes"])
        ]
        return sorted(found, key=lambda pod: str(pod["metadata"]["name"]))

    async def _has_state(self, what: Object) -> bool:
        if "missing" in what:
            return (await self.request("GET", what["missing"]))[0] == 404
        pods = await self.items("Pod")
        if "gone" in what:
            return all(pod["metadata"]["name"] != what["gone"] for pod in pods)
        if "group" in what:
            return _group_has_state(what, [pod for pod in pods if group_of(pod) == what["group"]])
        jobs = [job for job in await self.items("Job") if job["metadata"]["name"] == what["job"]]
        return any(_job_has_state(what, job.get("status") or {}, pods) for job in jobs)


StepFunction = Callable[[RecordedScenario, Any], Awaitable[None]]

STEPS: Mapping[str, StepFunction] = {
    "create": RecordedScenario.create,
    "delete": RecordedScenario.delete,
    "patch": RecordedScenario.patch,
    "finish": RecordedScenario.finish,
    "until": RecordedScenario.until,
    "settle": RecordedScenario.settle,
}


def _group_has_state(what: Object, pods: list[Object]) -> bool:
    if "bound" in what:
        wanted, found = what["bound"], [bool(pod["spec"].get("nodeName")) for pod in pods]
    else:
        wanted, found = what.get("count", 1), [unplaced_reason(p) == what["reason"] for p in pods]
    return sum(found) == int(wanted)


def _job_has_state(what: Object, status: Object, pods: list[Object]) -> bool:
    if "condition" in what:
        conditions = status.get("conditions") or ()
        return any((c["type"], c["status"]) == (what["condition"], "True") for c in conditions)
    if "bound" in what:
        own = [
            pod for pod in pods if _is_owned_by(pod, what["job"]) and pod["spec"].get("nodeName")
        ]
        alive = sum(not pod["metadata"].get("deletionTimestamp") for pod in own)
        return alive == int(what["bound"])
    counts = [name for name in ("active", "succeeded", "failed", "ready") if name in what]
    return all(status.get(name, 0) == what[name] for name in counts)


def _is_owned_by(obj: Object, job: str) -> bool:
    owners = obj["metadata"].get("ownerReferences", ())
    return any((owner["kind"], owner["name"]) == ("Job", job) for owner in owners)


def _index(pod: Object) -> int:
    return int((pod["metadata"].get("annotations") or {}).get(INDEX, -1))


def _terminated_status(pod: Object, what: Object, now: str) -> Object:
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
