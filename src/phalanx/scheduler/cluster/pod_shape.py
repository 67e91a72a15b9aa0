"""What pods may ask for that this scheduler does not give yet.

Such a pod is refused with a reason and never placed as if it had not asked. A row goes when the
feature comes.

Shape: everything about a pod that filters and scores read.

Pods of equal shape are interchangeable and are placed as a class: one `View` serves them all.
A shape knows nothing of nodes; `Ask` is what it asks for in the columns of one snapshot.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import msgspec
from msgspec.structs import force_setattr

from phalanx.api.core import Pod, PodSpec
from phalanx.api.quantity import canonical_quantity
from phalanx.api.resources import nonzero_requests, pod_requests
from phalanx.scheduler.cluster.node_constraints import (
    NO_NODE_CONSTRAINTS,
    NodeConstraints,
    node_constraints_of,
)
from phalanx.scheduler.cluster.peer_constraints import (
    NO_PEER_CONSTRAINTS,
    PeerConstraints,
    peer_constraints_of,
)
from phalanx.scheduler.cluster.snapshot import (
    ANY_ADDRESS,
    UNSATISFIABLE_AMOUNT,
    HostPort,
    HostPorts,
)


class UnsupportedFeature(NamedTuple):
    """Whether a pod asks for it, and how it is called."""

    is_used: Callable[[PodSpec], bool]
    name: str


def _uses_volume_claims(spec: PodSpec) -> bool:
    return any(v.persistent_volume_claim or v.ephemeral for v in spec.volumes)


UNSUPPORTED_FEATURES = (
    UnsupportedFeature(_uses_volume_claims, "volume claims"),
    UnsupportedFeature(lambda spec: bool(spec.resource_claims), "resource claims"),
)


def find_unsupported_feature(spec: PodSpec) -> str:
    """The first thing that a pod asks for and does not get, or nothing."""
    return next((row.name for row in UNSUPPORTED_FEATURES if row.is_used(spec)), "")


#: Resources that are counted in bytes.
_BYTES = ("memory", "ephemeral-storage", "hugepages-")

_MEMO_LIMIT = 8192
_memo: dict[bytes, PodShape] = {}
_encode = msgspec.msgpack.Encoder().encode


class RequestVector(NamedTuple):
    """A shape in the columns of one snapshot: what the inner loop adds and compares."""

    amounts: tuple[tuple[int, int], ...]
    nonzero_cpu: int
    nonzero_memory: int
    #: Whether it names a resource that no node of the snapshot has.
    has_unknown_resource: bool
    ports: HostPorts


class PodShape(msgspec.Struct, frozen=True, cache_hash=True):
    """What a pod takes, and what it asks of nodes and of other pods."""

    requests: tuple[tuple[str, int], ...]
    nonzero_requests: tuple[int, int]
    node_constraints: NodeConstraints = NO_NODE_CONSTRAINTS
    peer_constraints: PeerConstraints = NO_PEER_CONSTRAINTS
    ports: HostPorts = ()
    #: What it asks for and does not get yet ("" for nothing): such a pod is refused outright.
    unsupported: str = ""
    #: Whether it asks anything of other pods.
    has_peer_constraints: bool = False

    def __post_init__(self) -> None:
        force_setattr(self, "has_peer_constraints", bool(self.peer_constraints))

    def __str__(self) -> str:
        stated = [format_amount(name, count) for name, count in self.requests if name != "pods"]
        return ", ".join(stated) or "one pod"

    def request_vector(self, columns: Mapping[str, int]) -> RequestVector:
        """The same in the columns of a snapshot."""
        known = tuple((columns[name], n) for name, n in self.requests if name in columns)
        return RequestVector(
            known, *self.nonzero_requests, len(known) < len(self.requests), self.ports
        )


def shape_of(pod: Pod) -> PodShape:
    """The shape of a pod, remembered by the text of what it is made from.

    The members of a gang differ in little more than their names, so nearly every call finds the
    answer of an earlier one; nobody may rely on getting the same object.
    """
    text = _encode(_spec_key(pod.spec) + _peer_key(pod))
    shape = _memo.get(text)
    if shape is None:
        if len(_memo) >= _MEMO_LIMIT:
            _memo.clear()
        shape = _memo[text] = _build_shape(pod)
    return shape


def format_amount(name: str, count: int) -> str:
    """An amount of a resource as people write it: `cpu 1500m`, `memory 2Gi`."""
    if name == "cpu":
        return f"cpu {canonical_quantity(f'{count}m')}"
    if name.startswith(_BYTES) and count % 1024 == 0:
        return f"{name} {canonical_quantity(f'{count // 1024}Ki')}"
    return f"{name} {count}"


def _spec_key(spec: PodSpec) -> tuple[object, ...]:
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


def _peer_key(pod: Pod) -> tuple[object, ...]:
    """What its wishes about other pods take from the pod itself."""
    spec = pod.spec
    if not (spec.affinity or spec.topology_spread_constraints):
        return ()
    return pod.metadata.namespace, sorted(pod.metadata.labels.items())


def _host_ports(pod: Pod) -> HostPorts:
    """The ports of the node that it takes as long as it runs."""
    spec = pod.spec
    sidecars = [one for one in spec.init_containers if one.restart_policy == "Always"]
    found = {
        HostPort(port.host_ip or ANY_ADDRESS, port.protocol, port.host_port): None
        for container in (*sidecars, *spec.containers)
        for port in container.ports
        if port.host_port
    }
    return tuple(sorted(found))


def _cap_amount(amount: int) -> int:
    """Of more than any node has, as much as none has: it is refused all the same."""
    return min(amount, UNSATISFIABLE_AMOUNT)


def _build_shape(pod: Pod) -> PodShape:
    scored = nonzero_requests(pod)
    return PodShape(
        requests=tuple(
            sorted((name, _cap_amount(count)) for name, count in pod_requests(pod).items())
        ),
        nonzero_requests=(_cap_amount(scored["cpu"]), _cap_amount(scored["memory"])),
        node_constraints=node_constraints_of(pod),
        peer_constraints=peer_constraints_of(pod),
        ports=_host_ports(pod),
        unsupported=find_unsupported_feature(pod.spec),
    )
