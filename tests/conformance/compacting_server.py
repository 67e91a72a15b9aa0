"""The server in this process, over TLS and on disk, whose history a test can compact."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import uvloop

from phalanx.client import kubeconfig
from phalanx.clock import WallClock
from phalanx.randomness import SystemRandom
from phalanx.server.app import Server
from phalanx.server.http_server import bind_socket, serve_http
from phalanx.server.security.authorization import ADMIN, Tokens
from phalanx.server.security.keyring import server_tls_context
from phalanx.store.sqlite import SqliteStore

TOKEN = "secret"


@dataclass(frozen=True, slots=True)
class RunningServer:
    """A listening server: its store, port and certificate authority."""

    server: Server
    store: SqliteStore
    port: int
    authority: str


@asynccontextmanager
async def running_server(folder: Path) -> AsyncIterator[RunningServer]:
    """A server on a free port with a data folder."""
    clock, tokens, sock = WallClock(), Tokens({TOKEN: ADMIN}), bind_socket("127.0.0.1", 0)
    tls, authority = server_tls_context(folder, [], clock.now())
    # A watch that is not read must block the server and not be buffered by the system.
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 16 * 1024)
    store = SqliteStore(folder)
    server = Server(store, clock, SystemRandom(), tokens=tokens)
    await server.start()
    try:
        async with serve_http(server.handle, tokens, sock, tls=tls):
            yield RunningServer(server, store, sock.getsockname()[1], authority.decode())
    finally:
        await store.close()


class CompactingServer:
    """A server on its own thread, for blocking clients."""

    def __init__(self, folder: Path) -> None:
        self.kubeconfig = folder / "kubeconfig"
        self._folder, self._ready = folder, threading.Event()

    def compact(self) -> None:
        """Compact the whole history."""
        done = threading.Event()

        def compact() -> None:
            self._store.compact(self._store.revision)
            done.set()

        self._loop.call_soon_threadsafe(compact)
        assert done.wait(240)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Serve while the context lasts."""
        thread = threading.Thread(target=lambda: uvloop.run(self._run()))
        thread.start()
        try:
            assert self._ready.wait(240)
            yield
        finally:
            self._loop.call_soon_threadsafe(self._stopped.set)
            thread.join()

    async def _run(self) -> None:
        self._loop, self._stopped = asyncio.get_running_loop(), asyncio.Event()
        async with running_server(self._folder) as found:
            self._store = found.store
            url = f"https://127.0.0.1:{found.port}"
            kubeconfig.write(self.kubeconfig, url, found.authority, token=TOKEN)
            self._ready.set()
            await self._stopped.wait()
