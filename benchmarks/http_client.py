"""A minimal HTTP client.

A benchmark shares its machine with the measured server, so its own work must be small.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import Any, cast
from urllib.parse import quote

import httptools

from tools.control_plane import Access

JSON = "application/json"
CONNECTIONS = 8

#: Method, path, body and content type.
Call = tuple[str, str, bytes, str]
#: Processes the next chunk of a reply; returns true when it needs no more.
ChunkHandler = Callable[[bytes], bool | None]


class HttpConnection(asyncio.Protocol):
    """One keep-alive connection with one request at a time."""

    def __init__(self, access: Access) -> None:
        self._head = (
            f"Host: {access.host}:{access.port}\r\nAuthorization: Bearer {access.token}\r\n"
            f"Accept: {JSON}\r\n"
        )
        self._parser = httptools.HttpResponseParser(self)
        self._begun: Callable[[], object] = lambda: None
        self._code: asyncio.Future[int] | None = None

    @classmethod
    async def open(cls, access: Access) -> HttpConnection:
        """Connect to a server."""
        loop = asyncio.get_running_loop()
        _, wire = await loop.create_connection(
            lambda: cls(access), access.host, access.port, ssl=access.tls()
        )
        return wire

    async def call(
        self, method: str, path: str, body: bytes = b"", kind: str = JSON
    ) -> tuple[int, bytes]:
        """Send one request; return status code and body."""
        pieces: list[bytes] = []
        code = await self._exchange(method, path, body, kind=kind, take=pieces.append)
        return code, b"".join(pieces)

    async def stream(
        self, path: str, take: ChunkHandler, begun: Callable[[], object] = lambda: None
    ) -> None:
        """Send a GET; pass the reply to `take` in chunks until it ends or `take` returns true."""
        self._begun = begun
        try:
            await self._exchange("GET", path, b"", kind=JSON, take=take)
        except ConnectionError:
            return

    def close(self) -> None:
        """Close the connection."""
        self._transport.abort()

    def _exchange(
        self, method: str, path: str, body: bytes, *, kind: str, take: ChunkHandler
    ) -> asyncio.Future[int]:
        head = f"{method} {path} HTTP/1.1\r\n{self._head}"
        if body:
            head += f"Content-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
        code = asyncio.get_running_loop().create_future()
        self._on_chunk, self._code = take, code
        self._transport.write(f"{head}\r\n".encode() + body)
        return code

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def connection_lost(self, error: Exception | None) -> None:
        if self._code and not self._code.done():
            self._code.set_exception(ConnectionError("the server hung up"))

    def on_headers_complete(self) -> None:
        self._begun()

    def on_body(self, piece: bytes) -> None:
        if self._on_chunk(piece):
            self.close()

    def on_message_complete(self) -> None:
        assert self._code is not None
        self._code.set_result(self._parser.get_status_code())


async def open_connections(access: Access, count: int) -> list[HttpConnection]:
    """Open a number of connections."""
    return [await HttpConnection.open(access) for _ in range(count)]


async def send_over(wires: Sequence[HttpConnection], calls: Iterable[Call]) -> list[float]:
    """Send every request, one at a time per connection; return the seconds of each.

    An unsuccessful reply ends the run.
    """
    turn, seconds = iter(calls), []

    async def work(wire: HttpConnection) -> None:
        for call in turn:
            begin = time.perf_counter()
            code, answer = await wire.call(*call)
            seconds.append(time.perf_counter() - begin)
            if code >= 300:
                raise RuntimeError(f"{call[0]} {call[1]}: {code} {answer[:300]!r}")

    await asyncio.gather(*(work(wire) for wire in wires))
    return seconds


async def send_all(access: Access, calls: Iterable[Call], connections: int = CONNECTIONS) -> None:
    """Send every request on several new connections."""
    wires = await open_connections(access, connections)
    await send_over(wires, calls)
    for wire in wires:
        wire.close()


async def pages(wire: HttpConnection, path: str) -> AsyncIterator[dict[str, Any]]:
    """Yield a collection page by page."""
    more = ""
    while True:
        page: dict[str, Any] = json.loads((await wire.call("GET", f"{path}?limit=500{more}"))[1])
        yield page
        token = page["metadata"].get("continue")
        if not token:
            return
        more = f"&continue={quote(token)}"
