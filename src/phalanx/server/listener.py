"""The port: connections in, each a `Connection`; time limits; a clean stop."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
import ssl
from collections.abc import AsyncIterator, Iterable

from phalanx.api.wire import Handler
from phalanx.server.http import Connection
from phalanx.server.parser import Limits
from phalanx.server.security.authentication import Identifier
from phalanx.server.security.door import Door, Refused

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
    identifier: Identifier,
    sock: socket.socket,
    tls: ssl.SSLContext | None,
    limits: Limits | None = None,
    *,
    hosts: Iterable[str] | None = None,
    refused: Refused | None = None,
) -> AsyncIterator[None]:
    """Serve on a socket for as long as the context lasts.

    Where `hosts` are given, requests to others are refused; `refused` hears of those who were
    turned away.
    """
    limits, door = limits or Limits(), Door(identifier, hosts, refused)
    _check_reach(sock, tls)
    connections: set[Connection] = set()
    server = await asyncio.get_running_loop().create_server(
        lambda: Connection(handle, door, connections, limits), sock=sock, backlog=_BACKLOG,
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


class Unprotected(ValueError):
    """Somebody wants to be reached from elsewhere without TLS."""


def _check_reach(sock: socket.socket, tls: ssl.SSLContext | None) -> None:
    """Credentials go over the network under TLS, or not at all."""
    host = sock.getsockname()[0]
    if tls is None and not ipaddress.ip_address(host).is_loopback:
        raise Unprotected(f"without TLS this server listens on this machine alone, not on {host}")


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
