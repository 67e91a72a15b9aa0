"""A transport that only reads: whoever holds a client over it cannot change anything by mistake.

Around another transport; lets GET through and nothing else.
"""

from __future__ import annotations

from phalanx.api.wire import Reply, Request, Stream
from phalanx.client.transports import Transport


class ReadOnly:
    """The way to a server for those who look."""

    def __init__(self, inner: Transport) -> None:
        self._inner = inner

    async def send(self, request: Request) -> Reply | Stream:
        """Carry a request that reads; another one is a bug of whoever sends it."""
        if request.method != "GET":
            raise AssertionError(f"{request.method} {request.path} on a way that only reads")
        return await self._inner.send(request)

    async def close(self) -> None:
        """Let go of connections."""
        await self._inner.close()
