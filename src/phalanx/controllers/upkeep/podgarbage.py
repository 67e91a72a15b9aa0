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
from phalanx.api.meta import Key, condition
from phalanx.client.client import Client
from phalanx.clock import Clock
from phalanx.controllers.actions import Action, Delete, Plan
from phalanx.controllers.loop import Informers, Loop, Thing
from phalanx.controllers.nodes.disruptedpods import disrupted, nodes_of, status_patch

OUT_OF_SERVICE = "node.kubernetes.io/out-of-service"
#: Seconds that a node may be missing before its pods are taken to be lost.
QUARANTINE = 40.0
#: Pods that have ended and are kept all the same.
KEPT = 12_500
#: Seconds that others have for the rest, so that nothing is forced that goes by itself.
PERIOD = 20.0
_WORKERS = 8


class PodGarbage:
    """Marks such pods as failed and deletes them. `kept` is how many of those stay that ended."""

    def __init__(
        self, client: Client, informers: Informers, clock: Clock, kept: int = KEPT
    ) -> None:
        self._client, self._clock, self._kept = client, clock, kept
        self._informers = informers.of(NODE, Node), informers.of(POD, Pod)
        self._nodes, self._pods = self._informers[0].cache, self._informers[1].cache
        self._on_node = self._pods.index(nodes_of)
        self._ended = 0
        #: Since when nodes have been missing on which pods are.
        self._missing: dict[str, float] = {}
        self._lost: Loop[str] = Loop(client, self.lose, _WORKERS, confirm=self._is_gone)
        self._stuck: Loop[Key] = Loop(client, self.release, _WORKERS)
        self._surplus: Loop[None] = Loop(client, lambda _: self.thin_out())
        self._nodes.subscribe(self._node_changed)
        self._pods.subscribe(self._pod_changed)

    async def run(self) -> None:
        """Clear away until cancelled."""
        # Nodes of which one has not heard yet would be missing.
        for informer in self._informers:
            await informer.synced.wait()
        async with asyncio.TaskGroup() as group:
            for loop in (self._lost, self._stuck, self._surplus):
                group.create_task(loop.run())

    def lose(self, node: str) -> Plan:
        """Give the pods of a node up that has been missing for long enough."""
        pods = self._on_node[node]
        if Key("", node) in self._nodes or not pods:
            self._missing.pop(node, None)
            return Plan()
        now = self._clock.now()
        left = self._missing.setdefault(node, now) + QUARANTINE - now
        if left > 0:
            return Plan(again=left)
        steps = [step for pod in pods if _is_left(pod) for step in _give_up(pod, now)]
        return Plan(steps, again=QUARANTINE)

    def release(self, key: Key) -> Plan:
        """Let a pod go that is being deleted and that no kubelet will take down."""
        pod = self._pods.get(key)
        if pod is None or not (self._is_stuck(pod) and _is_left(pod)):
            return Plan()
        return Plan(_force(pod))

    def thin_out(self) -> Plan:
        """Delete the oldest of the pods that have ended, beyond those that are kept."""
        pods = [pod.metadata for pod in self._pods.values() if pod.ended and _is_left(pod)]
        pods.sort(key=lambda meta: (meta.creation_timestamp, meta.name))
        surplus = pods[: max(0, len(pods) - self._kept)]
        return Plan([Delete(POD, meta.key, meta.uid, grace=0) for meta in surplus])

    async def _is_gone(self, node: str) -> bool:
        try:
            await self._client.get(NODE, Key("", node), Thing)
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
            self._lost.queue.add(old.metadata.name)
        elif new is not None:
            self._missing.pop(new.metadata.name, None)
            if _is_out_of_service(new):
                for pod in self._on_node[new.metadata.name]:
                    self._stuck.queue.add_after(pod.metadata.key, PERIOD)

    def _pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        if old is None or new is None or old.status.phase != new.status.phase:
            self._count(old, new)
        if new is None:
            return
        if self._is_stuck(new):
            self._stuck.queue.add_after(new.metadata.key, PERIOD)
        node = new.spec.node_name
        if node and (old is None or not old.spec.node_name) and Key("", node) not in self._nodes:
            self._lost.queue.add(node)

    def _count(self, old: Pod | None, new: Pod | None) -> None:
        self._ended += (new is not None and new.ended) - (old is not None and old.ended)
        if self._ended > self._kept:
            self._surplus.queue.add_after(None, PERIOD)


def _is_left(pod: Pod) -> bool:
    """Whether there is something to do still: whoever only waits for finalizers is left to them."""
    meta = pod.metadata
    is_going = bool(meta.deletion_timestamp) and not meta.deletion_grace_period_seconds
    return not (pod.ended and is_going and meta.finalizers)


def _is_out_of_service(node: Node) -> bool:
    ready = condition(node.status.conditions, "Ready")
    is_ready = ready is not None and ready.status == "True"
    return not is_ready and any(taint.key == OUT_OF_SERVICE for taint in node.spec.taints)


def _give_up(pod: Pod, now: float) -> list[Action]:
    """Say of a pod that was running that its node is no more, and delete it."""
    gone = Delete(POD, pod.metadata.key, pod.metadata.uid, grace=0)
    if pod.ended:
        return [gone]
    text = "PodGC: node no longer exists"
    return [disrupted(pod, "DeletionByPodGC", text, now, phase="Failed"), gone]


def _force(pod: Pod) -> list[Action]:
    gone = Delete(POD, pod.metadata.key, pod.metadata.uid, grace=0)
    return [gone] if pod.ended else [status_patch(pod, {"phase": "Failed"}), gone]
