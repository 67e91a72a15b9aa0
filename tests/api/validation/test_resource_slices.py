"""Rules of ResourceSlices."""

from __future__ import annotations

from typing import Any

import pytest

from phalanx.api.kinds import RESOURCE_SLICE
from phalanx.api.wire import Object
from tests.api.cause_summaries import CauseSummaries, prefix_summaries
from tests.api.stored_objects import change_stored, creation_causes, find_causes, make_stored

POOL: Object = {"name": "p", "generation": 1, "resourceSliceCount": 1}


def slice_spec(*devices: Object, **fields: Any) -> Object:
    where = {"driver": "gpu.example.com", "pool": POOL, "nodeName": "node-1"}
    return {**where, "devices": list(devices), **fields}


def device(name: str = "gpu-0", **fields: Any) -> Object:
    return {"name": name, **fields}


@pytest.mark.parametrize(
    ("spec", "causes"),
    [
        (slice_spec(device(), device("gpu-1")), []),
        (slice_spec(nodeName=None, allNodes=True), []),
        (slice_spec(driver=""), ["driver: Required"]),
        (slice_spec(driver="GPU.Example.com"), []),
        (slice_spec(driver="a_b"), ["driver: Invalid"]),
        (slice_spec(pool={**POOL, "name": ""}), ["pool.name: Required"]),
        (slice_spec(pool={**POOL, "name": "a//B"}), ["pool.name: Invalid", "pool.name: Invalid"]),
        (
            slice_spec(pool={**POOL, "name": "p" * 254}),
            ["pool.name: TooLong", "pool.name: Invalid"],
        ),
        (slice_spec(pool={**POOL, "resourceSliceCount": 0}), ["pool.resourceSliceCount: Invalid"]),
        (slice_spec(pool={**POOL, "generation": -1}), ["pool.generation: Invalid"]),
        (slice_spec(nodeName=None), [": Required"]),
        (slice_spec(allNodes=True), [": Invalid"]),
        (slice_spec(nodeName="A B"), ["nodeName: Invalid"]),
        (slice_spec(device("A")), ["devices[0].name: Invalid"]),
        (slice_spec(device(), device()), ["devices[1].name: Duplicate"]),
        (slice_spec(*(device(f"d{i}") for i in range(129))), ["devices: TooMany"]),
        (slice_spec(device(taints=[{"key": "a", "effect": "None"}])), []),
        (slice_spec(device(taints=[{"key": "a"}])), ["devices[0].taints[0].effect: Required"]),
        (
            slice_spec(sharedCounters=[{"name": "c"}, {"name": "c"}]),
            ["sharedCounters[1].name: Duplicate"],
        ),
    ],
)
def test_resource_slice_is_validated(spec: Object, causes: CauseSummaries) -> None:
    assert creation_causes(RESOURCE_SLICE, {"spec": spec}) == prefix_summaries("spec", causes)


@pytest.mark.parametrize(
    ("attributes", "causes"),
    [
        ({"memory": {"int": 80}, "a.example.com/model": {"string": "x"}}, []),
        ({"1st": {"bool": True}}, ["attributes: Invalid"]),
        ({"a b/x": {"bool": True}}, ["attributes: Invalid"]),
        ({"x": {}}, ["attributes[x]: Invalid"]),
        ({"x": {"version": "1.2.3-rc.1+x"}}, []),
        ({"x": {"int": 1, "bool": True}}, ["attributes[x]: Invalid"]),
        (
            {"x": {"version": "1" * 65}},
            ["attributes[x].version: Invalid", "attributes[x].version: TooLong"],
        ),
    ],
)
def test_a_device_has_attributes(attributes: Object, causes: CauseSummaries) -> None:
    found = creation_causes(RESOURCE_SLICE, {"spec": slice_spec(device(attributes=attributes))})
    assert found == prefix_summaries("spec.devices[0]", causes)


def test_a_slice_selects_nodes_by_one_term() -> None:
    term = {"matchExpressions": [{"key": "a", "operator": "Exists"}]}
    for terms, causes in (([], ["Required", "Invalid"]), ([term], []), ([term] * 2, ["Invalid"])):
        chosen = slice_spec(nodeName=None, nodeSelector={"nodeSelectorTerms": terms})
        assert creation_causes(RESOURCE_SLICE, {"spec": chosen}) == [
            f"spec.nodeSelector.nodeSelectorTerms: {cause}" for cause in causes
        ]


def test_names_of_capacities_are_free() -> None:
    odd = device(capacity={"1st": {"value": "1"}})
    assert creation_causes(RESOURCE_SLICE, {"spec": slice_spec(odd)}) == []


def test_a_device_has_few_properties() -> None:
    many = {f"a{i}": {"int": i} for i in range(32)}
    assert creation_causes(RESOURCE_SLICE, {"spec": slice_spec(device(attributes=many))}) == []
    more = device(attributes=many, capacity={"memory": {"value": "80Gi"}})
    assert creation_causes(RESOURCE_SLICE, {"spec": slice_spec(more)}) == [
        "spec.devices[0]: Invalid"
    ]


def test_a_slice_stays_where_it_is() -> None:
    old = make_stored(RESOURCE_SLICE, {"spec": slice_spec(device())})
    moved = slice_spec(driver="b.example.com", pool={**POOL, "name": "q"}, nodeName="node-2")
    assert find_causes(RESOURCE_SLICE, change_stored(RESOURCE_SLICE, old, spec=moved), old) == [
        "spec.driver: Invalid",
        "spec.pool.name: Invalid",
        "spec.nodeName: Invalid",
    ]
    more = slice_spec(device(), device("gpu-1"), pool={**POOL, "generation": 2})
    assert find_causes(RESOURCE_SLICE, change_stored(RESOURCE_SLICE, old, spec=more), old) == []
