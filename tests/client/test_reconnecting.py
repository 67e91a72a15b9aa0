"""An informer over TLS to a real server, through a line that is cut."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from phalanx.api.core import Pod
from phalanx.api.kinds import POD
from phalanx.api.meta import Key
from phalanx.client import informer, kubeconfig
from phalanx.client.client import Client
from phalanx.client.informer import Informer
from phalanx.client.transports import InProcessTransport, Unreachable
from phalanx.clock import WallClock
from phalanx.randomness import SeededRandom, SystemRandom
from phalanx.server.app import Server
from phalanx.server.http_server import bind_socket, serve_http
from phalanx.server.security.authorization import ADMIN, Tokens
from phalanx.server.security.keyring import server_tls_context
from phalanx.store.memory import MemoryStore
from tests.builders import pod

PATIENCE = 20.0


@pytest.fixture(autouse=True)
def _hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """These tests run in real time."""
    monkeypatch.setattr(informer, "MIN_BACKOFF", 0.05)
    monkeypatch.setattr(informer, "MAX_BACKOFF", 0.1)


class BreakableProxy:
    """A port that leads to another one, byte by byte, and can be cut."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._ends: list[asyncio.StreamWriter] = []
        self.is_cut = False

    @asynccontextmanager
    async def open(self) -> AsyncIterator[int]:
        server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        try:
            yield server.sockets[0].getsockname()[1]
        finally:
            server.close()
            self.cut()
            await asyncio.sleep(0)

    def cut(self) -> None:
        """Every connection breaks off, and none is made any more."""
        self.is_cut = True
        for end in self._ends:
            end.transport.abort()
        self._ends.clear()

    async def _connected(self, near: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        if self.is_cut:
            back.transport.abort()
            return
        far, forth = await asyncio.open_connection("127.0.0.1", self._port)
        self._ends += [back, forth]
        with suppress(OSError):
            await asyncio.gather(_carry(near, forth), _carry(far, back))


async def _carry(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    while data := await source.read(65536):
        target.write(data)
        await target.drain()
    target.close()


class ReconnectFixture:
    """A server, a user beside it, and an informer at the other end of a line."""

    def __init__(
        self, store: MemoryStore, user: Client, client: Client, line: BreakableProxy
    ) -> None:
        self.store, self.user, self.line = store, user, line
        self.informer = Informer(client, POD, Pod, random=SeededRandom(1))
        self.told: list[str] = []
        self.news = asyncio.Event()
        self.informer.cache.subscribe(self._changed)

    def _changed(self, old: Pod | None, new: Pod | None) -> None:
        sign = {(True, False): "+", (False, True): "-"}.get((old is None, new is None), "~")
        found = new or old
        assert found is not None
        self.told.append(sign + found.metadata.name)
        self.news.set()

    async def observes(self, *told: str) -> None:
        async with asyncio.timeout(PATIENCE):
            while self.told != list(told):
                self.news.clear()
                await self.news.wait()

    async def break_connection(self) -> None:
        """Cut it, and wait until that is felt."""
        self.line.cut()
        for _ in range(1000):
            if isinstance(self.informer.failure, Unreachable):
                return
            await asyncio.sleep(0.01)
        raise AssertionError("nobody minds")


@asynccontextmanager
async def reconnect_fixture(folder: Path) -> AsyncIterator[ReconnectFixture]:
    clock, tokens, sock = WallClock(), Tokens({"secret": ADMIN}), bind_socket("127.0.0.1", 0)
    tls, authority = server_tls_context(folder, [], clock.now())
    store = MemoryStore()
    server = Server(store, clock, SystemRandom(), tokens=tokens)
    await server.start()
    line = BreakableProxy(sock.getsockname()[1])
    async with serve_http(server.handle, tokens, sock, tls), line.open() as port:
        access = kubeconfig.ClientConfig(f"https://127.0.0.1:{port}", authority.decode(), "secret")
        client = kubeconfig.create_client(access)
        found = ReconnectFixture(
            store, Client(InProcessTransport(server.handle, ADMIN)), client, line
        )
        running = asyncio.create_task(found.informer.run())
        try:
            yield found
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            await client.close()


def test_what_happened_while_the_line_was_cut_is_told_once_and_in_order(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with reconnect_fixture(tmp_path) as p:
            await p.user.create(POD, pod("a"))
            await p.observes("+a")
            await p.break_connection()
            await p.user.create(POD, pod("b"))
            await p.user.delete(POD, Key("default", "a"))
            await p.user.create(POD, pod("c"))
            p.line.is_cut = False
            await p.observes("+a", "+b", "-a", "+c")
            assert p.informer.failure is None

    asyncio.run(scenario())


def test_what_the_server_has_forgotten_meanwhile_is_made_up_for_by_a_list(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with reconnect_fixture(tmp_path) as p:
            await p.user.create(POD, pod("a"))
            await p.observes("+a")
            await p.break_connection()
            await p.user.delete(POD, Key("default", "a"))
            for name in "bcd":
                await p.user.create(POD, pod(name))
            p.store.compact(p.store.revision)
            p.line.is_cut = False
            await p.observes("+a", "-a", "+b", "+c", "+d")
            await p.user.create(POD, pod("e"))
            await p.observes("+a", "-a", "+b", "+c", "+d", "+e")

    asyncio.run(scenario())
