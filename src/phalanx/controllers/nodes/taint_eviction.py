"""Taint eviction: pods leave nodes whose NoExecute taints they do not tolerate, or no longer.

    nodes, pods ─▶ queue of pods ─▶ how long may it stay? ─▶ mark, delete

A pod's time begins when the taint was first seen, or when the pod was bound if that was later. On a
foreign API server this loop is off: it has one of its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from phalanx.api.core import Node, Pod, Taint
from phalanx.api.kinds import NODE, POD
from phalanx.api.meta import Key, find_condition, parse_timestamp
from phalanx.client.client import Client
from phalanx.clock import Clock
from phalanx.controllers.event_recorder import ObjectEvent
from phalanx.controllers.nodes.pod_status import DISRUPTION_TARGET, disruption_patch, nodes_of
from phalanx.controllers.reconcile_loop import (
    Delete,
    Informers,
    ReconcileLoop,
    ReconcilePlan,
    RecordEvent,
)
from phalanx.scheduler.cluster.node_constraints import tolerates

NO_EXECUTE = "NoExecute"
_REASON = "DeletionByTaintManager"
_MESSAGE = "Taint manager: deleting due to NoExecute taint"
_WORKERS = 8


class TaintEviction:
    """Deletes pods from tainted nodes, each when its patience ends. `record` hears of it."""

    def __init__(
        self, client: Client, informers: Informers, clock: Clock,
        record: Callable[[ObjectEvent], None] = lambda note: None,
    ) -> None:  # fmt: skip
        self._clock = clock
        self._pods, nodes = informers.of(POD, Pod).cache, informers.of(NODE, Node).cache
        self._pods_by_node = self._pods.index(nodes_of)
        #: The NoExecute taints of each node that has any, and since when.
        self._taints: dict[str, Mapping[Taint, float]] = {}
        #: The pods, by uid, whose time is running out.
        self._scheduled_evictions: set[str] = set()
        self._loop: ReconcileLoop[Key] = ReconcileLoop(
            client, self.reconcile, _WORKERS, record=record
        )
        nodes.subscribe(self._on_node_changed)
        self._pods.subscribe(self._on_pod_changed)

    async def run(self) -> None:
        """Evict until cancelled."""
        await self._loop.run()

    def reconcile(self, key: Key) -> ReconcilePlan:
        """Delete a pod whose time is up, or come back then."""
        pod = self._pods.get(key)
        if pod is None or not pod.occupied_node or pod.metadata.deletion_timestamp:
            return ReconcilePlan()
        end, now = _deadline(pod, self._taints.get(pod.occupied_node, {})), self._clock.now()
        if end == math.inf:
            return self._cancel_eviction(pod)
        if end > now:
            self._scheduled_evictions.add(pod.metadata.uid)
            return ReconcilePlan(requeue_after=end - now)
        gone = Delete(POD, key, pod.metadata.uid)
        mark = find_condition(pod.status.conditions, DISRUPTION_TARGET)
        if mark is not None and mark.reason == _REASON:
            return ReconcilePlan([gone])
        told = _eviction_event(pod, f"Marking for deletion Pod {key}")
        return ReconcilePlan([told, disruption_patch(pod, _REASON, _MESSAGE, now), gone])

    def _cancel_eviction(self, pod: Pod) -> ReconcilePlan:
        """Tell of a pod that may stay after all."""
        if pod.metadata.uid not in self._scheduled_evictions:
            return ReconcilePlan()
        self._scheduled_evictions.discard(pod.metadata.uid)
        return ReconcilePlan(
            [_eviction_event(pod, f"Cancelling deletion of Pod {pod.metadata.key}")]
        )

    def _on_node_changed(self, old: Node | None, new: Node | None) -> None:
        node = new or old
        if node is None:
            return
        name, now = node.metadata.name, self._clock.now()
        before = self._taints.pop(name, {})
        found = [taint for taint in node.spec.taints if taint.effect == NO_EXECUTE]
        if new is not None and found:
            self._taints[name] = {taint: before.get(taint, now) for taint in found}
        if self._taints.get(name, {}) != before:
            for pod in self._pods_by_node[name]:
                self._loop.queue.add(pod.metadata.key)

    def _on_pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        if new is not None and self._taints:
            if new.spec.node_name in self._taints:
                self._loop.queue.add(new.metadata.key)
        elif new is None and old is not None:
            self._scheduled_evictions.discard(old.metadata.uid)


def _deadline(pod: Pod, taints: Mapping[Taint, float]) -> float:
    """Until when a pod may stay; it may be for ever, or until long ago."""
    return min(
        (_tolerated_until(pod, taint, since) for taint, since in taints.items()), default=math.inf
    )


def _tolerated_until(pod: Pod, taint: Taint, since: float) -> float:
    """Until when a pod tolerates one taint: of its tolerations for it the first counts."""
    for toleration in pod.spec.tolerations:
        if tolerates(toleration, taint):
            limit = toleration.toleration_seconds
            return math.inf if limit is None else max(since, _bound_at(pod)) + max(limit, 0)
    return -math.inf


def _bound_at(pod: Pod) -> float:
    bound = find_condition(pod.status.conditions, "PodScheduled")
    when = bound.last_transition_time if bound is not None and bound.status == "True" else None
    return parse_timestamp(when or pod.metadata.creation_timestamp)


def _eviction_event(pod: Pod, message: str) -> RecordEvent:
    return RecordEvent(ObjectEvent(POD, pod.metadata, "TaintManagerEviction", message))
