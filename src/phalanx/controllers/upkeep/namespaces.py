"""Namespaces that are being deleted: empty them, then let them go."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import msgspec

from phalanx.api.errors import NotFound
from phalanx.api.kinds import NAMESPACE, Kind
from phalanx.api.meta import Key, Meta
from phalanx.client.client import Client
from phalanx.client.workqueue import WorkQueue
from phalanx.controllers.loop import Informers, Thing, observed_queue, work

#: Seconds between looks at a namespace that is not empty yet.
_PATIENCE = 1.0


class Namespaces:
    """Deletes what is in a namespace that is to go, and finalizes it when nothing is left.

    What is in it is asked of the server each time, not of caches: a namespace must not be let go
    while it holds anything.
    """

    def __init__(self, client: Client, informers: Informers) -> None:
        self._client = client
        self._cache = informers.of(NAMESPACE, Thing).cache
        self._queue: WorkQueue[Key] = observed_queue(client, "namespace")
        self._cache.subscribe(self._changed)

    async def run(self) -> None:
        """Work until cancelled."""
        await work(self._queue, self._empty)

    async def _empty(self, key: Key) -> float | None:
        namespace = self._cache.get(key)
        if namespace is None or not namespace.metadata.deletion_timestamp:
            return None
        left = [await self._delete_all(kind, key.name) for kind in await self._contents()]
        if any(left):
            return _PATIENCE
        empty = {"metadata": {"name": key.name}, "spec": {"finalizers": []}}
        await self._client.update(NAMESPACE, empty, subresource="finalize")
        return None

    async def _contents(self) -> list[Kind]:
        """The kinds of which something may be in a namespace, as the server tells now."""
        accept = {"accept": "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"}
        found: dict[tuple[str, str], Kind] = {}
        for path in ("/api", "/apis"):
            for kind in _served(await self._client.get_raw(path, accept)):
                found.setdefault((kind.group, kind.plural), kind)
        # The same Events are served twice; once is enough.
        found.pop(("events.k8s.io", "events"), None)
        return list(found.values())

    async def _delete_all(self, kind: Kind, namespace: str) -> int:
        """Delete what there is of a kind; how much of it is left."""
        found = (await self._client.list(kind, Thing, namespace=namespace)).items
        if not found:
            return 0
        await asyncio.gather(*(self._delete(kind, item.metadata) for item in found))
        return len((await self._client.list(kind, Thing, namespace=namespace)).items)

    async def _delete(self, kind: Kind, meta: Meta) -> None:
        if not meta.deletion_timestamp:
            try:
                await self._client.delete(kind, meta.key, uid=meta.uid)
            except NotFound:
                return

    def _changed(self, old: Thing | None, new: Thing | None) -> None:
        if new is not None and new.metadata.deletion_timestamp:
            self._queue.add(new.metadata.key)


def _served(document: bytes) -> Iterator[Kind]:
    """The namespaced kinds of a discovery document that can be deleted."""
    for group in msgspec.json.decode(document)["items"]:
        name = group["metadata"].get("name", "")
        for version in group["versions"]:
            for row in version["resources"]:
                if row["scope"] == "Namespaced" and {"list", "delete"} <= set(row["verbs"]):
                    kind = row["responseKind"]["kind"]
                    yield Kind(name, version["version"], kind, row["resource"], "")
