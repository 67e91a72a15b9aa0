"""PodShape: everything about a pod that filters and scores read.

Pods of equal shape are interchangeable, so the scheduler computes node scores once per shape. A
shape knows nothing of nodes; `RequestVector` is the same request in the columns of one snapshot:

    shape     requests (("cpu", 1000), ("memory", 2**30), ("pods", 1))
    columns   {"cpu": 0, "memory": 1, "pods": 2}
    vector    amounts ((0, 1000), (1, 2**30), (2, 1))
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import msgspec
from msgspec.structs import force_setattr

from phalanx.api.core import Pod, PodSpec
from phalanx.api.resources import canonical_quantity, nonzero_requests, requests_of_node
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
from phalanx.scheduler.devices.state import NO_DEMAND, ClaimDemand
from phalanx.scheduler.volumes.demand import NO_VOLUMES, VolumeDemand

#: An amount that no node has: 64Pi of memory. A hundred times as much still fits the arrays, which
#: scores need.
UNSATISFIABLE_AMOUNT = 1 << 56

#: Resources that are counted in bytes.
_BYTES = ("memory", "ephemeral-storage", "hugepages-")

_MEMO_LIMIT = 8192
_memo: dict[bytes, PodShape] = {}
_encode = msgspec.msgpack.Encoder().encode


class HostPort(NamedTuple):
    """A port of the node that a pod uses."""

    address: str
    protocol: str
    number: int

    def conflicts_with(self, other: HostPort) -> bool:
        """Whether two pods cannot have these ports on one node."""
        if (self.protocol, self.number) != (other.protocol, other.number):
            return False
        return self.address == other.address or ANY_ADDRESS in (self.address, other.address)


#: The address that conflicts with every address.
ANY_ADDRESS = "0.0.0.0"
HostPorts = tuple[HostPort, ...]


class RequestVector(NamedTuple):
    """The requests of a shape in the columns of one snapshot, for the inner loop."""

    amounts: tuple[tuple[int, int], ...]
    nonzero_cpu: int
    nonzero_memory: int
    #: Whether the shape requests a resource that no node of the snapshot has.
    has_unknown_resource: bool
    ports: HostPorts


class PodShape(msgspec.Struct, frozen=True, cache_hash=True):
    """The requests of a pod and its constraints on nodes and on other pods."""

    requests: tuple[tuple[str, int], ...]
    nonzero_requests: tuple[int, int]
    node_constraints: NodeConstraints = NO_NODE_CONSTRAINTS
    peer_constraints: PeerConstraints = NO_PEER_CONSTRAINTS
    ports: HostPorts = ()
    #: Whether the pod names resource claims.
    has_claims: bool = False
    #: What its claims require; set for one cycle by `placement/claim_placement.py`.
    claims: ClaimDemand = NO_DEMAND
    #: Whether the pod uses PersistentVolumeClaims.
    has_volumes: bool = False
    #: What these require; set for one cycle by `placement/claim_placement.py`.
    volumes: VolumeDemand = NO_VOLUMES
    #: Whether there are any peer constraints.
    has_peer_constraints: bool = False

    def __post_init__(self) -> None:
        force_setattr(self, "has_peer_constraints", bool(self.peer_constraints))

    def __str__(self) -> str:
        amounts = [format_amount(name, count) for name, count in self.requests if name != "pods"]
        return ", ".join(amounts) or "one pod"

    def request_vector(self, columns: Mapping[str, int]) -> RequestVector:
        """Translate the requests to the columns of a snapshot."""
        known = tuple((columns[name], n) for name, n in self.requests if name in columns)
        return RequestVector(
            known, *self.nonzero_requests, len(known) < len(self.requests), self.ports
        )


def shape_of(pod: Pod) -> PodShape:
    """Return the shape of a pod, memoized by the encoded fields that it is computed from.

    The members of a gang differ in little more than their names, so nearly every call is a hit.
    Equal pods do not always get the same object: the memo is cleared when it is full.
    """
    spec = pod.spec
    fields: tuple[object, ...] = (
        spec.containers,
        spec.init_containers,
        spec.resources,
        spec.overhead,
        spec.node_selector,
        spec.tolerations,
        spec.affinity,
        spec.topology_spread_constraints,
        # The claims of volumes are no part of the shape: members have one each.
        [volume.image for volume in spec.volumes if volume.image],
        _uses_claims(spec),
        spec.resource_claims,
    )
    if pod.status.container_statuses and (resized := pod.resized_containers):
        fields += ([(one.name, one.allocated_resources, one.resources) for one in resized],)
    if spec.affinity or spec.topology_spread_constraints:
        # Selectors of other pods may refer to the namespace and labels of this one.
        fields += (pod.metadata.namespace, sorted(pod.metadata.labels.items()))
    if pod.status.extended_resource_claim_status is not None:
        fields += (pod.status.extended_resource_claim_status,)
    text = _encode(fields)
    shape = _memo.get(text)
    if shape is None:
        if len(_memo) >= _MEMO_LIMIT:
            _memo.clear()
        shape = _memo[text] = _build_shape(pod)
    return shape


def _uses_claims(spec: PodSpec) -> bool:
    return any(one.persistent_volume_claim or one.ephemeral for one in spec.volumes)


def format_amount(name: str, count: int) -> str:
    """Format an amount of a resource as people write it: `cpu 1500m`, `memory 2Gi`."""
    if name == "cpu":
        return f"cpu {canonical_quantity(f'{count}m')}"
    if name.startswith(_BYTES) and count % 1024 == 0:
        return f"{name} {canonical_quantity(f'{count // 1024}Ki')}"
    return f"{name} {count}"


def _host_ports(pod: Pod) -> HostPorts:
    """Return the host ports of all containers that run as long as the pod does."""
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
    """Cap an amount at one that no node has, so that it fits the arrays and is still rejected."""
    return min(amount, UNSATISFIABLE_AMOUNT)


def _build_shape(pod: Pod) -> PodShape:
    nonzero = nonzero_requests(pod)
    return PodShape(
        requests=tuple(
            sorted((name, _cap_amount(count)) for name, count in requests_of_node(pod).items())
        ),
        nonzero_requests=(_cap_amount(nonzero["cpu"]), _cap_amount(nonzero["memory"])),
        node_constraints=node_constraints_of(pod),
        peer_constraints=peer_constraints_of(pod),
        ports=_host_ports(pod),
        has_claims=bool(pod.spec.resource_claims),
        has_volumes=_uses_claims(pod.spec),
    )
