"""One server that is called in process and over TLS, with the same replies."""

from __future__ import annotations

import asyncio
import gc
import ssl
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass
from pathlib import Path

import pytest

from phalanx.api.wire import Reply, Request
from phalanx.client.http import HttpTransport
from phalanx.client.transports import InProcessTransport, Transport
from phalanx.clock import WallClock
from phalanx.randomness import SeededRandom
from phalanx.server.app import Server
from phalanx.server.http_server import bind_socket, serve_http
from phalanx.server.security.authorization import ADMIN, Tokens
from phalanx.server.security.keyring import server_tls_context
from phalanx.server.security.signing import Signer
from phalanx.store.memory import MemoryStore
from tests.server.api import EPOCH, ApiResponse, read
from tests.server.http_peers import NETWORKS, ServerNetwork

TOKEN = "the administrator's"
#: Shared by all servers, so that they sign the same continue tokens.
_SIGNER = Signer.generate()
Send = Callable[[Request], ApiResponse]


class StoppedClock:
    """A constant time, so that two servers with the same seed give the same replies."""

    def now(self) -> float:
        return EPOCH


@dataclass(frozen=True, slots=True)
class ListeningServer:
    """A server on its own port, and its event loop."""

    runner: asyncio.Runner
    server: Server
    port: int
    authority: str

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.port}"

    def tls(self) -> ssl.SSLContext:
        return ssl.create_default_context(cadata=self.authority)

    def transport(self, token: str = TOKEN) -> HttpTransport:
        return HttpTransport(self.url, token=token, tls=self.tls())

    def send(self, request: Request, token: str = TOKEN) -> ApiResponse:
        """Send one request over a new connection."""

        async def once() -> ApiResponse:
            transport = self.transport(token)
            try:
                return await read_whole(transport, request)
            finally:
                await transport.close()

        return self.runner.run(once())


async def read_whole(transport: Transport, request: Request) -> ApiResponse:
    """The whole reply; a stream is read to its end."""
    answer = await transport.send(request)
    if isinstance(answer, Reply):
        return read(answer)
    async with aclosing(answer.chunks) as chunks:
        text = b"".join([chunk async for chunk in chunks])
    return ApiResponse(answer.code, {}, text, answer.content_type, answer.headers)


def new_server(latency: Callable[[], float] | None = None) -> Server:
    tokens = Tokens({TOKEN: ADMIN}, signer=_SIGNER)
    return Server(MemoryStore(latency), StoppedClock(), SeededRandom(1), tokens=tokens)


@pytest.fixture
def https(tmp_path: Path) -> Iterator[ListeningServer]:
    """A server over TLS."""
    server, sock = new_server(), bind_socket("127.0.0.1", 0)
    tls, authority = server_tls_context(tmp_path, [], WallClock().now())
    tokens = Tokens({TOKEN: ADMIN})
    with asyncio.Runner() as runner:
        stack = AsyncExitStack()
        runner.run(server.start())
        runner.run(stack.enter_async_context(serve_http(server.handle, tokens, sock, tls=tls)))
        yield ListeningServer(runner, server, sock.getsockname()[1], authority.decode())
        runner.run(stack.aclose())


@pytest.fixture
def in_process() -> Iterator[Send]:
    """A server without a network, called by its administrator."""
    server = new_server()
    transport = InProcessTransport(server.handle, ADMIN)
    with asyncio.Runner() as runner:
        runner.run(server.start())
        yield lambda request: runner.run(read_whole(transport, request))


@pytest.fixture(params=["in process", "over TLS"])
def send(request: pytest.FixtureRequest) -> Send:
    """Sends a request in process, then over TLS."""
    if request.param == "in process":
        found: Send = request.getfixturevalue("in_process")
        return found
    over_tls: ListeningServer = request.getfixturevalue("https")
    return over_tls.send


@pytest.fixture(params=NETWORKS)
def net(request: pytest.FixtureRequest) -> ServerNetwork:
    """A network of each type that the server listens on."""
    return ServerNetwork(*NETWORKS[request.param])


@pytest.fixture(scope="module")
def nothing_left() -> Iterator[None]:
    """Transports and tasks that were not closed raise a warning when they are collected."""
    yield
    gc.collect()
