"""The ServiceAccount `default` of every namespace."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from phalanx.api.errors import NotFound
from phalanx.api.kinds import NAMESPACE, SERVICE_ACCOUNT
from phalanx.api.meta import Key
from phalanx.api.wire import Object
from phalanx.client.client import Client
from phalanx.controllers.namespace_objects import ServiceAccountController
from phalanx.controllers.reconcile_loop import Informers
from tests.builders import in_virtual_time
from tests.controllers.cluster import Cluster, cluster
from tests.controllers.crash_recovery import (
    SERVER_ONLY,
    Runnable,
    assert_quiet,
    assert_survives_bad_watches,
    assert_survives_every_crash,
    bare_cluster,
    running_controller,
)

INITIAL_NAMESPACES = ["default", "kube-node-lease", "kube-public", "kube-system"]


def build(client: Client, informers: Informers, c: Cluster) -> Sequence[Runnable]:
    return [ServiceAccountController(client, informers).run]


async def accounts(c: Cluster) -> list[str]:
    """Return the namespaces of all accounts; each account must have the name `default`."""
    metas = [found["metadata"] for found in (await c.client.list(SERVICE_ACCOUNT)).items]
    assert {meta["name"] for meta in metas} <= {"default"}
    return sorted(meta["namespace"] for meta in metas)


def namespace(name: str, **spec: object) -> Object:
    meta = {"name": name}
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": meta, "spec": spec}


@in_virtual_time
async def test_every_namespace_has_a_service_account() -> None:
    async with bare_cluster(build) as c:
        await asyncio.sleep(1)
        assert await accounts(c) == INITIAL_NAMESPACES
        await c.create(namespace("new"))
        await asyncio.sleep(1)
        assert await accounts(c) == [*INITIAL_NAMESPACES, "new"]


@in_virtual_time
async def test_deleted_account_is_created_again() -> None:
    async with bare_cluster(build) as c:
        await asyncio.sleep(1)
        before = await c.client.get(SERVICE_ACCOUNT, Key("default", "default"))
        await c.delete(SERVICE_ACCOUNT, "default")
        await asyncio.sleep(1)
        after = await c.client.get(SERVICE_ACCOUNT, Key("default", "default"))
        assert before["metadata"]["uid"] != after["metadata"]["uid"]


@in_virtual_time
async def test_existing_account_is_not_changed() -> None:
    async with cluster(without=SERVER_ONLY) as c:
        meta = {"name": "default", "namespace": "default", "labels": {"mine": "yes"}}
        made = await c.client.create(SERVICE_ACCOUNT, {"metadata": meta})
        async with running_controller(c, build):
            await asyncio.sleep(1)
        assert await c.client.get(SERVICE_ACCOUNT, Key("default", "default")) == made


@in_virtual_time
async def test_terminating_namespace_gets_no_account_and_is_removed_at_once() -> None:
    async with cluster(without=["scheduler", "nodes"]) as c:
        await c.create(namespace("short"))
        await asyncio.sleep(1)
        assert "short" in await accounts(c)
        await c.delete(NAMESPACE, "short")
        await asyncio.sleep(0.5)
        assert await accounts(c) == INITIAL_NAMESPACES
        try:
            await c.client.get(NAMESPACE, Key("", "short"))
        except NotFound:
            return
        raise AssertionError("the namespace still exists")


async def create_and_delete(c: Cluster) -> object:
    await c.create(namespace("new"), namespace("other"))
    await asyncio.sleep(5)
    await c.delete(SERVICE_ACCOUNT, "default", "new")
    await asyncio.sleep(5)
    return await accounts(c)


def test_crash_after_any_write_leads_to_the_same_end() -> None:
    assert assert_survives_every_crash(build, create_and_delete) == len(INITIAL_NAMESPACES) + 3


def test_repeated_late_and_missed_events_lead_to_the_same_end() -> None:
    assert_survives_bad_watches(build, create_and_delete)


@in_virtual_time
async def test_nothing_is_written_when_all_accounts_exist() -> None:
    async with cluster(without=SERVER_ONLY) as c:
        async with running_controller(c, build):
            await create_and_delete(c)
        await assert_quiet(c, build)
