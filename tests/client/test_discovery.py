"""Discovery of every resource that a server serves."""

from __future__ import annotations

import orjson
import pytest

from phalanx.api.errors import ServerError
from phalanx.api.kinds import CUSTOM_RESOURCE_DEFINITION
from phalanx.api.wire import Object, Reply, Request
from phalanx.client.client import Client
from phalanx.client.discovery import discover_resources
from tests.api.custom_resource_definitions import custom_resource_definition, served_version
from tests.builders import in_virtual_time
from tests.controllers.cluster import cluster
from tests.controllers.crash_recovery import SERVER_ONLY


class DocumentTransport:
    """A transport whose server answers with a document for /apis, and with none for /api."""

    def __init__(self, document: bytes) -> None:
        self._document = document

    async def send(self, request: Request) -> Reply:
        return Reply(200, self._document if request.path == "/apis" else b'{"items": []}')

    async def close(self) -> None:
        """Do nothing."""


def group(name: str, *versions: Object) -> Object:
    return {"metadata": {"name": name}, "versions": list(versions)}


def version(name: str, *resources: str, freshness: str = "Current") -> Object:
    rows = [
        {
            "resource": plural,
            "responseKind": {"kind": plural.removesuffix("s").title()},
            "scope": "Cluster",
            "verbs": ["list", "watch", "delete"],
        }
        for plural in resources
    ]
    return {"version": name, "resources": rows, "freshness": freshness}


async def discover(*groups: Object) -> tuple[dict[str, tuple[str, ...]], bool]:
    """Return the API versions of each resource, and whether the discovery is complete."""
    client = Client(DocumentTransport(orjson.dumps({"items": groups})))
    found = await discover_resources(client)
    return {one.kind.resource: one.api_versions for one in found.resources}, found.is_complete


@in_virtual_time
async def test_built_in_and_custom_resources_are_discovered_with_scope_and_verbs() -> None:
    async with cluster(without=SERVER_ONLY) as c:
        versions = [served_version("v1beta1", storage=False), served_version("v1")]
        definition = custom_resource_definition(*versions)
        await c.client.create(CUSTOM_RESOURCE_DEFINITION, definition)
        found = await discover_resources(c.client)
        by_resource = {one.kind.resource: one for one in found.resources}
        widgets, nodes = by_resource["widgets.example.com"], by_resource["nodes"]
        assert widgets.api_versions == ("example.com/v1", "example.com/v1beta1")
        assert (widgets.kind.name, widgets.kind.version) == ("Widget", "v1")
        assert (widgets.kind.namespaced, nodes.kind.namespaced) == (True, False)
        assert {"list", "watch", "delete"} <= set(widgets.kind.verbs)
        assert found.is_complete


@in_virtual_time
async def test_resource_has_the_versions_that_serve_it_in_the_order_of_preference() -> None:
    versions = (version("v2", "farms"), version("v1", "farms", "barns"))
    assert await discover(group("a.example", *versions)) == (
        {
            "farms.a.example": ("a.example/v2", "a.example/v1"),
            "barns.a.example": ("a.example/v1",),
        },
        True,
    )


@in_virtual_time
async def test_discovery_is_incomplete_while_an_aggregated_server_does_not_answer() -> None:
    stale = version("v1", freshness="Stale")
    assert await discover(group("a", version("v1", "farms")), group("b", stale)) == (
        {"farms.a": ("a/v1",)},
        False,
    )


@pytest.mark.parametrize(
    "document",
    [b"", b"[]", b'{"items": [{"versions": 3}]}', b'{"kind": "APIGroupList", "groups": []}'],
)
@in_virtual_time
async def test_malformed_discovery_document_is_a_server_error(document: bytes) -> None:
    with pytest.raises(ServerError, match="discovery document /apis cannot be read"):
        await discover_resources(Client(DocumentTransport(document)))
