"""HTTP/1.1 on a connection: bytes in, Requests out; Replies and Streams in, bytes out.

Between the network (`listener.py`) and `Server.handle`. The parser is httptools'; everything that a
client could use to wear us down is counted here: headers, bodies, requests that queue up, time. One
request of a connection is answered at a time, in order; a reply leaves in one write.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import cast

import httptools

from phalanx.api.errors import ApiError, BadRequest, HeadersTooLarge, RequestTimeout, TooLarge
from phalanx.api.wire import Handler, Reply, Request, Stream
from phalanx.server.access import Tokens
from phalanx.server.app import refusal
from phalanx.server.bodies import MAX_BODY

#: A request may have so many headers and so many bytes of them, its line included.
MAX_HEADERS, MAX_HEADER_BYTES = 100, 64 * 1024
#: Requests that may wait on one connection while another is answered.
MAX_PIPELINED = 16
#: Seconds that a request may take to arrive, and that a connection may be idle.
ARRIVAL_SECONDS, IDLE_SECONDS = 30.0, 90.0
#: Bytes of a body that is too large which are still read, so that its sender gets an answer.
_DISCARDED = 64 * 1024 * 1024
#: Larger replies are written in two pieces rather than copied into one.
_JOINED = 256 * 1024

_LINES = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n" for status in HTTPStatus}
_FIXED = "cache-control: no-cache, private\r\nx-content-type-options: nosniff\r\n"


@dataclass(slots=True)
class _Arriving:
    """A request of which not everything has come yet."""

    target: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    header_bytes: int = 0
    body: list[bytes] = field(default_factory=list)
    size: int = 0
    fault: ApiError | None = None


@dataclass(frozen=True, slots=True)
class _Arrived:
    """A request that is whole, or what is wrong with it."""

    request: Request | ApiError
    keep_alive: bool
    is_head: bool


class Connection(asyncio.Protocol):
    """One client's connection."""

    def __init__(self, handle: Handler, tokens: Tokens, open_: set[Connection]) -> None:
        self._handle, self._tokens, self._open = handle, tokens, open_
        self._parser = httptools.HttpRequestParser(self)
        self._arriving = _Arriving()
        self._waiting: deque[_Arrived] = deque()
        self._answering: asyncio.Task[None] | None = None
        self._writable = asyncio.Event()
        self._writable.set()
        self._streaming = False
        self._since = asyncio.get_running_loop().time()

    # ------------------------------------------------------------------ what the loop calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client has come."""
        self._transport = cast("asyncio.Transport", transport)
        self._open.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """The client has gone: nobody waits for an answer any more."""
        self._open.discard(self)
        self._writable.set()
        if self._answering is not None:
            self._answering.cancel()

    def data_received(self, data: bytes) -> None:
        """Bytes have come."""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._give_up(BadRequest("protocol upgrades are not supported"))
        except httptools.HttpParserError as error:
            self._give_up(BadRequest(f"this is no HTTP/1.1 request: {error}"))

    def pause_writing(self) -> None:
        """The client reads too slowly."""
        self._writable.clear()

    def resume_writing(self) -> None:
        """The client has caught up."""
        self._writable.set()

    # ---------------------------------------------------------------- what the parser calls

    def on_message_begin(self) -> None:
        """A request begins."""
        self._arriving = _Arriving()
        self._since = asyncio.get_running_loop().time()

    def on_url(self, url: bytes) -> None:
        """A piece of its target."""
        self._arriving.target += url
        self._count_header(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header."""
        arriving = self._arriving
        self._count_header(len(name) + len(value))
        key = name.decode("latin-1").lower()
        if key == "authorization" and key in arriving.headers:
            arriving.fault = BadRequest("more than one Authorization header")
        arriving.headers[key] = value.decode("latin-1")
        if len(arriving.headers) > MAX_HEADERS:
            arriving.fault = HeadersTooLarge(f"more than {MAX_HEADERS} headers")

    def on_headers_complete(self) -> None:
        """All headers are there; a client that asks whether to go on is told so."""
        if self._arriving.headers.get("expect", "").lower() == "100-continue":
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, body: bytes) -> None:
        """A piece of its body."""
        arriving = self._arriving
        arriving.size += len(body)
        if arriving.size <= MAX_BODY:
            arriving.body.append(body)
        elif arriving.size > _DISCARDED:
            self._transport.abort()

    def on_message_complete(self) -> None:
        """It is whole."""
        arrived = _Arrived(
            self._request(),
            self._parser.should_keep_alive(),
            self._parser.get_method() == b"HEAD",
        )
        self._waiting.append(arrived)
        if len(self._waiting) > MAX_PIPELINED:
            self._transport.abort()
        elif self._answering is None:
            self._answering = asyncio.create_task(self._answer_all())

    def _count_header(self, size: int) -> None:
        self._arriving.header_bytes += size
        if self._arriving.header_bytes > MAX_HEADER_BYTES:
            self._arriving.fault = HeadersTooLarge(f"more than {MAX_HEADER_BYTES} header bytes")

    def _request(self) -> Request | ApiError:
        arriving = self._arriving
        if arriving.fault is not None:
            return arriving.fault
        if arriving.size > MAX_BODY:
            return TooLarge(f"Request entity too large: limit is {MAX_BODY}")
        if arriving.headers.get("content-encoding", "identity") != "identity":
            return BadRequest("compressed request bodies are not read")
        path, _, query = arriving.target.partition(b"?")
        if not path.startswith(b"/") or not arriving.target.isascii():
            return BadRequest("the request target must be a path")
        try:
            user = self._tokens.identify(arriving.headers.get("authorization", ""))
        except ApiError as error:
            return error
        method = self._parser.get_method().decode("ascii")
        body = b"".join(arriving.body)
        return Request(method, path.decode(), query.decode(), arriving.headers, body, user)

    # ----------------------------------------------------------------------------- answering

    async def _answer_all(self) -> None:
        """Answer what waits, one after the other."""
        try:
            while self._waiting and not self._transport.is_closing():
                await self._answer(self._waiting.popleft())
        finally:
            self._answering = None
            self._since = asyncio.get_running_loop().time()

    async def _answer(self, arrived: _Arrived) -> None:
        asked = arrived.request
        answer = refusal(asked) if isinstance(asked, ApiError) else await self._handle(asked)
        if isinstance(answer, Stream):
            await self._write_stream(answer)
        else:
            self._write_reply(answer, arrived)
        if not arrived.keep_alive:
            self._transport.close()
        await self._writable.wait()

    def _write_reply(self, reply: Reply, arrived: _Arrived) -> None:
        head = _head(reply, f"content-length: {len(reply.body)}\r\n", arrived.keep_alive)
        if arrived.is_head:
            self._transport.write(head)
        elif len(reply.body) <= _JOINED:
            self._transport.write(head + reply.body)
        else:
            self._transport.write(head)
            self._transport.write(reply.body)

    async def _write_stream(self, stream: Stream) -> None:
        """Write chunks as they come, no faster than they are read."""
        self._streaming = True
        self._transport.write(_head(stream, "transfer-encoding: chunked\r\n", keep_alive=True))
        async with contextlib.aclosing(stream.chunks) as chunks:
            async for chunk in chunks:
                if chunk:
                    self._transport.write(b"%x\r\n%b\r\n" % (len(chunk), chunk))
                await self._writable.wait()
        self._transport.write(b"0\r\n\r\n")
        self._streaming = False

    # ------------------------------------------------------------------- what the listener calls

    def sweep(self, now: float) -> None:
        """Cut off a client that has been silent, or has kept us waiting for a request, too long."""
        waited = now - self._since
        if self._answering is not None:
            return
        if self._arriving.target and waited > ARRIVAL_SECONDS:
            self._give_up(RequestTimeout("the request took too long to arrive"))
        elif waited > IDLE_SECONDS:
            self._transport.close()

    def stop(self) -> None:
        """End, but for a reply that is being made: that is still written."""
        if self._answering is None or self._streaming:
            self.abort()

    async def answered(self) -> None:
        """Wait until nothing is under way."""
        if self._answering is not None:
            await asyncio.wait([self._answering])

    def abort(self) -> None:
        """End, whatever is under way."""
        if self._answering is not None:
            self._answering.cancel()
        self._transport.abort()

    def _give_up(self, error: ApiError) -> None:
        """Say what is wrong and close: what follows on this connection cannot be understood."""
        self._write_reply(refusal(error), _Arrived(error, keep_alive=False, is_head=False))
        self._transport.close()


def _head(answer: Reply | Stream, length: str, keep_alive: bool) -> bytes:
    extra = "".join(f"{name}: {value}\r\n" for name, value in answer.headers)
    end = "\r\n" if keep_alive else "connection: close\r\n\r\n"
    line = _LINES[answer.code]
    return f"{line}content-type: {answer.kind}\r\n{_FIXED}{extra}{length}{end}".encode(
        "latin-1", "replace"
    )
