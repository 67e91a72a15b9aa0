"""The port: TLS connections in, each a `Connection`; a clean stop."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator

from phalanx.api.wire import Handler
from phalanx.server.access import Tokens
from phalanx.server.http import Connection

#: Seconds that replies under way are given when the server stops.
_STOP_SECONDS = 1.0
_HANDSHAKE_SECONDS = 10.0
_SWEEP_SECONDS = 1.0
_BACKLOG = 1024


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
async def listening(
    handle: Handler, tokens: Tokens, sock: socket.socket, tls: ssl.SSLContext
) -> AsyncIterator[None]:
    """Serve on a socket for as long as the context lasts."""
    connections: set[Connection] = set()
    server = await asyncio.get_running_loop().create_server(
        lambda: Connection(handle, tokens, connections), sock=sock, ssl=tls,
        ssl_handshake_timeout=_HANDSHAKE_SECONDS, backlog=_BACKLOG,
    )  # fmt: skip
    sweeping = asyncio.create_task(_sweep(connections))
    try:
        yield
    finally:
        sweeping.cancel()
        server.close()
        await _stop(connections)


async def _sweep(connections: set[Connection]) -> None:
    while True:
        await asyncio.sleep(_SWEEP_SECONDS)
        now = asyncio.get_running_loop().time()
        for connection in tuple(connections):
            connection.sweep(now)


async def _stop(connections: set[Connection]) -> None:
    """Let replies under way be written, then end everything."""
    for connection in tuple(connections):
        connection.stop()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_STOP_SECONDS):
            await asyncio.gather(*(connection.answered() for connection in tuple(connections)))
    for connection in tuple(connections):
        connection.abort()
