"""Config maps that belong to each other, and a collector beside the cluster."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

from phalanx.api.kinds import CONFIG_MAP, POD, Kind
from phalanx.api.meta import Key
from phalanx.api.wire import Object
from phalanx.chance import SeededChance
from phalanx.client.client import Client
from phalanx.client.transports import Transport
from phalanx.controllers.loop import Informers
from phalanx.controllers.recorder import Note
from phalanx.controllers.upkeep.garbage import Garbage
from tests.controllers.cluster import Cluster

STAY = ("example.com/stay",)


def owner(found: Object, *, blocks: bool = False, **changes: str) -> Object:
    """A reference to an object that was read."""
    meta = found["metadata"]
    return {
        "apiVersion": found["apiVersion"], "kind": found["kind"], "name": meta["name"],
        "uid": meta["uid"], "blockOwnerDeletion": blocks, **changes,
    }  # fmt: skip


async def config(
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


async def there(c: Cluster, kind: Kind = CONFIG_MAP) -> list[str]:
    found = (await c.client.list(kind, namespace="default" if kind.namespaced else "")).items
    return sorted(item["metadata"]["name"] for item in found)


async def delete(c: Cluster, name: str, how: str = "", *, kind: Kind = CONFIG_MAP) -> None:
    await c.client.delete(kind, Key("default", name), propagation=how)


async def change(c: Cluster, name: str, kind: Kind = CONFIG_MAP, **meta: object) -> None:
    await c.client.patch(kind, Key("default", name), {"metadata": meta})


async def owners(c: Cluster, name: str, kind: Kind = CONFIG_MAP) -> list[str]:
    meta = (await c.client.get(kind, Key("default", name)))["metadata"]
    return [one["name"] for one in meta.get("ownerReferences", [])]


async def is_leaving(c: Cluster, name: str) -> bool:
    meta = (await c.client.get(CONFIG_MAP, Key("default", name)))["metadata"]
    return "deletionTimestamp" in meta


def left(c: Cluster, since: int = 0) -> list[str]:
    """Which pods and config maps have left for good, in that order."""
    gone = [change.key for change in c.store.changes(since) if change.after is None]
    kinds = (CONFIG_MAP.prefix(), POD.prefix())
    return [key.rpartition("/")[2] for key in gone if key.startswith(kinds)]


@asynccontextmanager
async def collecting(
    c: Cluster,
    way: Transport | None = None,
    tell: Callable[[Note], None] = lambda note: None,
) -> AsyncIterator[None]:
    """Another collector, with caches of its own, on a way of its own to the server."""
    client = Client(way) if way else c.plane.client("collector")
    informers = Informers(client, SeededChance(2))
    garbage = Garbage(client, informers, tell)
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(informers.run()), group.create_task(garbage.run())]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
