"""The garbage collector: deletes objects whose owners are gone, by the owners' propagation policy.

Each dependent is reconciled by the state of its owners. An owner that is deleted with the policy
Foreground or Orphan has a finalizer, which the collector removes once its dependents are gone or
orphaned.

    state of the owners             action on the dependent
    all absent                      delete it
    one present                     keep it, remove the references to absent owners
    one orphaning its dependents    keep it, remove the references to owners that are not present
    one in foreground deletion      delete it before that owner, and after its own dependents

An owner is absent only if the API confirms it, by name and uid: caches may be stale, and another
object may have the same name. Every write is conditional on the version that was examined. The
controller is disabled on a foreign API server, which has its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum
from functools import partial
from typing import NamedTuple

import msgspec

from phalanx import logs
from phalanx.api.conversion.hub import STORED_KINDS, hub_kind
from phalanx.api.errors import NotFound
from phalanx.api.kinds import EVENT, KINDS, NAMESPACE, Kind
from phalanx.api.meta import Key, ObjectMeta, OwnerReference, PartialObjectMetadata
from phalanx.client.cache import ObjectCache
from phalanx.client.client import Client
from phalanx.client.protocol import HasMetadata, parse_revision
from phalanx.client.work_queue import WorkQueue
from phalanx.controllers.event_recorder import ObjectEvent
from phalanx.controllers.reconcile_loop import Informers, new_work_queue, run_workers

LOG = logs.component("garbage-collector")
#: The propagation policy that each finalizer stands for.
_POLICIES = {"orphan": "Orphan", "foregroundDeletion": "Foreground"}
_ORPHAN, _FOREGROUND = _POLICIES
_WORKERS = 16
#: Seconds until an owner is reconciled again whose dependents the caches do not all show yet.
_RETRY_INTERVAL = 1.0


class ObjectKey(NamedTuple):
    """An object by kind and key."""

    kind: Kind
    key: Key

    def __str__(self) -> str:
        return f"{self.kind.name} {self.key}"


class OwnerKey(NamedTuple):
    """An owner by key and uid: a later object of the same name is another owner."""

    object_key: ObjectKey
    uid: str


class OwnerState(Enum):
    """The state of an owner, as far as its dependents are concerned."""

    PRESENT = "present"
    ORPHANING = "deleted once its dependents have removed their references"
    FOREGROUND = "deleted once its dependents are deleted"
    ABSENT = "absent"

    @property
    def is_waiting(self) -> bool:
        """Whether the deletion of the owner waits for its dependents."""
        return self in (OwnerState.ORPHANING, OwnerState.FOREGROUND)


class OwnershipGraph:
    """The dependents of every owner, over all kinds, as the caches show them.

    Pod p with an owner reference to Job j: `dependents(j)` yields p, `resolve_owners(p)` is [j].
    """

    def __init__(self, caches: Mapping[Kind, ObjectCache[HasMetadata]]) -> None:
        self._caches = caches
        served = [*caches, *(kind for kind in KINDS if hub_kind(kind) in caches)]
        self._kinds = {(kind.api_version, kind.name): hub_kind(kind) for kind in served}
        # One map for all kinds, so that a single lookup finds an owner without dependents.
        self._dependents: dict[OwnerKey, dict[ObjectKey, None]] = {}

    def add(self, kind: Kind, meta: ObjectMeta) -> None:
        """Add an object to the dependents of its owners."""
        for owner in self.resolve_owners(meta):
            self._dependents.setdefault(owner, {})[ObjectKey(kind, meta.key)] = None

    def remove(self, kind: Kind, meta: ObjectMeta) -> None:
        """Remove an object from the dependents of its owners."""
        for owner in self.resolve_owners(meta):
            dependents = self._dependents.get(owner, {})
            dependents.pop(ObjectKey(kind, meta.key), None)
            if not dependents:
                self._dependents.pop(owner, None)

    def cached_meta(self, owner: OwnerKey) -> ObjectMeta | None:
        """Return the metadata of an owner from the cache; None if it is not there."""
        found = self._caches[owner.object_key.kind].get(owner.object_key.key)
        return found.metadata if found and found.metadata.uid == owner.uid else None

    def resolve_owner(self, reference: OwnerReference, namespace: str) -> OwnerKey | None:
        """Resolve an owner reference of an object in `namespace` ("": cluster-scoped).

        Any served version of the kind resolves. None if the kind is unknown, or if a cluster-scoped
        object names a namespaced owner.
        """
        kind = self._kinds.get((reference.api_version, reference.kind))
        if kind is None or (kind.namespaced and not namespace):
            return None
        owner_namespace = namespace if kind.namespaced else ""
        return OwnerKey(ObjectKey(kind, Key(owner_namespace, reference.name)), reference.uid)

    def resolve_owners(self, meta: ObjectMeta) -> list[OwnerKey]:
        """Resolve all owner references of an object, without those that cannot be resolved."""
        owners = [
            self.resolve_owner(reference, meta.namespace) for reference in meta.owner_references
        ]
        return [owner for owner in owners if owner is not None]

    def dependents(self, owner: OwnerKey) -> Iterator[tuple[ObjectKey, ObjectMeta]]:
        """Yield the objects that have a reference to an owner."""
        for dependent in tuple(self._dependents.get(owner, ())):
            yield dependent, self._caches[dependent.kind][dependent.key].metadata

    def is_blocked(self, owner: OwnerKey) -> bool:
        """Whether a dependent blocks the foreground deletion of an owner.

        Owners in foreground deletion that block each other in a cycle would wait for ever: an owner
        that is blocked by nothing but such a cycle of its own is not blocked.
        """
        reached: set[OwnerKey] = set()
        remaining = [owner]
        while remaining:
            for blocker, meta in self._blockers(remaining.pop()):
                if _deletion_state(meta) is not OwnerState.FOREGROUND:
                    return True
                if blocker not in reached:
                    reached.add(blocker)
                    remaining.append(blocker)
        return bool(reached) and owner not in reached

    def _blockers(self, owner: OwnerKey) -> Iterator[tuple[OwnerKey, ObjectMeta]]:
        for dependent, meta in self.dependents(owner):
            if any(o.uid == owner.uid and o.block_owner_deletion for o in meta.owner_references):
                yield OwnerKey(dependent, meta.uid), meta

    def is_in_other_namespace(self, owner: OwnerKey) -> bool:
        """Whether an owner that is absent from its namespace is in another one."""
        kind, name = owner.object_key.kind, owner.object_key.key.name
        return kind.namespaced and any(
            self.cached_meta(OwnerKey(ObjectKey(kind, Key(namespace.name, name)), owner.uid))
            is not None
            for namespace in self._caches.get(NAMESPACE, ())
        )


class GarbageCollector:
    """Deletes and orphans dependents and finalizes owners; `record` receives the events.

    `queue` holds the objects to reconcile. An object without owners and dependents is never queued.
    """

    def __init__(
        self,
        client: Client,
        informers: Informers,
        record: Callable[[ObjectEvent], None] = lambda event: None,
        kinds: Sequence[Kind] = STORED_KINDS,
    ) -> None:
        self._client, self._record = client, record
        self.queue: WorkQueue[ObjectKey] = new_work_queue(client, "garbage")
        # Events are many, own nothing and expire.
        collected = [kind for kind in kinds if "delete" in kind.verbs and kind is not EVENT]
        self._informers = [informers.metadata_informer(kind) for kind in collected]
        self._caches = {kind: informers.metadata_informer(kind).cache for kind in collected}
        self._ownership = OwnershipGraph(self._caches)
        for kind, cache in self._caches.items():
            cache.subscribe(partial(self._on_change, kind))

    async def run(self) -> None:
        """Collect garbage until cancelled."""
        # Whether an owner has dependents is known only when all caches are synced.
        for informer in self._informers:
            await informer.synced.wait()
        await run_workers(self.queue, self._reconcile, _WORKERS)

    async def _reconcile(self, item: ObjectKey) -> float | None:
        found = self._caches[item.kind].get(item.key)
        if found is None:
            return None
        meta, state = found.metadata, _deletion_state(found.metadata)
        if state is OwnerState.ORPHANING:
            return await self._finish_orphaning(item, meta)
        if state is OwnerState.FOREGROUND:
            # The deletion of the last blocking dependent enqueues the owner again.
            if not self._ownership.is_blocked(OwnerKey(item, meta.uid)):
                await self._remove_finalizer(item, meta, _FOREGROUND)
        elif meta.owner_references and not meta.deletion_timestamp:
            await self._process_owners(item, meta)
        return None

    async def _finish_orphaning(self, item: ObjectKey, meta: ObjectMeta) -> float | None:
        """Remove the finalizer of an owner once no dependent has a reference to it.

        The change of the last dependent enqueues the owner again.
        """
        owner = OwnerKey(item, meta.uid)
        dependents = self._ownership.dependents(owner)
        if any(not dependent.deletion_timestamp for _, dependent in dependents):
            return None
        if await self._has_unseen_dependents(owner, parse_revision(meta.resource_version)):
            return _RETRY_INTERVAL
        await self._remove_finalizer(item, meta, _ORPHAN)
        return None

    async def _has_unseen_dependents(self, owner: OwnerKey, since: int) -> bool:
        """Whether the API has a dependent that a cache older than `since` does not show.

        Once the owner is gone, nothing tells that this dependent was to be orphaned.
        """
        item = owner.object_key
        for kind, cache in self._caches.items():
            if cache.revision < since and (kind.namespaced or not item.kind.namespaced):
                listing = await self._client.list(
                    kind, PartialObjectMetadata, namespace=item.key.namespace
                )
                for found in listing.items:
                    meta = found.metadata
                    if meta.deletion_timestamp:
                        continue
                    if owner in self._ownership.resolve_owners(meta):
                        return True
        return False

    async def _process_owners(self, item: ObjectKey, meta: ObjectMeta) -> None:
        """Delete a dependent without owners, or remove its references to absent owners."""
        states = [await self._owner_state(item, meta, owner) for owner in meta.owner_references]
        if OwnerState.PRESENT not in states and OwnerState.ORPHANING not in states:
            await self._delete(item, meta, is_awaited=OwnerState.FOREGROUND in states)
        elif set(states) != {OwnerState.PRESENT}:
            owners = zip(meta.owner_references, states, strict=True)
            kept = [owner for owner, state in owners if state is OwnerState.PRESENT]
            await self._patch(item, meta, {"ownerReferences": msgspec.to_builtins(kept) or None})
            LOG.debug("Owner references removed", kind=item.kind.name, key=item.key)

    async def _owner_state(
        self, item: ObjectKey, meta: ObjectMeta, reference: OwnerReference
    ) -> OwnerState:
        """The state of an owner. An owner that cannot be resolved counts as present."""
        owner = self._ownership.resolve_owner(reference, item.key.namespace)
        if owner is None:
            return OwnerState.PRESENT
        known = self._ownership.cached_meta(owner) or await self._read_owner(owner)
        if known is not None:
            return _deletion_state(known)
        if self._ownership.is_in_other_namespace(owner):
            self._record(_wrong_namespace_event(item, meta, reference))
        return OwnerState.ABSENT

    async def _read_owner(self, owner: OwnerKey) -> ObjectMeta | None:
        """Read the metadata of an owner from the API; None if it is absent."""
        try:
            found = await self._client.get(
                owner.object_key.kind, owner.object_key.key, PartialObjectMetadata
            )
        except NotFound:
            return None
        return found.metadata if found.metadata.uid == owner.uid else None

    async def _delete(self, item: ObjectKey, meta: ObjectMeta, *, is_awaited: bool) -> None:
        """Delete a dependent by the policy of its finalizers.

        If an owner in foreground deletion waits for it (`is_awaited`) and it has dependents itself,
        it is deleted in the foreground too.
        """
        policy = next((_POLICIES[f] for f in _POLICIES if f in meta.finalizers), "Background")
        if is_awaited and any(self._ownership.dependents(OwnerKey(item, meta.uid))):
            policy = _POLICIES[_FOREGROUND]
        uid, version = meta.uid, meta.resource_version
        try:
            await self._client.delete(
                item.kind, item.key, uid=uid, resource_version=version, propagation_policy=policy
            )
        except NotFound:
            return
        LOG.debug("Dependent deleted", kind=item.kind.name, key=item.key, propagation=policy)

    async def _remove_finalizer(self, item: ObjectKey, meta: ObjectMeta, finalizer: str) -> None:
        remaining = [name for name in meta.finalizers if name != finalizer]
        await self._patch(item, meta, {"finalizers": remaining or None})
        LOG.debug("Finalizer removed", kind=item.kind.name, key=item.key, finalizer=finalizer)

    async def _patch(self, item: ObjectKey, meta: ObjectMeta, change: dict[str, object]) -> None:
        preconditions = {"uid": meta.uid, "resourceVersion": meta.resource_version}
        try:
            await self._client.patch(item.kind, item.key, {"metadata": {**preconditions, **change}})
        except NotFound:
            return

    def _on_change(self, kind: Kind, old: HasMetadata | None, new: HasMetadata | None) -> None:
        """Enqueue the object and those of its owners and dependents that the change concerns."""
        if _relevant_fields(old) == _relevant_fields(new):
            return
        if old is not None:
            meta = old.metadata
            self._ownership.remove(kind, meta)
            for owner in self._ownership.resolve_owners(meta):
                cached = self._ownership.cached_meta(owner)
                if cached is not None and _deletion_state(cached).is_waiting:
                    self.queue.add(owner.object_key)
            if new is None:
                self._enqueue_dependents(OwnerKey(ObjectKey(kind, meta.key), meta.uid))
        if new is not None:
            item, meta = ObjectKey(kind, new.metadata.key), new.metadata
            self._ownership.add(kind, meta)
            is_waiting = _deletion_state(meta).is_waiting
            if is_waiting or meta.owner_references:
                self.queue.add(item)
            if is_waiting:
                self._enqueue_dependents(OwnerKey(item, meta.uid))

    def _enqueue_dependents(self, owner: OwnerKey) -> None:
        for item, _ in self._ownership.dependents(owner):
            self.queue.add(item)


def _deletion_state(meta: ObjectMeta) -> OwnerState:
    if meta.deletion_timestamp and _ORPHAN in meta.finalizers:
        return OwnerState.ORPHANING
    if meta.deletion_timestamp and _FOREGROUND in meta.finalizers:
        return OwnerState.FOREGROUND
    return OwnerState.PRESENT


def _relevant_fields(found: HasMetadata | None) -> tuple[object, ...]:
    """The fields of an object that garbage collection reads; most changes leave them alone."""
    if found is None:
        return ()
    meta = found.metadata
    return meta.owner_references, meta.deletion_timestamp, _deletion_state(meta)


def _wrong_namespace_event(item: ObjectKey, meta: ObjectMeta, owner: OwnerReference) -> ObjectEvent:
    namespace = item.key.namespace
    where = f"namespace: {namespace}, name: {owner.name}, uid: {owner.uid}"
    reference = f"[{owner.api_version}/{owner.kind}, {where}]"
    message = f'ownerRef {reference} does not exist in namespace "{namespace}"'
    return ObjectEvent(item.kind, meta, "OwnerRefInvalidNamespace", message=message, type="Warning")
