from __future__ import annotations

import asyncio

import pytest

from phalanx.api.errors import Forbidden
from phalanx.api.kinds import POD
from phalanx.api.meta import Key
from phalanx.api.wire import Reply, Request, StreamReply, UserInfo
from phalanx.client.client import Client
from phalanx.client.transports import (
    DenialReportingTransport,
    InProcessTransport,
    ReadOnlyTransport,
    Unreachable,
)
from tests.builders import in_virtual_time, pod

from .conftest import run

ADMIN = UserInfo("admin", ("system:masters",))


def test_inside_one_process_a_body_is_handed_over_and_the_user_is_the_transports() -> None:
    seen: list[Request] = []

    async def handler(request: Request) -> Reply:
        seen.append(request)
        return Reply(200, b"{}")

    body = {"kind": "Pod"}
    transport = InProcessTransport(handler, ADMIN)
    assert run(transport.send(Request("POST", "/x", "a=b", {"accept": "y"}, body))) == Reply(
        200, b"{}"
    )
    run(transport.close())
    assert seen == [Request("POST", "/x", "a=b", {"accept": "y"}, body, ADMIN)]
    assert seen[0].body is body


def test_a_server_that_is_not_there_is_told_in_one_sentence() -> None:
    error = Unreachable("https://127.0.0.1:6443", "Connection refused")
    assert str(error) == "cannot reach https://127.0.0.1:6443: Connection refused"
    assert (error.server, error.cause) == ("https://127.0.0.1:6443", "Connection refused")


class Recorded:
    """A server that has nothing, and notes what it is asked."""

    def __init__(self) -> None:
        self.methods: list[str] = []

    async def send(self, request: Request) -> Reply | StreamReply:
        self.methods.append(request.method)
        return Reply(200, b'{"metadata":{"resourceVersion":"1"},"items":[]}')

    async def close(self) -> None:
        self.methods.append("closed")


@in_virtual_time
async def test_what_reads_goes_through() -> None:
    server = Recorded()
    client = Client(ReadOnlyTransport(server))
    await client.list(POD)
    await client.close()
    assert server.methods == ["GET", "closed"]


@in_virtual_time
async def test_what_writes_never_reaches_the_server() -> None:
    server = Recorded()
    client = Client(ReadOnlyTransport(server))
    with pytest.raises(AssertionError, match="POST"):
        await client.create(POD, pod("a"))
    with pytest.raises(AssertionError, match="DELETE"):
        await client.delete(POD, Key("default", "a"))
    assert server.methods == []


_RIGHT = 'User "me" cannot create resource "pods" in API group ""'


class ForbiddingTransport:
    """A server that forbids everything, by the name of what was asked for."""

    async def send(self, request: Request) -> Reply | StreamReply:
        name = request.path.rpartition("/")[2]
        error = Forbidden(f'pods "{name}" is forbidden: {_RIGHT}')
        return Reply(error.code, b'{"kind": "Status", "reason": "Forbidden", "message": "%s"}'
                     % str(error).replace('"', '\\"').encode())  # fmt: skip

    async def close(self) -> None:
        """Nothing is held."""


def test_a_right_that_is_missing_is_told_once_whatever_it_was_for() -> None:
    said: list[str] = []

    async def scenario() -> None:
        way = DenialReportingTransport(ForbiddingTransport(), said.append)
        for method, name in (("GET", "x"), ("POST", "a"), ("POST", "b"), ("DELETE", "a")):
            answer = await way.send(Request(method, f"/api/v1/pods/{name}", "", {}, b""))
            assert answer.code == 403
        await way.close()

    asyncio.run(scenario())
    assert said == [f'pods "a" is forbidden: {_RIGHT}']
