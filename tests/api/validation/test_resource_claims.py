"""Rules and defaults of claims on devices, their templates, and classes of devices."""

from __future__ import annotations

from typing import Any

import pytest

from phalanx.api.kinds import DEVICE_CLASS, RESOURCE_CLAIM, RESOURCE_CLAIM_TEMPLATE
from phalanx.api.wire import Object
from tests.api.cause_summaries import CauseSummaries, prefix_summaries
from tests.api.stored_objects import change_stored, creation_causes, find_causes, make_stored

GPU: Object = {"deviceClassName": "gpu.example.com"}
OPAQUE: Object = {"opaque": {"driver": "gpu.example.com", "parameters": {"mode": 1}}}


def request(name: str = "gpu", **fields: Any) -> Object:
    return {"name": name, "exactly": {**GPU, **fields}}


def selector(expression: str) -> list[Object]:
    return [{"cel": {"expression": expression}}]


def devices(*requests: Object, **fields: Any) -> Object:
    return {"devices": {"requests": list(requests), **fields}}


def test_a_request_is_for_one_device() -> None:
    first = {"name": "any", "firstAvailable": [{"name": "a", **GPU}]}
    new = make_stored(
        RESOURCE_CLAIM, {"spec": devices(request(), request("all", allocationMode="All"), first)}
    )
    one, everything, some = new["spec"]["devices"]["requests"]
    assert one["exactly"] == {**GPU, "allocationMode": "ExactCount", "count": 1}
    assert everything["exactly"] == {**GPU, "allocationMode": "All"}
    assert some["firstAvailable"][0]["count"] == 1


REQUESTS: list[tuple[Object, CauseSummaries]] = [
    (request(count=2, selectors=selector("true")), []),
    (request(tolerations=[{"key": "a", "value": "b"}, {"operator": "Exists"}]), []),
    ({"name": "x", "firstAvailable": [{"name": "a", **GPU}, {"name": "b", **GPU}]}, []),
    (request("GPU"), ["name: Invalid"]),
    (request(""), ["name: Invalid"]),
    ({"name": "x"}, [": Required"]),
    ({**request(), "firstAvailable": [{"name": "a", **GPU}]}, [": Invalid"]),
    (request(deviceClassName=""), ["exactly.deviceClassName: Required"]),
    (request(deviceClassName="A B"), ["exactly.deviceClassName: Invalid"]),
    (request(allocationMode="Some"), ["exactly.allocationMode: NotSupported"]),
    (request(count=0), []),
    (request(count=-1), ["exactly.count: Invalid"]),
    (request(allocationMode="All", count=1), ["exactly.count: Invalid"]),
    (request(selectors=[{}]), ["exactly.selectors[0].cel: Required"]),
    (request(selectors=selector("")), ["exactly.selectors[0].cel.expression: Invalid"]),
    (request(selectors=selector("colour")), ["exactly.selectors[0].cel.expression: Invalid"]),
    (request(selectors=selector("x" * 10_241)), ["exactly.selectors[0].cel.expression: TooLong"]),
    (request(selectors=selector("a") * 33), ["exactly.selectors: TooMany"]),
    (request(tolerations=[{"value": "b"}]), []),
    (
        request(tolerations=[{"operator": "Like"}]),
        ["exactly.tolerations[0].operator: NotSupported"],
    ),
    (
        request(tolerations=[{"operator": "Exists", "value": "b", "effect": "Bang"}]),
        ["exactly.tolerations[0].effect: NotSupported", "exactly.tolerations[0].value: Invalid"],
    ),
    (
        {"name": "x", "firstAvailable": [{"name": "a", **GPU}] * 2},
        ["firstAvailable[1].name: Duplicate"],
    ),
    ({"name": "x", "firstAvailable": [{"name": "a", **GPU}] * 9}, ["firstAvailable: TooMany"]),
]


@pytest.mark.parametrize(("wanted", "causes"), REQUESTS)
def test_resource_claim_requests_are_validated(wanted: Object, causes: CauseSummaries) -> None:
    place = "spec.devices.requests[1]"
    claim = {"spec": devices(request("first"), wanted)}
    assert creation_causes(RESOURCE_CLAIM, claim) == prefix_summaries(place, causes)
    template = {"spec": claim}
    assert creation_causes(RESOURCE_CLAIM_TEMPLATE, template) == prefix_summaries(
        f"spec.{place}", causes
    )


@pytest.mark.parametrize(
    ("fields", "causes"),
    [
        ({"constraints": [{"requests": ["gpu"], "matchAttribute": "a.example.com/numa"}]}, []),
        ({"config": [{**OPAQUE, "requests": ["gpu"]}]}, []),
        ({"constraints": [{}]}, ["constraints[0]: Required"]),
        (
            {"constraints": [{"matchAttribute": "a.b/c", "distinctAttribute": "a.b/c"}]},
            ["constraints[0]: Invalid"],
        ),
        ({"constraints": [{"matchAttribute": "numa"}]}, ["constraints[0].matchAttribute: Invalid"]),
        (
            {"constraints": [{"matchAttribute": "A B/1" + "x" * 40}]},
            [
                "constraints[0].matchAttribute: Invalid",
                "constraints[0].matchAttribute: TooLong",
                "constraints[0].matchAttribute: Invalid",
            ],
        ),
        ({"constraints": [{"matchAttribute": "many/more/slashes!"}]}, []),
        (
            {"constraints": [{"requests": ["cpu"], "matchAttribute": "a.b/c"}]},
            ["constraints[0].requests[0]: Invalid"],
        ),
        ({"config": [{}]}, ["config[0].opaque: Required"]),
        (
            {"config": [{"opaque": {"driver": ""}}]},
            ["config[0].opaque.driver: Required", "config[0].opaque.parameters: Required"],
        ),
        (
            {"config": [{"opaque": {"driver": "d" * 64, "parameters": {"a": 1}}}]},
            ["config[0].opaque.driver: TooLong"],
        ),
    ],
)
def test_constraints_and_settings_are_about_requests(
    fields: Object, causes: CauseSummaries
) -> None:
    claim = {"spec": devices(request(), **fields)}
    assert creation_causes(RESOURCE_CLAIM, claim) == prefix_summaries("spec.devices", causes)


def test_alternatives_are_named_within_their_request() -> None:
    either = {"name": "any", "firstAvailable": [{"name": "a", **GPU}]}
    constraint = {"requests": ["any", "any/a"], "matchAttribute": "a.b/c"}
    assert (
        creation_causes(RESOURCE_CLAIM, {"spec": devices(either, constraints=[constraint])}) == []
    )


def test_a_claim_has_each_request_once() -> None:
    claim = {"spec": devices(request(), request())}
    assert creation_causes(RESOURCE_CLAIM, claim) == ["spec.devices.requests[1].name: Duplicate"]
    many = devices(*(request(f"r{i}") for i in range(33)))
    assert creation_causes(RESOURCE_CLAIM, {"spec": many}) == ["spec.devices.requests: TooMany"]


def test_a_claim_never_changes() -> None:
    old = make_stored(RESOURCE_CLAIM, {"spec": devices(request())})
    assert find_causes(RESOURCE_CLAIM, change_stored(RESOURCE_CLAIM, old, spec=devices()), old) == [
        "spec: Invalid"
    ]
    template = make_stored(RESOURCE_CLAIM_TEMPLATE, {"spec": {"spec": devices(request())}})
    labelled = {**template["spec"], "metadata": {"labels": {"a": "b"}}}
    new = change_stored(RESOURCE_CLAIM_TEMPLATE, template, spec=labelled)
    assert find_causes(RESOURCE_CLAIM_TEMPLATE, new, template) == ["spec: Invalid"]


RESULT: Object = {"request": "gpu", "driver": "gpu.example.com", "pool": "p", "device": "d0"}
ALLOCATED: Object = {"allocation": {"devices": {"results": [RESULT]}}}
USER: Object = {"resource": "pods", "name": "p", "uid": "1"}


@pytest.mark.parametrize(
    ("before", "after", "deleting", "causes"),
    [
        ({}, ALLOCATED, False, []),
        ({}, {**ALLOCATED, "reservedFor": [USER]}, False, []),
        (ALLOCATED, {}, False, []),
        ({}, {"reservedFor": [USER]}, False, ["reservedFor: Forbidden"]),
        (ALLOCATED, {**ALLOCATED, "reservedFor": [USER]}, True, ["reservedFor: Forbidden"]),
        (
            ALLOCATED,
            {"allocation": {"devices": {"results": [{**RESULT, "device": "d1"}]}}},
            False,
            ["allocation: Invalid"],
        ),
        (
            {},
            {**ALLOCATED, "reservedFor": [USER, USER]},
            False,
            ["reservedFor[1].uid: Duplicate"],
        ),
        ({}, {**ALLOCATED, "reservedFor": [{"uid": "1"}]}, False, [
            "reservedFor[0].resource: Required", "reservedFor[0].name: Required"
        ]),
        (
            {},
            {"allocation": {"devices": {"results": [{**RESULT, "device": "A"}]}}},
            False,
            ["allocation.devices.results[0].device: Invalid"],
        ),
        ({}, {**ALLOCATED, "devices": [RESULT]}, False, []),
    ],
)  # fmt: skip
def test_only_what_is_allocated_can_be_used(
    before: Object, after: Object, deleting: bool, causes: CauseSummaries
) -> None:
    meta = {"deletionTimestamp": "2026-01-01T00:00:00Z"} if deleting else {}
    made_claim = make_stored(RESOURCE_CLAIM, {"spec": devices(request())})
    old = {**made_claim, "metadata": {**made_claim["metadata"], **meta}, "status": before}
    new = change_stored(RESOURCE_CLAIM, old, status=after)
    assert find_causes(RESOURCE_CLAIM, new, old, "status") == prefix_summaries("status", causes)


@pytest.mark.parametrize(
    ("spec", "causes"),
    [
        ({"selectors": selector("true"), "config": [OPAQUE]}, []),
        ({"extendedResourceName": "example.com/gpu"}, []),
        ({"extendedResourceName": "gpu"}, ["extendedResourceName: Invalid"]),
        ({"extendedResourceName": "a b/gpu"}, ["extendedResourceName: Invalid"]),
        ({"selectors": selector("")}, ["selectors[0].cel.expression: Invalid"]),
        ({"config": [OPAQUE] * 33}, ["config: TooMany"]),
    ],
)
def test_a_class_selects_and_sets_up_devices(spec: Object, causes: CauseSummaries) -> None:
    assert creation_causes(DEVICE_CLASS, {"spec": spec}) == prefix_summaries("spec", causes)


def test_a_class_may_change() -> None:
    old = make_stored(DEVICE_CLASS, {"spec": {"selectors": selector("true")}})
    assert find_causes(DEVICE_CLASS, change_stored(DEVICE_CLASS, old, spec={}), old) == []
