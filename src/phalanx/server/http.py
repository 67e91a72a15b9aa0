"""HTTP/1.1 on a connection: bytes in, Requests out; Replies and Streams in, bytes out.

Between the network (`listener.py`) and `Server.handle`. The parser is httptools'; everything that a
client could use to wear us down is counted here: headers, bodies, requests that queue up, time.

    bytes ─▶ Reader ─▶ Asked ─▶ queue ─▶ Connection: one answer at a time, in order ─▶ bytes

A reply leaves in one write; a long one, and a stream, no faster than it is read. What cannot be
understood is answered in its turn, and then nothing more is heard on that connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from http import HTTPStatus
from typing import NamedTuple, cast

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
from phalanx.server.formats import MAX_BODY

_log = logging.getLogger("phalanx.server")

#: Bytes that may wait to be sent before their writer waits too; long answers go in pieces.
_HIGH_WATER, _PIECE = 256 * 1024, 128 * 1024
#: Headers of which a second one would leave open which is meant.
_SINGLE = frozenset({"authorization", "content-type", "host"})
#: Headers of every answer that does not say otherwise.
_USUAL = (("cache-control", "no-cache, private"), ("x-content-type-options", "nosniff"))
#: What could end a header early becomes a visible mark.
_CONTROL = dict.fromkeys([*range(32), *range(127, 160)], "\N{REPLACEMENT CHARACTER}")
_LINES = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n" for status in HTTPStatus}
_CHUNKED = b"transfer-encoding: chunked\r\n"


@dataclass(frozen=True, slots=True)
class Limits:
    """What one connection may cost us: in bytes and numbers, then in seconds."""

    target: int = 8 * 1024
    headers: int = 100
    header_bytes: int = 64 * 1024
    body: int = MAX_BODY
    #: Requests that wait for their turn before no more are read.
    pipelined: int = 16
    #: What is read and dropped after a refusal, so that its sender comes to see it.
    dropped: int = 64 * 1024 * 1024

    handshake: float = 10.0
    #: From the first byte of a request to its last.
    arrival: float = 30.0
    idle: float = 90.0
    #: Without a sign that the client reads what it is sent.
    unread: float = 30.0
    #: Between our last word and the end, unless the client ends it.
    linger: float = 5.0
    #: For the replies that are under way when the server stops.
    stop: float = 1.0
    #: Between two looks at how long each client has kept us waiting.
    sweep: float = 1.0


class Asked(NamedTuple):
    """A request that is whole, or what is wrong with it; and what that means for its connection."""

    request: Request | ApiError
    #: Nothing behind it is read; its own rest may still be on its way.
    is_last: bool = True
    is_cut: bool = False
    #: How its sender reads the answer.
    is_head: bool = False
    knows_chunks: bool = True


class Reader:
    """Turns bytes into what is asked, within limits. Does no I/O."""

    def __init__(self, tokens: Tokens, limits: Limits) -> None:
        self._tokens, self._limits = tokens, limits
        self._parser = httptools.HttpRequestParser(self)
        self._asked: list[Asked] = []
        # Bytes that the parser was fed since it last gave something back.
        self._unseen = 0
        #: A request has begun, and is not whole yet.
        self.is_within = False
        #: Its sender wants to be told to go on before it sends the body.
        self.waits_for_word = False

    def feed(self, data: bytes) -> list[Asked]:
        """What is asked by these bytes; to be fed no more after something that is last."""
        self._asked = []
        self._unseen += len(data)
        try:
            self._parser.feed_data(data)
            if self._unseen > self._limits.header_bytes:
                raise self._too_many_header_bytes()
        except (httptools.HttpParserError, ApiError) as error:
            self._add(Asked(_fault(error), is_cut=True))
        return self._asked

    # ------------------------------------- what the parser calls; an ApiError refuses the request

    def on_message_begin(self) -> None:
        """A request begins."""
        self._target, self._body = b"", bytearray()
        self._headers: dict[str, str] = {}
        self._header_count = self._header_bytes = self._unseen = 0
        self._is_in_body = self.waits_for_word = False
        self.is_within = True

    def on_url(self, url: bytes) -> None:
        """A piece of its target."""
        self._target += url
        if len(self._target) > self._limits.target:
            raise HeadersTooLarge(f"the request target has more than {self._limits.target} bytes")

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header; or, behind the body, a trailer, which is counted but not believed."""
        self._unseen = 0
        self._header_count += 1
        self._header_bytes += len(name) + len(value)
        if self._header_bytes > self._limits.header_bytes:
            raise self._too_many_header_bytes()
        if self._header_count > self._limits.headers:
            raise HeadersTooLarge(f"the request has more than {self._limits.headers} headers")
        if not self._is_in_body:
            self._add_header(_lower(name), value.decode("latin-1"))

    def on_headers_complete(self) -> None:
        """All headers are there: what can be refused without the body is refused now."""
        self._is_in_body = True
        self._check_head(self._parser.get_http_version())
        headers = self._headers
        if "content-length" in headers and int(headers["content-length"]) > self._limits.body:
            raise self._too_large()
        self.waits_for_word = headers.get("expect", "").lower() == "100-continue"

    def on_body(self, body: bytes) -> None:
        """A piece of its body."""
        self._unseen = 0
        self._body += body
        if len(self._body) > self._limits.body:
            raise self._too_large()

    def on_message_complete(self) -> None:
        """It is whole."""
        self.is_within = self.waits_for_word = False
        is_old = self._parser.get_http_version() == "1.0"
        method = self._parser.get_method().decode("ascii")
        self._add(
            Asked(
                self._request(method),
                is_last=is_old or not self._parser.should_keep_alive(),
                is_head=method == "HEAD",
                knows_chunks=not is_old,
            )
        )

    def _add(self, asked: Asked) -> None:
        """Keep what is asked, unless it stands behind what was said to be the last."""
        if not self._asked or not self._asked[-1].is_last:
            self._asked.append(asked)

    def _add_header(self, key: str, value: str) -> None:
        if key in self._headers:
            if key in _SINGLE:
                raise BadRequest(f"the request has more than one {key} header")
            value = f"{self._headers[key]}, {value}"
        self._headers[key] = value

    def _check_head(self, version: str) -> None:
        headers = self._headers
        if self._parser.should_upgrade():
            raise BadRequest("protocol upgrades are not supported")
        if version not in ("1.1", "1.0") or (version == "1.1" and "host" not in headers):
            raise BadRequest("this is no HTTP/1.1 request: no such version, or no Host header")
        if "transfer-encoding" in headers and (
            version == "1.0" or headers["transfer-encoding"].lower() != "chunked"
        ):
            raise BadRequest("the only transfer encoding is chunked, and only since HTTP/1.1")
        if headers.get("content-encoding", "identity").lower() != "identity":
            raise UnsupportedMediaType("compressed request bodies are not read")
        if not self._target.startswith(b"/") or not self._target.isascii():
            raise BadRequest("the request target must be a path")

    def _request(self, method: str) -> Request | ApiError:
        try:
            user = self._tokens.identify(self._headers.get("authorization", ""))
        except ApiError as error:
            return error
        path, _, query = self._target.decode("ascii").partition("?")
        return Request(method, path, query, self._headers, bytes(self._body), user)

    def _too_many_header_bytes(self) -> ApiError:
        return HeadersTooLarge(f"the headers have more than {self._limits.header_bytes} bytes")

    def _too_large(self) -> ApiError:
        return TooLarge(f"Request entity too large: limit is {self._limits.body}")


class _Unread(Exception):
    """The client does not read what it is sent."""


class Connection(asyncio.Protocol):
    """One client's connection, among all that are open. `ended` when nothing of it is left."""

    def __init__(
        self, handle: Handler, tokens: Tokens, connections: set[Connection], limits: Limits
    ) -> None:
        self._handle, self._connections, self._limits = handle, connections, limits
        self._loop = asyncio.get_running_loop()
        self._reader = Reader(tokens, limits)
        self._waiting: deque[Asked] = deque()
        self._answering: asyncio.Task[None] | None = None
        self._is_streaming = self._is_lost = False
        # Nothing that comes is heard any more; it may be the rest of what was refused.
        self._is_deaf = self._is_cut = False
        self._dropped = 0
        self._writable = asyncio.Event()
        self._writable.set()
        # Since when the client keeps us waiting, if nothing is being answered.
        self._since = self._loop.time()
        self.ended: asyncio.Future[None] = self._loop.create_future()

    # ------------------------------------------------------------------ what the loop calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client has come."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(_HIGH_WATER)
        self._connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """The client has gone: a watch ends, but what is being done for it is still done."""
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
        is_replying = self._answering is not None and not self._is_streaming
        return is_replying and self._transport.get_extra_info("sslcontext") is None

    def data_received(self, data: bytes) -> None:
        """Bytes have come."""
        if self._is_deaf:
            self._drop(data)
            return
        was_within = self._reader.is_within
        asked = self._reader.feed(data)
        for one in asked:
            self._ask(one)
        if self._reader.is_within and (asked or not was_within):
            self._since = self._loop.time()
        self._encourage()

    def pause_writing(self) -> None:
        """The client reads too slowly."""
        self._writable.clear()

    def resume_writing(self) -> None:
        """The client has caught up."""
        self._writable.set()

    def _drop(self, data: bytes) -> None:
        self._dropped += len(data)
        if self._dropped > self._limits.dropped:
            self._transport.abort()

    def _end(self) -> None:
        self._connections.discard(self)
        self.ended.set_result(None)

    # ----------------------------------------------------------------------------- answering

    def _ask(self, asked: Asked) -> None:
        """Answer now or in its turn; a client that asks far ahead is not read until then."""
        self._is_deaf, self._is_cut = asked.is_last, asked.is_cut
        self._waiting.append(asked)
        if self._answering is None:
            self._answering = self._loop.create_task(self._answer_all())
        elif len(self._waiting) == self._limits.pipelined:
            self._transport.pause_reading()

    async def _answer_all(self) -> None:
        """Answer what waits, one after the other; then listen on, or part."""
        try:
            while self._waiting:
                asked = self._waiting.popleft()
                if len(self._waiting) == self._limits.pipelined - 1:
                    self._transport.resume_reading()
                await self._answer(asked)
        except _Unread:
            _log.warning("cut off a client that does not read")
            self._transport.abort()
        except Exception:
            _log.exception("an answer broke off")
            self._transport.abort()
        finally:
            self._answering = None
            self._rest()

    def _rest(self) -> None:
        """Nothing is under way: wait for the client, or part when all was said."""
        self._since = self._loop.time()
        if self._is_lost:
            self._end()
        elif not self._is_deaf:
            self._encourage()
        elif not self._is_cut:
            self._close()

    def _encourage(self) -> None:
        """Tell a client that asks whether to send its body to do so, when it is its turn."""
        if self._reader.waits_for_word and self._answering is None:
            self._reader.waits_for_word = False
            self._write(b"HTTP/1.1 100 Continue\r\n\r\n")

    async def _answer(self, asked: Asked) -> None:
        answer = await self._answer_to(asked.request)
        if isinstance(answer, Reply):
            await self._write_reply(answer, asked)
            return
        async with contextlib.aclosing(answer.chunks):
            self._is_streaming = True
            await self._write_stream(answer, asked)
            self._is_streaming = False

    async def _answer_to(self, asked: Request | ApiError) -> Reply | Stream:
        if isinstance(asked, ApiError):
            return refusal(asked)
        try:
            return await self._handle(asked)
        except Exception:
            _log.exception("%s %s", asked.method, asked.path)
            return refusal(ServerError("an internal error occurred; the server's log has more"))

    async def _write_reply(self, reply: Reply, asked: Asked) -> None:
        body, is_last = reply.body, self._is_deaf and not self._waiting
        head = b"%bcontent-length: %d\r\n\r\n" % (_head(reply, is_last), len(body))
        if asked.is_head:
            self._write(head)
        elif len(body) <= _PIECE:
            self._write(head + body)
        else:
            self._write(head)
            for piece in _pieces(body):
                self._write(piece)
                await self._drained()
        await self._drained()

    async def _write_stream(self, stream: Stream, asked: Asked) -> None:
        """Write chunks as they come, no faster than they are read.

        A stream is the last answer on its connection, so that reading on, to see the client leave,
        never makes requests queue up behind it.
        """
        self._is_deaf = True
        self._waiting.clear()
        self._transport.resume_reading()
        self._write(b"%b%b\r\n" % (_head(stream, True), _CHUNKED if asked.knows_chunks else b""))
        if asked.is_head or self._is_lost:
            return
        async for chunk in stream.chunks:
            for piece in _pieces(chunk):
                framed = b"%x\r\n%b\r\n" % (len(piece), piece) if asked.knows_chunks else piece
                self._write(framed)
                await self._drained()
        if asked.knows_chunks:
            self._write(b"0\r\n\r\n")

    def _write(self, data: bytes | memoryview) -> None:
        if not self._transport.is_closing():
            self._transport.write(data)

    async def _drained(self) -> None:
        """Wait until the client has read most of what it was sent, if it reads at all."""
        if self._writable.is_set():
            return
        try:
            async with asyncio.timeout(self._limits.unread):
                await self._writable.wait()
        except TimeoutError:
            raise _Unread from None

    # ------------------------------------------------------------------- what the listener calls

    def sweep(self, now: float) -> None:
        """Part with a client that has kept us waiting too long."""
        patience, part = self._patience()
        if self._answering is None and now - self._since > patience:
            part()

    def _patience(self) -> tuple[float, Callable[[], None]]:
        """For how many seconds we wait for this client, and what we do then."""
        if self._transport.is_closing():
            return self._limits.linger, self._transport.abort
        if self._is_deaf:
            return self._limits.linger, self._close
        if self._reader.is_within:
            return self._limits.arrival, self._time_out
        return self._limits.idle, self._close

    def _time_out(self) -> None:
        self._ask(Asked(RequestTimeout("the request took too long to arrive"), is_cut=True))

    def _close(self) -> None:
        self._is_deaf = True
        self._since = self._loop.time()
        if not self._transport.is_closing():
            self._transport.close()

    def stop(self) -> None:
        """End, but for a reply that is being made: that is still written."""
        self._is_deaf, self._is_cut = True, False
        self._waiting.clear()
        if self._answering is None or self._is_streaming:
            self.abort()

    def abort(self) -> None:
        """End, whatever is under way."""
        if self._answering is not None:
            self._answering.cancel()
        self._transport.abort()


def _fault(error: Exception) -> ApiError:
    """What to tell a client whose bytes the parser, or one of the Reader's limits, refused."""
    cause = error.__context__ if isinstance(error, httptools.HttpParserCallbackError) else error
    if isinstance(cause, ApiError):
        return cause
    if isinstance(cause, httptools.HttpParserError):
        return BadRequest(f"this is no HTTP/1.1 request: {cause}")
    _log.error("a request could not be read", exc_info=cause)
    return ServerError("an internal error occurred; the server's log has more")


@lru_cache(maxsize=512)
def _lower(name: bytes) -> str:
    return name.decode("latin-1").lower()


def _pieces(data: bytes) -> Iterator[bytes | memoryview]:
    """Bytes in pieces that are not too long to be written at once; none of nothing."""
    if len(data) <= _PIECE:
        return iter((data,) if data else ())
    view = memoryview(data)
    return (view[at : at + _PIECE] for at in range(0, len(data), _PIECE))


def _head(answer: Reply | Stream, is_last: bool) -> bytes:
    """Status line and headers, up to those that say where the body ends."""
    if answer.headers:
        return _composed(answer.code, answer.kind, answer.headers, is_last)
    return _usual_head(answer.code, answer.kind, is_last)


@lru_cache(maxsize=256)
def _usual_head(code: int, kind: str, is_last: bool) -> bytes:
    return _composed(code, kind, (), is_last)


def _composed(code: int, kind: str, own: tuple[tuple[str, str], ...], is_last: bool) -> bytes:
    said = {name for name, _ in own}
    rows = [("content-type", kind), *(row for row in _USUAL if row[0] not in said), *own]
    if is_last:
        rows.append(("connection", "close"))
    fields = "".join(f"{name}: {value.translate(_CONTROL)}\r\n" for name, value in rows)
    return (_LINES[code] + fields).encode("utf-8", "replace")
