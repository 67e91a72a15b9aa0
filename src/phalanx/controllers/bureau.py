"""The controllers beside an API server, wherever that is, for as many terms as it takes.

Above `roster`, which makes controllers, and `tenure`, which finds the server and has us elected;
below the command line. The peer of `office`, the scheduler's.

A server is foreign if discovery does not show the GroupBinding of `phalanx.dev`: then it has
controllers of its own. There only Jobs that ask for ours by `managedBy` are run, and every other
loop is off unless it is named.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from phalanx.api.batch import OWN_JOB_CONTROLLER
from phalanx.api.gates import DEFAULT as GATES
from phalanx.api.gates import Gates
from phalanx.api.kinds import GROUP_BINDING, Kind
from phalanx.api.versions.conversion import STORED
from phalanx.chance import Chance
from phalanx.client.client import Client
from phalanx.client.discovery import served
from phalanx.clock import Clock
from phalanx.controllers.loop import Informers
from phalanx.controllers.roster import Bench, Controller, Selection, lacking, made
from phalanx.controllers.tenure import Candidacy, Duty, Place, Tenure

#: The lease of those who run controllers, where nobody chooses another.
LEASE_NAME = "phalanx-controllers"


@dataclass(frozen=True, slots=True)
class Offer:
    """What a server is and knows, in the order of discovery."""

    is_foreign: bool
    kinds: tuple[Kind, ...]


@dataclass(frozen=True, slots=True)
class Voice:
    """How it is told what is going on, and, once, which controllers run."""

    say: Callable[[str], None]
    ready: Callable[[Sequence[str]], None]


@dataclass(frozen=True, slots=True)
class Wishes:
    """Which controllers are to run, and how."""

    selection: Selection
    gates: Gates = GATES
    basic_workloads: bool = True


class Bureau:
    """Controllers that run against a server until they are cancelled.

    Without a candidacy they run without asking whether others do.
    """

    def __init__(
        self, client: Client, clock: Clock, chance: Chance, voice: Voice, wishes: Wishes,
        candidacy: Candidacy | None = None,
    ) -> None:  # fmt: skip
        self._client, self._clock, self._chance = client, clock, chance
        self._voice, self._wishes = voice, wishes
        place = Place(self._offered, self._duty, {})
        self._tenure = Tenure(client, clock, chance, voice.say, place, candidacy)

    @property
    def trouble(self) -> str:
        """Why it is not ready to lead, if it is not."""
        return self._tenure.trouble

    async def run(self) -> None:
        """Run the controllers, term after term."""
        await self._tenure.run()

    async def wind_up(self) -> None:
        """Nothing is under way that could not be left where it is."""

    async def _offered(self) -> Offer:
        known = await served(self._client, (GROUP_BINDING, *STORED))
        return Offer(GROUP_BINDING not in known, tuple(known))

    def _duty(self, offer: Offer, informers: Informers) -> Duty:
        wishes = self._wishes
        kinds = wishes.gates.served(offer.kinds)
        chosen = self._chosen(offer, kinds)
        bench = Bench(
            self._client, informers, self._clock, self._chance, wishes.gates, kinds,
            basic_workloads=wishes.basic_workloads, is_foreign=offer.is_foreign,
        )  # fmt: skip
        parts = made(bench, chosen)

        async def control() -> None:
            self._voice.ready([row.name for row in chosen])
            async with asyncio.TaskGroup() as group:
                for run in parts:
                    group.create_task(run())

        return Duty(LEASE_NAME, control)

    def _chosen(self, offer: Offer, kinds: Sequence[Kind]) -> list[Controller]:
        """Those that are to run beside such a server; says which of the wanted cannot."""
        if offer.is_foreign:
            self._voice.say(
                f"the API server has no {GROUP_BINDING.resource}, so it is not Phalanx: only Jobs "
                f"with managedBy {OWN_JOB_CONTROLLER} are run"
            )
        chosen: list[Controller] = []
        for row in self._wishes.selection.among(is_foreign=offer.is_foreign):
            missing = lacking(kinds, row)
            if missing:
                self._voice.say(f"{row.name} is off: there are no {missing[0].resource}")
            else:
                chosen.append(row)
        return chosen
