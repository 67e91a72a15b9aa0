"""The reference model of a fault run, read from the store's log.

`StoreLogReader` decodes the log at the moment of each commit. Unlike `sim/timeline.py`, which
watches as a client, it keeps the order of changes of different kinds and also sees the node
allocations, which no API shows.

`ExpectedView` is what a scheduler must know: everything that the API showed up to the revisions
that its informers have seen. It is computed from the log, never from the informers, so that
anything lost between watch and snapshot is detected. `SchedulerInstance` adds what the scheduler
has decided and not yet observed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import msgspec
import orjson
from msgspec.structs import replace

from phalanx.api.core import Namespace, Node, Pod, Service
from phalanx.api.kinds import (
    COMPOSITE_POD_GROUP,
    NAMESPACE,
    NODE,
    PERSISTENT_VOLUME,
    PERSISTENT_VOLUME_CLAIM,
    POD,
    POD_DISRUPTION_BUDGET,
    POD_GROUP,
    RESOURCE_CLAIM,
    SERVICE,
    Kind,
)
from phalanx.api.meta import Key
from phalanx.api.other_kinds import DeviceClaim, PodDisruptionBudget
from phalanx.api.resources import Amounts
from phalanx.api.scheduling import CompositePodGroup, PodGroup
from phalanx.api.scheme import DEVICE_KINDS, VOLUME_KINDS, struct_of
from phalanx.api.storage import PersistentVolume, PersistentVolumeClaim
from phalanx.client.cache import ObjectCache
from phalanx.client.protocol import WatchEvent
from phalanx.controllers.reconcile_loop import Informers
from phalanx.scheduler.queue.scheduler_state import ClusterObjects
from phalanx.server.binding import ALLOCATION_PREFIX
from phalanx.store.kv import StoreChange, StoreReader


class StoreLogReader:
    """Follows a store from now on.

    Each function in `on_batch` is called after each batch of commits, with its newest revision.
    """

    def __init__(self, store: StoreReader) -> None:
        self.pods: ObjectCache[Pod] = ObjectCache()
        self.nodes: ObjectCache[Node] = ObjectCache()
        self.groups: ObjectCache[PodGroup] = ObjectCache()
        self.composites: ObjectCache[CompositePodGroup] = ObjectCache()
        self.budgets: ObjectCache[PodDisruptionBudget] = ObjectCache()
        self.namespaces: ObjectCache[Namespace] = ObjectCache()
        self.services: ObjectCache[Service] = ObjectCache()
        #: The objects of volumes and devices.
        self.claimable: dict[Kind, ObjectCache[Any]] = {
            kind: ObjectCache() for kind in (*DEVICE_KINDS, *VOLUME_KINDS)
        }
        #: The node allocations of the server.
        self.ledger: dict[str, Amounts] = {}
        #: All events of each kind, in order.
        self.log: dict[Kind, list[WatchEvent[Any]]] = {}
        self.on_batch: list[Callable[[int], None]] = []
        self._digest = hashlib.sha256()
        caches: dict[Kind, ObjectCache[Any]] = {
            POD: self.pods,
            NODE: self.nodes,
            POD_GROUP: self.groups,
            NAMESPACE: self.namespaces,
            SERVICE: self.services,
            POD_DISRUPTION_BUDGET: self.budgets,
            COMPOSITE_POD_GROUP: self.composites,
            **self.claimable,
        }
        self._caches: Mapping[str, tuple[Kind, ObjectCache[Any]]] = {
            kind.store_prefix(): (kind, cache) for kind, cache in caches.items()
        }
        self.log = {kind: [] for kind, _ in self._caches.values()}
        store.subscribe(self._apply_changes)

    @property
    def device_claims(self) -> ObjectCache[DeviceClaim]:
        """The ResourceClaims."""
        return self.claimable[RESOURCE_CLAIM]

    @property
    def volume_claims(self) -> ObjectCache[PersistentVolumeClaim]:
        """The claims for volumes."""
        return self.claimable[PERSISTENT_VOLUME_CLAIM]

    @property
    def volumes(self) -> ObjectCache[PersistentVolume]:
        """The volumes."""
        return self.claimable[PERSISTENT_VOLUME]

    @property
    def digest(self) -> str:
        """Return a hash over all writes."""
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
        for notify in self.on_batch:
            notify(changes[-1].revision)

    def _apply(self, change: StoreChange, kind: Kind, cache: ObjectCache[Any]) -> None:
        record = change.after or change.before
        assert record is not None
        name = "MODIFIED" if change.after else "DELETED"
        decoded = msgspec.json.decode(record.value, type=struct_of(kind))
        event = WatchEvent(name, decoded, change.revision)
        self.log[kind].append(event)
        cache.apply(event)

    def _update_ledger(self, change: StoreChange) -> None:
        node = change.key.removeprefix(ALLOCATION_PREFIX)
        self.ledger.pop(node, None)
        if change.after:
            self.ledger[node] = orjson.loads(change.after.value)


_NO_PODS: Mapping[Key, str] = {}


class _KindModel:
    """One kind: its log, the position that was seen, and the resulting objects."""

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
    """Follows one scheduler by the revisions of its informers."""

    def __init__(self, store_log: StoreLogReader, informers: Informers) -> None:
        self._kinds = {kind: _KindModel(store_log.log[kind]) for kind in store_log.log}
        self._informers = informers

    @property
    def pods(self) -> Mapping[Key, Pod]:
        """Return the pods that the scheduler has seen."""
        return self._kinds[POD].objects

    def catch_up(self) -> None:
        """Advance to what the scheduler has seen."""
        for kind, part in self._kinds.items():
            part.catch_up(self._informers.metadata_informer(kind).cache.revision)

    def cluster(
        self, assumed: Mapping[Key, str], nominated: Mapping[Key, str] = _NO_PODS,
        evicting: Collection[str] = (),
    ) -> ClusterObjects:  # fmt: skip
        """Return the expected cluster: some pods are assumed, nominated or being evicted."""
        spaces = self._kinds[NAMESPACE].objects
        pods = dict(self.pods)
        for key in assumed.keys() & pods.keys():
            pods[key] = replace(pods[key], spec=replace(pods[key].spec, node_name=assumed[key]))
        for key in nominated.keys() & pods.keys():
            status = replace(pods[key].status, nominated_node_name=nominated[key])
            pods[key] = replace(pods[key], status=status)
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
            devices=self._objects_of(DEVICE_KINDS),
            volumes=self._objects_of(VOLUME_KINDS),
            evicting=evicting,
        )

    def _objects_of(self, kinds: Sequence[Kind]) -> list[Any]:
        return [one for kind in kinds for one in self._kinds[kind].objects.values()]
