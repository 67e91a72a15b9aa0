"""Trials: a controller is put through what happens to controllers, and must come to the same end.

    crash      it is killed after its n-th write, which is carried out; another one takes over …
    past       … and that at first sees everything as it was some changes ago
    gap        from its n-th event on a watch is silent for a while; then all is to be listed anew
    babble     every event comes twice, old ones come again, and kinds lag behind each other

A scenario is acted out by users who wait between acts until nothing happens any more. Its end is
held against that of a run in which nothing goes wrong; then the controller is started again some
times, and must find nothing to do.
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

#: Seconds until another one takes over, and for which the past or a gap lasts.
TAKEOVER_SECONDS, STALE_SECONDS = 1.0, 2.0
#: How often a controller is started again at the end of a calm run, and of one with trouble.
CALM_RESYNCS, FAULT_RESYNCS = 10, 2


#: Says what is wrong about what was committed together.
Invariant = Callable[[Sequence[StoreChange]], list[str]]


@dataclass(frozen=True)
class Scenario:
    """What users do, who else is there, and which kinds the end is judged by.

    `laws` makes somebody who is told of all that is committed and says what is wrong about it.
    """

    name: str
    run: Callable[[TrialCluster], Awaitable[None]]
    kinds: Sequence[Kind]
    other_parts: Sequence[PartBuilder] = ()
    invariants: Callable[[], Invariant] = lambda: lambda changes: []


@dataclass(frozen=True)
class Fault:
    """What goes wrong: after which write, on which event; 0 means not at all."""

    crash: int = 0
    stale_changes: int = 0
    gap: int = 0
    repeats_events: bool = False


@dataclass
class RequestTally:
    """What a controller has asked for and heard so far, over all its lives."""

    writes: int = 0
    events: int = 0
    requests: list[str] = field(default_factory=list)


class FaultyTransport:
    """The way of a controller to the server. One life long."""

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
        """Nothing is held."""

    def _list_in_the_past(self, request: Request) -> Request:
        """A first list as it would have been answered some changes ago."""
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
        heard: list[bytes] = []
        async with aclosing(source):
            async for chunk in source:
                for line in chunk.splitlines(keepends=True):
                    self._tally.events += 1
                    if self._tally.events == self._fault.gap:
                        await asyncio.sleep(STALE_SECONDS)
                        yield _EXPIRED
                        return
                    heard.append(line)
                await asyncio.sleep(lag)
                yield chunk
                if self._fault.repeats_events:
                    yield chunk + heard[len(heard) // 2] + heard[0]


_STATUS = Expired("too old resource version: the trial wants it so").status()
_EXPIRED = orjson.dumps({"type": "ERROR", "object": _STATUS}) + b"\n"


@dataclass
class TrialResult:
    """What a trial came to."""

    objects: dict[str, list[Object]]
    violations: list[str]
    tally: RequestTally
    #: What was still written when the controller was started again and again.
    late_writes: list[str]


class Trial:
    """One run of a scenario with one controller in one sort of trouble."""

    def __init__(self, scenario: Scenario, subject: PartBuilder, fault: Fault) -> None:
        self._scenario, self._subject, self._fault = scenario, subject, fault
        self._tally = RequestTally()
        self._resyncs = CALM_RESYNCS if fault == Fault() else FAULT_RESYNCS

    async def run(self) -> TrialResult:
        """Act it out."""
        stage = TrialCluster()
        await stage.server.start()
        wrongs: list[str] = []
        law = self._scenario.invariants()
        stage.store.subscribe(lambda changes: wrongs.extend(law(changes)))
        async with asyncio.TaskGroup() as group:
            cast = group.create_task(
                run_parts(stage.client_for("cast"), stage, self._scenario.other_parts)
            )
            life = group.create_task(self._run_lives(stage))
            await self._scenario.run(stage)
            await stage.wait_until_idle()
            picture = await stage.normalized_objects(self._scenario.kinds)
            await cancel_and_wait(life)
            unrest = [word for _ in range(self._resyncs) for word in await self._resync(stage)]
            await cancel_and_wait(cast)
        return TrialResult(picture, wrongs, self._tally, unrest)

    async def _run_lives(self, stage: TrialCluster) -> None:
        """One life; and another, if that ended too soon."""
        way = FaultyTransport(stage.transport("subject"), self._fault, self._tally)
        life = asyncio.create_task(run_parts(Client(way), stage, [self._subject]))
        try:
            await way.killed.wait()
        finally:
            await cancel_and_wait(life)
        await asyncio.sleep(TAKEOVER_SECONDS)
        back = self._fault.stale_changes
        past = max(stage.store.revision - back, 1) if back else 0
        next_way = FaultyTransport(stage.transport("subject"), self._fault, self._tally, past=past)
        await run_parts(Client(next_way), stage, [self._subject])

    async def _resync(self, stage: TrialCluster) -> list[str]:
        """Let the controller hear of everything anew; what it writes."""
        tally = RequestTally()
        way = FaultyTransport(stage.transport("subject"), Fault(repeats_events=True), tally)
        life = asyncio.create_task(run_parts(Client(way), stage, [self._subject]))
        await asyncio.sleep(30.0)
        await cancel_and_wait(life)
        return tally.requests


def run_trial(scenario: Scenario, subject: PartBuilder, fault: Fault | None = None) -> TrialResult:
    """Run one trial from beginning to end, in virtual time."""
    return loop.run_virtual(lambda: Trial(scenario, subject, fault or Fault()).run())


def compare_trials(
    scenario: Scenario, subject: PartBuilder, faults: Sequence[Fault], calm: TrialResult
) -> list[str]:
    """Where trials end otherwise than a calm run does, in words."""
    found: list[str] = []
    for trouble in faults:
        end = run_trial(scenario, subject, trouble)
        found += [f"{trouble}: {word}" for word in (*end.violations, *end.late_writes)]
        found += [f"{trouble}: {word}" for word in _differences(calm.objects, end.objects)]
    return found


def crashes(calm: TrialResult, *, past: int = 0, most: int = 40) -> list[Fault]:
    """A crash after every write of a calm run, or after so many of them, evenly chosen."""
    total = calm.tally.writes
    step = max(-(-total // most), 1)
    return [Fault(crash=number, stale_changes=past) for number in range(1, total + 1, step)]


def gaps(calm: TrialResult, *, most: int = 40) -> list[Fault]:
    """A gap at every event of a calm run, or at so many of them."""
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
    """Where two values differ."""
    if isinstance(one, dict) and isinstance(other, dict):
        keys = sorted({**one, **other})
        return [w for k in keys for w in _value_differences(one.get(k), other.get(k), f"{at}.{k}")]
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        pairs = enumerate(zip(one, other, strict=True))
        return [word for n, (a, b) in pairs for word in _value_differences(a, b, f"{at}[{n}]")]
    return [] if one == other else [f"{at} is {other!r} instead of {one!r}"]
