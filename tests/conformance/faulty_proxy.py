"""A wire between clients and a server that is cut again and again, wherever it happens to be."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
from collections.abc import AsyncIterator

_LOCAL = "127.0.0.1"
_CHUNK_BYTES = 16 * 1024


class FaultyProxy:
    """Carries bytes to and from a port; each connection ends after a number of bytes by lot.

    The ends of a connection learn of the cut as of any other: in the middle of a record, of a
    chunk, of a line.
    """

    def __init__(self, port: int, rng: random.Random, shortest: int, longest: int) -> None:
        self.cuts = 0
        self._port, self._rng, self._lengths = port, rng, (shortest, longest)
        # Whoever carries is kept here: the loop alone does not.
        self._carriers: set[asyncio.Task[None]] = set()

    @contextlib.asynccontextmanager
    async def listen(self) -> AsyncIterator[int]:
        """The port of the near end, for as long as the context lasts."""
        near = socket.create_server((_LOCAL, 0))
        # What a client does not read is to weigh on the server, not to lie in buffers here.
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
        """Carry both ways until one end lets go or the length is used up, then let go of both."""
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
