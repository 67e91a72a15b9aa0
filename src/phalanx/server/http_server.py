"""A listening socket: accepts clients, within limits, and serves each on an `HttpConnection`.

A client cannot shut out the others by opening connections. The listener leaves descriptors to the
store, the audit log and all other files. When the limit of connections is reached, it disconnects
the client that has kept the server waiting longest, and accepts the next client.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import heapq
import ipaddress
import resource
import socket
import ssl
from collections.abc import AsyncIterator, Iterable

from phalanx import logs
from phalanx.api.wire import Handler
from phalanx.clock import Clock
from phalanx.server.http_connection import HttpConnection
from phalanx.server.http_parser import HttpLimits
from phalanx.server.security.authentication import RequestAuthenticator
from phalanx.server.security.request_guard import LevelCheck, RefusalHandler, RequestGuard

LOG = logs.component("server")

_BACKLOG = 1024
#: Descriptors that the process may use, if the system allows that many.
_MAX_DESCRIPTORS = 16 * 1024
#: Without descriptors or memory for another client: the errors, and seconds until the next attempt.
_EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_RETRY_SECONDS = 0.1
#: The part of all connections that is displaced at once, and seconds between two log lines.
_DISPLACED_PART, _LOG_INTERVAL = 1 / 64, 60.0


def raise_descriptor_limit() -> None:
    """Raise the soft limit of open files to the hard limit, but not beyond what is sensible."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MAX_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, _MAX_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def bind_socket(host: str, port: int) -> socket.socket:
    """Bind a TCP socket; port 0 lets the system choose. Raises OSError if the port is taken."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((host, port))
    except OSError:
        sock.close()
        raise
    return sock


class HttpListener:
    """Accepts clients and knows their connections."""

    def __init__(
        self,
        handle: Handler,
        guard: RequestGuard,
        *,
        sock: socket.socket,
        tls: ssl.SSLContext | None,
        limits: HttpLimits,
    ) -> None:
        self._handle, self._guard, self._limits = handle, guard, limits
        self._sock, self._tls = sock, tls
        self._loop = asyncio.get_running_loop()
        self._max_connections = _connection_limit(limits)
        self._connections: set[HttpConnection] = set()
        # Connections without an authenticated request, in the order of acceptance.
        self._new: dict[HttpConnection, None] = {}
        self._changed = asyncio.Event()
        self._last_logged = float("-inf")

    async def accept_clients(self) -> None:
        """Accept clients one at a time, so that a flood of them does not delay requests."""
        while True:
            try:
                client, _ = self._sock.accept()
            except BlockingIOError:
                await self._wait_for_client()
                continue
            except OSError as error:
                if error.errno in _EXHAUSTED:
                    self._log("client not accepted", error.strerror or "")
                    self._displace(1)
                    await asyncio.sleep(_RETRY_SECONDS)
                continue
            try:
                await self._wait_for_room()
                self._add(client)
            except asyncio.CancelledError:
                client.close()
                raise
            # The next client is accepted in the next iteration of the event loop.
            del client
            await asyncio.sleep(0)

    async def _wait_for_client(self) -> None:
        connected = asyncio.Event()
        self._loop.add_reader(self._sock, connected.set)
        try:
            await connected.wait()
        finally:
            self._loop.remove_reader(self._sock)

    def _add(self, client: socket.socket) -> None:
        connection = HttpConnection(self._handle, self._guard, self._limits, observer=self)
        self._connections.add(connection)
        self._new[connection] = None
        opening = self._loop.create_task(self._open(client, connection))

        def close_unopened(task: asyncio.Task[None]) -> None:
            # A task that is cancelled before its first step does not run its own cleanup.
            if task.cancelled():
                client.close()
                connection.finish()

        opening.add_done_callback(close_unopened)
        connection.opening = opening

    async def _open(self, client: socket.socket, connection: HttpConnection) -> None:
        """Complete the TLS handshake; from then on the connection is called by the event loop."""
        tls, limits = self._tls, self._limits
        try:
            client.setblocking(False)
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await self._loop.connect_accepted_socket(
                lambda: connection,
                client,
                ssl=tls,
                ssl_handshake_timeout=limits.handshake_timeout if tls else None,
                ssl_shutdown_timeout=limits.close_timeout if tls else None,
            )
        except (OSError, asyncio.CancelledError):
            client.close()
            connection.finish()
        finally:
            connection.opening = None

    # ---- limits ----

    async def _wait_for_room(self) -> None:
        """Wait until one more client is within the limits; displace others if need be.

        A client that completes its handshake and sends its request without delay is not displaced.
        """
        limits = self._limits
        while True:
            if len(self._new) >= limits.new_connections:
                oldest = next(iter(self._new))
                delay = self._displace_after_grace([(oldest.accepted, oldest)])
            elif len(self._connections) >= self._max_connections:
                delay = self._displace(int(self._max_connections * _DISPLACED_PART) or 1)
            else:
                return
            self._log("connection limit reached", "clients that keep the server waiting are closed")
            self._changed.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(delay):
                    await self._changed.wait()

    def _displace(self, count: int) -> float:
        """Disconnect the clients that have kept the server waiting longest.

        Return seconds until the next one can be displaced.
        """
        waiting = (
            (since, one) for one in self._connections if (since := one.waiting_since) is not None
        )
        return self._displace_after_grace(heapq.nsmallest(count, waiting, key=lambda row: row[0]))

    def _displace_after_grace(self, rows: list[tuple[float, HttpConnection]]) -> float:
        ends = self._loop.time() - self._limits.displacement_grace
        for since, connection in rows:
            if since > ends:
                return since - ends
            connection.abort()
        return self._limits.displacement_grace

    def _log(self, message: str, reason: str) -> None:
        """Log a warning, but not for each client of a flood."""
        now = self._loop.time()
        if now - self._last_logged >= _LOG_INTERVAL:
            self._last_logged = now
            LOG.warning(message, reason=reason, connections=len(self._connections))

    # ---- called by the connections ----

    def on_authenticated(self, connection: HttpConnection) -> None:
        """Called at the first authenticated request of a connection."""
        self._new.pop(connection, None)
        self._changed.set()

    def on_closed(self, connection: HttpConnection) -> None:
        """Called when a connection has ended."""
        self._connections.discard(connection)
        self._new.pop(connection, None)
        self._changed.set()

    # ---- called by `serve_http` ----

    async def check_timeouts(self) -> None:
        """Enforce the time limits of all connections."""
        while True:
            await asyncio.sleep(self._limits.check_interval)
            now = self._loop.time()
            for connection in tuple(self._connections):
                connection.check_timeouts(now)

    async def stop(self) -> None:
        """Let replies that are being computed be written, then close all connections."""
        for close in (HttpConnection.stop, HttpConnection.abort):
            for connection in tuple(self._connections):
                close(connection)
            if closing := [connection.closed for connection in self._connections]:
                await asyncio.wait(closing, timeout=self._limits.stop_timeout)


def _connection_limit(limits: HttpLimits) -> int:
    """The number of connections that leaves the reserved descriptors; at least half of all."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return limits.connections
    return min(limits.connections, max(soft - limits.reserved_descriptors, soft // 2))


@contextlib.asynccontextmanager
async def serve_http(
    handle: Handler,
    authenticator: RequestAuthenticator,
    sock: socket.socket,
    *,
    tls: ssl.SSLContext | None,
    limits: HttpLimits | None = None,
    hosts: Iterable[str] | None = None,
    on_refused: RefusalHandler | None = None,
    check_level: LevelCheck | None = None,
    clock: Clock | None = None,
) -> AsyncIterator[None]:
    """Serve on a socket while the context lasts.

    Requests whose Host header is not one of `hosts` are refused; None allows every host.
    `on_refused` is called for each request that authentication or the Host check refuses.
    `check_level` is called for each request with a body, before the body is read.
    Client certificates expire by `clock`, by default that of the machine.
    """
    _check_tls(sock, tls)
    guard = RequestGuard(authenticator, hosts, on_refused, check_level=check_level, clock=clock)
    listener = HttpListener(handle, guard, sock=sock, tls=tls, limits=limits or HttpLimits())
    sock.setblocking(False)
    sock.listen(_BACKLOG)
    accepting = asyncio.create_task(listener.accept_clients())
    timeouts = asyncio.create_task(listener.check_timeouts())
    host, port = sock.getsockname()[:2]
    LOG.info("listener started", address=f"{host}:{port}", tls=tls is not None)
    try:
        yield
    finally:
        accepting.cancel()
        await asyncio.wait([accepting])
        sock.close()
        await listener.stop()
        timeouts.cancel()
        await asyncio.wait([timeouts])
        LOG.info("listener stopped", address=f"{host}:{port}")


class TlsRequiredError(ValueError):
    """The server would listen on a network address without TLS."""


def _check_tls(sock: socket.socket, tls: ssl.SSLContext | None) -> None:
    """Refuse to send credentials over a network without TLS."""
    host = sock.getsockname()[0]
    if tls is None and not ipaddress.ip_address(host).is_loopback:
        raise TlsRequiredError(
            f"without TLS the server listens on loopback addresses only, not on {host}"
        )
