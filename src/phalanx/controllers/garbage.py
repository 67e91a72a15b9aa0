"""Garbage collection: what nobody owns any more goes, as its owner's deletion asked for.

    background   the owner is gone: its dependents follow, once no owner of theirs is left
    foreground   the owner waits (finalizer `foregroundDeletion`) until its dependents are gone
    orphan       the owner waits (finalizer `orphan`) until its dependents have forgotten it

An owner counts as absent only when the API itself says so, by name and uid: caches may lag, and a
namesake is somebody else. On a foreign API server this loop is off: it has one of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import NamedTuple

from msgspec import Struct

from phalanx.api.errors import ApiError, NotFound
from phalanx.api.kinds import EVENT, KINDS, Kind
from phalanx.api.meta import Key, Meta, OwnerReference
from phalanx.client.answers import Resource
from phalanx.client.client import Client
from phalanx.client.index import Index
from phalanx.client.transports import Unreachable
from phalanx.client.workqueue import WorkQueue
from phalanx.controllers.loop import Informers

FOREGROUND, ORPHAN = "foregroundDeletion", "orphan"


class Thing(Struct, frozen=True):
    """As much of any object as its ownership needs."""

    metadata: Meta


class Item(NamedTuple):
    """An object of some kind, by name."""

    kind: Kind
    key: Key


class Garbage:
    """Deletes, orphans and lets go of objects, as their owners' ends ask for."""

    def __init__(self, client: Client, informers: Informers, kinds: Sequence[Kind] = KINDS) -> None:
        self._client = client
        self._queue: WorkQueue[Item] = WorkQueue()
        # Events are many, own nothing and go by themselves.
        self._kinds = [k for k in kinds if "delete" in k.verbs and k is not EVENT]
        self._caches = {kind: informers.any(kind).cache for kind in self._kinds}
        self._dependents: dict[Kind, Index[Resource]] = {
            kind: cache.index(_owner_uids) for kind, cache in self._caches.items()
        }
        for kind, cache in self._caches.items():
            cache.subscribe(partial(self._changed, kind))

    async def run(self) -> None:
        """Collect until cancelled."""
        while True:
            item = await self._queue.get()
            try:
                await self._settle(item)
                self._queue.forget(item)
            except (ApiError, Unreachable):
                self._queue.retry(item)
            finally:
                self._queue.done(item)

    async def _settle(self, item: Item) -> None:
        """Do what is due about one object, as it is now."""
        found = self._caches[item.kind].get(item.key)
        if found is None:
            return
        meta = found.metadata
        if meta.deletion_timestamp and ORPHAN in meta.finalizers:
            await self._orphan(item, meta)
        elif meta.deletion_timestamp and FOREGROUND in meta.finalizers:
            await self._delete_below(item, meta)
        elif meta.owner_references and not meta.deletion_timestamp:
            await self._follow_owners(item, meta)

    async def _orphan(self, item: Item, meta: Meta) -> None:
        """Have the dependents forget their owner, then let it go."""
        for below in self._below(meta.uid):
            held = self._caches[below.kind][below.key].metadata
            kept = [_spelled(o) for o in held.owner_references if o.uid != meta.uid]
            await self._patch(below, held, {"ownerReferences": kept or None})
        await self._release(item, meta, ORPHAN)

    async def _delete_below(self, item: Item, meta: Meta) -> None:
        """Delete the dependents first; the last one to go brings us back here."""
        blocking = False
        for below in self._below(meta.uid):
            held = self._caches[below.kind][below.key].metadata
            blocking |= any(o.uid == meta.uid and o.block_owner_deletion
                            for o in held.owner_references)  # fmt: skip
            if not held.deletion_timestamp:
                await self._delete(below, held.uid, "Foreground")
        if not blocking:
            await self._release(item, meta, FOREGROUND)

    async def _follow_owners(self, item: Item, meta: Meta) -> None:
        """Delete an object all of whose owners are gone; forget some that are gone."""
        absent = [o for o in meta.owner_references if await self._is_absent(item, o)]
        if len(absent) == len(meta.owner_references):
            await self._delete(item, meta.uid, "Background")
        elif absent:
            gone = {owner.uid for owner in absent}
            kept = [_spelled(o) for o in meta.owner_references if o.uid not in gone]
            await self._patch(item, meta, {"ownerReferences": kept})

    async def _is_absent(self, item: Item, owner: OwnerReference) -> bool:
        """Ask the API itself; an owner of a kind that we do not know is left alone."""
        kind = next((k for k in self._kinds if _is_of(owner, k)), None)
        if kind is None or (kind.namespaced and not item.kind.namespaced):
            return False
        key = Key(item.key.namespace if kind.namespaced else "", owner.name)
        held = self._caches[kind].get(key)
        if held is not None and held.metadata.uid == owner.uid:
            return False
        try:
            return (await self._client.get(kind, key, Thing)).metadata.uid != owner.uid
        except NotFound:
            return True

    async def _delete(self, item: Item, uid: str, propagation: str) -> None:
        try:
            await self._client.delete(item.kind, item.key, uid=uid, propagation=propagation)
        except NotFound:
            return

    async def _patch(self, item: Item, meta: Meta, change: dict[str, object]) -> None:
        """Change metadata of this very object in this very version."""
        known = {"uid": meta.uid, "resourceVersion": meta.resource_version}
        try:
            await self._client.patch(item.kind, item.key, {"metadata": {**known, **change}})
        except NotFound:
            return

    async def _release(self, item: Item, meta: Meta, finalizer: str) -> None:
        kept = [name for name in meta.finalizers if name != finalizer]
        await self._patch(item, meta, {"finalizers": kept})

    def _below(self, uid: str) -> list[Item]:
        """The objects that name this owner."""
        return [
            Item(kind, found.metadata.key)
            for kind, index in self._dependents.items()
            for found in index[uid]
        ]

    def _changed(self, kind: Kind, old: Resource | None, new: Resource | None) -> None:
        if new is None and old is not None:
            for below in self._below(old.metadata.uid):
                self._queue.add(below)
            self._look_above(old)
        elif new is not None and (new.metadata.owner_references or _is_held(new)):
            self._queue.add(Item(kind, new.metadata.key))

    def _look_above(self, gone: Resource) -> None:
        """An owner that waits for this one in the foreground has one less to wait for."""
        for owner in gone.metadata.owner_references:
            kind = next((k for k in self._kinds if _is_of(owner, k)), None)
            if kind is not None:
                space = gone.metadata.namespace if kind.namespaced else ""
                self._queue.add(Item(kind, Key(space, owner.name)))


def _owner_uids(found: Resource) -> Iterable[str]:
    return [owner.uid for owner in found.metadata.owner_references]


def _is_held(found: Resource) -> bool:
    meta = found.metadata
    return bool(meta.deletion_timestamp) and bool({FOREGROUND, ORPHAN} & set(meta.finalizers))


def _is_of(owner: OwnerReference, kind: Kind) -> bool:
    """Whether an owner is of a kind; the version that it names does not matter."""
    return owner.kind == kind.name and owner.api_version.rpartition("/")[0] == kind.group


def _spelled(owner: OwnerReference) -> dict[str, object]:
    return {
        "apiVersion": owner.api_version, "kind": owner.kind, "name": owner.name, "uid": owner.uid,
        "controller": owner.controller, "blockOwnerDeletion": owner.block_owner_deletion,
    }  # fmt: skip
