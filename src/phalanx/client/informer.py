"""List, then watch, into a cache: how everything that acts learns what there is.

Between `client.Client` and the controllers' queues. After a cut it resumes where it was; when the
server has forgotten that place it lists again, and its readers hear only of what differs. Never
gives up; what may be believed of what comes is decided in `cache.Cache`, not here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import aclosing
from typing import Generic, TypeVar, Unpack

from phalanx.api.errors import ApiError, Expired, Forbidden, NotFound, Timeout
from phalanx.api.kinds import Kind
from phalanx.client.cache import ObjectCache
from phalanx.client.client import Client
from phalanx.client.metrics import observe_informer
from phalanx.client.protocol import HasMetadata, ListScope, WatchDecoder, WatchEvent
from phalanx.client.transports import Unreachable
from phalanx.randomness import Random

#: Seconds between attempts that fail, at least and at most.
MIN_BACKOFF, MAX_BACKOFF = 1.0, 30.0

R = TypeVar("R", bound=HasMetadata)


class Informer(Generic[R]):
    """A cache of one kind, or of a part of it, that follows the server while `run` runs.

    `synced` is set once the cache has been filled. Each function in `settled` is called after the
    changes that came together were all applied, so that its owner can act once for all of them.
    `failure` is what is wrong at present, if anything. One that is `optional` counts as filled,
    with nothing, as soon as the server says that its kind may not be read or is not there; it goes
    on asking.
    """

    def __init__(
        self, client: Client, kind: Kind, struct: type[R], *, random: Random,
        optional: bool = False, **scope: Unpack[ListScope],
    ) -> None:  # fmt: skip
        self.cache: ObjectCache[R] = ObjectCache()
        self.synced = asyncio.Event()
        self.on_batch: list[Callable[[], None]] = []
        self.failure: ApiError | Unreachable | None = None
        self._client, self._kind, self._struct, self._scope = client, kind, struct, scope
        self._random, self._optional = random, optional
        self._has_listed = self._is_healthy = False
        self._max_delay = MIN_BACKOFF
        observe_informer(client.metrics, kind.resource, self)

    async def run(self) -> None:
        """Follow the server until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            start, self._is_healthy = loop.time(), False
            try:
                await self._list_and_watch()
            except (ApiError, Unreachable) as error:
                self.failure = error
                # 410: our place is forgotten. 504: it is in the future, so another history began.
                self._has_listed = self._has_listed and not isinstance(error, Expired | Timeout)
                if self._optional and isinstance(error, Forbidden | NotFound):
                    self.synced.set()
            # What lasted so long was a pause by itself, or a watch with nothing to tell.
            self._is_healthy = self._is_healthy or loop.time() - start >= MAX_BACKOFF
            await asyncio.sleep(self._next_delay())

    async def _list_and_watch(self) -> None:
        if not self._has_listed:
            await self._list()
        decoder = WatchDecoder(self._struct, self.cache.revision)
        batches = self._client.watch_batches(self._kind, decoder, **self._scope)
        async with aclosing(batches):
            async for batch in batches:
                self.failure, self._is_healthy = None, self._is_healthy or bool(batch)
                self._apply_batch(batch)
                self.cache.advance(decoder.revision)

    async def _list(self) -> None:
        listing = await self._client.list(self._kind, self._struct, **self._scope)
        if not self.cache.replace(listing):
            raise Timeout(
                f"the server listed {self._kind.plural} as of revision {listing.revision}, "
                f"but revision {self.cache.revision} was seen already"
            )
        self.failure, self._has_listed = None, True
        self.synced.set()
        self._notify_batch()

    def _apply_batch(self, batch: Sequence[WatchEvent[R]]) -> None:
        news = [self.cache.apply(event) for event in batch]
        if any(news):
            self._notify_batch()

    def _notify_batch(self) -> None:
        for settled in self.on_batch:
            settled()

    def _next_delay(self) -> float:
        """Nothing after an attempt that went well, then longer and longer."""
        if self._is_healthy:
            self._max_delay = MIN_BACKOFF
            return 0.0
        self._max_delay = min(2 * self._max_delay, MAX_BACKOFF)
        return self._random.between(MIN_BACKOFF, self._max_delay)
