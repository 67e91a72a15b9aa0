"""Informer: lists and watches one kind into a cache.

After a broken connection it resumes at the last revision; if the server has compacted that
revision, it lists again, and handlers are notified of the differences only. It never gives up.
Which input is newer is decided by `ObjectCache`. The size of the cache and whether the informer
fails are metrics of the client.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from typing import Any, Generic, TypeVar, Unpack

from phalanx import logs
from phalanx.api.errors import ApiError, Expired, Forbidden, NotFound, Timeout
from phalanx.api.kinds import Kind
from phalanx.api.meta import Key
from phalanx.client.cache import ObjectCache
from phalanx.client.client import Client
from phalanx.client.protocol import HasMetadata, ListScope, WatchDecoder
from phalanx.client.transports import Unreachable
from phalanx.randomness import Random
from phalanx.telemetry import Gauge, Metrics, MetricSpec

LOG = logs.component("informer")

#: Minimum and maximum seconds between failing attempts.
MIN_BACKOFF, MAX_BACKOFF = 1.0, 30.0

INFORMER_OBJECTS = MetricSpec(
    Gauge, "phalanx_informer_objects", "Objects that an informer holds.", ("resource",)
)  # fmt: skip
INFORMER_FAILING = MetricSpec(
    Gauge, "phalanx_informer_failing", "1 if an informer cannot follow the server.", ("resource",)
)  # fmt: skip
INFORMER_METRICS = (INFORMER_OBJECTS, INFORMER_FAILING)

R = TypeVar("R", bound=HasMetadata)


class Informer(Generic[R]):
    """A cache of one kind, or of a part of it, that follows the server while `run` runs.

    `synced` (HasSynced of client-go) is set once the cache is filled. Each function in `on_batch`
    is called after a batch of changes was applied, so that its owner acts once per batch. With
    `convert` the cache holds what it returns for each decoded object. An `optional` informer counts
    as synced, with no objects, as soon as the server answers that its kind is forbidden or not
    served; it keeps trying.
    """

    def __init__(
        self, client: Client, kind: Kind, struct: type[R], *, random: Random,
        optional: bool = False, convert: Callable[[Any], R] | None = None,
        **scope: Unpack[ListScope],
    ) -> None:  # fmt: skip
        self.cache: ObjectCache[R] = ObjectCache(self._on_handler_error)
        self.synced = asyncio.Event()
        self.on_batch: list[Callable[[], None]] = []
        self._client, self._kind, self._struct, self._scope = client, kind, struct, scope
        self._random, self._optional, self._convert = random, optional, convert
        self._failure: ApiError | Unreachable | None = None
        self._has_listed = self._is_healthy = False
        self._max_delay = MIN_BACKOFF
        _observe_informer(client.metrics, kind.resource, self)

    @property
    def failures(self) -> dict[Kind, ApiError | Unreachable]:
        """Why the informer cannot follow the server at present, by the kind that the server has."""
        return {self._kind: self._failure} if self._failure is not None else {}

    @property
    def failure(self) -> ApiError | Unreachable | None:
        """Why the informer cannot follow the server at present; one reason if there are several."""
        return next(iter(self.failures.values()), None)

    async def run(self) -> None:
        """Follow the server until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            start, self._is_healthy = loop.time(), False
            try:
                await self._list_and_watch()
            except (ApiError, Unreachable) as error:
                # The same failure is a warning once, then at debug level.
                write = LOG.debug if str(error) == str(self._failure) else LOG.warning
                write("informer disconnected", resource=self._kind.resource, reason=error)
                self._failure = error
                # 410: the revision was compacted. 504: the revision is in the future, so the
                # server has another history.
                self._has_listed = self._has_listed and not isinstance(error, Expired | Timeout)
                if self._optional and isinstance(error, Forbidden | NotFound):
                    self.synced.set()
            except Exception as error:
                # The next attempt may fail alike, so it needs a back-off.
                self._has_listed = self._is_healthy = False
                self._contain(error, "informer failed, starting again")
            # An attempt that lasted this long needs no back-off, even if it delivered nothing.
            self._is_healthy = self._is_healthy or loop.time() - start >= MAX_BACKOFF
            await asyncio.sleep(self._next_delay())

    async def _list_and_watch(self) -> None:
        if not self._has_listed:
            await self._list()
        skip = None if self._client.errors.raise_errors else self._on_unreadable
        decoder = WatchDecoder(self._struct, self.cache.revision, skip)
        batches = self._client.watch_batches(self._kind, decoder, **self._scope)
        async with aclosing(batches):
            async for batch in batches:
                self._failure, self._is_healthy = None, self._is_healthy or bool(batch)
                if (convert := self._convert) is not None:
                    # Of an object that cannot be decoded, only the deletion is delivered.
                    batch = [
                        event._replace(object=convert(event.object))
                        if isinstance(event.object, self._struct)
                        else event
                        for event in batch
                    ]
                changes = [self.cache.apply(event) for event in batch]
                if any(changes):
                    self._notify_batch()
                self.cache.advance(decoder.revision)

    async def _list(self) -> None:
        unreadable: set[Key] = set()

        def skip(key: Key, error: Exception) -> None:
            unreadable.add(key)
            self._on_unreadable(key, error)

        listing = await self._client.list_readable(
            self._kind,
            self._struct,
            None if self._client.errors.raise_errors else skip,
            **self._scope,
        )
        if self._convert is not None:
            listing = listing._replace(items=[self._convert(one) for one in listing.items])
        if self.synced.is_set():
            LOG.warning("informer lists again", resource=self._kind.resource)
        if not self.cache.replace(listing, keep=unreadable):
            raise Timeout(
                f"the server listed {self._kind.plural} as of revision {listing.revision}, "
                f"but revision {self.cache.revision} was seen already"
            )
        self._failure, self._has_listed = None, True
        self.synced.set()
        self._notify_batch()

    def _notify_batch(self) -> None:
        for notify in self.on_batch:
            notify()

    def _on_unreadable(self, key: Key, error: Exception) -> None:
        self._contain(error, "object cannot be decoded, ignored until it changes", key=key)

    def _on_handler_error(self, error: Exception, key: Key) -> None:
        self._contain(error, "event handler failed", key=key)

    def _contain(self, error: Exception, message: str, **fields: object) -> None:
        resource = self._kind.resource
        self._client.errors.contain(
            error, LOG, message, controller="informer", resource=resource, **fields
        )

    def _next_delay(self) -> float:
        """Return no delay after a successful attempt, else a random one up to a growing maximum."""
        if self._is_healthy:
            self._max_delay = MIN_BACKOFF
            return 0.0
        self._max_delay = min(2 * self._max_delay, MAX_BACKOFF)
        return self._random.between(MIN_BACKOFF, self._max_delay)


def _observe_informer(metrics: Metrics, resource: str, informer: Informer[Any]) -> None:
    """Read the gauges of an informer on each scrape, for as long as the informer exists."""
    objects = metrics.series(INFORMER_OBJECTS, resource)
    failing = metrics.series(INFORMER_FAILING, resource)

    def read(informer: Informer[Any]) -> None:
        objects.value, failing.value = len(informer.cache), informer.failure is not None

    metrics.on_collect(informer, read)
