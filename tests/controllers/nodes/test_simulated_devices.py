"""Devices of simulated nodes, as options describe them."""

from __future__ import annotations

import pytest

from phalanx.controllers.nodes.device_variables import (
    claim_names,
    device_variables,
    extended_claim_name,
    extended_resource_variables,
)
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
    ],
)
def test_bad_text_is_explained(text: str, message: str) -> None:
    with pytest.raises(BadDevices, match=message):
        parse_devices(text)


def test_process_gets_the_cdi_names_of_its_devices() -> None:
    pod = {
        "spec": {
            "resourceClaims": [
                {"name": "my-gpu", "resourceClaimTemplateName": "t"},
                {"name": "net", "resourceClaimName": "fabric"},
                {"name": "later", "resourceClaimTemplateName": "t"},
            ]
        },
        "status": {"resourceClaimStatuses": [{"name": "my-gpu", "resourceClaimName": "p-x"}]},
    }
    assert claim_names(pod) == {"my-gpu": "p-x", "net": "fabric"}
    results = [
        {"driver": "gpu.example.com", "request": "gpu/large", "pool": "n1", "device": "gpu-0"},
        {"driver": "gpu.example.com", "request": "aux", "pool": "n1", "device": "gpu-1"},
    ]
    claim = {"status": {"allocation": {"devices": {"results": results}}}}
    container = {"resources": {"claims": [{"name": "my-gpu"}, {"name": "net"}]}}
    assert device_variables(container, {"my-gpu": claim}) == {
        "CDI_DEVICES_MY_GPU": "gpu.example.com/gpu-large=gpu-0,gpu.example.com/aux=gpu-1"
    }
    one = {"resources": {"claims": [{"name": "my-gpu", "request": "gpu"}]}}
    assert device_variables(one, {"my-gpu": claim}) == {
        "CDI_DEVICES_MY_GPU": "gpu.example.com/gpu-large=gpu-0"
    }
    assert device_variables({}, {"my-gpu": claim}) == {}


def test_process_gets_the_devices_that_serve_its_extended_resources() -> None:
    def mapping(container: str, resource: str, request: str) -> dict[str, str]:
        return {"containerName": container, "resourceName": resource, "requestName": request}

    mappings = [
        mapping("main", "example.com/gpu", "container-0-request-0"),
        mapping("main", "example.com/nic", "container-0-request-1"),
        mapping("other", "example.com/gpu", "container-1-request-0"),
    ]
    extended = {"resourceClaimName": "p-extended-resources-x", "requestMappings": mappings}
    pod = {"spec": {}, "status": {"extendedResourceClaimStatus": extended}}
    results = [
        {"driver": "gpu.example.com", "request": request, "pool": "n1", "device": device}
        for request, device in [
            ("container-0-request-0", "gpu-0"),
            ("container-0-request-0", "gpu-1"),
            ("container-0-request-1", "nic-0"),
            ("container-1-request-0", "gpu-2"),
        ]
    ]
    claim = {"status": {"allocation": {"devices": {"results": results}}}}
    assert extended_claim_name(pod) == "p-extended-resources-x"
    assert extended_resource_variables({"name": "main"}, pod, claim) == {
        "CDI_DEVICES_EXAMPLE_COM_GPU": (
            "gpu.example.com/container-0-request-0=gpu-0,"
            "gpu.example.com/container-0-request-0=gpu-1"
        ),
        "CDI_DEVICES_EXAMPLE_COM_NIC": "gpu.example.com/container-0-request-1=nic-0",
    }
    assert extended_resource_variables({"name": "third"}, pod, claim) == {}
    assert extended_claim_name({"spec": {}}) == ""
    assert extended_resource_variables({"name": "main"}, {"spec": {}}, {}) == {}
