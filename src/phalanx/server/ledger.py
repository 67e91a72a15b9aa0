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

from phalanx.api.core import ENDED, Pod, PodSpec
from phalanx.api.meta import Meta
from phalanx.api.packing import LONGEST, REMEMBERED, packed
from phalanx.api.resources import Amounts, pod_requests
from phalanx.api.wire import Object
from phalanx.store.kv import Encode, Store, Write


class Charge(NamedTuple):
    """The room that a pod takes of a node; of no node when it takes none."""

    node: str = ""
    amounts: Mapping[str, int] = {}


#: Where the store keeps it.
PREFIX = "/phalanx.dev/ledger/"
#: What a pod takes that is not bound, has ended, or is not there.
NOTHING = Charge()
#: The parts of a pod's spec in which it asks for room.
_ASKING = ("containers", "initContainers", "overhead", "resources")
#: Amounts add up beyond 64 bits, and exactly.
_decode = msgspec.json.Decoder(dict[str, int]).decode
_encode = msgspec.json.Encoder().encode


def charge(pod: Object | None) -> Charge:
    """What a pod takes, and where."""
    spec = pod.get("spec", {}) if pod else {}
    node = spec.get("nodeName")
    if pod is None or not node or pod.get("status", {}).get("phase") in ENDED:
        return NOTHING
    said = packed({part: spec[part] for part in _ASKING if part in spec})
    return Charge(node, _remembered(said) if len(said) <= LONGEST else _requests(said))


def _requests(said: bytes) -> Amounts:
    return pod_requests(Pod(Meta(), msgspec.json.decode(said, type=PodSpec)))


@lru_cache(maxsize=REMEMBERED)
def _remembered(said: bytes) -> Mapping[str, int]:
    """Members of a gang ask for the same in the same words; what these mean is found out once."""
    return MappingProxyType(_requests(said))


def taken(store: Store, node: str) -> Amounts:
    """What is taken of a node, with everything that is on its way to disk."""
    record = store.pending(_key(node))
    return _decode(record.value) if record else {}


def entries(store: Store, changes: Iterable[tuple[Charge, Charge]]) -> list[Write]:
    """The writes that keep the ledger true when what pods take changes from one to the other."""
    deltas: dict[str, Amounts] = {}
    for old, new in changes:
        if old != new:
            _count(deltas, old, -1)
            _count(deltas, new, 1)
    return [_entry(store, node, delta) for node, delta in deltas.items() if any(delta.values())]


def _count(deltas: dict[str, Amounts], taken: Charge, sign: int) -> None:
    if taken.node:
        delta = deltas.setdefault(taken.node, {})
        for name, amount in taken.amounts.items():
            delta[name] = delta.get(name, 0) + sign * amount


def _entry(store: Store, node: str, delta: Amounts) -> Write:
    record, total = store.pending(_key(node)), taken(store, node)
    for name, amount in delta.items():
        total[name] = total.get(name, 0) + amount
    left = {name: amount for name, amount in total.items() if amount}
    return Write(_key(node), _encoder(left) if left else None, record.revision if record else 0)


def _encoder(amounts: Amounts) -> Encode:
    return lambda revision: _encode(amounts)


def _key(node: str) -> str:
    return f"{PREFIX}{node}"
