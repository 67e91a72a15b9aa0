"""Follows every watch of the API during a simulation.

It keeps caches of pods, nodes and groups for the auditor and the timeline, and a digest over all
events in the order of their arrival: two runs that differ anywhere have different digests. It is a
client like any other.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from typing import Any

import msgspec
import orjson

from phalanx.api.conversion.hub import STORED_KINDS
from phalanx.api.core import Node, Pod
from phalanx.api.kinds import NODE, POD, POD_GROUP, Kind
from phalanx.api.scheduling import PodGroup
from phalanx.api.wire import Object
from phalanx.client.cache import ObjectCache
from phalanx.client.client import Client
from phalanx.client.protocol import Listing, WatchDecoder, WatchEvent


class ApiObserver:
    """Follows all changes of some kinds.

    Each function in `on_batch` is called after a batch of changes, with its newest revision.
    """

    def __init__(self, client: Client, kinds: Sequence[Kind] = STORED_KINDS) -> None:
        self.pods: ObjectCache[Pod] = ObjectCache()
        self.nodes: ObjectCache[Node] = ObjectCache()
        self.groups: ObjectCache[PodGroup] = ObjectCache()
        self.on_batch: list[Callable[[int], None]] = []
        self._client, self._kinds = client, kinds
        self._digest = hashlib.sha256()
        self._caches: Mapping[Kind, tuple[type[Any], ObjectCache[Any]]] = {
            POD: (Pod, self.pods), NODE: (Node, self.nodes), POD_GROUP: (PodGroup, self.groups),
        }  # fmt: skip

    @property
    def digest(self) -> str:
        """Return a hash over all events so far."""
        return self._digest.hexdigest()

    async def run(self) -> None:
        """Follow the watches until cancelled; an error of a watch is raised."""
        async with asyncio.TaskGroup() as group:
            for kind in self._kinds:
                group.create_task(self._follow(kind))

    async def _follow(self, kind: Kind) -> None:
        listing = await self._client.list(kind)
        self._update_digest(kind, "LISTED", listing.items)
        if kind in self._caches:
            struct, cache = self._caches[kind]
            found = [msgspec.convert(item, struct) for item in listing.items]
            cache.replace(Listing(found, listing.revision))
        decoder: WatchDecoder[Object] = WatchDecoder(dict, listing.revision)
        while True:
            async with aclosing(self._client.watch_batches(kind, decoder)) as batches:
                async for batch in batches:
                    self._apply_batch(kind, batch)

    def _apply_batch(self, kind: Kind, batch: Iterable[WatchEvent[Object]]) -> None:
        newest = 0
        for event in batch:
            self._update_digest(kind, event.type, [event.object])
            newest = max(newest, event.revision)
            if kind in self._caches:
                struct, cache = self._caches[kind]
                found = msgspec.convert(event.object, struct)
                cache.apply(WatchEvent(event.type, found, event.revision))
        if newest and kind in self._caches:
            for notify in self.on_batch:
                notify(newest)

    def _update_digest(self, kind: Kind, what: str, objects: Iterable[Object]) -> None:
        for found in objects:
            self._digest.update(b"%s %s " % (kind.resource.encode(), what.encode()))
            self._digest.update(orjson.dumps(found))
