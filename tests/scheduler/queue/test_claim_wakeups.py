"""Changes of volumes and devices wake the pods that they may help, and no others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from phalanx.api.core import Node, Pod, Taint
from phalanx.scheduler.decision import Placed
from phalanx.scheduler.queue.decision_log import NodeObserved
from phalanx.scheduler.queue.scheduler_state import (
    ClusterObjects,
    SchedulerState,
    load_state,
    observe_device_object,
    observe_volume_object,
)
from phalanx.scheduler.volumes.state import VolumeObject
from tests.scheduler import device_builders as devices
from tests.scheduler.volume_builders import (
    bound_pair,
    claiming_pod,
    csi_driver,
    csi_node,
    csi_volume,
    host,
    storage_capacity,
    storage_class,
    volume,
    volume_attachment,
    volume_claim,
)

HOST = {"kubernetes.io/hostname": "n1"}
PROVISIONED = storage_class(provisioner="disk.example")
TOPOLOGY = {
    "matchLabelExpressions": [{"key": "kubernetes.io/hostname", "values": ["elsewhere"]}],
}


def refuse(state: SchedulerState) -> None:
    """Attempt every entity; none is placed."""
    while (entity := state.pop(0.0)) is not None:
        decision = state.decide(entity)
        assert not isinstance(decision, Placed), decision
        state.commit(entity, decision, 0.0)


def is_placed_now(state: SchedulerState) -> bool:
    """Whether the pod was woken and is placed."""
    entity = state.pop(0.0)
    return entity is not None and isinstance(state.decide(entity), Placed)


def volume_state(objects: Sequence[VolumeObject], *pods: Pod) -> SchedulerState:
    state = load_state(ClusterObjects([host("n1")], [], list(pods), volumes=objects))
    refuse(state)
    return state


def observe(state: SchedulerState, old: VolumeObject, new: VolumeObject | None) -> None:
    state.observe(observe_volume_object(old, new, 0.0))


CLAIM = volume_claim("data")
POD = claiming_pod("p", "data")
ELSEWHERE = volume("v", nodes=["elsewhere"])
LABELLED = volume_claim("data", selector={"matchLabels": {"sort": "fast"}})
CAPACITY_DRIVER = csi_driver(storageCapacity=True)
ATTACHED: list[VolumeObject] = [
    csi_volume("v", claim="data"), volume_claim("data", bound_to="v"),
    csi_node("n1", limit=1), csi_volume("w"), volume_attachment("a", "n1", "w"),
]  # fmt: skip

#: What there is, and the object that comes, changes (it has the name of another) or goes.
CURES: dict[str, tuple[list[VolumeObject], VolumeObject, bool]] = {
    "a volume comes": ([storage_class(), CLAIM], volume("v"), True),
    "a volume gets another node": ([storage_class(), CLAIM, ELSEWHERE], volume("v"), True),
    "a volume grows": ([storage_class(), CLAIM, volume("v", "1Gi")], volume("v"), True),
    "a volume gets a class": (
        [storage_class(), CLAIM, volume("v", storageClassName="other")], volume("v"), True,
    ),
    "a volume gets labels": (
        [storage_class(), LABELLED, volume("v")], volume("v", labels={"sort": "fast"}), True,
    ),
    "a volume is released": (
        [storage_class(), CLAIM, volume("v", claim="other")], volume("v"), True,
    ),
    "a reserved volume goes": (
        [storage_class(), CLAIM, volume("v"),
         volume("mine", nodes=["elsewhere"], claim="data", phase="Available")],
        volume("mine", nodes=["elsewhere"], claim="data", phase="Available"), False,
    ),
    "a class comes": ([CLAIM, volume("v")], storage_class(), True),
    "a class allows the node": (
        [storage_class(provisioner="disk.example", allowedTopologies=[TOPOLOGY]), CLAIM],
        PROVISIONED, True,
    ),
    "storage comes": (
        [PROVISIONED, CLAIM, CAPACITY_DRIVER], storage_capacity("s", "100Gi", HOST), True,
    ),
    "storage grows": (
        [PROVISIONED, CLAIM, CAPACITY_DRIVER, storage_capacity("s", "1Gi", HOST)],
        storage_capacity("s", "100Gi", HOST), True,
    ),
    "a driver needs no capacity": ([PROVISIONED, CLAIM, CAPACITY_DRIVER], csi_driver(), True),
    "a driver goes": ([PROVISIONED, CLAIM, CAPACITY_DRIVER], CAPACITY_DRIVER, False),
    "a limit grows": (ATTACHED, csi_node("n1", limit=2), True),
    "a limit goes": (ATTACHED, csi_node("n1", limit=1), False),
    "a volume is detached": (ATTACHED, volume_attachment("a", "n1", "w"), False),
    "a driver comes to the node": (
        [*ATTACHED[:2], csi_driver(preventPodSchedulingIfMissing=True)],
        csi_node("n1", limit=1), True,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CURES)
def test_change_of_volumes_wakes_the_pod_that_it_helps(name: str) -> None:
    objects, changed, stays = CURES[name]
    state = volume_state(objects, POD)
    observe(state, changed, changed if stays else None)
    assert is_placed_now(state)


#: Objects that come, change or go, and help no pod.
USELESS: dict[str, tuple[list[VolumeObject], VolumeObject, bool]] = {
    "a volume is taken": (
        [storage_class(), CLAIM, volume("v", "1Gi")], volume("v", "1Gi", claim="other"), True,
    ),
    "a class stays": ([storage_class(), CLAIM], storage_class(), True),
    "a class goes": ([storage_class(), CLAIM], storage_class(), False),
    "a limit stays": (ATTACHED, csi_node("n1", limit=1), True),
    "a volume is attached": (ATTACHED, volume_attachment("b", "n1", "w"), True),
    "storage goes": (
        [PROVISIONED, CLAIM, CAPACITY_DRIVER, storage_capacity("s", "1Gi", HOST)],
        storage_capacity("s", "1Gi", HOST), False,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", USELESS)
def test_change_of_volumes_that_helps_no_pod_wakes_none(name: str) -> None:
    objects, changed, stays = USELESS[name]
    state = volume_state(objects, POD)
    observe(state, changed, changed if stays else None)
    assert state.pop(0.0) is None


def test_change_of_volumes_wakes_no_pod_without_claims() -> None:
    large = claiming_pod("large", cpu="100")
    state = volume_state([storage_class(), *bound_pair("data")], large)
    observe(state, volume("v"), volume("v"))
    assert state.pop(0.0) is None


# ---- devices -------------------------------------------------------------------------------------

RESOURCE = "example.com/gpu"
SERVING = devices.device_class(extendedResourceName=RESOURCE)
SLICE = devices.resource_slice("n1", devices.gpus(1))
TAINTED = devices.taint_rule(
    "off", deviceSelector={"pool": "n1"}, taint={"key": "off", "effect": "NoSchedule"}
)


def device_state(objects: Sequence[Any], pod: Pod, node: Node | None = None) -> SchedulerState:
    state = devices.state_of([node or devices.node("n1")], objects, [pod])
    refuse(state)
    return state


@pytest.mark.parametrize(("there", "comes"), [(SLICE, SERVING), (SERVING, SLICE)])
def test_class_or_slice_wakes_the_pod_whose_extended_resource_it_serves(
    there: Any, comes: Any
) -> None:
    state = device_state([there], devices.pod("p", requests={RESOURCE: "1"}))
    state.observe(observe_device_object(comes, 0.0))
    assert is_placed_now(state)


def test_node_wakes_the_pod_whose_extended_resource_its_devices_serve() -> None:
    node = devices.node("n1")
    tainted = replace(node, spec=replace(node.spec, taints=(Taint("new", "", "NoSchedule"),)))
    state = device_state([SERVING, SLICE], devices.pod("p", requests={RESOURCE: "1"}), tainted)
    state.observe(NodeObserved(0.0, "n1", node))
    assert is_placed_now(state)


@pytest.mark.parametrize(
    ("there", "comes"),
    [
        ([devices.device_class()], SLICE),
        ([SLICE], devices.device_class()),
        ([devices.device_class(), SLICE, TAINTED], None),
    ],
)
def test_devices_wake_the_pod_that_claims_them(there: list[Any], comes: Any) -> None:
    state = device_state([*there, devices.claim("one")], devices.pod("p", "one"))
    if comes is None:
        state.observe(observe_device_object(there[-1], 0.0, is_deleted=True))
    else:
        state.observe(observe_device_object(comes, 0.0))
    assert is_placed_now(state)
