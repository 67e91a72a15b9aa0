"""Silence: who has not been heard of for too long.

Time is when we heard, not what the other side says the time was: clocks differ. Pure and cheap:
hearing somebody costs the same however many there are, and a sweep only looks at who is late.

Node lifecycle: nodes that fall silent, and the taints that nodes have for how they are.

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
from itertools import takewhile

from msgspec import Struct

from phalanx.api.core import Node, Pod
from phalanx.api.kinds import LEASE, NODE, POD
from phalanx.api.meta import Key, ObjectMeta, find_condition, timestamp
from phalanx.api.wire import JSON_PATCH, STRATEGIC_PATCH, Object
from phalanx.client.client import Client
from phalanx.clock import Clock
from phalanx.controllers.event_recorder import ObjectEvent
from phalanx.controllers.nodes.pod_status import nodes_of, status_patch
from phalanx.controllers.reconcile_loop import (
    Action,
    Informers,
    Patch,
    ReconcileLoop,
    ReconcilePlan,
    RecordEvent,
)


class HeartbeatMonitor:
    """Those who have to be heard of, by name; whoever was never heard of is not known."""

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        #: When each was heard last, the longest ago first.
        self._last_seen: dict[str, float] = {}
        self._silent: dict[str, None] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._last_seen or name in self._silent

    def __iter__(self) -> Iterator[str]:
        yield from (*self._last_seen, *self._silent)

    def record_heartbeat(self, name: str, now: float) -> None:
        """Note that somebody was heard of."""
        self.forget(name)
        self._last_seen[name] = now

    def mark_silent(self, name: str) -> None:
        """Take somebody to be silent because somebody else has found so."""
        self.forget(name)
        self._silent[name] = None

    def forget(self, name: str) -> None:
        """Expect nothing more of somebody."""
        self._last_seen.pop(name, None)
        self._silent.pop(name, None)

    def sweep(self, now: float) -> list[str]:
        """Those who have just become silent."""
        limit = now - self._timeout
        found = list(takewhile(lambda name: self._last_seen[name] < limit, self._last_seen))
        for name in found:
            del self._last_seen[name]
            self._silent[name] = None
        return found

    def is_silent(self, name: str) -> bool:
        """Whether somebody was heard of, but too long ago."""
        return name in self._silent

    @property
    def are_all_silent(self) -> bool:
        """Whether all are silent: then it may be us who do not hear."""
        return bool(self._silent) and not self._last_seen


LEASE_NAMESPACE = "kube-node-lease"
#: Seconds without a renewal after which a node is silent, and between looks for such nodes.
HEARTBEAT_TIMEOUT, SWEEP_INTERVAL = 50.0, 5.0
NO_SCHEDULE, NO_EXECUTE = "NoSchedule", "NoExecute"
_PREFIX = "node.kubernetes.io/"
_NOT_READY, _UNREACHABLE = f"{_PREFIX}not-ready", f"{_PREFIX}unreachable"
_UNSCHEDULABLE = f"{_PREFIX}unschedulable"
#: Condition and its status -> the key of the taint for it.
_CONDITION_TAINTS = {
    ("Ready", "False"): _NOT_READY,
    ("Ready", "Unknown"): _UNREACHABLE,
    ("MemoryPressure", "True"): f"{_PREFIX}memory-pressure",
    ("DiskPressure", "True"): f"{_PREFIX}disk-pressure",
    ("NetworkUnavailable", "True"): f"{_PREFIX}network-unavailable",
    ("PIDPressure", "True"): f"{_PREFIX}pid-pressure",
}
#: Key and effect of a taint: there is one of each at most.
TaintKey = tuple[str, str]
#: The taints that come and go here; all others are somebody else's.
_MANAGED_TAINTS: frozenset[TaintKey] = frozenset({
    *((key, NO_SCHEDULE) for key in (*_CONDITION_TAINTS.values(), _UNSCHEDULABLE)),
    *((key, NO_EXECUTE) for key in (_NOT_READY, _UNREACHABLE)),
})  # fmt: skip
#: What a kubelet says of its node, and nobody knows when it is silent.
_KUBELET_CONDITIONS = ("Ready", "MemoryPressure", "DiskPressure", "PIDPressure")
_WORKERS = 8


class LeaseSpec(Struct, frozen=True, rename="camel"):
    """When a lease was renewed."""

    renew_time: str | None = None


class Lease(Struct, frozen=True):
    """A sign of life."""

    metadata: ObjectMeta
    spec: LeaseSpec = LeaseSpec()


class NodeLifecycle:
    """Marks nodes, and the pods on silent ones. Never deletes either."""

    def __init__(
        self, client: Client, informers: Informers, clock: Clock,
        record: Callable[[ObjectEvent], None] = lambda note: None,
    ) -> None:  # fmt: skip
        self._clock, self._record = clock, record
        self._informers = informers.of(NODE, Node), informers.of(LEASE, Lease)
        self._nodes, leases = self._informers[0].cache, self._informers[1].cache
        self._pods_by_node = informers.of(POD, Pod).cache.index(nodes_of)
        self._heartbeats, self._has_nodes = HeartbeatMonitor(HEARTBEAT_TIMEOUT), asyncio.Event()
        self._loop: ReconcileLoop[str] = ReconcileLoop(
            client, self.reconcile, _WORKERS, record=record
        )
        self._nodes.subscribe(self._on_node_changed)
        leases.subscribe(self._on_lease_changed)

    async def run(self) -> None:
        """Watch over nodes until cancelled."""
        # Whether all are silent is known only when all are known.
        for informer in self._informers:
            await informer.synced.wait()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._loop.run())
            group.create_task(self._monitor_heartbeats())

    def reconcile(self, name: str) -> ReconcilePlan:
        """Say for a node what it does not say any more; when that stands, do what follows."""
        node = self._nodes.get(Key("", name))
        if node is None or name not in self._heartbeats:
            return ReconcilePlan()
        now = self._clock.now()
        if self._heartbeats.is_silent(name) and (unknown := list(_unknown_conditions(node, now))):
            return ReconcilePlan([_node_status_patch(node, unknown)])
        taints = _taint_patches(node, self._desired_taints(node), now)
        return ReconcilePlan(
            [*taints, *self._mark_pods_not_ready(name, now)]
            if _ready_status(node) == "Unknown"
            else taints
        )

    def _desired_taints(self, node: Node) -> list[TaintKey]:
        """The taints of ours that a node should have."""
        said = {(one.type, one.status) for one in node.status.conditions}
        keys = [key for fact, key in _CONDITION_TAINTS.items() if fact in said]
        if node.spec.unschedulable:
            keys.append(_UNSCHEDULABLE)
        effects = (NO_SCHEDULE,) if self._heartbeats.are_all_silent else (NO_SCHEDULE, NO_EXECUTE)
        marks = [(key, effect) for effect in effects for key in keys]
        return [mark for mark in marks if mark in _MANAGED_TAINTS]

    def _mark_pods_not_ready(self, name: str, now: float) -> Iterator[Action]:
        """Pods on a silent node cannot be taken to be ready."""
        for pod in self._pods_by_node[name]:
            ready = find_condition(pod.status.conditions, "Ready")
            if ready is not None and ready.status == "True" and not pod.is_terminal:
                mark = {"type": "Ready", "status": "False", "lastTransitionTime": timestamp(now)}
                yield status_patch(pod, {"conditions": [mark]})
                note = ObjectEvent(
                    POD, pod.metadata, "NodeNotReady", "Node is not ready", "Warning"
                )
                yield RecordEvent(note)

    async def _monitor_heartbeats(self) -> None:
        """Look now and then for nodes that have fallen silent."""
        while True:
            await self._has_nodes.wait()
            await asyncio.sleep(SWEEP_INTERVAL)
            found = self._heartbeats.sweep(self._clock.now())
            self._enqueue(self._heartbeats if found and self._heartbeats.are_all_silent else found)

    def _enqueue(self, names: Iterable[str]) -> None:
        for name in names:
            self._loop.queue.add(name)

    def _on_lease_changed(self, old: Lease | None, new: Lease | None) -> None:
        if new is None or new.metadata.namespace != LEASE_NAMESPACE:
            return
        name = new.metadata.name
        if old is None or old.spec.renew_time != new.spec.renew_time:
            self._record_heartbeat(name)
        if old is None:
            self._suspect_unknown(self._nodes.get(Key("", name)))

    def _suspect_unknown(self, node: Node | None) -> None:
        """A node of which nothing is known since before our time is silent until it is heard."""
        if (
            node is not None
            and _ready_status(node) == "Unknown"
            and node.metadata.name in self._heartbeats
        ):
            self._heartbeats.mark_silent(node.metadata.name)

    def _record_heartbeat(self, name: str) -> None:
        was_total, is_news = self._heartbeats.are_all_silent, name not in self._heartbeats
        self._heartbeats.record_heartbeat(name, self._clock.now())
        self._has_nodes.set()
        if was_total:
            self._enqueue(self._heartbeats)
        elif is_news:
            self._loop.queue.add(name)

    def _on_node_changed(self, old: Node | None, new: Node | None) -> None:
        if new is None:
            if old is not None:
                self._heartbeats.forget(old.metadata.name)
            return
        name = new.metadata.name
        if old is None:
            self._suspect_unknown(new)
        if name in self._heartbeats:
            self._loop.queue.add(name)
            if old is not None and _ready_status(old) == "True" != _ready_status(new):
                text = f"Node {name} status is now: NodeNotReady"
                self._record(ObjectEvent(NODE, new.metadata, "NodeNotReady", text))


def _ready_status(node: Node) -> str:
    found = find_condition(node.status.conditions, "Ready")
    return found.status if found is not None else ""


def _unknown_conditions(node: Node, now: float) -> Iterator[Object]:
    """The conditions that a silent node cannot vouch for, as far as they do not say so already."""
    for kind in _KUBELET_CONDITIONS:
        found = find_condition(node.status.conditions, kind)
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


def _node_status_patch(node: Node, conditions: list[Object]) -> Patch:
    meta = node.metadata
    # With its version: a node that speaks up meanwhile is heard.
    known = {"uid": meta.uid, "resourceVersion": meta.resource_version}
    change = {"metadata": known, "status": {"conditions": conditions}}
    return Patch(NODE, meta.key, change, "status", STRATEGIC_PATCH)


def _taint_patches(node: Node, desired: list[TaintKey], now: float) -> list[Action]:
    """The patch that gives a node the taints that it should have, unless it has them.

    By their places in that very version: what others have put there stays as it is.
    """
    has = [(taint.key, taint.effect) for taint in node.spec.taints]
    gone = [at for at, mark in enumerate(has) if mark in _MANAGED_TAINTS and mark not in desired]
    new = [_taint(mark, now) for mark in desired if mark not in has]
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


def _taint(taint_key: TaintKey, now: float) -> Object:
    key, effect = taint_key
    return {"key": key, "effect": effect, "timeAdded": timestamp(now)}
