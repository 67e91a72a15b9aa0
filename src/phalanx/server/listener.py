"""The port: connections in, each a `Connection`; time limits; a clean stop."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator

from phalanx.api.wire import Handler
from phalanx.server.access import Tokens
from phalanx.server.http import Connection
from phalanx.server.parser import Limits

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
    handle: Handler,
    tokens: Tokens,
    sock: socket.socket,
    tls: ssl.SSLContext | None,
    limits: Limits | None = None,
) -> AsyncIterator[None]:
    """Serve on a socket for as long as the context lasts; without TLS, for what is private."""
    limits = limits or Limits()
    connections: set[Connection] = set()
    server = await asyncio.get_running_loop().create_server(
        lambda: Connection(handle, tokens, connections, limits), sock=sock, backlog=_BACKLOG,
        ssl=tls, ssl_handshake_timeout=limits.handshake if tls else None,
        ssl_shutdown_timeout=limits.linger if tls else None,
    )  # fmt: skip
    sweeping = asyncio.create_task(_sweep(connections, limits.sweep))
    try:
        yield
    finally:
        server.close()
        await _stop(connections, limits.stop)
        sweeping.cancel()
        await asyncio.wait([sweeping])


async def _sweep(connections: set[Connection], seconds: float) -> None:
    while True:
        await asyncio.sleep(seconds)
        now = asyncio.get_running_loop().time()
        for connection in tuple(connections):
            connection.sweep(now)


async def _stop(connections: set[Connection], seconds: float) -> None:
    """Let replies under way be written, then end everything."""
    for end in (Connection.stop, Connection.abort):
        for connection in tuple(connections):
            end(connection)
        if connections:
            await asyncio.wait([connection.ended for connection in connections], timeout=seconds)
