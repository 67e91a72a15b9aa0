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

from phalanx.api.errors import NotFound
from phalanx.api.kinds import EVENT, KINDS, NAMESPACE, Kind
from phalanx.api.meta import Key, Meta, OwnerReference
from phalanx.api.versions.conversion import STORED, hub
from phalanx.client.answers import Resource, revision
from phalanx.client.cache import Cache
from phalanx.client.client import Client
from phalanx.client.workqueue import WorkQueue
from phalanx.controllers.loop import Informers, Thing, observed_queue, work
from phalanx.controllers.recorder import Note

#: Finalizer -> the policy by which an object that has it is deleted.
_POLICIES = {"orphan": "Orphan", "foregroundDeletion": "Foreground"}
_ORPHAN, _FOREGROUND = _POLICIES
_WORKERS = 16
#: Seconds between looks at an owner not all of whose dependents have been heard of.
_PATIENCE = 1.0


class Item(NamedTuple):
    """An object of some kind, by name."""

    kind: Kind
    key: Key


class Owner(NamedTuple):
    """An item that others may name as theirs: that very one and no namesake."""

    item: Item
    uid: str


class Fate(Enum):
    """What has become of an object, in the eyes of its dependents."""

    THERE = "there"
    ORPHANING = "being deleted once they have forgotten it"
    AWAITING = "being deleted once they are gone"
    GONE = "gone"

    @property
    def is_leaving(self) -> bool:
        """Whether it waits for its dependents."""
        return self in (Fate.ORPHANING, Fate.AWAITING)


class Ownership:
    """Who belongs to whom, as the caches have it."""

    def __init__(self, caches: Mapping[Kind, Cache[Resource]]) -> None:
        self._caches = caches
        served = [*caches, *(kind for kind in KINDS if hub(kind) in caches)]
        self._kinds = {(kind.api_version, kind.name): hub(kind) for kind in served}
        # Over all kinds, so that one look tells who has no dependents.
        self._below: dict[Owner, dict[Item, None]] = {}

    def add(self, kind: Kind, meta: Meta) -> None:
        """Note whom an object belongs to."""
        for owner in self.owners(meta):
            self._below.setdefault(owner, {})[Item(kind, meta.key)] = None

    def remove(self, kind: Kind, meta: Meta) -> None:
        """Forget whom an object belonged to."""
        for owner in self.owners(meta):
            items = self._below.get(owner, {})
            items.pop(Item(kind, meta.key), None)
            if not items:
                self._below.pop(owner, None)

    def held(self, owner: Owner) -> Meta | None:
        """The metadata of an owner, if it is known."""
        found = self._caches[owner.item.kind].get(owner.item.key)
        return found.metadata if found and found.metadata.uid == owner.uid else None

    def owner(self, reference: OwnerReference, namespace: str) -> Owner | None:
        """Whom an object in a namespace means. None: of a kind that we do not know, or cannot be.

        Any version will do that is served; in another the kind is unknown.
        """
        kind = self._kinds.get((reference.api_version, reference.kind))
        if kind is None or (kind.namespaced and not namespace):
            return None
        space = namespace if kind.namespaced else ""
        return Owner(Item(kind, Key(space, reference.name)), reference.uid)

    def owners(self, meta: Meta) -> list[Owner]:
        """Those whom an object names, as far as we know their kinds."""
        named = [self.owner(reference, meta.namespace) for reference in meta.owner_references]
        return [owner for owner in named if owner is not None]

    def below(self, owner: Owner) -> Iterator[tuple[Item, Meta]]:
        """The objects that name an owner."""
        for item in tuple(self._below.get(owner, ())):
            yield item, self._caches[item.kind][item.key].metadata

    def is_blocked(self, owner: Owner) -> bool:
        """Whether somebody has to go before an owner that waits for its dependents.

        Owners that wait for each other in a ring, and for nobody else, would wait for ever: of them
        whoever is asked for is not blocked.
        """
        reached: set[Owner] = set()
        ahead = [owner]
        while ahead:
            for blocker, meta in self._blockers(ahead.pop()):
                if _fate(meta) is not Fate.AWAITING:
                    return True
                if blocker not in reached:
                    reached.add(blocker)
                    ahead.append(blocker)
        return bool(reached) and owner not in reached

    def _blockers(self, owner: Owner) -> Iterator[tuple[Owner, Meta]]:
        for item, meta in self.below(owner):
            if any(o.uid == owner.uid and o.block_owner_deletion for o in meta.owner_references):
                yield Owner(item, meta.uid), meta

    def is_elsewhere(self, owner: Owner) -> bool:
        """Whether somebody who is not where he should be is in another namespace."""
        kind, name = owner.item.kind, owner.item.key.name
        return kind.namespaced and any(
            self.held(Owner(Item(kind, Key(space.name, name)), owner.uid)) is not None
            for space in self._caches.get(NAMESPACE, ())
        )


class Garbage:
    """Deletes, orphans and lets go of objects. `tell` hears what people should know of that.

    `queue` holds those at whom to look; what neither owns nor is owned never comes to be there.
    """

    def __init__(
        self, client: Client, informers: Informers,
        tell: Callable[[Note], None] = lambda note: None, kinds: Sequence[Kind] = STORED,
    ) -> None:  # fmt: skip
        self._client, self._tell = client, tell
        self.queue: WorkQueue[Item] = observed_queue(client, "garbage")
        # Events are many, own nothing and go by themselves.
        collected = [kind for kind in kinds if "delete" in kind.verbs and kind is not EVENT]
        self._informers = [informers.any(kind) for kind in collected]
        self._caches = {kind: informers.any(kind).cache for kind in collected}
        self._ownership = Ownership(self._caches)
        for kind, cache in self._caches.items():
            cache.subscribe(partial(self._changed, kind))

    async def run(self) -> None:
        """Collect until cancelled."""
        # Who has no dependents is known only when everything is.
        for informer in self._informers:
            await informer.synced.wait()
        await work(self.queue, self._settle, _WORKERS)

    async def _settle(self, item: Item) -> float | None:
        """Do what is due about one object, as it is now."""
        found = self._caches[item.kind].get(item.key)
        if found is None:
            return None
        meta, fate = found.metadata, _fate(found.metadata)
        if fate is Fate.ORPHANING:
            return await self._leave_orphans(item, meta)
        if fate is Fate.AWAITING:
            await self._leave_last(item, meta)
        elif meta.owner_references and not meta.deletion_timestamp:
            await self._follow_owners(item, meta)
        return None

    async def _leave_orphans(self, item: Item, meta: Meta) -> float | None:
        """Let an owner go once it is forgotten; the last to forget it brings us back here."""
        owner = Owner(item, meta.uid)
        if any(_is_staying(below) for _, below in self._ownership.below(owner)):
            return None
        if await self._is_named_still(owner, revision(meta.resource_version)):
            return _PATIENCE
        await self._release(item, meta, _ORPHAN)
        return None

    async def _leave_last(self, item: Item, meta: Meta) -> None:
        """Let an owner go once nobody has to go first; the last one gone brings us back here."""
        if not self._ownership.is_blocked(Owner(item, meta.uid)):
            await self._release(item, meta, _FOREGROUND)

    async def _is_named_still(self, owner: Owner, since: int) -> bool:
        """Whether there is a dependent that its cache, being behind, has not heard of.

        Asked of the API: once the owner is gone, nobody knows that the dependent was to be spared.
        """
        item = owner.item
        for kind, cache in self._caches.items():
            if cache.revision < since and (kind.namespaced or not item.kind.namespaced):
                listing = await self._client.list(kind, Thing, namespace=item.key.namespace)
                staying = [f.metadata for f in listing.items if _is_staying(f.metadata)]
                if any(owner in self._ownership.owners(meta) for meta in staying):
                    return True
        return False

    async def _follow_owners(self, item: Item, meta: Meta) -> None:
        """Go with the last owner; forget those that are gone or want to be forgotten."""
        fates = [await self._fate_of(item, meta, owner) for owner in meta.owner_references]
        if Fate.THERE not in fates and Fate.ORPHANING not in fates:
            await self._delete(item, meta, is_awaited=Fate.AWAITING in fates)
        elif set(fates) != {Fate.THERE}:
            judged = zip(meta.owner_references, fates, strict=True)
            kept = [owner for owner, fate in judged if fate is Fate.THERE]
            await self._patch(item, meta, {"ownerReferences": msgspec.to_builtins(kept) or None})

    async def _fate_of(self, item: Item, meta: Meta, reference: OwnerReference) -> Fate:
        """What has become of an owner; one of whom nothing can be known is left in peace."""
        owner = self._ownership.owner(reference, item.key.namespace)
        if owner is None:
            return Fate.THERE
        known = self._ownership.held(owner) or await self._read(owner)
        if known is not None:
            return _fate(known)
        if self._ownership.is_elsewhere(owner):
            self._tell(_misplaced(item, meta, reference))
        return Fate.GONE

    async def _read(self, owner: Owner) -> Meta | None:
        """The metadata of an owner, as the API has it."""
        try:
            found = await self._client.get(owner.item.kind, owner.item.key, Thing)
        except NotFound:
            return None
        return found.metadata if found.metadata.uid == owner.uid else None

    async def _delete(self, item: Item, meta: Meta, *, is_awaited: bool) -> None:
        """Delete an object as it wishes, unless an owner waits and there is more below."""
        policy = next((_POLICIES[f] for f in _POLICIES if f in meta.finalizers), "Background")
        if is_awaited and any(self._ownership.below(Owner(item, meta.uid))):
            policy = _POLICIES[_FOREGROUND]
        uid, version = meta.uid, meta.resource_version
        try:
            await self._client.delete(
                item.kind, item.key, uid=uid, version=version, propagation=policy
            )
        except NotFound:
            return

    async def _release(self, item: Item, meta: Meta, finalizer: str) -> None:
        kept = [name for name in meta.finalizers if name != finalizer]
        await self._patch(item, meta, {"finalizers": kept or None})

    async def _patch(self, item: Item, meta: Meta, change: dict[str, object]) -> None:
        known = {"uid": meta.uid, "resourceVersion": meta.resource_version}
        try:
            await self._client.patch(item.kind, item.key, {"metadata": {**known, **change}})
        except NotFound:
            return

    def _changed(self, kind: Kind, old: Resource | None, new: Resource | None) -> None:
        """Have those looked at whom a change concerns: those above, those below, itself."""
        if _standing(old) == _standing(new):
            return
        if old is not None:
            self._ownership.remove(kind, old.metadata)
            self._look_above(old.metadata)
            if new is None:
                self._look_below(Owner(Item(kind, old.metadata.key), old.metadata.uid))
        if new is not None:
            self._ownership.add(kind, new.metadata)
            self._look_at(Item(kind, new.metadata.key), new.metadata)

    def _look_above(self, meta: Meta) -> None:
        for owner in self._ownership.owners(meta):
            held = self._ownership.held(owner)
            if held is not None and _fate(held).is_leaving:
                self.queue.add(owner.item)

    def _look_below(self, owner: Owner) -> None:
        for item, _ in self._ownership.below(owner):
            self.queue.add(item)

    def _look_at(self, item: Item, meta: Meta) -> None:
        is_leaving = _fate(meta).is_leaving
        if is_leaving or meta.owner_references:
            self.queue.add(item)
        if is_leaving:
            self._look_below(Owner(item, meta.uid))


def _fate(meta: Meta) -> Fate:
    if meta.deletion_timestamp and _ORPHAN in meta.finalizers:
        return Fate.ORPHANING
    if meta.deletion_timestamp and _FOREGROUND in meta.finalizers:
        return Fate.AWAITING
    return Fate.THERE


def _standing(found: Resource | None) -> tuple[object, ...]:
    """As much of an object as matters here: most changes leave it as it is."""
    if found is None:
        return ()
    meta = found.metadata
    return meta.owner_references, meta.deletion_timestamp, _fate(meta)


def _is_staying(meta: Meta) -> bool:
    return not meta.deletion_timestamp


def _misplaced(item: Item, meta: Meta, owner: OwnerReference) -> Note:
    space = item.key.namespace
    where = f"namespace: {space}, name: {owner.name}, uid: {owner.uid}"
    meant = f"[{owner.api_version}/{owner.kind}, {where}]"
    message = f'ownerRef {meant} does not exist in namespace "{space}"'
    return Note(item.kind, meta, "OwnerRefInvalidNamespace", message, "Warning")
