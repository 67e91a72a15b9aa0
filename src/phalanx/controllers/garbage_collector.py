"""The garbage collector: deletes objects whose owners are gone, by the owners' propagation policy.

Each dependent is reconciled by the state of its owners. An owner that is deleted with the policy
Foreground or Orphan has a finalizer, which the collector removes once its dependents are gone or
orphaned.

    state of the owners             action on the dependent
    all absent                      delete it
    one present                     keep it, remove the references to absent owners
    one orphaning its dependents    keep it, remove the references to owners that are not present
    one in foreground deletion      delete it before that owner, and after its own dependents

Owners and dependents may be of any kind that the server serves, custom kinds included
(`resource_monitors.py`). An owner is absent only if the API confirms it, by name and uid: caches
may be stale, and another object may have the same name. An owner of a kind that is not served
counts as present: the kind may be served later. Every write is conditional on the version that was
examined. The controller is disabled on a foreign API server, which has its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import msgspec

from phalanx import logs
from phalanx.api.conversion.hub import STORED_KINDS
from phalanx.api.errors import NotFound
from phalanx.api.kinds import Kind
from phalanx.api.meta import ObjectMeta, OwnerReference, PartialObjectMetadata
from phalanx.client.client import Client
from phalanx.client.protocol import HasMetadata, parse_revision
from phalanx.client.work_queue import WorkQueue
from phalanx.controllers.event_recorder import ObjectEvent
from phalanx.controllers.ownership_graph import (
    FOREGROUND,
    ORPHAN,
    POLICY_BY_FINALIZER,
    ObjectKey,
    OwnerKey,
    OwnerReferences,
    OwnerState,
    deletion_state,
)
from phalanx.controllers.reconcile_loop import (
    Informers,
    StaleCacheError,
    new_work_queue,
    run_workers,
)
from phalanx.controllers.resource_monitors import ResourceMonitors

LOG = logs.component("garbage-collector")
_WORKERS = 16
#: The states of owners to which a dependent keeps its reference.
_KEPT_STATES = {OwnerState.PRESENT, OwnerState.UNCACHED}
#: Seconds until an owner is reconciled again whose dependents the caches do not all show yet.
_RETRY_INTERVAL = 1.0


class GarbageCollector:
    """Deletes and orphans dependents and finalizes owners; `record` receives the events.

    `queue` holds the objects to reconcile. An object without owners and dependents is never queued.
    """

    def __init__(
        self,
        client: Client,
        informers: Informers,
        record: Callable[[ObjectEvent], None] = lambda event: None,
        *,
        kinds: Sequence[Kind] = STORED_KINDS,
        is_foreign: bool = False,
    ) -> None:
        self._client, self._record = client, record
        self.queue: WorkQueue[ObjectKey] = new_work_queue(client, "garbage")
        #: Dependents with an owner of a kind that is not served.
        self._unresolved: set[ObjectKey] = set()
        self._monitors = ResourceMonitors(
            client,
            informers,
            kinds,
            on_change=self._on_change,
            on_forget=self.queue.add,
            on_new_kinds=self._enqueue_unresolved,
            is_foreign=is_foreign,
        )
        self._graph, self._caches = self._monitors.graph, self._monitors.caches
        self._monitors.subscribe()

    async def run(self) -> None:
        """Collect garbage until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._monitors.run())
            await self._monitors.wait_for_sync()
            await run_workers(self.queue, self._reconcile, _WORKERS)

    async def _reconcile(self, item: ObjectKey) -> float | None:
        cache = self._caches.get(item.kind)
        found = None if cache is None else cache.get(item.key)
        if found is None:
            return None
        meta, state = found.metadata, deletion_state(found.metadata)
        if state.is_waiting and not self._monitors.has_synced:
            return _RETRY_INTERVAL
        if state is OwnerState.ORPHANING:
            return await self._finish_orphaning(item, meta)
        if state is OwnerState.FOREGROUND:
            # The deletion of the last blocking dependent enqueues the owner again.
            if not self._graph.is_blocked(OwnerKey(item, meta.uid)):
                await self._remove_finalizer(item, meta, FOREGROUND)
        elif meta.owner_references and not meta.deletion_timestamp:
            await self._process_owners(item, meta)
        return None

    async def _finish_orphaning(self, item: ObjectKey, meta: ObjectMeta) -> float | None:
        """Remove the finalizer of an owner once no dependent has a reference to it.

        The change of the last dependent enqueues the owner again.
        """
        owner = OwnerKey(item, meta.uid)
        dependents = self._graph.dependents(owner)
        if any(not dependent.deletion_timestamp for _, dependent in dependents):
            return None
        if await self._has_unseen_dependents(owner, parse_revision(meta.resource_version)):
            return _RETRY_INTERVAL
        await self._remove_finalizer(item, meta, ORPHAN)
        return None

    async def _has_unseen_dependents(self, owner: OwnerKey, since: int) -> bool:
        """Whether the API has a dependent that a cache older than `since` does not show.

        Once the owner is gone, nothing shows that this dependent was to be orphaned.
        """
        item = owner.object_key
        for kind, cache in tuple(self._caches.items()):
            is_possible = kind.namespaced or not item.kind.namespaced
            if cache.revision < since and is_possible and self._monitors.is_readable(kind):
                listing = await self._client.list(
                    kind, PartialObjectMetadata, namespace=item.key.namespace
                )
                for found in listing.items:
                    meta = found.metadata
                    if meta.deletion_timestamp:
                        continue
                    if owner in self._graph.resolve_owners(meta):
                        return True
        return False

    async def _process_owners(self, item: ObjectKey, meta: ObjectMeta) -> None:
        """Delete a dependent without owners, or remove its references to absent owners."""
        self._unresolved.discard(item)
        states = [await self._owner_state(item, meta, owner) for owner in meta.owner_references]
        if not {*_KEPT_STATES, OwnerState.ORPHANING} & set(states):
            await self._delete(item, meta, is_awaited=OwnerState.FOREGROUND in states)
        elif not set(states) <= _KEPT_STATES:
            owners = zip(meta.owner_references, states, strict=True)
            kept = [owner for owner, state in owners if state in _KEPT_STATES]
            await self._patch(item, meta, {"ownerReferences": msgspec.to_builtins(kept) or None})
            LOG.debug("Owner references removed", kind=item.kind.name, key=item.key)
        elif OwnerState.UNCACHED in states:
            # Its deletion may never show in the cache: look again.
            raise StaleCacheError(f"no cache shows an owner of {item} yet")

    async def _owner_state(
        self, item: ObjectKey, meta: ObjectMeta, reference: OwnerReference
    ) -> OwnerState:
        """The state of an owner. An owner that cannot be resolved counts as present."""
        kind = self._graph.owner_kind(reference)
        if kind is not None and kind.namespaced and not item.key.namespace:
            self._record(_wrong_namespace_event(item, meta, reference))
            return OwnerState.PRESENT
        owner = self._graph.resolve_owner(reference, item.key.namespace)
        if owner is not None:
            known = self._graph.cached_meta(owner)
            if known is not None:
                return deletion_state(known)
            if self._graph.is_absent(owner):
                return OwnerState.ABSENT
        if owner is None or owner.object_key.kind not in self._caches:
            self._unresolved.add(item)
            return OwnerState.PRESENT
        state = await self._read_owner_state(owner)
        if state is OwnerState.ABSENT and self._graph.is_in_other_namespace(owner):
            self._record(_wrong_namespace_event(item, meta, reference))
        return state

    async def _read_owner_state(self, owner: OwnerKey) -> OwnerState:
        """Read the state of an owner from the API."""
        kind, key = owner.object_key
        try:
            meta = (await self._client.get(kind, key, PartialObjectMetadata)).metadata
        except NotFound as error:
            if not error.name:
                # The kind is not served, so that nothing is known about the object.
                raise StaleCacheError(f"{kind.resource} is no longer served") from error
            meta = ObjectMeta()
        if meta.uid != owner.uid:
            self._graph.mark_absent(owner)
            return OwnerState.ABSENT
        state = deletion_state(meta)
        return OwnerState.UNCACHED if state is OwnerState.PRESENT else state

    async def _delete(self, item: ObjectKey, meta: ObjectMeta, *, is_awaited: bool) -> None:
        """Delete a dependent by the policy of its finalizers.

        If an owner in foreground deletion waits for it (`is_awaited`) and it has dependents itself,
        it is deleted in the foreground too.
        """
        policies = [POLICY_BY_FINALIZER[f] for f in POLICY_BY_FINALIZER if f in meta.finalizers]
        policy = policies[0] if policies else "Background"
        if is_awaited and any(self._graph.dependents(OwnerKey(item, meta.uid))):
            policy = POLICY_BY_FINALIZER[FOREGROUND]
        uid, version = meta.uid, meta.resource_version
        try:
            await self._client.delete(
                item.kind, item.key, uid=uid, version=version, propagation=policy, brief=True
            )
        except NotFound:
            return
        LOG.debug("Dependent deleted", kind=item.kind.name, key=item.key, propagation=policy)

    async def _remove_finalizer(self, item: ObjectKey, meta: ObjectMeta, finalizer: str) -> None:
        remaining = [name for name in meta.finalizers if name != finalizer]
        await self._patch(item, meta, {"finalizers": remaining or None})
        LOG.debug("Finalizer removed", kind=item.kind.name, key=item.key, finalizer=finalizer)

    async def _patch(self, item: ObjectKey, meta: ObjectMeta, change: dict[str, object]) -> None:
        preconditions = {"uid": meta.uid, "resourceVersion": meta.resource_version}
        try:
            await self._client.patch(
                item.kind, item.key, {"metadata": {**preconditions, **change}}, brief=True
            )
        except NotFound:
            return

    def _on_change(self, kind: Kind, old: HasMetadata | None, new: HasMetadata | None) -> None:
        """Enqueue the object and those of its owners and dependents that the change concerns."""
        found = new or old
        if found is None or _relevant_fields(old) == _relevant_fields(new):
            return
        item = ObjectKey(kind, found.metadata.key)
        self._graph.update(item, _owner_references(old), _owner_references(new))
        if old is not None:
            meta = old.metadata
            for owner in self._graph.resolve_owners(meta):
                cached = self._graph.cached_meta(owner)
                if cached is not None and deletion_state(cached).is_waiting:
                    self.queue.add(owner.object_key)
            if new is None:
                deleted = OwnerKey(item, meta.uid)
                self._unresolved.discard(item)
                self._graph.mark_absent(deleted)
                self._enqueue_dependents(deleted)
        if new is not None:
            meta = new.metadata
            is_waiting = deletion_state(meta).is_waiting
            if is_waiting or meta.owner_references:
                self.queue.add(item)
            if is_waiting:
                self._enqueue_dependents(OwnerKey(item, meta.uid))

    def _enqueue_dependents(self, owner: OwnerKey) -> None:
        for item, _ in self._graph.dependents(owner):
            self.queue.add(item)

    def _enqueue_unresolved(self) -> None:
        for item in self._unresolved:
            self.queue.add(item)


def _owner_references(found: HasMetadata | None) -> OwnerReferences:
    return found.metadata.owner_references if found else ()


def _relevant_fields(found: HasMetadata | None) -> tuple[object, ...]:
    """The fields of an object that garbage collection reads; most changes leave them alone."""
    if found is None:
        return ()
    meta = found.metadata
    return meta.owner_references, meta.deletion_timestamp, deletion_state(meta)


def _wrong_namespace_event(item: ObjectKey, meta: ObjectMeta, owner: OwnerReference) -> ObjectEvent:
    namespace = item.key.namespace
    where = f"namespace: {namespace}, name: {owner.name}, uid: {owner.uid}"
    reference = f"[{owner.api_version}/{owner.kind}, {where}]"
    message = f'ownerRef {reference} does not exist in namespace "{namespace}"'
    return ObjectEvent(item.kind, meta, "OwnerRefInvalidNamespace", message=message, type="Warning")
