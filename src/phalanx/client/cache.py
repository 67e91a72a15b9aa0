"""What is known of one kind on the server: the pure half of an informer.

`informer.Informer` feeds it lists and events; controllers and the scheduler read it, and hear of
each change as (old, new), one of which may be None. Time only goes forward here: nothing older than
what was seen is ever taken in, whatever a server repeats or forgets.

    seen up to   what comes                    what is done
    0            list at 4: a@2 b@4            (None, a@2), (None, b@4)
    4            MODIFIED a@6                  (a@2, a@6)
    6            MODIFIED a@5, ADDED b@4       nothing: both are older
    6            DELETED b@7                   (b@4, None)
    7            ADDED b@4                     nothing: b was deleted after that
    7            list at 3: a@2 b@3            refused: it is from before
    7            list at 9: b@8                (a@6, None), (None, b@8)
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterator, Mapping
from typing import TypeVar

from phalanx.api.meta import Key
from phalanx.client.answers import Event, Listing, Resource, revision
from phalanx.client.index import Index

R = TypeVar("R", bound=Resource)

#: Called with what was and what is, right after the cache and its indexes changed.
Changed = Callable[[R | None, R | None], None]


class Cache(Mapping[Key, R]):
    """The objects of a kind by their keys, as of `revision`. Only its informer changes it."""

    def __init__(self) -> None:
        self.revision = 0
        self._objects: dict[Key, R] = {}
        self._indexes: list[Index[R]] = []
        self._handlers: list[Changed[R]] = []

    def __getitem__(self, key: Key) -> R:
        return self._objects[key]

    def __iter__(self) -> Iterator[Key]:
        return iter(self._objects)

    def __len__(self) -> int:
        return len(self._objects)

    def index(self, keys: Callable[[R], Collection[Hashable]]) -> Index[R]:
        """The objects by something else, from now on; for the same `keys` it is the same index."""
        for known in self._indexes:
            if known.keys is keys:
                return known
        index = Index(keys)
        for key, found in self._objects.items():
            index.move(key, None, found)
        self._indexes.append(index)
        return index

    def subscribe(self, changed: Changed[R]) -> None:
        """Tell of everything that is there already, and then of every change."""
        for found in self._objects.values():
            changed(None, found)
        self._handlers.append(changed)

    def replace(self, listing: Listing[R]) -> bool:
        """Take a list for the truth, telling only of what differs; False if it is from before."""
        if listing.revision < self.revision:
            return False
        present = {found.metadata.key: found for found in listing.items}
        for key in [key for key in self._objects if key not in present]:
            self._change(key, None)
        for key, found in present.items():
            held = self._objects.get(key)
            if held is None or _version(found) > _version(held):
                self._put(key, found)
        self.revision = listing.revision
        return True

    def apply(self, event: Event[R]) -> bool:
        """Take in one event of a watch; False if it told nothing new."""
        key = event.object.metadata.key
        gone = event.type == "DELETED"
        news = self._outlived(key, event.revision) if gone else self._unheard(key, event.revision)
        if news and gone:
            self._change(key, None)
        elif news:
            self._put(key, event.object)
        self.advance(event.revision)
        return news

    def advance(self, to: int) -> None:
        """Note that everything up to a revision was seen."""
        self.revision = max(self.revision, to)

    def _outlived(self, key: Key, at: int) -> bool:
        held = self._objects.get(key)
        return held is not None and at >= _version(held)

    def _unheard(self, key: Key, at: int) -> bool:
        # An object that is not held may have been deleted since: only the whole past can tell.
        held = self._objects.get(key)
        return at >= self.revision if held is None else at > _version(held)

    def _put(self, key: Key, new: R) -> None:
        held = self._objects.get(key)
        if held is not None and held.metadata.uid != new.metadata.uid:
            # Another object of the same name: the old one's end must not go unheard.
            self._change(key, None)
        self._change(key, new)

    def _change(self, key: Key, new: R | None) -> None:
        old = self._objects.pop(key, None) if new is None else self._objects.get(key)
        if new is not None:
            self._objects[key] = new
        for index in self._indexes:
            index.move(key, old, new)
        for changed in self._handlers:
            changed(old, new)


def _version(found: Resource) -> int:
    return revision(found.metadata.resource_version)
