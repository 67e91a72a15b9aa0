"""The cluster of fault trials: a server, a user, kubelets, and normalized objects to compare.

Normalized objects are everything that the API shows except times, revisions and generated parts of
names. A generation counts the writes of a spec, of which a restarted controller may need fewer; the
generation that a status is for is therefore compared with that of its object.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Iterable
from contextlib import asynccontextmanager, suppress
from typing import Any

import orjson

from phalanx.api.conversion.hub import STORED_KINDS
from phalanx.api.core import Pod
from phalanx.api.feature_gates import DEFAULT_GATES, FeatureGates
from phalanx.api.kinds import EVENT, POD, Kind
from phalanx.api.meta import Key, timestamp
from phalanx.api.wire import STRATEGIC_PATCH, Object, UserInfo
from phalanx.client.client import Client
from phalanx.client.transports import InProcessTransport
from phalanx.clock import Clock, LoopClock
from phalanx.controllers.reconcile_loop import (
    Delete,
    Informers,
    Patch,
    ReconcileLoop,
    ReconcilePlan,
)
from phalanx.randomness import Random, SeededRandom
from phalanx.server.app import Server
from phalanx.server.security.authorization import MASTERS
from phalanx.store.memory import MemoryStore

#: The start of virtual time: 2027-01-15T08:00:00Z.
EPOCH = 1_800_000_000.0
#: Seconds of a commit, and seconds without a write after which the cluster is idle.
COMMIT_LATENCY, IDLE_SECONDS = (0.0005, 0.004), 75.0
#: Seconds in which the cluster must become idle.
_MAX_SECONDS = 3600.0
_INDEX = "batch.kubernetes.io/job-completion-index"
#: A hash at the end of a name.
_HASH = re.compile(r"-[bcdfghjklmnpqrstvwxz2456789]{6,10}(?=-|$)")
#: A uid in a name.
_UID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_IGNORED_FIELDS = (
    "uid", "resourceVersion", "managedFields", "generation", "creationTimestamp", "timeAdded",
    "phalanx.dev/restarted-at",
)  # fmt: skip

#: A coroutine function that runs until it is cancelled.
Runnable = Callable[[], Coroutine[Any, Any, None]]
#: Builds a component; returns what to run.
PartBuilder = Callable[[Client, Informers, Clock, Random], list[Runnable]]


class TrialCluster:
    """A server and a user."""

    def __init__(self, gates: FeatureGates = DEFAULT_GATES) -> None:
        random = SeededRandom(1)
        self.clock = LoopClock(asyncio.get_running_loop(), EPOCH)
        self.store = MemoryStore(lambda: random.between(*COMMIT_LATENCY))
        self.server = Server(self.store, self.clock, random, gates=gates)
        self.client = self.client_for("user")

    def transport(self, name: str) -> InProcessTransport:
        """Return a transport to the server."""
        return InProcessTransport(self.server.handle, UserInfo(name, (MASTERS,)))

    def client_for(self, name: str) -> Client:
        """Return a client without faults."""
        return Client(self.transport(name))

    async def create(self, *objects: Object) -> None:
        for obj in objects:
            await self.client.create(_KINDS[obj["kind"]], obj)

    async def patch(self, kind: Kind, name: str, change: Object) -> None:
        await self.client.patch(kind, _key(kind, name), change)

    async def delete(self, kind: Kind, name: str, propagation: str = "") -> None:
        await self.client.delete(kind, _key(kind, name), propagation=propagation)

    async def finish(
        self, phase: str, *, indexes: Collection[int] | None = None, code: int = 1
    ) -> None:
        """Finish running pods as their kubelets would: all of them, or those of some indexes."""
        for pod in (await self.client.list(POD)).items:
            index = int((pod["metadata"].get("annotations") or {}).get(_INDEX, -1))
            is_selected = indexes is None or index in indexes
            if is_selected and pod.get("status", {}).get("phase") == "Running":
                key = Key(pod["metadata"]["namespace"], pod["metadata"]["name"])
                now = timestamp(self.clock.now())
                status = _terminated_status(pod, phase, 0 if phase == "Succeeded" else code, now)
                await self.client.patch(
                    POD, key, {"status": status}, content=STRATEGIC_PATCH, subresource="status"
                )

    async def wait_until_idle(self) -> None:
        """Wait until nothing was written for `IDLE_SECONDS`."""
        loop = asyncio.get_running_loop()
        end, last, since = loop.time() + _MAX_SECONDS, -1, loop.time()
        while loop.time() - since < IDLE_SECONDS:
            assert loop.time() < end, "the cluster does not become idle"
            if self.store.revision != last:
                last, since = self.store.revision, loop.time()
            await asyncio.sleep(1.0)

    async def wait(self, seconds: float) -> None:
        """Let time pass."""
        await asyncio.sleep(seconds)

    async def normalized_objects(self, kinds: Iterable[Kind]) -> dict[str, list[Object]]:
        """All objects of some kinds, without generated values."""
        found = {kind: list((await self.client.list(kind)).items) for kind in STORED_KINDS}
        known = {}
        for kind, objects in found.items():
            for obj in objects:
                meta = obj["metadata"]
                known[meta["uid"]] = f"<{kind.name}>"
                if plain := _stable_name(meta):
                    known[meta["name"]] = plain
        return {
            kind.name: sorted(
                (_normalize(count_unobserved(obj), known) for obj in found[kind]), key=orjson.dumps
            )
            for kind in kinds
        }

    async def list_objects(self, kind: Kind) -> list[Object]:
        """All objects of a kind, the oldest first."""
        return sorted((await self.client.list(kind)).items, key=_age)

    async def get_only(self, kind: Kind) -> Object:
        """The only object of a kind."""
        (found,) = await self.list_objects(kind)
        return found

    async def events(self, reason: str = "") -> list[Object]:
        """The events of a reason, or all."""
        return [one for one in await self.list_objects(EVENT) if reason in ("", one["reason"])]


@asynccontextmanager
async def running_parts(
    cluster: TrialCluster, *parts: PartBuilder, client: Client | None = None
) -> AsyncIterator[None]:
    """Run components while the context lasts."""
    task = asyncio.create_task(run_parts(client or cluster.client_for("parts"), cluster, parts))
    try:
        yield
    finally:
        await cancel_and_wait(task)


async def run_parts(client: Client, cluster: TrialCluster, parts: Iterable[PartBuilder]) -> None:
    """Run components with their own informers until cancelled."""
    random = SeededRandom(3)
    informers = Informers(client, random)
    runs = [run for part in parts for run in part(client, informers, cluster.clock, random)]
    async with asyncio.TaskGroup() as group:
        group.create_task(informers.run())
        for run in runs:
            group.create_task(run())


async def cancel_and_wait(task: asyncio.Task[Any]) -> None:
    """Cancel a task; raises its error if it failed."""
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


def kubelets(client: Client, informers: Informers, clock: Clock, random: Random) -> list[Runnable]:
    """Kubelets: pods run at once on some node and are removed when deleted."""
    pods = informers.of(Pod).cache

    def report(pod: Pod, phase: str, ready: str) -> Patch:
        status = {"phase": phase, "conditions": [{"type": "Ready", "status": ready}]}
        change = {"metadata": {"uid": pod.metadata.uid}, "status": status}
        return Patch(POD, pod.metadata.key, change, "status", STRATEGIC_PATCH)

    def reconcile(key: Key) -> ReconcilePlan:
        pod = pods.get(key)
        if pod is None:
            return ReconcilePlan()
        if pod.metadata.deletion_timestamp:
            failed = [] if pod.is_terminal else [report(pod, "Failed", "False")]
            return ReconcilePlan([*failed, Delete(POD, key, pod.metadata.uid, grace=0)])
        return ReconcilePlan(
            [report(pod, "Running", "True")] if pod.status.phase == "Pending" else ()
        )

    loop: ReconcileLoop[Key] = ReconcileLoop(client, reconcile)

    def on_change(old: Pod | None, new: Pod | None) -> None:
        if new is not None:
            loop.queue.add(new.metadata.key)

    pods.subscribe(on_change)
    return [loop.run]


_KINDS = {kind.name: kind for kind in STORED_KINDS}


def _key(kind: Kind, name: str) -> Key:
    return Key("default" if kind.namespaced else "", name)


def _age(obj: Object) -> tuple[str, int, str]:
    meta = obj["metadata"]
    return meta["creationTimestamp"], int(meta["resourceVersion"]), meta["name"]


def _stable_name(meta: Object) -> str:
    """The part of a name that was not generated; "" if that is all of it."""
    if "generateName" in meta:
        return f"{meta['generateName']}*"
    plain = _HASH.sub("-#", _UID.sub("<uid>", meta["name"]))
    return plain if plain != meta["name"] else ""


def count_unobserved(obj: Object) -> Object:
    """Replace the observed generation by the generations since then: 0 if the status is current."""
    status = obj.get("status") or {}
    if "observedGeneration" not in status:
        return obj
    missed = obj["metadata"]["generation"] - status["observedGeneration"]
    return {**obj, "status": {**status, "observedGeneration": missed}}


def _normalize(value: Any, known: dict[str, str]) -> Any:
    match value:
        case dict():
            return {
                key: _normalize(item, known)
                for key, item in value.items()
                if key not in _IGNORED_FIELDS and not key.endswith(("Time", "Timestamp", "At"))
            }
        case list():
            return [_normalize(item, known) for item in value]
        case str():
            return known.get(value, value)
    return value


def _terminated_status(pod: Object, phase: str, code: int, now: str) -> Object:
    ended = {"terminated": {"exitCode": code, "finishedAt": now, "startedAt": now}}
    containers = [
        {
            "name": one["name"], "image": one["image"], "imageID": "", "ready": False,
            "restartCount": 0, "state": ended,
        }
        for one in pod["spec"]["containers"]
    ]  # fmt: skip
    ready = [{"type": "Ready", "status": "False"}]
    return {"phase": phase, "conditions": ready, "containerStatuses": containers}
