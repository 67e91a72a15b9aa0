"""HTTP/1.1 on a connection: Requests out; Replies and Streams in, as bytes.

Between the network (`listener.py`) and `Server.handle`.

    bytes ─▶ Parser ─▶ Asked ─▶ queue ─▶ one answer at a time, in order ─▶ bytes

A reply leaves in one write; a long one, and a stream, no faster than it is read. What cannot be
understood is answered in its turn, and then nothing more is heard on that connection. Nobody is
waited for without end: neither who sends slowly, nor who does not read, nor who does nothing.

The port: connections in, each a `Connection`; time limits; a clean stop.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import socket
import ssl
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from functools import lru_cache
from http import HTTPStatus
from typing import cast

from phalanx.api.errors import ApiError, RequestTimeout, ServerError, Timeout
from phalanx.api.wire import Handler, Reply, Request, StreamReply
from phalanx.server.app import error_reply
from phalanx.server.http_parser import HttpLimits, HttpParser, ParsedRequest, truncated_request
from phalanx.server.security.authentication import RequestAuthenticator
from phalanx.server.security.request_guard import RefusalHandler, RequestGuard

_log = logging.getLogger("phalanx.server")

#: Bytes that may wait to be sent before their writer waits too; long answers go in pieces.
_HIGH_WATER, _MAX_WRITE = 256 * 1024, 128 * 1024
#: Headers of every answer that does not say otherwise.
_DEFAULT_HEADERS = (("cache-control", "no-cache, private"), ("x-content-type-options", "nosniff"))
#: What could end a header early becomes a visible mark.
_CONTROL_CHARACTERS = dict.fromkeys([*range(32), *range(127, 160)], "\N{REPLACEMENT CHARACTER}")
_STATUS_LINES = {
    status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n" for status in HTTPStatus
}
_CHUNKED_HEADER = b"transfer-encoding: chunked\r\n"


class _WriteTimeoutError(Exception):
    """The client does not read what it is sent."""


class HttpConnection(asyncio.Protocol):
    """One client's connection, among all that are open. `ended` when nothing of it is left."""

    def __init__(
        self,
        handle: Handler,
        guard: RequestGuard,
        connections: set[HttpConnection],
        limits: HttpLimits,
    ) -> None:
        self._handle, self._connections, self._limits = handle, connections, limits
        self._guard = guard
        self._loop = asyncio.get_running_loop()
        self._parser = HttpParser(guard, limits)
        self._pending: deque[ParsedRequest] = deque()
        self._handler_task: asyncio.Task[None] | None = None
        self._is_streaming = self._is_disconnected = False
        # Nothing that comes is heard any more; it may be the rest of what was refused.
        self._ignores_input = self._is_truncated = False
        self._discarded_bytes = 0
        # Since when something is being done for the client, and whether it was given up.
        self._request_started: float | None = None
        self._has_timed_out = False
        self._writable = asyncio.Event()
        self._writable.set()
        # Since when the client keeps us waiting, if nothing is being answered.
        self._idle_since = self._loop.time()
        self.closed: asyncio.Future[None] = self._loop.create_future()

    # ------------------------------------------------------------------ what the loop calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client has come."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(_HIGH_WATER)
        self._parser.peer = self._guard.peer_user(transport.get_extra_info("peercert"))
        self._connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """The client has gone: a watch ends, but what is being done for it is still done."""
        self._is_disconnected = True
        self._pending.clear()
        self._writable.set()
        if self._handler_task is None:
            self._finish()
        elif self._is_streaming:
            self._handler_task.cancel()

    def data_received(self, data: bytes) -> None:
        """Bytes have come."""
        if self._ignores_input:
            self._discard(data)
            return
        was_within = self._parser.is_in_request
        asked = self._parser.feed(data)
        for one in asked:
            self._enqueue(one)
        if self._parser.is_in_request and (asked or not was_within):
            self._idle_since = self._loop.time()
        self._send_continue()

    def pause_writing(self) -> None:
        """The client reads too slowly."""
        self._writable.clear()

    def resume_writing(self) -> None:
        """The client has caught up."""
        self._writable.set()

    def _discard(self, data: bytes) -> None:
        self._discarded_bytes += len(data)
        if self._discarded_bytes > self._limits.dropped:
            self._transport.abort()

    def _finish(self) -> None:
        self._connections.discard(self)
        self._parser.release_user()
        self.closed.set_result(None)

    # ----------------------------------------------------------------------------- answering

    def _enqueue(self, parsed: ParsedRequest) -> None:
        """Answer now or in its turn; a client that asks far ahead is not read until then."""
        self._ignores_input, self._is_truncated = parsed.is_last, parsed.is_cut
        self._pending.append(parsed)
        if self._handler_task is None:
            self._handler_task = self._loop.create_task(self._handle_pending())
        elif len(self._pending) == self._limits.pipelined:
            self._transport.pause_reading()

    async def _handle_pending(self) -> None:
        """Answer what waits, one after the other; then listen on, or part."""
        try:
            while self._pending:
                asked = self._pending.popleft()
                if len(self._pending) == self._limits.pipelined - 1:
                    self._transport.resume_reading()
                await self._respond(asked)
        except (Exception, asyncio.CancelledError) as error:
            self._abort_on_error(error)
        finally:
            self._handler_task = None
            self._on_idle()

    def _abort_on_error(self, error: BaseException) -> None:
        """End, so that what was not said to its end does not look as if it were."""
        self._transport.abort()
        if isinstance(error, _WriteTimeoutError):
            _log.warning("cut off a client that does not read")
        elif isinstance(error, Exception):
            _log.error("an answer broke off", exc_info=error)

    def _on_idle(self) -> None:
        """Nothing is under way: wait for the client, or part when all was said."""
        self._idle_since = self._loop.time()
        if self._is_disconnected:
            self._finish()
        elif not self._ignores_input:
            self._send_continue()
        elif not self._is_truncated:
            self._close()

    def _send_continue(self) -> None:
        """Tell a client that asks whether to send its body to do so, when it is its turn."""
        if self._parser.expects_continue and self._handler_task is None:
            self._parser.expects_continue = False
            self._write(b"HTTP/1.1 100 Continue\r\n\r\n")

    async def _respond(self, parsed: ParsedRequest) -> None:
        answer = await self._handle_request(parsed.request)
        if isinstance(answer, Reply):
            await self._write_reply(answer, parsed)
            return
        async with contextlib.aclosing(answer.chunks):
            self._is_streaming = True
            await self._write_stream(answer, parsed)
            self._is_streaming = False

    async def _handle_request(self, request: Request | ApiError) -> Reply | StreamReply:
        if isinstance(request, ApiError):
            return error_reply(request)
        self._request_started = self._loop.time()
        try:
            return await self._handle(request)
        except asyncio.CancelledError:
            if not self._has_timed_out:
                raise
            self._has_timed_out = False
            return error_reply(Timeout("the request did not come to its end in time"))
        except Exception:
            _log.exception("%s %s", request.method, request.path)
            return error_reply(ServerError("an internal error occurred; the server's log has more"))
        finally:
            self._request_started = None

    async def _write_reply(self, reply: Reply, parsed: ParsedRequest) -> None:
        body, is_last = reply.body, self._ignores_input and not self._pending
        head = b"%bcontent-length: %d\r\n\r\n" % (_response_head(reply, is_last), len(body))
        if parsed.is_head:
            self._write(head)
        elif len(body) <= _MAX_WRITE:
            self._write(head + body)
        else:
            self._write(head)
            for piece in _split_writes(body):
                self._write(piece)
                await self._wait_writable()
        await self._wait_writable()

    async def _write_stream(self, stream: StreamReply, parsed: ParsedRequest) -> None:
        """Write chunks as they come, no faster than they are read.

        A stream is the last answer on its connection, so that reading on, to see the client leave,
        never makes requests queue up behind it.
        """
        self._ignores_input = True
        self._pending.clear()
        self._transport.resume_reading()
        self._write(
            b"%b%b\r\n"
            % (_response_head(stream, True), _CHUNKED_HEADER if parsed.accepts_chunked else b"")
        )
        if parsed.is_head or self._is_disconnected:
            return
        async for chunk in stream.chunks:
            for piece in _split_writes(chunk):
                framed = b"%x\r\n%b\r\n" % (len(piece), piece) if parsed.accepts_chunked else piece
                self._write(framed)
                await self._wait_writable()
        if parsed.accepts_chunked:
            self._write(b"0\r\n\r\n")

    def _write(self, data: bytes) -> None:
        if not self._transport.is_closing():
            self._transport.write(data)

    async def _wait_writable(self) -> None:
        """Wait until the client has read most of what it was sent, if it reads at all."""
        if self._writable.is_set():
            return
        try:
            async with asyncio.timeout(self._limits.unread):
                await self._writable.wait()
        except TimeoutError:
            raise _WriteTimeoutError from None

    # ------------------------------------------------------------------- what the listener calls

    def check_timeouts(self, now: float) -> None:
        """Part with a client that has kept us waiting too long."""
        patience, part = self._current_timeout()
        if self._handler_task is None and now - self._idle_since > patience:
            part()
        elif (
            self._request_started is not None and now - self._request_started > self._limits.answer
        ):
            self._cancel_handler()

    def _cancel_handler(self) -> None:
        """Answer without what was asked for: whether it is done is not known."""
        if self._handler_task is not None and not self._has_timed_out:
            self._has_timed_out = True
            self._handler_task.cancel()

    def _current_timeout(self) -> tuple[float, Callable[[], None]]:
        """For how many seconds we wait for this client, and what we do then."""
        if self._transport.is_closing():
            return self._limits.linger, self._transport.abort
        if self._ignores_input:
            return self._limits.linger, self._close
        if self._parser.is_in_request:
            limits = self._limits
            head = min(limits.head, limits.arrival)
            return limits.arrival if self._parser.is_in_body else head, self._time_out
        return self._limits.idle, self._close

    def _time_out(self) -> None:
        self._enqueue(truncated_request(RequestTimeout("the request took too long to arrive")))

    def _close(self) -> None:
        self._ignores_input = True
        self._idle_since = self._loop.time()
        if not self._transport.is_closing():
            self._transport.close()

    def stop(self) -> None:
        """End, but for a reply that is being made: that is still written."""
        self._ignores_input, self._is_truncated = True, False
        self._pending.clear()
        if self._handler_task is None or self._is_streaming:
            self.abort()

    def abort(self) -> None:
        """End, whatever is under way."""
        if self._handler_task is not None:
            self._handler_task.cancel()
        self._transport.abort()


def _split_writes(data: bytes) -> Iterator[bytes]:
    """Bytes in pieces that are not too long to be written at once; none of nothing."""
    return (data[at : at + _MAX_WRITE] for at in range(0, len(data), _MAX_WRITE))


def _response_head(answer: Reply | StreamReply, is_last: bool) -> bytes:
    """Status line and headers, up to those that say where the body ends."""
    if answer.headers:
        return _compose_head(answer.code, answer.content_type, answer.headers, is_last)
    return _default_response_head(answer.code, answer.content_type, is_last)


@lru_cache(maxsize=256)
def _default_response_head(code: int, kind: str, is_last: bool) -> bytes:
    return _compose_head(code, kind, (), is_last)


def _compose_head(code: int, kind: str, own: tuple[tuple[str, str], ...], is_last: bool) -> bytes:
    said = {name for name, _ in own}
    rows = [("content-type", kind), *(row for row in _DEFAULT_HEADERS if row[0] not in said), *own]
    if is_last:
        rows.append(("connection", "close"))
    fields = "".join(f"{name}: {value.translate(_CONTROL_CHARACTERS)}\r\n" for name, value in rows)
    return (_STATUS_LINES[code] + fields).encode("utf-8", "replace")


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
async def serve_http(
    handle: Handler,
    identifier: RequestAuthenticator,
    sock: socket.socket,
    tls: ssl.SSLContext | None,
    limits: HttpLimits | None = None,
    *,
    hosts: Iterable[str] | None = None,
    on_refused: RefusalHandler | None = None,
) -> AsyncIterator[None]:
    """Serve on a socket for as long as the context lasts.

    Where `hosts` are given, requests to others are refused; `refused` hears of those who were
    turned away.
    """
    limits, door = limits or HttpLimits(), RequestGuard(identifier, hosts, on_refused)
    _check_tls(sock, tls)
    connections: set[HttpConnection] = set()
    server = await asyncio.get_running_loop().create_server(
        lambda: HttpConnection(handle, door, connections, limits), sock=sock, backlog=_BACKLOG,
        ssl=tls, ssl_handshake_timeout=limits.handshake if tls else None,
        ssl_shutdown_timeout=limits.linger if tls else None,
    )  # fmt: skip
    sweeping = asyncio.create_task(_check_timeouts(connections, limits.sweep))
    try:
        yield
    finally:
        server.close()
        await _stop_connections(connections, limits.stop)
        sweeping.cancel()
        await asyncio.wait([sweeping])


class TlsRequiredError(ValueError):
    """Somebody wants to be reached from elsewhere without TLS."""


def _check_tls(sock: socket.socket, tls: ssl.SSLContext | None) -> None:
    """Credentials go over the network under TLS, or not at all."""
    host = sock.getsockname()[0]
    if tls is None and not ipaddress.ip_address(host).is_loopback:
        raise TlsRequiredError(
            f"without TLS this server listens on this machine alone, not on {host}"
        )


async def _check_timeouts(connections: set[HttpConnection], seconds: float) -> None:
    while True:
        await asyncio.sleep(seconds)
        now = asyncio.get_running_loop().time()
        for connection in tuple(connections):
            connection.check_timeouts(now)


async def _stop_connections(connections: set[HttpConnection], seconds: float) -> None:
    """Let replies under way be written, then end everything."""
    for end in (HttpConnection.stop, HttpConnection.abort):
        for connection in tuple(connections):
            end(connection)
        if connections:
            await asyncio.wait([connection.closed for connection in connections], timeout=seconds)
