"""A wire between clients and a server that is cut again and again, wherever it happens to be."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
from collections.abc import AsyncIterator

_LOCAL = "127.0.0.1"
_PIECE = 16 * 1024


class Wire:
    """Carries bytes to and from a port; each connection ends after a number of bytes by lot.

    The ends of a connection learn of the cut as of any other: in the middle of a record, of a
    chunk, of a line.
    """

    def __init__(self, port: int, lots: random.Random, shortest: int, longest: int) -> None:
        self.cuts = 0
        self._port, self._lots, self._lengths = port, lots, (shortest, longest)

    @contextlib.asynccontextmanager
    async def strung(self) -> AsyncIterator[int]:
        """The port of the near end, for as long as the context lasts."""
        near = socket.create_server((_LOCAL, 0))
        # What a client does not read is to weigh on the server, not to lie in buffers here.
        near.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _PIECE)
        async with await asyncio.start_server(self._carry, sock=near, limit=_PIECE):
            yield near.getsockname()[1]

    async def _carry(self, near: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        shortest, longest = self._lengths
        length = int(shortest * (longest / shortest) ** self._lots.random())
        far, forth = await asyncio.open_connection(_LOCAL, self._port, limit=_PIECE)
        sending = asyncio.create_task(_pump(near, forth, 0))
        try:
            was_cut = await _pump(far, back, length)
            self.cuts += was_cut
        finally:
            sending.cancel()
            for end in (back, forth):
                end.transport.abort()
            await asyncio.wait([sending])


async def _pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter, length: int) -> bool:
    """Carry so many bytes, or all; whether that was less than there were to carry."""
    carried = 0
    with contextlib.suppress(OSError):
        while data := await source.read(_PIECE):
            if length and carried + len(data) > length:
                sink.write(data[: length - carried])
                return True
            carried += len(data)
            sink.write(data)
            await sink.drain()
    return False
