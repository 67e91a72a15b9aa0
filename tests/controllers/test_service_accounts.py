"""The service account that every namespace has."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from phalanx.api.errors import NotFound
from phalanx.api.kinds import NAMESPACE, SERVICE_ACCOUNT
from phalanx.api.meta import Key
from phalanx.api.wire import Object
from phalanx.client.client import Client
from phalanx.controllers.reconcile_loop import Informers
from phalanx.controllers.service_accounts import ServiceAccountController
from tests.builders import in_virtual_time
from tests.controllers.cluster import Cluster, cluster
from tests.controllers.crash_stories import (
    SERVER_ONLY,
    Runnable,
    assert_quiet,
    assert_survives_bad_watches,
    assert_survives_every_crash,
    bare_cluster,
    running_controller,
)

LASTING = ["default", "kube-node-lease", "kube-public", "kube-system"]


def build(client: Client, informers: Informers, c: Cluster) -> Sequence[Runnable]:
    return [ServiceAccountController(client, informers).run]


async def accounts(c: Cluster) -> list[str]:
    """The namespaces of all accounts, each of which must be called `default`."""
    metas = [found["metadata"] for found in (await c.client.list(SERVICE_ACCOUNT)).items]
    assert {meta["name"] for meta in metas} <= {"default"}
    return sorted(meta["namespace"] for meta in metas)


def space(name: str, **spec: object) -> Object:
    meta = {"name": name}
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": meta, "spec": spec}


@in_virtual_time
async def test_every_namespace_has_a_service_account() -> None:
    async with bare_cluster(build) as c:
        await asyncio.sleep(1)
        assert await accounts(c) == LASTING
        await c.create(space("new"))
        await asyncio.sleep(1)
        assert await accounts(c) == [*LASTING, "new"]


@in_virtual_time
async def test_it_is_made_again_when_it_is_deleted() -> None:
    async with bare_cluster(build) as c:
        await asyncio.sleep(1)
        before = await c.client.get(SERVICE_ACCOUNT, Key("default", "default"))
        await c.delete(SERVICE_ACCOUNT, "default")
        await asyncio.sleep(1)
        after = await c.client.get(SERVICE_ACCOUNT, Key("default", "default"))
        assert before["metadata"]["uid"] != after["metadata"]["uid"]


@in_virtual_time
async def test_what_somebody_has_made_of_it_is_left_alone() -> None:
    async with cluster(without=SERVER_ONLY) as c:
        meta = {"name": "default", "namespace": "default", "labels": {"mine": "yes"}}
        made = await c.client.create(SERVICE_ACCOUNT, {"metadata": meta})
        async with running_controller(c, build):
            await asyncio.sleep(1)
        assert await c.client.get(SERVICE_ACCOUNT, Key("default", "default")) == made


@in_virtual_time
async def test_a_namespace_that_goes_gets_none_any_more_and_is_gone_at_once() -> None:
    async with cluster(without=["scheduler", "nodes"]) as c:
        await c.create(space("short"))
        await asyncio.sleep(1)
        assert "short" in await accounts(c)
        await c.delete(NAMESPACE, "short")
        await asyncio.sleep(0.5)
        assert await accounts(c) == LASTING
        try:
            await c.client.get(NAMESPACE, Key("", "short"))
        except NotFound:
            return
        raise AssertionError("the namespace is still there")


async def a_while(c: Cluster) -> object:
    await c.create(space("new"), space("other"))
    await asyncio.sleep(5)
    await c.delete(SERVICE_ACCOUNT, "default", "new")
    await asyncio.sleep(5)
    return await accounts(c)


def test_whenever_the_controller_ends_another_one_goes_on() -> None:
    assert assert_survives_every_crash(build, a_while) == len(LASTING) + 3


def test_news_that_come_twice_and_late_change_nothing() -> None:
    assert_survives_bad_watches(build, a_while)


@in_virtual_time
async def test_when_all_are_there_nothing_is_written() -> None:
    async with cluster(without=SERVER_ONLY) as c:
        async with running_controller(c, build):
            await a_while(c)
        await assert_quiet(c, build)
