"""Reconcile loops: informers → work queue → reconcile → actions → client.

Every controller except the scheduler is such a loop. `reconcile` is a function from a key to a
`ReconcilePlan`: it reads the caches as they are, so that a missed event delays an action but never
makes it wrong. It does no I/O itself; the loop performs the actions of the plan in order, logs
them, and retries the key with back-off if one fails. So it does after an unexpected exception,
which is logged with its traceback (`client/error_containment.py`): other keys are not affected.
Failures that are part of normal operation, a cache that is behind or a namespace that is being
deleted, are retried without a warning.

    reconcile("default/train") -> ReconcilePlan([Patch(POD_GROUP, …)], requeue_after=15.0)

`StatusPatchLoop` is the loop of status writers: it patches objects of one cache, each with the
resourceVersion that the cache holds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, Unpack

from phalanx import logs
from phalanx.api.errors import AlreadyExists, ApiError, Conflict, Forbidden, NotFound
from phalanx.api.kinds import Kind
from phalanx.api.meta import Key
from phalanx.api.other_kinds import PriorityClass
from phalanx.api.scheme import kind_of, struct_of
from phalanx.api.wire import MERGE_PATCH, Object
from phalanx.api.workload_sources import NATIVE_SOURCES, ServedSources
from phalanx.client.cache import ObjectCache, R
from phalanx.client.client import Client
from phalanx.client.informer import Informer
from phalanx.client.protocol import HasMetadata, ListScope, parse_revision
from phalanx.client.transports import Unreachable
from phalanx.client.work_queue import WorkQueue, observe_queue
from phalanx.client.workload_sources import SourcedObjects, WorkloadSourceTransport
from phalanx.clock import Clock
from phalanx.controllers.event_recorder import ObjectEvent
from phalanx.randomness import Random

LOG = logs.component("controllers")


@dataclass(frozen=True, slots=True)
class Create:
    """Create an object, unless it exists; with `owner_uid`, unless this owner controls it.

    If another object has the name, an `owner_uid` makes the action fail with AlreadyExists.
    """

    kind: Kind
    obj: Object
    owner_uid: str = ""


@dataclass(frozen=True, slots=True)
class Patch:
    """Patch an object or subresource, if the object exists."""

    kind: Kind
    key: Key
    change: Object | Sequence[Object]
    subresource: str = ""
    content: str = MERGE_PATCH


@dataclass(frozen=True, slots=True)
class Update:
    """Replace an object or subresource."""

    kind: Kind
    obj: Object
    subresource: str = ""


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete the object with this uid, if it exists (in this `version`, if one is given)."""

    kind: Kind
    key: Key
    uid: str
    grace: int | None = None
    version: str = ""
    propagation: str = ""


@dataclass(frozen=True, slots=True)
class RecordEvent:
    """Record an Event after the actions before it have succeeded."""

    event: ObjectEvent


Action = Create | Patch | Update | Delete | RecordEvent


@dataclass(frozen=True, slots=True)
class ReconcilePlan:
    """Actions in order, and after how many seconds to reconcile again (None: on the next event)."""

    actions: Sequence[Action] = ()
    requeue_after: float | None = None


async def perform(
    client: Client,
    action: Action,
    record: Callable[[ObjectEvent], None] = lambda event: None,
    *,
    controller: str = "",
) -> Object | None:
    """Perform an action. An action whose effect is already there succeeds.

    Returns the name, uid and version of the object that was written; None if there is none.
    """
    if LOG.is_debug():
        _log_action(action, controller)
    try:
        match action:
            case Create(kind, obj):
                return await client.create(kind, obj, brief=True)
            case Patch(kind, key, change, subresource, content):
                return await client.patch(
                    kind, key, change, subresource=subresource, content=content, brief=True
                )
            case Update(kind, obj, subresource):
                return await client.update(kind, obj, subresource=subresource)
            case Delete(kind, key, uid, grace, version, propagation):
                await client.delete(
                    kind,
                    key,
                    uid=uid,
                    version=version,
                    grace=grace,
                    propagation=propagation,
                    brief=True,
                )
            case RecordEvent(event):
                record(event)
    except NotFound:
        if isinstance(action, (Create, Update)):
            raise
    except AlreadyExists:
        if not isinstance(action, Create) or not await _is_controlled(client, action):
            raise
    return None


async def _is_controlled(client: Client, action: Create) -> bool:
    """Whether the existing object is the one to create; True if it is gone again."""
    if not action.owner_uid:
        return True
    meta = action.obj["metadata"]
    try:
        existing = await client.get(action.kind, Key(meta.get("namespace", ""), meta["name"]))
    except NotFound:
        return True
    owners = existing["metadata"].get("ownerReferences", ())
    return any(one.get("controller") and one["uid"] == action.owner_uid for one in owners)


def _log_action(action: Action, controller: str) -> None:
    match action:
        case Create(kind, obj) | Update(kind, obj):
            meta = obj.get("metadata") or {}
            name = meta.get("name") or f"{meta.get('generateName', '')}*"
            key = Key(meta.get("namespace") or "", name)
        case Patch(kind, key) | Delete(kind, key):
            pass
        case RecordEvent(event):
            kind, key = event.kind, event.regarding.key
    fields: dict[str, object] = {"action": type(action).__name__, "kind": kind.name, "key": key}
    if isinstance(action, (Patch, Update)) and action.subresource:
        fields["subresource"] = action.subresource
    if controller:
        fields["controller"] = controller
    LOG.debug("action", **fields)


KeyT = TypeVar("KeyT", bound=Hashable)
#: Returns the client whose user is the node of this name.
NodeClient = Callable[[str], Client]
#: Reconciles a key; returns after how many seconds to do it again (None: on the next event).
KeyHandler = Callable[[KeyT], Awaitable[float | None]]
StructT = TypeVar("StructT", bound=HasMetadata)


class StaleCacheError(Exception):
    """The caches do not show the effect of an earlier write yet: reconcile again later."""


def treat_conflict_as_stale(key: Hashable, action: Action, error: ApiError) -> None:
    """Handle errors of patches that are conditional on the version in the cache.

    A conflict means that the cache is behind: the key is reconciled again without a warning.
    """
    if isinstance(error, Conflict):
        raise StaleCacheError(str(error)) from error


#: Retries (about a second of them) during which the cache may not show that a pod is gone.
_QUIET_DENIALS = 7


def treat_denial_as_stale(queue: WorkQueue[KeyT], key: KeyT, error: ApiError) -> None:
    """Handle errors of writes of a node to its pods.

    A node may write to its own pods only, so a write to a pod that others have deleted is
    forbidden. The cache shows the deletion soon: until then the key is reconciled again without a
    warning. A denial that lasts is reported like every other error.
    """
    if isinstance(error, Forbidden) and queue.num_requeues(key) < _QUIET_DENIALS:
        raise StaleCacheError(str(error)) from error


def is_namespace_terminating(error: Exception) -> bool:
    """Whether a request failed because its namespace is being deleted.

    Nothing can be created there any more. The owner of the object is deleted soon, too.
    """
    causes = error.causes if isinstance(error, ApiError) else ()
    return any(cause.reason == "NamespaceTerminating" for cause in causes)


#: Errors after which a key is reconciled again with back-off.
_RETRYABLE_ERRORS = (ApiError, Unreachable, StaleCacheError)


class Informers:
    """One informer per kind, shared by all loops of a process.

    The `sources` say as which kinds the server keeps groups of pods. `client` writes to them.
    """

    def __init__(
        self, client: Client, random: Random, sources: ServedSources = NATIVE_SOURCES
    ) -> None:
        self._client, self._random = client, random
        self._objects = SourcedObjects(client, random, sources)
        self.client = client
        if sources.need_conversion:
            self.client = client.with_transport(
                lambda inner: WorkloadSourceTransport(inner, self._objects)
            )
        self._informers: dict[Kind, Informer[Any]] = {}

    def is_converted(self, kind: Kind, key: Key) -> bool:
        """Whether the server keeps an object as another kind than components know."""
        return self._objects.is_converted(kind, key)

    def of(self, struct: type[StructT], *, optional: bool = False) -> Informer[StructT]:
        """Return the informer of the kind that a struct decodes, by its row in `api/scheme.py`.

        An optional informer counts as synced, and empty, where the server does not serve the kind
        or forbids reading it.
        """
        return self._informer(kind_of(struct), struct, optional=optional)

    def resolve_priority_classes(self) -> None:
        """Give groups the priority of their class where no admission of the server does."""
        if not self._objects.sources.are_native:
            self._objects.follow_classes(self.of(PriorityClass, optional=True))

    async def list_from_api(self, struct: type[StructT], namespace: str) -> Sequence[StructT]:
        """List objects of a namespace from the API instead of a cache, as components know them."""
        return await self._objects.list_from_api(kind_of(struct), struct, namespace)

    async def has_live_members(self, group: Key) -> bool:
        """Whether a pod that has not ended refers to a group, by the API instead of a cache."""
        return await self._objects.has_live_members(group)

    @property
    def failures(self) -> dict[Kind, ApiError | Unreachable]:
        """The current failures of informers, by the kind that the server has."""
        informers = self._informers.values()
        return {kind: error for one in informers for kind, error in one.failures.items()}

    def metadata_informer(self, kind: Kind) -> Informer[HasMetadata]:
        """Return the informer of any kind, for readers of the metadata alone."""
        return self._informer(kind, struct_of(kind), optional=False)

    def new_informer(
        self, kind: Kind, struct: type[StructT], **scope: Unpack[ListScope]
    ) -> Informer[StructT]:
        """Return a new informer that its caller runs: of a part of a kind, or for some time."""
        return Informer(self._client, kind, struct, random=self._random, **scope)

    def _informer(self, kind: Kind, struct: type[StructT], *, optional: bool) -> Informer[StructT]:
        if kind not in self._informers:
            self._informers[kind] = self._objects.build_informer(kind, struct, optional=optional)
        return self._informers[kind]

    async def run(self) -> None:
        """Run all informers until cancelled."""
        async with asyncio.TaskGroup() as group:
            for informer in self._informers.values():
                group.create_task(informer.run())

    @property
    def have_synced(self) -> bool:
        """Whether all caches have been filled."""
        return all(informer.synced.is_set() for informer in self._informers.values())

    async def wait_for_sync(self) -> None:
        """Wait until all caches have been filled."""
        for informer in self._informers.values():
            await informer.synced.wait()


def new_work_queue(client: Client, name: str) -> WorkQueue[Any]:
    """Return a new work queue with metrics and log lines under this name."""
    queue: WorkQueue[Any] = WorkQueue(name=name, errors=client.errors)
    observe_queue(client.metrics, name, queue)
    return queue


async def run_workers(queue: WorkQueue[KeyT], handle: KeyHandler[KeyT], workers: int = 1) -> None:
    """Handle keys until cancelled, `workers` at a time; a failed key is retried with back-off."""
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
            requeue_after = await handle(key)
        except _RETRYABLE_ERRORS as error:
            is_normal = isinstance(error, StaleCacheError) or is_namespace_terminating(error)
            write = LOG.debug if is_normal else LOG.warning
            write(
                "reconcile failed, retrying",
                controller=queue.name,
                key=key,
                attempt=queue.num_requeues(key) + 1,
                backoff=queue.retry_delay(key),
                reason=error,
            )
            queue.add_rate_limited(key)
        except Exception as error:
            queue.errors.contain(
                error,
                LOG,
                "reconcile failed, retrying",
                controller=queue.name,
                key=key,
                attempt=queue.num_requeues(key) + 1,
                backoff=queue.retry_delay(key),
            )
            queue.add_rate_limited(key)
        else:
            queue.forget(key)
            if requeue_after is not None:
                queue.add_after(key, requeue_after)
        finally:
            queue.done(key)


class ReconcileLoop(Generic[KeyT]):
    """Reconciles keys of a work queue, `workers` at a time.

    `record` receives the Events of plans. `on_error` is called with each action that the server
    rejects, unless its namespace is being deleted. `confirm`, if given, is awaited before the
    actions of a plan: it reads the API where a cache may be stale. `client_for`, if given, returns
    the client for a key.
    """

    def __init__(
        self,
        client: Client,
        reconcile: Callable[[KeyT], ReconcilePlan],
        workers: int = 1,
        *,
        record: Callable[[ObjectEvent], None] = lambda event: None,
        on_error: Callable[[KeyT, Action, ApiError], None] = lambda key, action, error: None,
        confirm: Callable[[KeyT], Awaitable[bool]] | None = None,
        client_for: Callable[[KeyT], Client] | None = None,
    ) -> None:
        name: str = getattr(reconcile, "__qualname__", type(reconcile).__name__)
        self.queue: WorkQueue[KeyT] = new_work_queue(client, name.partition(".__")[0])
        self._reconcile, self._workers = reconcile, workers
        self._client_for = client_for or (lambda key: client)
        self._record, self._on_error, self._confirm = record, on_error, confirm

    async def run(self) -> None:
        """Reconcile keys until cancelled."""
        await run_workers(self.queue, self._handle, self._workers)

    async def _handle(self, key: KeyT) -> float | None:
        plan = self._reconcile(key)
        if plan.actions and (self._confirm is None or await self._confirm(key)):
            client = self._client_for(key)
            for action in plan.actions:
                await self._perform(client, key, action)
        return plan.requeue_after

    async def _perform(self, client: Client, key: KeyT, action: Action) -> None:
        try:
            await perform(client, action, self._record, controller=self.queue.name)
        except ApiError as error:
            if not is_namespace_terminating(error):
                self._on_error(key, action, error)
            raise


#: Seconds after which a conflicting patch is repeated although the cache shows no newer version.
CONFLICT_RETRY_SECONDS = 60.0
#: Seconds after which a key is reconciled although the cache does not show its last patch.
OWN_PATCH_SECONDS = 5.0


class StatusPatchLoop(ReconcileLoop[Key]):
    """Patches objects of a cache; `reconcile` plans at most one patch of the cached version.

    After a conflict the key waits until the cache shows a newer version: until then a retry would
    send the same resourceVersion and conflict again. After a patch it waits for the version that
    the patch has made: compared with the version before, a change back would seem to be no change.
    """

    def __init__(
        self,
        client: Client,
        reconcile: Callable[[Key], ReconcilePlan],
        objects: ObjectCache[R],
        *,
        workers: int = 1,
    ) -> None:
        super().__init__(client, reconcile, workers)
        self._objects: Mapping[Key, HasMetadata] = objects
        #: Keys of which the server has a newer version than the cache, and until when each waits.
        self._stale_until: dict[Key, float] = {}
        #: Those of them that are reconciled again as soon as the cache shows a newer version.
        self._deferred: set[Key] = set()
        objects.subscribe(self._on_change)

    def await_version(self, key: Key, version: str) -> None:
        """Wait until the cache shows a version that another loop of this process has made."""
        cached = self._cached_version(key)
        if cached and parse_revision(cached) < parse_revision(version):
            self._stale_until[key] = asyncio.get_running_loop().time() + OWN_PATCH_SECONDS

    async def _handle(self, key: Key) -> float | None:
        now = asyncio.get_running_loop().time()
        if (left := self._stale_until.get(key, now) - now) > 0:
            self._deferred.add(key)
            return left
        self._stale_until.pop(key, None)
        self._deferred.discard(key)
        return await super()._handle(key)

    async def _perform(self, client: Client, key: Key, action: Action) -> None:
        before = self._cached_version(key)
        try:
            await super()._perform(client, key, action)
        except Conflict:
            if before != self._cached_version(key):
                raise
            LOG.debug("status conflict, waiting for the cache", controller=self.queue.name, key=key)
            self._stale_until[key] = asyncio.get_running_loop().time() + CONFLICT_RETRY_SECONDS
            self._deferred.add(key)
            self.queue.add_after(key, CONFLICT_RETRY_SECONDS)
        else:
            if before and before == self._cached_version(key):
                self._stale_until[key] = asyncio.get_running_loop().time() + OWN_PATCH_SECONDS

    def _cached_version(self, key: Key) -> str:
        found = self._objects.get(key)
        return found.metadata.resource_version if found else ""

    def _on_change(self, old: HasMetadata | None, new: HasMetadata | None) -> None:
        seen = new or old
        if seen is not None and (key := seen.metadata.key) in self._stale_until:
            del self._stale_until[key]
            if key in self._deferred:
                self._deferred.discard(key)
                self.queue.add(key)


#: Seconds until a count that waits is computed again, and for which it waits at most.
COUNT_RETRY_DELAY, MAX_COUNT_DELAY = 0.5, 2.0


class PodCreations:
    """The number of requests to create pods that controllers have under way."""

    def __init__(self) -> None:
        self.active = 0


class CountDelay:
    """Lets the counts in the status of an object wait while pods are created and bound.

    Users read counts, and no controller acts on them. While the process is busy with pods, writes
    of mere counts wait, for at most `MAX_COUNT_DELAY` seconds: pods come first, and several changes
    of one status become one write.

        pods are created or bound     seconds_to_wait     then
        no                            0                   the count is written
        yes, for less than 2 s        0.5                 it is computed and asked again
        yes, for longer               0                   the count is written
    """

    def __init__(self, clock: Clock, is_busy: Callable[[], bool] = lambda: False) -> None:
        self._clock, self._is_busy = clock, is_busy
        #: Since when each count waits.
        self._waiting_since: dict[Key, float] = {}

    def seconds_to_wait(self, key: Key) -> float:
        """Return after how many seconds to ask again; 0 if the count may be written now."""
        if not self._is_busy():
            self._waiting_since.pop(key, None)
            return 0.0
        now = self._clock.now()
        if now - self._waiting_since.setdefault(key, now) < MAX_COUNT_DELAY:
            return COUNT_RETRY_DELAY
        del self._waiting_since[key]
        return 0.0

    def forget(self, key: Key) -> None:
        """Drop the state of an object whose status is written, or that is gone."""
        self._waiting_since.pop(key, None)
