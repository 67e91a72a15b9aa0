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
from phalanx.chance import Chance
from phalanx.client.answers import Event, Resource, WatchDecoder
from phalanx.client.cache import Cache
from phalanx.client.client import Client
from phalanx.client.metrics import observe_informer
from phalanx.client.requests import Scope
from phalanx.client.transports import Unreachable

#: Seconds between attempts that fail, at least and at most.
SHORTEST_PAUSE, LONGEST_PAUSE = 1.0, 30.0

R = TypeVar("R", bound=Resource)


class Informer(Generic[R]):
    """A cache of one kind, or of a part of it, that follows the server while `run` runs.

    `synced` is set once the cache has been filled. Each function in `settled` is called after the
    changes that came together were all applied, so that its owner can act once for all of them.
    `failure` is what is wrong at present, if anything. One that is `optional` counts as filled,
    with nothing, as soon as the server says that its kind may not be read or is not there; it goes
    on asking.
    """

    def __init__(
        self, client: Client, kind: Kind, struct: type[R], *, chance: Chance,
        optional: bool = False, **scope: Unpack[Scope],
    ) -> None:  # fmt: skip
        self.cache: Cache[R] = Cache()
        self.synced = asyncio.Event()
        self.settled: list[Callable[[], None]] = []
        self.failure: ApiError | Unreachable | None = None
        self._client, self._kind, self._struct, self._scope = client, kind, struct, scope
        self._chance, self._optional = chance, optional
        self._listed = self._healthy = False
        self._ceiling = SHORTEST_PAUSE
        observe_informer(client.metrics, kind.resource, self)

    async def run(self) -> None:
        """Follow the server until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            start, self._healthy = loop.time(), False
            try:
                await self._attempt()
            except (ApiError, Unreachable) as error:
                self.failure = error
                # 410: our place is forgotten. 504: it is in the future, so another history began.
                self._listed = self._listed and not isinstance(error, Expired | Timeout)
                if self._optional and isinstance(error, Forbidden | NotFound):
                    self.synced.set()
            # What lasted so long was a pause by itself, or a watch with nothing to tell.
            self._healthy = self._healthy or loop.time() - start >= LONGEST_PAUSE
            await asyncio.sleep(self._pause())

    async def _attempt(self) -> None:
        if not self._listed:
            await self._list()
        decoder = WatchDecoder(self._struct, self.cache.revision)
        batches = self._client.batches(self._kind, decoder, **self._scope)
        async with aclosing(batches):
            async for batch in batches:
                self.failure, self._healthy = None, self._healthy or bool(batch)
                self._apply(batch)
                self.cache.advance(decoder.revision)

    async def _list(self) -> None:
        listing = await self._client.list(self._kind, self._struct, **self._scope)
        if not self.cache.replace(listing):
            raise Timeout(
                f"the server listed {self._kind.plural} as of revision {listing.revision}, "
                f"but revision {self.cache.revision} was seen already"
            )
        self.failure, self._listed = None, True
        self.synced.set()
        self._settle()

    def _apply(self, batch: Sequence[Event[R]]) -> None:
        news = [self.cache.apply(event) for event in batch]
        if any(news):
            self._settle()

    def _settle(self) -> None:
        for settled in self.settled:
            settled()

    def _pause(self) -> float:
        """Nothing after an attempt that went well, then longer and longer."""
        if self._healthy:
            self._ceiling = SHORTEST_PAUSE
            return 0.0
        self._ceiling = min(2 * self._ceiling, LONGEST_PAUSE)
        return self._chance.between(SHORTEST_PAUSE, self._ceiling)
