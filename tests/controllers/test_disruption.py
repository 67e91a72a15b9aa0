"""PodDisruptionBudgets in virtual time: counts, status, and their effect on evictions."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.api.errors import TooManyRequests
from phalanx.api.kinds import (
    CONFIG_MAP,
    DEPLOYMENT,
    POD,
    POD_DISRUPTION_BUDGET,
    REPLICA_SET,
    STATEFUL_SET,
)
from phalanx.api.meta import Key, parse_timestamp, timestamp
from phalanx.api.wire import Object
from phalanx.client.client import Client
from phalanx.client.transports import Transport
from phalanx.controllers.disruption import DisruptionController
from phalanx.controllers.event_recorder import ObjectEvent
from phalanx.controllers.reconcile_loop import Informers
from phalanx.randomness import SeededRandom
from phalanx.sim.virtual_time import run_virtual
from tests.builders import in_virtual_time, pod
from tests.controllers.cluster import Cluster, HeldTransport, cluster, lagging_client
from tests.controllers.crash_recovery import SERVER_ONLY
from tests.controllers.owned_objects import owner_reference

BUDGET = Key("default", "b")
APP: Object = {"matchLabels": {"app": "x"}}
#: expectedPods, desiredHealthy, currentHealthy, disruptionsAllowed.
Counts = tuple[int, int, int, int]


@asynccontextmanager
async def running_controller(
    c: Cluster,
    transport: Transport | None = None,
    *,
    record: Callable[[ObjectEvent], None] = lambda event: None,
) -> AsyncIterator[None]:
    """Run the controller with its own caches, and with its own transport if given."""
    client = Client(transport) if transport else c.plane.client("counter")
    informers = Informers(client, SeededRandom(2))
    disruption = DisruptionController(client, informers, c.clock, record=record)
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(informers.run()), group.create_task(disruption.run())]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()


@asynccontextmanager
async def cluster_with_controller() -> AsyncIterator[Cluster]:
    """Run a server and the controller."""
    async with cluster(without=SERVER_ONLY) as c, running_controller(c):
        yield c


async def create_budget(c: Cluster, selector: Object | None = APP, **spec: object) -> None:
    """Create the budget `b`."""
    chosen = {} if selector is None else {"selector": selector}
    manifest = {"metadata": {"name": "b", "namespace": "default"}, "spec": {**chosen, **spec}}
    await c.client.create(POD_DISRUPTION_BUDGET, manifest)


async def create_pods(
    c: Cluster,
    *names: str,
    by: Object | None = None,
    labels: Mapping[str, str] | None = None,
    namespace: str = "default",
    finalizers: Sequence[str] = (),
    ready: bool = True,
) -> None:
    """Create running pods, with or without a controller, ready or not."""
    meta: Object = {"labels": {"app": "x"} if labels is None else dict(labels)}
    meta["ownerReferences"] = [{**owner_reference(by), "controller": True}] if by else []
    meta["finalizers"] = list(finalizers)
    for name in names:
        await c.create(pod(name, namespace=namespace, meta=meta))
        await set_ready(c, name, ready=ready, namespace=namespace)


async def set_ready(
    c: Cluster, name: str, *, ready: bool = True, phase: str = "Running", namespace: str = "default"
) -> None:
    condition = {"type": "Ready", "status": str(ready)}
    status = {"phase": phase, "conditions": [condition]}
    await c.client.patch(POD, Key(namespace, name), {"status": status}, subresource="status")


async def create_owner(c: Cluster, name: str = "set") -> Object:
    """Create an object that can control pods; its kind does not matter."""
    manifest = {"metadata": {"name": name, "namespace": "default"}}
    return await c.client.create(CONFIG_MAP, manifest)


async def status(c: Cluster) -> Object:
    found = await c.client.get(POD_DISRUPTION_BUDGET, BUDGET)
    read: Object = found["status"]
    return read


async def counts(c: Cluster) -> Counts:
    await asyncio.sleep(1)
    found = await status(c)
    return (
        found["expectedPods"],
        found["desiredHealthy"],
        found["currentHealthy"],
        found["disruptionsAllowed"],
    )


async def record_eviction(c: Cluster, *names: str, ago: float = 0.0) -> None:
    """Record evictions of pods in the status, as the eviction subresource does."""
    evicted = dict.fromkeys(names, timestamp(c.clock.now() - ago))
    change = {"status": {"disruptedPods": evicted, "disruptionsAllowed": 0}}
    await c.client.patch(POD_DISRUPTION_BUDGET, BUDGET, change, subresource="status")


async def evict(c: Cluster, name: str) -> None:
    meta = {"name": name, "namespace": "default"}
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": meta}
    await c.client.post(POD.url_path("default", name, "eviction"), eviction)


# ---- counts --------------------------------------------------------------------------------------


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
async def test_counts_follow_from_numbers_and_percentages(spec: Object, expected: Counts) -> None:
    async with cluster_with_controller() as c:
        owner = await create_owner(c)
        await create_pods(c, *(f"p{number}" for number in range(7)), by=owner)
        await create_pods(c, "late", by=owner, ready=False)
        await create_budget(c, **spec)
        assert await counts(c) == expected


@settings(max_examples=15)
@given(st.integers(0, 7), st.integers(0, 100), st.sampled_from(["minAvailable", "maxUnavailable"]))
def test_percentages_are_rounded_up(pods: int, percent: int, field: str) -> None:
    async def story() -> None:
        async with cluster_with_controller() as c:
            await create_pods(
                c, *(f"p{number}" for number in range(pods)), by=await create_owner(c)
            )
            spec: Object = {field: f"{percent}%"}
            await create_budget(c, **spec)
            share = math.ceil(pods * percent / 100)
            desired = share if field == "minAvailable" else pods - share
            assert await counts(c) == (pods, desired, pods, pods - desired)

    run_virtual(story)


@pytest.mark.parametrize("spec", [{"minAvailable": "50%"}, {"maxUnavailable": 1}])
@in_virtual_time
async def test_percentages_count_only_pods_with_a_controller(spec: Object) -> None:
    async with cluster_with_controller() as c:
        await create_pods(c, "p0", "p1")
        await create_budget(c, **spec)
        assert await counts(c) == (0, 0, 2, 0)


@in_virtual_time
async def test_integer_min_available_counts_all_selected_pods() -> None:
    async with cluster_with_controller() as c:
        await create_pods(c, "p0", "p1")
        await create_budget(c, minAvailable=1)
        assert await counts(c) == (2, 1, 2, 1)


@in_virtual_time
async def test_all_pods_of_a_controller_that_have_not_terminated_are_expected() -> None:
    async with cluster_with_controller() as c:
        owner, other = await create_owner(c), await create_owner(c, "other")
        await create_pods(c, "p0", "p1", "done", by=owner)
        await create_pods(c, "sibling", by=owner, labels={})
        await create_pods(c, "unrelated", by=other, labels={})
        await set_ready(c, "done", phase="Succeeded", ready=False)
        await create_budget(c, maxUnavailable=1)
        assert await counts(c) == (3, 2, 2, 0)
        await c.delete(POD, "sibling")
        assert await counts(c) == (2, 1, 2, 1)


def workload(name: str, replicas: int, owner: Object | None = None) -> Object:
    """Build a Deployment, a ReplicaSet or a StatefulSet of the pods `app: x`."""
    meta: Object = {"name": name, "namespace": "default"}
    if owner:
        meta["ownerReferences"] = [{**owner_reference(owner), "controller": True}]
    container = {"name": "main", "image": "registry.example/main:1"}
    template = {"metadata": {"labels": {"app": "x"}}, "spec": {"containers": [container]}}
    return {
        "metadata": meta,
        "spec": {"replicas": replicas, "selector": APP, "template": template},
    }


@in_virtual_time
async def test_replicas_of_the_workloads_are_expected_whatever_pods_exist() -> None:
    async with cluster_with_controller() as c:
        stateful = await c.client.create(STATEFUL_SET, workload("set", 4))
        await create_pods(c, "set-0", "set-1", by=stateful)
        await create_budget(c, maxUnavailable="25%")
        assert await counts(c) == (4, 3, 2, 0)


@in_virtual_time
async def test_a_deployment_stands_for_its_replica_sets() -> None:
    async with cluster_with_controller() as c:
        owner = await c.client.create(DEPLOYMENT, workload("web", 3))
        for name, pods in (("old", ("a", "b")), ("new", ("c", "d"))):
            replica_set = await c.client.create(REPLICA_SET, workload(name, 2, owner))
            await create_pods(c, *pods, by=replica_set)
        await create_budget(c, minAvailable="50%")
        assert await counts(c) == (3, 2, 4, 2)


@in_virtual_time
async def test_no_disruption_is_allowed_without_pods() -> None:
    events: list[ObjectEvent] = []
    async with (
        cluster(without=SERVER_ONLY) as c,
        running_controller(c, record=events.append),
    ):
        await create_budget(c, minAvailable=0)
        assert await counts(c) == (0, 0, 0, 0)
        assert {(event.reason, event.type) for event in events} == {("NoPods", "Normal")}


# ---- selectors -----------------------------------------------------------------------------------


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
async def test_empty_selector_selects_all_pods_and_no_selector_selects_none(
    selector: Object | None, names: int
) -> None:
    async with cluster_with_controller() as c:
        await create_pods(c, "p0")
        await create_pods(c, "p1", labels={"app": "x", "tier": "db"})
        await create_pods(c, "p2", labels={"app": "y"})
        await create_pods(c, "far", namespace="kube-public")
        await create_budget(c, selector, minAvailable=0)
        assert await counts(c) == (names, 0, names, names)


@in_virtual_time
async def test_created_deleted_and_changed_pods_are_counted_again() -> None:
    async with cluster_with_controller() as c:
        await create_budget(c, minAvailable=1)
        await create_pods(c, "p0", "p1", ready=False)
        assert await counts(c) == (2, 1, 0, 0)
        await set_ready(c, "p0")
        await set_ready(c, "p1")
        assert await counts(c) == (2, 1, 2, 1)
        await c.client.patch(POD, Key("default", "p0"), {"metadata": {"labels": {"app": "y"}}})
        assert await counts(c) == (1, 1, 1, 0)
        await c.client.patch(POD, Key("default", "p0"), {"metadata": {"labels": {"app": "x"}}})
        assert await counts(c) == (2, 1, 2, 1)
        await set_ready(c, "p1", ready=False)
        assert await counts(c) == (2, 1, 1, 0)
        await c.delete(POD, "p1")
        assert await counts(c) == (1, 1, 1, 0)


@in_virtual_time
async def test_changed_selector_changes_the_counts() -> None:
    async with cluster_with_controller() as c:
        await create_pods(c, "p0", "p1")
        await create_pods(c, "p2", labels={"app": "y"})
        await create_budget(c, minAvailable=0)
        assert await counts(c) == (2, 0, 2, 2)
        await change_budget(c, selector={"matchLabels": {"app": "y"}})
        assert await counts(c) == (1, 0, 1, 1)


@in_virtual_time
async def test_terminating_pod_is_not_healthy() -> None:
    async with cluster_with_controller() as c:
        await create_pods(c, "p0", "p1", by=await create_owner(c), finalizers=["example.com/stay"])
        await create_budget(c, maxUnavailable=1)
        assert await counts(c) == (2, 1, 2, 1)
        await c.delete(POD, "p0")
        assert await counts(c) == (2, 1, 1, 0)


# ---- status --------------------------------------------------------------------------------------


@in_virtual_time
async def test_condition_disruption_allowed_has_reason_and_transition_time() -> None:
    async with cluster_with_controller() as c:
        await create_pods(c, "p0", "p1")
        await create_budget(c, minAvailable=1)
        await asyncio.sleep(10)
        (first,) = (await status(c))["conditions"]
        assert {key: first[key] for key in first if key != "lastTransitionTime"} == {
            "type": "DisruptionAllowed", "status": "True", "reason": "SufficientPods",
            "message": "", "observedGeneration": 1,
        }  # fmt: skip
        await create_pods(c, "p2")
        await asyncio.sleep(10)
        assert (await status(c))["conditions"] == [first]
        await change_budget(c, minAvailable=2)
        await asyncio.sleep(10)
        assert (await status(c))["conditions"] == [{**first, "observedGeneration": 2}]
        await change_budget(c, minAvailable=3)
        await asyncio.sleep(1)
        (now,) = (await status(c))["conditions"]
        assert (now["status"], now["reason"]) == ("False", "InsufficientPods")
        assert (
            parse_timestamp(now["lastTransitionTime"])
            >= parse_timestamp(first["lastTransitionTime"]) + 30
        )


async def change_budget(c: Cluster, **spec: object) -> None:
    await c.client.patch(POD_DISRUPTION_BUDGET, BUDGET, {"spec": spec})


@in_virtual_time
async def test_status_has_the_observed_generation() -> None:
    async with cluster_with_controller() as c:
        await create_budget(c, minAvailable=1)
        await asyncio.sleep(1)
        assert (await status(c))["observedGeneration"] == 1
        await change_budget(c, minAvailable="50%")
        await asyncio.sleep(1)
        assert (await status(c))["observedGeneration"] == 2


@in_virtual_time
async def test_conditions_of_other_writers_are_kept() -> None:
    async with cluster_with_controller() as c:
        await create_budget(c, minAvailable=1)
        await asyncio.sleep(1)
        foreign = {
            "type": "example.com/Checked", "status": "True", "reason": "Checked", "message": "",
            "lastTransitionTime": timestamp(c.clock.now()),
        }  # fmt: skip
        ours = (await status(c))["conditions"]
        change = {"status": {"conditions": [*ours, foreign]}}
        await c.client.patch(POD_DISRUPTION_BUDGET, BUDGET, change, subresource="status")
        await create_pods(c, "p0", "p1")
        await asyncio.sleep(1)
        statuses = {one["type"]: one["status"] for one in (await status(c))["conditions"]}
        assert statuses == {"DisruptionAllowed": "True", "example.com/Checked": "True"}


@in_virtual_time
async def test_nothing_is_written_when_the_status_is_right() -> None:
    async with cluster(without=SERVER_ONLY) as c:
        _, transport = lagging_client(c)
        async with running_controller(c, transport):
            await create_pods(c, "p0", "p1", by=await create_owner(c))
            await create_budget(c, maxUnavailable="50%")
            await record_eviction(c, "p0")
            await asyncio.sleep(200)
            written = [request for request in transport.requests if request.method != "GET"]
            async with running_controller(c, transport):
                await asyncio.sleep(600)
            assert [request for request in transport.requests if request.method != "GET"] == written
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
        {"disruptedPods": {"unknown": "2027-01-15T08:00:00Z"}},
        {"conditions": []},
    ],
)
@in_virtual_time
async def test_wrong_status_is_corrected(wrong: Object) -> None:
    async with cluster_with_controller() as c:
        await create_pods(c, "p0", "p1")
        await create_budget(c, minAvailable=1)
        await asyncio.sleep(1)
        right = await status(c)
        change = {"status": wrong}
        await c.client.patch(POD_DISRUPTION_BUDGET, BUDGET, change, subresource="status")
        assert await status(c) != right
        await asyncio.sleep(0.5)
        found = await status(c)
        assert {**found, "conditions": without_times(found)} == {
            **right,
            "conditions": without_times(right),
        }


def without_times(found: Object) -> list[Object]:
    return [{**one, "lastTransitionTime": ""} for one in found["conditions"]]


@in_virtual_time
async def test_simultaneous_changes_are_counted_once() -> None:
    async with cluster_with_controller() as c:
        await create_budget(c, minAvailable=1)
        await create_pods(c, *(f"p{number}" for number in range(30)), ready=False)
        await asyncio.sleep(1)
        since = c.store.revision
        for number in range(30):
            await set_ready(c, f"p{number}")
            await asyncio.sleep(0.002)
        await asyncio.sleep(1)
        assert len(list(c.store.changes(since, POD_DISRUPTION_BUDGET.store_prefix()))) == 1


# ---- evictions -----------------------------------------------------------------------------------


@in_virtual_time
async def test_evictions_are_limited_to_the_allowed_disruptions() -> None:
    async with cluster_with_controller() as c:
        await create_pods(c, "p0", "p1", "p2")
        await create_budget(c, minAvailable=2)
        await asyncio.sleep(1)
        await evict(c, "p0")
        for _ in range(3):
            with pytest.raises(TooManyRequests):
                await evict(c, "p1")
            await asyncio.sleep(1)
        await create_pods(c, "p3")
        await asyncio.sleep(1)
        await evict(c, "p1")
        assert await counts(c) == (2, 2, 2, 0)


@in_virtual_time
async def test_evicted_pod_is_not_healthy_until_its_eviction_expires() -> None:
    async with cluster_with_controller() as c:
        await create_pods(c, "p0", "p1", "p2")
        await create_budget(c, minAvailable=1)
        assert await counts(c) == (3, 1, 3, 2)
        await record_eviction(c, "p0")
        await asyncio.sleep(60)
        await record_eviction(c, "p1")
        assert await counts(c) == (3, 1, 1, 0)
        await asyncio.sleep(62)
        assert await counts(c) == (3, 1, 2, 1)
        assert list((await status(c))["disruptedPods"]) == ["p1"]
        await asyncio.sleep(60)
        assert await counts(c) == (3, 1, 3, 2)
        assert "disruptedPods" not in await status(c)


@pytest.mark.parametrize("end", ["removed", "deleted", "deleted unready", "unknown", "expired"])
@in_virtual_time
async def test_eviction_is_removed_from_the_status_when_its_pod_is_deleted(end: str) -> None:
    async with cluster_with_controller() as c:
        finalizers = ["example.com/stay"] if end.startswith("deleted") else []
        await create_pods(c, "p0", "p1", finalizers=finalizers, ready=end != "deleted unready")
        await create_budget(c, minAvailable=0)
        await asyncio.sleep(1)
        await record_eviction(
            c, "p9" if end == "unknown" else "p0", ago=150 if end == "expired" else 0
        )
        if end.startswith(("removed", "deleted")):
            await asyncio.sleep(1)
            await c.delete(POD, "p0")
        await asyncio.sleep(1)
        assert "disruptedPods" not in await status(c)


@in_virtual_time
async def test_eviction_that_the_cache_lacks_is_not_overwritten() -> None:
    async with cluster(without=SERVER_ONLY) as c:
        transport = HeldTransport(c, POD_DISRUPTION_BUDGET)
        async with running_controller(c, transport):
            await create_pods(c, "p0", "p1", "p2")
            await create_budget(c, minAvailable=1)
            assert await counts(c) == (3, 1, 3, 2)
            transport.is_flowing.clear()
            await record_eviction(c, "p0")
            await create_pods(c, "p3")
            await asyncio.sleep(5)
            assert list((await status(c))["disruptedPods"]) == ["p0"]
            assert (await status(c))["disruptionsAllowed"] == 0
            transport.is_flowing.set()
            await asyncio.sleep(20)
            assert await counts(c) == (4, 1, 3, 2)


# ---- start and deletion --------------------------------------------------------------------------


@in_virtual_time
async def test_no_status_is_written_before_the_pod_cache_is_synced() -> None:
    async with cluster(without=SERVER_ONLY) as c:
        await create_pods(c, "p0", "p1")
        await create_budget(c, minAvailable=1)
        transport = HeldTransport(c, POD)
        transport.is_flowing.clear()
        async with running_controller(c, transport):
            await asyncio.sleep(5)
            assert "observedGeneration" not in await status(c)
            transport.is_flowing.set()
            assert await counts(c) == (2, 1, 2, 1)


@in_virtual_time
async def test_new_budget_of_the_same_name_starts_with_new_counts() -> None:
    async with cluster_with_controller() as c:
        await create_pods(c, "p0", "p1")
        await create_budget(c, minAvailable=1)
        assert await counts(c) == (2, 1, 2, 1)
        await c.client.delete(POD_DISRUPTION_BUDGET, BUDGET)
        await create_pods(c, "p2")
        await asyncio.sleep(1)
        await create_budget(c, {"matchLabels": {"app": "y"}}, minAvailable=1)
        assert await counts(c) == (0, 1, 0, 0)
