"""Cluster IPs and node ports: allocated, kept and released, and refused requests."""

from __future__ import annotations

import asyncio
from ipaddress import ip_address, ip_network
from typing import Any

import pytest

from phalanx.api.kinds import IP_ADDRESS, SERVICE, SERVICE_CIDR
from phalanx.api.wire import Object
from phalanx.clock import LoopClock
from phalanx.randomness import SeededRandom
from phalanx.server.app import Server
from phalanx.server.service_allocator import (
    InvalidRange,
    ServiceRanges,
    parse_cluster_ip_range,
    parse_node_port_range,
)
from tests.builders import in_virtual_time
from tests.server.api import EPOCH, Api, ApiResponse

SMALL = ServiceRanges(parse_cluster_ip_range("10.0.0.0/29"), parse_node_port_range("30000-30002"))
DUAL = ServiceRanges(parse_cluster_ip_range("10.0.0.0/24,fd00::/112"), range(30000, 30100))


def service(name: str, **spec: Any) -> Object:
    wanted = {"ports": [{"port": 80}], **spec}
    return {"metadata": {"name": name, "namespace": "default"}, "spec": wanted}


async def start_api(ranges: ServiceRanges | None = None) -> Api:
    api = Api()
    clock = LoopClock(asyncio.get_running_loop(), EPOCH)
    api.server = Server(api.store, clock, SeededRandom(1), service_ranges=ranges)
    await api.server.start()
    return api


async def create(api: Api, name: str, **spec: Any) -> Object:
    made: Object = (await api.create(SERVICE, service(name, **spec)))[0]["spec"]
    return made


async def refuse(api: Api, name: str, **spec: Any) -> list[tuple[str, str]]:
    answer = await api.ask("POST", SERVICE.url_path("default"), service(name, **spec))
    assert answer.code == 422, answer.body
    return answer.cause_reasons


async def put(api: Api, name: str, **spec: Any) -> ApiResponse:
    return await api.ask("PUT", SERVICE.url_path("default", name), service(name, **spec))


async def addresses(api: Api) -> list[str]:
    listed = await api.ask("GET", IP_ADDRESS.url_path())
    return [item["metadata"]["name"] for item in listed.body["items"]]


@in_virtual_time
async def test_a_service_gets_an_address_that_an_ip_address_object_records() -> None:
    api = await start_api()
    spec = await create(api, "web")
    assert ip_address(spec["clusterIP"]) in ip_network("10.96.0.0/12")
    assert spec["clusterIPs"] == [spec["clusterIP"]]
    assert (spec["ipFamilies"], spec["ipFamilyPolicy"]) == (["IPv4"], "SingleStack")
    recorded = await api.get(IP_ADDRESS, spec["clusterIP"], "")
    assert recorded["spec"]["parentRef"] == {
        "resource": "services", "namespace": "default", "name": "web",
    }  # fmt: skip
    assert recorded["metadata"]["labels"]["ipaddress.kubernetes.io/ip-family"] == "IPv4"
    assert (await api.delete(SERVICE, "web")).code == 200
    assert await addresses(api) == []


@in_virtual_time
async def test_headless_services_and_external_names_get_no_address() -> None:
    api = await start_api()
    headless = await create(api, "headless", clusterIP="None", selector={"a": "b"})
    assert headless["clusterIPs"] == ["None"]
    without_pods = await create(api, "without-pods", clusterIP="None")
    assert without_pods["ipFamilies"] == ["IPv4", "IPv6"]
    assert without_pods["ipFamilyPolicy"] == "RequireDualStack"
    named = await create(api, "named", type="ExternalName", externalName="db.example.com")
    assert "clusterIP" not in named
    assert "ipFamilies" not in named
    assert await addresses(api) == []


@in_virtual_time
async def test_an_address_is_given_out_once() -> None:
    api = await start_api()
    assert (await create(api, "a", clusterIP="10.96.7.7"))["clusterIPs"] == ["10.96.7.7"]
    invalid = [("spec.clusterIPs", "FieldValueInvalid")]
    assert await refuse(api, "b", clusterIP="10.96.7.7") == invalid
    assert await refuse(api, "b", clusterIP="192.0.2.1") == invalid
    assert await refuse(api, "b", clusterIP="10.96.0.0") == invalid
    only_first = [("spec.clusterIPs[0]", "FieldValueInvalid")]
    assert await refuse(api, "b", clusterIP="fd00::1") == only_first
    assert (await api.delete(SERVICE, "a")).code == 200
    assert (await create(api, "b", clusterIP="10.96.7.7"))["clusterIP"] == "10.96.7.7"


@in_virtual_time
async def test_a_full_range_is_an_error_until_a_service_cidr_extends_it() -> None:
    api = await start_api(SMALL)
    used = {(await create(api, f"s{number}"))["clusterIP"] for number in range(6)}
    assert used == {f"10.0.0.{number}" for number in range(1, 7)}
    answer = await api.ask("POST", SERVICE.url_path("default"), service("more"))
    assert (answer.code, answer.body["reason"]) == (500, "InternalError")
    assert "failed to allocate a serviceIP" in answer.body["message"]
    more: Object = {"metadata": {"name": "more"}, "spec": {"cidrs": ["10.1.0.0/28"]}}
    await api.create(SERVICE_CIDR, more)
    assert (await create(api, "more"))["clusterIP"].startswith("10.1.0.")


@in_virtual_time
async def test_node_ports_are_allocated_and_given_out_once() -> None:
    api = await start_api(SMALL)
    spec = await create(api, "a", type="NodePort", ports=[{"port": 80, "nodePort": 30001}])
    assert spec["ports"][0]["nodePort"] == 30001
    place = [("spec.ports[0].nodePort", "FieldValueInvalid")]
    for port in (30001, 29999):
        wanted = {"type": "NodePort", "ports": [{"port": 80, "nodePort": port}]}
        assert await refuse(api, "b", **wanted) == place
    both = [
        {"name": "tcp", "port": 53, "protocol": "TCP"},
        {"name": "udp", "port": 53, "protocol": "UDP"},
    ]
    shared = (await create(api, "b", type="NodePort", ports=both))["ports"]
    assert shared[0]["nodePort"] == shared[1]["nodePort"] != 30001
    await create(api, "c", type="NodePort")
    answer = await api.ask("POST", SERVICE.url_path("default"), service("d", type="NodePort"))
    assert (answer.code, answer.body["reason"]) == (500, "InternalError")


@in_virtual_time
async def test_a_load_balancer_has_node_ports_and_a_port_for_health_checks() -> None:
    api = await start_api()
    local = await create(api, "a", type="LoadBalancer", externalTrafficPolicy="Local")
    assert local["ports"][0]["nodePort"] != local["healthCheckNodePort"] >= 30000
    plain = await create(api, "b", type="LoadBalancer", allocateLoadBalancerNodePorts=False)
    assert "nodePort" not in plain["ports"][0]
    assert "healthCheckNodePort" not in plain
    taken = {"type": "LoadBalancer", "externalTrafficPolicy": "Local"}
    place = [("spec.healthCheckNodePort", "FieldValueInvalid")]
    port = local["healthCheckNodePort"]
    assert await refuse(api, "c", **taken, healthCheckNodePort=port) == place


@in_virtual_time
async def test_an_update_that_leaves_allocated_values_out_keeps_them() -> None:
    api = await start_api()
    before = await create(api, "web", type="LoadBalancer", externalTrafficPolicy="Local")
    answer = await put(api, "web", type="LoadBalancer", externalTrafficPolicy="Local")
    assert answer.body["spec"] == before
    moved = await put(api, "web", type="LoadBalancer", clusterIP="10.96.9.9")
    assert moved.cause_reasons == [("spec.clusterIPs[0]", "FieldValueInvalid")]


@in_virtual_time
async def test_a_change_of_the_type_releases_and_allocates() -> None:
    api = await start_api()
    spec = await create(api, "web", type="NodePort")
    inside = (await api.patch(SERVICE, "web", {"spec": {"type": "ClusterIP"}})).body["spec"]
    assert "nodePort" not in inside["ports"][0]
    assert "externalTrafficPolicy" not in inside
    assert inside["clusterIP"] == spec["clusterIP"]
    named = {"spec": {"type": "ExternalName", "externalName": "db.example.com"}}
    outside = (await api.patch(SERVICE, "web", named)).body["spec"]
    assert not {"clusterIP", "clusterIPs", "ipFamilies", "internalTrafficPolicy"} & set(outside)
    assert await addresses(api) == []
    again = {"spec": {"type": "ClusterIP", "externalName": None}}
    back = (await api.patch(SERVICE, "web", again)).body["spec"]
    assert await addresses(api) == [back["clusterIP"]]


@in_virtual_time
async def test_a_dry_run_shows_an_address_and_takes_none() -> None:
    api = await start_api()
    path = SERVICE.url_path("default")
    answer = await api.ask("POST", path, service("web"), query={"dryRun": "All"})
    assert answer.body["spec"]["clusterIP"]
    assert await addresses(api) == []


@in_virtual_time
async def test_a_dual_stack_cluster_gives_two_addresses_on_request() -> None:
    api = await start_api(DUAL)
    assert (await create(api, "one"))["ipFamilies"] == ["IPv4"]
    two = await create(api, "two", ipFamilyPolicy="RequireDualStack")
    assert two["ipFamilies"] == ["IPv4", "IPv6"]
    assert [":" in address for address in two["clusterIPs"]] == [False, True]
    six = await create(api, "six", ipFamilies=["IPv6"])
    assert ":" in six["clusterIP"]
    single = {"spec": {"ipFamilyPolicy": "SingleStack"}}
    less = (await api.patch(SERVICE, "two", single)).body["spec"]
    assert (less["clusterIPs"], less["ipFamilies"]) == (two["clusterIPs"][:1], ["IPv4"])
    assert two["clusterIPs"][1] not in await addresses(api)
    both = {"spec": {"ipFamilyPolicy": "PreferDualStack"}}
    assert len((await api.patch(SERVICE, "two", both)).body["spec"]["clusterIPs"]) == 2
    lost = {"spec": {"ipFamilies": ["IPv4"]}}
    answer = await api.patch(SERVICE, "two", lost)
    assert answer.cause_reasons == [("spec.ipFamilyPolicy", "FieldValueInvalid")]


@pytest.mark.parametrize(
    ("spec", "cause"),
    [
        ({"ipFamilyPolicy": "RequireDualStack"}, "spec.ipFamilyPolicy"),
        ({"ipFamilies": ["IPv6"]}, "spec.ipFamilies[0]"),
        ({"ipFamilyPolicy": "SingleStack", "ipFamilies": ["IPv4", "IPv6"]}, "spec.ipFamilyPolicy"),
        ({"clusterIP": "10.96.1.1", "clusterIPs": ["10.96.1.1", "fd00::1"]}, "spec.ipFamilyPolicy"),
    ],
)
@in_virtual_time
async def test_a_single_stack_cluster_refuses_other_families(spec: Object, cause: str) -> None:
    api = await start_api()
    assert (cause, "FieldValueInvalid") in await refuse(api, "web", **spec)


@pytest.mark.parametrize("text", ["10.0.0.0", "10.0.0.0/30", "10.0.0.0/24,10.1.0.0/24", "x"])
def test_a_bad_range_of_addresses_is_named(text: str) -> None:
    with pytest.raises(InvalidRange):
        parse_cluster_ip_range(text)


@pytest.mark.parametrize("text", ["30000", "2-1", "0-9", "1-70000", "a-b"])
def test_a_bad_range_of_ports_is_named(text: str) -> None:
    with pytest.raises(InvalidRange):
        parse_node_port_range(text)
