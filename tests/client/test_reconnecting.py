"""An informer connected to a real server over TLS, through a proxy that breaks connections."""

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

TIMEOUT_SECONDS = 240.0


@pytest.fixture(autouse=True)
def _short_backoff(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the back-off: these tests run in real time."""
    monkeypatch.setattr(informer, "MIN_BACKOFF", 0.05)
    monkeypatch.setattr(informer, "MAX_BACKOFF", 0.1)


class BreakableProxy:
    """Forwards a port to another one and can break all connections."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._writers: list[asyncio.StreamWriter] = []
        self.is_cut = False

    @asynccontextmanager
    async def open(self) -> AsyncIterator[int]:
        server = await asyncio.start_server(self._forward, "127.0.0.1", 0)
        try:
            yield server.sockets[0].getsockname()[1]
        finally:
            server.close()
            self.cut()
            await asyncio.sleep(0)

    def cut(self) -> None:
        """Break every connection and refuse new ones."""
        self.is_cut = True
        for end in self._writers:
            end.transport.abort()
        self._writers.clear()

    async def _forward(
        self, client_reader: asyncio.StreamReader, client_writer: asyncio.StreamWriter
    ) -> None:
        if self.is_cut:
            client_writer.transport.abort()
            return
        server_reader, server_writer = await asyncio.open_connection("127.0.0.1", self._port)
        self._writers += [client_writer, server_writer]
        with suppress(OSError):
            await asyncio.gather(
                _copy_stream(client_reader, server_writer),
                _copy_stream(server_reader, client_writer),
            )


async def _copy_stream(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    while data := await source.read(65536):
        target.write(data)
        await target.drain()
    target.close()


class ReconnectFixture:
    """A server, a client in its process, and an informer behind the proxy."""

    def __init__(
        self, store: MemoryStore, user: Client, client: Client, proxy: BreakableProxy
    ) -> None:
        self.store, self.user, self.proxy = store, user, proxy
        self.informer = Informer(client, POD, Pod, random=SeededRandom(1))
        self.observed: list[str] = []
        self.changed = asyncio.Event()
        self.informer.cache.subscribe(self._record_change)

    def _record_change(self, old: Pod | None, new: Pod | None) -> None:
        sign = {(True, False): "+", (False, True): "-"}.get((old is None, new is None), "~")
        fixture = new or old
        assert fixture is not None
        self.observed.append(sign + fixture.metadata.name)
        self.changed.set()

    async def wait_for_changes(self, *observed: str) -> None:
        async with asyncio.timeout(TIMEOUT_SECONDS):
            while self.observed != list(observed):
                self.changed.clear()
                await self.changed.wait()

    async def break_connection(self) -> None:
        """Break the connection and wait until the informer reports the failure."""
        self.proxy.cut()
        for _ in range(1000):
            if isinstance(self.informer.failure, Unreachable):
                return
            await asyncio.sleep(0.01)
        raise AssertionError("the informer reports no failure")


@asynccontextmanager
async def reconnect_fixture(folder: Path) -> AsyncIterator[ReconnectFixture]:
    clock, tokens, sock = WallClock(), Tokens({"secret": ADMIN}), bind_socket("127.0.0.1", 0)
    tls, authority = server_tls_context(folder, [], clock.now())
    store = MemoryStore()
    server = Server(store, clock, SystemRandom(), tokens=tokens)
    await server.start()
    proxy = BreakableProxy(sock.getsockname()[1])
    async with serve_http(server.handle, tokens, sock, tls=tls), proxy.open() as port:
        access = kubeconfig.ClientConfig(f"https://127.0.0.1:{port}", authority.decode(), "secret")
        client = kubeconfig.create_client(access)
        fixture = ReconnectFixture(
            store, Client(InProcessTransport(server.handle, ADMIN)), client, proxy
        )
        running = asyncio.create_task(fixture.informer.run())
        try:
            yield fixture
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            await client.close()


def test_changes_during_an_outage_are_reported_once_and_in_order(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with reconnect_fixture(tmp_path) as fixture:
            await fixture.user.create(POD, pod("a"))
            await fixture.wait_for_changes("+a")
            await fixture.break_connection()
            await fixture.user.create(POD, pod("b"))
            await fixture.user.delete(POD, Key("default", "a"))
            await fixture.user.create(POD, pod("c"))
            fixture.proxy.is_cut = False
            await fixture.wait_for_changes("+a", "+b", "-a", "+c")
            assert fixture.informer.failure is None

    asyncio.run(scenario())


def test_informer_lists_again_when_the_history_was_compacted_during_an_outage(
    tmp_path: Path,
) -> None:
    async def scenario() -> None:
        async with reconnect_fixture(tmp_path) as fixture:
            await fixture.user.create(POD, pod("a"))
            await fixture.wait_for_changes("+a")
            await fixture.break_connection()
            await fixture.user.delete(POD, Key("default", "a"))
            for name in "bcd":
                await fixture.user.create(POD, pod(name))
            fixture.store.compact(fixture.store.revision)
            fixture.proxy.is_cut = False
            await fixture.wait_for_changes("+a", "-a", "+b", "+c", "+d")
            await fixture.user.create(POD, pod("e"))
            await fixture.wait_for_changes("+a", "-a", "+b", "+c", "+d", "+e")

    asyncio.run(scenario())
