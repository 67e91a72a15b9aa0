"""A proxy between clients and a server that cuts connections at random positions."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
from collections.abc import AsyncIterator

_LOCAL = "127.0.0.1"
_CHUNK_BYTES = 16 * 1024


class FaultyProxy:
    """Forwards bytes to and from a port; each connection ends after a random number of bytes.

    Both ends see the cut like any other: in the middle of a TLS record, a chunk or a line.
    """

    def __init__(self, port: int, rng: random.Random, shortest: int, longest: int) -> None:
        self.cuts = 0
        self._port, self._rng, self._lengths = port, rng, (shortest, longest)
        # The event loop keeps no reference to tasks.
        self._carriers: set[asyncio.Task[None]] = set()

    @contextlib.asynccontextmanager
    async def listen(self) -> AsyncIterator[int]:
        """Listen while the context lasts; the port."""
        near = socket.create_server((_LOCAL, 0))
        # Unread data must block the server and not be buffered here.
        near.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _CHUNK_BYTES)
        server = await asyncio.start_server(self._open, sock=near, limit=_CHUNK_BYTES)
        try:
            yield near.getsockname()[1]
        finally:
            server.close()
            for carrier in self._carriers:
                carrier.cancel()
            await asyncio.gather(*self._carriers, return_exceptions=True)

    def _open(self, near: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        shortest, longest = self._lengths
        length = int(shortest * (longest / shortest) ** self._rng.random())
        carrier = asyncio.create_task(self._carry(near, back, length))
        self._carriers.add(carrier)
        carrier.add_done_callback(self._carriers.discard)

    async def _carry(
        self, near: asyncio.StreamReader, back: asyncio.StreamWriter, length: int
    ) -> None:
        """Forward both ways until one end closes or the length is used up, then close both."""
        far, forth = await asyncio.open_connection(_LOCAL, self._port, limit=_CHUNK_BYTES)
        asking = asyncio.create_task(_pump(near, forth, None))
        answering = asyncio.create_task(_pump(far, back, length))
        try:
            await asyncio.wait([asking, answering], return_when=asyncio.FIRST_COMPLETED)
            self.cuts += answering.done() and answering.result()
        finally:
            for end in (back, forth):
                end.transport.abort()
            for pump in (asking, answering):
                pump.cancel()
            await asyncio.wait([asking, answering])


async def _pump(
    source: asyncio.StreamReader, sink: asyncio.StreamWriter, length: int | None
) -> bool:
    """Carry so many bytes, or all; whether that was less than there were to carry."""
    carried = 0
    with contextlib.suppress(OSError):
        while data := await source.read(_CHUNK_BYTES):
            if length is not None and carried + len(data) > length:
                sink.write(data[: length - carried])
                return True
            carried += len(data)
            sink.write(data)
            await sink.drain()
    return False
