"""Requests about many objects let other requests run meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import aclosing

import pytest
import yaml

from phalanx.api.core import NODE_TYPE_ANNOTATION, SIMULATED_NODE_TYPE
from phalanx.api.kinds import (
    CONFIG_MAP,
    NODE,
    NODE_METRICS,
    POD,
    POD_METRICS,
    RESOURCE_CLAIM,
    RESOURCE_CLAIM_V1BETA1,
)
from phalanx.api.wire import JSON, Reply, Request, StreamReply
from phalanx.server import serialization
from phalanx.server.objects import encoder
from phalanx.server.security.authorization import ADMIN
from phalanx.server.serialization import PROTOBUF, YAML
from phalanx.store.kv import StoreWrite
from tests.builders import in_virtual_time, node, pod
from tests.loop_stalls import measure_stall
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


TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"
METADATA = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"
NONE = {"labelSelector": "absent"}
REQUESTS: dict[str, Callable[[Api], Awaitable[object]]] = {
    "selector": lambda api: api.ask("GET", POD.url_path(), query=NONE),
    "table": lambda api: api.ask("GET", POD.url_path(), headers={"accept": TABLE}),
    "metadata": lambda api: api.ask("GET", POD.url_path(), headers={"accept": METADATA}),
    "protobuf": lambda api: api.ask("GET", POD.url_path(), headers={"accept": PROTOBUF}),
    "yaml": lambda api: api.ask("GET", POD.url_path(), headers={"accept": YAML}),
    "version": lambda api: api.ask("GET", RESOURCE_CLAIM_V1BETA1.url_path()),
    "deletion": lambda api: api.ask("DELETE", POD.url_path("default"), query=NONE),
    "watch": lambda api: read_first_chunk(api, {"fieldSelector": "status.phase=Pending"}),
    "metrics of pods": lambda api: api.ask("GET", POD_METRICS.url_path()),
    "metrics of nodes": lambda api: api.ask("GET", NODE_METRICS.url_path()),
}


@pytest.mark.parametrize("name", REQUESTS)
@in_virtual_time
async def test_a_request_that_decodes_many_objects_lets_others_run(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serialization, "_TURN_VALUES", BATCH)
    monkeypatch.setattr(serialization, "_MAX_BLOCK_STYLE_BYTES", 0)
    api = await Api.start()
    host = node("n")
    host["metadata"]["annotations"] = {NODE_TYPE_ANNOTATION: SIMULATED_NODE_TYPE}
    await api.create(NODE, host)
    await api.create(POD, *(pod(f"p{at}", on="n") for at in range(PODS)))
    names = [{"name": f"c{at}", "namespace": "default"} for at in range(PODS)]
    await api.create(RESOURCE_CLAIM, *({"metadata": meta, "spec": {}} for meta in names))
    assert await count_turns(lambda: REQUESTS[name](api)) >= PODS // BATCH - 1


@pytest.mark.mostly_slow(quick_every=2)
@pytest.mark.parametrize("accept", [None, TABLE, METADATA, PROTOBUF, YAML])
@in_virtual_time
async def test_a_list_of_large_objects_does_not_stall_the_event_loop(accept: str | None) -> None:
    api = await Api.start()
    data, store = {f"k{at}": "é" * 20 for at in range(20_000)}, api.server.context.store
    for name in (f"c{at}" for at in range(16)):
        obj = {"metadata": {"name": name, "namespace": "default"}, "data": data}
        await store.commit([StoreWrite(CONFIG_MAP.store_key("default", name), encoder(obj), 0)])
    headers = {"accept": accept} if accept else {}
    request = Request("GET", CONFIG_MAP.url_path("default"), "", headers, user=ADMIN)

    async def prepare() -> Api:
        return api

    reply, stall = await measure_stall(lambda api: api.server.handle(request), prepare)
    assert reply.code == 200
    assert stall.is_accepted, stall


@pytest.mark.parametrize(("accept", "passes"), [(JSON, 1), (YAML, 2), (PROTOBUF, 2)])
@in_virtual_time
async def test_a_large_list_is_joined_while_other_requests_run(accept: str, passes: int) -> None:
    """Each pass over the items, to encode or to join them, gives way after some of their bytes."""
    api, count = await Api.start(), 20
    obj = {"metadata": {"name": "c", "namespace": "default"}, "data": {"a": "x" * 300_000}}
    value = encoder(obj)(1)
    for name in (f"c{at}" for at in range(count)):
        key = CONFIG_MAP.store_key("default", name)
        await api.store.commit([StoreWrite(key, lambda _: value, 0)])
    request = Request("GET", CONFIG_MAP.url_path("default"), "", {"accept": accept}, user=ADMIN)
    replies: list[Reply | StreamReply] = []

    async def ask() -> None:
        replies.append(await api.server.handle(request))

    assert await count_turns(ask) >= passes * (count - 1)
    (reply,) = replies
    assert isinstance(reply, Reply)
    assert (reply.code, reply.body.count(b"x" * 300_000)) == (200, count)
    if accept != PROTOBUF:
        listed = yaml.load(reply.body, yaml.CSafeLoader)
        assert [item["metadata"]["name"] for item in listed["items"]] == ["c"] * count
