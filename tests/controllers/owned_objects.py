"""ConfigMaps that own each other, and a garbage collector of its own for a test."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

from phalanx.api.kinds import CONFIG_MAP, POD, Kind
from phalanx.api.meta import Key
from phalanx.api.wire import Object
from phalanx.client.client import Client
from phalanx.client.transports import Transport
from phalanx.controllers.event_recorder import ObjectEvent
from phalanx.controllers.garbage_collector import GarbageCollector
from phalanx.controllers.reconcile_loop import Informers
from phalanx.randomness import SeededRandom
from tests.controllers.cluster import Cluster

HELD_FINALIZERS = ("example.com/stay",)


def owner_reference(found: Object, *, blocks: bool = False, **changes: str) -> Object:
    """Build an owner reference to an object."""
    meta = found["metadata"]
    return {
        "apiVersion": found["apiVersion"], "kind": found["kind"], "name": meta["name"],
        "uid": meta["uid"], "blockOwnerDeletion": blocks, **changes,
    }  # fmt: skip


async def create_config(
    c: Cluster,
    name: str,
    *owners: Object,
    kind: Kind = CONFIG_MAP,
    namespace: str = "default",
    finalizers: Sequence[str] = (),
) -> Object:
    meta = {
        "name": name, "namespace": namespace, "ownerReferences": list(owners),
        "finalizers": list(finalizers),
    }  # fmt: skip
    return await c.client.create(kind, {"metadata": meta})


async def object_names(c: Cluster, kind: Kind = CONFIG_MAP) -> list[str]:
    found = (await c.client.list(kind, namespace="default" if kind.namespaced else "")).items
    return sorted(item["metadata"]["name"] for item in found)


async def delete_object(
    c: Cluster, name: str, policy: str = "", *, kind: Kind = CONFIG_MAP
) -> None:
    await c.client.delete(kind, Key("default", name), propagation=policy)


async def change_metadata(c: Cluster, name: str, kind: Kind = CONFIG_MAP, **meta: object) -> None:
    await c.client.patch(kind, Key("default", name), {"metadata": meta})


async def owner_names(c: Cluster, name: str, kind: Kind = CONFIG_MAP) -> list[str]:
    meta = (await c.client.get(kind, Key("default", name)))["metadata"]
    return [one["name"] for one in meta.get("ownerReferences", [])]


async def is_terminating(c: Cluster, name: str) -> bool:
    meta = (await c.client.get(CONFIG_MAP, Key("default", name)))["metadata"]
    return "deletionTimestamp" in meta


def deleted_names(c: Cluster, since: int = 0) -> list[str]:
    """Return the names of the removed pods and ConfigMaps, in order of removal."""
    removed = [change.key for change in c.store.changes(since) if change.after is None]
    kinds = (CONFIG_MAP.store_prefix(), POD.store_prefix())
    return [key.rpartition("/")[2] for key in removed if key.startswith(kinds)]


@asynccontextmanager
async def running_collector(
    c: Cluster,
    transport: Transport | None = None,
    record: Callable[[ObjectEvent], None] = lambda event: None,
    *,
    is_foreign: bool = False,
) -> AsyncIterator[None]:
    """Run a garbage collector with its own caches, and with its own transport if given."""
    client = Client(transport) if transport else c.plane.client("collector")
    informers = Informers(client, SeededRandom(2))
    collector = GarbageCollector(client, informers, record, is_foreign=is_foreign)
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(informers.run()), group.create_task(collector.run())]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
