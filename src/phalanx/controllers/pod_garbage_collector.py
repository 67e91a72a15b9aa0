"""Pods that nobody will ever take down: forced out of the way.

    which pods                                       after   what is said of them
    bound to a node that is gone                     40 s    DisruptionTarget, Failed
    being deleted, on a node that is out of service  20 s    Failed
    being deleted, and never bound                   20 s    Failed
    ended, and more of them than are kept            20 s    -

A node counts as gone only when the API itself says so: a view may be late. On a foreign API server
this loop is off: it has one of its own.
"""

from __future__ import annotations

import asyncio

from phalanx.api.core import Node, Pod
from phalanx.api.errors import NotFound
from phalanx.api.kinds import NODE, POD
from phalanx.api.meta import Key, find_condition
from phalanx.client.client import Client
from phalanx.clock import Clock
from phalanx.controllers.nodes.pod_status import disruption_patch, nodes_of, status_patch
from phalanx.controllers.reconcile_loop import (
    Action,
    Delete,
    Informers,
    PartialObjectMetadata,
    ReconcileLoop,
    ReconcilePlan,
)

OUT_OF_SERVICE = "node.kubernetes.io/out-of-service"
#: Seconds that a node may be missing before its pods are taken to be lost.
QUARANTINE = 40.0
#: Pods that have ended and are kept all the same.
TERMINATED_POD_THRESHOLD = 12_500
#: Seconds that others have for the rest, so that nothing is forced that goes by itself.
COLLECTION_DELAY = 20.0
_WORKERS = 8


class PodGarbageCollector:
    """Marks such pods as failed and deletes them. `kept` is how many of those stay that ended."""

    def __init__(
        self,
        client: Client,
        informers: Informers,
        clock: Clock,
        threshold: int = TERMINATED_POD_THRESHOLD,
    ) -> None:
        self._client, self._clock, self._threshold = client, clock, threshold
        self._informers = informers.of(NODE, Node), informers.of(POD, Pod)
        self._nodes, self._pods = self._informers[0].cache, self._informers[1].cache
        self._pods_by_node = self._pods.index(nodes_of)
        self._terminated_count = 0
        #: Since when nodes have been missing on which pods are.
        self._missing_since: dict[str, float] = {}
        self._lost_nodes: ReconcileLoop[str] = ReconcileLoop(
            client, self.collect_lost_node, _WORKERS, confirm=self._is_node_gone
        )
        self._stuck_pods: ReconcileLoop[Key] = ReconcileLoop(
            client, self.collect_stuck_pod, _WORKERS
        )
        self._terminated_pods: ReconcileLoop[None] = ReconcileLoop(
            client, lambda _: self.collect_terminated_pods()
        )
        self._nodes.subscribe(self._node_changed)
        self._pods.subscribe(self._pod_changed)

    async def run(self) -> None:
        """Clear away until cancelled."""
        # Nodes of which one has not heard yet would be missing.
        for informer in self._informers:
            await informer.synced.wait()
        async with asyncio.TaskGroup() as group:
            for loop in (self._lost_nodes, self._stuck_pods, self._terminated_pods):
                group.create_task(loop.run())

    def collect_lost_node(self, node: str) -> ReconcilePlan:
        """Give the pods of a node up that has been missing for long enough."""
        pods = self._pods_by_node[node]
        if Key("", node) in self._nodes or not pods:
            self._missing_since.pop(node, None)
            return ReconcilePlan()
        now = self._clock.now()
        left = self._missing_since.setdefault(node, now) + QUARANTINE - now
        if left > 0:
            return ReconcilePlan(requeue_after=left)
        steps = [step for pod in pods if _is_deletable(pod) for step in _fail_and_delete(pod, now)]
        return ReconcilePlan(steps, requeue_after=QUARANTINE)

    def collect_stuck_pod(self, key: Key) -> ReconcilePlan:
        """Let a pod go that is being deleted and that no kubelet will take down."""
        pod = self._pods.get(key)
        if pod is None or not (self._is_stuck(pod) and _is_deletable(pod)):
            return ReconcilePlan()
        return ReconcilePlan(_force_delete(pod))

    def collect_terminated_pods(self) -> ReconcilePlan:
        """Delete the oldest of the pods that have ended, beyond those that are kept."""
        pods = [
            pod.metadata for pod in self._pods.values() if pod.is_terminal and _is_deletable(pod)
        ]
        pods.sort(key=lambda meta: (meta.creation_timestamp, meta.name))
        surplus = pods[: max(0, len(pods) - self._threshold)]
        return ReconcilePlan([Delete(POD, meta.key, meta.uid, grace=0) for meta in surplus])

    async def _is_node_gone(self, node: str) -> bool:
        try:
            await self._client.get(NODE, Key("", node), PartialObjectMetadata)
        except NotFound:
            return True
        return False

    def _is_stuck(self, pod: Pod) -> bool:
        if not pod.metadata.deletion_timestamp:
            return False
        node = self._nodes.get(Key("", pod.spec.node_name))
        return not pod.spec.node_name or (node is not None and _is_out_of_service(node))

    def _node_changed(self, old: Node | None, new: Node | None) -> None:
        if new is None and old is not None:
            self._lost_nodes.queue.add(old.metadata.name)
        elif new is not None:
            self._missing_since.pop(new.metadata.name, None)
            if _is_out_of_service(new):
                for pod in self._pods_by_node[new.metadata.name]:
                    self._stuck_pods.queue.add_after(pod.metadata.key, COLLECTION_DELAY)

    def _pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        if old is None or new is None or old.status.phase != new.status.phase:
            self._count_terminated(old, new)
        if new is None:
            return
        if self._is_stuck(new):
            self._stuck_pods.queue.add_after(new.metadata.key, COLLECTION_DELAY)
        node = new.spec.node_name
        if node and (old is None or not old.spec.node_name) and Key("", node) not in self._nodes:
            self._lost_nodes.queue.add(node)

    def _count_terminated(self, old: Pod | None, new: Pod | None) -> None:
        self._terminated_count += (new is not None and new.is_terminal) - (
            old is not None and old.is_terminal
        )
        if self._terminated_count > self._threshold:
            self._terminated_pods.queue.add_after(None, COLLECTION_DELAY)


def _is_deletable(pod: Pod) -> bool:
    """Whether there is something to do still: whoever only waits for finalizers is left to them."""
    meta = pod.metadata
    is_going = bool(meta.deletion_timestamp) and not meta.deletion_grace_period_seconds
    return not (pod.is_terminal and is_going and meta.finalizers)


def _is_out_of_service(node: Node) -> bool:
    ready = find_condition(node.status.conditions, "Ready")
    is_ready = ready is not None and ready.status == "True"
    return not is_ready and any(taint.key == OUT_OF_SERVICE for taint in node.spec.taints)


def _fail_and_delete(pod: Pod, now: float) -> list[Action]:
    """Say of a pod that was running that its node is no more, and delete it."""
    gone = Delete(POD, pod.metadata.key, pod.metadata.uid, grace=0)
    if pod.is_terminal:
        return [gone]
    text = "PodGC: node no longer exists"
    return [disruption_patch(pod, "DeletionByPodGC", text, now, phase="Failed"), gone]


def _force_delete(pod: Pod) -> list[Action]:
    gone = Delete(POD, pod.metadata.key, pod.metadata.uid, grace=0)
    return [gone] if pod.is_terminal else [status_patch(pod, {"phase": "Failed"}), gone]
