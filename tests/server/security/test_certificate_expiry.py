"""A connection and its watch end when the client certificate of the connection expires."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from functools import wraps
from pathlib import Path
from typing import Any

import pytest

from phalanx.api.kinds import POD
from phalanx.api.wire import UserInfo
from phalanx.clock import WallClock
from phalanx.randomness import SystemRandom
from phalanx.server.app import Server
from phalanx.server.http_parser import HttpLimits
from phalanx.server.http_server import bind_socket, serve_http
from phalanx.server.security import authorization
from phalanx.server.security.keyring import client_certificate, server_tls_context
from phalanx.server.security.users import MASTERS
from phalanx.store.memory import MemoryStore

ANN = UserInfo("ann", (MASTERS,))
INTERVAL, DAY = 0.02, 86_400.0
GET_VERSION, WATCH_PODS = "/version", f"{POD.url_path('default')}?watch=true"


class ShiftedClock:
    """The clock of the machine, set forward by some seconds."""

    shift = 0.0

    def now(self) -> float:
        return WallClock().now() + self.shift


class Client:
    """A client whose certificate expires in a day, and the clock of its server."""

    def __init__(self, port: int, tls: ssl.SSLContext, clock: ShiftedClock) -> None:
        self._port, self._tls, self._clock = port, tls, clock

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        streams = await asyncio.open_connection("127.0.0.1", self._port, ssl=self._tls)
        try:
            yield streams
        finally:
            streams[1].transport.abort()

    def expire_certificate(self) -> None:
        self._clock.shift = DAY


async def get(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, path: str) -> int:
    """Send a request; return the code of the answer, without a body that is not of known length."""
    writer.write(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    _, found, length = head.partition("content-length: ")
    await reader.readexactly(int(length.split()[0]) if found else 0)
    return int(head.split()[1])


def with_client(test: Callable[[Client], Coroutine[Any, Any, None]]) -> Any:
    """Run a test with a client of a server that checks its connections often."""

    @wraps(test)
    def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(authorization, "STREAM_CHECK_INTERVAL", INTERVAL)

        async def scenario() -> None:
            clock, now = ShiftedClock(), WallClock().now()
            server = Server(MemoryStore(), clock, SystemRandom())
            await server.start()
            tls, authority = server_tls_context(tmp_path, [], now)
            sock, limits = bind_socket("127.0.0.1", 0), HttpLimits(check_interval=INTERVAL)
            file = tmp_path / "client.pem"
            file.write_text("".join(client_certificate(tmp_path, ANN, days=1, now=now)))
            client_tls = ssl.create_default_context(cadata=authority.decode())
            client_tls.load_cert_chain(file)
            authenticator = server.access.authenticator
            async with (
                asyncio.timeout(240),
                serve_http(server.handle, authenticator, sock, tls=tls, limits=limits, clock=clock),
            ):
                await test(Client(sock.getsockname()[1], client_tls, clock))

        asyncio.run(scenario())

    # pytest follows __wrapped__ to find fixtures.
    del run.__wrapped__
    return run


@with_client
async def test_watch_ends_when_its_client_certificate_expires(client: Client) -> None:
    async with client.connect() as (reader, writer):
        assert await get(reader, writer, WATCH_PODS) == 200
        client.expire_certificate()
        events = await reader.read()
        assert b'"type":"ERROR"' in events
        assert b'"code":401' in events


@with_client
async def test_idle_connection_ends_when_its_client_certificate_expires(client: Client) -> None:
    async with client.connect() as (reader, writer):
        assert await get(reader, writer, GET_VERSION) == 200
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(reader.read(), 5 * INTERVAL)
        client.expire_certificate()
        assert await reader.read() == b""
