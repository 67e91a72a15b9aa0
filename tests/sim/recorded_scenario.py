"""Runs a recorded scenario in virtual time: its steps against a complete control plane.

    create   creates objects, possibly in copies; a new node is reported ready, as by its kubelet
    delete   deletes the object at a path
    patch    patches the object at a path
    finish   terminates running pods, as a kubelet would
    until    waits for a state, or for a time limit
    settle   waits until nothing has changed for some seconds
    provision, refuse   create the volume of a claim on its selected node, or remove that node

It uses only requests that a user can send. `outcome` returns the resulting state.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Mapping,
    Sequence,
)
from contextlib import asynccontextmanager
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import orjson

from phalanx.api.core import Pod
from phalanx.api.kinds import (
    COMPOSITE_POD_GROUP,
    CONTROLLER_REVISION,
    CRON_JOB,
    CSI_DRIVER,
    CSI_NODE,
    CSI_STORAGE_CAPACITY,
    CUSTOM_RESOURCE_DEFINITION,
    DEVICE_CLASS,
    DEVICE_TAINT_RULE,
    EVENT,
    JOB,
    NODE,
    PERSISTENT_VOLUME,
    PERSISTENT_VOLUME_CLAIM,
    POD,
    POD_DISRUPTION_BUDGET,
    POD_GROUP,
    PRIORITY_CLASS,
    RESOURCE_CLAIM,
    RESOURCE_CLAIM_TEMPLATE,
    RESOURCE_SLICE,
    STATEFUL_SET,
    STORAGE_CLASS,
    WORKLOAD,
)
from phalanx.api.meta import Key, find_condition, timestamp
from phalanx.api.storage import PROVISIONED_BY, SELECTED_NODE
from phalanx.api.wire import JSON, MERGE_PATCH, STRATEGIC_PATCH, Object, Reply, Request
from phalanx.cli import options
from phalanx.clock import LoopClock
from phalanx.components import ComponentConfig
from phalanx.control_plane import ControlPlane
from phalanx.controllers.controller_manager import ControllerManager, ControllerManagerConfig
from phalanx.controllers.reconcile_loop import (
    Delete,
    Informers,
    Patch,
    ReconcileLoop,
    ReconcilePlan,
)
from phalanx.controllers.registry import ControllerSelection
from phalanx.controllers.scheduler_runner import SchedulerRunner, SchedulerRunnerConfig
from phalanx.randomness import SeededRandom
from phalanx.scheduler.policy import DEFAULT_POLICY, Profiles
from phalanx.server.security.authorization import ADMIN
from phalanx.sim.simulation import EPOCH, LATENCY
from phalanx.store.memory import MemoryStore
from tests.recorded_cases import fill
from tests.sim.recorded_outcome import (
    INTERMEDIATE_PARTS,
    expected_outcome,
    group_name,
    look_parts,
    outcome,
    outcome_differences,
    unplaced_reason,
)
from tests.sim.recorded_parts import PARTS, field_at, is_pod_ready
from tools.foreign_forms import (
    CONTROLLERS,
    SCHEDULER_NAME,
    ForeignForm,
    ScenarioRequest,
    ScenarioTranslator,
)

KINDS = {
    kind.name: kind
    for kind in (
        NODE, POD, PRIORITY_CLASS, POD_GROUP, WORKLOAD, COMPOSITE_POD_GROUP, JOB, CRON_JOB,
        POD_DISRUPTION_BUDGET, EVENT, STORAGE_CLASS, PERSISTENT_VOLUME, PERSISTENT_VOLUME_CLAIM,
        CSI_DRIVER, CSI_NODE, CSI_STORAGE_CAPACITY, STATEFUL_SET, CONTROLLER_REVISION,
        DEVICE_CLASS, DEVICE_TAINT_RULE, RESOURCE_CLAIM, RESOURCE_CLAIM_TEMPLATE, RESOURCE_SLICE,
    )
}  # fmt: skip
#: Seconds that a kubelet takes to react.
KUBELET_DELAY_SECONDS = 0.15
#: Seconds between two polls, to wait for a state, and to wait for the cluster to settle.
POLL_INTERVAL, STATE_TIMEOUT, QUIET_TIMEOUT = 0.2, 20.0, 45.0
#: The kinds that must not change for a cluster to count as settled.
QUIET_KINDS = ("Pod", "PodGroup", "Job", "Workload")
INDEX = "batch.kubernetes.io/job-completion-index"


async def run_recorded_scenario(case: Object, beside: ComponentsBeside | None = None) -> list[str]:
    """Run the steps of a recorded scenario; return the differences to its recorded outcome.

    With `beside` scheduler and controllers run beside a foreign server.
    """
    async with _running_scenario(case.get("look", ()), beside) as scenario:
        then = []
        recorded = (*INTERMEDIATE_PARTS, *look_parts(case))
        for number, step in enumerate(case["steps"], 1):
            ((action, arguments),) = step.items()
            await STEPS[action](scenario, arguments)
            if action == "settle" and number < len(case["steps"]):
                intermediate = await scenario.outcome()
                then.append({part: intermediate[part] for part in recorded})
        got = {**await scenario.outcome(), "then": then}
    return [*_rejection_differences(case, scenario.rejected), *outcome_differences(case, got)]


def _rejection_differences(case: Object, rejected: list[str]) -> list[str]:
    """Return the differences between the requests rejected here and in the recording."""
    want = expected_outcome(case).get("refused", [])
    codes = [re.findall(r": (\d{3}) ", "\n".join(texts)) for texts in (want, rejected)]
    return [] if codes[0] == codes[1] else [f"recorded as refused {want}, here {rejected}"]


@asynccontextmanager
async def _running_scenario(
    look: Sequence[str | Object], beside: ComponentsBeside | None
) -> AsyncIterator[RecordedScenario]:
    clock, random = LoopClock(asyncio.get_running_loop(), EPOCH), SeededRandom(1)
    store = MemoryStore(lambda: random.between(*LATENCY))
    config = ComponentConfig(without=("nodes",))
    if beside is not None:
        config = ComponentConfig(
            without=("nodes", "scheduler", "controllers"),
            gates=options.parse_feature_gates(beside.form.gates),
        )
    plane = ControlPlane(store, clock, random, config)
    informers = Informers(plane.client("kubelets"), random)
    kubelets = Kubelets(plane, informers, clock)
    async with plane.running(), asyncio.TaskGroup() as group:
        runnables = [informers.run, kubelets.run]
        if beside is not None:
            runnables += await beside.build(plane, clock)
        tasks = [group.create_task(run()) for run in runnables]
        yield RecordedScenario(
            plane, clock, look, ScenarioTranslator(beside.form) if beside else None
        )
        for task in tasks:
            task.cancel()


@dataclass(frozen=True, slots=True)
class ComponentsBeside:
    """Scheduler and controllers of ours beside a foreign server with these definitions."""

    form: ForeignForm
    definitions: Sequence[Object]

    async def build(
        self, plane: ControlPlane, clock: LoopClock
    ) -> list[Callable[[], Coroutine[None, None, None]]]:
        """Create the definitions; return what runs."""
        for definition in self.definitions:
            await plane.client("admin").create(CUSTOM_RESOURCE_DEFINITION, deepcopy(definition))
        scheduler = SchedulerRunner(
            plane.client("scheduler"),
            clock,
            SeededRandom(2),
            on_ready=lambda names: None,
            config=SchedulerRunnerConfig(
                profiles=Profiles({SCHEDULER_NAME: DEFAULT_POLICY}),
                compat=(self.form.compat,) if self.form.compat else (),
            ),
        )
        controllers = ControllerManager(
            plane.client("controllers"),
            clock,
            SeededRandom(3),
            on_ready=lambda names: None,
            config=ControllerManagerConfig(ControllerSelection(CONTROLLERS.split(","))),
        )
        return [scheduler.run, controllers.run]


class Kubelets:
    """Runs bound pods and removes deleted pods, unless they are annotated with `hold`.

    Pods are ready while they have no annotation `unready`.
    """

    def __init__(self, plane: ControlPlane, informers: Informers, clock: LoopClock) -> None:
        self._pods, self._clock = informers.of(Pod).cache, clock
        self._loop: ReconcileLoop[Key] = ReconcileLoop(plane.client("kubelets"), self._reconcile)
        self._pods.subscribe(self._enqueue)

    async def run(self) -> None:
        await self._loop.run()

    def _enqueue(self, old: Pod | None, new: Pod | None) -> None:
        if new is not None:
            self._loop.queue.add_after(new.metadata.key, KUBELET_DELAY_SECONDS)

    def _reconcile(self, key: Key) -> ReconcilePlan:
        pod = self._pods.get(key)
        if pod is None:
            return ReconcilePlan()
        if pod.metadata.deletion_timestamp:
            if "hold" in pod.metadata.annotations:
                return ReconcilePlan()
            failed = [] if pod.is_terminal else [self._report(pod, "Failed", "False")]
            return ReconcilePlan([*failed, Delete(POD, key, pod.metadata.uid, grace=0)])
        ready = "False" if "unready" in pod.metadata.annotations else "True"
        found = find_condition(pod.status.conditions, "Ready")
        is_running = pod.status.phase == "Running"
        is_outdated = is_running and found is not None and found.status != ready
        if pod.spec.node_name and (pod.status.phase == "Pending" or is_outdated):
            return ReconcilePlan([self._report(pod, "Running", ready)])
        return ReconcilePlan()

    def _report(self, pod: Pod, phase: str, ready: str) -> Patch:
        now = timestamp(self._clock.now())
        status: Object = {"phase": phase, "conditions": [{"type": "Ready", "status": ready}]}
        if phase == "Running":
            status["startTime"] = now
        change = {"metadata": {"uid": pod.metadata.uid}, "status": status}
        return Patch(POD, pod.metadata.key, change, "status", STRATEGIC_PATCH)


class RecordedScenario:
    """A control plane, and the steps that were applied to it."""

    def __init__(
        self,
        plane: ControlPlane,
        clock: LoopClock,
        look: Sequence[str | Object],
        translator: ScenarioTranslator | None = None,
    ) -> None:
        self._plane, self._clock, self._look = plane, clock, look
        self._translator = translator
        self._created: set[str] = set()
        self.rejected: list[str] = []

    async def outcome(self) -> Object:
        """Return the present outcome."""
        objects = {kind: await self.items(kind) for kind in KINDS}
        found = outcome(objects, self._created)
        for part in self._look:
            if isinstance(part, str):
                found[part] = PARTS[part][0](objects)
            else:
                code, obj = await self.request("GET", part["get"])
                fields = {path: field_at(obj, path) for path in part["keep"]}
                kept = {"code": code} if code >= 400 else fields
                found.setdefault("objects", {})[part["get"]] = kept
        return found

    async def items(self, kind: str) -> list[Object]:
        """List the objects of a kind."""
        _, listing = await self.request("GET", KINDS[kind].url_path("default"))
        return list(listing.get("items") or ())

    async def request(
        self, method: str, path: str, body: object = None, content: str = JSON
    ) -> tuple[int, Any]:
        """Send a request; return the status code and the body."""
        if self._translator is None:
            return await self._send(method, path, body, content)
        code: int = 200
        reply: Any = {"items": []}
        for sent in self._translator.requests(ScenarioRequest(method, path, body)):
            code, reply = await self._send(sent.method, sent.path, sent.body, content)
        return code, self._translator.reply(path, reply)

    async def _send(self, method: str, path: str, body: object, content: str) -> tuple[int, Any]:
        path, _, query = path.partition("?")
        data = b"" if body is None else orjson.dumps(body)
        request = Request(method, path, query, {"content-type": content}, data, ADMIN)
        reply = await self._plane.server.handle(request)
        assert isinstance(reply, Reply)
        return reply.code, orjson.loads(reply.body)

    async def create(self, objects: list[Object]) -> None:
        for obj in objects:
            for number in range(obj.get("copies", 1)):
                await self._create_one(fill(obj, {"i": str(number)}))

    async def delete(self, arguments: str | tuple[str, Object]) -> None:
        path, options = (arguments, None) if isinstance(arguments, str) else arguments
        await self.request("DELETE", await self._resolve_placeholders(path), options)

    async def patch(self, arguments: Sequence[Any]) -> None:
        path = await self._resolve_placeholders(arguments[0])
        content = arguments[2] if len(arguments) > 2 else MERGE_PATCH
        await self._request_or_reject(f"patch {path}", "PATCH", path, arguments[1], content)

    async def provision(self, arguments: Object) -> None:
        """Create the volume of a claim on its selected node, as an external provisioner would."""
        claim = await self._claim_with_node(arguments)
        meta, spec = claim["metadata"], claim["spec"]
        node = arguments.get("node") or meta["annotations"][SELECTED_NODE]
        reference = {"namespace": "default", "name": meta["name"], "uid": meta["uid"]}
        host = {"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}
        terms = {"nodeSelectorTerms": [{"matchExpressions": [host]}]}
        path = STORAGE_CLASS.url_path("", spec.get("storageClassName", ""))
        driver = (await self.request("GET", path))[1].get("provisioner", "disk.example")
        volume = {
            "metadata": {
                "name": arguments.get("volume", f"made-for-{meta['name']}"),
                "annotations": {PROVISIONED_BY: driver},
            },
            "spec": {
                "capacity": spec["resources"]["requests"],
                "accessModes": spec["accessModes"],
                "storageClassName": spec.get("storageClassName"),
                "persistentVolumeReclaimPolicy": "Delete",
                "claimRef": reference,
                "csi": {"driver": driver, "volumeHandle": meta["name"]},
                "nodeAffinity": {"required": terms},
            },
        }
        path = PERSISTENT_VOLUME.url_path()
        await self._request_or_reject(f"provision {meta['name']}", "POST", path, volume)

    async def refuse(self, arguments: Object) -> None:
        """Remove the selected node of a claim, as a provisioner does when it fails."""
        claim = await self._claim_with_node(arguments)
        path = PERSISTENT_VOLUME_CLAIM.url_path("default", claim["metadata"]["name"])
        change = {"metadata": {"annotations": {SELECTED_NODE: None}}}
        await self._request_or_reject(f"refuse {path}", "PATCH", path, change, MERGE_PATCH)

    async def _claim_with_node(self, arguments: Object) -> Object:
        path = PERSISTENT_VOLUME_CLAIM.url_path("default", arguments["claim"])

        async def has_node() -> bool:
            _, found = await self.request("GET", path)
            annotations = found["metadata"].get("annotations") or {}
            return bool(arguments.get("node")) or SELECTED_NODE in annotations

        await self._wait(has_node, STATE_TIMEOUT)
        assert await has_node(), f"no node was selected for claim {arguments['claim']}"
        claim: Object = (await self.request("GET", path))[1]
        return claim

    async def finish(self, arguments: Object) -> None:
        """Terminate running pods in the order of their names."""
        expected = arguments.get("indexes")
        count = arguments.get("count", 1) if expected is None else len(expected)

        async def enough_run() -> bool:
            return len(await self._running(arguments)) >= count

        await self._wait(enough_run, STATE_TIMEOUT)
        assert await enough_run(), f"too few pods run to finish {arguments}"
        for pod in (await self._running(arguments))[:count]:
            path = POD.url_path("default", pod["metadata"]["name"], "status")
            status = {"status": _terminated_status(pod, arguments, timestamp(self._clock.now()))}
            await self._request_or_reject(f"finish {path}", "PATCH", path, status, STRATEGIC_PATCH)

    async def until(self, arguments: Object) -> None:
        """Wait for a state; if it is not reached, the outcome shows this."""
        await self._wait(lambda: self._has_state(arguments), arguments.get("limit", STATE_TIMEOUT))

    async def settle(self, seconds: float) -> None:
        """Wait until nothing has changed for some seconds."""
        loop = asyncio.get_running_loop()
        last: object = None
        quiet = [kind for part in self._look if isinstance(part, str) for kind in PARTS[part][1]]
        since = begin = loop.time()
        while loop.time() < begin + QUIET_TIMEOUT:
            now = [(await self.items(kind)) for kind in (*QUIET_KINDS, *quiet)]
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
        response = await self._request_or_reject(
            f"create {kind.name} {meta.get('name')}", "POST", path, body
        )
        if kind is POD and "metadata" in response:
            self._created.add(response["metadata"].get("name", ""))
        if kind is NODE and obj.get("status"):
            await self._report_node(obj)

    async def _report_node(self, node: Object) -> None:
        """Report a node's status and remove its not-ready taint, as its kubelet would."""
        path = NODE.url_path("", node["metadata"]["name"])
        await self.request("PATCH", f"{path}/status", {"status": node["status"]}, MERGE_PATCH)
        taints = (node.get("spec") or {}).get("taints")
        await self.request("PATCH", path, {"spec": {"taints": taints}}, MERGE_PATCH)

    async def _request_or_reject(
        self, description: str, method: str, path: str, body: object, content: str = JSON
    ) -> Object:
        code, response = await self.request(method, path, body, content)
        if code >= 400:
            self.rejected.append(f"{description}: {code} {response.get('message', '')}")
        return response if code < 400 else {}

    async def _resolve_placeholders(self, text: str) -> str:
        """Replace placeholders for generated names and uids."""
        for found in re.finditer(r"\{(\w+) of ([^}]*)\}", text):
            text = text.replace(found[0], await self._owned_name(found[1], found[2]))
        for found in re.finditer(r"\{uid (\w+)/([^}]*)\}", text):
            _, obj = await self.request("GET", KINDS[found[1]].url_path("default", found[2]))
            text = text.replace(found[0], obj["metadata"]["uid"])
        return text

    async def _owned_name(self, kind: str, job: str) -> str:
        """Return the name of the object of a kind that a Job controls."""

        async def is_there() -> bool:
            return any(_is_owned_by(obj, job) for obj in await self.items(kind))

        await self._wait(is_there, STATE_TIMEOUT)
        owned = [str(o["metadata"]["name"]) for o in await self.items(kind) if _is_owned_by(o, job)]
        return owned[0] if owned else "nothing"

    async def _wait(self, is_reached: Callable[[], Awaitable[bool]], limit: float) -> None:
        loop = asyncio.get_running_loop()
        end = loop.time() + limit
        while not await is_reached():
            if loop.time() >= end:
                return
            await asyncio.sleep(POLL_INTERVAL)

    async def _running(self, arguments: Object) -> list[Object]:
        """Return the running pods that a finish step selects."""
        found = [
            pod
            for pod in await self.items("Pod")
            if pod["status"].get("phase") == "Running"
            and not pod["metadata"].get("deletionTimestamp")
            and (
                _is_owned_by(pod, arguments.get("job", ""))
                or pod["metadata"]["name"] == arguments.get("pod")
            )
            and ("indexes" not in arguments or _index(pod) in arguments["indexes"])
        ]
        return sorted(found, key=lambda pod: str(pod["metadata"]["name"]))

    async def _has_state(self, arguments: Object) -> bool:
        if "missing" in arguments:
            return (await self.request("GET", arguments["missing"]))[0] == 404
        if "at" in arguments:
            path = await self._resolve_placeholders(arguments["at"])
            code, obj = await self.request("GET", path)
            fields = arguments["is"].items()
            return code < 400 and all(
                (field_at(obj, path) or None) == (value or None) for path, value in fields
            )
        pods = await self.items("Pod")
        if "pods" in arguments:
            return _pods_have_state(arguments, pods)
        if "gone" in arguments:
            return all(pod["metadata"]["name"] != arguments["gone"] for pod in pods)
        if "group" in arguments:
            return _group_has_state(
                arguments, [pod for pod in pods if group_name(pod) == arguments["group"]]
            )
        jobs = [
            job for job in await self.items("Job") if job["metadata"]["name"] == arguments["job"]
        ]
        return any(_job_has_state(arguments, job.get("status") or {}, pods) for job in jobs)


StepFunction = Callable[[RecordedScenario, Any], Awaitable[None]]

STEPS: Mapping[str, StepFunction] = {
    "create": RecordedScenario.create,
    "delete": RecordedScenario.delete,
    "patch": RecordedScenario.patch,
    "finish": RecordedScenario.finish,
    "until": RecordedScenario.until,
    "settle": RecordedScenario.settle,
    "provision": RecordedScenario.provision,
    "refuse": RecordedScenario.refuse,
}


def _pods_have_state(arguments: Object, pods: list[Object]) -> bool:
    wanted = [part.split("=") for part in arguments["pods"].split(",")]
    found = [
        pod
        for pod in pods
        if all((pod["metadata"].get("labels") or {}).get(key) == value for key, value in wanted)
    ]
    counts = {
        "count": len(found),
        "ready": sum(map(is_pod_ready, found)),
        "bound": sum(bool(pod["spec"].get("nodeName")) for pod in found),
    }
    return all(counts[name] == arguments[name] for name in counts if name in arguments)


def _group_has_state(arguments: Object, pods: list[Object]) -> bool:
    if "bound" in arguments:
        expected, found = arguments["bound"], [bool(pod["spec"].get("nodeName")) for pod in pods]
    else:
        expected, found = (
            arguments.get("count", 1),
            [unplaced_reason(p) == arguments["reason"] for p in pods],
        )
    return sum(found) == int(expected)


def _job_has_state(arguments: Object, status: Object, pods: list[Object]) -> bool:
    if "condition" in arguments:
        conditions = status.get("conditions") or ()
        return any((c["type"], c["status"]) == (arguments["condition"], "True") for c in conditions)
    if "bound" in arguments:
        bound_pods = [
            pod
            for pod in pods
            if _is_owned_by(pod, arguments["job"]) and pod["spec"].get("nodeName")
        ]
        alive = sum(not pod["metadata"].get("deletionTimestamp") for pod in bound_pods)
        return alive == int(arguments["bound"])
    counts = [name for name in ("active", "succeeded", "failed", "ready") if name in arguments]
    return all(status.get(name, 0) == arguments[name] for name in counts)


def _is_owned_by(obj: Object, job: str) -> bool:
    owners = obj["metadata"].get("ownerReferences", ())
    return any((owner["kind"], owner["name"]) == ("Job", job) for owner in owners)


def _index(pod: Object) -> int:
    return int((pod["metadata"].get("annotations") or {}).get(INDEX, -1))


def _terminated_status(pod: Object, arguments: Object, now: str) -> Object:
    """Return the status that a kubelet reports for a pod whose containers have terminated."""
    code = arguments.get("exitCode", 0 if arguments["phase"] == "Succeeded" else 1)
    state = {"terminated": {"exitCode": code, "finishedAt": now, "startedAt": now}}
    conditions = [{"type": "Ready", "status": "False"}]
    if "condition" in arguments:
        conditions.append({"type": arguments["condition"], "status": "True", "reason": "Test"})
    containers = [
        {
            "name": container["name"], "image": container["image"], "imageID": "", "ready": False,
            "restartCount": 0, "state": state,
        }
        for container in pod["spec"]["containers"]
    ]  # fmt: skip
    return {"phase": arguments["phase"], "conditions": conditions, "containerStatuses": containers}
