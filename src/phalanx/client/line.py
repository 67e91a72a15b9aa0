"""A line between two processes that trust each other: requests and answers both ways, multiplexed.

`Line.ask` is a handler like any other, which `transports.InProcess` can be given, but the one who
answers is the handler in the process at the other end of a pair of sockets: no HTTP, no TLS, no
credential, as nobody else holds an end of it. Whoever asks says as whom.

    ask ─▶ Ask ══▶ handler ─▶ Answer, or Answer and Pieces ══▶ Reply, or Stream

Carries, and never reads what it carries. When the other process ends, so does the line.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncGenerator
from contextlib import aclosing
from functools import partial
from typing import cast

import msgspec
import orjson

from phalanx.api.wire import Handler, Reply, Request, Stream, User
from phalanx.client.transports import Unreachable

#: Bytes of a stream that may wait for their reader; whoever reads more slowly loses the stream.
UNREAD = 64 << 20
#: Bytes that may wait to be sent before streams wait too.
_HIGH_WATER = 1 << 20
#: Bytes of the number before each frame that says how long it is.
_LENGTH = 4
_OTHER = "the other process"

Headers = tuple[tuple[str, str], ...]


class Ask(msgspec.Struct, frozen=True, array_like=True, tag=1, gc=False):
    """A request, under a number."""

    call: int
    method: str
    path: str
    query: str
    headers: dict[str, str]
    body: bytes
    user: User


class Answer(msgspec.Struct, frozen=True, array_like=True, tag=2, gc=False):
    """A whole answer or, where there is no body, the head of a stream."""

    call: int
    code: int
    kind: str
    headers: Headers
    body: bytes | None


class Piece(msgspec.Struct, frozen=True, array_like=True, tag=3, gc=False):
    """The next piece of a stream; an empty one ends it."""

    call: int
    data: bytes


class Close(msgspec.Struct, frozen=True, array_like=True, tag=4, gc=False):
    """No more of an answer is wanted."""

    call: int


Frame = Ask | Answer | Piece | Close
_decoder = msgspec.msgpack.Decoder(Frame)
_encode = msgspec.msgpack.Encoder().encode


class Line(asyncio.Protocol):
    """One end. `ended` when the other process has gone, or the line was closed."""

    def __init__(self, handler: Handler) -> None:
        self._handler, self._calls = handler, 0
        self._heard = bytearray()
        self._said: list[bytes] = []
        self._asked: dict[int, asyncio.Future[Answer]] = {}
        self._streams: dict[int, _Inbox] = {}
        self._answering: dict[int, asyncio.Task[None]] = {}
        self._streaming: set[int] = set()
        self._writable = asyncio.Event()
        self._writable.set()
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @classmethod
    async def over(cls, sock: socket.socket, handler: Handler) -> Line:
        """The end that a socket of a pair is."""
        loop = asyncio.get_running_loop()
        _, line = await loop.create_unix_connection(lambda: cls(handler), sock=sock)
        return line

    # ------------------------------------------------------------------------------- asking

    async def ask(self, request: Request) -> Reply | Stream:
        """Carry a request to the other end's handler, and its answer back."""
        if self.ended.done():
            raise Unreachable(_OTHER, "it has ended")
        self._calls = call = self._calls + 1
        self._asked[call] = answered = asyncio.get_running_loop().create_future()
        self._send(_asking(call, request))
        try:
            answer = await answered
        except asyncio.CancelledError:
            self._leave(call)
            raise
        if answer.body is not None:
            return Reply(answer.code, answer.body, answer.kind, answer.headers)
        return Stream(answer.code, self._chunks(call), answer.kind, answer.headers)

    async def _chunks(self, call: int) -> AsyncGenerator[bytes, None]:
        inbox = self._streams[call]
        try:
            while data := await inbox.take():
                yield data
        finally:
            self._leave(call)

    def _leave(self, call: int) -> None:
        """Want no more of an answer."""
        if self._asked.pop(call, None) or self._streams.pop(call, None):
            self._send(Close(call))

    # ---------------------------------------------------------------------------- answering

    async def _answer(self, ask: Ask) -> None:
        request = Request(ask.method, ask.path, ask.query, ask.headers, ask.body, ask.user)
        answer = await self._handler(request)
        if isinstance(answer, Reply):
            self._send(Answer(ask.call, answer.code, answer.kind, answer.headers, answer.body))
            return
        self._streaming.add(ask.call)
        self._send(Answer(ask.call, answer.code, answer.kind, answer.headers, None))
        async with aclosing(answer.chunks) as chunks:
            async for chunk in chunks:
                self._send(Piece(ask.call, chunk))
                await self._writable.wait()
        self._send(Piece(ask.call, b""))

    def _answered(self, call: int, task: asyncio.Task[None]) -> None:
        del self._answering[call]
        self._streaming.discard(call)
        if not task.cancelled():
            # A handler answers whatever happens; one that does not is a bug and must be seen.
            task.result()

    # ---------------------------------------------------------------------------- the frames

    def _send(self, frame: Frame) -> None:
        """Have a frame sent with all others of this turn of the loop: each time wakes a process."""
        if not self._said:
            asyncio.get_running_loop().call_soon(self._flush)
        packed = _encode(frame)
        self._said += (len(packed).to_bytes(_LENGTH, "big"), packed)

    def _flush(self) -> None:
        said, self._said = self._said, []
        if not self._transport.is_closing():
            self._transport.writelines(said)

    def _take(self, frame: Frame) -> None:
        match frame:
            case Ask():
                task = asyncio.get_running_loop().create_task(self._answer(frame))
                self._answering[frame.call] = task
                task.add_done_callback(partial(self._answered, frame.call))
            case Answer():
                self._hear(frame)
            case Piece():
                if inbox := self._streams.get(frame.call):
                    inbox.put(frame.data)
            case Close():
                # What is being done is still done; a watch ends.
                if frame.call in self._streaming:
                    self._answering[frame.call].cancel()

    def _hear(self, answer: Answer) -> None:
        if asked := self._asked.pop(answer.call, None):
            if answer.body is None:
                self._streams[answer.call] = _Inbox()
            asked.set_result(answer)

    # -------------------------------------------------------------------- what the loop calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The line stands."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(_HIGH_WATER)

    def data_received(self, data: bytes) -> None:
        """Frames have come, of which the last may not be whole."""
        self._heard += data
        at, size = 0, len(self._heard)
        with memoryview(self._heard) as view:
            while size - at >= _LENGTH:
                begin = at + _LENGTH
                end = begin + int.from_bytes(view[at:begin], "big")
                if end > size:
                    break
                self._take(_decoder.decode(view[begin:end]))
                at = end
        del self._heard[:at]

    def pause_writing(self) -> None:
        """The other end reads too slowly."""
        self._writable.clear()

    def resume_writing(self) -> None:
        """The other end has caught up."""
        self._writable.set()

    def connection_lost(self, exc: Exception | None) -> None:
        """The other process has gone: whoever waits for it is told, what it wanted is let be."""
        self._writable.set()
        for asked in self._asked.values():
            asked.set_exception(Unreachable(_OTHER, "it has ended"))
        for inbox in self._streams.values():
            inbox.cut(Unreachable(_OTHER, "it has ended"))
        for call in self._streaming:
            self._answering[call].cancel()
        self._asked.clear()
        if not self.ended.done():
            self.ended.set_result(None)

    def close(self) -> None:
        """Hang up, when all is said."""
        self._flush()
        self._transport.close()


class _Inbox:
    """What has come of a stream and was not taken yet."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._size, self._trouble = 0, cast("Unreachable | None", None)
        self._came = asyncio.Event()

    def put(self, data: bytes) -> None:
        """A piece has come; of a stream that was cut nothing is kept."""
        if self._trouble:
            return
        self._pieces.append(data)
        self._size += len(data)
        if self._size > UNREAD:
            self.cut(Unreachable(_OTHER, "what it sent was not read"))
        self._came.set()

    def cut(self, trouble: Unreachable) -> None:
        """Nothing more will come, and what came is not all."""
        self._trouble = trouble
        self._pieces.clear()
        self._came.set()

    async def take(self) -> bytes:
        """All that has come since the last time; nothing at the end."""
        await self._came.wait()
        self._came.clear()
        if self._trouble:
            raise self._trouble
        is_over = not self._pieces[-1]
        data = b"".join(self._pieces)
        self._pieces, self._size = [b""] if is_over and data else [], 0
        if self._pieces:
            self._came.set()
        return data


def _asking(call: int, request: Request) -> Ask:
    method, path, query, headers = request.method, request.path, request.query, request.headers
    body = orjson.dumps(request.body) if isinstance(request.body, dict) else request.body
    return Ask(call, method, path, query, dict(headers), body, request.user)
