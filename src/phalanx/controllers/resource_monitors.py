"""Watches every kind whose objects can be deleted: built-in, custom and aggregated kinds.

Stands below `garbage_collector.py` and fills its ownership graph. Built-in kinds share the
informers of the process. Kinds that only discovery shows get informers of their own, which keep
little more than owners and finalizers of each object.

    CustomResourceDefinition created      discovery ─▶ a new informer
    another version preferred             discovery ─▶ an informer in that version
    CustomResourceDefinition deleted      discovery ─▶ its last objects are reported as deleted
    kind of an aggregated server absent   discovery ─▶ its objects are forgotten, not deleted

Deleting a definition deletes its objects, so the last of them are gone even if the watch ended
before it showed that. Nothing else that hides a kind deletes an object: an aggregated API server
may be back in a moment.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from msgspec.structs import force_setattr, replace

from phalanx import logs
from phalanx.api.conversion.hub import hub_kind
from phalanx.api.errors import ApiError
from phalanx.api.kinds import CUSTOM_RESOURCE_DEFINITION, EVENT, EVENTS_EVENT, KINDS, Kind
from phalanx.api.meta import PartialObjectMetadata
from phalanx.client.cache import ObjectCache
from phalanx.client.client import Client
from phalanx.client.discovery import ServedResource, discover_resources
from phalanx.client.informer import Informer
from phalanx.client.protocol import HasMetadata
from phalanx.client.transports import Unreachable
from phalanx.controllers.ownership_graph import ObjectKey, OwnerKey, OwnershipGraph
from phalanx.controllers.reconcile_loop import Informers

LOG = logs.component("garbage-collector")
#: Seconds between two discoveries, where kinds may come without a definition or after a failure.
_REDISCOVERY_SECONDS = 30.0
#: Seconds after which a kind that cannot be listed is no longer waited for.
_SYNC_SECONDS = 30.0
_REQUIRED_VERBS = {"delete", "list", "watch"}
# Events are many, own nothing and expire.
_IGNORED_RESOURCES = {(kind.group, kind.plural) for kind in (EVENT, EVENTS_EVENT)}
_NO_ENTRIES: dict[str, str] = {}

#: Called with a kind, and the old and new object of a change.
KindChangeHandler = Callable[[Kind, HasMetadata | None, HasMetadata | None], None]


class OwnershipMetadata(PartialObjectMetadata, frozen=True):
    """An object without its labels and annotations, which may be large."""

    def __post_init__(self) -> None:
        small = replace(self.metadata, labels=_NO_ENTRIES, annotations=_NO_ENTRIES)
        force_setattr(self, "metadata", small)


@dataclass(frozen=True, slots=True)
class _Monitor:
    """The informer of a discovered kind, and until when its first list is waited for."""

    kind: Kind
    informer: Informer[Any]
    task: asyncio.Task[None]
    deadline: float

    @property
    def is_awaited(self) -> bool:
        return not (
            self.informer.synced.is_set() or asyncio.get_running_loop().time() > self.deadline
        )


class ResourceMonitors:
    """Follows all deletable kinds of a server while `run` runs.

    `caches` has the cache of each followed kind, `graph` the owners of the objects in them.
    `on_change` is called for each change of an object, `on_forget` for each dependent of an object
    that is no longer followed, and `on_new_kinds` when further owner references can be resolved.
    If the server `is_foreign`, discovery is repeated periodically, since kinds may come and go
    without a CustomResourceDefinition, and only metadata is requested: objects may be large, while
    our server sends whole objects faster than parts of them.
    """

    def __init__(
        self,
        client: Client,
        informers: Informers,
        kinds: Sequence[Kind],
        *,
        on_change: KindChangeHandler,
        on_forget: Callable[[ObjectKey], object],
        on_new_kinds: Callable[[], None],
        is_foreign: bool,
    ) -> None:
        self._client, self._informers, self._is_foreign = client, informers, is_foreign
        self._on_change, self._on_forget, self._on_new_kinds = on_change, on_forget, on_new_kinds
        shared = [kind for kind in kinds if _is_followed(kind)]
        self._shared = {(kind.group, kind.plural): kind for kind in shared}
        self._shared_informers = [informers.metadata_informer(kind) for kind in shared]
        self.caches: dict[Kind, ObjectCache[HasMetadata]] = {
            kind: informers.metadata_informer(kind).cache for kind in shared
        }
        versions = [*shared, *(kind for kind in KINDS if hub_kind(kind) in self.caches)]
        #: The kind of an owner reference, by apiVersion and kind. A kind that is no longer served
        #: stays: its deleted objects may still have dependents.
        self._kinds = {(kind.api_version, kind.name): hub_kind(kind) for kind in versions}
        self.graph = OwnershipGraph(self.caches, self._kinds)
        #: The informers of discovered kinds, by group and plural.
        self._monitors: dict[tuple[str, str], _Monitor] = {}
        self._is_outdated, self._has_discovered = asyncio.Event(), asyncio.Event()
        #: The resources that definitions have defined, and whether each is still defined.
        self._is_defined: dict[str, bool] = {}

    def subscribe(self) -> None:
        """Report the objects of the shared informers from now on."""
        for kind, cache in self.caches.items():
            cache.subscribe(partial(self._on_change, kind))
        if CUSTOM_RESOURCE_DEFINITION in self.caches:
            self.caches[CUSTOM_RESOURCE_DEFINITION].subscribe(self._on_definition_change)

    async def run(self) -> None:
        """Follow the kinds of the server until cancelled."""
        try:
            async with asyncio.TaskGroup() as group:
                while True:
                    repeats = not await self._discover(group) or self._is_foreign
                    with suppress(TimeoutError):
                        async with asyncio.timeout(_REDISCOVERY_SECONDS if repeats else None):
                            await self._is_outdated.wait()
        finally:
            self._has_discovered.clear()
            for monitor in tuple(self._monitors.values()):
                self._stop_monitor(monitor, is_deleted=False)

    async def wait_for_sync(self) -> None:
        """Wait until all caches are filled, or for some time if a discovered kind fails.

        Whether an owner has dependents is known only then.
        """
        for informer in self._shared_informers:
            await informer.synced.wait()
        with suppress(TimeoutError):
            async with asyncio.timeout(_SYNC_SECONDS):
                await self._has_discovered.wait()
                for monitor in tuple(self._monitors.values()):
                    await monitor.informer.synced.wait()

    @property
    def has_synced(self) -> bool:
        """Whether all caches are filled, except of kinds that could not be listed for long.

        Before the first discovery no custom dependent of an owner is known.
        """
        is_awaited = any(monitor.is_awaited for monitor in self._monitors.values())
        return self._has_discovered.is_set() and not is_awaited

    def is_readable(self, kind: Kind) -> bool:
        """Whether a kind is followed and could be listed."""
        monitor = self._monitors.get((kind.group, kind.plural))
        return kind in self.caches and (monitor is None or monitor.informer.synced.is_set())

    async def _discover(self, group: asyncio.TaskGroup) -> bool:
        """Start and stop informers by what the server serves; return whether that is complete."""
        self._is_outdated.clear()
        try:
            discovery = await discover_resources(self._client)
        except (ApiError, Unreachable) as error:
            LOG.warning("discovery failed", backoff=_REDISCOVERY_SECONDS, reason=error)
            return False
        served = {
            (found.kind.group, found.kind.plural): found
            for found in discovery.resources
            if _is_followed(found.kind)
        }
        for resource, monitor in tuple(self._monitors.items()):
            found = served.get(resource)
            is_hidden = found is None and not discovery.is_complete
            if not is_hidden and (found is None or not _is_same(monitor.kind, found.kind)):
                is_deleted = self._is_defined.get(monitor.kind.resource) is False
                self._stop_monitor(monitor, is_deleted=is_deleted)
        before = dict(self._kinds)
        for resource, found in served.items():
            if resource not in self._shared and resource not in self._monitors:
                self._start_monitor(resource, found.kind, group)
            self._add_versions(resource, found)
        self._has_discovered.set()
        if self._kinds != before:
            self._on_new_kinds()
        return discovery.is_complete

    def _add_versions(self, resource: tuple[str, str], found: ServedResource) -> None:
        monitor = self._monitors.get(resource)
        kind = monitor.kind if monitor else self._shared[resource]
        for api_version in found.api_versions:
            self._kinds[api_version, kind.name] = kind

    def _start_monitor(
        self, resource: tuple[str, str], kind: Kind, group: asyncio.TaskGroup
    ) -> None:
        for reference, known in self._kinds.items():
            if (known.group, known.plural) == resource:
                # References to versions that are no longer served resolve to the one that is.
                self._kinds[reference] = kind
        informer: Informer[Any] = self._informers.new_informer(
            kind, OwnershipMetadata, metadata_only=self._is_foreign
        )
        self.caches[kind] = informer.cache
        informer.cache.subscribe(partial(self._on_change, kind))
        deadline = asyncio.get_running_loop().time() + _SYNC_SECONDS
        self._monitors[resource] = _Monitor(
            kind, informer, group.create_task(informer.run()), deadline
        )
        LOG.debug("resource followed", resource=kind.resource, version=kind.version)

    def _stop_monitor(self, monitor: _Monitor, *, is_deleted: bool) -> None:
        """Stop an informer; report its objects as deleted, or just forget them."""
        kind = monitor.kind
        monitor.task.cancel()
        for key, found in self.caches[kind].items():
            if is_deleted:
                self._on_change(kind, found, None)
            else:
                item, meta = ObjectKey(kind, key), found.metadata
                self.graph.update(item, meta.owner_references, ())
                # Nothing will show that this owner is deleted.
                for dependent, _ in self.graph.dependents(OwnerKey(item, meta.uid)):
                    self._on_forget(dependent)
        del self.caches[kind], self._monitors[kind.group, kind.plural]
        LOG.debug("resource no longer followed", resource=kind.resource, version=kind.version)

    def _on_definition_change(self, old: HasMetadata | None, new: HasMetadata | None) -> None:
        changed = new or old
        if changed is not None:
            self._is_defined[changed.metadata.name] = new is not None
        self._is_outdated.set()


def _is_followed(kind: Kind) -> bool:
    is_ignored = (kind.group, kind.plural) in _IGNORED_RESOURCES
    return not is_ignored and set(kind.verbs) >= _REQUIRED_VERBS


def _is_same(kind: Kind, other: Kind) -> bool:
    """Whether two kinds of a resource have the same version, name and scope."""
    identity = kind.version, kind.name, kind.namespaced
    return identity == (other.version, other.name, other.namespaced)
