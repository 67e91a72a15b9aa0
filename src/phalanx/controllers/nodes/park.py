"""The nodes of our own beside an API server, wherever that is, as a process of their own.

Above `nodes`, which are them, and `tenure`, which finds the server; below the command line. The
peer of `office` (the scheduler's) and `bureau` (the controllers'). Nobody is elected: whoever says
to have a node renews its lease, and no two should say so.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from phalanx.api.errors import ApiError, Unauthorized
from phalanx.api.kinds import LEASE_RENEWAL, Kind
from phalanx.chance import Chance
from phalanx.client.client import Client
from phalanx.client.discovery import served
from phalanx.client.transports import Unreachable
from phalanx.clock import Clock
from phalanx.controllers.loop import Informers
from phalanx.controllers.nodes.nodes import Nodes, SimulatedNode
from phalanx.controllers.nodes.processes import Host
from phalanx.controllers.nodes.stages import Rule
from phalanx.controllers.tenure import Duty, Place, Tenure

#: Seconds between two tries to register.
_PAUSE = 2.0


@dataclass(frozen=True, slots=True)
class Voice:
    """How it is told what is going on, and, once, that the nodes are there."""

    say: Callable[[str], None]
    ready: Callable[[Sequence[str]], None]


class Park:
    """Nodes that are there, beside a server, until they are cancelled."""

    def __init__(
        self, client: Client, clock: Clock, chance: Chance, voice: Voice,
        nodes: Sequence[SimulatedNode], rules: Sequence[Rule] = (), host: Host | None = None,
    ) -> None:  # fmt: skip
        self._client, self._clock, self._voice = client, clock, voice
        self._nodes, self._rules, self._host = nodes, rules, host
        place = Place(self._offered, self._duty, {})
        self._tenure = Tenure(client, clock, chance, voice.say, place)

    @property
    def trouble(self) -> str:
        """Why it is not ready, if it is not."""
        return self._tenure.trouble

    async def run(self) -> None:
        """Be the nodes, beside one server after another if need be."""
        await self._tenure.run()

    async def wind_up(self) -> None:
        """Nothing is under way that could not be left where it is."""

    async def _offered(self) -> tuple[Kind, ...]:
        return tuple(await served(self._client, (LEASE_RENEWAL,)))

    def _duty(self, offer: tuple[Kind, ...], informers: Informers) -> Duty:
        nodes = Nodes(
            self._client, informers, self._clock, self._nodes, self._rules, self._host
        )  # fmt: skip

        async def be() -> None:
            foreign = await self._registered(nodes)
            for name in foreign:
                self._voice.say(f"node {name} is not ours: it is left alone")
            self._voice.ready([str(len(self._nodes) - len(foreign))])
            await nodes.run()

        return Duty("phalanx-nodes", be)

    async def _registered(self, nodes: Nodes) -> list[str]:
        """Register, however often it takes; which names are other people's nodes."""
        said = ""
        while True:
            try:
                return await nodes.register()
            except Unauthorized:
                raise
            except (ApiError, Unreachable) as error:
                if str(error) != said:
                    said = str(error)
                    self._voice.say(f"cannot register nodes: {said}")
            await asyncio.sleep(_PAUSE)
