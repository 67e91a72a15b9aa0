"""The end of the store's log, decoded: what the API shows, at the very moment that it shows it.

The exact sibling of `observer`: where that one listens as a client does, this one stands beside the
store, so that changes of different kinds keep their order and the room ledger, which no API shows,
is seen too. For judging only; nothing that acts ever looks here.

What a scheduler must believe: all that the API showed up to the revisions that it has seen.

Made from the store's log and the revisions of the scheduler's informers, never from what they hold,
so that whatever is lost between the watch and the snapshot comes to light. `instance` adds what the
scheduler has decided and not yet seen come true.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import msgspec
import orjson
from msgspec.structs import replace

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
from phalanx.api.meta import Key
from phalanx.api.policy import PodDisruptionBudget
from phalanx.api.resources import Amounts
from phalanx.api.scheduling import CompositePodGroup, PodGroup
from phalanx.client.cache import ObjectCache
from phalanx.client.protocol import WatchEvent
from phalanx.controllers.reconcile_loop import Informers, PartialObjectMetadata
from phalanx.scheduler.queue.cluster_objects import ClusterObjects
from phalanx.server.node_allocations import ALLOCATION_PREFIX
from phalanx.store.kv import StoreChange, StoreReader


class StoreLogReader:
    """Follows a store from now on. Each function in `settled` is called after what was committed
    together, with the newest revision.
    """

    def __init__(self, store: StoreReader) -> None:
        self.pods: ObjectCache[Pod] = ObjectCache()
        self.nodes: ObjectCache[Node] = ObjectCache()
        self.groups: ObjectCache[PodGroup] = ObjectCache()
        self.composites: ObjectCache[CompositePodGroup] = ObjectCache()
        self.budgets: ObjectCache[PodDisruptionBudget] = ObjectCache()
        self.namespaces: ObjectCache[PartialObjectMetadata] = ObjectCache()
        self.services: ObjectCache[Service] = ObjectCache()
        #: What the server's ledger says is taken of each node.
        self.ledger: dict[str, Amounts] = {}
        #: All that ever happened to each kind, in order.
        self.log: dict[Kind, list[WatchEvent[Any]]] = {}
        self.on_batch: list[Callable[[int], None]] = []
        self._digest = hashlib.sha256()
        self._caches: Mapping[str, tuple[Kind, type[Any], ObjectCache[Any]]] = {
            kind.store_prefix(): (kind, struct, cache)
            for kind, struct, cache in (
                (POD, Pod, self.pods),
                (NODE, Node, self.nodes),
                (POD_GROUP, PodGroup, self.groups),
                (NAMESPACE, PartialObjectMetadata, self.namespaces),
                (SERVICE, Service, self.services),
                (POD_DISRUPTION_BUDGET, PodDisruptionBudget, self.budgets),
                (COMPOSITE_POD_GROUP, CompositePodGroup, self.composites),
            )
        }
        self.log = {kind: [] for kind, _, _ in self._caches.values()}
        store.subscribe(self._apply_changes)

    @property
    def digest(self) -> str:
        """A hash over all that was ever written."""
        return self._digest.hexdigest()

    def _apply_changes(self, changes: Sequence[StoreChange]) -> None:
        for change in changes:
            self._digest.update(b"%d %s " % (change.revision, change.key.encode()))
            self._digest.update(change.after.value if change.after else b"gone")
            prefix = "/".join(change.key.split("/", 3)[:3]) + "/"
            if prefix == ALLOCATION_PREFIX:
                self._update_ledger(change)
            elif prefix in self._caches:
                self._apply(change, *self._caches[prefix])
        for settled in self.on_batch:
            settled(changes[-1].revision)

    def _apply(
        self, change: StoreChange, kind: Kind, struct: type[Any], cache: ObjectCache[Any]
    ) -> None:
        record = change.after or change.before
        assert record is not None
        name = "MODIFIED" if change.after else "DELETED"
        event = WatchEvent(name, msgspec.json.decode(record.value, type=struct), change.revision)
        self.log[kind].append(event)
        cache.apply(event)

    def _update_ledger(self, change: StoreChange) -> None:
        node = change.key.removeprefix(ALLOCATION_PREFIX)
        self.ledger.pop(node, None)
        if change.after:
            self.ledger[node] = orjson.loads(change.after.value)


_STRUCT_BY_KIND: Mapping[Kind, type[Any]] = {
    POD: Pod, NODE: Node, POD_GROUP: PodGroup, NAMESPACE: PartialObjectMetadata, SERVICE: Service,
    COMPOSITE_POD_GROUP: CompositePodGroup, POD_DISRUPTION_BUDGET: PodDisruptionBudget,
}  # fmt: skip


_NO_PODS: Mapping[Key, str] = {}


class _KindModel:
    """One kind: the log, how far of it was seen, and what that amounts to."""

    def __init__(self, log: list[WatchEvent[Any]]) -> None:
        self.objects: dict[Key, Any] = {}
        self._log, self._position = log, 0

    def catch_up(self, revision: int) -> None:
        log = self._log
        while self._position < len(log) and log[self._position].revision <= revision:
            event = log[self._position]
            key = event.object.metadata.key
            if event.type == "DELETED":
                self.objects.pop(key, None)
            else:
                self.objects[key] = event.object
            self._position += 1


class ExpectedView:
    """Follows one scheduler through its informers."""

    def __init__(self, store_log: StoreLogReader, informers: Informers) -> None:
        self._kinds = {kind: _KindModel(store_log.log[kind]) for kind in _STRUCT_BY_KIND}
        self._informers = informers

    @property
    def pods(self) -> Mapping[Key, Pod]:
        """The pods that it has seen."""
        return self._kinds[POD].objects

    def catch_up(self) -> None:
        """See what the scheduler has seen since."""
        for kind, part in self._kinds.items():
            part.catch_up(self._informers.of(kind, _STRUCT_BY_KIND[kind]).cache.revision)

    def cluster(
        self, assumed: Mapping[Key, str], nominated: Mapping[Key, str] = _NO_PODS,
        evicting: Collection[str] = (),
    ) -> ClusterObjects:  # fmt: skip
        """The cluster as it must believe it to be: some pods are as good as bound, have been
        promised a node, or are to be evicted.
        """
        spaces = self._kinds[NAMESPACE].objects
        pods = dict(self.pods)
        for key in assumed.keys() & pods.keys():
            pods[key] = _with_node(pods[key], assumed[key])
        for key in nominated.keys() & pods.keys():
            pods[key] = _with_nomination(pods[key], nominated[key])
        return ClusterObjects(
            nodes=list(self._kinds[NODE].objects.values()),
            groups=[
                *self._kinds[POD_GROUP].objects.values(),
                *self._kinds[COMPOSITE_POD_GROUP].objects.values(),
            ],
            pods=list(pods.values()),
            services=list(self._kinds[SERVICE].objects.values()),
            namespaces={key.name: space.metadata.labels for key, space in spaces.items()},
            budgets=list(self._kinds[POD_DISRUPTION_BUDGET].objects.values()),
            evicting=evicting,
        )


def _with_node(pod: Pod, node: str) -> Pod:
    return replace(pod, spec=replace(pod.spec, node_name=node))


def _with_nomination(pod: Pod, node: str) -> Pod:
    return replace(pod, status=replace(pod.status, nominated_node_name=node))
