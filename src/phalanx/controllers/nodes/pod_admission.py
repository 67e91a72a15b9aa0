"""Kubelet admission: whether a node accepts a pod that is bound to it.

A pod whose `nodeName` is set directly has passed no scheduler. So a kubelet checks every pod once,
before it starts, against the pods that the node has admitted before:

    bound ─▶ waiting ─▶ admitted   its requests and ports count until it is terminal or removed
                    └─▶ rejected   phase Failed, and a Warning event with the reason

The checks, their order, reasons and messages are those of Kubernetes: resources, node affinity,
host ports, NoExecute taints. Pods that arrive together are checked by age. The requests are those
of the scheduler (`PodShape`), so a pod that it bound passes unless the node has changed or another
pod was faster. The kubelet of Kubernetes evicts other pods for a critical pod; this one does not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from phalanx.api.core import Node, Pod
from phalanx.api.kinds import EVENT, POD
from phalanx.api.meta import Key
from phalanx.api.resources import node_allocatable
from phalanx.api.validation.resources import is_extended_resource
from phalanx.controllers.event_recorder import ObjectEvent, build_event
from phalanx.controllers.nodes.pod_status import rejected_status, status_patch
from phalanx.controllers.reconcile_loop import Action, Create, Informers, StaleCacheError
from phalanx.scheduler.cluster.pod_shape import HostPort, PodShape, shape_of

_COMPONENT = "kubelet"
#: Kubernetes checks these resources first, in this order; then we check the others by name.
_FIRST_RESOURCES = ("pods", "cpu", "memory", "ephemeral-storage")
_NO_EXECUTE = "NoExecute"


class Rejection(NamedTuple):
    """Why a node rejects a pod; the reason is that of the status and of the event."""

    reason: str
    message: str

    def actions(self, pod: Pod, now: str) -> list[Action]:
        """Return the actions that fail the pod and record the event, which may be lost."""
        status = rejected_status(self.reason, f"Pod was rejected: {self.message}")
        event = ObjectEvent(POD, pod.metadata, self.reason, message=self.message, type="Warning")
        # A pod is rejected once: with its uid in the name a retry creates no second event.
        created = build_event(event, _COMPONENT, pod.metadata.uid.partition("-")[0], at=now)
        return [status_patch(pod, status), Create(EVENT, created)]


@dataclass(slots=True)
class _NodeUsage:
    """The requests and host ports of the admitted pods of a node."""

    requested: Counter[str] = field(default_factory=Counter)
    ports: Counter[HostPort] = field(default_factory=Counter)

    def add(self, shape: PodShape) -> None:
        self.requested.update(dict(shape.requests))
        self.ports.update(shape.ports)

    def remove(self, shape: PodShape) -> None:
        self.requested.subtract(dict(shape.requests))
        if shape.ports:
            self.ports = self.ports - Counter(shape.ports)


class PodAdmission:
    """Admits pods to the nodes of these names; keeps the sums of each node."""

    def __init__(self, informers: Informers, names: Collection[str]) -> None:
        self._names, self._nodes = names, informers.of(Node).cache
        self._usage: dict[str, _NodeUsage] = {}
        #: Pods by node and key that wait for the first check, in the order of their arrival.
        self._waiting: dict[str, dict[Key, Pod]] = {}
        self._admitted: dict[Key, PodShape] = {}
        self._rejected: dict[Key, Rejection] = {}
        informers.of(Pod).cache.subscribe(self._on_pod_changed)

    def check(self, pod: Pod) -> Rejection | None:
        """Return why its node rejects a pod, if it does; the first answer stays.

        Raises StaleCacheError while the Node is not in the cache.
        """
        key, name = pod.metadata.key, pod.spec.node_name
        if key in self._waiting.get(name, ()):
            node = self._nodes.get(Key("", name))
            if node is None:
                raise StaleCacheError(f"node {name} is not in the cache")
            self._decide_in_order(self._waiting[name], node, key)
        return self._rejected.get(key)

    def _decide_in_order(self, waiting: dict[Key, Pod], node: Node, asked: Key) -> None:
        """Decide about the waiting pods of a node by age.

        A pod whose check raises keeps waiting: it must not start unchecked, nor delay the others.
        The exception is raised if the pod is `asked`.
        """
        pods = sorted(waiting.items(), key=lambda row: row[1].metadata.creation_timestamp or "")
        for key, pod in pods:
            try:
                self._decide(pod, node)
            except Exception:
                if key == asked:
                    raise
            else:
                del waiting[key]

    def _decide(self, pod: Pod, node: Node) -> None:
        shape, usage = shape_of(pod), self._usage.setdefault(node.metadata.name, _NodeUsage())
        rejection = next(_failed_checks(shape, usage, node), None)
        if rejection is None:
            self._admit(pod, shape)
        else:
            self._rejected[pod.metadata.key] = rejection

    def _admit(self, pod: Pod, shape: PodShape) -> None:
        self._admitted[pod.metadata.key] = shape
        self._usage.setdefault(pod.spec.node_name, _NodeUsage()).add(shape)

    def _on_pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        pod = new or old
        if pod is None or pod.spec.node_name not in self._names:
            return
        key, node = pod.metadata.key, pod.spec.node_name
        if new is None or new.is_terminal:
            self._waiting.get(node, {}).pop(key, None)
            self._rejected.pop(key, None)
            if (shape := self._admitted.pop(key, None)) is not None:
                self._usage[node].remove(shape)
        elif key in self._admitted or key in self._rejected:
            return
        elif new.status.phase == "Pending" and not new.status.start_time:
            self._waiting.setdefault(node, {})[key] = new
        else:
            # The pod was admitted before this process started.
            self._waiting.get(node, {}).pop(key, None)
            self._admit(new, shape_of(new))


def _failed_checks(shape: PodShape, usage: _NodeUsage, node: Node) -> Iterator[Rejection]:
    """Iterate over the checks that a pod of a shape fails, in the order of Kubernetes."""
    allocatable, requests = node_allocatable(node), dict(shape.requests)
    for name in dict.fromkeys((*_FIRST_RESOURCES, *requests)):
        amount, used, capacity = requests.get(name, 0), usage.requested[name], allocatable.get(name)
        if capacity is None and is_extended_resource(name):
            continue  # A resource of the cluster, which nodes do not know, as in Kubernetes.
        if amount and used + amount > (capacity or 0):
            numbers = f"requested: {amount}, used: {used}, capacity: {capacity or 0}"
            yield Rejection(f"OutOf{name}", f"Node didn't have enough resource: {name}, {numbers}")
    constraints, meta = shape.node_constraints, node.metadata
    if not constraints.matches(meta.name, meta.labels):
        yield _predicate("NodeAffinity", "node(s) didn't match Pod's node affinity/selector")
    if any(port.conflicts_with(other) for port in shape.ports for other in usage.ports):
        yield _predicate("NodePorts", "node(s) didn't have free ports for the requested pod ports")
    taints = [taint for taint in node.spec.taints if taint.effect == _NO_EXECUTE]
    if constraints.untolerated_taints(tuple(taints)):
        yield _predicate("TaintToleration", "node(s) had taints that the pod didn't tolerate")


def _predicate(name: str, reason: str) -> Rejection:
    return Rejection(name, f"Predicate {name} failed: {reason}")
