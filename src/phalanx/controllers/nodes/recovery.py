"""Simulated nodes that were taken to be silent, and their pods: they say that they are well again.

Whoever watches over nodes marks those that it does not hear of, and what runs there; only a kubelet
takes that back. Ours is well whenever it runs. It answers no sooner than kubelets do, so that two
who disagree do not write without end.
"""

from __future__ import annotations

from collections.abc import Collection

from phalanx.api.core import Node, Pod
from phalanx.api.kinds import NODE, POD
from phalanx.api.meta import Key, condition, timestamp
from phalanx.api.wire import STRATEGIC_PATCH, Object
from phalanx.client.client import Client
from phalanx.clock import Clock
from phalanx.controllers.actions import Patch, Plan
from phalanx.controllers.loop import Informers, Loop, NodeClient
from phalanx.controllers.nodes.disruptedpods import nodes_of, status_patch
from phalanx.controllers.nodes.podreports import NOT_READY

#: Seconds between reports of a node.
REPORTING = 10.0
#: Type, status and reason of what a kubelet says of a node that is well.
_WELL = (
    ("Ready", "True", "KubeletReady"),
    ("MemoryPressure", "False", "KubeletHasSufficientMemory"),
    ("DiskPressure", "False", "KubeletHasNoDiskPressure"),
    ("PIDPressure", "False", "KubeletHasSufficientPID"),
)
_MESSAGE = "simulated kubelet is posting ready status"


class Recovery:
    """Reports for these nodes. Never says of one that it is not well."""

    def __init__(
        self, client: Client, informers: Informers, clock: Clock, names: Collection[str],
        of_node: NodeClient | None = None,
    ) -> None:  # fmt: skip
        self._clock, self._names = clock, names
        self._nodes, pods = informers.of(NODE, Node).cache, informers.of(POD, Pod)
        self._synced, self._on_node = pods.synced, pods.cache.index(nodes_of)
        self._loop: Loop[str] = Loop(client, self.reconcile, speaker=of_node)
        self._nodes.subscribe(self._changed)

    async def run(self) -> None:
        """Report until cancelled."""
        await self._synced.wait()
        await self._loop.run()

    def reconcile(self, name: str) -> Plan:
        """Say of a node that it is well, and when that stands, of its pods."""
        node = self._nodes.get(Key("", name))
        if node is None:
            return Plan()
        now = timestamp(self._clock.now())
        if not _is_ready(node):
            status = {"conditions": [_condition(*well, now) for well in _WELL]}
            change = {"metadata": {"uid": node.metadata.uid}, "status": status}
            return Plan([Patch(NODE, node.metadata.key, change, "status", STRATEGIC_PATCH)])
        ready = {"type": "Ready", "status": "True", "lastTransitionTime": now}
        doubted = [pod for pod in self._on_node[name] if _is_doubted(pod)]
        return Plan([status_patch(pod, {"conditions": [ready]}) for pod in doubted])

    def _changed(self, old: Node | None, new: Node | None) -> None:
        if new is None or new.metadata.name not in self._names:
            return
        if not _is_ready(new):
            self._loop.queue.add_after(new.metadata.name, REPORTING)
        elif old is None or not _is_ready(old):
            self._loop.queue.add(new.metadata.name)


def _is_ready(node: Node) -> bool:
    ready = condition(node.status.conditions, "Ready")
    return ready is not None and ready.status == "True"


def _is_doubted(pod: Pod) -> bool:
    """Whether a pod runs and is said not to be ready, by others than its kubelet."""
    ready = condition(pod.status.conditions, "Ready")
    runs = pod.status.phase == "Running" and not pod.metadata.deletion_timestamp
    is_off = ready is not None and ready.status == "False" and ready.reason != NOT_READY
    return runs and is_off


def _condition(kind: str, status: str, reason: str, now: str) -> Object:
    return {
        "type": kind, "status": status, "reason": reason, "message": _MESSAGE,
        "lastHeartbeatTime": now, "lastTransitionTime": now,
    }  # fmt: skip
