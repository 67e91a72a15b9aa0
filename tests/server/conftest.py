"""One server, asked in process and over TLS: what is asked must not notice."""

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
from phalanx.chance import SeededChance
from phalanx.client.http import Http
from phalanx.client.transports import InProcess, Transport
from phalanx.clock import WallClock
from phalanx.server.access import ADMIN, Tokens
from phalanx.server.app import Server
from phalanx.server.certificates import server_context
from phalanx.server.listener import bind_socket, listening
from phalanx.server.security.accounttokens import Signer
from phalanx.store.memory import MemoryStore
from tests.server.api import EPOCH, Answer, read
from tests.server.peers import NETS, Net

TOKEN = "the administrator's"
#: Of all servers, so that what one seals looks as if another had sealed it.
_SIGNER = Signer.made()
Send = Callable[[Request], Answer]


class StoppedClock:
    """So that two servers with the same lots give the same answers."""

    def now(self) -> float:
        return EPOCH


@dataclass(frozen=True, slots=True)
class Listening:
    """A server on a port of its own, and the loop that it lives on."""

    runner: asyncio.Runner
    server: Server
    port: int
    authority: str

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.port}"

    def tls(self) -> ssl.SSLContext:
        return ssl.create_default_context(cadata=self.authority)

    def transport(self, token: str = TOKEN) -> Http:
        return Http(self.url, token=token, tls=self.tls())

    def send(self, request: Request, token: str = TOKEN) -> Answer:
        """One request over a connection of its own."""

        async def once() -> Answer:
            transport = self.transport(token)
            try:
                return await whole(transport, request)
            finally:
                await transport.close()

        return self.runner.run(once())


async def whole(transport: Transport, request: Request) -> Answer:
    """The answer in one piece, a stream read to its end."""
    answer = await transport.send(request)
    if isinstance(answer, Reply):
        return read(answer)
    async with aclosing(answer.chunks) as chunks:
        text = b"".join([chunk async for chunk in chunks])
    return Answer(answer.code, {}, text, answer.kind, answer.headers)


def new_server(latency: Callable[[], float] | None = None) -> Server:
    tokens = Tokens({}, signer=_SIGNER)
    return Server(MemoryStore(latency), StoppedClock(), SeededChance(1), tokens=tokens)


@pytest.fixture
def https(tmp_path: Path) -> Iterator[Listening]:
    """A server over TLS, alone."""
    server, sock = new_server(), bind_socket("127.0.0.1", 0)
    tls, authority = server_context(tmp_path, [], WallClock().now())
    tokens = Tokens({TOKEN: ADMIN})
    with asyncio.Runner() as runner:
        stack = AsyncExitStack()
        runner.run(server.start())
        runner.run(stack.enter_async_context(listening(server.handle, tokens, sock, tls)))
        yield Listening(runner, server, sock.getsockname()[1], authority.decode())
        runner.run(stack.aclose())


@pytest.fixture
def in_process() -> Iterator[Send]:
    """A server without a network, asked by its only user."""
    server = new_server()
    transport = InProcess(server.handle, ADMIN)
    with asyncio.Runner() as runner:
        runner.run(server.start())
        yield lambda request: runner.run(whole(transport, request))


@pytest.fixture(params=["in process", "over TLS"])
def send(request: pytest.FixtureRequest) -> Send:
    """Both, one after the other."""
    if request.param == "in process":
        found: Send = request.getfixturevalue("in_process")
        return found
    over_tls: Listening = request.getfixturevalue("https")
    return over_tls.send


@pytest.fixture(params=NETS)
def net(request: pytest.FixtureRequest) -> Net:
    """A network of each sort that we listen on."""
    return Net(*NETS[request.param])


@pytest.fixture(scope="module")
def nothing_left() -> Iterator[None]:
    """A transport or task that was never ended complains when it is collected."""
    yield
    gc.collect()
