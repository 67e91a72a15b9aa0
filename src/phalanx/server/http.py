"""HTTP/1.1 on a connection: Requests out; Replies and Streams in, as bytes.

Between the network (`listener.py`) and `Server.handle`.

    bytes ─▶ Parser ─▶ Asked ─▶ queue ─▶ one answer at a time, in order ─▶ bytes

A reply leaves in one write; a long one, and a stream, no faster than it is read. What cannot be
understood is answered in its turn, and then nothing more is heard on that connection. Nobody is
waited for without end: neither who sends slowly, nor who does not read, nor who does nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable, Iterator
from functools import lru_cache
from http import HTTPStatus
from typing import cast

from phalanx.api.errors import ApiError, RequestTimeout, ServerError, Timeout
from phalanx.api.wire import Handler, Reply, Request, Stream
from phalanx.server.app import refusal
from phalanx.server.parser import Asked, Limits, Parser, cut_short
from phalanx.server.security.door import Door

_log = logging.getLogger("phalanx.server")

#: Bytes that may wait to be sent before their writer waits too; long answers go in pieces.
_HIGH_WATER, _PIECE = 256 * 1024, 128 * 1024
#: Headers of every answer that does not say otherwise.
_USUAL = (("cache-control", "no-cache, private"), ("x-content-type-options", "nosniff"))
#: What could end a header early becomes a visible mark.
_CONTROL = dict.fromkeys([*range(32), *range(127, 160)], "\N{REPLACEMENT CHARACTER}")
_LINES = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n" for status in HTTPStatus}
_CHUNKED = b"transfer-encoding: chunked\r\n"


class _Unread(Exception):
    """The client does not read what it is sent."""


class Connection(asyncio.Protocol):
    """One client's connection, among all that are open. `ended` when nothing of it is left."""

    def __init__(
        self, handle: Handler, door: Door, connections: set[Connection], limits: Limits
    ) -> None:
        self._handle, self._connections, self._limits = handle, connections, limits
        self._door = door
        self._loop = asyncio.get_running_loop()
        self._parser = Parser(door, limits)
        self._waiting: deque[Asked] = deque()
        self._answering: asyncio.Task[None] | None = None
        self._is_streaming = self._is_lost = False
        # Nothing that comes is heard any more; it may be the rest of what was refused.
        self._is_deaf = self._is_cut = False
        self._dropped = 0
        # Since when something is being done for the client, and whether it was given up.
        self._asked_at: float | None = None
        self._is_overdue = False
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
        self._parser.peer = self._door.peer(transport.get_extra_info("peercert"))
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

    def data_received(self, data: bytes) -> None:
        """Bytes have come."""
        if self._is_deaf:
            self._drop(data)
            return
        was_within = self._parser.is_within
        asked = self._parser.feed(data)
        for one in asked:
            self._ask(one)
        if self._parser.is_within and (asked or not was_within):
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
        self._parser.leave()
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
        except (Exception, asyncio.CancelledError) as error:
            self._break_off(error)
        finally:
            self._answering = None
            self._rest()

    def _break_off(self, error: BaseException) -> None:
        """End, so that what was not said to its end does not look as if it were."""
        self._transport.abort()
        if isinstance(error, _Unread):
            _log.warning("cut off a client that does not read")
        elif isinstance(error, Exception):
            _log.error("an answer broke off", exc_info=error)

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
        if self._parser.waits_for_word and self._answering is None:
            self._parser.waits_for_word = False
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
        self._asked_at = self._loop.time()
        try:
            return await self._handle(asked)
        except asyncio.CancelledError:
            if not self._is_overdue:
                raise
            self._is_overdue = False
            return refusal(Timeout("the request did not come to its end in time"))
        except Exception:
            _log.exception("%s %s", asked.method, asked.path)
            return refusal(ServerError("an internal error occurred; the server's log has more"))
        finally:
            self._asked_at = None

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

    def _write(self, data: bytes) -> None:
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
        elif self._asked_at is not None and now - self._asked_at > self._limits.answer:
            self._give_up()

    def _give_up(self) -> None:
        """Answer without what was asked for: whether it is done is not known."""
        if self._answering is not None and not self._is_overdue:
            self._is_overdue = True
            self._answering.cancel()

    def _patience(self) -> tuple[float, Callable[[], None]]:
        """For how many seconds we wait for this client, and what we do then."""
        if self._transport.is_closing():
            return self._limits.linger, self._transport.abort
        if self._is_deaf:
            return self._limits.linger, self._close
        if self._parser.is_within:
            limits = self._limits
            head = min(limits.head, limits.arrival)
            return limits.arrival if self._parser.is_in_body else head, self._time_out
        return self._limits.idle, self._close

    def _time_out(self) -> None:
        self._ask(cut_short(RequestTimeout("the request took too long to arrive")))

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


def _pieces(data: bytes) -> Iterator[bytes]:
    """Bytes in pieces that are not too long to be written at once; none of nothing."""
    return (data[at : at + _PIECE] for at in range(0, len(data), _PIECE))


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
