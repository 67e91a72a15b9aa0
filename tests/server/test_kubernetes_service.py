"""The Service `default/kubernetes` and its EndpointSlice, which the server writes itself."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from ipaddress import ip_address

import pytest

from phalanx.api.kinds import ENDPOINT_SLICE, ENDPOINTS, IP_ADDRESS, KINDS, SERVICE, Kind
from phalanx.api.wire import Object
from phalanx.server.kubernetes_service import (
    advertised_address,
    ensure_kubernetes_service,
    run_kubernetes_service,
)
from tests.builders import in_virtual_time
from tests.server.api import Api

ADDRESS, PORT = "10.1.2.3", 6443


async def start_api(address: str = ADDRESS) -> Api:
    api = await Api.start()
    await ensure_kubernetes_service(api.server.context, address, PORT)
    return api


@asynccontextmanager
async def maintained(api: Api) -> AsyncIterator[None]:
    """Let the server restore the objects while the context lasts."""
    task = asyncio.create_task(run_kubernetes_service(api.server.context, ADDRESS, PORT))
    try:
        yield
    finally:
        task.cancel()


@in_virtual_time
async def test_service_kubernetes_has_the_fields_of_a_cluster() -> None:
    api = await start_api()
    found = await api.get(SERVICE, "kubernetes")
    assert found["metadata"]["labels"] == {"component": "apiserver", "provider": "kubernetes"}
    assert found["spec"] == {
        "clusterIP": "10.96.0.1",
        "clusterIPs": ["10.96.0.1"],
        "internalTrafficPolicy": "Cluster",
        "ipFamilies": ["IPv4"],
        "ipFamilyPolicy": "SingleStack",
        "ports": [{"name": "https", "port": 443, "protocol": "TCP", "targetPort": PORT}],
        "sessionAffinity": "None",
        "type": "ClusterIP",
    }


@pytest.mark.parametrize(("address", "kind"), [(ADDRESS, "IPv4"), ("2001:db8::7", "IPv6")])
@in_virtual_time
async def test_endpoint_slice_kubernetes_has_the_address_of_the_server(
    address: str, kind: str
) -> None:
    api = await start_api(address)
    found = await api.get(ENDPOINT_SLICE, "kubernetes")
    assert found["metadata"]["labels"] == {"kubernetes.io/service-name": "kubernetes"}
    assert (found["addressType"], found["endpoints"], found["ports"]) == (
        kind,
        [{"addresses": [address], "conditions": {"ready": True}}],
        [{"name": "https", "port": PORT, "protocol": "TCP"}],
    )


@pytest.mark.parametrize("kind", [SERVICE, ENDPOINT_SLICE], ids=lambda kind: kind.name)
@in_virtual_time
async def test_deleted_object_of_the_server_is_created_again(kind: Kind) -> None:
    api = await start_api()
    before = await api.get(kind, "kubernetes")
    async with maintained(api):
        assert (await api.delete(kind, "kubernetes")).code == 200
        await asyncio.sleep(11)
        after = await api.get(kind, "kubernetes")
    changed = {"uid", "creationTimestamp", "resourceVersion"}
    meta = {key: value for key, value in before["metadata"].items() if key not in changed}
    assert after == {**before, "metadata": {**after["metadata"], **meta}}
    assert after["metadata"]["uid"] != before["metadata"]["uid"]


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        (SERVICE, {"spec": {"ports": [{"name": "x", "port": 80, "protocol": "TCP"}]}}),
        (SERVICE, {"spec": {"selector": {"app": "mine"}}}),
        (ENDPOINT_SLICE, {"endpoints": [{"addresses": ["10.9.9.9"]}]}),
        (ENDPOINT_SLICE, {"metadata": {"labels": {"kubernetes.io/service-name": "mine"}}}),
    ],
)
@in_virtual_time
async def test_changed_object_of_the_server_is_restored(kind: Kind, change: Object) -> None:
    api = await start_api()
    before = await api.get(kind, "kubernetes")
    mine: Object = {"metadata": {"annotations": {"mine": "x"}}}
    assert (await api.patch(kind, "kubernetes", mine)).code == 200
    assert (await api.patch(kind, "kubernetes", change)).code == 200
    async with maintained(api):
        await asyncio.sleep(11)
        after = await api.get(kind, "kubernetes")
        parts = [key for key in before if key != "metadata"]
        assert {key: after[key] for key in parts} == {key: before[key] for key in parts}
        assert after["metadata"]["labels"] == before["metadata"]["labels"]
        assert after["metadata"]["annotations"] == {"mine": "x"}
        revision = api.store.revision
        await asyncio.sleep(60)
        assert api.store.revision == revision


@in_virtual_time
async def test_endpoint_slice_of_a_server_on_loopback_can_be_annotated() -> None:
    api = await start_api("127.0.0.1")
    mine: Object = {"metadata": {"annotations": {"mine": "x"}}}
    assert (await api.patch(ENDPOINT_SLICE, "kubernetes", mine)).code == 200
    change: Object = {"endpoints": [{"addresses": ["127.0.0.2"]}]}
    assert (await api.patch(ENDPOINT_SLICE, "kubernetes", change)).code == 422


@in_virtual_time
async def test_restarted_server_at_another_address_updates_the_endpoint_slice() -> None:
    api = await start_api()
    before = await api.get(ENDPOINT_SLICE, "kubernetes")
    await ensure_kubernetes_service(api.server.context, "10.1.2.4", 7443)
    after = await api.get(ENDPOINT_SLICE, "kubernetes")
    assert after["endpoints"][0]["addresses"] == ["10.1.2.4"]
    assert after["ports"][0]["port"] == 7443
    assert after["metadata"]["uid"] == before["metadata"]["uid"]


@in_virtual_time
async def test_server_without_an_address_has_neither_service_nor_slice() -> None:
    api = await Api.start()
    assert (await api.list_default(SERVICE))["items"] == []
    assert (await api.list_default(ENDPOINT_SLICE))["items"] == []
    assert ENDPOINT_SLICE in KINDS


def test_socket_is_advertised_by_its_address_or_by_one_of_this_host() -> None:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        assert advertised_address(sock) == "127.0.0.1"
    with socket.socket() as sock:
        sock.bind(("0.0.0.0", 0))
        assert not ip_address(advertised_address(sock)).is_unspecified


@in_virtual_time
async def test_endpoints_and_the_address_are_recorded_too() -> None:
    api = await start_api()
    found = await api.get(ENDPOINTS, "kubernetes")
    assert found["subsets"] == [
        {
            "addresses": [{"ip": ADDRESS}],
            "ports": [{"name": "https", "port": PORT, "protocol": "TCP"}],
        }
    ]
    recorded = await api.get(IP_ADDRESS, "10.96.0.1", "")
    assert recorded["spec"]["parentRef"]["name"] == "kubernetes"
