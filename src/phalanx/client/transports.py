"""How a request reaches a server.

    InProcessTransport          calls a handler in this process, or over a ProcessChannel
    http.HttpTransport          HTTPS
    ReadOnlyTransport           wraps a transport and lets only GET through
    DenialReportingTransport    wraps a transport and reports each missing right to write once
    RateLimitedTransport        wraps a transport and sends a limited number of requests per second

A `Client` holds one of them and does not know which. Transports never interpret what they carry,
except for the denials. These are reported because controllers retry forbidden requests without an
end, and only a person can grant a missing right; informers report missing read rights themselves.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from math import inf
from typing import Protocol

from msgspec.structs import replace

from phalanx.api.errors import Forbidden
from phalanx.api.wire import Handler, Reply, Request, StreamReply, UserInfo
from phalanx.client.protocol import error_from_reply, is_watch


class Transport(Protocol):
    """Sends requests to a server. An error is a Reply; without a server it raises Unreachable."""

    async def send(self, request: Request) -> Reply | StreamReply:
        """Send one request and return its reply."""
        ...

    async def close(self) -> None:
        """Close connections."""
        ...


class Unreachable(Exception):
    """No reply, or a partial one, was received. The request may or may not have been executed.

    `is_down` is false if the cause shows nothing about whether the server runs: its certificate is
    not trusted, or there is no credential for it.
    """

    def __init__(self, server: str, cause: str, *, is_down: bool = True) -> None:
        super().__init__(f"cannot reach {server}: {cause}")
        self.server, self.cause, self.is_down = server, cause, is_down


class InProcessTransport:
    """Calls a handler directly, as a given user."""

    def __init__(self, handler: Handler, user: UserInfo) -> None:
        self._handler, self._user = handler, user

    async def send(self, request: Request) -> Reply | StreamReply:
        """Call the handler."""
        return await self._handler(replace(request, user=self._user))

    async def close(self) -> None:
        """Close nothing."""


class ReadOnlyTransport:
    """A transport for commands that only read."""

    def __init__(self, inner: Transport) -> None:
        self._inner = inner

    async def send(self, request: Request) -> Reply | StreamReply:
        """Send a GET request; any other is a bug of the caller."""
        if request.method != "GET":
            raise AssertionError(f"{request.method} {request.path} on a read-only transport")
        return await self._inner.send(request)

    async def close(self) -> None:
        """Close connections."""
        await self._inner.close()


class RateLimitedTransport:
    """Sends at most `qps` requests per second, and `burst` at once after a pause.

    Requests beyond that wait. Watches and Leases do not: a leader that waits to renew its Lease
    would lose it.
    """

    def __init__(self, inner: Transport, qps: float, burst: int) -> None:
        self._inner, self._interval, self._burst = inner, 1 / qps, burst
        #: When the next request may be sent if no burst is left.
        self._next_time = -inf

    async def send(self, request: Request) -> Reply | StreamReply:
        """Send one request, as soon as the limit allows."""
        if not is_watch(request) and "/leases" not in request.path:
            now = asyncio.get_running_loop().time()
            start = max(self._next_time, now - self._interval * (self._burst - 1))
            self._next_time = start + self._interval
            if start > now:
                await asyncio.sleep(start - now)
        return await self._inner.send(request)

    async def close(self) -> None:
        """Close connections."""
        await self._inner.close()


#: Maximum number of distinct denials that are reported.
_MAX_REPORTED = 100


class DenialReportingTransport:
    """Sends requests over another transport and reports forbidden writes."""

    def __init__(self, inner: Transport, report: Callable[[str], None]) -> None:
        self._inner, self._report = inner, report
        self._reported: set[str] = set()

    async def send(self, request: Request) -> Reply | StreamReply:
        """Send one request and return its reply."""
        reply = await self._inner.send(request)
        if isinstance(reply, Reply) and reply.code == Forbidden.code and request.method != "GET":
            self._report_once(str(error_from_reply(reply)))
        return reply

    async def close(self) -> None:
        """Close connections."""
        await self._inner.close()

    def _report_once(self, text: str) -> None:
        # The same right is missing for objects of every name.
        right = text.rpartition("is forbidden: ")[2]
        if right not in self._reported and len(self._reported) < _MAX_REPORTED:
            self._reported.add(right)
            self._report(text)
