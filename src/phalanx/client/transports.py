"""How a request reaches a server: the protocol, and the way inside one process.

`http.Http` is its peer over the network; `client.Client` holds one of them and cannot tell which.
Carries, and never reads what it carries.
"""

from __future__ import annotations

from typing import Protocol

from phalanx.api.wire import Handler, Reply, Request, Stream, User


class Transport(Protocol):
    """A way to a server. A refusal is a Reply; only a server that is not there is Unreachable."""

    async def send(self, request: Request) -> Reply | Stream:
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


class InProcess:
    """Straight into a handler, here or at the end of a line; nobody authenticates the user."""

    def __init__(self, handler: Handler, user: User) -> None:
        self._handler, self._user = handler, user

    async def send(self, request: Request) -> Reply | Stream:
        """Ask the handler."""
        method, path, query = request.method, request.path, request.query
        asked = Request(method, path, query, request.headers, request.body, self._user)
        return await self._handler(asked)

    async def close(self) -> None:
        """Nothing is held."""
