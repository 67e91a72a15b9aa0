"""Disruption budgets in virtual time: what is counted, when it is said, and what it is worth."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.api.errors import TooManyRequests
from phalanx.api.kinds import CONFIG_MAP, POD, POD_DISRUPTION_BUDGET
from phalanx.api.meta import Key, parse_timestamp, timestamp
from phalanx.api.wire import Object
from phalanx.client.client import Client
from phalanx.client.transports import Transport
from phalanx.controllers.disruption import DisruptionController
from phalanx.controllers.reconcile_loop import Informers
from phalanx.randomness import SeededRandom
from phalanx.sim.virtual_time import run_virtual
from tests.builders import in_virtual_time, pod
from tests.controllers.cluster import Cluster, HeldTransport, cluster, lagging_client
from tests.controllers.crash_stories import SERVER_ONLY
from tests.controllers.owned_objects import owner_reference

BUDGET = Key("default", "b")
APP: Object = {"matchLabels": {"app": "x"}}
#: expectedPods, desiredHealthy, currentHealthy, disruptionsAllowed.
Counted = tuple[int, int, int, int]


@asynccontextmanager
async def counting(c: Cluster, way: Transport | None = None) -> AsyncIterator[None]:
    """Somebody who counts, with caches of his own and maybe a way to the server of his own."""
    client = Client(way) if way else c.plane.client("counter")
    informers = Informers(client, SeededRandom(2))
    disruption = DisruptionController(client, informers, c.clock)
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(informers.run()), group.create_task(disruption.run())]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()


@asynccontextmanager
async def budgeting() -> AsyncIterator[Cluster]:
    """A server and somebody who counts."""
    async with cluster(without=SERVER_ONLY) as c, counting(c):
        yield c


async def budget(c: Cluster, selector: Object | None = APP, **spec: object) -> None:
    """The budget `b`."""
    chosen = {} if selector is None else {"selector": selector}
    manifest = {"metadata": {"name": "b", "namespace": "default"}, "spec": {**chosen, **spec}}
    await c.client.create(POD_DISRUPTION_BUDGET, manifest)


async def running(
    c: Cluster,
    *names: str,
    by: Object | None = None,
    labels: Mapping[str, str] | None = None,
    namespace: str = "default",
    finalizers: Sequence[str] = (),
    ready: bool = True,
) -> None:
    """Pods that run, made by a controller or by nobody, ready or not."""
    meta: Object = {"labels": {"app": "x"} if labels is None else dict(labels)}
    meta["ownerReferences"] = [{**owner_reference(by), "controller": True}] if by else []
    meta["finalizers"] = list(finalizers)
    for name in names:
        await c.create(pod(name, namespace=namespace, meta=meta))
        await becomes(c, name, ready=ready, namespace=namespace)


async def becomes(
    c: Cluster, name: str, *, ready: bool = True, phase: str = "Running", namespace: str = "default"
) -> None:
    condition = {"type": "Ready", "status": str(ready)}
    status = {"phase": phase, "conditions": [condition]}
    await c.client.patch(POD, Key(namespace, name), {"status": status}, subresource="status")


async def controller(c: Cluster, name: str = "set") -> Object:
    """Something that may control pods: what it is does not matter."""
    manifest = {"metadata": {"name": name, "namespace": "default"}}
    return await c.client.create(CONFIG_MAP, manifest)


async def status(c: Cluster) -> Object:
    found = await c.client.get(POD_DISRUPTION_BUDGET, BUDGET)
    read: Object = found["status"]
    return read


async def counted(c: Cluster) -> Counted:
    await asyncio.sleep(1)
    said = await status(c)
    return (
        said["expectedPods"], said["desiredHealthy"], said["currentHealthy"],
        said["disruptionsAllowed"],
    )  # fmt: skip


async def grant(c: Cluster, *names: str, ago: float = 0.0) -> None:
    """Note that pods are about to go, as an eviction does."""
    granted = dict.fromkeys(names, timestamp(c.clock.now() - ago))
    change = {"status": {"disruptedPods": granted, "disruptionsAllowed": 0}}
    await c.client.patch(POD_DISRUPTION_BUDGET, BUDGET, change, subresource="status")


async def evict(c: Cluster, name: str) -> None:
    meta = {"name": name, "namespace": "default"}
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": meta}
    await c.client.post(POD.url_path("default", name, "eviction"), eviction)


# ---- how many ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({"minAvailable": 0}, (8, 0, 7, 7)),
        ({"minAvailable": 3}, (8, 3, 7, 4)),
        ({"minAvailable": 7}, (8, 7, 7, 0)),
        ({"minAvailable": 2**31 - 1}, (8, 2**31 - 1, 7, 0)),
        ({"minAvailable": "0%"}, (8, 0, 7, 7)),
        ({"minAvailable": "30%"}, (8, 3, 7, 4)),
        ({"minAvailable": "50%"}, (8, 4, 7, 3)),
        ({"minAvailable": "100%"}, (8, 8, 7, 0)),
        ({"maxUnavailable": 0}, (8, 8, 7, 0)),
        ({"maxUnavailable": 1}, (8, 7, 7, 0)),
        ({"maxUnavailable": 2}, (8, 6, 7, 1)),
        ({"maxUnavailable": 100}, (8, 0, 7, 7)),
        ({"maxUnavailable": "30%"}, (8, 5, 7, 2)),
        ({"maxUnavailable": "100%"}, (8, 0, 7, 7)),
        ({"maxUnavailable": "0" * 5000 + "30%"}, (8, 5, 7, 2)),
        ({}, (0, 0, 7, 0)),
    ],
)
@in_virtual_time
async def test_what_must_stay_may_be_a_number_or_a_share(spec: Object, expected: Counted) -> None:
    async with budgeting() as c:
        made = await controller(c)
        await running(c, *(f"p{number}" for number in range(7)), by=made)
        await running(c, "late", by=made, ready=False)
        await budget(c, **spec)
        assert await counted(c) == expected


@settings(max_examples=15)
@given(st.integers(0, 7), st.integers(0, 100), st.sampled_from(["minAvailable", "maxUnavailable"]))
def test_shares_are_rounded_up(pods: int, percent: int, field: str) -> None:
    async def story() -> None:
        async with budgeting() as c:
            await running(c, *(f"p{number}" for number in range(pods)), by=await controller(c))
            spec: Object = {field: f"{percent}%"}
            await budget(c, **spec)
            share = math.ceil(pods * percent / 100)
            desired = share if field == "minAvailable" else pods - share
            assert await counted(c) == (pods, desired, pods, pods - desired)

    run_virtual(story)


@pytest.mark.parametrize("spec", [{"minAvailable": "50%"}, {"maxUnavailable": 1}])
@in_virtual_time
async def test_shares_are_of_pods_that_somebody_controls(spec: Object) -> None:
    async with budgeting() as c:
        await running(c, "p0", "p1")
        await budget(c, **spec)
        assert await counted(c) == (0, 0, 2, 0)


@in_virtual_time
async def test_a_plain_number_is_of_whatever_is_selected() -> None:
    async with budgeting() as c:
        await running(c, "p0", "p1")
        await budget(c, minAvailable=1)
        assert await counted(c) == (2, 1, 2, 1)


@in_virtual_time
async def test_all_that_a_controller_owns_and_that_has_not_ended_is_expected() -> None:
    async with budgeting() as c:
        made, other = await controller(c), await controller(c, "other")
        await running(c, "p0", "p1", "done", by=made)
        await running(c, "sibling", by=made, labels={})
        await running(c, "stranger", by=other, labels={})
        await becomes(c, "done", phase="Succeeded", ready=False)
        await budget(c, maxUnavailable=1)
        assert await counted(c) == (3, 2, 2, 0)
        await c.delete(POD, "sibling")
        assert await counted(c) == (2, 1, 2, 1)


@in_virtual_time
async def test_where_there_are_no_pods_none_may_go() -> None:
    async with budgeting() as c:
        await budget(c, minAvailable=0)
        assert await counted(c) == (0, 0, 0, 0)


# ---- which pods ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("selector", "names"),
    [
        (None, 0),
        ({}, 3),
        ({"matchLabels": {"app": "x"}}, 2),
        ({"matchLabels": {"app": "x", "tier": "db"}}, 1),
        ({"matchExpressions": [{"key": "app", "operator": "NotIn", "values": ["y"]}]}, 2),
        ({"matchExpressions": [{"key": "tier", "operator": "DoesNotExist"}]}, 2),
    ],
)
@in_virtual_time
async def test_an_empty_selector_is_for_all_in_its_namespace_and_none_at_all_for_nobody(
    selector: Object | None, names: int
) -> None:
    async with budgeting() as c:
        await running(c, "p0")
        await running(c, "p1", labels={"app": "x", "tier": "db"})
        await running(c, "p2", labels={"app": "y"})
        await running(c, "far", namespace="kube-public")
        await budget(c, selector, minAvailable=0)
        assert await counted(c) == (names, 0, names, names)


@in_virtual_time
async def test_pods_that_come_go_and_change_are_counted_anew() -> None:
    async with budgeting() as c:
        await budget(c, minAvailable=1)
        await running(c, "p0", "p1", ready=False)
        assert await counted(c) == (2, 1, 0, 0)
        await becomes(c, "p0")
        await becomes(c, "p1")
        assert await counted(c) == (2, 1, 2, 1)
        await c.client.patch(POD, Key("default", "p0"), {"metadata": {"labels": {"app": "y"}}})
        assert await counted(c) == (1, 1, 1, 0)
        await c.client.patch(POD, Key("default", "p0"), {"metadata": {"labels": {"app": "x"}}})
        assert await counted(c) == (2, 1, 2, 1)
        await becomes(c, "p1", ready=False)
        assert await counted(c) == (2, 1, 1, 0)
        await c.delete(POD, "p1")
        assert await counted(c) == (1, 1, 1, 0)


@in_virtual_time
async def test_a_budget_that_selects_others_counts_others() -> None:
    async with budgeting() as c:
        await running(c, "p0", "p1")
        await running(c, "p2", labels={"app": "y"})
        await budget(c, minAvailable=0)
        assert await counted(c) == (2, 0, 2, 2)
        await budget_becomes(c, selector={"matchLabels": {"app": "y"}})
        assert await counted(c) == (1, 0, 1, 1)


@in_virtual_time
async def test_a_pod_that_is_being_deleted_is_not_well() -> None:
    async with budgeting() as c:
        await running(c, "p0", "p1", by=await controller(c), finalizers=["example.com/stay"])
        await budget(c, maxUnavailable=1)
        assert await counted(c) == (2, 1, 2, 1)
        await c.delete(POD, "p0")
        assert await counted(c) == (2, 1, 1, 0)


# ---- what is said --------------------------------------------------------------------------------


@in_virtual_time
async def test_whether_pods_may_go_is_said_with_its_reason_and_since_when() -> None:
    async with budgeting() as c:
        await running(c, "p0", "p1")
        await budget(c, minAvailable=1)
        await asyncio.sleep(10)
        (said,) = (await status(c))["conditions"]
        assert {key: said[key] for key in said if key != "lastTransitionTime"} == {
            "type": "DisruptionAllowed", "status": "True", "reason": "SufficientPods",
            "message": "", "observedGeneration": 1,
        }  # fmt: skip
        await running(c, "p2")
        await asyncio.sleep(10)
        assert (await status(c))["conditions"] == [said]
        await budget_becomes(c, minAvailable=2)
        await asyncio.sleep(10)
        assert (await status(c))["conditions"] == [{**said, "observedGeneration": 2}]
        await budget_becomes(c, minAvailable=3)
        await asyncio.sleep(1)
        (now,) = (await status(c))["conditions"]
        assert (now["status"], now["reason"]) == ("False", "InsufficientPods")
        assert (
            parse_timestamp(now["lastTransitionTime"])
            >= parse_timestamp(said["lastTransitionTime"]) + 30
        )


async def budget_becomes(c: Cluster, **spec: object) -> None:
    await c.client.patch(POD_DISRUPTION_BUDGET, BUDGET, {"spec": spec})


@in_virtual_time
async def test_what_was_counted_names_the_generation_that_was_counted_for() -> None:
    async with budgeting() as c:
        await budget(c, minAvailable=1)
        await asyncio.sleep(1)
        assert (await status(c))["observedGeneration"] == 1
        await budget_becomes(c, minAvailable="50%")
        await asyncio.sleep(1)
        assert (await status(c))["observedGeneration"] == 2


@in_virtual_time
async def test_what_others_say_of_a_budget_stays() -> None:
    async with budgeting() as c:
        await budget(c, minAvailable=1)
        await asyncio.sleep(1)
        foreign = {
            "type": "example.com/Seen", "status": "True", "reason": "Seen", "message": "",
            "lastTransitionTime": timestamp(c.clock.now()),
        }  # fmt: skip
        ours = (await status(c))["conditions"]
        change = {"status": {"conditions": [*ours, foreign]}}
        await c.client.patch(POD_DISRUPTION_BUDGET, BUDGET, change, subresource="status")
        await running(c, "p0", "p1")
        await asyncio.sleep(1)
        said = {one["type"]: one["status"] for one in (await status(c))["conditions"]}
        assert said == {"DisruptionAllowed": "True", "example.com/Seen": "True"}


@in_virtual_time
async def test_when_everything_is_counted_there_is_quiet() -> None:
    async with cluster(without=SERVER_ONLY) as c:
        _, way = lagging_client(c)
        async with counting(c, way):
            await running(c, "p0", "p1", by=await controller(c))
            await budget(c, maxUnavailable="50%")
            await grant(c, "p0")
            await asyncio.sleep(200)
            written = [request for request in way.requests if request.method != "GET"]
            async with counting(c, way):
                await asyncio.sleep(600)
            assert [request for request in way.requests if request.method != "GET"] == written
            assert written != []


@pytest.mark.parametrize(
    "wrong",
    [
        {"observedGeneration": 0},
        {"observedGeneration": 7},
        {"expectedPods": 9},
        {"desiredHealthy": 0},
        {"currentHealthy": 9},
        {"disruptionsAllowed": 9},
        {"disruptedPods": {"nobody": "2027-01-15T08:00:00Z"}},
        {"conditions": []},
    ],
)
@in_virtual_time
async def test_what_is_not_true_is_put_right(wrong: Object) -> None:
    async with budgeting() as c:
        await running(c, "p0", "p1")
        await budget(c, minAvailable=1)
        await asyncio.sleep(1)
        right = await status(c)
        change = {"status": wrong}
        await c.client.patch(POD_DISRUPTION_BUDGET, BUDGET, change, subresource="status")
        assert await status(c) != right
        await asyncio.sleep(0.5)
        found = await status(c)
        assert {**found, "conditions": untimed(found)} == {**right, "conditions": untimed(right)}


def untimed(found: Object) -> list[Object]:
    return [{**one, "lastTransitionTime": ""} for one in found["conditions"]]


@in_virtual_time
async def test_what_changes_together_is_counted_once() -> None:
    async with budgeting() as c:
        await budget(c, minAvailable=1)
        await running(c, *(f"p{number}" for number in range(30)), ready=False)
        await asyncio.sleep(1)
        since = c.store.revision
        for number in range(30):
            await becomes(c, f"p{number}")
            await asyncio.sleep(0.002)
        await asyncio.sleep(1)
        assert len(list(c.store.changes(since, POD_DISRUPTION_BUDGET.store_prefix()))) == 1


# ---- evictions -----------------------------------------------------------------------------------


@in_virtual_time
async def test_only_as_many_pods_are_evicted_as_may_go() -> None:
    async with budgeting() as c:
        await running(c, "p0", "p1", "p2")
        await budget(c, minAvailable=2)
        await asyncio.sleep(1)
        await evict(c, "p0")
        for _ in range(3):
            with pytest.raises(TooManyRequests):
                await evict(c, "p1")
            await asyncio.sleep(1)
        await running(c, "p3")
        await asyncio.sleep(1)
        await evict(c, "p1")
        assert await counted(c) == (2, 2, 2, 0)


@in_virtual_time
async def test_a_pod_that_may_go_does_not_count_as_well_until_it_has_stayed_too_long() -> None:
    async with budgeting() as c:
        await running(c, "p0", "p1", "p2")
        await budget(c, minAvailable=1)
        assert await counted(c) == (3, 1, 3, 2)
        await grant(c, "p0")
        await asyncio.sleep(60)
        await grant(c, "p1")
        assert await counted(c) == (3, 1, 1, 0)
        await asyncio.sleep(62)
        assert await counted(c) == (3, 1, 2, 1)
        assert list((await status(c))["disruptedPods"]) == ["p1"]
        await asyncio.sleep(60)
        assert await counted(c) == (3, 1, 3, 2)
        assert "disruptedPods" not in await status(c)


@pytest.mark.parametrize("end", ["gone", "going", "going unwell", "never there", "long ago"])
@in_virtual_time
async def test_a_grant_is_over_when_its_pod_goes(end: str) -> None:
    async with budgeting() as c:
        stay = ["example.com/stay"] if end.startswith("going") else []
        await running(c, "p0", "p1", finalizers=stay, ready=end != "going unwell")
        await budget(c, minAvailable=0)
        await asyncio.sleep(1)
        await grant(c, "p9" if end == "never there" else "p0", ago=150 if end == "long ago" else 0)
        if end.startswith("go"):
            await asyncio.sleep(1)
            await c.delete(POD, "p0")
        await asyncio.sleep(1)
        assert "disruptedPods" not in await status(c)


@in_virtual_time
async def test_a_grant_that_was_made_unheard_is_not_overlooked() -> None:
    async with cluster(without=SERVER_ONLY) as c:
        way = HeldTransport(c, POD_DISRUPTION_BUDGET)
        async with counting(c, way):
            await running(c, "p0", "p1", "p2")
            await budget(c, minAvailable=1)
            assert await counted(c) == (3, 1, 3, 2)
            way.is_flowing.clear()
            await grant(c, "p0")
            await running(c, "p3")
            await asyncio.sleep(5)
            assert list((await status(c))["disruptedPods"]) == ["p0"]
            assert (await status(c))["disruptionsAllowed"] == 0
            way.is_flowing.set()
            await asyncio.sleep(20)
            assert await counted(c) == (4, 1, 3, 2)


# ---- beginnings and ends -------------------------------------------------------------------------


@in_virtual_time
async def test_nothing_is_said_before_all_pods_are_known() -> None:
    async with cluster(without=SERVER_ONLY) as c:
        await running(c, "p0", "p1")
        await budget(c, minAvailable=1)
        way = HeldTransport(c, POD)
        way.is_flowing.clear()
        async with counting(c, way):
            await asyncio.sleep(5)
            assert "observedGeneration" not in await status(c)
            way.is_flowing.set()
            assert await counted(c) == (2, 1, 2, 1)


@in_virtual_time
async def test_a_budget_that_is_gone_is_forgotten_and_its_namesake_begins_anew() -> None:
    async with budgeting() as c:
        await running(c, "p0", "p1")
        await budget(c, minAvailable=1)
        assert await counted(c) == (2, 1, 2, 1)
        await c.client.delete(POD_DISRUPTION_BUDGET, BUDGET)
        await running(c, "p2")
        await asyncio.sleep(1)
        await budget(c, {"matchLabels": {"app": "y"}}, minAvailable=1)
        assert await counted(c) == (0, 1, 0, 0)
