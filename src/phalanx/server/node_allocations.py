"""Allocated resources of each node, updated by every write of a pod.

One hidden record per node holds the sum of the requests of its pods. It is compared and swapped in
the transaction that binds, moves, finishes or removes a pod, so that two schedulers never allocate
the same resources. The record is separate from the Node, whose revision changes with heartbeats.
Only a GroupBinding is refused for insufficient resources; a plain Binding is accepted and counted,
as in Kubernetes.

    /phalanx.dev/ledger/node-1   {"cpu": 4000, "memory": 8589934592, "pods": 2}
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import NamedTuple

import msgspec

from phalanx.api.core import TERMINAL_PHASES, Pod, PodSpec
from phalanx.api.json_cache import CACHE_SIZE, MAX_CACHED_BYTES, compact_json
from phalanx.api.meta import ObjectMeta
from phalanx.api.resources import Amounts, pod_requests
from phalanx.api.wire import Object
from phalanx.store.kv import Store, StoreWrite


class NodeAllocation(NamedTuple):
    """The resources that a pod takes of a node; the node is "" if it takes none."""

    node: str = ""
    amounts: Mapping[str, int] = {}


#: Store prefix of the records.
ALLOCATION_PREFIX = "/phalanx.dev/ledger/"
#: The allocation of a pod that is not bound, has finished, or does not exist.
NO_ALLOCATION = NodeAllocation()
#: The fields of a pod spec that decide its requests.
_RESOURCE_FIELDS = ("containers", "initContainers", "overhead", "resources")
#: Decodes integers of any size: sums may exceed 64 bits.
_decode = msgspec.json.Decoder(dict[str, int]).decode
_encode = msgspec.json.Encoder().encode


def pod_allocation(pod: Object | None) -> NodeAllocation:
    """The resources that a pod takes, and its node."""
    spec = pod.get("spec", {}) if pod else {}
    node = spec.get("nodeName")
    if pod is None or not node or pod.get("status", {}).get("phase") in TERMINAL_PHASES:
        return NO_ALLOCATION
    packed = compact_json({field: spec[field] for field in _RESOURCE_FIELDS if field in spec})
    is_small = len(packed) <= MAX_CACHED_BYTES
    return NodeAllocation(node, (_decode_requests_cached if is_small else _decode_requests)(packed))


def _decode_requests(packed_spec: bytes) -> Amounts:
    return pod_requests(Pod(ObjectMeta(), msgspec.json.decode(packed_spec, type=PodSpec)))


@lru_cache(maxsize=CACHE_SIZE)
def _decode_requests_cached(packed_spec: bytes) -> Mapping[str, int]:
    """Members of a gang have equal specs: their requests are computed once."""
    return MappingProxyType(_decode_requests(packed_spec))


def get_allocated_amounts(store: Store, node: str) -> Amounts:
    """The allocated resources of a node, including uncommitted writes."""
    record = store.pending(_allocation_key(node))
    return _decode(record.value) if record else {}


def allocation_writes(
    store: Store, changes: Iterable[tuple[NodeAllocation, NodeAllocation]]
) -> list[StoreWrite]:
    """The writes that update the records when pods change their (old, new) allocations."""
    deltas: dict[str, Amounts] = {}
    for old, new in changes:
        if old != new:
            _add_delta(deltas, old, -1)
            _add_delta(deltas, new, 1)
    return [
        _allocation_write(store, node, delta)
        for node, delta in deltas.items()
        if any(delta.values())
    ]


def _add_delta(deltas: dict[str, Amounts], allocation: NodeAllocation, sign: int) -> None:
    if allocation.node:
        delta = deltas.setdefault(allocation.node, {})
        for name, amount in allocation.amounts.items():
            delta[name] = delta.get(name, 0) + sign * amount


def _allocation_write(store: Store, node: str, delta: Amounts) -> StoreWrite:
    record, total = store.pending(_allocation_key(node)), get_allocated_amounts(store, node)
    for name, amount in delta.items():
        total[name] = total.get(name, 0) + amount
    amounts = {name: amount for name, amount in total.items() if amount}
    encode = (lambda revision: _encode(amounts)) if amounts else None
    return StoreWrite(_allocation_key(node), encode, record.revision if record else 0)


def _allocation_key(node: str) -> str:
    return f"{ALLOCATION_PREFIX}{node}"
