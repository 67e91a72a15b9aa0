"""Shape: everything about a pod that filters and scores read.

Pods of equal shape are interchangeable and are placed as a class: one `View` serves them all.
A shape knows nothing of nodes; `Ask` is what it asks for in the columns of one snapshot.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import msgspec
from msgspec.structs import force_setattr

from phalanx.api.core import Pod, PodSpec
from phalanx.api.quantity import canonical
from phalanx.api.resources import pod_requests, scored_requests
from phalanx.scheduler.cluster.peers import NOBODY, Peers, peers_of
from phalanx.scheduler.cluster.snapshot import EVERYWHERE, TOO_MUCH, Port, Ports
from phalanx.scheduler.cluster.unsupported import unsupported
from phalanx.scheduler.cluster.wishes import NO_WISHES, Wishes, wishes_of

#: Resources that are counted in bytes.
_BYTES = ("memory", "ephemeral-storage", "hugepages-")

_MEMO_LIMIT = 8192
_memo: dict[bytes, Shape] = {}
_encode = msgspec.msgpack.Encoder().encode


class Ask(NamedTuple):
    """A shape in the columns of one snapshot: what the inner loop adds and compares."""

    amounts: tuple[tuple[int, int], ...]
    scored_cpu: int
    scored_memory: int
    #: Whether it names a resource that no node of the snapshot has.
    unknown: bool
    ports: Ports


class Shape(msgspec.Struct, frozen=True, cache_hash=True):
    """What a pod takes, and what it asks of nodes and of other pods."""

    requests: tuple[tuple[str, int], ...]
    scored: tuple[int, int]
    wishes: Wishes = NO_WISHES
    peers: Peers = NOBODY
    ports: Ports = ()
    #: What it asks for and does not get yet ("" for nothing): such a pod is refused outright.
    unsupported: str = ""
    #: Whether it asks anything of other pods.
    minds_others: bool = False

    def __post_init__(self) -> None:
        force_setattr(self, "minds_others", bool(self.peers))

    def __str__(self) -> str:
        stated = [spell(name, count) for name, count in self.requests if name != "pods"]
        return ", ".join(stated) or "one pod"

    def ask(self, columns: Mapping[str, int]) -> Ask:
        """The same in the columns of a snapshot."""
        known = tuple((columns[name], n) for name, n in self.requests if name in columns)
        return Ask(known, *self.scored, len(known) < len(self.requests), self.ports)


def shape_of(pod: Pod) -> Shape:
    """The shape of a pod, remembered by the text of what it is made from.

    The members of a gang differ in little more than their names, so nearly every call finds the
    answer of an earlier one; nobody may rely on getting the same object.
    """
    text = _encode(_parts(pod.spec) + _company(pod))
    shape = _memo.get(text)
    if shape is None:
        if len(_memo) >= _MEMO_LIMIT:
            _memo.clear()
        shape = _memo[text] = _make(pod)
    return shape


def spell(name: str, count: int) -> str:
    """An amount of a resource as people write it: `cpu 1500m`, `memory 2Gi`."""
    if name == "cpu":
        return f"cpu {canonical(f'{count}m')}"
    if name.startswith(_BYTES) and count % 1024 == 0:
        return f"{name} {canonical(f'{count // 1024}Ki')}"
    return f"{name} {count}"


def _parts(spec: PodSpec) -> tuple[object, ...]:
    return (
        spec.containers,
        spec.init_containers,
        spec.resources,
        spec.overhead,
        spec.node_selector,
        spec.tolerations,
        spec.affinity,
        spec.topology_spread_constraints,
        spec.volumes,
        spec.resource_claims,
    )


def _company(pod: Pod) -> tuple[object, ...]:
    """What its wishes about other pods take from the pod itself."""
    spec = pod.spec
    if not (spec.affinity or spec.topology_spread_constraints):
        return ()
    return pod.metadata.namespace, sorted(pod.metadata.labels.items())


def _ports(pod: Pod) -> Ports:
    """The ports of the node that it takes as long as it runs."""
    spec = pod.spec
    sidecars = [one for one in spec.init_containers if one.restart_policy == "Always"]
    found = {
        Port(port.host_ip or EVERYWHERE, port.protocol, port.host_port): None
        for container in (*sidecars, *spec.containers)
        for port in container.ports
        if port.host_port
    }
    return tuple(sorted(found))


def _sane(amount: int) -> int:
    """Of more than any node has, as much as none has: it is refused all the same."""
    return min(amount, TOO_MUCH)


def _make(pod: Pod) -> Shape:
    scored = scored_requests(pod)
    return Shape(
        requests=tuple(sorted((name, _sane(count)) for name, count in pod_requests(pod).items())),
        scored=(_sane(scored["cpu"]), _sane(scored["memory"])),
        wishes=wishes_of(pod),
        peers=peers_of(pod),
        ports=_ports(pod),
        unsupported=unsupported(pod.spec),
    )
