"""Rules, defaults and columns of EndpointSlices."""

from __future__ import annotations

from typing import Any

import pytest

from phalanx.api.kinds import ENDPOINT_SLICE
from phalanx.api.printing.columns import PRINTER_COLUMNS
from phalanx.api.wire import Object
from tests.api.cause_summaries import CauseSummaries
from tests.api.stored_objects import change_stored, creation_causes, find_causes, make_stored

HTTP: Object = {"name": "http", "port": 80}


def endpoint(*addresses: str, **fields: Any) -> Object:
    return {"addresses": list(addresses) or ["10.0.0.1"], **fields}


def endpoint_slice(
    *endpoints: Object, kind: str = "IPv4", ports: tuple[Object, ...] = (HTTP,), **fields: Any
) -> Object:
    return {
        "addressType": kind,
        "endpoints": list(endpoints) or [endpoint()],
        "ports": list(ports),
        **fields,
    }


def hints(field: str, *names: str) -> Object:
    return endpoint(hints={field: [{"name": name} for name in names]})


@pytest.mark.parametrize(
    ("wanted", "causes"),
    [
        (endpoint_slice(), []),
        ({"addressType": "IPv4"}, []),
        (endpoint_slice(endpoint("10.0.0.1", hostname="a", nodeName="n.1", zone="z")), []),
        (endpoint_slice(endpoint("2001:db8::1"), kind="IPv6"), []),
        (endpoint_slice(endpoint("db.example.com."), kind="FQDN"), []),
        (endpoint_slice(kind=""), ["addressType: Required"]),
        (endpoint_slice(kind="IP"), ["addressType: NotSupported"]),
        (
            endpoint_slice({"addresses": []}, endpoint()),
            ["endpoints[0].addresses: Required"],
        ),
        (
            endpoint_slice(endpoint(*(f"10.0.0.{n}" for n in range(1, 102)))),
            ["endpoints[0].addresses: TooMany"],
        ),
        (endpoint_slice(*[endpoint()] * 1001), ["endpoints: TooMany"]),
        (endpoint_slice(endpoint("here")), ["endpoints[0].addresses[0]: Invalid"] * 2),
        (endpoint_slice(endpoint("2001:db8::1")), ["endpoints[0].addresses[0]: Invalid"]),
        (
            endpoint_slice(endpoint("10.0.0.1"), kind="IPv6"),
            ["endpoints[0].addresses[0]: Invalid"],
        ),
        *(
            (endpoint_slice(endpoint(address)), ["endpoints[0].addresses[0]: Invalid"])
            for address in ("0.0.0.0", "127.0.0.1", "169.254.0.9", "224.0.0.9")
        ),
        (endpoint_slice(endpoint("db"), kind="FQDN"), ["endpoints[0].addresses[0]: Invalid"]),
        (endpoint_slice(endpoint(hostname="A_B")), ["endpoints[0].hostname: Invalid"]),
        (endpoint_slice(endpoint(nodeName="A_B")), ["endpoints[0].nodeName: Invalid"]),
        (endpoint_slice(hints("forZones", "a", "b")), []),
        (
            endpoint_slice(hints("forZones", "a", "a")),
            ["endpoints[0].hints.forZones[1].name: Duplicate"],
        ),
        (
            endpoint_slice(hints("forZones", "a b")),
            ["endpoints[0].hints.forZones[0].name: Invalid"],
        ),
        (
            endpoint_slice(hints("forNodes", *"abcdefghi")),
            ["endpoints[0].hints.forNodes: TooMany"],
        ),
        (endpoint_slice(ports=({"port": 80}, HTTP)), []),
        (endpoint_slice(ports=(HTTP, HTTP)), ["ports[1].name: Duplicate"]),
        (endpoint_slice(ports=({"port": 1}, {"port": 2})), ["ports[1].name: Duplicate"]),
        (endpoint_slice(ports=({"name": "A"},)), ["ports[0].name: Invalid"]),
        (endpoint_slice(ports=({"protocol": "HTTP"},)), ["ports[0].protocol: NotSupported"]),
        (endpoint_slice(ports=({"port": 0},)), ["ports[0].port: Invalid"]),
        (endpoint_slice(ports=({"appProtocol": "a b"},)), ["ports[0].appProtocol: Invalid"]),
    ],
)
def test_endpoint_slice_has_the_causes_of_its_faults(
    wanted: Object, causes: CauseSummaries
) -> None:
    assert creation_causes(ENDPOINT_SLICE, wanted) == causes


def test_address_type_of_an_endpoint_slice_cannot_be_changed() -> None:
    old = make_stored(ENDPOINT_SLICE, endpoint_slice())
    endpoints = [endpoint("a.example.com")]
    new = change_stored(ENDPOINT_SLICE, old, addressType="FQDN", endpoints=endpoints)
    assert find_causes(ENDPOINT_SLICE, new, old) == ["addressType: Invalid"]


def test_ports_of_an_endpoint_slice_get_a_name_and_a_protocol() -> None:
    made = make_stored(ENDPOINT_SLICE, endpoint_slice(ports=({"port": 80},)))
    assert made["ports"] == [{"name": "", "port": 80, "protocol": "TCP"}]


def test_deprecated_topology_of_an_endpoint_is_not_stored() -> None:
    topology = {"topology.kubernetes.io/zone": "z"}
    made = make_stored(ENDPOINT_SLICE, endpoint_slice(endpoint(deprecatedTopology=topology)))
    assert made["endpoints"] == [{"addresses": ["10.0.0.1"], "conditions": {}}]


@pytest.mark.parametrize(
    ("obj", "ports", "endpoints"),
    [
        ({}, "<unset>", "<unset>"),
        (
            endpoint_slice(endpoint("10.0.0.1", "10.0.0.2"), endpoint("10.0.0.3")),
            "80",
            "10.0.0.1,10.0.0.2,10.0.0.3",
        ),
        (
            endpoint_slice(
                *(endpoint(f"10.0.0.{n}") for n in range(5)),
                ports=({}, {"name": "x"}, {"port": 3}, {"port": 4}),
            ),
            "*,x,3 + 1 more...",
            "10.0.0.0,10.0.0.1,10.0.0.2 + 2 more...",
        ),
    ],
)
def test_columns_show_the_first_three_ports_and_addresses(
    obj: Object, ports: str, endpoints: str
) -> None:
    columns = {one.name: one.cell(obj, 0) for one in PRINTER_COLUMNS["EndpointSlice"][1:4]}
    assert (columns["Ports"], columns["Endpoints"]) == (ports, endpoints)
