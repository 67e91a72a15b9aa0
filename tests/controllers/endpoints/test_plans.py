"""EndpointSlices and Endpoints that follow from a Service and its pods."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from phalanx.api.core import Node, Pod, Service
from phalanx.api.kinds import SERVICE
from phalanx.api.other_kinds import Endpoints, EndpointSlice
from phalanx.api.wire import Object
from phalanx.controllers.endpoints.addresses import find_endpoints
from phalanx.controllers.endpoints.plans import (
    is_mirrored,
    plan_endpoints,
    plan_mirror,
    plan_slices,
    slice_labels,
    wanted_slices,
)
from phalanx.controllers.reconcile_loop import Create, Delete, Patch


def service(*ports: Object, labels: Object | None = None, **spec: Any) -> Service:
    obj = {
        "metadata": {"name": "web", "namespace": "default", "uid": "s", "labels": labels or {}},
        "spec": {"selector": {"app": "web"}, "ports": ports, **spec},
    }
    return msgspec.convert(obj, Service)


def pod(name: str, *addresses: str, ready: bool = True, **more: Any) -> Pod:
    condition = {"type": "Ready", "status": "True" if ready else "False"}
    phase = more.pop("phase", "Running")
    ports = more.pop("ports", [])
    obj = {
        "metadata": {"name": name, "namespace": "default", "uid": name, **more.pop("meta", {})},
        "spec": {"nodeName": "n1", "containers": [{"name": "main", "ports": ports}], **more},
        "status": {
            "phase": phase, "conditions": [condition], "podIPs": [{"ip": ip} for ip in addresses],
        },
    }  # fmt: skip
    return msgspec.convert(obj, Pod)


HTTP = {"name": "http", "port": 80, "targetPort": 8080, "appProtocol": "h2c"}
NODES = {
    "n1": msgspec.convert(
        {"metadata": {"name": "n1", "labels": {"topology.kubernetes.io/zone": "z"}}}, Node
    )
}


def slices(subject: Service, *pods: Pod) -> list[Any]:
    return wanted_slices(subject, find_endpoints(subject, pods), NODES)


def test_endpoint_describes_its_pod() -> None:
    (found,) = slices(service(HTTP), pod("a", "10.0.0.1", hostname="h", subdomain="web"))
    assert found.ports == [{"name": "http", "port": 8080, "protocol": "TCP", "appProtocol": "h2c"}]
    assert found.endpoints == [
        {
            "addresses": ["10.0.0.1"],
            "conditions": {"ready": True, "serving": True, "terminating": False},
            "targetRef": {"kind": "Pod", "namespace": "default", "name": "a", "uid": "a"},
            "hostname": "h",
            "nodeName": "n1",
            "zone": "z",
        }
    ]


@pytest.mark.parametrize(
    ("one", "publishes", "conditions"),
    [
        (pod("a", "10.0.0.1", ready=False), False, (False, False, False)),
        (pod("a", "10.0.0.1", ready=False), True, (True, False, False)),
        (pod("a", "10.0.0.1", meta={"deletionTimestamp": "2027-01-15T08:00:00Z"}), False,
         (False, True, True)),
    ],
)  # fmt: skip
def test_conditions_of_endpoints(
    one: Pod, publishes: bool, conditions: tuple[bool, bool, bool]
) -> None:
    (found,) = slices(service(HTTP, publishNotReadyAddresses=publishes), one)
    assert tuple(found.endpoints[0]["conditions"].values()) == conditions


def test_ended_pods_and_other_families_are_no_endpoints() -> None:
    pods = (pod("a", "10.0.0.1", phase="Succeeded"), pod("b", "2001:db8::1"), pod("c"))
    (found,) = slices(service(HTTP), *pods)
    assert (found.endpoints, found.ports) == ([], [])
    (dual,) = slices(service(HTTP, ipFamilies=["IPv6"]), *pods)
    assert dual.address_type == "IPv6"


def test_a_slice_holds_a_hundred_endpoints() -> None:
    pods = [pod(f"p{n:03}", f"10.0.{n // 250}.{n % 250 + 1}") for n in range(150)]
    assert [len(one.endpoints) for one in slices(service(HTTP), *pods)] == [100, 50]


def test_named_ports_may_differ_by_pod() -> None:
    named = {"name": "http", "port": 80, "targetPort": "web"}
    pods = [
        pod("a", "10.0.0.1", ports=[{"name": "web", "containerPort": 8080}]),
        pod("b", "10.0.0.2", ports=[{"name": "web", "containerPort": 9090}]),
        pod("c", "10.0.0.3"),
    ]
    found = slices(service(named), *pods)
    assert [[port["port"] for port in one.ports] for one in found] == [[8080], [9090], []]


def present_slice(name: str, endpoints: list[Object], **more: Any) -> EndpointSlice:
    meta = {"name": name, "namespace": "default", "uid": name, **more.pop("meta", {})}
    obj = {"metadata": meta, "addressType": "IPv4", "endpoints": endpoints, **more}
    return msgspec.convert(obj, EndpointSlice)


def test_present_slices_are_changed_and_surplus_ones_deleted() -> None:
    subject = service(HTTP, clusterIP="None", labels={"team": "a"})
    labels = slice_labels(subject)
    assert labels["service.kubernetes.io/headless"] == ""
    wanted = slices(subject, pod("a", "10.0.0.1"))
    meta = subject.metadata
    created = plan_slices(SERVICE, meta, labels, wanted=wanted, present=[])
    (create,) = created
    assert isinstance(create, Create)
    assert create.obj["metadata"]["name"].startswith("web-")
    old = [present_slice("x", [], meta={"labels": {"old": "y"}}), present_slice("y", [])]
    first, second = plan_slices(SERVICE, meta, labels, wanted=wanted, present=old)
    assert isinstance(first, Patch)
    assert isinstance(first.change, dict)
    assert first.change["metadata"]["labels"]["old"] is None
    assert isinstance(second, Delete)
    same = present_slice("x", wanted[0].endpoints, ports=wanted[0].ports, meta={"labels": labels})
    assert plan_slices(SERVICE, meta, labels, wanted=wanted, present=[same]) == []


def test_endpoints_leave_out_terminating_pods() -> None:
    subject = service(HTTP, labels={"team": "a"})
    pods = [
        pod("a", "10.0.0.2", hostname="h", subdomain="web"),
        pod("b", "10.0.0.1", ready=False),
        pod("c", "10.0.0.3", meta={"deletionTimestamp": "2027-01-15T08:00:00Z"}),
    ]
    (create,) = plan_endpoints(subject, find_endpoints(subject, pods), None)
    assert isinstance(create, Create)
    (subset,) = create.obj["subsets"]
    assert [one["ip"] for one in subset["addresses"]] == ["10.0.0.2"]
    assert [one["ip"] for one in subset["notReadyAddresses"]] == ["10.0.0.1"]
    present = msgspec.convert(create.obj, Endpoints)
    assert plan_endpoints(subject, find_endpoints(subject, pods), present) == []
    (patch,) = plan_endpoints(subject, [], present)
    assert isinstance(patch, Patch)
    assert isinstance(patch.change, dict)
    assert patch.change["subsets"] is None


def test_endpoints_of_services_without_selector_are_mirrored() -> None:
    obj = {
        "metadata": {"name": "web", "namespace": "default", "uid": "e"},
        "subsets": [
            {
                "addresses": [{"ip": "10.0.0.1", "nodeName": "n1"}],
                "notReadyAddresses": [{"ip": "2001:db8::1"}],
                "ports": [{"port": 80}],
            }
        ],
    }
    endpoints = msgspec.convert(obj, Endpoints)
    created = [one.obj for one in plan_mirror(endpoints, []) if isinstance(one, Create)]
    assert sorted(one["addressType"] for one in created) == ["IPv4", "IPv6"]
    assert created[0]["endpoints"][0]["nodeName"] == "n1"
    bare = service(selector={})
    assert is_mirrored(endpoints, bare)
    assert not is_mirrored(endpoints, service())
    assert not is_mirrored(endpoints, None)
    skipped = {**obj, "metadata": {"labels": {"endpointslice.kubernetes.io/skip-mirror": "true"}}}
    assert not is_mirrored(msgspec.convert(skipped, Endpoints), bare)
