"""Pools, classes and taints."""

from __future__ import annotations

from typing import Any

import pytest

from phalanx.api.dynamic_resources import DeviceToleration, ResourceSlice
from phalanx.scheduler.devices.inventory import (
    DeviceId,
    DeviceInventory,
    DeviceRequirement,
    PoolKey,
)
from tests.scheduler.device_builders import (
    DRIVER,
    device,
    device_class,
    gpus,
    resource_slice,
    taint_rule,
)

ANY = DeviceRequirement(())


def inventory(*slices: ResourceSlice) -> DeviceInventory:
    found = DeviceInventory()
    for one in slices:
        found.update_slice(one.metadata.name, one)
    return found


def local_names(
    found: DeviceInventory, node: str, requirement: DeviceRequirement = ANY
) -> list[str]:
    return [one.id.device for one in found.local_candidates(node, requirement).devices]


def test_only_the_highest_generation_of_a_pool_counts() -> None:
    found = inventory(
        resource_slice("n1", [device("old")], name="a", generation=1),
        resource_slice("n1", [device("new")], name="b", generation=2),
    )
    assert local_names(found, "n1") == ["new"]


def test_pool_is_not_used_before_all_slices_are_there() -> None:
    found = inventory(resource_slice("n1", [device("a")], name="s1", slices=2))
    assert local_names(found, "n1") == []
    assert [pool.is_usable for pool in found.unusable_pools()] == [False]
    found.update_slice("s2", resource_slice("n1", [device("b")], name="s2", slices=2))
    assert local_names(found, "n1") == ["a", "b"]
    assert not list(found.unusable_pools())


def test_pool_with_two_devices_of_one_name_is_not_used() -> None:
    assert local_names(inventory(resource_slice("n1", [device("a"), device("a")])), "n1") == []


def test_devices_are_in_the_order_of_pools_slices_and_lists() -> None:
    found = inventory(
        resource_slice("n1", [device("z"), device("y")], name="s2", pool="p2"),
        resource_slice("n1", [device("x")], name="s3", pool="p1", slices=2),
        resource_slice("n1", [device("w")], name="s1", pool="p1", slices=2),
    )
    assert local_names(found, "n1") == ["w", "x", "z", "y"]


def test_removed_slice_takes_its_devices_away() -> None:
    found = inventory(resource_slice("n1", gpus(1)))
    assert found.find_device(DeviceId(DRIVER, "n1", "gpu-0")) is not None
    found.update_slice("slice-n1", None)
    assert local_names(found, "n1") == []
    assert found.find_device(DeviceId(DRIVER, "n1", "gpu-0")) is None
    assert found.pool(PoolKey(DRIVER, "n1")) is None


def test_unchanged_spec_changes_nothing() -> None:
    found = inventory(resource_slice("n1", gpus(1)))
    revision = found.revision
    assert not found.update_slice("slice-n1", resource_slice("n1", gpus(1)))
    assert not found.update_rule("none", None)
    assert found.revision == revision


def test_pool_with_binding_conditions_is_tried_last() -> None:
    waiting = device("a", bindingConditions=["attached"], bindingFailureConditions=["failed"])
    found = inventory(
        resource_slice("n1", [device("z"), waiting], name="first", pool="first"),
        resource_slice("n1", [device("b")], name="second", pool="second"),
    )
    assert local_names(found, "n1") == ["b", "z", "a"]


def test_devices_of_several_nodes_are_shared() -> None:
    terms = [{"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}]
    found = inventory(
        resource_slice(
            "", [device("switch")], pool="fabric", nodeSelector={"nodeSelectorTerms": terms}
        ),
        resource_slice("", [device("any")], pool="global", allNodes=True),
    )
    assert [one.id.device for one in found.shared_candidates(ANY).devices] == ["switch", "any"]
    assert local_names(found, "n1") == []


def test_each_device_may_have_its_own_node() -> None:
    found = inventory(
        resource_slice(
            "",
            [device("a", nodeName="n1"), device("b", nodeName="n2"), device("c", allNodes=True)],
            pool="p",
            perDeviceNodeSelection=True,
        )
    )
    assert local_names(found, "n1") == ["a"]
    assert local_names(found, "n2") == ["b"]
    assert [one.id.device for one in found.shared_candidates(ANY).devices] == ["c"]


@pytest.mark.parametrize(
    ("toleration", "is_tolerated"),
    [
        (None, False),
        ({"key": "broken", "operator": "Exists", "effect": "NoSchedule"}, True),
        ({"operator": "Exists"}, True),
        ({"key": "broken", "value": "fan"}, True),
        ({"key": "broken", "value": "disk"}, False),
        ({"key": "broken", "operator": "Exists", "effect": "NoExecute"}, False),
    ],
)
def test_tainted_device_needs_a_toleration(toleration: Any, is_tolerated: bool) -> None:
    taint = {"key": "broken", "value": "fan", "effect": "NoSchedule"}
    found = inventory(resource_slice("n1", [device("a", taints=[taint])]))
    tolerations = (DeviceToleration(**toleration),) if toleration else ()
    candidates = found.local_candidates("n1", DeviceRequirement((), tolerations))
    assert len(candidates.devices) == is_tolerated
    assert candidates.tainted == (not is_tolerated)


def test_taint_without_effect_on_scheduling_keeps_nothing_away() -> None:
    tainted = device("a", taints=[{"key": "x", "effect": "None"}])
    assert local_names(inventory(resource_slice("n1", [tainted])), "n1") == ["a"]


@pytest.mark.parametrize(
    ("selector", "remaining"),
    [
        ({"driver": DRIVER}, []),
        ({"pool": "n1", "device": "gpu-0"}, ["gpu-1"]),
        ({"driver": "other.example"}, ["gpu-0", "gpu-1"]),
        ({}, []),
        (None, ["gpu-0", "gpu-1"]),
    ],
)
def test_taint_rule_taints_the_devices_that_it_selects(
    selector: dict[str, str] | None, remaining: list[str]
) -> None:
    found = inventory(resource_slice("n1", gpus(2)))
    taint = {"key": "rest", "effect": "NoSchedule"}
    rule = {"taint": taint, **({} if selector is None else {"deviceSelector": selector})}
    assert found.update_rule("off", taint_rule("off", **rule))
    assert local_names(found, "n1") == remaining
    assert found.update_rule("off", None)
    assert local_names(found, "n1") == ["gpu-0", "gpu-1"]


def test_selector_error_names_the_device() -> None:
    found = inventory(resource_slice("n1", gpus(1)))
    broken = DeviceRequirement(('device.attributes["gpu.example"].size == "x"',))
    candidates = found.local_candidates("n1", broken)
    assert candidates.devices == ()
    assert candidates.error.startswith("device gpu.example/n1/gpu-0: runtime error: no such key")


def test_class_serves_an_extended_resource() -> None:
    found = DeviceInventory()
    found.update_class("gpu", device_class("gpu", extendedResourceName="example.com/gpu"))
    assert found.class_of_resource("example.com/gpu") == "gpu"
    assert found.class_of_resource("deviceclass.resource.kubernetes.io/gpu") == "gpu"
    assert found.class_of_resource("deviceclass.resource.kubernetes.io/other") == ""
    assert found.class_of_resource("example.com/other") == ""


def test_plain_devices_are_counted_without_looking_at_each() -> None:
    shareable = device("s", allowMultipleAllocations=True)
    found = inventory(resource_slice("n1", gpus(8)), resource_slice("n2", [shareable]))
    requirement = DeviceRequirement((f'device.driver == "{DRIVER}"',))
    assert found.count_local("n1", requirement) == 8
    assert found.count_local("n2", requirement) is None
    assert found.count_local("n3", requirement) == 0
    assert found.count_local("n1", DeviceRequirement(("device.x",))) == 0
