"""Devices of simulated nodes, as options describe them."""

from __future__ import annotations

import pytest

from phalanx.controllers.nodes.simulated_devices import BadDevices, parse_devices


def test_quantities_with_a_unit_are_capacities_and_other_values_attributes() -> None:
    found = parse_devices("gpu.example.com=2:memory=80Gi,model=h100,numa=1,shared=true")
    assert (found.driver, found.count) == ("gpu.example.com", 2)
    assert found.capacity == {"memory": {"value": "80Gi"}}
    assert found.attributes == {
        "model": {"string": "h100"},
        "numa": {"int": 1},
        "shared": {"bool": True},
    }
    published = found.resource_slice("n1", "uid-1")
    assert [one["name"] for one in published["spec"]["devices"]] == ["gpu-0", "gpu-1"]
    assert published["spec"]["nodeName"] == published["spec"]["pool"]["name"] == "n1"
    assert published["metadata"]["ownerReferences"][0]["uid"] == "uid-1"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("GPU=8", "invalid driver"),
        ("gpu.example.com", "a number from 1 to 128"),
        ("gpu.example.com=0", "a number from 1 to 128"),
        ("gpu.example.com=129", "a number from 1 to 128"),
        ("gpu.example.com=8:model=", "has no value"),
        ("gpu.example.com=8:9a=b", "invalid attribute"),
        ("gpu.example.com=8:memory=1Gi,memory=2Gi", 'attribute "memory" is given twice'),
        (f"gpu.example.com=8:model={'x' * 70}", 'the value of "model" must have at most'),
        (f"{'gpu.' * 20}example.com=8", "must have at most 63 characters"),
    ],
)
def test_bad_text_is_explained(text: str, message: str) -> None:
    with pytest.raises(BadDevices, match=message):
        parse_devices(text)
