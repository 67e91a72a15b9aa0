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
from phalanx.client.client import Client
from phalanx.client.leader_election import LeaderElector, LeaseTimings
from phalanx.client.transports import Unreachable
from phalanx.clock import Clock
from phalanx.controllers.reconcile_loop import Informers
from phalanx.randomness import Random

#: Seconds between two looks for a server that is not there, at least and at most.
_MIN_RETRY_SECONDS, _MAX_RETRY_SECONDS = 0.5, 10.0
#: Seconds between two looks at how the informers and the election are.
_POLL_SECONDS = 0.5
#: Seconds after which it is asked again what the server offers: kinds come and go.
_REDISCOVERY_SECONDS = 60.0

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ElectionConfig:
    """As whom the leadership is stood for, on what terms, and for which lease.

    A lease that nobody names is called as the duty is.
    """

    identity: str
    timing: LeaseTimings
    lease: Key | None = None


@dataclass(frozen=True, slots=True)
class LeaderTask:
    """What is done while leading, and the name of the lease for it."""

    name: str
    run: Callable[[], Coroutine[Any, Any, None]]


@dataclass(frozen=True, slots=True)
class RunnerSpec(Generic[T]):
    """What a tenure is of: how it is found out what the server offers, and what is done then.

    `without` says what it means that a kind may not be read.
    """

    discover: Callable[[], Awaitable[T]]
    build_task: Callable[[T, Informers], LeaderTask]
    missing_kind_effects: Mapping[Kind, str]


class LeaderElectedRunner(Generic[T]):
    """Does a duty beside a server, term after term, until it is cancelled.

    `say` hears what is going on. Without a candidacy it leads without asking.
    """

    def __init__(
        self, client: Client, clock: Clock, random: Random, report: Callable[[str], None],
        spec: RunnerSpec[T], election: ElectionConfig | None = None,
    ) -> None:  # fmt: skip
        self._client, self._clock, self._random, self._report = client, clock, random, report
        self._spec, self._election = spec, election
        self._informers: Informers | None = None

    @property
    def not_ready_reason(self) -> str:
        """Why it is not ready to lead: "" if its caches are filled and follow the server."""
        informers = self._informers
        if informers is None:
            return "waiting for the API server"
        lost = [error for error in informers.failures.values() if isinstance(error, Unreachable)]
        if lost:
            return str(lost[0])
        return "" if informers.have_synced else "caches are being filled"

    async def run(self) -> None:
        """Serve term after term."""
        while True:
            await self._run_term(await self._wait_for_server())

    async def _wait_for_server(self) -> T:
        """What the server offers, as soon as there is one."""
        ceiling, said = _MIN_RETRY_SECONDS, ""
        while True:
            try:
                return await self._spec.discover()
            except Unauthorized:
                raise
            except (ApiError, Unreachable) as error:
                if str(error) != said:
                    said = str(error)
                    self._report(f"waiting for the API server: {said}")
            await asyncio.sleep(self._random.between(_MIN_RETRY_SECONDS, ceiling))
            ceiling = min(2 * ceiling, _MAX_RETRY_SECONDS)

    async def _run_term(self, capabilities: T) -> None:
        informers = Informers(self._client, self._random)
        duty = self._spec.build_task(capabilities, informers)

        async def serve() -> None:
            await informers.wait_for_sync()
            await self._run_when_elected(duty)

        self._informers = informers
        try:
            await _run_until_first_ends(
                informers.run(),
                self._report_informers(informers, capabilities),
                self._watch_discovery(capabilities),
                serve(),
            )
        finally:
            self._informers = None

    async def _run_when_elected(self, task: LeaderTask) -> None:
        """Do the duty when and while it is ours."""
        if self._election is None:
            await task.run()
            return
        identity, terms = self._election.identity, self._election.timing
        lease = self._election.lease or Key("kube-system", task.name)
        election = LeaderElector(self._client, lease, identity, self._clock, self._random, terms)
        await _run_until_first_ends(
            election.run(task.run), self._report_election(election, lease, identity)
        )
        self._report(f"lease {lease}: the leadership is lost")

    async def _report_election(self, election: LeaderElector, lease: Key, identity: str) -> None:
        """Say who else leads, and what is wrong with asking."""
        said = ""
        while True:
            someone = election.holder not in ("", identity)
            news = str(election.failure or (f"{election.holder} leads" if someone else ""))
            if news and news != said:
                self._report(f"lease {lease}: {news}")
            said = news
            await asyncio.sleep(_POLL_SECONDS)

    async def _report_informers(self, informers: Informers, capabilities: T) -> None:
        """Say what is wrong with following the server; ends when it is another than before."""
        said: list[str] = []
        was_away = False
        while True:
            failures = informers.failures
            news = list(
                dict.fromkeys(self._describe_failure(*failure) for failure in failures.items())
            )
            for text in news:
                if text not in said:
                    self._report(text)
            is_away = any(isinstance(error, Unreachable) for error in failures.values())
            if was_away and not is_away:
                self._report("the API server is back")
                # What was seen lies in the future of one that was put back to an earlier time.
                is_younger = any(isinstance(error, Timeout) for error in failures.values())
                if is_younger or await self._wait_for_server() != capabilities:
                    return
            said, was_away = news, is_away
            await asyncio.sleep(_POLL_SECONDS)

    async def _watch_discovery(self, capabilities: T) -> None:
        """Ask from time to time what the server offers; ends when that is something else."""
        while True:
            await asyncio.sleep(_REDISCOVERY_SECONDS)
            try:
                if await self._spec.discover() != capabilities:
                    self._report("the API server offers other kinds than before")
                    return
            except (ApiError, Unreachable):
                continue

    def _describe_failure(self, kind: Kind, error: ApiError | Unreachable) -> str:
        without = self._spec.missing_kind_effects
        if isinstance(error, NotFound):
            return f"the API server has no {kind.resource}"
        if isinstance(error, Forbidden) and kind in without:
            return f"{error}; {without[kind]}"
        return f"lost the API server: {error}" if isinstance(error, Unreachable) else str(error)


async def _run_until_first_ends(*coroutines: Coroutine[Any, Any, None]) -> None:
    """Have these run side by side; when one ends, the others end too."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(part) for part in coroutines]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()
