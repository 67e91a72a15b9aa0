"""How a request reaches a server: the protocol, and the way inside one process.

`http.Http` is its peer over the network; `client.Client` holds one of them and cannot tell which.
Carries, and never reads what it carries.

A transport that only reads: whoever holds a client over it cannot change anything by mistake.

Around another transport; lets GET through and nothing else.

A way to a server that says, once, what the server forbids: whoever runs a part would not know.

Around another transport. Loops try again what was refused, for ever; a missing right is for a
person to give. What they may not read, informers tell themselves.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from phalanx.api.errors import Forbidden
from phalanx.api.wire import Handler, Reply, Request, StreamReply, UserInfo
from phalanx.client.protocol import error_from_reply


class Transport(Protocol):
    """A way to a server. A refusal is a Reply; only a server that is not there is Unreachable."""

    async def send(self, request: Request) -> Reply | StreamReply:
        """Carry one request there and its answer back."""
        ...

    async def close(self) -> None:
        """Let go of connections."""
        ...


class Unreachable(Exception):
    """No answer came, or only half of one. Whether the request was carried out is not known."""

    def __init__(self, server: str, cause: str) -> None:
        super().__init__(f"cannot reach {server}: {cause}")
        self.server, self.cause = server, cause


class InProcessTransport:
    """Straight into a handler, here or at the end of a line; nobody authenticates the user."""

    def __init__(self, handler: Handler, user: UserInfo) -> None:
        self._handler, self._user = handler, user

    async def send(self, request: Request) -> Reply | StreamReply:
        """Ask the handler."""
        method, path, query = request.method, request.path, request.query
        asked = Request(method, path, query, request.headers, request.body, self._user)
        return await self._handler(asked)

    async def close(self) -> None:
        """Nothing is held."""


class ReadOnlyTransport:
    """The way to a server for those who look."""

    def __init__(self, inner: Transport) -> None:
        self._inner = inner

    async def send(self, request: Request) -> Reply | StreamReply:
        """Carry a request that reads; another one is a bug of whoever sends it."""
        if request.method != "GET":
            raise AssertionError(f"{request.method} {request.path} on a way that only reads")
        return await self._inner.send(request)

    async def close(self) -> None:
        """Let go of connections."""
        await self._inner.close()


#: Different refusals that are told; more would be noise.
_MAX_REPORTED = 100


class DenialReportingTransport:
    """Carries like the transport inside it, and says what was forbidden."""

    def __init__(self, inner: Transport, report: Callable[[str], None]) -> None:
        self._inner, self._report = inner, report
        self._reported: set[str] = set()

    async def send(self, request: Request) -> Reply | StreamReply:
        """Carry one request there and its answer back."""
        answer = await self._inner.send(request)
        if isinstance(answer, Reply) and answer.code == Forbidden.code and request.method != "GET":
            self._report_once(str(error_from_reply(answer)))
        return answer

    async def close(self) -> None:
        """Let go of connections."""
        await self._inner.close()

    def _report_once(self, text: str) -> None:
        # The same right is missing for objects of all names.
        right = text.rpartition("is forbidden: ")[2]
        if right not in self._reported and len(self._reported) < _MAX_REPORTED:
            self._reported.add(right)
            self._report(text)
