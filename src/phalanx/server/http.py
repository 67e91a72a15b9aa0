"""HTTP/1.1 on a connection: bytes in, Requests out; Replies and Streams in, bytes out.

Between the network (`listener.py`) and `Server.handle`. The parser is httptools'; everything that a
client could use to wear us down is counted here: headers, bodies, requests that queue up, time.

    bytes ─▶ parser ─▶ _Arriving ─▶ _Arrived ─▶ queue ─▶ one answer at a time, in order ─▶ bytes

A reply leaves in one write, a stream no faster than it is read. What cannot be understood is
answered in its turn, and then nothing more is heard on that connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from http import HTTPStatus
from typing import cast

import httptools

from phalanx.api.errors import (
    ApiError,
    BadRequest,
    HeadersTooLarge,
    RequestTimeout,
    ServerError,
    TooLarge,
    UnsupportedMediaType,
)
from phalanx.api.wire import Handler, Reply, Request, Stream
from phalanx.server.access import Tokens
from phalanx.server.app import refusal
from phalanx.server.bodies import MAX_BODY

_log = logging.getLogger("phalanx.server")

#: Bytes that may wait to be sent before a writer waits, and in which long answers are written.
_HIGH_WATER, _PIECE = 256 * 1024, 128 * 1024
#: Headers of which a second one would leave open which is meant.
_SINGLE = frozenset({"authorization", "content-type", "expect", "host"})
#: Headers of every answer that does not say otherwise.
_USUAL = (("cache-control", "no-cache, private"), ("x-content-type-options", "nosniff"))
#: What would end a header early becomes a visible mark.
_CONTROL = dict.fromkeys([*range(32), *range(127, 160)], "\N{REPLACEMENT CHARACTER}")
_LINES = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n" for status in HTTPStatus}
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


@dataclass(frozen=True, slots=True)
class Limits:
    """What one connection may cost us: bytes and counts, then seconds."""

    target: int = 8 * 1024
    headers: int = 100
    header_bytes: int = 64 * 1024
    body: int = MAX_BODY
    #: Requests that wait for their turn before no more is read.
    pipelined: int = 16
    #: What is read and dropped after a refusal, so that its sender comes to read why.
    dropped: int = 64 * 1024 * 1024

    handshake: float = 10.0
    #: For a request to arrive, from its first byte to its last.
    arrival: float = 30.0
    idle: float = 90.0
    #: Without a sign that the client reads what it is sent.
    unread: float = 30.0
    #: Between our last word and the end, if the client does not end it.
    linger: float = 5.0
    #: For replies under way when the server stops.
    stop: float = 1.0
    sweep: float = 1.0


@dataclass(slots=True)
class _Arriving:
    """A request of which not everything has come yet."""

    target: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    header_count: int = 0
    header_bytes: int = 0
    body: bytearray = field(default_factory=bytearray)
    is_in_body: bool = False
    waits_for_word: bool = False


@dataclass(frozen=True, slots=True)
class _Arrived:
    """A request that is whole, or what is wrong with it, and how its sender reads the answer."""

    request: Request | ApiError
    is_head: bool = False
    knows_chunks: bool = True


class _Unread(Exception):
    """The client does not read what it is sent."""


class Connection(asyncio.Protocol):
    """One client's connection. `ended` is done when nothing of it is left."""

    def __init__(
        self, handle: Handler, tokens: Tokens, connections: set[Connection], limits: Limits
    ) -> None:
        self._handle, self._tokens = handle, tokens
        self._connections, self._limits = connections, limits
        self._loop = asyncio.get_running_loop()
        self._parser = httptools.HttpRequestParser(self)
        self._arriving: _Arriving | None = None
        # Bytes that the parser was fed since it last gave something back, or that were dropped.
        self._unseen = 0
        self._waiting: deque[_Arrived] = deque()
        self._answering: asyncio.Task[None] | None = None
        self._is_streaming = False
        # Nothing is heard any more; and what was refused may still be on its way.
        self._is_deaf = self._is_cut = False
        self._is_lost = False
        self._writable = asyncio.Event()
        self._writable.set()
        # When the client last kept us waiting from.
        self._since = self._loop.time()
        self.ended: asyncio.Future[None] = self._loop.create_future()

    # ------------------------------------------------------------------ what the loop calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client has come."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(_HIGH_WATER)
        self._connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """The client has gone: a watch ends, but what it asked for before is still done."""
        self._is_lost = True
        self._waiting.clear()
        self._writable.set()
        if self._answering is None:
            self._end()
        elif self._is_streaming:
            self._answering.cancel()

    def eof_received(self) -> bool:
        """The client says no more. In the clear it may still read; under TLS it has gone."""
        self._is_deaf, self._is_cut = True, False
        is_answering = self._answering is not None and not self._is_streaming
        return is_answering and self._transport.get_extra_info("sslcontext") is None

    def data_received(self, data: bytes) -> None:
        """Bytes have come."""
        self._unseen += len(data)
        if self._is_deaf:
            if self._unseen > self._limits.dropped:
                self._transport.abort()
            return
        try:
            self._parser.feed_data(data)
            if self._unseen > self._limits.header_bytes:
                raise self._too_many_header_bytes()
        except (httptools.HttpParserError, ApiError) as error:
            self._refuse(_fault(error))

    def pause_writing(self) -> None:
        """The client reads too slowly."""
        self._writable.clear()

    def resume_writing(self) -> None:
        """The client has caught up."""
        self._writable.set()

    # ------------------------------------- what the parser calls; an ApiError refuses the request

    def on_message_begin(self) -> None:
        """A request begins."""
        self._arriving = _Arriving()
        self._unseen = 0
        self._since = self._loop.time()

    def on_url(self, url: bytes) -> None:
        """A piece of its target."""
        arriving = self._now_arriving()
        arriving.target += url
        if len(arriving.target) > self._limits.target:
            raise HeadersTooLarge(f"the request target has more than {self._limits.target} bytes")

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header, or after the body a trailer: those are counted, but never believed."""
        arriving = self._now_arriving()
        self._unseen = 0
        arriving.header_count += 1
        arriving.header_bytes += len(name) + len(value)
        if arriving.header_bytes > self._limits.header_bytes:
            raise self._too_many_header_bytes()
        if arriving.header_count > self._limits.headers:
            raise HeadersTooLarge(f"the request has more than {self._limits.headers} headers")
        if not arriving.is_in_body:
            _add_header(arriving.headers, _key(name), value.decode("latin-1"))

    def on_headers_complete(self) -> None:
        """All headers are there: what can be refused without the body is refused now."""
        arriving = self._now_arriving()
        arriving.is_in_body = True
        if self._parser.should_upgrade():
            raise BadRequest("protocol upgrades are not supported")
        _check_head(arriving, self._parser.get_http_version())
        if int(arriving.headers.get("content-length", 0)) > self._limits.body:
            raise self._too_large()
        if "expect" in arriving.headers:
            arriving.waits_for_word = arriving.headers["expect"].lower() == "100-continue"
            self._encourage()

    def on_body(self, body: bytes) -> None:
        """A piece of its body."""
        arriving = self._now_arriving()
        self._unseen = 0
        arriving.body += body
        if len(arriving.body) > self._limits.body:
            raise self._too_large()

    def on_message_complete(self) -> None:
        """It is whole."""
        arriving, self._arriving = self._now_arriving(), None
        if self._is_deaf:
            return
        is_old = self._parser.get_http_version() == "1.0"
        self._is_deaf = is_old or not self._parser.should_keep_alive()
        method = self._parser.get_method().decode("ascii")
        self._ask(_Arrived(self._request(method, arriving), method == "HEAD", not is_old))

    def _now_arriving(self) -> _Arriving:
        assert self._arriving is not None, "the parser begins a request before it goes on with it"
        return self._arriving

    def _too_many_header_bytes(self) -> ApiError:
        return HeadersTooLarge(f"the headers have more than {self._limits.header_bytes} bytes")

    def _too_large(self) -> ApiError:
        return TooLarge(f"Request entity too large: limit is {self._limits.body}")

    def _request(self, method: str, arriving: _Arriving) -> Request | ApiError:
        headers = arriving.headers
        try:
            user = self._tokens.identify(headers.get("authorization", ""))
        except ApiError as error:
            return error
        path, _, query = arriving.target.decode("ascii").partition("?")
        return Request(method, path, query, headers, bytes(arriving.body), user)

    def _encourage(self) -> None:
        """Tell a client that asks whether to send its body to do so, when it is its turn."""
        if self._arriving and self._arriving.waits_for_word and self._answering is None:
            self._arriving.waits_for_word = False
            self._write(_CONTINUE)

    def _refuse(self, error: ApiError) -> None:
        """Say what is wrong, in its turn: what follows on this connection cannot be understood."""
        if not self._is_deaf:
            self._is_deaf = self._is_cut = True
            self._unseen = 0
            self._ask(_Arrived(error))

    # ----------------------------------------------------------------------------- answering

    def _ask(self, arrived: _Arrived) -> None:
        self._waiting.append(arrived)
        if self._answering is None:
            self._answering = self._loop.create_task(self._answer_all())
        elif len(self._waiting) == self._limits.pipelined:
            self._transport.pause_reading()

    async def _answer_all(self) -> None:
        """Answer what waits, one after the other; then listen on, or part."""
        try:
            while self._waiting:
                arrived = self._waiting.popleft()
                if len(self._waiting) == self._limits.pipelined - 1:
                    self._transport.resume_reading()
                await self._answer(arrived)
        except _Unread:
            self._transport.abort()
        except Exception:
            _log.exception("an answer broke off")
            self._transport.abort()
        finally:
            self._answering = None
            self._rest()

    def _rest(self) -> None:
        self._since = self._loop.time()
        if self._is_lost:
            self._end()
        elif self._is_deaf:
            if not self._is_cut:
                self._close()
        else:
            self._encourage()

    async def _answer(self, arrived: _Arrived) -> None:
        answer = await self._answer_to(arrived.request)
        if isinstance(answer, Stream):
            async with contextlib.aclosing(answer.chunks):
                await self._write_stream(answer, arrived)
        else:
            await self._write_reply(answer, arrived)

    async def _answer_to(self, asked: Request | ApiError) -> Reply | Stream:
        if isinstance(asked, ApiError):
            return refusal(asked)
        try:
            return await self._handle(asked)
        except Exception:
            _log.exception("%s %s", asked.method, asked.path)
            return refusal(ServerError("an internal error occurred; the server's log has more"))

    async def _write_reply(self, reply: Reply, arrived: _Arrived) -> None:
        body, is_last = reply.body, self._is_deaf and not self._waiting
        head = b"%bcontent-length: %d\r\n\r\n" % (_head(reply, is_last), len(body))
        if arrived.is_head:
            self._write(head)
        elif len(body) <= _PIECE:
            self._write(head + body)
        else:
            self._write(head)
            for piece in _pieces(body):
                self._write(piece)
                await self._drained()
        await self._drained()

    async def _write_stream(self, stream: Stream, arrived: _Arrived) -> None:
        """Write chunks as they come, no faster than they are read; then part.

        A watch is the last thing on its connection: nothing is read behind it but the client's end.
        """
        self._is_deaf = self._is_streaming = True
        self._waiting.clear()
        self._transport.resume_reading()
        frame, end = (b"%x\r\n%b\r\n", b"0\r\n\r\n") if arrived.knows_chunks else (b"%.0x%b", b"")
        kind = b"transfer-encoding: chunked\r\n\r\n" if arrived.knows_chunks else b"\r\n"
        self._write(_head(stream, is_last=True) + kind)
        if not arrived.is_head and not self._is_lost:
            async for chunk in stream.chunks:
                for piece in _pieces(chunk):
                    self._write(frame % (len(piece), piece))
                    await self._drained()
            self._write(end)
        self._is_streaming = False

    def _write(self, data: bytes | memoryview) -> None:
        if not self._transport.is_closing():
            self._transport.write(data)

    async def _drained(self) -> None:
        """Wait until the client has read most of what it was sent, if it reads at all."""
        if not self._writable.is_set():
            try:
                async with asyncio.timeout(self._limits.unread):
                    await self._writable.wait()
            except TimeoutError:
                raise _Unread from None

    # ------------------------------------------------------------------- what the listener calls

    def sweep(self, now: float) -> None:
        """Part with a client that has kept us waiting too long."""
        if self._answering is None:
            patience, part = self._patience()
            if now - self._since > patience:
                part()

    def stop(self) -> None:
        """End, but for a reply that is being made: that is still written."""
        self._is_deaf = True
        self._waiting.clear()
        if self._answering is None or self._is_streaming:
            self.abort()

    def abort(self) -> None:
        """End, whatever is under way."""
        if self._answering is not None:
            self._answering.cancel()
        self._transport.abort()
