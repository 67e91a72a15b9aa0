from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
import pytest

from phalanx.api.core import Pod
from phalanx.api.errors import NotFound
from phalanx.api.kinds import POD, POD_GROUP
from phalanx.api.meta import Key
from phalanx.api.scheduling import POD_GROUP_PROTECTION_FINALIZER, PodGroup
from phalanx.api.wire import Object
from phalanx.client.protocol import Listing
from phalanx.controllers.pod_groups import PodGroupProtection
from phalanx.controllers.reconcile_loop import Informers, Patch
from phalanx.randomness import SeededRandom
from tests import builders
from tests.builders import in_virtual_time, pod, pod_group
from tests.controllers.cluster import Cluster, cluster, lagging_client, simulated_nodes

KEY = Key("default", "g")
DELETED = "2027-01-01T00:00:00Z"


def group(*, deleting: bool, protected: bool, more: tuple[str, ...] = ()) -> Object:
    found = pod_group("g", 2)
    finalizers = [*([POD_GROUP_PROTECTION_FINALIZER] if protected else []), *more]
    found["metadata"] |= {"uid": "g", "resourceVersion": "7", "finalizers": finalizers}
    if deleting:
        found["metadata"]["deletionTimestamp"] = DELETED
    return found


def member(name: str, phase: str = "Pending", of: str = "g", *, deleting: bool = False) -> Object:
    found = builders.pod(name, of)
    found["metadata"] |= {"uid": name, "resourceVersion": "5"}
    if deleting:
        found["metadata"]["deletionTimestamp"] = DELETED
    return {**found, "status": {"phase": phase}}


def elsewhere(found: Object) -> Object:
    return {**found, "metadata": {**found["metadata"], "namespace": "elsewhere"}}


async def lets_go(shown: Object, pods: list[Object]) -> bool:
    """Whether the controller removes its finalizer in this state."""
    async with cluster(without=["scheduler", "controllers", "nodes"]) as c:
        client, _ = lagging_client(c)
        informers = Informers(client, SeededRandom(1))
        protection = PodGroupProtection(client, informers)
        groups = [msgspec.convert(shown, PodGroup)]
        informers.of(PodGroup).cache.replace(Listing(groups, 9))
        members = [msgspec.convert(one, Pod) for one in pods]
        informers.of(Pod).cache.replace(Listing(members, 9))
        plan = protection.reconcile(KEY)
        for action in plan.actions:
            assert isinstance(action, Patch)
            assert isinstance(action.change, dict)
            kept = [
                name
                for name in shown["metadata"]["finalizers"]
                if name != POD_GROUP_PROTECTION_FINALIZER
            ]
            assert action.change["metadata"] == {"finalizers": kept, "resourceVersion": "7"}
        return bool(plan.actions)


RUNNING, DONE, BROKEN = member("r", "Running"), member("d", "Succeeded"), member("b", "Failed")


@pytest.mark.parametrize(
    ("shown", "pods", "goes"),
    [
        (group(deleting=True, protected=False), [], False),
        (group(deleting=True, protected=False), [RUNNING], False),
        (group(deleting=False, protected=True), [], False),
        (group(deleting=False, protected=True), [DONE], False),
        (group(deleting=True, protected=True), [], True),
        (group(deleting=True, protected=True), [member("p", of="")], True),
        (group(deleting=True, protected=True), [member("p", of="another")], True),
        (group(deleting=True, protected=True), [elsewhere(RUNNING)], True),
        (group(deleting=True, protected=True), [DONE], True),
        (group(deleting=True, protected=True), [BROKEN], True),
        (group(deleting=True, protected=True), [DONE, BROKEN], True),
        (group(deleting=True, protected=True), [RUNNING], False),
        (group(deleting=True, protected=True), [member("p")], False),
        (group(deleting=True, protected=True), [member("p", deleting=True)], False),
        (group(deleting=True, protected=True), [DONE, RUNNING, BROKEN], False),
        (group(deleting=True, protected=True, more=("example.com/more",)), [], True),
    ],
    ids=[
        "deleted without finalizer", "deleted without finalizer, in use", "not deleted",
        "not deleted, members ended",
        "no members", "only pods without a group", "only pods of another group",
        "only pods of another namespace", "all succeeded", "all failed", "all ended", "one runs",
        "one is pending", "one is being deleted", "one of several runs", "others hold it too",
    ],
)  # fmt: skip
def test_the_finalizer_is_removed_only_from_a_deleted_group_without_live_members(
    shown: Object, pods: list[Object], goes: bool
) -> None:
    @in_virtual_time
    async def ask() -> bool:
        return await lets_go(shown, pods)

    assert ask() == goes


def test_a_missing_group_needs_no_action() -> None:
    @in_virtual_time
    async def ask() -> bool:
        return await lets_go(
            group(deleting=True, protected=True), [RUNNING, member("p", of="lost")]
        )

    assert not ask()


# ---- on a control plane --------------------------------------------------------------------------


async def is_there(c: Cluster) -> bool:
    try:
        await c.client.get(POD_GROUP, KEY)
    except NotFound:
        return False
    return True


@asynccontextmanager
async def protecting(c: Cluster, lag: float = 0.0) -> AsyncIterator[None]:
    """Run the protection controller; it starts one second before the context is entered."""
    client, _ = lagging_client(c, lag)
    informers = Informers(client, SeededRandom(1))
    protection = PodGroupProtection(client, informers)
    tasks = [asyncio.create_task(informers.run()), asyncio.create_task(protection.run())]
    try:
        await asyncio.sleep(1)
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def end(c: Cluster, phase: str) -> None:
    await c.client.patch(
        POD, Key("default", "p"), {"status": {"phase": phase}}, subresource="status"
    )


@pytest.mark.parametrize("how", ["deleted", "Succeeded", "Failed"])
@in_virtual_time
async def test_a_deleted_group_is_removed_with_its_last_live_member(how: str) -> None:
    async with cluster(without=["scheduler", "nodes"]) as c:
        await c.create(pod_group("g", 1), pod("p", "g"))
        await c.delete(POD_GROUP, "g")
        await asyncio.sleep(30)
        assert await is_there(c)
        if how == "deleted":
            await c.delete(POD, "p")
        else:
            await end(c, how)
        await asyncio.sleep(0.1)
        assert not await is_there(c)


@in_virtual_time
async def test_a_group_in_use_stays_when_its_pod_changes() -> None:
    async with cluster(nodes=simulated_nodes(1, cpu="4")) as c:
        await c.create(pod_group("g", 1), pod("p", "g"))
        await c.delete(POD_GROUP, "g")
        await c.client.patch(POD, Key("default", "p"), {"metadata": {"labels": {"a": "b"}}})
        await asyncio.sleep(30)
        assert await is_there(c)


@in_virtual_time
async def test_a_new_member_keeps_a_deleted_group() -> None:
    async with cluster(without=["scheduler", "nodes"]) as c:
        await c.create(pod_group("g", 1), pod("p", "g"))
        await c.delete(POD_GROUP, "g")
        await c.create(pod("q", "g"))
        await c.delete(POD, "p")
        await asyncio.sleep(30)
        assert await is_there(c)
        await c.delete(POD, "q")
        await asyncio.sleep(0.1)
        assert not await is_there(c)


@in_virtual_time
async def test_a_recreated_pod_of_another_group_releases_the_first_group() -> None:
    async with cluster(without=["scheduler", "nodes"]) as c:
        await c.create(pod_group("g", 1), pod_group("h", 1), pod("p", "g"))
        await c.delete(POD_GROUP, "g")
        await c.delete(POD, "p")
        await c.create(pod("p", "h"))
        await asyncio.sleep(0.1)
        assert not await is_there(c)


@in_virtual_time
async def test_a_group_deleted_while_the_controller_was_down_is_removed_later() -> None:
    async with cluster(without=["scheduler", "controllers", "nodes"]) as c:
        await c.create(pod_group("g", 1))
        await c.delete(POD_GROUP, "g")
        async with protecting(c):
            assert not await is_there(c)


async def finalizers(c: Cluster) -> list[str]:
    found: list[str] = (await c.client.get(POD_GROUP, KEY))["metadata"].get("finalizers", [])
    return found


async def hold(c: Cluster, *names: str) -> None:
    """Set the finalizers of a group."""
    await c.client.patch(POD_GROUP, KEY, {"metadata": {"finalizers": list(names)}})


@in_virtual_time
async def test_a_group_without_the_finalizer_gets_it() -> None:
    async with cluster(without=["scheduler", "controllers", "nodes"]) as c:
        await c.create(pod_group("g", 1), pod("p", "g"))
        await hold(c, "example.com/more")
        async with protecting(c):
            assert await finalizers(c) == ["example.com/more", POD_GROUP_PROTECTION_FINALIZER]
            await hold(c, POD_GROUP_PROTECTION_FINALIZER)
            await c.delete(POD_GROUP, "g")
            await asyncio.sleep(30)
            assert await is_there(c)


@in_virtual_time
async def test_a_finalizer_that_a_user_removes_is_not_added_again() -> None:
    async with cluster(without=["scheduler", "controllers", "nodes"]) as c:
        await c.create(pod_group("g", 1), pod("p", "g"))
        async with protecting(c):
            await hold(c)
            await asyncio.sleep(30)
            assert await finalizers(c) == []
            await c.delete(POD_GROUP, "g")
            assert not await is_there(c)


@in_virtual_time
async def test_a_group_is_not_removed_because_of_a_stale_cache() -> None:
    """A member is created while the controller has a stale cache."""
    async with cluster(without=["scheduler", "controllers", "nodes"]) as c:
        await c.create(pod_group("g", 1))
        async with protecting(c, lag=2.0):
            await asyncio.sleep(9)
            await c.delete(POD_GROUP, "g")
            await asyncio.sleep(1)
            await c.create(pod("p", "g"))
            await asyncio.sleep(10)
            assert await is_there(c)
