"""One scheduler beside an API server, wherever that is: from finding it to leading and back.

    server there? ─▶ what does it offer? ─▶ caches filled ─▶ elected ─▶ scheduling
          ▲                                                              │
          └── the leadership was lost, or the server offers something else

Each such round is a term: nothing of one is carried into the next, so that what is believed is
never older than the leadership. Above `scheduling`, below the command line. Says in words what it
waits for. Gives up on nothing but a credential that the server does not know.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from phalanx.api.core import DEFAULT_SCHEDULER
from phalanx.api.errors import ApiError, Forbidden, Timeout, Unauthorized
from phalanx.api.gates import DEFAULT as GATES
from phalanx.api.gates import Gates
from phalanx.api.kinds import GROUP_BINDING, NAMESPACE, POD_GROUP, SERVICE, Kind
from phalanx.api.meta import Key
from phalanx.chance import Chance
from phalanx.client.client import Client
from phalanx.client.discovery import serves
from phalanx.client.election import Election, Terms
from phalanx.client.transports import Unreachable
from phalanx.clock import Clock
from phalanx.controllers.loop import Informers
from phalanx.controllers.scheduling import Scheduling
from phalanx.scheduler.policy import DEFAULT
from phalanx.scheduler.profiles import Profiles, by_gates

#: Whose pods are placed where nobody says, on a server that is not one of ours.
FOREIGN_SCHEDULER = "phalanx-scheduler"
#: Seconds between two looks for a server that is not there, at least and at most.
_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.5, 10.0
#: Seconds between two looks at how the informers and the election are.
_LOOK = 0.5
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
class Candidacy:
    """As whom the leadership is stood for, on what terms, and for which lease.

    A lease that nobody names is called as the scheduler is.
    """

    identity: str
    terms: Terms
    lease: Key | None = None


@dataclass(frozen=True, slots=True)
class Voice:
    """How it is told what is going on, and, once, that it schedules."""

    say: Callable[[str], None]
    ready: Callable[[Sequence[str]], None]


class Office:
    """A scheduler that runs against a server until it is cancelled.

    Without `profiles` it places what nobody else does, by the usual policy; without a candidacy it
    leads without asking.
    """

    def __init__(
        self, client: Client, clock: Clock, chance: Chance, voice: Voice,
        profiles: Profiles | None = None, candidacy: Candidacy | None = None,
        gates: Gates = GATES,
    ) -> None:  # fmt: skip
        self._client, self._clock, self._chance, self._voice = client, clock, chance, voice
        self._profiles, self._candidacy, self._gates = profiles, candidacy, gates
        self._scheduling: Scheduling | None = None

    async def run(self) -> None:
        """Schedule, term after term."""
        while True:
            await self._term(await self._found())

    async def wind_up(self) -> None:
        """Begin nothing more, and wait for what is under way, but not for long."""
        waited = 0.0
        if self._scheduling is not None:
            self._scheduling.retire()
        while self._scheduling is not None and self._scheduling.is_busy and waited < _FAREWELL:
            await asyncio.sleep(0.01)
            waited += 0.01

    async def _found(self) -> Offer:
        """What the server offers, as soon as there is one."""
        ceiling, said = _SHORTEST_PAUSE, ""
        while True:
            try:
                return await self._offered()
            except Unauthorized:
                raise
            except (ApiError, Unreachable) as error:
                if str(error) != said:
                    said = str(error)
                    self._voice.say(f"waiting for the API server: {said}")
            await asyncio.sleep(self._chance.between(_SHORTEST_PAUSE, ceiling))
            ceiling = min(2 * ceiling, _LONGEST_PAUSE)

    async def _offered(self) -> Offer:
        kinds = (GROUP_BINDING, POD_GROUP)
        return Offer(*[await serves(self._client, kind) for kind in kinds])

    async def _term(self, offer: Offer) -> None:
        profiles = self._chosen(offer)
        informers = Informers(self._client, self._chance)
        scheduling = Scheduling(
            self._client, informers, self._clock, self._chance, profiles,
            foreign=not offer.group_bindings,
        )  # fmt: skip

        async def duty() -> None:
            self._scheduling = scheduling
            self._voice.ready(tuple(profiles.policies))
            try:
                await scheduling.run()
            finally:
                self._scheduling = None

        async def serve() -> None:
            await informers.synced()
            await self._elected(next(iter(profiles.policies)), duty)

        await _until_one_ends(informers.run(), self._attend(informers, offer), serve())

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

    async def _elected(self, name: str, duty: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Do the duty of the scheduler of that name when and while it is ours."""
        if self._candidacy is None:
            await duty()
            return
        identity, terms = self._candidacy.identity, self._candidacy.terms
        lease = self._candidacy.lease or Key("kube-system", name)
        election = Election(self._client, lease, identity, self._clock, self._chance, terms)
        await _until_one_ends(election.serve(duty), self._follow(election, lease, identity))
        self._voice.say(f"lease {lease}: the leadership is lost")

    async def _follow(self, election: Election, lease: Key, identity: str) -> None:
        """Say who else leads, and what is wrong with asking."""
        said = ""
        while True:
            someone = election.holder not in ("", identity)
            news = str(election.failure or (f"{election.holder} leads" if someone else ""))
            if news and news != said:
                self._voice.say(f"lease {lease}: {news}")
            said = news
            await asyncio.sleep(_LOOK)

    async def _attend(self, informers: Informers, offer: Offer) -> None:
        """Say what is wrong with following the server; ends when it comes back as another."""
        said: list[str] = []
        was_away = False
        while True:
            failures = informers.failures
            news = list(dict.fromkeys(_told(kind, error) for kind, error in failures.items()))
            for text in news:
                if text not in said:
                    self._voice.say(text)
            is_away = any(isinstance(error, Unreachable) for error in failures.values())
            if was_away and not is_away:
                self._voice.say("the API server is back")
                # What was seen lies in the future of one that was put back to an earlier time.
                is_younger = any(isinstance(error, Timeout) for error in failures.values())
                if is_younger or await self._found() != offer:
                    return
            said, was_away = news, is_away
            await asyncio.sleep(_LOOK)


def _told(kind: Kind, error: ApiError | Unreachable) -> str:
    if isinstance(error, Forbidden) and kind in _WITHOUT:
        return f"{error}; {_WITHOUT[kind]}"
    return f"lost the API server: {error}" if isinstance(error, Unreachable) else str(error)


async def _until_one_ends(*parts: Coroutine[Any, Any, None]) -> None:
    """Have these run side by side; when one ends, the others end too."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(part) for part in parts]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()
