"""The pod garbage collector: force-deletes pods that no kubelet will ever terminate.

    pods                                                  after   status before the deletion
    bound to a node that is gone                          40 s    DisruptionTarget, phase Failed
    being deleted, on a node that is out of service       20 s    phase Failed
    being deleted, and never bound                        20 s    phase Failed
    terminated, beyond the threshold of such pods         20 s    unchanged

A node is gone only if the API confirms it, because the cache may be stale. The controller is
disabled on a foreign API server, which has its own.
"""

from __future__ import annotations

import asyncio

from phalanx import logs
from phalanx.api.core import Node, Pod
from phalanx.api.errors import NotFound
from phalanx.api.kinds import NODE, POD
from phalanx.api.meta import Key, PartialObjectMetadata, find_condition
from phalanx.client.client import Client
from phalanx.clock import Clock
from phalanx.controllers.nodes.pod_status import disruption_patch, nodes_of, status_patch
from phalanx.controllers.reconcile_loop import (
    Action,
    Delete,
    Informers,
    ReconcileLoop,
    ReconcilePlan,
)

LOG = logs.component("pod-garbage-collector")
OUT_OF_SERVICE = "node.kubernetes.io/out-of-service"
#: Seconds for which a node may be absent before its pods are deleted.
QUARANTINE = 40.0
#: The number of terminated pods to keep.
TERMINATED_POD_THRESHOLD = 12_500
#: Seconds for which other components may delete a pod before it is force-deleted.
COLLECTION_DELAY = 20.0
_WORKERS = 8


class PodGarbageCollector:
    """Fails and deletes such pods until cancelled; keeps `threshold` terminated pods."""

    def __init__(
        self,
        client: Client,
        informers: Informers,
        clock: Clock,
        *,
        threshold: int = TERMINATED_POD_THRESHOLD,
    ) -> None:
        self._client, self._clock, self._threshold = client, clock, threshold
        self._informers = informers.of(Node), informers.of(Pod)
        self._nodes, self._pods = self._informers[0].cache, self._informers[1].cache
        self._pods_by_node = self._pods.index(nodes_of)
        self._terminated_count = 0
        #: Since when each node that has pods is absent.
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
        self._nodes.subscribe(self._on_node_change)
        self._pods.subscribe(self._on_pod_change)

    async def run(self) -> None:
        """Delete pods until cancelled."""
        # A node that the cache does not show yet would count as gone.
        for informer in self._informers:
            await informer.synced.wait()
        async with asyncio.TaskGroup() as group:
            for loop in (self._lost_nodes, self._stuck_pods, self._terminated_pods):
                group.create_task(loop.run())

    def collect_lost_node(self, node: str) -> ReconcilePlan:
        """Plan: delete the pods of a node that has been absent for `QUARANTINE` seconds."""
        pods = self._pods_by_node[node]
        if Key("", node) in self._nodes or not pods:
            self._missing_since.pop(node, None)
            return ReconcilePlan()
        now = self._clock.now()
        remaining = self._missing_since.setdefault(node, now) + QUARANTINE - now
        if remaining > 0:
            return ReconcilePlan(requeue_after=remaining)
        deletable = [pod for pod in pods if _is_deletable(pod)]
        actions = [action for pod in deletable for action in _fail_and_delete(pod, now)]
        return ReconcilePlan(actions, requeue_after=QUARANTINE)

    def collect_stuck_pod(self, key: Key) -> ReconcilePlan:
        """Plan: force-delete a pod that is being deleted and that no kubelet terminates."""
        pod = self._pods.get(key)
        if pod is None or not (self._is_stuck(pod) and _is_deletable(pod)):
            return ReconcilePlan()
        delete = _force_delete(pod)
        if pod.is_terminal:
            return ReconcilePlan([delete])
        return ReconcilePlan([status_patch(pod, {"phase": "Failed"}), delete])

    def collect_terminated_pods(self) -> ReconcilePlan:
        """Plan: delete the oldest terminated pods beyond the threshold."""
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
            pods = len(self._pods_by_node[node])
            LOG.info("Node is gone, deleting its pods", kind=NODE.name, key=node, pods=pods)
            return True
        return False

    def _is_stuck(self, pod: Pod) -> bool:
        if not pod.metadata.deletion_timestamp:
            return False
        node = self._nodes.get(Key("", pod.spec.node_name))
        return not pod.spec.node_name or (node is not None and _is_out_of_service(node))

    def _on_node_change(self, old: Node | None, new: Node | None) -> None:
        if new is None and old is not None:
            self._lost_nodes.queue.add(old.metadata.name)
        elif new is not None:
            self._missing_since.pop(new.metadata.name, None)
            if _is_out_of_service(new):
                for pod in self._pods_by_node[new.metadata.name]:
                    self._stuck_pods.queue.add_after(pod.metadata.key, COLLECTION_DELAY)

    def _on_pod_change(self, old: Pod | None, new: Pod | None) -> None:
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
    """Whether deleting a pod has an effect: not if it only waits for its finalizers."""
    meta = pod.metadata
    is_deleted = bool(meta.deletion_timestamp) and not meta.deletion_grace_period_seconds
    return not (pod.is_terminal and is_deleted and meta.finalizers)


def _is_out_of_service(node: Node) -> bool:
    ready = find_condition(node.status.conditions, "Ready")
    is_ready = ready is not None and ready.status == "True"
    return not is_ready and any(taint.key == OUT_OF_SERVICE for taint in node.spec.taints)


def _fail_and_delete(pod: Pod, now: float) -> list[Action]:
    """Mark a pod as failed because its node is gone, unless it has terminated, and delete it."""
    if pod.is_terminal:
        return [_force_delete(pod)]
    text = "PodGC: node no longer exists"
    patch = disruption_patch(pod, "DeletionByPodGC", text, now=now, phase="Failed")
    return [patch, _force_delete(pod)]


def _force_delete(pod: Pod) -> Delete:
    return Delete(POD, pod.metadata.key, pod.metadata.uid, grace=0)
