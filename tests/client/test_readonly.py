from __future__ import annotations

import pytest

from phalanx.api.kinds import POD
from phalanx.api.meta import Key
from phalanx.api.wire import Reply, Request, Stream
from phalanx.client.client import Client
from phalanx.client.readonly import ReadOnly
from tests.builders import in_virtual_time, pod


class Recorded:
    """A server that has nothing, and notes what it is asked."""

    def __init__(self) -> None:
        self.methods: list[str] = []

    async def send(self, request: Request) -> Reply | Stream:
        self.methods.append(request.method)
        return Reply(200, b'{"metadata":{"resourceVersion":"1"},"items":[]}')

    async def close(self) -> None:
        self.methods.append("closed")


@in_virtual_time
async def test_what_reads_goes_through() -> None:
    server = Recorded()
    client = Client(ReadOnly(server))
    await client.list(POD)
    await client.close()
    assert server.methods == ["GET", "closed"]


@in_virtual_time
async def test_what_writes_never_reaches_the_server() -> None:
    server = Recorded()
    client = Client(ReadOnly(server))
    with pytest.raises(AssertionError, match="POST"):
        await client.create(POD, pod("a"))
    with pytest.raises(AssertionError, match="DELETE"):
        await client.delete(POD, Key("default", "a"))
    assert server.methods == []
