"""Rules of ResourceSlices."""

from __future__ import annotations

from typing import Any

import pytest

from phalanx.api.kinds import RESOURCE_SLICE
from phalanx.api.wire import Object
from tests.api.findings import Findings, below
from tests.api.making import changed, found, made, refused

POOL: Object = {"name": "p", "generation": 1, "resourceSliceCount": 1}


def part(*devices: Object, **fields: Any) -> Object:
    where = {"driver": "gpu.example.com", "pool": POOL, "nodeName": "node-1"}
    return {**where, "devices": list(devices), **fields}


def device(name: str = "gpu-0", **fields: Any) -> Object:
    return {"name": name, **fields}


@pytest.mark.parametrize(
    ("spec", "causes"),
    [
        (part(device(), device("gpu-1")), []),
        (part(nodeName=None, allNodes=True), []),
        (part(driver=""), ["driver: Required"]),
        (part(pool={**POOL, "name": ""}), ["pool.name: Required"]),
        (part(pool={**POOL, "name": "a//B"}), ["pool.name: Invalid", "pool.name: Invalid"]),
        (part(pool={**POOL, "name": "p" * 254}), ["pool.name: TooLong", "pool.name: Invalid"]),
        (part(pool={**POOL, "resourceSliceCount": 0}), ["pool.resourceSliceCount: Invalid"]),
        (part(pool={**POOL, "generation": -1}), ["pool.generation: Invalid"]),
        (part(nodeName=None), [": Required"]),
        (part(allNodes=True), [": Invalid"]),
        (part(nodeName="A B"), ["nodeName: Invalid"]),
        (part(device("A")), ["devices[0].name: Invalid"]),
        (part(device(), device()), ["devices[1].name: Duplicate"]),
        (part(*(device(f"d{i}") for i in range(129))), ["devices: TooMany"]),
        (part(device(taints=[{"key": "a", "effect": "None"}])), []),
        (part(device(taints=[{"key": "a"}])), ["devices[0].taints[0].effect: Required"]),
        (
            part(sharedCounters=[{"name": "c"}, {"name": "c"}]),
            ["sharedCounters[1].name: Duplicate"],
        ),
    ],
)
def test_a_slice_says_which_devices_are_where(spec: Object, causes: Findings) -> None:
    assert refused(RESOURCE_SLICE, {"spec": spec}) == below("spec", causes)


@pytest.mark.parametrize(
    ("attributes", "causes"),
    [
        ({"memory": {"int": 80}, "a.example.com/model": {"string": "x"}}, []),
        ({"1st": {"bool": True}}, ["attributes: Invalid"]),
        ({"a b/x": {"bool": True}}, ["attributes: Invalid"]),
        ({"x": {}}, ["attributes[x]: Required"]),
        ({"x": {"int": 1, "bool": True}}, ["attributes[x]: Invalid"]),
        ({"x": {"version": "1" * 65}}, ["attributes[x].version: TooLong"]),
    ],
)
def test_a_device_has_attributes(attributes: Object, causes: Findings) -> None:
    found = refused(RESOURCE_SLICE, {"spec": part(device(attributes=attributes))})
    assert found == below("spec.devices[0]", causes)


def test_capacities_are_named_like_attributes() -> None:
    odd = device(capacity={"1st": {"value": "1"}})
    assert refused(RESOURCE_SLICE, {"spec": part(odd)}) == ["spec.devices[0].capacity: Invalid"]


def test_a_device_has_few_properties() -> None:
    many = {f"a{i}": {"int": i} for i in range(32)}
    assert refused(RESOURCE_SLICE, {"spec": part(device(attributes=many))}) == []
    more = device(attributes=many, capacity={"memory": {"value": "80Gi"}})
    assert refused(RESOURCE_SLICE, {"spec": part(more)}) == ["spec.devices[0]: Invalid"]


def test_a_slice_stays_where_it_is() -> None:
    old = made(RESOURCE_SLICE, {"spec": part(device())})
    moved = part(driver="b.example.com", pool={**POOL, "name": "q"}, nodeName="node-2")
    assert found(RESOURCE_SLICE, changed(RESOURCE_SLICE, old, spec=moved), old) == [
        "spec.driver: Invalid",
        "spec.pool.name: Invalid",
        "spec.nodeName: Invalid",
    ]
    more = part(device(), device("gpu-1"), pool={**POOL, "generation": 2})
    assert found(RESOURCE_SLICE, changed(RESOURCE_SLICE, old, spec=more), old) == []
