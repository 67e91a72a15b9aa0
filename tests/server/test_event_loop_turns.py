"""Requests about many objects let other requests run meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import aclosing

import pytest

from phalanx.api.core import NODE_TYPE_ANNOTATION, SIMULATED_NODE_TYPE
from phalanx.api.kinds import NODE, NODE_METRICS, POD, POD_METRICS
from phalanx.server import read_handlers, resource_metrics, watches
from tests.builders import in_virtual_time, node, pod
from tests.server.api import Api

PODS, BATCH = 12, 3


async def count_turns(request: Callable[[], Awaitable[object]]) -> int:
    """Return how often another task runs during a request."""
    turns = 0

    async def take_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    other = asyncio.create_task(take_turns())
    await request()
    other.cancel()
    return turns


async def read_first_chunk(api: Api, query: dict[str, str]) -> bytes:
    async with aclosing(api.chunks(POD, query)) as chunks:
        return await anext(chunks)


@pytest.mark.parametrize(
    ("module", "name"),
    [
        (read_handlers, "_DECODE_BATCH"),
        (watches, "INITIAL_BATCH"),
        (resource_metrics, "_DECODE_BATCH"),
    ],
    ids=["list", "watch", "metrics"],
)
@in_virtual_time
async def test_a_request_that_decodes_many_objects_lets_others_run(
    module: object, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, name, BATCH)
    api = await Api.start()
    host = node("n")
    host["metadata"]["annotations"] = {NODE_TYPE_ANNOTATION: SIMULATED_NODE_TYPE}
    await api.create(NODE, host)
    await api.create(POD, *(pod(f"p{at}", on="n") for at in range(PODS)))
    pods, running = POD.url_path(), {"fieldSelector": "status.phase=Pending"}
    requests: dict[object, list[Callable[[], Awaitable[object]]]] = {
        read_handlers: [lambda: api.ask("GET", pods, query=running)],
        watches: [lambda: read_first_chunk(api, running)],
        resource_metrics: [
            lambda: api.ask("GET", POD_METRICS.url_path()),
            lambda: api.ask("GET", NODE_METRICS.url_path()),
        ],
    }
    for request in requests[module]:
        assert await count_turns(request) >= PODS // BATCH
