"""Runs a task beside an API server while this process is the leader.

    API server reachable? ─▶ discovery ─▶ caches filled ─▶ elected ─▶ task
          ▲                                                            │
          └──── leadership lost, or discovery returns something else ──┘

Each such round is a term. No state is carried from one term into the next, so that a cache is never
older than the leadership under which it is used. Stands below `scheduler_runner`,
`controller_manager` and `nodes.node_pool`, which say what the task is. Logs what it waits for.
Retries every failure except a credential that the server does not accept.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from phalanx.api.errors import ApiError, Forbidden, NotFound, Timeout, Unauthorized
from phalanx.api.kinds import Kind
from phalanx.api.meta import Key
from phalanx.api.workload_sources import NATIVE_SOURCES, ServedSources
from phalanx.client.client import Client
from phalanx.client.leader_election import LeaderElector, LeaseTimings
from phalanx.client.transports import Unreachable
from phalanx.clock import Clock
from phalanx.controllers.reconcile_loop import Informers
from phalanx.logs import Log
from phalanx.randomness import Random

#: Bounds of the seconds between two attempts to reach a server.
_MIN_RETRY_SECONDS, _MAX_RETRY_SECONDS = 0.5, 10.0
#: Seconds between two checks of the informers and of the election.
_POLL_SECONDS = 0.5
#: Seconds between two discoveries: custom kinds come and go.
_REDISCOVERY_SECONDS = 60.0

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ElectionConfig:
    """The identity of a candidate, its timings, and the lease; None: a lease named as the task."""

    identity: str
    timing: LeaseTimings
    lease: Key | None = None


@dataclass(frozen=True, slots=True)
class LeaderTask:
    """What the leader runs, and the name and the annotations of the lease for it."""

    name: str
    run: Callable[[], Coroutine[Any, Any, None]]
    annotations: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RunnerSpec(Generic[T]):
    """How to discover the capabilities of a server, and how to build the task from them.

    `missing_kind_effects` says, by kind, what follows if reading the kind is forbidden.
    `find_sources` returns as which kinds a server with these capabilities keeps groups of pods.
    """

    discover: Callable[[], Awaitable[T]]
    build_task: Callable[[T, Informers], LeaderTask]
    missing_kind_effects: Mapping[Kind, str]
    find_sources: Callable[[T], ServedSources] = lambda capabilities: NATIVE_SOURCES


class LeaderElectedRunner(Generic[T]):
    """Runs a task beside a server, term after term, until cancelled.

    Without an election it runs the task without holding a lease.
    """

    def __init__(
        self,
        client: Client,
        clock: Clock,
        random: Random,
        *,
        log: Log,
        spec: RunnerSpec[T],
        election: ElectionConfig | None = None,
    ) -> None:
        self._client, self._clock, self._random, self._log = client, clock, random, log
        self._spec, self._election = spec, election
        self._informers: Informers | None = None

    @property
    def not_ready_reason(self) -> str:
        """Why the runner is not ready to lead; "" once its caches are filled and up to date."""
        informers = self._informers
        if informers is None:
            return "waiting for the API server"
        for error in informers.failures.values():
            if isinstance(error, Unreachable):
                return str(error)
        return "" if informers.have_synced else "caches are not synced yet"

    async def run(self) -> None:
        """Run term after term."""

        async def run_terms() -> None:
            while True:
                await self._run_term(await self._wait_for_server())

        await self._client.errors.keep_running(run_terms, self._log, controller=self._log.name)

    async def _wait_for_server(self) -> T:
        """Return the capabilities of the server as soon as it answers."""
        ceiling, reported, attempt = _MIN_RETRY_SECONDS, "", 0
        while True:
            attempt += 1
            try:
                return await self._spec.discover()
            except Unauthorized:
                raise
            except (ApiError, Unreachable) as error:
                delay = self._random.between(_MIN_RETRY_SECONDS, ceiling)
                # The same failure is a warning once: the server may be away for hours.
                write = self._log.debug if str(error) == reported else self._log.warning
                reported = str(error)
                write("waiting for the API server", reason=reported, attempt=attempt, backoff=delay)
            await asyncio.sleep(delay)
            ceiling = min(2 * ceiling, _MAX_RETRY_SECONDS)

    async def _run_term(self, capabilities: T) -> None:
        sources = self._spec.find_sources(capabilities)
        informers = Informers(self._client, self._random, sources)
        task = self._spec.build_task(capabilities, informers)

        async def lead() -> None:
            await informers.wait_for_sync()
            self._log.debug("caches synced")
            await self._run_when_elected(task)

        self._informers = informers
        try:
            await _run_until_first_ends(
                informers.run(),
                self._monitor_informers(informers, capabilities),
                self._monitor_discovery(capabilities),
                lead(),
            )
        finally:
            self._informers = None

    async def _run_when_elected(self, task: LeaderTask) -> None:
        if self._election is None:
            await task.run()
            return
        identity, timing = self._election.identity, self._election.timing
        lease = self._election.lease or Key("kube-system", task.name)
        elector = LeaderElector(
            self._client,
            lease,
            identity,
            clock=self._clock,
            random=self._random,
            timings=timing,
            annotations=task.annotations,
        )

        async def run_as_leader() -> None:
            self._log.info("leadership acquired", lease=lease, identity=identity)
            await task.run()

        await _run_until_first_ends(
            elector.run(run_as_leader), self._monitor_election(elector, lease, identity)
        )
        self._log.warning("leadership lost", lease=lease, identity=identity)

    async def _monitor_election(self, elector: LeaderElector, lease: Key, identity: str) -> None:
        """Log which other candidate leads, and failures to read or renew the lease."""
        holder, failure = "", ""
        while True:
            if elector.holder not in ("", identity, holder):
                self._log.info("another candidate leads", lease=lease, holder=elector.holder)
            reason = str(elector.failure or "")
            if reason and reason != failure:
                self._log.warning("cannot acquire or renew the lease", lease=lease, reason=reason)
            holder, failure = elector.holder, reason
            await asyncio.sleep(_POLL_SECONDS)

    async def _monitor_informers(self, informers: Informers, capabilities: T) -> None:
        """Log why informers fail; ends when the server came back with another history."""
        reported: set[tuple[str, str]] = set()
        was_unreachable = False
        while True:
            failures = informers.failures
            current: set[tuple[str, str]] = set()
            for kind, error in failures.items():
                message, fields = self._describe_failure(kind, error)
                # One line for all kinds while the server cannot be reached.
                identity = message, fields["reason"]
                if identity not in reported | current:
                    self._log.warning(message, **fields)
                current.add(identity)
            is_unreachable = any(isinstance(error, Unreachable) for error in failures.values())
            if was_unreachable and not is_unreachable:
                self._log.info("API server reachable again")
                # A server restored from a backup lists revisions older than the ones seen.
                has_other_history = any(isinstance(error, Timeout) for error in failures.values())
                if has_other_history or await self._wait_for_server() != capabilities:
                    return
            reported, was_unreachable = current, is_unreachable
            await asyncio.sleep(_POLL_SECONDS)

    def _describe_failure(
        self, kind: Kind, error: ApiError | Unreachable
    ) -> tuple[str, dict[str, str]]:
        if isinstance(error, Unreachable):
            return "API server unreachable", {"reason": str(error)}
        fields = {"resource": kind.resource, "reason": str(error)}
        if isinstance(error, NotFound):
            return "the API server does not serve a resource", fields
        if isinstance(error, Forbidden) and kind in self._spec.missing_kind_effects:
            fields["effect"] = self._spec.missing_kind_effects[kind]
        return "cannot read a resource", fields

    async def _monitor_discovery(self, capabilities: T) -> None:
        """Repeat the discovery from time to time; ends when its result changes."""
        while True:
            await asyncio.sleep(_REDISCOVERY_SECONDS)
            try:
                if await self._spec.discover() != capabilities:
                    self._log.info("the API server serves other kinds than before; starting over")
                    return
            except (ApiError, Unreachable) as error:
                self._log.debug("discovery failed", reason=error)


async def _run_until_first_ends(*coroutines: Coroutine[Any, Any, None]) -> None:
    """Run coroutines concurrently; when one ends, cancel the others."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(coroutine) for coroutine in coroutines]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()
