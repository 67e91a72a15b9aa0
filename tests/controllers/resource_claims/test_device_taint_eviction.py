"""Eviction of pods from tainted devices, and the status of taint rules, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from phalanx.api.kinds import (
    DEVICE_TAINT_RULE,
    POD,
    POD_GROUP,
    RESOURCE_CLAIM,
    RESOURCE_SLICE,
)
from phalanx.api.meta import Key
from phalanx.api.wire import Object
from phalanx.client.client import Client
from phalanx.controllers.event_recorder import EventRecorder
from phalanx.controllers.reconcile_loop import Informers
from phalanx.controllers.resource_claims.device_taint_eviction import DeviceTaintEviction
from phalanx.randomness import SeededRandom
from tests.builders import in_virtual_time, node, pod_group
from tests.controllers.cluster import Cluster
from tests.controllers.crash_recovery import (
    Runnable,
    assert_quiet,
    assert_survives_bad_watches,
    assert_survives_every_crash,
    bare_cluster,
)
from tests.controllers.resource_claims.test_controller import DEVICES, pod_with_claims

DRIVER = "gpu.example"
BROKEN: Object = {"key": "broken", "effect": "NoExecute"}
RULE = Key("", "off")


def build_with_events(client: Client, informers: Informers, c: Cluster) -> Sequence[Runnable]:
    recorder = EventRecorder(
        client, c.clock, SeededRandom(4), component="device-taint-eviction-controller"
    )
    eviction = DeviceTaintEviction(client, informers, c.clock, record=recorder.record)
    return [recorder.run, eviction.run, eviction.run_rules]


def build(client: Client, informers: Informers, c: Cluster) -> Sequence[Runnable]:
    """Without events."""
    return [DeviceTaintEviction(client, informers, c.clock).run]


def toleration(key: str = "broken", seconds: int | None = None, effect: str = "") -> Object:
    found: Object = {"key": key, "operator": "Exists"}
    if effect:
        found["effect"] = effect
    return found if seconds is None else {**found, "tolerationSeconds": seconds}


async def publish(c: Cluster, *taints: Object, generation: int = 1) -> None:
    """Publish the devices gpu-0, with these taints, and gpu-1 of node a."""
    spec: Object = {
        "driver": DRIVER,
        "nodeName": "a",
        "pool": {"name": "a", "generation": generation, "resourceSliceCount": 1},
        "devices": [{"name": "gpu-0", "taints": list(taints)}, {"name": "gpu-1"}],
    }
    if generation == 1:
        await c.client.create(RESOURCE_SLICE, {"metadata": {"name": "s"}, "spec": spec})
    else:
        await c.client.patch(RESOURCE_SLICE, Key("", "s"), {"spec": spec})


async def place(
    c: Cluster, name: str, *tolerations: Object, device: str = "gpu-0", group: str = ""
) -> None:
    """Bind a pod whose claim has a device, and is reserved for the pod or for its group."""
    await c.create(pod_with_claims(name, {"name": "gpu", "resourceClaimName": name}, group=group))
    await c.bind(name, "a")
    await c.client.create(
        RESOURCE_CLAIM, {"metadata": {"name": name, "namespace": "default"}, "spec": DEVICES}
    )
    result = {"request": "gpu", "driver": DRIVER, "pool": "a", "device": device}
    kind, holder = (POD_GROUP, group) if group else (POD, name)
    uid = (await c.client.get(kind, Key("default", holder)))["metadata"]["uid"]
    consumer = {"apiGroup": kind.group, "resource": kind.plural, "name": holder, "uid": uid}
    status = {
        "allocation": {"devices": {"results": [{**result, "tolerations": list(tolerations)}]}},
        "reservedFor": [consumer],
    }
    key = Key("default", name)
    await c.client.patch(RESOURCE_CLAIM, key, {"status": status}, subresource="status")


async def add_rule(c: Cluster, effect: str = "NoExecute", **selector: str) -> None:
    taint = {"key": "broken", "effect": effect}
    spec = {"deviceSelector": selector or {"driver": DRIVER}, "taint": taint}
    await c.client.create(DEVICE_TAINT_RULE, {"metadata": {"name": "off"}, "spec": spec})


async def deleted_pods(c: Cluster) -> list[str]:
    return sorted(n for n, found in (await c.pods()).items() if found.metadata.deletion_timestamp)


async def rule_condition(c: Cluster) -> tuple[str, str, str]:
    rule = await c.client.get(DEVICE_TAINT_RULE, RULE)
    (found,) = rule["status"]["conditions"]
    assert found["type"] == "EvictionInProgress"
    assert found["observedGeneration"] == rule["metadata"]["generation"]
    return found["status"], found["reason"], found.get("message", "")


@in_virtual_time
async def test_pod_of_a_device_that_gets_a_taint_is_evicted_with_the_reason() -> None:
    async with bare_cluster(build_with_events) as c:
        await c.add_node(node("a"))
        await publish(c)
        await place(c, "p")
        await place(c, "q", device="gpu-1")
        await asyncio.sleep(1)
        assert await deleted_pods(c) == []
        await publish(c, BROKEN, generation=2)
        await asyncio.sleep(1)
        assert await deleted_pods(c) == ["p"]
        found = await c.client.get(POD, Key("default", "p"))
        (condition,) = (o for o in found["status"]["conditions"] if o["type"] == "DisruptionTarget")
        assert (condition["status"], condition["reason"], condition["message"]) == (
            "True",
            "DeletionByDeviceTaintManager",
            "Device Taint manager: deleting due to NoExecute taint",
        )
        assert await c.events("DeviceTaintManagerEviction") == [("p", "Marking for deletion")]


@pytest.mark.parametrize(
    ("tolerations", "stays"),
    [
        ([toleration("other")], 0),
        ([toleration(effect="NoSchedule")], 0),
        ([toleration(seconds=-3, effect="NoExecute")], 0),
        ([toleration(seconds=30, effect="NoExecute")], 30),
        ([toleration(seconds=60), toleration(seconds=30)], 30),
        ([toleration(effect="NoExecute")], None),
        ([toleration()], None),
        ([toleration(seconds=5), toleration()], None),
    ],
)
@in_virtual_time
async def test_pod_stays_for_the_toleration_seconds_of_its_request(
    tolerations: list[Object], stays: int | None
) -> None:
    async with bare_cluster(build) as c:
        await c.add_node(node("a"))
        await publish(c)
        await place(c, "p", *tolerations)
        await publish(c, BROKEN, generation=2)
        if stays is None:
            await asyncio.sleep(10_000)
            assert await deleted_pods(c) == []
            return
        if stays:
            await asyncio.sleep(stays - 2)
            assert await deleted_pods(c) == []
        await asyncio.sleep(4)
        assert await deleted_pods(c) == ["p"]


@in_virtual_time
async def test_taint_removed_in_time_cancels_the_eviction_with_an_event() -> None:
    async with bare_cluster(build_with_events) as c:
        await c.add_node(node("a"))
        await publish(c, BROKEN)
        await place(c, "p", toleration(seconds=100))
        await asyncio.sleep(50)
        await publish(c, generation=2)
        await asyncio.sleep(100)
        assert await deleted_pods(c) == []
        assert await c.events("DeviceTaintManagerEviction") == [("p", "Cancelling deletion")]


@in_virtual_time
async def test_members_that_share_the_claim_of_their_group_are_evicted() -> None:
    async with bare_cluster(build) as c:
        await c.add_node(node("a"))
        await publish(c)
        await c.create(pod_group("g", minimum=1))
        await place(c, "p", group="g")
        await add_rule(c)
        await asyncio.sleep(1)
        assert await deleted_pods(c) == ["p"]


@in_virtual_time
async def test_rule_evicts_and_says_how_many_pods() -> None:
    async with bare_cluster(build_with_events) as c:
        await c.add_node(node("a"))
        await publish(c)
        await place(c, "p")
        await place(c, "q", toleration(seconds=60), device="gpu-1")
        await add_rule(c)
        await asyncio.sleep(1)
        assert await deleted_pods(c) == ["p"]
        await asyncio.sleep(15)
        assert await rule_condition(c) == (
            "True",
            "PodsPendingEviction",
            "1 pod needs to be evicted in 1 namespace."
            " 1 pod evicted since starting the controller.",
        )
        await asyncio.sleep(100)
        assert await deleted_pods(c) == ["p", "q"]
        assert await rule_condition(c) == (
            "False", "Completed", "2 pods evicted since starting the controller."
        )  # fmt: skip


@pytest.mark.parametrize(
    ("effect", "selector", "expected"),
    [
        ("NoSchedule", {}, ("OtherEffect", "Eviction only happens for the NoExecute effect.")),
        ("NoExecute", {"driver": "other.example"}, ("NotStarted", "")),
        (
            "None",
            {"pool": "a"},
            (
                "NoEffect",
                "2 published devices selected. 1 allocated device selected. 1 pod would be evicted"
                " in 1 namespace if the effect was NoExecute. This information will not be updated"
                " again. Recreate the DeviceTaintRule to trigger an update.",
            ),
        ),
        (
            "None",
            {"device": "gpu-1"},
            (
                "NoEffect",
                "1 published device selected. 0 allocated devices selected. 0 pods would be evicted"
                " in 0 different namespaces if the effect was NoExecute. This information will not"
                " be updated again. Recreate the DeviceTaintRule to trigger an update.",
            ),
        ),
    ],
)
@in_virtual_time
async def test_rule_that_evicts_nothing_says_why(
    effect: str, selector: dict[str, str], expected: tuple[str, str]
) -> None:
    async with bare_cluster(build_with_events) as c:
        await c.add_node(node("a"))
        await publish(c)
        await place(c, "p")
        await add_rule(c, effect, **selector)
        await asyncio.sleep(1)
        assert await rule_condition(c) == ("False", *expected)
        assert await deleted_pods(c) == []
        await c.delete(DEVICE_TAINT_RULE, "off")
        await assert_quiet(c, build)


async def run_outage(c: Cluster) -> object:
    await c.add_node(node("a"))
    await publish(c)
    for name, patience in (("p", 0), ("q", 20), ("r", None)):
        await place(c, name, toleration(seconds=patience))
    await publish(c, BROKEN, generation=2)
    await asyncio.sleep(100)
    return await deleted_pods(c)


def test_after_a_crash_at_any_write_another_controller_evicts_the_rest() -> None:
    assert assert_survives_every_crash(build, run_outage) >= 4


@pytest.mark.slow
def test_duplicate_and_late_events_change_nothing() -> None:
    assert_survives_bad_watches(build, run_outage)
