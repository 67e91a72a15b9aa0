"""One scheduler beside an API server, wherever that is, for as many terms as it takes.

Above `scheduling`, which schedules, and `tenure`, which finds the server and has it elected; below
the command line.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from phalanx.api.core import DEFAULT_SCHEDULER
from phalanx.api.gates import DEFAULT as GATES
from phalanx.api.gates import Gates
from phalanx.api.kinds import GROUP_BINDING, NAMESPACE, POD_GROUP, SERVICE, Kind
from phalanx.chance import Chance
from phalanx.client.client import Client
from phalanx.client.discovery import serves
from phalanx.clock import Clock
from phalanx.controllers.loop import Informers
from phalanx.controllers.shell.decisionlog import DecisionLog
from phalanx.controllers.shell.exact import Solving
from phalanx.controllers.shell.scheduling import Scheduling
from phalanx.controllers.tenure import Candidacy, Duty, Place, Tenure
from phalanx.scheduler.policy import DEFAULT
from phalanx.scheduler.settings.profiles import Profiles, by_gates

#: Whose pods are placed where nobody says, on a server that is not one of ours.
FOREIGN_SCHEDULER = "phalanx-scheduler"
#: Seconds that what is under way at the end is waited for.
_FAREWELL = 0.7
#: What it means that a kind may not be read.
_WITHOUT: Mapping[Kind, str] = {
    NAMESPACE: "namespaces are taken to have no labels",
    SERVICE: "pods are not spread for the sake of services",
}


@dataclass(frozen=True, slots=True)
class Offer:
    """What a server can do for a scheduler."""

    group_bindings: bool
    groups: bool


@dataclass(frozen=True, slots=True)
class Voice:
    """How it is told what is going on, and, once, that it schedules."""

    say: Callable[[str], None]
    ready: Callable[[Sequence[str]], None]


class Office:
    """A scheduler that runs against a server until it is cancelled.

    Without `profiles` it places what nobody else does, by the usual policy; without a candidacy it
    leads without asking. Its decisions go to the `log`.
    """

    def __init__(
        self, client: Client, clock: Clock, chance: Chance, voice: Voice,
        profiles: Profiles | None = None, candidacy: Candidacy | None = None,
        gates: Gates = GATES, log: DecisionLog | None = None, solving: Solving | None = None,
    ) -> None:  # fmt: skip
        self._client, self._clock, self._chance, self._voice = client, clock, chance, voice
        self._profiles, self._gates, self._log, self._solving = profiles, gates, log, solving
        self._scheduling: Scheduling | None = None
        place = Place(self._offered, self._duty, _WITHOUT)
        self._tenure = Tenure(client, clock, chance, voice.say, place, candidacy)

    @property
    def trouble(self) -> str:
        """Why it is not ready to lead, if it is not."""
        return self._tenure.trouble

    async def run(self) -> None:
        """Schedule, term after term."""
        await self._tenure.run()

    async def wind_up(self) -> None:
        """Begin nothing more, and wait for what is under way, but not for long."""
        waited = 0.0
        if self._scheduling is not None:
            self._scheduling.retire()
        while self._scheduling is not None and self._scheduling.is_busy and waited < _FAREWELL:
            await asyncio.sleep(0.01)
            waited += 0.01

    async def _offered(self) -> Offer:
        kinds = (GROUP_BINDING, POD_GROUP)
        return Offer(*[await serves(self._client, kind) for kind in kinds])

    def _duty(self, offer: Offer, informers: Informers) -> Duty:
        profiles = self._chosen(offer)
        scheduling = Scheduling(
            self._client, informers, self._clock, self._chance, profiles,
            foreign=not offer.group_bindings, log=self._log, solving=self._solving,
        )  # fmt: skip

        async def schedule() -> None:
            self._scheduling = scheduling
            self._voice.ready(tuple(profiles.policies))
            try:
                await scheduling.run()
            finally:
                self._scheduling = None

        return Duty(next(iter(profiles.policies)), schedule)

    def _chosen(self, offer: Offer) -> Profiles:
        """Whose pods are placed, and how, on such a server."""
        name = DEFAULT_SCHEDULER if offer.group_bindings else FOREIGN_SCHEDULER
        profiles = by_gates(self._gates, self._profiles or Profiles({name: DEFAULT}))
        if not offer.group_bindings:
            names = ", ".join(profiles.policies)
            self._voice.say(
                "the API server has no GroupBinding: pods are bound one by one, "
                f"and only those whose schedulerName is {names}"
            )
        if profiles.groups and not offer.groups:
            self._voice.say(f"the API server has no {POD_GROUP.resource}: there are no gangs")
        return replace(profiles, groups=profiles.groups and offer.groups)
