"""The room ledger: how much of each node is taken, kept true by every write of a pod.

A hidden record per node, compared and swapped in the transaction that binds, moves or ends a
pod, so that two schedulers can never give the same room away. Never the Node's own revision:
heartbeats would get in the way. Only GroupBinding refuses for want of room; a plain binding is
let through, as Kubernetes does, and counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import msgspec
import orjson

from phalanx.api.core import Pod
from phalanx.api.resources import Amounts, pod_requests
from phalanx.api.wire import Object
from phalanx.store.kv import Encode, Store, Write


class PodChange(NamedTuple):
    """A pod before and after a write; None where there is none."""

    before: Object | None
    after: Object | None


def charge(pod: Object | None) -> tuple[str, Amounts]:
    """The node whose room a pod takes, and how much; no node when it takes none."""
    if pod is None or not pod.get("spec", {}).get("nodeName"):
        return "", {}
    known = msgspec.convert(pod, Pod)
    return known.node, pod_requests(known) if known.node else {}


def taken(store: Store, node: str) -> Amounts:
    """What is taken of a node, with everything that is on its way to disk."""
    record = store.pending(_key(node))
    return orjson.loads(record.value) if record else {}


def entries(store: Store, changes: Iterable[PodChange]) -> list[Write]:
    """The writes that keep the ledger true when pods change so."""
    deltas: dict[str, Amounts] = {}
    for before, after in changes:
        old, new = charge(before), charge(after)
        if old != new:
            _count(deltas, *old, sign=-1)
            _count(deltas, *new, sign=1)
    return [_entry(store, node, delta) for node, delta in deltas.items() if any(delta.values())]


def _count(deltas: dict[str, Amounts], node: str, amounts: Mapping[str, int], sign: int) -> None:
    if node:
        delta = deltas.setdefault(node, {})
        for name, amount in amounts.items():
            delta[name] = delta.get(name, 0) + sign * amount


def _entry(store: Store, node: str, delta: Amounts) -> Write:
    record, total = store.pending(_key(node)), taken(store, node)
    for name, amount in delta.items():
        total[name] = total.get(name, 0) + amount
    left = {name: amount for name, amount in total.items() if amount}
    return Write(_key(node), _encoder(left) if left else None, record.revision if record else 0)


def _encoder(amounts: Amounts) -> Encode:
    return lambda revision: orjson.dumps(amounts)


def _key(node: str) -> str:
    return f"/phalanx.dev/ledger/{node}"
