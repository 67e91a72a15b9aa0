"""A channel between two processes that trust each other: multiplexed requests in both directions.

`ProcessChannel.request` is a handler, which `InProcessTransport` can use; the handler in the
process at the other end of a socket pair answers. There is no HTTP, TLS or credential, because no
other process has an end of the channel; the requesting process names the user.

    request ─▶ RequestFrame ══▶ handler ─▶ ReplyFrame, ChunkFrames ══▶ Reply, or StreamReply

The channel never interprets what it carries. It ends with the other process.
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

from phalanx import logs
from phalanx.api.wire import Handler, Reply, Request, StreamReply, UserInfo
from phalanx.client.transports import Unreachable

LOG = logs.component("client")

#: Bytes of a stream that may be buffered; a slower reader loses the stream.
MAX_UNREAD_BYTES = 64 << 20
#: Bytes that may wait to be sent before streams are paused.
_HIGH_WATER = 1 << 20
#: Bytes of the length prefix of a frame.
_LENGTH_BYTES = 4
_PEER = "the other process"

Headers = tuple[tuple[str, str], ...]


class RequestFrame(msgspec.Struct, frozen=True, array_like=True, tag=1, gc=False):
    """A request with its call number."""

    call: int
    method: str
    path: str
    query: str
    headers: dict[str, str]
    body: bytes
    user: UserInfo


class ReplyFrame(msgspec.Struct, frozen=True, array_like=True, tag=2, gc=False):
    """A whole reply or, without a body, the head of a stream."""

    call: int
    code: int
    content_type: str
    headers: Headers
    body: bytes | None


class ChunkFrame(msgspec.Struct, frozen=True, array_like=True, tag=3, gc=False):
    """The next chunk of a stream; an empty one ends it."""

    call: int
    data: bytes


class CloseFrame(msgspec.Struct, frozen=True, array_like=True, tag=4, gc=False):
    """The caller has cancelled a call: the rest of its reply need not be sent."""

    call: int


Frame = RequestFrame | ReplyFrame | ChunkFrame | CloseFrame
_FRAME_DECODER = msgspec.msgpack.Decoder(Frame)
_encode_frame = msgspec.msgpack.Encoder().encode


class ProcessChannel(asyncio.Protocol):
    """One end of a channel; `closed` is done when the other process is gone or it was closed."""

    def __init__(self, handler: Handler) -> None:
        self._handler, self._calls = handler, 0
        self._receive_buffer = bytearray()
        self._send_buffer: list[bytes] = []
        self._pending_calls: dict[int, asyncio.Future[ReplyFrame]] = {}
        self._incoming_streams: dict[int, _StreamBuffer] = {}
        self._handler_tasks: dict[int, asyncio.Task[None]] = {}
        self._outgoing_streams: set[int] = set()
        self._writable = asyncio.Event()
        self._writable.set()
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @classmethod
    async def connect(cls, sock: socket.socket, handler: Handler) -> ProcessChannel:
        """Return the channel over one socket of a pair."""
        loop = asyncio.get_running_loop()
        _, channel = await loop.create_unix_connection(lambda: cls(handler), sock=sock)
        return channel

    # ----------------------------------------------------------------------------- requesting

    async def request(self, request: Request) -> Reply | StreamReply:
        """Send a request to the handler at the other end and return its reply."""
        if self.closed.done():
            raise Unreachable(_PEER, "it has ended")
        self._calls = call = self._calls + 1
        self._pending_calls[call] = future = asyncio.get_running_loop().create_future()
        body = orjson.dumps(request.body) if isinstance(request.body, dict) else request.body
        self._send_frame(
            RequestFrame(
                call,
                request.method,
                request.path,
                query=request.query,
                headers=dict(request.headers),
                body=body,
                user=request.user,
            )
        )
        try:
            reply = await future
        except asyncio.CancelledError:
            self._abandon(call)
            raise
        if reply.body is not None:
            return Reply(reply.code, reply.body, reply.content_type, reply.headers)
        return StreamReply(reply.code, self._chunks(call), reply.content_type, reply.headers)

    async def _chunks(self, call: int) -> AsyncGenerator[bytes, None]:
        inbox = self._incoming_streams[call]
        try:
            while data := await inbox.take():
                yield data
        finally:
            self._abandon(call)

    def _abandon(self, call: int) -> None:
        """Give up a call."""
        if self._pending_calls.pop(call, None) or self._incoming_streams.pop(call, None):
            self._send_frame(CloseFrame(call))

    # ---------------------------------------------------------------------------- answering

    async def _handle_request(self, frame: RequestFrame) -> None:
        request = Request(
            frame.method,
            frame.path,
            frame.query,
            headers=frame.headers,
            body=frame.body,
            user=frame.user,
        )
        reply = await self._handler(request)
        if isinstance(reply, Reply):
            self._send_frame(
                ReplyFrame(
                    frame.call,
                    reply.code,
                    reply.content_type,
                    headers=reply.headers,
                    body=reply.body,
                )
            )
            return
        self._outgoing_streams.add(frame.call)
        self._send_frame(
            ReplyFrame(frame.call, reply.code, reply.content_type, headers=reply.headers, body=None)
        )
        async with aclosing(reply.chunks) as chunks:
            async for chunk in chunks:
                self._send_frame(ChunkFrame(frame.call, chunk))
                await self._writable.wait()
        self._send_frame(ChunkFrame(frame.call, b""))

    def _on_handled(self, call: int, task: asyncio.Task[None]) -> None:
        del self._handler_tasks[call]
        self._outgoing_streams.discard(call)
        if not task.cancelled():
            # A handler returns errors as replies; one that raises is a bug and must surface.
            task.result()

    # ------------------------------------------------------------------------------- frames

    def _send_frame(self, frame: Frame) -> None:
        """Send a frame with all others of this loop iteration: each write wakes a process."""
        if not self._send_buffer:
            asyncio.get_running_loop().call_soon(self._flush)
        packed = _encode_frame(frame)
        self._send_buffer += (len(packed).to_bytes(_LENGTH_BYTES, "big"), packed)

    def _flush(self) -> None:
        frames, self._send_buffer = self._send_buffer, []
        if not self._transport.is_closing():
            self._transport.writelines(frames)

    def _receive_frame(self, frame: Frame) -> None:
        match frame:
            case RequestFrame():
                task = asyncio.get_running_loop().create_task(self._handle_request(frame))
                self._handler_tasks[frame.call] = task
                task.add_done_callback(partial(self._on_handled, frame.call))
            case ReplyFrame():
                self._receive_reply(frame)
            case ChunkFrame():
                if inbox := self._incoming_streams.get(frame.call):
                    inbox.put(frame.data)
            case CloseFrame():
                # A stream is cancelled. A request without a reply so far is handled to its end.
                if frame.call in self._outgoing_streams:
                    self._handler_tasks[frame.call].cancel()

    def _receive_reply(self, reply: ReplyFrame) -> None:
        future = self._pending_calls.get(reply.call)
        # A cancelled call stays pending until its task runs and abandons it.
        if future and not future.done():
            del self._pending_calls[reply.call]
            if reply.body is None:
                self._incoming_streams[reply.call] = _StreamBuffer()
            future.set_result(reply)

    # ------------------------------------------------------------------- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The channel is connected."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(_HIGH_WATER)

    def data_received(self, data: bytes) -> None:
        """Frames have arrived; the last one may be incomplete."""
        self._receive_buffer += data
        at, size = 0, len(self._receive_buffer)
        with memoryview(self._receive_buffer) as view:
            while size - at >= _LENGTH_BYTES:
                begin = at + _LENGTH_BYTES
                end = begin + int.from_bytes(view[at:begin], "big")
                if end > size:
                    break
                self._receive_frame(_FRAME_DECODER.decode(view[begin:end]))
                at = end
        del self._receive_buffer[:at]

    def pause_writing(self) -> None:
        """The other end reads too slowly."""
        self._writable.clear()

    def resume_writing(self) -> None:
        """The other end has caught up."""
        self._writable.set()

    def connection_lost(self, exc: Exception | None) -> None:
        """The other process is gone: pending calls fail, streams to it are cancelled."""
        self._writable.set()
        for future in self._pending_calls.values():
            if not future.done():
                future.set_exception(Unreachable(_PEER, "it has ended"))
        for inbox in self._incoming_streams.values():
            inbox.fail(Unreachable(_PEER, "it has ended"))
        for call in self._outgoing_streams:
            self._handler_tasks[call].cancel()
        self._pending_calls.clear()
        if not self.closed.done():
            self.closed.set_result(None)

    def close(self) -> None:
        """Close after all pending frames are sent."""
        self._flush()
        self._transport.close()

    async def finish(self, grace: float) -> None:
        """Close, and return when the requests of the other process are handled.

        What takes longer than `grace` seconds is cancelled: the last frames to a process that
        does not read them, and requests.
        """
        self.close()
        await asyncio.wait([self.closed], timeout=grace)
        self._transport.abort()
        await self.closed
        if tasks := list(self._handler_tasks.values()):
            _, late = await asyncio.wait(tasks, timeout=grace)
            if late:
                LOG.warning("requests of the other process cancelled", count=len(late))
            for task in late:
                task.cancel()


class _StreamBuffer:
    """The chunks of a stream that were not read yet."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._size, self._error = 0, cast("Unreachable | None", None)
        self._has_data = asyncio.Event()

    def put(self, data: bytes) -> None:
        """Append a chunk; a stream that was cut ignores it."""
        if self._error:
            return
        self._pieces.append(data)
        self._size += len(data)
        if self._size > MAX_UNREAD_BYTES:
            self.fail(Unreachable(_PEER, "what it sent was not read"))
        self._has_data.set()

    def fail(self, error: Unreachable) -> None:
        """End the stream with an error."""
        self._error = error
        self._pieces.clear()
        self._has_data.set()

    async def take(self) -> bytes:
        """Return all chunks since the last call; nothing at the end."""
        await self._has_data.wait()
        self._has_data.clear()
        if self._error:
            raise self._error
        is_over = not self._pieces[-1]
        data = b"".join(self._pieces)
        self._pieces, self._size = [b""] if is_over and data else [], 0
        if self._pieces:
            self._has_data.set()
        return data
