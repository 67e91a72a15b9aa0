"""Standing beside an API server, wherever that is: from finding it to leading and back.

    server there? ─▶ what does it offer? ─▶ caches filled ─▶ elected ─▶ the duty
          ▲                                                              │
          └── the leadership was lost, or the server offers something else

Each such round is a term: nothing of one is carried into the next, so that what is believed is
never older than the leadership. Below `office` (the scheduler) and `bureau` (the controllers),
which say what a duty is. Says in words what it waits for. Gives up on nothing but a credential that
the server does not know.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from phalanx.api.errors import ApiError, Forbidden, NotFound, Timeout, Unauthorized
from phalanx.api.kinds import Kind
from phalanx.api.meta import Key
from phalanx.chance import Chance
from phalanx.client.client import Client
from phalanx.client.election import Election, Terms
from phalanx.client.transports import Unreachable
from phalanx.clock import Clock
from phalanx.controllers.loop import Informers

#: Seconds between two looks for a server that is not there, at least and at most.
_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.5, 10.0
#: Seconds between two looks at how the informers and the election are.
_LOOK = 0.5
#: Seconds after which it is asked again what the server offers: kinds come and go.
_FRESH = 60.0

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Candidacy:
    """As whom the leadership is stood for, on what terms, and for which lease.

    A lease that nobody names is called as the duty is.
    """

    identity: str
    terms: Terms
    lease: Key | None = None


@dataclass(frozen=True, slots=True)
class Duty:
    """What is done while leading, and the name of the lease for it."""

    name: str
    do: Callable[[], Coroutine[Any, Any, None]]


@dataclass(frozen=True, slots=True)
class Place(Generic[T]):
    """What a tenure is of: how it is found out what the server offers, and what is done then.

    `without` says what it means that a kind may not be read.
    """

    offered: Callable[[], Awaitable[T]]
    duty: Callable[[T, Informers], Duty]
    without: Mapping[Kind, str]


class Tenure(Generic[T]):
    """Does a duty beside a server, term after term, until it is cancelled.

    `say` hears what is going on. Without a candidacy it leads without asking.
    """

    def __init__(
        self, client: Client, clock: Clock, chance: Chance, say: Callable[[str], None],
        place: Place[T], candidacy: Candidacy | None = None,
    ) -> None:  # fmt: skip
        self._client, self._clock, self._chance, self._say = client, clock, chance, say
        self._place, self._candidacy = place, candidacy
        self._informers: Informers | None = None

    @property
    def trouble(self) -> str:
        """Why it is not ready to lead: "" if its caches are filled and follow the server."""
        informers = self._informers
        if informers is None:
            return "waiting for the API server"
        lost = [error for error in informers.failures.values() if isinstance(error, Unreachable)]
        if lost:
            return str(lost[0])
        return "" if informers.are_synced else "caches are being filled"

    async def run(self) -> None:
        """Serve term after term."""
        while True:
            await self._term(await self._found())

    async def _found(self) -> T:
        """What the server offers, as soon as there is one."""
        ceiling, said = _SHORTEST_PAUSE, ""
        while True:
            try:
                return await self._place.offered()
            except Unauthorized:
                raise
            except (ApiError, Unreachable) as error:
                if str(error) != said:
                    said = str(error)
                    self._say(f"waiting for the API server: {said}")
            await asyncio.sleep(self._chance.between(_SHORTEST_PAUSE, ceiling))
            ceiling = min(2 * ceiling, _LONGEST_PAUSE)

    async def _term(self, offer: T) -> None:
        informers = Informers(self._client, self._chance)
        duty = self._place.duty(offer, informers)

        async def serve() -> None:
            await informers.synced()
            await self._elected(duty)

        self._informers = informers
        try:
            await _until_one_ends(
                informers.run(), self._attend(informers, offer), self._look_again(offer), serve()
            )
        finally:
            self._informers = None

    async def _elected(self, duty: Duty) -> None:
        """Do the duty when and while it is ours."""
        if self._candidacy is None:
            await duty.do()
            return
        identity, terms = self._candidacy.identity, self._candidacy.terms
        lease = self._candidacy.lease or Key("kube-system", duty.name)
        election = Election(self._client, lease, identity, self._clock, self._chance, terms)
        await _until_one_ends(election.serve(duty.do), self._follow(election, lease, identity))
        self._say(f"lease {lease}: the leadership is lost")

    async def _follow(self, election: Election, lease: Key, identity: str) -> None:
        """Say who else leads, and what is wrong with asking."""
        said = ""
        while True:
            someone = election.holder not in ("", identity)
            news = str(election.failure or (f"{election.holder} leads" if someone else ""))
            if news and news != said:
                self._say(f"lease {lease}: {news}")
            said = news
            await asyncio.sleep(_LOOK)

    async def _attend(self, informers: Informers, offer: T) -> None:
        """Say what is wrong with following the server; ends when it is another than before."""
        said: list[str] = []
        was_away = False
        while True:
            failures = informers.failures
            news = list(dict.fromkeys(self._told(*failure) for failure in failures.items()))
            for text in news:
                if text not in said:
                    self._say(text)
            is_away = any(isinstance(error, Unreachable) for error in failures.values())
            if was_away and not is_away:
                self._say("the API server is back")
                # What was seen lies in the future of one that was put back to an earlier time.
                is_younger = any(isinstance(error, Timeout) for error in failures.values())
                if is_younger or await self._found() != offer:
                    return
            said, was_away = news, is_away
            await asyncio.sleep(_LOOK)

    async def _look_again(self, offer: T) -> None:
        """Ask from time to time what the server offers; ends when that is something else."""
        while True:
            await asyncio.sleep(_FRESH)
            try:
                if await self._place.offered() != offer:
                    self._say("the API server offers other kinds than before")
                    return
            except (ApiError, Unreachable):
                continue

    def _told(self, kind: Kind, error: ApiError | Unreachable) -> str:
        without = self._place.without
        if isinstance(error, NotFound):
            return f"the API server has no {kind.resource}"
        if isinstance(error, Forbidden) and kind in without:
            return f"{error}; {without[kind]}"
        return f"lost the API server: {error}" if isinstance(error, Unreachable) else str(error)


async def _until_one_ends(*parts: Coroutine[Any, Any, None]) -> None:
    """Have these run side by side; when one ends, the others end too."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(part) for part in parts]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()
