"""The control plane on one event loop: an API server and its components.

Stands above `server/` and `components.py`, and below `sim/` and `cli/`, which run it in virtual
time or on the network.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

from phalanx.api.wire import UserInfo
from phalanx.client.client import Client
from phalanx.client.transports import InProcessTransport
from phalanx.clock import Clock
from phalanx.components import ComponentConfig, Components
from phalanx.randomness import Random
from phalanx.scheduler.policy import DEFAULT_PROFILES
from phalanx.server.app import Server
from phalanx.server.event_expiry import EVENT_TTL
from phalanx.server.health import NO_SCHEDULER
from phalanx.server.security.authorization import MASTERS, Tokens
from phalanx.server.watches import WatchIntervals
from phalanx.store.kv import Store

_DEFAULT_CONFIG = ComponentConfig()


class ControlPlane:
    """An API server over a store, with the informers, scheduler, controllers and nodes."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        random: Random,
        config: ComponentConfig = _DEFAULT_CONFIG,
        tokens: Tokens | None = None,
        *,
        event_ttl: float = EVENT_TTL,
        watch_intervals: WatchIntervals | None = None,
        keep_history: bool = True,
    ) -> None:
        self.server = Server(
            store,
            clock,
            random,
            kinds=config.kinds,
            tokens=tokens,
            gates=config.gates,
            event_ttl=event_ttl,
            watch_intervals=watch_intervals,
            keep_history=keep_history,
        )
        self._keep_history = keep_history
        self._raise_errors, self._is_running = config.raise_errors, False
        if "scheduler" not in config.without:
            names = config.profiles.policies if config.profiles is not DEFAULT_PROFILES else ()
            self.server.health.add_scheduler_checks(self._check_scheduler, names)
        self._components, self._store = (
            Components(self._client_for, clock, random, config=config),
            store,
        )

    def client(self, name: str) -> Client:
        """Return an in-process client with all permissions, for a test or tool of this name."""
        return self._client_for(UserInfo(name, (MASTERS,)))

    def _client_for(self, user: UserInfo) -> Client:
        transport = InProcessTransport(self.server.handle, user)
        return Client(
            transport,
            self.server.metrics,
            raise_errors=self._raise_errors,
            records_events=self._keep_history,
        )

    def _check_scheduler(self) -> str:
        return "" if self._is_running else NO_SCHEDULER

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run server and components while the context lasts; if one fails, the context fails."""
        await self.server.start()
        async with self._components.running():
            self._is_running = True
            try:
                yield
            finally:
                self._is_running = False
        await self.server.context.dynamic_admission.close()
        await self._store.close()
