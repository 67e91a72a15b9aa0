"""Reports: a loop that makes objects of one cache say something, each in the version that it holds.

Below the reporters of `shell/`. Where the server has a newer version than the cache, what is to be
said waits until that is seen, a while at most: the same words about the same version would be
refused again, however often they are repeated.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from phalanx.api.errors import Conflict
from phalanx.api.meta import Key
from phalanx.client.answers import Resource
from phalanx.client.cache import Cache, R
from phalanx.client.client import Client
from phalanx.controllers.actions import Action, Plan
from phalanx.controllers.loop import Loop

#: Seconds after which it is said again though no newer version was seen.
PATIENCE = 60.0


class Reports(Loop[Key]):
    """Works off keys of a cache; `reconcile` plans at most one patch, of the version in there."""

    def __init__(
        self, client: Client, reconcile: Callable[[Key], Plan], objects: Cache[R], workers: int = 1
    ) -> None:
        super().__init__(client, reconcile, workers)
        self._objects: Mapping[Key, Resource] = objects
        #: Of what the server has a newer version than the cache, and until when that is waited for.
        self._outdated: dict[Key, float] = {}
        objects.subscribe(self._changed)

    async def _handle(self, key: Key) -> float | None:
        now = asyncio.get_running_loop().time()
        if (left := self._outdated.get(key, now) - now) > 0:
            return left
        self._outdated.pop(key, None)
        return await super()._handle(key)

    async def _perform(self, client: Client, key: Key, action: Action) -> None:
        before = self._version(key)
        try:
            await super()._perform(client, key, action)
        except Conflict:
            if before != self._version(key):
                raise
            self._outdated[key] = asyncio.get_running_loop().time() + PATIENCE
            self.queue.add_after(key, PATIENCE)

    def _version(self, key: Key) -> str:
        found = self._objects.get(key)
        return found.metadata.resource_version if found else ""

    def _changed(self, old: Resource | None, new: Resource | None) -> None:
        seen = new or old
        if seen is not None and (key := seen.metadata.key) in self._outdated:
            del self._outdated[key]
            self.queue.add(key)
