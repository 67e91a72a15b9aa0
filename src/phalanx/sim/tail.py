"""The end of the store's log, decoded: what the API shows, at the very moment that it shows it.

The exact sibling of `observer`: where that one listens as a client does, this one stands beside the
store, so that changes of different kinds keep their order and the room ledger, which no API shows,
is seen too. For judging only; nothing that acts ever looks here.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import orjson

from phalanx.api.budget import Budget
from phalanx.api.core import Node, Pod, Service
from phalanx.api.kinds import (
    COMPOSITE_POD_GROUP,
    NAMESPACE,
    NODE,
    POD,
    POD_DISRUPTION_BUDGET,
    POD_GROUP,
    SERVICE,
    Kind,
)
from phalanx.api.resources import Amounts
from phalanx.api.scheduling import CompositePodGroup, PodGroup
from phalanx.client.answers import Event
from phalanx.client.cache import Cache
from phalanx.controllers.loop import Thing
from phalanx.server.ledger import PREFIX
from phalanx.store.kv import Change, Reader


class Tail:
    """Follows a store from now on. Each function in `settled` is called after what was committed
    together, with the newest revision.
    """

    def __init__(self, store: Reader) -> None:
        self.pods: Cache[Pod] = Cache()
        self.nodes: Cache[Node] = Cache()
        self.groups: Cache[PodGroup] = Cache()
        self.composites: Cache[CompositePodGroup] = Cache()
        self.budgets: Cache[Budget] = Cache()
        self.namespaces: Cache[Thing] = Cache()
        self.services: Cache[Service] = Cache()
        #: What the server's ledger says is taken of each node.
        self.room: dict[str, Amounts] = {}
        #: All that ever happened to each kind, in order.
        self.log: dict[Kind, list[Event[Any]]] = {}
        self.settled: list[Callable[[int], None]] = []
        self._digest = hashlib.sha256()
        self._caches: Mapping[str, tuple[Kind, type[Any], Cache[Any]]] = {
            kind.prefix(): (kind, struct, cache)
            for kind, struct, cache in (
                (POD, Pod, self.pods), (NODE, Node, self.nodes),
                (POD_GROUP, PodGroup, self.groups), (NAMESPACE, Thing, self.namespaces),
                (SERVICE, Service, self.services), (POD_DISRUPTION_BUDGET, Budget, self.budgets),
                (COMPOSITE_POD_GROUP, CompositePodGroup, self.composites),
            )
        }  # fmt: skip
        self.log = {kind: [] for kind, _, _ in self._caches.values()}
        store.follow(self._take_in)

    @property
    def digest(self) -> str:
        """A hash over all that was ever written."""
        return self._digest.hexdigest()

    def _take_in(self, changes: Sequence[Change]) -> None:
        for change in changes:
            self._digest.update(b"%d %s " % (change.revision, change.key.encode()))
            self._digest.update(change.after.value if change.after else b"gone")
            prefix = "/".join(change.key.split("/", 3)[:3]) + "/"
            if prefix == PREFIX:
                self._book(change)
            elif prefix in self._caches:
                self._apply(change, *self._caches[prefix])
        for settled in self.settled:
            settled(changes[-1].revision)

    def _apply(self, change: Change, kind: Kind, struct: type[Any], cache: Cache[Any]) -> None:
        record = change.after or change.before
        assert record is not None
        name = "MODIFIED" if change.after else "DELETED"
        event = Event(name, msgspec.json.decode(record.value, type=struct), change.revision)
        self.log[kind].append(event)
        cache.apply(event)

    def _book(self, change: Change) -> None:
        node = change.key.removeprefix(PREFIX)
        self.room.pop(node, None)
        if change.after:
            self.room[node] = orjson.loads(change.after.value)
