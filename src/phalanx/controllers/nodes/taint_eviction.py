"""The taint eviction controller: deletes pods that do not tolerate NoExecute taints of their node.

    nodes, pods ─▶ queue of pods ─▶ deadline ─▶ DisruptionTarget condition, delete

A toleration with `tolerationSeconds` counts from the time at which the taint was first seen, or at
which the pod was bound if that was later. Off by default on a foreign API server, which has such a
controller.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from phalanx import logs
from phalanx.api.core import Node, Pod, Taint
from phalanx.api.kinds import POD
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

LOG = logs.component("taint-eviction-controller")

NO_EXECUTE = "NoExecute"
_REASON = "DeletionByTaintManager"
_MESSAGE = "Taint manager: deleting due to NoExecute taint"
_WORKERS = 8


class TaintEviction:
    """Deletes pods from tainted nodes when their toleration ends; `record` receives the events."""

    def __init__(
        self,
        client: Client,
        informers: Informers,
        clock: Clock,
        *,
        record: Callable[[ObjectEvent], None] = lambda event: None,
    ) -> None:
        self._clock = clock
        self._pods, nodes = informers.of(Pod).cache, informers.of(Node).cache
        self._pods_by_node = self._pods.index(nodes_of)
        #: The NoExecute taints of each node that has any, and when each was first seen.
        self._taints: dict[str, Mapping[Taint, float]] = {}
        #: The uids of pods that will be deleted unless the taint goes.
        self._scheduled_evictions: set[str] = set()
        self._loop: ReconcileLoop[Key] = ReconcileLoop(
            client, self.reconcile, _WORKERS, record=record
        )
        nodes.subscribe(self._on_node_changed)
        self._pods.subscribe(self._on_pod_changed)

    async def run(self) -> None:
        """Evict pods until cancelled."""
        await self._loop.run()

    def reconcile(self, key: Key) -> ReconcilePlan:
        """Delete a pod whose deadline has passed; otherwise reconcile again at the deadline."""
        pod = self._pods.get(key)
        if pod is None or not pod.occupied_node or pod.metadata.deletion_timestamp:
            return ReconcilePlan()
        taints, now = self._taints.get(pod.occupied_node, {}), self._clock.now()
        deadline = min(
            (_tolerated_until(pod, taint, since) for taint, since in taints.items()),
            default=math.inf,
        )
        if deadline == math.inf:
            return self._cancel_eviction(pod)
        if deadline > now:
            self._scheduled_evictions.add(pod.metadata.uid)
            return ReconcilePlan(requeue_after=deadline - now)
        delete = Delete(POD, key, pod.metadata.uid)
        marked = find_condition(pod.status.conditions, DISRUPTION_TARGET)
        if marked is not None and marked.reason == _REASON:
            return ReconcilePlan([delete])
        LOG.info("evicting pod from tainted node", kind="Pod", key=key, node=pod.occupied_node)
        event = _eviction_event(pod, f"Marking for deletion Pod {key}")
        return ReconcilePlan([event, disruption_patch(pod, _REASON, _MESSAGE, now=now), delete])

    def _cancel_eviction(self, pod: Pod) -> ReconcilePlan:
        """Record an event if the deletion of a pod had been scheduled."""
        if pod.metadata.uid not in self._scheduled_evictions:
            return ReconcilePlan()
        self._scheduled_evictions.discard(pod.metadata.uid)
        LOG.debug("eviction cancelled", kind="Pod", key=pod.metadata.key)
        return ReconcilePlan(
            [_eviction_event(pod, f"Cancelling deletion of Pod {pod.metadata.key}")]
        )

    def _on_node_changed(self, old: Node | None, new: Node | None) -> None:
        node = new or old
        if node is None:
            return
        name, now = node.metadata.name, self._clock.now()
        before = self._taints.pop(name, {})
        taints = [taint for taint in node.spec.taints if taint.effect == NO_EXECUTE]
        if new is not None and taints:
            self._taints[name] = {taint: before.get(taint, now) for taint in taints}
        if self._taints.get(name, {}) != before:
            for pod in self._pods_by_node[name]:
                self._loop.queue.add(pod.metadata.key)

    def _on_pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        if new is not None and self._taints:
            if new.spec.node_name in self._taints:
                self._loop.queue.add(new.metadata.key)
        elif new is None and old is not None:
            self._scheduled_evictions.discard(old.metadata.uid)


def _tolerated_until(pod: Pod, taint: Taint, since: float) -> float:
    """Return until when a pod tolerates a taint: the first matching toleration counts."""
    for toleration in pod.spec.tolerations:
        if tolerates(toleration, taint):
            limit = toleration.toleration_seconds
            if limit is None:
                return math.inf
            scheduled = find_condition(pod.status.conditions, "PodScheduled")
            at = (
                scheduled.last_transition_time if scheduled and scheduled.status == "True" else None
            )
            bound = parse_timestamp(at or pod.metadata.creation_timestamp)
            return max(since, bound) + max(limit, 0)
    return -math.inf


def _eviction_event(pod: Pod, message: str) -> RecordEvent:
    return RecordEvent(ObjectEvent(POD, pod.metadata, "TaintManagerEviction", message=message))
