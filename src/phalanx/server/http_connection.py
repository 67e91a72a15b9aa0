"""One HTTP/1.1 connection: parsed requests to `Server.handle`, replies back as bytes.

A connection answers one request at a time, in the order of arrival.

    bytes ─▶ HttpParser ─▶ ParsedRequest ─▶ queue ─▶ handle ─▶ bytes

A reply is one write. Long replies and streams are written no faster than the client reads. A
request that cannot be parsed is answered in its turn and ends the connection. Every wait has a
limit (`HttpLimits`): clients that send slowly, do not read or stay idle are disconnected.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Iterator
from functools import lru_cache
from http import HTTPStatus
from typing import Protocol, cast

from phalanx import logs
from phalanx.api.errors import ApiError, RequestTimeout, ServerError, Timeout, TooManyRequests
from phalanx.api.wire import Handler, Reply, Request, StreamReply
from phalanx.server.app import INTERNAL_ERROR, error_reply
from phalanx.server.http_parser import HttpLimits, HttpParser, ParsedRequest, new_truncated_request
from phalanx.server.security.request_guard import RequestGuard

LOG = logs.component("server")

#: Bytes that may be buffered before the writer waits, and the size of one write.
_HIGH_WATER, _MAX_WRITE = 256 * 1024, 128 * 1024
#: Replies up to this size are not counted: the transport may buffer as much.
_UNCOUNTED_BYTES = _HIGH_WATER
#: Bytes that are parsed at once: they may contain hundreds of requests.
_MAX_PARSED = 16 * 1024
#: Headers of every reply that does not set them itself.
_DEFAULT_HEADERS = (("cache-control", "no-cache, private"), ("x-content-type-options", "nosniff"))
#: Control characters could end a header early: they are replaced.
_CONTROL_CHARACTERS = dict.fromkeys([*range(32), *range(127, 160)], "\N{REPLACEMENT CHARACTER}")
_STATUS_LINES = {
    status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n" for status in HTTPStatus
}
_CHUNKED_HEADER = b"transfer-encoding: chunked\r\n"


class _WriteTimeoutError(Exception):
    """The client does not read what it is sent."""


class ConnectionObserver(Protocol):
    """Learns about the connections of a listener."""

    def on_authenticated(self, connection: HttpConnection) -> None:
        """Called at the first authenticated request of a connection."""
        ...

    def on_closed(self, connection: HttpConnection) -> None:
        """Called when a connection has ended, and its handler too."""
        ...


class HttpConnection(asyncio.Protocol):
    """One client connection; `closed` completes when it has ended and its handler too."""

    def __init__(
        self,
        handle: Handler,
        guard: RequestGuard,
        limits: HttpLimits,
        *,
        observer: ConnectionObserver,
    ) -> None:
        self._handle, self._guard, self._limits = handle, guard, limits
        self._observer = observer
        self._loop = asyncio.get_running_loop()
        #: When the client was accepted; the task that opens the connection, until it is done.
        self.accepted = self._loop.time()
        self.opening: asyncio.Task[None] | None = None
        # Requests that wait for their turn, and bytes that are parsed when fewer do.
        self._pending: deque[ParsedRequest] = deque()
        self._unparsed = b""
        self._handler_task: asyncio.Task[None] | None = None
        self._is_new, self._is_streaming, self._is_disconnected = True, False, False
        # Further input is discarded; it may be the rest of a request that was refused.
        self._ignores_input = self._is_truncated = False
        self._discarded_bytes = 0
        # When the current handler started, and whether it was cancelled by a timeout.
        self._request_started: float | None = None
        self._has_timed_out = False
        self._writable = asyncio.Event()
        self._writable.set()
        # When the server began to wait for the client, if no handler runs.
        self._idle_since = self.accepted
        self.closed: asyncio.Future[None] = self._loop.create_future()

    # ---- called by the event loop ----

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the event loop: a client has connected."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(_HIGH_WATER)
        self._parser = HttpParser(self._guard, self._limits)
        self._parser.peer = self._guard.read_peer(transport.get_extra_info("peercert"))

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by the event loop: end a watch, but let a write handler finish."""
        self._is_disconnected = True
        self._parser.close()
        self._drop_pending()
        self._writable.set()
        if self._handler_task is None:
            self.finish()
        elif self._is_streaming:
            self._handler_task.cancel()

    def data_received(self, data: bytes) -> None:
        """Called by the event loop with bytes from the client."""
        if self._ignores_input:
            self._discarded_bytes += len(data)
            if self._discarded_bytes > self._limits.discarded_bytes:
                self._transport.abort()
        elif self._unparsed or len(data) > _MAX_PARSED:
            self._unparsed += data
            self._parse_on()
        else:
            self._parse(data)

    def _parse_on(self) -> None:
        """Parse what has been received, unless too many requests wait."""
        while self._unparsed and len(self._pending) < self._limits.pending_requests:
            data, self._unparsed = self._unparsed[:_MAX_PARSED], self._unparsed[_MAX_PARSED:]
            self._parse(data)
            if self._ignores_input:
                self._unparsed = b""

    def _parse(self, data: bytes) -> None:
        was_in_request = self._parser.is_in_request
        requests = self._parser.feed(data)
        if self._is_new and self._parser.is_authenticated:
            self._is_new = False
            self._observer.on_authenticated(self)
        for parsed in requests:
            self._enqueue(parsed)
        if self._parser.is_in_request and (requests or not was_in_request):
            self._idle_since = self._loop.time()
        self._send_continue()

    def pause_writing(self) -> None:
        """Called by the event loop: the client reads too slowly."""
        self._writable.clear()

    def resume_writing(self) -> None:
        """Called by the event loop: the client has caught up."""
        self._writable.set()

    def finish(self) -> None:
        """Report that the connection has ended, or that it could not be opened."""
        if not self.closed.done():
            self._observer.on_closed(self)
            self.closed.set_result(None)

    def _drop_pending(self) -> None:
        self._unparsed = b""
        while self._pending:
            self._parser.release(self._pending.popleft())

    # ---- replies ----

    def _enqueue(self, parsed: ParsedRequest) -> None:
        """Handle a request now or in its turn; pause reading while too many wait."""
        self._ignores_input, self._is_truncated = parsed.is_last, parsed.is_cut
        self._pending.append(parsed)
        if self._handler_task is None:
            self._handler_task = self._loop.create_task(self._handle_pending())
        elif len(self._pending) == self._limits.pending_requests:
            self._transport.pause_reading()

    async def _handle_pending(self) -> None:
        """Handle the waiting requests in order, then wait for more or close."""
        try:
            while self._pending:
                parsed = self._pending.popleft()
                if len(self._pending) == self._limits.pending_requests - 1:
                    self._transport.resume_reading()
                    self._parse_on()
                try:
                    await self._respond(parsed)
                finally:
                    if parsed.reserved_bytes:
                        self._parser.release(parsed)
        except (Exception, asyncio.CancelledError) as error:
            self._abort_on_error(error)
        finally:
            self._handler_task = None
            self._on_idle()

    def _abort_on_error(self, error: BaseException) -> None:
        """Abort the connection, so that a partial reply does not look complete."""
        self._transport.abort()
        if isinstance(error, _WriteTimeoutError):
            LOG.warning("connection closed: client does not read", peer=self._peer())
        elif isinstance(error, Exception):
            LOG.error("reply aborted", exc_info=True, peer=self._peer())

    def _on_idle(self) -> None:
        self._idle_since = self._loop.time()
        if self._is_disconnected:
            self.finish()
        elif not self._ignores_input:
            self._send_continue()
        elif not self._is_truncated:
            self._close()

    def _send_continue(self) -> None:
        """Ask for the body of a request with `Expect: 100-continue` when it is its turn."""
        if self._parser.expects_continue and self._handler_task is None:
            self._parser.expects_continue = False
            self._write(b"HTTP/1.1 100 Continue\r\n\r\n")

    async def _respond(self, parsed: ParsedRequest) -> None:
        reply = await self._handle_request(parsed.request)
        if isinstance(reply, Reply):
            await self._write_counted(reply, parsed)
            return
        async with contextlib.aclosing(reply.chunks):
            self._is_streaming = True
            await self._write_stream(reply, parsed)
            self._is_streaming = False

    async def _handle_request(self, request: Request | ApiError) -> Reply | StreamReply:
        if isinstance(request, ApiError):
            if request.code == 429:
                LOG.debug("request refused", peer=self._peer(), reason=request.message)
            return error_reply(request)
        self._request_started = self._loop.time()
        try:
            return await self._handle(request)
        except asyncio.CancelledError:
            if not self._has_timed_out:
                raise
            self._has_timed_out = False
            return error_reply(Timeout("the request was not completed in time"))
        except Exception:
            LOG.error("request failed", exc_info=True, method=request.method, path=request.path)
            return error_reply(ServerError(INTERNAL_ERROR))
        finally:
            self._request_started = None

    async def _write_counted(self, reply: Reply, parsed: ParsedRequest) -> None:
        """Write a reply; a large one only if its user may hold so much memory."""
        if len(reply.body) <= _UNCOUNTED_BYTES or not isinstance(parsed.request, Request):
            await self._write_reply(reply, parsed)
            return
        try:
            with self._guard.replies.hold(parsed.request, len(reply.body)):
                await self._write_reply(reply, parsed)
        except TooManyRequests as error:
            await self._write_reply(error_reply(error), parsed)

    async def _write_reply(self, reply: Reply, parsed: ParsedRequest) -> None:
        body, is_last = reply.body, self._ignores_input and not self._pending
        head = _response_head(reply, is_last=is_last)
        head = b"%bcontent-length: %d\r\n\r\n" % (head, len(body))
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
        """Write chunks as they come, no faster than the client reads.

        A stream is the last reply on its connection. Input is still read, to notice that the client
        disconnects, but no request is queued behind the stream.
        """
        self._ignores_input = True
        self._drop_pending()
        self._transport.resume_reading()
        framing = _CHUNKED_HEADER if parsed.accepts_chunked else b""
        self._write(b"%b%b\r\n" % (_response_head(stream, is_last=True), framing))
        if parsed.is_head or self._is_disconnected:
            return
        async for chunk in stream.chunks:
            for piece in _split_writes(chunk):
                framed = b"%x\r\n%b\r\n" % (len(piece), piece) if parsed.accepts_chunked else piece
                self._write(framed)
                await self._wait_writable()
        if parsed.accepts_chunked:
            self._write(b"0\r\n\r\n")

    def _peer(self) -> str:
        address = self._transport.get_extra_info("peername")
        return f"{address[0]}:{address[1]}" if address else ""

    def _write(self, data: bytes) -> None:
        if not self._transport.is_closing():
            self._transport.write(data)

    async def _wait_writable(self) -> None:
        """Wait until the client has read most of the buffered bytes."""
        if self._writable.is_set():
            return
        try:
            async with asyncio.timeout(self._limits.write_timeout):
                await self._writable.wait()
        except TimeoutError:
            raise _WriteTimeoutError from None

    # ---- called by the listener ----

    @property
    def waiting_since(self) -> float | None:
        """When the server began to wait for the client; None while it handles a request."""
        return self._idle_since if self._handler_task is None else None

    def check_timeouts(self, now: float) -> None:
        """Called periodically by the listener: enforce the time limits."""
        if self.opening is not None:
            return
        started, handler = self._request_started, self._handler_task
        if handler is None:
            limit, on_timeout = self._current_timeout()
            if now - self._idle_since > limit:
                on_timeout()
        elif (
            started is not None
            and now - started > self._limits.handler_timeout
            and not self._has_timed_out
        ):
            # The client reads 504 and cannot know if the write happened.
            self._has_timed_out = True
            handler.cancel()

    def _current_timeout(self) -> tuple[float, Callable[[], None]]:
        """The time limit of the current state, in seconds, and the action when it is over."""
        if self._transport.is_closing():
            return self._limits.close_timeout, self._transport.abort
        if self._ignores_input:
            return self._limits.close_timeout, self._close
        if self._parser.is_in_request:
            limits = self._limits
            head = min(limits.head_timeout, limits.request_timeout)
            return limits.request_timeout if self._parser.is_in_body else head, self._time_out
        has_expired = self._guard.has_expired(self._parser.peer)
        return 0.0 if has_expired else self._limits.idle_timeout, self._close

    def _time_out(self) -> None:
        self._enqueue(new_truncated_request(RequestTimeout("the request took too long to arrive")))

    def _close(self) -> None:
        self._ignores_input = True
        self._idle_since = self._loop.time()
        if not self._transport.is_closing():
            self._transport.close()

    def stop(self) -> None:
        """Close the connection, after the reply that is being computed."""
        self._ignores_input, self._is_truncated = True, False
        self._drop_pending()
        if self._handler_task is None or self._is_streaming:
            self.abort()

    def abort(self) -> None:
        """Close the connection at once and cancel its handler."""
        if self.opening is not None:
            self.opening.cancel()
            return
        if self._handler_task is not None:
            self._handler_task.cancel()
        self._transport.abort()


def _split_writes(data: bytes) -> Iterator[bytes]:
    """Split bytes into pieces of at most `_MAX_WRITE`; empty input gives no piece."""
    return (data[at : at + _MAX_WRITE] for at in range(0, len(data), _MAX_WRITE))


def _response_head(reply: Reply | StreamReply, *, is_last: bool) -> bytes:
    """The status line and the headers, except for those that delimit the body."""
    if reply.headers:
        return _compose_head(reply.code, reply.content_type, headers=reply.headers, is_last=is_last)
    return _default_response_head(reply.code, reply.content_type, is_last)


@lru_cache(maxsize=256)
def _default_response_head(code: int, content_type: str, is_last: bool) -> bytes:
    return _compose_head(code, content_type, headers=(), is_last=is_last)


def _compose_head(
    code: int, content_type: str, *, headers: tuple[tuple[str, str], ...], is_last: bool
) -> bytes:
    names = {name for name, _ in headers}
    defaults = (row for row in _DEFAULT_HEADERS if row[0] not in names)
    rows = [("content-type", content_type), *defaults, *headers]
    if is_last:
        rows.append(("connection", "close"))
    fields = "".join(f"{name}: {value.translate(_CONTROL_CHARACTERS)}\r\n" for name, value in rows)
    return (_STATUS_LINES[code] + fields).encode("utf-8", "replace")
