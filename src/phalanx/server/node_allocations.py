"""The room ledger: how much of each node is taken, kept true by every write of a pod.

A hidden record per node, compared and swapped in the transaction that binds, moves or ends a
pod, so that two schedulers can never give the same room away. Never the Node's own revision:
heartbeats would get in the way. Only GroupBinding refuses for want of room; a plain binding is
let through, as Kubernetes does, and counted.
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
from phalanx.store.kv import Store, StoreWrite, ValueEncoder


class NodeAllocation(NamedTuple):
    """The room that a pod takes of a node; of no node when it takes none."""

    node: str = ""
    amounts: Mapping[str, int] = {}


#: Where the store keeps it.
ALLOCATION_PREFIX = "/phalanx.dev/ledger/"
#: What a pod takes that is not bound, has ended, or is not there.
NO_ALLOCATION = NodeAllocation()
#: The parts of a pod's spec in which it asks for room.
_RESOURCE_FIELDS = ("containers", "initContainers", "overhead", "resources")
#: Amounts add up beyond 64 bits, and exactly.
_decode = msgspec.json.Decoder(dict[str, int]).decode
_encode = msgspec.json.Encoder().encode


def pod_allocation(pod: Object | None) -> NodeAllocation:
    """What a pod takes, and where."""
    spec = pod.get("spec", {}) if pod else {}
    node = spec.get("nodeName")
    if pod is None or not node or pod.get("status", {}).get("phase") in TERMINAL_PHASES:
        return NO_ALLOCATION
    said = compact_json({part: spec[part] for part in _RESOURCE_FIELDS if part in spec})
    return NodeAllocation(
        node, _cached_requests(said) if len(said) <= MAX_CACHED_BYTES else _decode_requests(said)
    )


def _decode_requests(packed_spec: bytes) -> Amounts:
    return pod_requests(Pod(ObjectMeta(), msgspec.json.decode(packed_spec, type=PodSpec)))


@lru_cache(maxsize=CACHE_SIZE)
def _cached_requests(packed_spec: bytes) -> Mapping[str, int]:
    """Members of a gang ask for the same in the same words; what these mean is found out once."""
    return MappingProxyType(_decode_requests(packed_spec))


def allocated_amounts(store: Store, node: str) -> Amounts:
    """What is taken of a node, with everything that is on its way to disk."""
    record = store.pending(_allocation_key(node))
    return _decode(record.value) if record else {}


def allocation_writes(
    store: Store, changes: Iterable[tuple[NodeAllocation, NodeAllocation]]
) -> list[StoreWrite]:
    """The writes that keep the ledger true when what pods take changes from one to the other."""
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
    record, total = store.pending(_allocation_key(node)), allocated_amounts(store, node)
    for name, amount in delta.items():
        total[name] = total.get(name, 0) + amount
    left = {name: amount for name, amount in total.items() if amount}
    return StoreWrite(
        _allocation_key(node),
        _amounts_encoder(left) if left else None,
        record.revision if record else 0,
    )


def _amounts_encoder(amounts: Amounts) -> ValueEncoder:
    return lambda revision: _encode(amounts)


def _allocation_key(node: str) -> str:
    return f"{ALLOCATION_PREFIX}{node}"
