"""The node lifecycle controller: nodes without heartbeats, and taints that follow from conditions.

    leases ─▶ HeartbeatMonitor ─▶ queue of nodes ─▶ conditions ─▶ taints, Ready=False on pods

    condition of the node   taint                                  effects
    Ready          False    node.kubernetes.io/not-ready           NoSchedule, NoExecute
    Ready          Unknown  node.kubernetes.io/unreachable         NoSchedule, NoExecute
    …Pressure      True     node.kubernetes.io/…-pressure          NoSchedule
    unschedulable           node.kubernetes.io/unschedulable       NoSchedule

The conditions of a node whose lease is not renewed become Unknown. While no node renews its lease,
no node gets a NoExecute taint: the controller itself may be disconnected. Nodes that never had a
lease have no kubelet and are not touched. Each reconcile writes a node once; the resulting event
triggers the next one. Off by default on a foreign API server, which has such a controller.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from itertools import takewhile

from phalanx import logs
from phalanx.api.core import Node, Pod
from phalanx.api.kinds import NODE, POD
from phalanx.api.meta import Key, find_condition, timestamp
from phalanx.api.other_kinds import Lease
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
    """Finds nodes that have sent no heartbeat for `timeout` seconds.

    Uses the times at which heartbeats arrive, not the times that nodes write: clocks differ. A
    heartbeat costs the same however many nodes there are; a sweep reads only the late ones.

        monitor.record_heartbeat("a", now=0); monitor.record_heartbeat("b", now=40)
        monitor.sweep(now=60) == ["a"]                        with a timeout of 50 seconds
    """

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        #: The time of the last heartbeat by node, oldest first.
        self._last_seen: dict[str, float] = {}
        self._unresponsive: dict[str, None] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._last_seen or name in self._unresponsive

    def __iter__(self) -> Iterator[str]:
        yield from (*self._last_seen, *self._unresponsive)

    def record_heartbeat(self, name: str, now: float) -> None:
        """Record a heartbeat of a node."""
        self.forget(name)
        self._last_seen[name] = now

    def mark_unresponsive(self, name: str) -> None:
        """Treat a node as unresponsive because its conditions already say so."""
        self.forget(name)
        self._unresponsive[name] = None

    def forget(self, name: str) -> None:
        """Forget a node: expect no heartbeat from it."""
        self._last_seen.pop(name, None)
        self._unresponsive.pop(name, None)

    def sweep(self, now: float) -> list[str]:
        """Return the nodes that have become unresponsive since the last sweep."""
        limit = now - self._timeout
        late = list(takewhile(lambda name: self._last_seen[name] < limit, self._last_seen))
        for name in late:
            del self._last_seen[name]
            self._unresponsive[name] = None
        return late

    def is_unresponsive(self, name: str) -> bool:
        """Whether the last heartbeat of a node is too old."""
        return name in self._unresponsive

    @property
    def are_all_unresponsive(self) -> bool:
        """Whether all nodes are unresponsive: then this controller may be disconnected itself."""
        return bool(self._unresponsive) and not self._last_seen


LOG = logs.component("node-lifecycle-controller")

LEASE_NAMESPACE = "kube-node-lease"
#: Seconds without a renewal after which a node is unresponsive, and between two sweeps.
HEARTBEAT_TIMEOUT, SWEEP_INTERVAL = 50.0, 5.0
NO_SCHEDULE, NO_EXECUTE = "NoSchedule", "NoExecute"
_PREFIX = "node.kubernetes.io/"
_NOT_READY, _UNREACHABLE = f"{_PREFIX}not-ready", f"{_PREFIX}unreachable"
_UNSCHEDULABLE = f"{_PREFIX}unschedulable"
#: Type and status of a condition -> the key of its taint.
_CONDITION_TAINTS = {
    ("Ready", "False"): _NOT_READY,
    ("Ready", "Unknown"): _UNREACHABLE,
    ("MemoryPressure", "True"): f"{_PREFIX}memory-pressure",
    ("DiskPressure", "True"): f"{_PREFIX}disk-pressure",
    ("NetworkUnavailable", "True"): f"{_PREFIX}network-unavailable",
    ("PIDPressure", "True"): f"{_PREFIX}pid-pressure",
}
#: Key and effect of a taint: a node has at most one taint with both.
TaintKey = tuple[str, str]
#: The taints that this controller adds and removes; it never touches others.
_MANAGED_TAINTS: frozenset[TaintKey] = frozenset(
    {
        *((key, NO_SCHEDULE) for key in (*_CONDITION_TAINTS.values(), _UNSCHEDULABLE)),
        *((key, NO_EXECUTE) for key in (_NOT_READY, _UNREACHABLE)),
    }
)
#: The conditions that only a kubelet knows: Unknown while the node is unresponsive.
_KUBELET_CONDITIONS = ("Ready", "MemoryPressure", "DiskPressure", "PIDPressure")
_WORKERS = 8


class NodeLifecycle:
    """Writes conditions and taints of nodes, and Ready=False on pods of unresponsive nodes.

    Never deletes a node or a pod.
    """

    def __init__(
        self,
        client: Client,
        informers: Informers,
        clock: Clock,
        *,
        record: Callable[[ObjectEvent], None] = lambda event: None,
    ) -> None:
        self._clock, self._record = clock, record
        self._informers = informers.of(Node), informers.of(Lease)
        self._nodes, leases = self._informers[0].cache, self._informers[1].cache
        self._pods_by_node = informers.of(Pod).cache.index(nodes_of)
        self._heartbeats, self._has_nodes = HeartbeatMonitor(HEARTBEAT_TIMEOUT), asyncio.Event()
        self._loop: ReconcileLoop[str] = ReconcileLoop(
            client, self.reconcile, _WORKERS, record=record
        )
        self._nodes.subscribe(self._on_node_changed)
        leases.subscribe(self._on_lease_changed)

    async def run(self) -> None:
        """Reconcile nodes until cancelled."""
        # `are_all_unresponsive` is only meaningful once all nodes and leases are known.
        for informer in self._informers:
            await informer.synced.wait()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._loop.run())
            group.create_task(self._monitor_heartbeats())

    def reconcile(self, name: str) -> ReconcilePlan:
        """Set the conditions of an unresponsive node to Unknown; taints and pods follow them."""
        node = self._nodes.get(Key("", name))
        if node is None or name not in self._heartbeats:
            return ReconcilePlan()
        now = self._clock.now()
        unresponsive = self._heartbeats.is_unresponsive(name)
        if unresponsive and (unknown := list(_unknown_conditions(node, now))):
            return ReconcilePlan([_node_status_patch(node, unknown)])
        taints = _taint_patches(node, self._desired_taints(node), now)
        return ReconcilePlan(
            [*taints, *self._mark_pods_not_ready(name, now)]
            if _ready_status(node) == "Unknown"
            else taints
        )

    def _desired_taints(self, node: Node) -> list[TaintKey]:
        """Return the managed taints that a node should have."""
        current = {(condition.type, condition.status) for condition in node.status.conditions}
        keys = [key for condition, key in _CONDITION_TAINTS.items() if condition in current]
        if node.spec.unschedulable:
            keys.append(_UNSCHEDULABLE)
        effects = (
            (NO_SCHEDULE,) if self._heartbeats.are_all_unresponsive else (NO_SCHEDULE, NO_EXECUTE)
        )
        taints = [(key, effect) for effect in effects for key in keys]
        return [taint for taint in taints if taint in _MANAGED_TAINTS]

    def _mark_pods_not_ready(self, name: str, now: float) -> Iterator[Action]:
        """Set Ready=False on the pods of an unresponsive node."""
        for pod in self._pods_by_node[name]:
            ready = find_condition(pod.status.conditions, "Ready")
            if ready is not None and ready.status == "True" and not pod.is_terminal:
                not_ready = {
                    "type": "Ready",
                    "status": "False",
                    "lastTransitionTime": timestamp(now),
                }
                yield status_patch(pod, {"conditions": [not_ready]})
                event = ObjectEvent(
                    POD, pod.metadata, "NodeNotReady", message="Node is not ready", type="Warning"
                )
                yield RecordEvent(event)

    async def _monitor_heartbeats(self) -> None:
        """Sweep periodically for nodes that have become unresponsive."""
        while True:
            await self._has_nodes.wait()
            await asyncio.sleep(SWEEP_INTERVAL)
            unresponsive = self._heartbeats.sweep(self._clock.now())
            for name in unresponsive:
                LOG.info(
                    "node heartbeats stopped", kind="Node", key=name, timeout=HEARTBEAT_TIMEOUT
                )
            if unresponsive and self._heartbeats.are_all_unresponsive:
                LOG.warning(
                    "all nodes are unresponsive: no pod is evicted", nodes=len(unresponsive)
                )
                self._enqueue(self._heartbeats)
            else:
                self._enqueue(unresponsive)

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
        """Treat a node whose Ready condition was Unknown before our start as unresponsive."""
        if (
            node is not None
            and _ready_status(node) == "Unknown"
            and node.metadata.name in self._heartbeats
        ):
            self._heartbeats.mark_unresponsive(node.metadata.name)

    def _record_heartbeat(self, name: str) -> None:
        were_all_unresponsive = self._heartbeats.are_all_unresponsive
        is_new = name not in self._heartbeats
        if self._heartbeats.is_unresponsive(name):
            LOG.info("node heartbeats resumed", kind="Node", key=name)
        self._heartbeats.record_heartbeat(name, self._clock.now())
        self._has_nodes.set()
        if were_all_unresponsive:
            self._enqueue(self._heartbeats)
        elif is_new:
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
        if old is not None and (was := _ready_status(old)) != (status := _ready_status(new)):
            LOG.info("node readiness changed", kind="Node", key=name, ready=status, was=was)
            if name in self._heartbeats and was == "True":
                message = f"Node {name} status is now: NodeNotReady"
                self._record(ObjectEvent(NODE, new.metadata, "NodeNotReady", message=message))


def _ready_status(node: Node) -> str:
    found = find_condition(node.status.conditions, "Ready")
    return found.status if found is not None else ""


def _unknown_conditions(node: Node, now: float) -> Iterator[Object]:
    """Yield the kubelet conditions of an unresponsive node that are not Unknown yet."""
    for kind in _KUBELET_CONDITIONS:
        found = find_condition(node.status.conditions, kind)
        if found is None:
            yield {
                "type": kind,
                "status": "Unknown",
                "reason": "NodeStatusNeverUpdated",
                "message": "Kubelet never posted node status.",
                "lastHeartbeatTime": node.metadata.creation_timestamp,
                "lastTransitionTime": timestamp(now),
            }
        elif found.status != "Unknown":
            yield {
                "type": kind,
                "status": "Unknown",
                "reason": "NodeStatusUnknown",
                "message": "Kubelet stopped posting node status.",
                "lastTransitionTime": timestamp(now),
            }


def _node_status_patch(node: Node, conditions: list[Object]) -> Patch:
    meta = node.metadata
    # With the resourceVersion: the patch must not overwrite a report of the kubelet.
    change = {
        "metadata": {"uid": meta.uid, "resourceVersion": meta.resource_version},
        "status": {"conditions": conditions},
    }
    return Patch(NODE, meta.key, change, subresource="status", content=STRATEGIC_PATCH)


def _taint_patches(node: Node, desired: list[TaintKey], now: float) -> list[Action]:
    """Return the patch that adds and removes managed taints, if any is needed.

    The JSON patch names taints by index and tests the resourceVersion, so that taints of others
    stay as they are.
    """
    current = [(taint.key, taint.effect) for taint in node.spec.taints]
    removed = [
        index
        for index, taint in enumerate(current)
        if taint in _MANAGED_TAINTS and taint not in desired
    ]
    added: list[Object] = [
        {"key": key, "effect": effect, "timeAdded": timestamp(now)}
        for key, effect in desired
        if (key, effect) not in current
    ]
    if not removed and not added:
        return []
    LOG.debug("node taints changed", kind="Node", key=node.metadata.name, taints=desired)
    version = node.metadata.resource_version
    steps: list[Object] = [{"op": "test", "path": "/metadata/resourceVersion", "value": version}]
    steps += [{"op": "remove", "path": f"/spec/taints/{index}"} for index in reversed(removed)]
    if current:
        steps += [{"op": "add", "path": "/spec/taints/-", "value": taint} for taint in added]
    else:
        steps.append({"op": "add", "path": "/spec/taints", "value": added})
    return [Patch(NODE, node.metadata.key, steps, content=JSON_PATCH)]
