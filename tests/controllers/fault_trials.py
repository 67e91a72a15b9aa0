"""Fault trials: a controller must reach the same result under faults as without.

    crash            it is killed after its n-th write, which is carried out; another one starts …
    stale_changes    … and its first lists are that many changes old
    gap              from its n-th event on a watch is silent for a while, then expires
    repeats_events   every event comes twice, old ones come again, and kinds lag behind each other

A scenario acts as a user and waits until the cluster is idle. Its result is compared with that of a
run without faults; then the controller is restarted a few times and must write nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

import orjson

from phalanx.api.errors import Expired
from phalanx.api.kinds import Kind
from phalanx.api.wire import Object, Reply, Request, StreamReply
from phalanx.client.client import Client
from phalanx.client.protocol import is_watch
from phalanx.client.transports import Transport
from phalanx.sim import virtual_time as loop
from phalanx.store.kv import StoreChange
from tests.controllers.trial_cluster import PartBuilder, TrialCluster, cancel_and_wait, run_parts

#: Seconds until another controller starts, and for which stale lists or a gap last.
TAKEOVER_SECONDS, STALE_SECONDS = 1.0, 2.0
#: Restarts at the end of a run without faults, and of one with a fault.
CALM_RESYNCS, FAULT_RESYNCS = 10, 2


#: Returns the violations in the changes of one transaction.
Invariant = Callable[[Sequence[StoreChange]], list[str]]


@dataclass(frozen=True)
class Scenario:
    """The actions of users, the other components, and the kinds that are compared.

    `invariants` returns a check that is called with every transaction.
    """

    name: str
    run: Callable[[TrialCluster], Awaitable[None]]
    kinds: Sequence[Kind]
    other_parts: Sequence[PartBuilder] = ()
    invariants: Callable[[], Invariant] = lambda: lambda changes: []


@dataclass(frozen=True)
class Fault:
    """A fault: after which write or at which event; 0 means never."""

    crash: int = 0
    stale_changes: int = 0
    gap: int = 0
    repeats_events: bool = False


@dataclass
class RequestTally:
    """The writes and events of a controller so far, over all restarts."""

    writes: int = 0
    events: int = 0
    requests: list[str] = field(default_factory=list)


class FaultyTransport:
    """The transport of one run of a controller, with a fault."""

    def __init__(
        self, inner: Transport, fault: Fault, tally: RequestTally, *, past: int = 0
    ) -> None:
        self._inner, self._fault, self._tally, self._past = inner, fault, tally, past
        self.killed = asyncio.Event()
        self._kinds: list[str] = []

    async def send(self, request: Request) -> Reply | StreamReply:
        if is_watch(request):
            answer = await self._inner.send(request)
            return answer if isinstance(answer, Reply) else self._wrap_watch(request, answer)
        if request.method == "GET":
            return await self._inner.send(self._list_in_the_past(request))
        answer = await asyncio.shield(asyncio.ensure_future(self._inner.send(request)))
        self._tally.writes += 1
        self._tally.requests.append(f"{request.method} {request.path} -> {answer.code}")
        if self._tally.writes == self._fault.crash:
            self.killed.set()
            await asyncio.Event().wait()
        return answer

    async def close(self) -> None:
        """Do nothing."""

    def _list_in_the_past(self, request: Request) -> Request:
        """Change a first list request to one of an older revision."""
        if not self._past or "limit=" not in request.query or "continue=" in request.query:
            return request
        query = f"{request.query}&resourceVersion={self._past}&resourceVersionMatch=Exact"
        return Request(request.method, request.path, query, request.headers, request.body)

    def _wrap_watch(self, request: Request, answer: StreamReply) -> StreamReply:
        if request.path not in self._kinds:
            self._kinds.append(request.path)
        lag = 0.03 * self._kinds.index(request.path) if self._fault.repeats_events else 0.0
        return StreamReply(answer.code, self._chunks(answer.chunks, lag))

    async def _chunks(
        self, source: AsyncGenerator[bytes, None], lag: float
    ) -> AsyncGenerator[bytes, None]:
        if self._past:
            await asyncio.sleep(STALE_SECONDS)
            self._past = 0
        received: list[bytes] = []
        async with aclosing(source):
            async for chunk in source:
                for line in chunk.splitlines(keepends=True):
                    self._tally.events += 1
                    if self._tally.events == self._fault.gap:
                        await asyncio.sleep(STALE_SECONDS)
                        yield _EXPIRED
                        return
                    received.append(line)
                await asyncio.sleep(lag)
                yield chunk
                if self._fault.repeats_events:
                    yield chunk + received[len(received) // 2] + received[0]


_STATUS = Expired("too old resource version: fault of the trial").status()
_EXPIRED = orjson.dumps({"type": "ERROR", "object": _STATUS}) + b"\n"


@dataclass
class TrialResult:
    """The result of a trial."""

    objects: dict[str, list[Object]]
    violations: list[str]
    tally: RequestTally
    #: The writes after restarts in the steady state.
    late_writes: list[str]


class Trial:
    """One run of a scenario with one controller and one fault."""

    def __init__(self, scenario: Scenario, subject: PartBuilder, fault: Fault) -> None:
        self._scenario, self._subject, self._fault = scenario, subject, fault
        self._tally = RequestTally()
        self._resyncs = CALM_RESYNCS if fault == Fault() else FAULT_RESYNCS

    async def run(self) -> TrialResult:
        """Run the scenario."""
        cluster = TrialCluster()
        await cluster.server.start()
        violations: list[str] = []
        check = self._scenario.invariants()
        cluster.store.subscribe(lambda changes: violations.extend(check(changes)))
        async with asyncio.TaskGroup() as group:
            others = group.create_task(
                run_parts(cluster.client_for("others"), cluster, self._scenario.other_parts)
            )
            running = group.create_task(self._run_with_restart(cluster))
            await self._scenario.run(cluster)
            await cluster.wait_until_idle()
            objects = await cluster.normalized_objects(self._scenario.kinds)
            await cancel_and_wait(running)
            late_writes = [x for _ in range(self._resyncs) for x in await self._resync(cluster)]
            await cancel_and_wait(others)
        return TrialResult(objects, violations, self._tally, late_writes)

    async def _run_with_restart(self, cluster: TrialCluster) -> None:
        """Run the controller; after a crash run another one."""
        transport = FaultyTransport(cluster.transport("subject"), self._fault, self._tally)
        running = asyncio.create_task(run_parts(Client(transport), cluster, [self._subject]))
        try:
            await transport.killed.wait()
        finally:
            await cancel_and_wait(running)
        await asyncio.sleep(TAKEOVER_SECONDS)
        back = self._fault.stale_changes
        past = max(cluster.store.revision - back, 1) if back else 0
        inner = cluster.transport("subject")
        transport = FaultyTransport(inner, self._fault, self._tally, past=past)
        await run_parts(Client(transport), cluster, [self._subject])

    async def _resync(self, cluster: TrialCluster) -> list[str]:
        """Restart the controller with duplicate events; returns its writes."""
        tally = RequestTally()
        transport = FaultyTransport(cluster.transport("subject"), Fault(repeats_events=True), tally)
        running = asyncio.create_task(run_parts(Client(transport), cluster, [self._subject]))
        await asyncio.sleep(30.0)
        await cancel_and_wait(running)
        return tally.requests


def run_trial(scenario: Scenario, subject: PartBuilder, fault: Fault | None = None) -> TrialResult:
    """Run one trial in virtual time."""
    return loop.run_virtual(lambda: Trial(scenario, subject, fault or Fault()).run())


def compare_trials(
    scenario: Scenario, subject: PartBuilder, faults: Sequence[Fault], calm: TrialResult
) -> list[str]:
    """Return how the results under faults differ from the run without."""
    found: list[str] = []
    for fault in faults:
        end = run_trial(scenario, subject, fault)
        found += [f"{fault}: {word}" for word in (*end.violations, *end.late_writes)]
        found += [f"{fault}: {word}" for word in _differences(calm.objects, end.objects)]
    return found


def crashes(calm: TrialResult, *, past: int = 0, most: int = 40) -> list[Fault]:
    """Return crashes after up to `most` writes of the run without faults, evenly spread."""
    total = calm.tally.writes
    step = max(-(-total // most), 1)
    return [Fault(crash=number, stale_changes=past) for number in range(1, total + 1, step)]


def gaps(calm: TrialResult, *, most: int = 40) -> list[Fault]:
    """Return gaps at up to `most` events of the run without faults, evenly spread."""
    total = calm.tally.events
    step = max(-(-total // most), 1)
    return [Fault(gap=number) for number in range(1, total + 1, step)]


def _differences(wanted: dict[str, list[Object]], got: dict[str, list[Object]]) -> list[str]:
    found = []
    for kind, objects in wanted.items():
        missing = [obj for obj in objects if obj not in got[kind]]
        added = [obj for obj in got[kind] if obj not in objects]
        if len(objects) != len(got[kind]):
            found.append(f"{len(got[kind])} {kind}s instead of {len(objects)}")
        for one, other in zip(missing, added, strict=False):
            found += [f"{kind}: {words}" for words in _value_differences(one, other, "")]
    return found


def _value_differences(one: Any, other: Any, at: str) -> list[str]:
    """Return where two values differ."""
    if isinstance(one, dict) and isinstance(other, dict):
        keys = sorted({**one, **other})
        return [w for k in keys for w in _value_differences(one.get(k), other.get(k), f"{at}.{k}")]
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        pairs = enumerate(zip(one, other, strict=True))
        return [word for n, (a, b) in pairs for word in _value_differences(a, b, f"{at}[{n}]")]
    return [] if one == other else [f"{at} is {other!r} instead of {one!r}"]
