"""The whole control plane on one event loop: a server and its crew.

Stands above `server/` and `crew.py`, and below `sim/` and `cli/`, which run it in virtual time or
on the network.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

from phalanx.api.wire import User
from phalanx.chance import Chance
from phalanx.client.client import Client
from phalanx.client.transports import InProcess
from phalanx.clock import Clock
from phalanx.crew import Crew, Staff
from phalanx.server.access import MASTERS, Tokens
from phalanx.server.app import Server
from phalanx.store.kv import Store

_ALL = Staff()


class ControlPlane:
    """Everything that makes a cluster, wired together."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        chance: Chance,
        staff: Staff = _ALL,
        tokens: Tokens | None = None,
    ) -> None:
        self.server = Server(store, clock, chance, staff.kinds, tokens, staff.gates)
        self._crew, self._store = Crew(self._client, clock, chance, staff), store

    def client(self, name: str) -> Client:
        """A client in this process that may do everything, for a test or a tool of that name."""
        return self._client(User(name, (MASTERS,)))

    def _client(self, user: User) -> Client:
        return Client(InProcess(self.server.handle, user), self.server.metrics)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Have server and crew run while the context lasts; a part that breaks breaks the whole."""
        await self.server.start()
        async with self._crew.running():
            yield
        await self._store.close()
