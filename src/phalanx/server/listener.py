"""The HTTP server under the application: TLS, a port, a clean stop."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator, Iterator

import uvicorn

from phalanx.server.asgi import Asgi

#: Seconds that open requests are given when the server stops.
_STOP_SECONDS = 1
_IDLE_SECONDS = 90
_BACKLOG = 1024


class _Server(uvicorn.Server):
    """uvicorn that leaves signals to whoever runs it and says when it has begun."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.begun = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to accept connections."""
        await super().startup(sockets)
        self.begun.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Do not touch them."""
        yield


def bind_socket(host: str, port: int) -> socket.socket:
    """A listening address; port 0 lets the system choose. Raises OSError when it is taken."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((host, port))
    except OSError:
        sock.close()
        raise
    return sock


@contextlib.asynccontextmanager
async def listening(app: Asgi, sock: socket.socket, tls: ssl.SSLContext) -> AsyncIterator[None]:
    """Serve the application on a socket for as long as the context lasts."""
    server = _Server(uvicorn.Config(
        app, http="httptools", ws="none", lifespan="off", interface="asgi3", log_config=None,
        access_log=False, server_header=False, date_header=False, proxy_headers=False,
        backlog=_BACKLOG, timeout_keep_alive=_IDLE_SECONDS,
        timeout_graceful_shutdown=_STOP_SECONDS, ssl_context_factory=lambda config, default: tls,
    ))  # fmt: skip
    running = asyncio.create_task(server.serve([sock]))
    try:
        await server.begun.wait()
        yield
    finally:
        server.should_exit = True
        await running
