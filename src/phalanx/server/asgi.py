"""Bytes in, bytes out: an ASGI application over `Server.handle`.

Reads a body within its limit, finds out who asks, and sends the reply or the chunks of a stream.
Knows no HTTP server; `listener.py` brings one.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from phalanx.api.errors import ApiError, BadRequest, TooLarge
from phalanx.api.wire import Handler, Reply, Request, Stream
from phalanx.server.access import Tokens
from phalanx.server.app import refusal
from phalanx.server.bodies import MAX_BODY

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

_FIXED = ((b"cache-control", b"no-cache, private"), (b"x-content-type-options", b"nosniff"))


class Disconnected(Exception):
    """The client left before its request was whole."""


class Asgi:
    """The application."""

    def __init__(self, handle: Handler, tokens: Tokens) -> None:
        self._handle, self._tokens = handle, tokens

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answer one HTTP request."""
        if scope["type"] != "http":
            return
        with contextlib.suppress(Disconnected):
            try:
                answer = await self._handle(await self._request(scope, receive))
            except ApiError as error:
                answer = refusal(error)
            if isinstance(answer, Stream):
                await _send_stream(answer, receive, send)
            else:
                await _send_reply(answer, send)

    async def _request(self, scope: Message, receive: Receive) -> Request:
        headers = _headers(scope["headers"])
        user = self._tokens.identify(headers.get("authorization", ""))
        body = await _body(headers, receive)
        path, query = scope["raw_path"].decode("ascii"), scope["query_string"].decode("ascii")
        return Request(scope["method"], path, query, headers, body, user)


def _headers(pairs: list[tuple[bytes, bytes]]) -> dict[str, str]:
    headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in pairs}
    if sum(name == b"authorization" for name, _ in pairs) > 1:
        raise BadRequest("more than one Authorization header")
    return headers


async def _body(headers: dict[str, str], receive: Receive) -> bytes:
    if headers.get("content-encoding", "identity") != "identity":
        raise BadRequest("compressed request bodies are not read")
    parts: list[bytes] = []
    size, more = 0, True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Disconnected
        chunk = message.get("body", b"")
        size += len(chunk)
        if size <= MAX_BODY:
            parts.append(chunk)
        more = message.get("more_body", False)
    if size > MAX_BODY:
        raise TooLarge(f"Request entity too large: limit is {MAX_BODY}")
    return b"".join(parts)


def _start(code: int, kind: str, headers: tuple[tuple[str, str], ...]) -> Message:
    pairs = [(b"content-type", kind.encode()), *_FIXED]
    pairs += [(name.encode(), value.encode("utf-8", "replace")) for name, value in headers]
    return {"type": "http.response.start", "status": code, "headers": pairs}


async def _send_reply(reply: Reply, send: Send) -> None:
    start = _start(reply.code, reply.kind, reply.headers)
    start["headers"].append((b"content-length", str(len(reply.body)).encode()))
    await send(start)
    await send({"type": "http.response.body", "body": reply.body})


async def _send_stream(stream: Stream, receive: Receive, send: Send) -> None:
    """Send chunks until the stream ends or the client leaves."""
    await send(_start(stream.code, stream.kind, stream.headers))
    # The client must learn at once that its watch stands, even if nothing happens for an hour.
    await send({"type": "http.response.body", "body": b"", "more_body": True})
    sending = asyncio.ensure_future(_send_chunks(stream, send))
    leaving = asyncio.ensure_future(receive())
    try:
        await asyncio.wait({sending, leaving}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in (sending, leaving):
            task.cancel()
        await asyncio.gather(sending, leaving, return_exceptions=True)


async def _send_chunks(stream: Stream, send: Send) -> None:
    async with contextlib.aclosing(stream.chunks) as chunks:
        async for chunk in chunks:
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
    await send({"type": "http.response.body", "body": b""})
