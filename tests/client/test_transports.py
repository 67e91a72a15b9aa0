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


def test_in_process_transport_passes_the_body_by_reference_and_sets_its_user() -> None:
    received: list[Request] = []

    async def handler(request: Request) -> Reply:
        received.append(request)
        return Reply(200, b"{}")

    body = {"kind": "Pod"}
    transport = InProcessTransport(handler, ADMIN)
    assert run(transport.send(Request("POST", "/x", "a=b", {"accept": "y"}, body))) == Reply(
        200, b"{}"
    )
    run(transport.close())
    assert received == [Request("POST", "/x", "a=b", {"accept": "y"}, body, ADMIN)]
    assert received[0].body is body


def test_unreachable_server_is_reported_in_one_line() -> None:
    error = Unreachable("https://127.0.0.1:6443", "Connection refused")
    assert str(error) == "cannot reach https://127.0.0.1:6443: Connection refused"
    assert (error.server, error.cause) == ("https://127.0.0.1:6443", "Connection refused")


class RecordingTransport:
    """A server without objects that records the methods of requests."""

    def __init__(self) -> None:
        self.methods: list[str] = []

    async def send(self, request: Request) -> Reply | StreamReply:
        self.methods.append(request.method)
        return Reply(200, b'{"metadata":{"resourceVersion":"1"},"items":[]}')

    async def close(self) -> None:
        self.methods.append("closed")


@in_virtual_time
async def test_read_only_transport_passes_reads() -> None:
    server = RecordingTransport()
    client = Client(ReadOnlyTransport(server))
    await client.list(POD)
    await client.close()
    assert server.methods == ["GET", "closed"]


@in_virtual_time
async def test_read_only_transport_rejects_writes() -> None:
    server = RecordingTransport()
    client = Client(ReadOnlyTransport(server))
    with pytest.raises(AssertionError, match="POST"):
        await client.create(POD, pod("a"))
    with pytest.raises(AssertionError, match="DELETE"):
        await client.delete(POD, Key("default", "a"))
    assert server.methods == []


_DENIAL = 'User "me" cannot create resource "pods" in API group ""'


class ForbiddingTransport:
    """Answers every request with 403 Forbidden for the name in its path."""

    async def send(self, request: Request) -> Reply | StreamReply:
        name = request.path.rpartition("/")[2]
        error = Forbidden(f'pods "{name}" is forbidden: {_DENIAL}')
        return Reply(error.code, b'{"kind": "Status", "reason": "Forbidden", "message": "%s"}'
                     % str(error).replace('"', '\\"').encode())  # fmt: skip

    async def close(self) -> None:
        """Do nothing: there is no connection."""


def test_missing_permission_is_reported_once_for_many_objects() -> None:
    reports: list[str] = []

    async def scenario() -> None:
        transport = DenialReportingTransport(ForbiddingTransport(), reports.append)
        for method, name in (("GET", "x"), ("POST", "a"), ("POST", "b"), ("DELETE", "a")):
            answer = await transport.send(Request(method, f"/api/v1/pods/{name}", "", {}, b""))
            assert answer.code == 403
        await transport.close()

    asyncio.run(scenario())
    assert reports == [f'pods "a" is forbidden: {_DENIAL}']
