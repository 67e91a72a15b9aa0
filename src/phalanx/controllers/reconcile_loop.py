"""What a reconcile wants done, as values. `loop.py` alone performs them.

Informers → work queue → reconcile → actions → client: what every controller but the scheduler
is.

A reconcile is a function from a key to a Plan; it looks at the world as it is, so that a missed
event costs time, never truth.

Reports: a loop that makes objects of one cache say something, each in the version that it holds.

Below the reporters of `shell/`. Where the server has a newer version than the cache, what is to be
said waits until that is seen, a while at most: the same words about the same version would be
refused again, however often they are repeated.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from msgspec import Struct

from phalanx.api.errors import AlreadyExists, ApiError, Conflict, NotFound
from phalanx.api.kinds import Kind
from phalanx.api.meta import Key, ObjectMeta
from phalanx.api.wire import MERGE_PATCH, Object
from phalanx.client.cache import ObjectCache, R
from phalanx.client.client import Client
from phalanx.client.informer import Informer
from phalanx.client.metrics import observe_queue
from phalanx.client.protocol import HasMetadata
from phalanx.client.transports import Unreachable
from phalanx.client.work_queue import WorkQueue
from phalanx.controllers.event_recorder import ObjectEvent
from phalanx.randomness import Random


@dataclass(frozen=True, slots=True)
class Create:
    """Make an object; one that is there already is left alone."""

    kind: Kind
    obj: Object


@dataclass(frozen=True, slots=True)
class Patch:
    """Change a part of an object; one that is gone is left alone."""

    kind: Kind
    key: Key
    change: Object | Sequence[Object]
    subresource: str = ""
    content: str = MERGE_PATCH


@dataclass(frozen=True, slots=True)
class Update:
    """Put an object, or a part of one, in place of what is there."""

    kind: Kind
    obj: Object
    subresource: str = ""


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete the object of that uid, in that version if one is named; one that is gone is left."""

    kind: Kind
    key: Key
    uid: str
    grace: int | None = None
    version: str = ""
    propagation: str = ""


@dataclass(frozen=True, slots=True)
class RecordEvent:
    """Tell something, once what stands before it has been done."""

    event: ObjectEvent


Action = Create | Patch | Update | Delete | RecordEvent


@dataclass(frozen=True, slots=True)
class ReconcilePlan:
    """What to do now, in order, and after how many seconds to look again (None: when told)."""

    actions: Sequence[Action] = ()
    requeue_after: float | None = None


async def perform(
    client: Client, action: Action, record: Callable[[ObjectEvent], None] = lambda note: None
) -> None:
    """Do it. What somebody else has already done is not done twice."""
    try:
        match action:
            case Create(kind, obj):
                await client.create(kind, obj)
            case Patch(kind, key, change, subresource, content):
                await client.patch(kind, key, change, subresource=subresource, content=content)
            case Update(kind, obj, subresource):
                await client.update(kind, obj, subresource=subresource)
            case Delete(kind, key, uid, grace, version, propagation):
                await client.delete(
                    kind, key, uid=uid, version=version, grace=grace, propagation=propagation
                )
            case RecordEvent(note):
                record(note)
    except NotFound:
        if isinstance(action, (Create, Update)):
            raise
    except AlreadyExists:
        if not isinstance(action, Create):
            raise


KeyT = TypeVar("KeyT", bound=Hashable)
#: By the name of a node, the client that asks as this node.
NodeClient = Callable[[str], Client]
#: What is done about a key; in how many seconds to look again, if not only when told.
KeyHandler = Callable[[KeyT], Awaitable[float | None]]
StructT = TypeVar("StructT", bound=HasMetadata)


class StaleCacheError(Exception):
    """The caches have not seen yet how things are: come back later."""


#: What another try may cure.
_RETRYABLE_ERRORS = (ApiError, Unreachable, StaleCacheError)


class PartialObjectMetadata(Struct, frozen=True):
    """As much of any object as somebody needs who reads metadata alone."""

    metadata: ObjectMeta


class Informers:
    """One informer per kind, shared by all the loops of a process."""

    def __init__(self, client: Client, random: Random) -> None:
        self._client, self._random = client, random
        self._informers: dict[Kind, Informer[Any]] = {}

    def of(self, kind: Kind, struct: type[StructT], *, optional: bool = False) -> Informer[StructT]:
        """The informer of a kind; whoever asks first says how it is decoded.

        One that is optional counts as filled, with nothing, where its kind may not be read or is
        not there.
        """
        if kind not in self._informers:
            self._informers[kind] = Informer(
                self._client, kind, struct, random=self._random, optional=optional
            )
        return self._informers[kind]

    @property
    def failures(self) -> dict[Kind, ApiError | Unreachable]:
        """What is wrong at present with following the server, by kind."""
        found = {kind: informer.failure for kind, informer in self._informers.items()}
        return {kind: failure for kind, failure in found.items() if failure is not None}

    def metadata_informer(self, kind: Kind) -> Informer[HasMetadata]:
        """The informer of a kind for somebody who reads metadata alone; asked for last."""
        return self._informers.get(kind) or self.of(kind, PartialObjectMetadata)

    async def run(self) -> None:
        """Follow the server in all of them."""
        async with asyncio.TaskGroup() as group:
            for informer in self._informers.values():
                group.create_task(informer.run())

    @property
    def have_synced(self) -> bool:
        """Whether all of them have been filled."""
        return all(informer.synced.is_set() for informer in self._informers.values())

    async def wait_for_sync(self) -> None:
        """Wait until all of them have been filled."""
        for informer in self._informers.values():
            await informer.synced.wait()


def new_work_queue(client: Client, name: str) -> WorkQueue[Any]:
    """A new queue, which is measured under that name."""
    queue: WorkQueue[Any] = WorkQueue()
    observe_queue(client.metrics, name, queue)
    return queue


async def run_workers(queue: WorkQueue[KeyT], handle: KeyHandler[KeyT], workers: int = 1) -> None:
    """Act on keys until cancelled, some side by side; what fails for now is tried again later."""
    queue.start(asyncio.get_running_loop().time)
    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(workers):
                group.create_task(_run_worker(queue, handle))
    finally:
        queue.close()


async def _run_worker(queue: WorkQueue[KeyT], handle: KeyHandler[KeyT]) -> None:
    while True:
        key = await queue.get()
        try:
            again = await handle(key)
        except _RETRYABLE_ERRORS:
            queue.retry(key)
        else:
            queue.forget(key)
            if again is not None:
                queue.add_after(key, again)
        finally:
            queue.done(key)


class ReconcileLoop(Generic[KeyT]):
    """Works keys off: `reconcile` says what to do about each, `workers` do it side by side.

    `record` hears what a plan tells, `refused` which of its actions the server would not have.
    Where `confirm` is given it is asked first, so that nothing is done on the word of a late view.
    Where `speaker` is given, each key is acted on by the client that it says, else all by one.
    """

    def __init__(
        self, client: Client, reconcile: Callable[[KeyT], ReconcilePlan], workers: int = 1, *,
        record: Callable[[ObjectEvent], None] = lambda note: None,
        on_error: Callable[[KeyT, Action, ApiError], None] = lambda key, action, error: None,
        confirm: Callable[[KeyT], Awaitable[bool]] | None = None,
        client_for: Callable[[KeyT], Client] | None = None,
    ) -> None:  # fmt: skip
        name: str = getattr(reconcile, "__qualname__", type(reconcile).__name__)
        self.queue: WorkQueue[KeyT] = new_work_queue(client, name.partition(".__")[0])
        self._reconcile, self._workers = reconcile, workers
        self._client_for = client_for or (lambda key: client)
        self._record, self._on_error, self._confirm = record, on_error, confirm

    async def run(self) -> None:
        """Work until cancelled."""
        await run_workers(self.queue, self._handle, self._workers)

    async def _handle(self, key: KeyT) -> float | None:
        plan = self._reconcile(key)
        if plan.actions and await self._is_confirmed(key):
            client = self._client_for(key)
            for action in plan.actions:
                await self._perform(client, key, action)
        return plan.requeue_after

    async def _is_confirmed(self, key: KeyT) -> bool:
        return self._confirm is None or await self._confirm(key)

    async def _perform(self, client: Client, key: KeyT, action: Action) -> None:
        try:
            await perform(client, action, self._record)
        except ApiError as error:
            self._on_error(key, action, error)
            raise


#: Seconds after which it is said again though no newer version was seen.
CONFLICT_RETRY_SECONDS = 60.0


class StatusPatchLoop(ReconcileLoop[Key]):
    """Works off keys of a cache; `reconcile` plans at most one patch, of the version in there."""

    def __init__(
        self,
        client: Client,
        reconcile: Callable[[Key], ReconcilePlan],
        objects: ObjectCache[R],
        workers: int = 1,
    ) -> None:
        super().__init__(client, reconcile, workers)
        self._objects: Mapping[Key, HasMetadata] = objects
        #: Of what the server has a newer version than the cache, and until when that is waited for.
        self._stale_until: dict[Key, float] = {}
        objects.subscribe(self._on_change)

    async def _handle(self, key: Key) -> float | None:
        now = asyncio.get_running_loop().time()
        if (left := self._stale_until.get(key, now) - now) > 0:
            return left
        self._stale_until.pop(key, None)
        return await super()._handle(key)

    async def _perform(self, client: Client, key: Key, action: Action) -> None:
        before = self._cached_version(key)
        try:
            await super()._perform(client, key, action)
        except Conflict:
            if before != self._cached_version(key):
                raise
            self._stale_until[key] = asyncio.get_running_loop().time() + CONFLICT_RETRY_SECONDS
            self.queue.add_after(key, CONFLICT_RETRY_SECONDS)

    def _cached_version(self, key: Key) -> str:
        found = self._objects.get(key)
        return found.metadata.resource_version if found else ""

    def _on_change(self, old: HasMetadata | None, new: HasMetadata | None) -> None:
        seen = new or old
        if seen is not None and (key := seen.metadata.key) in self._stale_until:
            del self._stale_until[key]
            self.queue.add(key)
