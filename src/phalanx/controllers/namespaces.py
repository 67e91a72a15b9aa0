"""Namespaces that are being deleted: empty them, then let them go."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import msgspec

from phalanx.api.errors import NotFound
from phalanx.api.kinds import NAMESPACE, Kind
from phalanx.api.meta import Key, ObjectMeta
from phalanx.client.client import Client
from phalanx.client.work_queue import WorkQueue
from phalanx.controllers.reconcile_loop import (
    Informers,
    PartialObjectMetadata,
    new_work_queue,
    run_workers,
)

#: Seconds between looks at a namespace that is not empty yet.
_RETRY_INTERVAL = 1.0


class NamespaceController:
    """Deletes what is in a namespace that is to go, and finalizes it when nothing is left.

    What is in it is asked of the server each time, not of caches: a namespace must not be let go
    while it holds anything.
    """

    def __init__(self, client: Client, informers: Informers) -> None:
        self._client = client
        self._cache = informers.of(NAMESPACE, PartialObjectMetadata).cache
        self._queue: WorkQueue[Key] = new_work_queue(client, "namespace")
        self._cache.subscribe(self._changed)

    async def run(self) -> None:
        """Work until cancelled."""
        await run_workers(self._queue, self._reconcile)

    async def _reconcile(self, key: Key) -> float | None:
        namespace = self._cache.get(key)
        if namespace is None or not namespace.metadata.deletion_timestamp:
            return None
        left = [await self._delete_all(kind, key.name) for kind in await self._deletable_kinds()]
        if any(left):
            return _RETRY_INTERVAL
        empty = {"metadata": {"name": key.name}, "spec": {"finalizers": []}}
        await self._client.update(NAMESPACE, empty, subresource="finalize")
        return None

    async def _deletable_kinds(self) -> list[Kind]:
        """The kinds of which something may be in a namespace, as the server tells now."""
        accept = {"accept": "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"}
        found: dict[tuple[str, str], Kind] = {}
        for path in ("/api", "/apis"):
            for kind in _parse_discovery(await self._client.get_raw(path, accept)):
                found.setdefault((kind.group, kind.plural), kind)
        # The same Events are served twice; once is enough.
        found.pop(("events.k8s.io", "events"), None)
        return list(found.values())

    async def _delete_all(self, kind: Kind, namespace: str) -> int:
        """Delete what there is of a kind; how much of it is left."""
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

    def _changed(
        self, old: PartialObjectMetadata | None, new: PartialObjectMetadata | None
    ) -> None:
        if new is not None and new.metadata.deletion_timestamp:
            self._queue.add(new.metadata.key)


def _parse_discovery(document: bytes) -> Iterator[Kind]:
    """The namespaced kinds of a discovery document that can be deleted."""
    for group in msgspec.json.decode(document)["items"]:
        name = group["metadata"].get("name", "")
        for version in group["versions"]:
            for row in version["resources"]:
                if row["scope"] == "Namespaced" and {"list", "delete"} <= set(row["verbs"]):
                    kind = row["responseKind"]["kind"]
                    yield Kind(name, version["version"], kind, row["resource"], "")
