"""The namespace controller: deleted namespaces are emptied, then removed."""

from __future__ import annotations

import asyncio

import pytest

from phalanx.api.errors import Forbidden, NotFound
from phalanx.api.kinds import CONFIG_MAP, EVENT, KINDS, LEASE, NAMESPACE, POD, POD_GROUP
from phalanx.api.meta import Key
from phalanx.api.wire import Object
from phalanx.client.client import Client
from phalanx.controllers.namespaces import NamespaceController
from phalanx.controllers.reconcile_loop import Informers
from phalanx.randomness import SeededRandom
from tests.api.custom_resource_definitions import custom_resource_definition
from tests.builders import gang, in_virtual_time, pod
from tests.controllers.cluster import Cluster, cluster, simulated_nodes
from tests.controllers.crash_recovery import SERVER_ONLY
from tests.controllers.hidden_kinds import HidingTransport


def namespaced(kind: str, name: str, **more: object) -> Object:
    return {"kind": kind, "metadata": {"name": name, "namespace": "x"}, **more}


async def namespace_exists(c: Cluster, name: str = "x") -> bool:
    try:
        await c.client.get(NAMESPACE, Key("", name))
    except NotFound:
        return False
    return True


async def contents(c: Cluster, namespace: str) -> dict[str, int]:
    """Return the number of objects of each kind in a namespace."""
    kinds = [kind for kind in KINDS if kind.namespaced and "watch" in kind.verbs]
    found = {kind.plural: (await c.client.list(kind, namespace=namespace)).items for kind in kinds}
    return {name: len(items) for name, items in found.items() if items}


@in_virtual_time
async def test_deleted_namespace_is_emptied_and_removed() -> None:
    async with cluster(nodes=simulated_nodes(2, cpu="4")) as c:
        await c.create({"kind": "Namespace", "metadata": {"name": "x"}})
        await c.create(
            *gang("a", 3, namespace="x", cpu="1"), *gang("big", 9, namespace="x", cpu="3")
        )
        await c.create(namespaced("ConfigMap", "c"), namespaced("Lease", "l"))
        await asyncio.sleep(5)
        assert set(await contents(c, "x")) >= {
            CONFIG_MAP.plural, EVENT.plural, LEASE.plural, POD.plural, POD_GROUP.plural,
        }  # fmt: skip
        await c.delete(NAMESPACE, "x")
        await asyncio.sleep(10)
        assert (await namespace_exists(c), await contents(c, "x")) == (False, {})


@in_virtual_time
async def test_other_namespaces_are_not_changed() -> None:
    async with cluster(nodes=simulated_nodes(1, cpu="4")) as c:
        await c.create({"kind": "Namespace", "metadata": {"name": "x"}})
        await c.create({"kind": "Namespace", "metadata": {"name": "xx"}})
        await c.create(pod("a"), pod("a", namespace="xx"), pod("a", namespace="x"))
        await asyncio.sleep(5)
        await c.delete(NAMESPACE, "x")
        await asyncio.sleep(10)
        assert await namespace_exists(c, "xx")
        assert (await contents(c, "xx"))["pods"] == (await contents(c, "default"))["pods"] == 1


@in_virtual_time
async def test_finalizer_of_an_object_keeps_the_namespace() -> None:
    async with cluster() as c:
        await c.create({"kind": "Namespace", "metadata": {"name": "x"}})
        held = namespaced("ConfigMap", "c")
        held["metadata"]["finalizers"] = ["example.com/stay"]
        await c.create(held)
        await c.delete(NAMESPACE, "x")
        await asyncio.sleep(60)
        assert await namespace_exists(c)
        with pytest.raises(Forbidden):
            await c.create(namespaced("ConfigMap", "late"))
        await c.client.patch(CONFIG_MAP, Key("x", "c"), {"metadata": {"finalizers": []}})
        await asyncio.sleep(2)
        assert not await namespace_exists(c)


@in_virtual_time
async def test_empty_namespace_is_removed_at_once_and_can_be_created_again() -> None:
    async with cluster() as c:
        for _ in range(3):
            await c.create({"kind": "Namespace", "metadata": {"name": "x"}})
            await c.delete(NAMESPACE, "x")
            await asyncio.sleep(0.5)
            assert not await namespace_exists(c)


@in_virtual_time
async def test_namespace_that_is_not_deleted_stays() -> None:
    async with cluster() as c:
        await c.create(
            {"kind": "Namespace", "metadata": {"name": "x"}}, namespaced("ConfigMap", "c")
        )
        await asyncio.sleep(100)
        assert (await contents(c, "x"))["configmaps"] == 1


@in_virtual_time
async def test_namespace_is_kept_while_discovery_is_incomplete() -> None:
    async with cluster(without=SERVER_ONLY) as c:
        await c.create(custom_resource_definition())
        await c.create({"kind": "Namespace", "metadata": {"name": "x"}})
        transport = HidingTransport(c, "Stale")
        transport.is_hiding = True
        client = Client(transport)
        informers = Informers(client, SeededRandom(2))
        controller = NamespaceController(client, informers, c.clock)
        tasks = [asyncio.create_task(run()) for run in (informers.run, controller.run)]
        await c.delete(NAMESPACE, "x")
        await asyncio.sleep(60)
        assert await namespace_exists(c)
        transport.is_hiding = False
        await asyncio.sleep(5)
        assert not await namespace_exists(c)
        for task in tasks:
            task.cancel()


@in_virtual_time
async def test_pods_go_first_and_conditions_say_what_is_left() -> None:
    async with cluster(nodes=simulated_nodes(1, cpu="4")) as c:
        await c.create({"kind": "Namespace", "metadata": {"name": "x"}})
        await c.create(pod("a", namespace="x", meta={"finalizers": ["example.com/hold"]}))
        await c.create(namespaced("ConfigMap", "kept"))
        await asyncio.sleep(5)
        await c.delete(NAMESPACE, "x")
        await asyncio.sleep(5)
        assert (await contents(c, "x"))["configmaps"] >= 1
        found = await c.client.get(NAMESPACE, Key("", "x"))
        conditions = {
            one["type"]: (one["status"], one["reason"]) for one in found["status"]["conditions"]
        }
        assert conditions == {
            "NamespaceDeletionDiscoveryFailure": ("False", "ResourcesDiscovered"),
            "NamespaceDeletionGroupVersionParsingFailure": ("False", "ParsedGroupVersions"),
            "NamespaceDeletionContentFailure": ("False", "ContentDeleted"),
            "NamespaceContentRemaining": ("True", "SomeResourcesRemain"),
            "NamespaceFinalizersRemaining": ("True", "SomeFinalizersRemain"),
        }
        change = {"metadata": {"finalizers": None}}
        await c.client.patch(POD, Key("x", "a"), change)
        await asyncio.sleep(5)
        assert not await namespace_exists(c)


@in_virtual_time
async def test_pods_that_wait_for_a_replacement_do_not_keep_the_namespace() -> None:
    template = {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}}
    spec = {
        "completions": 2, "parallelism": 2, "completionMode": "Indexed",
        "backoffLimitPerIndex": 1, "template": template,
    }  # fmt: skip
    async with cluster(nodes=simulated_nodes(1, cpu="4")) as c:
        await c.create({"kind": "Namespace", "metadata": {"name": "x"}})
        await c.create(namespaced("Job", "j", spec=spec))
        await asyncio.sleep(5)
        assert (await contents(c, "x"))["pods"] == 2
        await c.delete(NAMESPACE, "x")
        await asyncio.sleep(10)
        assert not await namespace_exists(c)
