"""The root CA certificate publisher, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from phalanx.api.errors import NotFound
from phalanx.api.kinds import CONFIG_MAP, NAMESPACE
from phalanx.api.meta import Key
from phalanx.api.wire import Object
from phalanx.clock import LoopClock
from phalanx.components import ComponentConfig
from phalanx.control_plane import ControlPlane
from phalanx.controllers.namespace_objects import ROOT_CA_CONFIG_MAP
from phalanx.randomness import SeededRandom
from phalanx.store.memory import MemoryStore
from tests.builders import in_virtual_time
from tests.controllers.cluster import EPOCH, Cluster, cluster

PEM = "-----BEGIN CERTIFICATE-----\nA\n-----END CERTIFICATE-----\n"


@asynccontextmanager
async def publishing_cluster(
    store: MemoryStore | None = None, pem: str = PEM
) -> AsyncIterator[Cluster]:
    """A control plane whose certificate authority is known."""

    async def load_root_ca() -> str:
        return pem

    clock = LoopClock(asyncio.get_running_loop(), EPOCH)
    store = store or MemoryStore()
    config = ComponentConfig(without=("nodes", "scheduler"), load_root_ca=load_root_ca)
    plane = ControlPlane(store, clock, SeededRandom(1), config)
    async with plane.running():
        await asyncio.sleep(1)
        yield Cluster(plane, store, clock)


async def published(c: Cluster, namespace: str = "default") -> Object:
    return await c.client.get(CONFIG_MAP, Key(namespace, ROOT_CA_CONFIG_MAP))


@in_virtual_time
async def test_every_namespace_has_the_root_certificate() -> None:
    async with publishing_cluster() as c:
        await c.create({"kind": "Namespace", "metadata": {"name": "shop"}})
        await asyncio.sleep(1)
        namespaces = [one["metadata"]["name"] for one in (await c.client.list(NAMESPACE)).items]
        assert {"default", "kube-system", "shop"} <= set(namespaces)
        for namespace in namespaces:
            assert (await published(c, namespace))["data"] == {"ca.crt": PEM}


@in_virtual_time
async def test_deleted_root_certificate_is_created_again() -> None:
    async with publishing_cluster() as c:
        before = await published(c)
        await c.delete(CONFIG_MAP, ROOT_CA_CONFIG_MAP)
        await asyncio.sleep(1)
        after = await published(c)
        assert after["data"] == {"ca.crt": PEM}
        assert after["metadata"]["uid"] != before["metadata"]["uid"]


@pytest.mark.parametrize(
    "change",
    [
        {"data": {"more": "x"}},
        {"data": {"ca.crt": "forged"}},
        {"data": None},
        {"binaryData": {"b": "eA=="}},
    ],
)
@in_virtual_time
async def test_changed_root_certificate_is_restored(change: Object) -> None:
    async with publishing_cluster() as c:
        key = Key("default", ROOT_CA_CONFIG_MAP)
        await c.client.patch(CONFIG_MAP, key, {**change, "metadata": {"labels": {"mine": "x"}}})
        await asyncio.sleep(1)
        found = await published(c)
        assert (found["data"], found.get("binaryData")) == ({"ca.crt": PEM}, None)
        assert found["metadata"]["labels"] == {"mine": "x"}


@in_virtual_time
async def test_other_config_maps_are_not_changed() -> None:
    async with publishing_cluster() as c:
        meta = {"name": "mine", "namespace": "default"}
        made = await c.client.create(CONFIG_MAP, {"metadata": meta, "data": {"ca.crt": "mine"}})
        await asyncio.sleep(60)
        assert await c.client.get(CONFIG_MAP, Key("default", "mine")) == made


@in_virtual_time
async def test_new_certificate_authority_replaces_the_published_one() -> None:
    async with publishing_cluster() as c:
        await c.delete(CONFIG_MAP, ROOT_CA_CONFIG_MAP)
        await asyncio.sleep(1)
        revision = c.store.revision
        await asyncio.sleep(60)
        assert c.store.revision == revision
        async with publishing_cluster(c.store, PEM.replace("A", "B")) as later:
            assert (await published(later))["data"] == {"ca.crt": PEM.replace("A", "B")}


@in_virtual_time
async def test_deleted_namespace_with_the_root_certificate_is_removed() -> None:
    async with publishing_cluster() as c:
        await c.create({"kind": "Namespace", "metadata": {"name": "shop"}})
        await asyncio.sleep(1)
        await c.delete(NAMESPACE, "shop")
        await asyncio.sleep(5)
        with pytest.raises(NotFound):
            await c.client.get(NAMESPACE, Key("", "shop"))


@in_virtual_time
async def test_nothing_is_published_where_no_certificate_authority_is_known() -> None:
    async with cluster() as c:
        await asyncio.sleep(60)
        assert (await c.client.list(CONFIG_MAP)).items == []
