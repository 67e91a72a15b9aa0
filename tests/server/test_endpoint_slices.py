"""EndpointSlices through the API: generation, server-side apply, tables, discovery."""

from __future__ import annotations

import orjson

from phalanx.api.kinds import ENDPOINT_SLICE
from phalanx.api.wire import Object
from tests.builders import in_virtual_time
from tests.server.api import Api

TABLE = {"accept": "application/json;as=Table;v=v1;g=meta.k8s.io"}


def web_slice(*addresses: str, **meta: object) -> Object:
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"name": "web-1", "namespace": "default", **meta},
        "addressType": "IPv4",
        "endpoints": [{"addresses": [one]} for one in addresses],
        "ports": [{"name": "http", "port": 80}],
    }


@in_virtual_time
async def test_generation_of_an_endpoint_slice_counts_changes_of_its_content() -> None:
    api = await Api.start()
    (made,) = await api.create(ENDPOINT_SLICE, web_slice("10.0.0.1"))
    labeled = await api.patch(ENDPOINT_SLICE, "web-1", {"metadata": {"labels": {"a": "b"}}})
    endpoints = {"endpoints": [{"addresses": ["10.0.0.2"]}]}
    changed = await api.patch(ENDPOINT_SLICE, "web-1", endpoints)
    generations = [one["metadata"]["generation"] for one in (made, labeled.body, changed.body)]
    assert generations == [1, 1, 2]


@in_virtual_time
async def test_applied_endpoints_are_replaced_as_a_whole_and_have_one_manager() -> None:
    api = await Api.start()
    path = ENDPOINT_SLICE.url_path("default", "web-1")
    headers = {"content-type": "application/apply-patch+yaml"}
    for number, code in ((1, 201), (2, 200)):
        body = orjson.dumps(web_slice(f"10.0.0.{number}"))
        query = {"fieldManager": "web"}
        answer = await api.ask("PATCH", path, body, headers=headers, query=query)
        assert answer.code == code
    assert [one["addresses"] for one in answer.body["endpoints"]] == [["10.0.0.2"]]
    other = await api.ask(
        "PATCH",
        path,
        orjson.dumps({**web_slice("10.0.0.3"), "ports": answer.body["ports"]}),
        headers=headers,
        query={"fieldManager": "other"},
    )
    assert other.cause_reasons == [(".endpoints", "FieldManagerConflict")]


@in_virtual_time
async def test_endpoint_slices_are_shown_in_a_table_and_in_discovery() -> None:
    api = await Api.start()
    await api.create(ENDPOINT_SLICE, web_slice("10.0.0.1", "10.0.0.2"))
    table = await api.ask("GET", ENDPOINT_SLICE.url_path("default"), headers=TABLE)
    assert table.body["rows"][0]["cells"][:4] == ["web-1", "IPv4", "80", "10.0.0.1,10.0.0.2"]
    found = await api.ask("GET", "/apis/discovery.k8s.io/v1")
    (row,) = found.body["resources"]
    assert (row["name"], row["singularName"], row["namespaced"]) == (
        "endpointslices",
        "endpointslice",
        True,
    )
