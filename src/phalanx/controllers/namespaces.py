"""The namespace controller: deletes the contents of a deleted namespace, then finalizes it.

    namespace is deleted    delete every object in it, of every kind that the server serves
    objects are left        check again after a second: finalizers may keep them
    no object is left       remove the finalizer of the namespace, which removes the namespace

The contents are read from the API, never from caches: a namespace must not be finalized while it
contains an object.
"""

from __future__ import annotations

import asyncio

from phalanx import logs
from phalanx.api.core import Namespace
from phalanx.api.errors import NotFound
from phalanx.api.kinds import EVENTS_EVENT, NAMESPACE, Kind
from phalanx.api.meta import Key, ObjectMeta, PartialObjectMetadata
from phalanx.client.client import Client
from phalanx.client.discovery import discover_resources
from phalanx.client.work_queue import WorkQueue
from phalanx.controllers.reconcile_loop import Informers, new_work_queue, run_workers

LOG = logs.component("namespace-controller")
#: Seconds between two checks of a namespace that is not empty yet.
_RETRY_INTERVAL = 1.0


class NamespaceController:
    """Empties and finalizes deleted namespaces until cancelled."""

    def __init__(self, client: Client, informers: Informers) -> None:
        self._client = client
        self._cache = informers.of(Namespace).cache
        self._queue: WorkQueue[Key] = new_work_queue(client, "namespace")
        self._cache.subscribe(self._on_change)

    async def run(self) -> None:
        """Empty deleted namespaces until cancelled."""
        await run_workers(self._queue, self._reconcile)

    async def _reconcile(self, key: Key) -> float | None:
        namespace = self._cache.get(key)
        if namespace is None or not namespace.metadata.deletion_timestamp:
            return None
        discovery = await discover_resources(self._client)
        kinds = [found.kind for found in discovery.resources if _is_emptied(found.kind)]
        remaining = sum([await self._delete_all(kind, key.name) for kind in kinds])
        # A group that discovery does not show now may have objects in the namespace.
        if remaining or not discovery.is_complete:
            LOG.debug(
                "Namespace not empty yet", kind=NAMESPACE.name, key=key.name, objects=remaining
            )
            return _RETRY_INTERVAL
        finalized = {"metadata": {"name": key.name}, "spec": {"finalizers": []}}
        await self._client.update(NAMESPACE, finalized, subresource="finalize")
        LOG.info("Namespace finalized", kind=NAMESPACE.name, key=key.name)
        return None

    async def _delete_all(self, kind: Kind, namespace: str) -> int:
        """Delete all objects of a kind in a namespace; return how many are left."""
        found = (await self._client.list(kind, PartialObjectMetadata, namespace=namespace)).items
        if not found:
            return 0
        await asyncio.gather(*(self._delete(kind, item.metadata) for item in found))
        return len(
            (await self._client.list(kind, PartialObjectMetadata, namespace=namespace)).items
        )

    async def _delete(self, kind: Kind, meta: ObjectMeta) -> None:
        if not meta.deletion_timestamp:
            try:
                await self._client.delete(kind, meta.key, uid=meta.uid)
            except NotFound:
                return
            LOG.debug("Object deleted", kind=kind.name, key=meta.key)

    def _on_change(self, old: Namespace | None, new: Namespace | None) -> None:
        if new is not None and new.metadata.deletion_timestamp:
            self._queue.add(new.metadata.key)


def _is_emptied(kind: Kind) -> bool:
    """Whether objects of a kind are deleted with their namespace.

    Events are served in two groups; deleting them in one is enough.
    """
    can_delete = kind.namespaced and {"list", "delete"} <= set(kind.verbs)
    return can_delete and (kind.group, kind.plural) != (EVENTS_EVENT.group, EVENTS_EVENT.plural)
