"""Garbage collection: what nobody owns any more goes, as its owners' deletions asked for.

Every object judges itself by what has become of its owners; an owner that waits for its dependents
(the server gave it a finalizer for that) only watches them leave.

    its owners          what a dependent does
    all gone            goes too
    one is there        stays, and forgets the others
    one is orphaning    stays, and forgets all that are not there
    one is awaiting     goes before that one, and after what depends on itself

An owner counts as gone only when the API itself says so, by name and uid: caches may lag, and a
namesake is somebody else. Whatever is done is done to the very version that was judged. On a
foreign API server this loop is off: it has one of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum
from functools import partial
from typing import NamedTuple

import msgspec

from phalanx.api.conversion.hub import STORED_KINDS, hub_kind
from phalanx.api.errors import NotFound
from phalanx.api.kinds import EVENT, KINDS, NAMESPACE, Kind
from phalanx.api.meta import Key, ObjectMeta, OwnerReference
from phalanx.client.cache import ObjectCache
from phalanx.client.client import Client
from phalanx.client.protocol import HasMetadata, parse_revision
from phalanx.client.work_queue import WorkQueue
from phalanx.controllers.event_recorder import ObjectEvent
from phalanx.controllers.reconcile_loop import (
    Informers,
    PartialObjectMetadata,
    new_work_queue,
    run_workers,
)

#: Finalizer -> the policy by which an object that has it is deleted.
_POLICIES = {"orphan": "Orphan", "foregroundDeletion": "Foreground"}
_ORPHAN, _FOREGROUND = _POLICIES
_WORKERS = 16
#: Seconds between looks at an owner not all of whose dependents have been heard of.
_RETRY_INTERVAL = 1.0


class ObjectKey(NamedTuple):
    """An object of some kind, by name."""

    kind: Kind
    key: Key


class OwnerKey(NamedTuple):
    """An item that others may name as theirs: that very one and no namesake."""

    object_key: ObjectKey
    uid: str


class OwnerState(Enum):
    """What has become of an object, in the eyes of its dependents."""

    PRESENT = "there"
    ORPHANING = "being deleted once they have forgotten it"
    FOREGROUND = "being deleted once they are gone"
    ABSENT = "gone"

    @property
    def is_waiting(self) -> bool:
        """Whether it waits for its dependents."""
        return self in (OwnerState.ORPHANING, OwnerState.FOREGROUND)


class OwnershipGraph:
    """Who belongs to whom, as the caches have it."""

    def __init__(self, caches: Mapping[Kind, ObjectCache[HasMetadata]]) -> None:
        self._caches = caches
        served = [*caches, *(kind for kind in KINDS if hub_kind(kind) in caches)]
        self._kinds = {(kind.api_version, kind.name): hub_kind(kind) for kind in served}
        # Over all kinds, so that one look tells who has no dependents.
        self._dependents: dict[OwnerKey, dict[ObjectKey, None]] = {}

    def add(self, kind: Kind, meta: ObjectMeta) -> None:
        """Note whom an object belongs to."""
        for owner in self.resolve_owners(meta):
            self._dependents.setdefault(owner, {})[ObjectKey(kind, meta.key)] = None

    def remove(self, kind: Kind, meta: ObjectMeta) -> None:
        """Forget whom an object belonged to."""
        for owner in self.resolve_owners(meta):
            items = self._dependents.get(owner, {})
            items.pop(ObjectKey(kind, meta.key), None)
            if not items:
                self._dependents.pop(owner, None)

    def cached_meta(self, owner: OwnerKey) -> ObjectMeta | None:
        """The metadata of an owner, if it is known."""
        found = self._caches[owner.object_key.kind].get(owner.object_key.key)
        return found.metadata if found and found.metadata.uid == owner.uid else None

    def resolve_owner(self, reference: OwnerReference, namespace: str) -> OwnerKey | None:
        """Whom an object in a namespace means. None: of a kind that we do not know, or cannot be.

        Any version will do that is served; in another the kind is unknown.
        """
        kind = self._kinds.get((reference.api_version, reference.kind))
        if kind is None or (kind.namespaced and not namespace):
            return None
        space = namespace if kind.namespaced else ""
        return OwnerKey(ObjectKey(kind, Key(space, reference.name)), reference.uid)

    def resolve_owners(self, meta: ObjectMeta) -> list[OwnerKey]:
        """Those whom an object names, as far as we know their kinds."""
        named = [
            self.resolve_owner(reference, meta.namespace) for reference in meta.owner_references
        ]
        return [owner for owner in named if owner is not None]

    def dependents(self, owner: OwnerKey) -> Iterator[tuple[ObjectKey, ObjectMeta]]:
        """The objects that name an owner."""
        for item in tuple(self._dependents.get(owner, ())):
            yield item, self._caches[item.kind][item.key].metadata

    def is_blocked(self, owner: OwnerKey) -> bool:
        """Whether somebody has to go before an owner that waits for its dependents.

        Owners that wait for each other in a ring, and for nobody else, would wait for ever: of them
        whoever is asked for is not blocked.
        """
        reached: set[OwnerKey] = set()
        ahead = [owner]
        while ahead:
            for blocker, meta in self._blockers(ahead.pop()):
                if _deletion_state(meta) is not OwnerState.FOREGROUND:
                    return True
                if blocker not in reached:
                    reached.add(blocker)
                    ahead.append(blocker)
        return bool(reached) and owner not in reached

    def _blockers(self, owner: OwnerKey) -> Iterator[tuple[OwnerKey, ObjectMeta]]:
        for item, meta in self.dependents(owner):
            if any(o.uid == owner.uid and o.block_owner_deletion for o in meta.owner_references):
                yield OwnerKey(item, meta.uid), meta

    def is_in_other_namespace(self, owner: OwnerKey) -> bool:
        """Whether somebody who is not where he should be is in another namespace."""
        kind, name = owner.object_key.kind, owner.object_key.key.name
        return kind.namespaced and any(
            self.cached_meta(OwnerKey(ObjectKey(kind, Key(space.name, name)), owner.uid))
            is not None
            for space in self._caches.get(NAMESPACE, ())
        )


class GarbageCollector:
    """Deletes, orphans and lets go of objects. `tell` hears what people should know of that.

    `queue` holds those at whom to look; what neither owns nor is owned never comes to be there.
    """

    def __init__(
        self,
        client: Client,
        informers: Informers,
        record: Callable[[ObjectEvent], None] = lambda note: None,
        kinds: Sequence[Kind] = STORED_KINDS,
    ) -> None:
        self._client, self._record = client, record
        self.queue: WorkQueue[ObjectKey] = new_work_queue(client, "garbage")
        # Events are many, own nothing and go by themselves.
        collected = [kind for kind in kinds if "delete" in kind.verbs and kind is not EVENT]
        self._informers = [informers.metadata_informer(kind) for kind in collected]
        self._caches = {kind: informers.metadata_informer(kind).cache for kind in collected}
        self._ownership = OwnershipGraph(self._caches)
        for kind, cache in self._caches.items():
            cache.subscribe(partial(self._on_change, kind))

    async def run(self) -> None:
        """Collect until cancelled."""
        # Who has no dependents is known only when everything is.
        for informer in self._informers:
            await informer.synced.wait()
        await run_workers(self.queue, self._reconcile, _WORKERS)

    async def _reconcile(self, item: ObjectKey) -> float | None:
        """Do what is due about one object, as it is now."""
        found = self._caches[item.kind].get(item.key)
        if found is None:
            return None
        meta, fate = found.metadata, _deletion_state(found.metadata)
        if fate is OwnerState.ORPHANING:
            return await self._orphan_dependents(item, meta)
        if fate is OwnerState.FOREGROUND:
            await self._finish_foreground_deletion(item, meta)
        elif meta.owner_references and not meta.deletion_timestamp:
            await self._process_owners(item, meta)
        return None

    async def _orphan_dependents(self, item: ObjectKey, meta: ObjectMeta) -> float | None:
        """Let an owner go once it is forgotten; the last to forget it brings us back here."""
        owner = OwnerKey(item, meta.uid)
        if any(_is_not_deleted(below) for _, below in self._ownership.dependents(owner)):
            return None
        if await self._has_unseen_dependents(owner, parse_revision(meta.resource_version)):
            return _RETRY_INTERVAL
        await self._remove_finalizer(item, meta, _ORPHAN)
        return None

    async def _finish_foreground_deletion(self, item: ObjectKey, meta: ObjectMeta) -> None:
        """Let an owner go once nobody has to go first; the last one gone brings us back here."""
        if not self._ownership.is_blocked(OwnerKey(item, meta.uid)):
            await self._remove_finalizer(item, meta, _FOREGROUND)

    async def _has_unseen_dependents(self, owner: OwnerKey, since: int) -> bool:
        """Whether there is a dependent that its cache, being behind, has not heard of.

        Asked of the API: once the owner is gone, nobody knows that the dependent was to be spared.
        """
        item = owner.object_key
        for kind, cache in self._caches.items():
            if cache.revision < since and (kind.namespaced or not item.kind.namespaced):
                listing = await self._client.list(
                    kind, PartialObjectMetadata, namespace=item.key.namespace
                )
                staying = [f.metadata for f in listing.items if _is_not_deleted(f.metadata)]
                if any(owner in self._ownership.resolve_owners(meta) for meta in staying):
                    return True
        return False

    async def _process_owners(self, item: ObjectKey, meta: ObjectMeta) -> None:
        """Go with the last owner; forget those that are gone or want to be forgotten."""
        fates = [await self._owner_state(item, meta, owner) for owner in meta.owner_references]
        if OwnerState.PRESENT not in fates and OwnerState.ORPHANING not in fates:
            await self._delete(item, meta, is_awaited=OwnerState.FOREGROUND in fates)
        elif set(fates) != {OwnerState.PRESENT}:
            judged = zip(meta.owner_references, fates, strict=True)
            kept = [owner for owner, fate in judged if fate is OwnerState.PRESENT]
            await self._patch(item, meta, {"ownerReferences": msgspec.to_builtins(kept) or None})

    async def _owner_state(
        self, item: ObjectKey, meta: ObjectMeta, reference: OwnerReference
    ) -> OwnerState:
        """What has become of an owner; one of whom nothing can be known is left in peace."""
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
        """The metadata of an owner, as the API has it."""
        try:
            found = await self._client.get(
                owner.object_key.kind, owner.object_key.key, PartialObjectMetadata
            )
        except NotFound:
            return None
        return found.metadata if found.metadata.uid == owner.uid else None

    async def _delete(self, item: ObjectKey, meta: ObjectMeta, *, is_awaited: bool) -> None:
        """Delete an object as it wishes, unless an owner waits and there is more below."""
        policy = next((_POLICIES[f] for f in _POLICIES if f in meta.finalizers), "Background")
        if is_awaited and any(self._ownership.dependents(OwnerKey(item, meta.uid))):
            policy = _POLICIES[_FOREGROUND]
        uid, version = meta.uid, meta.resource_version
        try:
            await self._client.delete(
                item.kind, item.key, uid=uid, version=version, propagation=policy
            )
        except NotFound:
            return

    async def _remove_finalizer(self, item: ObjectKey, meta: ObjectMeta, finalizer: str) -> None:
        kept = [name for name in meta.finalizers if name != finalizer]
        await self._patch(item, meta, {"finalizers": kept or None})

    async def _patch(self, item: ObjectKey, meta: ObjectMeta, change: dict[str, object]) -> None:
        known = {"uid": meta.uid, "resourceVersion": meta.resource_version}
        try:
            await self._client.patch(item.kind, item.key, {"metadata": {**known, **change}})
        except NotFound:
            return

    def _on_change(self, kind: Kind, old: HasMetadata | None, new: HasMetadata | None) -> None:
        """Have those looked at whom a change concerns: those above, those below, itself."""
        if _relevant_fields(old) == _relevant_fields(new):
            return
        if old is not None:
            self._ownership.remove(kind, old.metadata)
            self._enqueue_owners(old.metadata)
            if new is None:
                self._enqueue_dependents(
                    OwnerKey(ObjectKey(kind, old.metadata.key), old.metadata.uid)
                )
        if new is not None:
            self._ownership.add(kind, new.metadata)
            self._enqueue(ObjectKey(kind, new.metadata.key), new.metadata)

    def _enqueue_owners(self, meta: ObjectMeta) -> None:
        for owner in self._ownership.resolve_owners(meta):
            held = self._ownership.cached_meta(owner)
            if held is not None and _deletion_state(held).is_waiting:
                self.queue.add(owner.object_key)

    def _enqueue_dependents(self, owner: OwnerKey) -> None:
        for item, _ in self._ownership.dependents(owner):
            self.queue.add(item)

    def _enqueue(self, item: ObjectKey, meta: ObjectMeta) -> None:
        is_leaving = _deletion_state(meta).is_waiting
        if is_leaving or meta.owner_references:
            self.queue.add(item)
        if is_leaving:
            self._enqueue_dependents(OwnerKey(item, meta.uid))


def _deletion_state(meta: ObjectMeta) -> OwnerState:
    if meta.deletion_timestamp and _ORPHAN in meta.finalizers:
        return OwnerState.ORPHANING
    if meta.deletion_timestamp and _FOREGROUND in meta.finalizers:
        return OwnerState.FOREGROUND
    return OwnerState.PRESENT


def _relevant_fields(found: HasMetadata | None) -> tuple[object, ...]:
    """As much of an object as matters here: most changes leave it as it is."""
    if found is None:
        return ()
    meta = found.metadata
    return meta.owner_references, meta.deletion_timestamp, _deletion_state(meta)


def _is_not_deleted(meta: ObjectMeta) -> bool:
    return not meta.deletion_timestamp


def _wrong_namespace_event(item: ObjectKey, meta: ObjectMeta, owner: OwnerReference) -> ObjectEvent:
    space = item.key.namespace
    where = f"namespace: {space}, name: {owner.name}, uid: {owner.uid}"
    meant = f"[{owner.api_version}/{owner.kind}, {where}]"
    message = f'ownerRef {meant} does not exist in namespace "{space}"'
    return ObjectEvent(item.kind, meta, "OwnerRefInvalidNamespace", message, "Warning")
