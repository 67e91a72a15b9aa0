"""The objects of a cache by something else than their name: pods by node, pods by group.

Kept up to date by `cache.Cache` before any handler hears of a change. Holds no object that the
cache does not hold.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable
from typing import Generic, TypeVar

from phalanx.api.meta import Key
from phalanx.client.answers import Resource

R = TypeVar("R", bound=Resource)


class Index(Generic[R]):
    """Objects under what `keys` says of each: one thing, several, or nothing.

    by_node = cache.index(lambda pod: [pod.node] if pod.node else [])
    by_node["node-1"]   ->   (pod a, pod b)
    """

    def __init__(self, keys: Callable[[R], Collection[Hashable]]) -> None:
        self.keys = keys
        self._under: dict[Hashable, dict[Key, R]] = {}

    def __getitem__(self, key: Hashable) -> tuple[R, ...]:
        return tuple(self._under.get(key, {}).values())

    def __len__(self) -> int:
        return len(self._under)

    def move(self, name: Key, old: R | None, new: R | None) -> None:
        """Take out what was and put in what is. Called by the cache alone."""
        after = self.keys(new) if new is not None else ()
        if old is not None:
            for key in self.keys(old):
                if key not in after:
                    self._take_out(key, name)
        if new is not None and after:
            for key in after:
                self._under.setdefault(key, {})[name] = new

    def _take_out(self, key: Hashable, name: Key) -> None:
        objects = self._under[key]
        del objects[name]
        if not objects:
            del self._under[key]
