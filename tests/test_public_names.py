"""Public names of version 0.1 of the builder and the client keep working."""

from __future__ import annotations

import importlib
from collections.abc import AsyncGenerator

import orjson
import pytest

from phalanx.api.kinds import POD
from phalanx.api.meta import Key
from phalanx.api.wire import Object, Reply, Request, StreamReply, UserInfo
from phalanx.client.client import Client
from phalanx.client.protocol import WatchDecoder
from phalanx.client.transports import InProcessTransport
from tests.builders import in_virtual_time

NAMES = {
    "phalanx.builder.jobs": ("management", "item", "validate", "workload", "pod_group"),
    "phalanx.builder.jobsets": ("management", "item", "validate", "workload", "groups"),
    "phalanx.builder.leaderworkersets": ("management", "item", "validate", "workload"),
    "phalanx.client.kubeconfig": ("Access", "search", "in_cluster", "read", "connect", "write"),
}


@pytest.mark.parametrize("module", NAMES)
def test_public_names_can_be_imported(module: str) -> None:
    found = importlib.import_module(module)
    assert [name for name in NAMES[module] if not callable(getattr(found, name, None))] == []


@in_virtual_time
async def test_client_delete_accepts_the_keywords_of_version_0_1() -> None:
    bodies = []

    async def handle(request: Request) -> Reply:
        bodies.append(request.body)
        return Reply(200, b"{}")

    client = Client(InProcessTransport(handle, UserInfo("ann")))
    await client.delete(
        POD, Key("default", "a"), uid="1", version="2", grace=0, propagation="Orphan"
    )
    assert bodies == [
        {
            "kind": "DeleteOptions",
            "apiVersion": "v1",
            "gracePeriodSeconds": 0,
            "preconditions": {"uid": "1", "resourceVersion": "2"},
            "propagationPolicy": "Orphan",
        }
    ]


@in_virtual_time
async def test_client_batches_yields_the_events_of_a_watch() -> None:
    pod: Object = {"metadata": {"name": "a", "resourceVersion": "7"}}

    async def chunks() -> AsyncGenerator[bytes, None]:
        yield orjson.dumps({"type": "ADDED", "object": pod}) + b"\n"

    async def handle(request: Request) -> StreamReply:
        return StreamReply(200, chunks())

    client = Client(InProcessTransport(handle, UserInfo("ann")))
    batches = [batch async for batch in client.batches(POD, WatchDecoder(dict, 1))]
    assert [[event.object["metadata"]["name"] for event in batch] for batch in batches] == [
        [],
        ["a"],
    ]
