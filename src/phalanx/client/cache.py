"""The cache of an informer, and its indexes: Lister and Indexer of client-go in one.

`Informer` feeds the cache with lists and watch events. Controllers and the scheduler read it and
are notified of each change as (old, new), one of which may be None. The cache never goes back in
time: it ignores everything older than what it has seen, whatever a server repeats.

    seen up to   input                         effect
    0            list at 4: a@2 b@4            (None, a@2), (None, b@4)
    4            MODIFIED a@6                  (a@2, a@6)
    6            MODIFIED a@5, ADDED b@4       nothing: both are older
    6            DELETED b@7                   (b@4, None)
    7            ADDED b@4                     nothing: b was deleted after that
    7            list at 3: a@2 b@3            rejected: it is older
    7            list at 9: b@8                (a@6, None), (None, b@8)

A `CacheIndex` finds objects by something else than their name: pods by node, pods by group. The
cache updates its indexes before it notifies handlers.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterator, Mapping
from sys import intern
from typing import Generic, TypeVar

from msgspec.structs import force_setattr

from phalanx.api.meta import Key
from phalanx.client.protocol import HasMetadata, Listing, WatchEvent, parse_revision

Indexed = TypeVar("Indexed", bound=HasMetadata)

#: Called with the exception of a handler or key function, and the key of the object.
OnCacheError = Callable[[Exception, Key], None]


def raise_error(error: Exception, key: Key) -> None:
    """Raise the exception."""
    raise error


class CacheIndex(Generic[Indexed]):
    """Objects by the keys that a function returns for each of them.

    by_node = cache.index(lambda pod: [pod.node] if pod.node else [])
    by_node["node-1"]   ->   (pod a, pod b)
    """

    def __init__(
        self, keys: Callable[[Indexed], Collection[Hashable]], on_error: OnCacheError = raise_error
    ) -> None:
        self.keys, self._on_error = keys, on_error
        self._objects_by_key: dict[Hashable, dict[Key, Indexed]] = {}

    def __getitem__(self, key: Hashable) -> tuple[Indexed, ...]:
        return tuple(self._objects_by_key.get(key, {}).values())

    def __len__(self) -> int:
        return len(self._objects_by_key)

    def update(self, name: Key, old: Indexed | None, new: Indexed | None) -> None:
        """Replace an object's entries. Called by the cache only."""
        try:
            after = self.keys(new) if new is not None else ()
            before = self.keys(old) if old is not None else ()
        except Exception:
            # Again, one object at a time: only the one that fails is reported.
            after = self._keys_of(new, name) if new is not None else ()
            before = self._keys_of(old, name) if old is not None else ()
        # Most objects have no key in most indexes.
        if before:
            for key in before:
                if key not in after:
                    self._remove(key, name)
        if after and new is not None:
            for key in after:
                self._objects_by_key.setdefault(key, {})[name] = new

    def _keys_of(self, obj: Indexed, name: Key) -> Collection[Hashable]:
        """Return the keys of an object; an object whose keys cannot be computed has none."""
        try:
            return self.keys(obj)
        except Exception as error:
            self._on_error(error, name)
            return ()

    def _remove(self, key: Hashable, name: Key) -> None:
        # A key function may return a key twice, so that it is removed already.
        objects = self._objects_by_key.get(key, {})
        objects.pop(name, None)
        if not objects:
            self._objects_by_key.pop(key, None)


R = TypeVar("R", bound=HasMetadata)

#: Called with old and new object after the cache and its indexes have changed.
ChangeHandler = Callable[[R | None, R | None], None]


class ObjectCache(Mapping[Key, R]):
    """The objects of a kind by key, as of `revision`. Only the informer changes it.

    `on_error` is called with the exceptions of handlers and key functions. A cache that is merged
    from those of several kinds has them in `parts`, by apiVersion; each has a revision of its own.
    """

    def __init__(self, on_error: OnCacheError = raise_error) -> None:
        self.revision, self._on_error = 0, on_error
        self.parts: Mapping[str, ObjectCache[R]] = {}
        self._objects: dict[Key, R] = {}
        self._indexes: list[CacheIndex[R]] = []
        self._handlers: list[ChangeHandler[R]] = []

    def __getitem__(self, key: Key) -> R:
        return self._objects[key]

    def __iter__(self) -> Iterator[Key]:
        return iter(self._objects)

    def __len__(self) -> int:
        return len(self._objects)

    def revision_of(self, api_version: str) -> int:
        """Return the revision up to which objects of an apiVersion were seen."""
        part = self.parts.get(api_version)
        return self.revision if part is None else part.revision

    def index(self, keys: Callable[[R], Collection[Hashable]]) -> CacheIndex[R]:
        """Return an index that follows the cache; the same key function gives the same index."""
        for known in self._indexes:
            if known.keys is keys:
                return known
        index = CacheIndex(keys, self._on_error)
        for key, found in self._objects.items():
            index.update(key, None, found)
        self._indexes.append(index)
        return index

    def subscribe(self, handler: ChangeHandler[R]) -> None:
        """Notify a handler of all present objects, then of every change."""
        for key, found in self._objects.items():
            try:
                handler(None, found)
            except Exception as error:
                self._on_error(error, key)
        self._handlers.append(handler)

    def replace(self, listing: Listing[R], keep: Collection[Key] = ()) -> bool:
        """Apply a list and notify of the differences; return False if it is older.

        Objects in `keep` stay although the list does not contain them.
        """
        if listing.revision < self.revision:
            return False
        present = {found.metadata.key: found for found in listing.items}
        for key in [key for key in self._objects if key not in present and key not in keep]:
            self._update_and_notify(key, None)
        for key, found in present.items():
            cached = self._objects.get(key)
            if cached is None or _revision_of(found) > _revision_of(cached):
                self._store(key, found)
        self.revision = listing.revision
        return True

    def apply(self, event: WatchEvent[R]) -> bool:
        """Apply a watch event; return False if it changed nothing."""
        key, revision = event.object.metadata.key, event.revision
        cached = self._objects.get(key)
        if event.type == "DELETED":
            is_new = cached is not None and revision >= _revision_of(cached)
            if is_new:
                self._update_and_notify(key, None)
        else:
            # An absent object may have been deleted after the event: compare with the whole cache.
            is_new = (
                revision >= self.revision if cached is None else revision > _revision_of(cached)
            )
            if is_new:
                self._store(key, event.object)
        self.advance(revision)
        return is_new

    def set(self, key: Key, new: R | None) -> None:
        """Set or remove an object; the caller knows that the change is the newest one."""
        if new is not None:
            self._store(key, new)
        elif key in self._objects:
            self._update_and_notify(key, None)

    def advance(self, to: int) -> None:
        """Record that everything up to a revision was seen."""
        self.revision = max(self.revision, to)

    def _store(self, key: Key, new: R) -> None:
        cached, meta = self._objects.get(key), new.metadata
        # Indexes and controllers keep keys of earlier versions: equal strings exist once.
        if cached is None:
            force_setattr(meta, "namespace", intern(meta.namespace))
            key = meta.key
        elif cached.metadata.uid == meta.uid:
            force_setattr(meta, "namespace", cached.metadata.namespace)
            force_setattr(meta, "name", cached.metadata.name)
        else:
            # An object of the same name with another uid: notify of the deletion first.
            self._update_and_notify(key, None)
        self._update_and_notify(key, new)

    def _update_and_notify(self, key: Key, new: R | None) -> None:
        if new is None:
            old = self._objects.pop(key, None)
        else:
            old = self._objects.get(key)
            self._objects[key] = new
        for index in self._indexes:
            index.update(key, old, new)
        # A handler that fails ends the inner loop; the next round goes on with the one after it.
        handlers = iter(self._handlers)
        while True:
            try:
                for handler in handlers:
                    handler(old, new)
                return
            except Exception as error:
                self._on_error(error, key)


def _revision_of(found: HasMetadata) -> int:
    return parse_revision(found.metadata.resource_version)
