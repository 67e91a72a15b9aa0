"""Node lifecycle: nodes that fall silent, and the taints that nodes have for how they are.

    leases ─▶ silence ─▶ queue of nodes ─▶ conditions ─▶ taints, pods that are not ready any more

    what a node says        taint                                  effects
    Ready          False    node.kubernetes.io/not-ready           NoSchedule, NoExecute
    Ready          Unknown  node.kubernetes.io/unreachable         NoSchedule, NoExecute
    …Pressure      True     node.kubernetes.io/…-pressure          NoSchedule
    unschedulable           node.kubernetes.io/unschedulable       NoSchedule

A node whose lease is not renewed is taken to know nothing of itself any more. While all of them are
silent nobody is driven out: it may be us who do not hear. Nodes that never had a lease have no
kubelet and are left alone, whatever they say. Each look writes a node once; the news of that brings
the next look. On a foreign API server this loop is off: it has one of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator

from msgspec import Struct

from phalanx.api.core import Node, Pod
from phalanx.api.kinds import LEASE, NODE, POD
from phalanx.api.meta import Key, Meta, condition, timestamp
from phalanx.api.wire import JSON_PATCH, STRATEGIC_PATCH, Object
from phalanx.client.client import Client
from phalanx.clock import Clock
from phalanx.controllers.actions import Action, Patch, Plan, Record
from phalanx.controllers.loop import Informers, Loop
from phalanx.controllers.nodes.disruptedpods import nodes_of, status_patch
from phalanx.controllers.nodes.silence import Silence
from phalanx.controllers.recorder import Note

LEASE_NAMESPACE = "kube-node-lease"
#: Seconds without a renewal after which a node is silent, and between looks for such nodes.
PATIENCE, SWEEP = 50.0, 5.0
NO_SCHEDULE, NO_EXECUTE = "NoSchedule", "NoExecute"
_PREFIX = "node.kubernetes.io/"
_NOT_READY, _UNREACHABLE = f"{_PREFIX}not-ready", f"{_PREFIX}unreachable"
_UNSCHEDULABLE = f"{_PREFIX}unschedulable"
#: Condition and its status -> the key of the taint for it.
_KEYS = {
    ("Ready", "False"): _NOT_READY,
    ("Ready", "Unknown"): _UNREACHABLE,
    ("MemoryPressure", "True"): f"{_PREFIX}memory-pressure",
    ("DiskPressure", "True"): f"{_PREFIX}disk-pressure",
    ("NetworkUnavailable", "True"): f"{_PREFIX}network-unavailable",
    ("PIDPressure", "True"): f"{_PREFIX}pid-pressure",
}
#: Key and effect of a taint: there is one of each at most.
Mark = tuple[str, str]
#: The taints that come and go here; all others are somebody else's.
_OURS: frozenset[Mark] = frozenset({
    *((key, NO_SCHEDULE) for key in (*_KEYS.values(), _UNSCHEDULABLE)),
    *((key, NO_EXECUTE) for key in (_NOT_READY, _UNREACHABLE)),
})  # fmt: skip
#: What a kubelet says of its node, and nobody knows when it is silent.
_TOLD = ("Ready", "MemoryPressure", "DiskPressure", "PIDPressure")
_WORKERS = 8


class LeaseSpec(Struct, frozen=True, rename="camel"):
    """When a lease was renewed."""

    renew_time: str | None = None


class Lease(Struct, frozen=True):
    """A sign of life."""

    metadata: Meta
    spec: LeaseSpec = LeaseSpec()


class NodeLifecycle:
    """Marks nodes, and the pods on silent ones. Never deletes either."""

    def __init__(
        self, client: Client, informers: Informers, clock: Clock,
        record: Callable[[Note], None] = lambda note: None,
    ) -> None:  # fmt: skip
        self._clock, self._record = clock, record
        self._informers = informers.of(NODE, Node), informers.of(LEASE, Lease)
        self._nodes, leases = self._informers[0].cache, self._informers[1].cache
        self._on_node = informers.of(POD, Pod).cache.index(nodes_of)
        self._silence, self._anybody = Silence(PATIENCE), asyncio.Event()
        self._loop: Loop[str] = Loop(client, self.reconcile, _WORKERS, record=record)
        self._nodes.subscribe(self._node_changed)
        leases.subscribe(self._lease_changed)

    async def run(self) -> None:
        """Watch over nodes until cancelled."""
        # Whether all are silent is known only when all are known.
        for informer in self._informers:
            await informer.synced.wait()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._loop.run())
            group.create_task(self._watch_over())

    def reconcile(self, name: str) -> Plan:
        """Say for a node what it does not say any more; when that stands, do what follows."""
        node = self._nodes.get(Key("", name))
        if node is None or name not in self._silence:
            return Plan()
        now = self._clock.now()
        if self._silence.is_silent(name) and (unknown := list(_unknown(node, now))):
            return Plan([_status(node, unknown)])
        taints = _changes(node, self._wanted(node), now)
        return Plan([*taints, *self._marks(name, now)] if _ready(node) == "Unknown" else taints)

    def _wanted(self, node: Node) -> list[Mark]:
        """The taints of ours that a node should have."""
        said = {(one.type, one.status) for one in node.status.conditions}
        keys = [key for fact, key in _KEYS.items() if fact in said]
        if node.spec.unschedulable:
            keys.append(_UNSCHEDULABLE)
        effects = (NO_SCHEDULE,) if self._silence.is_total else (NO_SCHEDULE, NO_EXECUTE)
        marks = [(key, effect) for effect in effects for key in keys]
        return [mark for mark in marks if mark in _OURS]

    def _marks(self, name: str, now: float) -> Iterator[Action]:
        """Pods on a silent node cannot be taken to be ready."""
        for pod in self._on_node[name]:
            ready = condition(pod.status.conditions, "Ready")
            if ready is not None and ready.status == "True" and not pod.ended:
                mark = {"type": "Ready", "status": "False", "lastTransitionTime": timestamp(now)}
                yield status_patch(pod, {"conditions": [mark]})
                note = Note(POD, pod.metadata, "NodeNotReady", "Node is not ready", "Warning")
                yield Record(note)

    async def _watch_over(self) -> None:
        """Look now and then for nodes that have fallen silent."""
        while True:
            await self._anybody.wait()
            await asyncio.sleep(SWEEP)
            found = self._silence.sweep(self._clock.now())
            self._look_at(self._silence if found and self._silence.is_total else found)

    def _look_at(self, names: Iterable[str]) -> None:
        for name in names:
            self._loop.queue.add(name)

    def _lease_changed(self, old: Lease | None, new: Lease | None) -> None:
        if new is None or new.metadata.namespace != LEASE_NAMESPACE:
            return
        name = new.metadata.name
        if old is None or old.spec.renew_time != new.spec.renew_time:
            self._hear(name)
        if old is None:
            self._doubt(self._nodes.get(Key("", name)))

    def _doubt(self, node: Node | None) -> None:
        """A node of which nothing is known since before our time is silent until it is heard."""
        if node is not None and _ready(node) == "Unknown" and node.metadata.name in self._silence:
            self._silence.suspect(node.metadata.name)

    def _hear(self, name: str) -> None:
        was_total, is_news = self._silence.is_total, name not in self._silence
        self._silence.hear(name, self._clock.now())
        self._anybody.set()
        if was_total:
            self._look_at(self._silence)
        elif is_news:
            self._loop.queue.add(name)

    def _node_changed(self, old: Node | None, new: Node | None) -> None:
        if new is None:
            if old is not None:
                self._silence.forget(old.metadata.name)
            return
        name = new.metadata.name
        if old is None:
            self._doubt(new)
        if name in self._silence:
            self._loop.queue.add(name)
            if old is not None and _ready(old) == "True" != _ready(new):
                text = f"Node {name} status is now: NodeNotReady"
                self._record(Note(NODE, new.metadata, "NodeNotReady", text))


def _ready(node: Node) -> str:
    found = condition(node.status.conditions, "Ready")
    return found.status if found is not None else ""


def _unknown(node: Node, now: float) -> Iterator[Object]:
    """The conditions that a silent node cannot vouch for, as far as they do not say so already."""
    for kind in _TOLD:
        found = condition(node.status.conditions, kind)
        if found is None:
            yield {
                "type": kind, "status": "Unknown", "reason": "NodeStatusNeverUpdated",
                "message": "Kubelet never posted node status.",
                "lastHeartbeatTime": node.metadata.creation_timestamp,
                "lastTransitionTime": timestamp(now),
            }  # fmt: skip
        elif found.status != "Unknown":
            yield {
                "type": kind, "status": "Unknown", "reason": "NodeStatusUnknown",
                "message": "Kubelet stopped posting node status.",
                "lastTransitionTime": timestamp(now),
            }  # fmt: skip


def _status(node: Node, conditions: list[Object]) -> Patch:
    meta = node.metadata
    # With its version: a node that speaks up meanwhile is heard.
    known = {"uid": meta.uid, "resourceVersion": meta.resource_version}
    change = {"metadata": known, "status": {"conditions": conditions}}
    return Patch(NODE, meta.key, change, "status", STRATEGIC_PATCH)


def _changes(node: Node, wanted: list[Mark], now: float) -> list[Action]:
    """The patch that gives a node the taints that it should have, unless it has them.

    By their places in that very version: what others have put there stays as it is.
    """
    has = [(taint.key, taint.effect) for taint in node.spec.taints]
    gone = [at for at, mark in enumerate(has) if mark in _OURS and mark not in wanted]
    new = [_taint(mark, now) for mark in wanted if mark not in has]
    if not gone and not new:
        return []
    version = node.metadata.resource_version
    steps: list[Object] = [{"op": "test", "path": "/metadata/resourceVersion", "value": version}]
    steps += [{"op": "remove", "path": f"/spec/taints/{at}"} for at in reversed(gone)]
    if has:
        steps += [{"op": "add", "path": "/spec/taints/-", "value": taint} for taint in new]
    else:
        steps.append({"op": "add", "path": "/spec/taints", "value": new})
    return [Patch(NODE, node.metadata.key, steps, content=JSON_PATCH)]


def _taint(mark: Mark, now: float) -> Object:
    key, effect = mark
    return {"key": key, "effect": effect, "timeAdded": timestamp(now)}
