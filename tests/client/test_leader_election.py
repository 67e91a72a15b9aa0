"""Candidates for one lease on a server of ours, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.api.kinds import LEASE
from phalanx.api.meta import Key, parse_timestamp
from phalanx.api.wire import Object, Reply, Request, StreamReply
from phalanx.client.client import Client
from phalanx.client.leader_election import LeaderElector, LeaseTimings
from phalanx.client.transports import InProcessTransport, Unreachable
from phalanx.clock import LoopClock
from phalanx.randomness import SeededRandom
from phalanx.server.app import Server
from phalanx.server.security.authorization import ADMIN
from phalanx.store.memory import MemoryStore
from tests.builders import in_virtual_time, tried

EPOCH = 1_800_000_000.0
KEY = Key("kube-system", "the-lease")
LEASE_LASTS, RENEW, RETRY = (
    LeaseTimings().lease_duration,
    LeaseTimings().renew_deadline,
    LeaseTimings().retry_period,
)
#: The longest that a candidate waits between two looks.
POLL_INTERVAL = 2.2 * RETRY


class FaultyTransport:
    """A way to the server that can be cut, or on which nothing comes back."""

    def __init__(self, server: Server) -> None:
        self._inner = InProcessTransport(server.handle, ADMIN)
        self.cut = self.silent = False

    async def send(self, request: Request) -> Reply | StreamReply:
        if self.cut:
            raise Unreachable("the server", "it closed the connection")
        if self.silent:
            await asyncio.Event().wait()
        return await self._inner.send(request)

    async def close(self) -> None:
        """Nothing is held."""


class Candidate:
    """One that stands for election again and again, and notes when it did its duty."""

    def __init__(self, room: ElectionFixture, name: str) -> None:
        self.name, self.line = name, FaultyTransport(room.server)
        self.election = LeaderElector(
            Client(self.line), KEY, name, room.clock, SeededRandom(sum(name.encode()))
        )
        self.terms: list[tuple[float, float]] = []
        self.leading = False
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        while True:
            await self.election.run(self._work)

    async def _work(self) -> None:
        loop = asyncio.get_running_loop()
        begin, self.leading = loop.time(), True
        try:
            await asyncio.sleep(10**6)
        finally:
            self.leading = False
            self.terms.append((begin, loop.time()))

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


class ElectionFixture:
    """A server, its clock, and the candidates that ask it."""

    def __init__(self) -> None:
        self.clock = LoopClock(asyncio.get_running_loop(), EPOCH)
        self.server = Server(MemoryStore(), self.clock, SeededRandom(1))
        self.client = Client(InProcessTransport(self.server.handle, ADMIN))
        self.candidates: list[Candidate] = []

    def candidate(self, name: str) -> Candidate:
        self.candidates.append(Candidate(self, name))
        return self.candidates[-1]

    async def lease(self) -> Object:
        spec: Object = (await self.client.get(LEASE, KEY))["spec"]
        return spec

    async def steal(self, who: str) -> None:
        """Somebody who does not wait for anything."""
        held = await self.client.get(LEASE, KEY)
        held["spec"] |= {"holderIdentity": who}
        await self.client.update(LEASE, held)


@asynccontextmanager
async def election_fixture() -> AsyncIterator[ElectionFixture]:
    found = ElectionFixture()
    await found.server.start()
    try:
        yield found
    finally:
        for candidate in found.candidates:
            await candidate.stop()


async def until(candidate: Candidate) -> float:
    """Wait for somebody to lead; how long that took."""
    loop = asyncio.get_running_loop()
    begin = loop.time()
    while not candidate.leading:
        assert loop.time() - begin < 120
        await asyncio.sleep(0.05)
    return loop.time() - begin


@in_virtual_time
async def test_whoever_comes_first_leads_and_the_lease_says_so() -> None:
    async with election_fixture() as r:
        first = r.candidate("first")
        assert await until(first) < 0.1
        lease = await r.lease()
        assert (lease["holderIdentity"], lease["leaseDurationSeconds"]) == ("first", LEASE_LASTS)
        assert lease["leaseTransitions"] == 0
        assert lease["acquireTime"] == lease["renewTime"]
        assert len(lease["renewTime"].partition(".")[2]) == len("000000Z")


@in_virtual_time
async def test_a_leader_renews_and_the_other_waits_and_knows_who_leads() -> None:
    async with election_fixture() as r:
        first = r.candidate("first")
        await until(first)
        second = r.candidate("second")
        await asyncio.sleep(600)
        assert (first.leading, second.leading) == (True, False)
        assert second.election.holder == "first"
        lease = await r.lease()
        assert r.clock.now() - parse_timestamp(lease["renewTime"]) <= RETRY + 0.1
        assert parse_timestamp(lease["acquireTime"]) < EPOCH + 1
        assert lease["leaseTransitions"] == 0


@in_virtual_time
async def test_who_stops_cleanly_gives_the_lease_back_and_the_next_begins_at_once() -> None:
    async with election_fixture() as r:
        first = r.candidate("first")
        await until(first)
        second = r.candidate("second")
        await asyncio.sleep(20)
        await first.stop()
        assert not (await r.lease()).get("holderIdentity")
        assert await until(second) <= POLL_INTERVAL + 1.1
        lease = await r.lease()
        assert (lease["holderIdentity"], lease["leaseTransitions"]) == ("second", 1)


@in_virtual_time
async def test_a_leader_that_dies_is_followed_when_its_lease_has_run_out_and_not_before() -> None:
    async with election_fixture() as r:
        first = r.candidate("first")
        await until(first)
        second = r.candidate("second")
        await asyncio.sleep(20)
        first.line.silent = True
        took = await until(second)
        assert LEASE_LASTS - RETRY <= took <= LEASE_LASTS + 2 * POLL_INTERVAL


@pytest.mark.parametrize("how", ["cut", "silent"])
@in_virtual_time
async def test_a_leader_that_loses_the_server_stops_before_anybody_else_begins(how: str) -> None:
    async with election_fixture() as r:
        first = r.candidate("first")
        await until(first)
        second = r.candidate("second")
        await asyncio.sleep(20.5)
        begin = asyncio.get_running_loop().time()
        setattr(first.line, how, True)
        await until(second)
        ((_, end),) = first.terms
        assert RENEW - RETRY <= end - begin <= RENEW
        assert end < asyncio.get_running_loop().time() - 1


@in_virtual_time
async def test_a_short_outage_costs_nothing() -> None:
    async with election_fixture() as r:
        first, second = r.candidate("first"), r.candidate("second")
        await until(first)
        first.line.cut = True
        await asyncio.sleep(RENEW - 2 * RETRY)
        assert isinstance(first.election.failure, Unreachable)
        first.line.cut = False
        await asyncio.sleep(60)
        assert (first.leading, second.leading, first.terms) == (True, False, [])
        assert first.election.failure is None


@in_virtual_time
async def test_whose_lease_is_stolen_stops_at_the_next_look() -> None:
    async with election_fixture() as r:
        first = r.candidate("first")
        await until(first)
        await asyncio.sleep(20)
        begin = asyncio.get_running_loop().time()
        await r.steal("thief")
        await asyncio.sleep(RETRY + 0.1)
        assert not first.leading
        assert first.terms[0][1] - begin <= RETRY + 0.1
        assert (await r.lease())["holderIdentity"] == "thief"
        assert await until(first) <= LEASE_LASTS + POLL_INTERVAL
        assert (await r.lease())["leaseTransitions"] == 1


@in_virtual_time
async def test_a_lease_that_is_deleted_under_a_leader_is_made_again() -> None:
    async with election_fixture() as r:
        first = r.candidate("first")
        await until(first)
        await r.client.delete(LEASE, KEY)
        await asyncio.sleep(30)
        assert (first.leading, first.terms) == (True, [])
        assert (await r.lease())["holderIdentity"] == "first"


@in_virtual_time
async def test_what_others_keep_in_a_lease_stays_there() -> None:
    async with election_fixture() as r:
        meta = {"name": KEY.name, "namespace": KEY.namespace, "labels": {"a": "b"}}
        await r.client.create(LEASE, {"metadata": meta, "spec": {"holderIdentity": ""}})
        await until(r.candidate("first"))
        found = await r.client.get(LEASE, KEY)
        assert found["metadata"]["labels"] == {"a": "b"}


@in_virtual_time
async def test_a_duty_that_fails_is_heard_of_and_the_lease_is_free() -> None:
    async with election_fixture() as r:

        async def duty() -> None:
            raise LookupError("a bug")

        election = LeaderElector(r.client, KEY, "first", r.clock, SeededRandom(1))
        with pytest.raises(ExceptionGroup) as caught:
            await election.run(duty)
        assert caught.group_contains(LookupError)
        assert not (await r.lease()).get("holderIdentity")


faults = st.lists(
    st.tuples(st.sampled_from("ab"), st.sampled_from(("cut", "silent")), st.floats(0.5, 40)),
    max_size=6,
)


@tried(0.2)
@given(faults)
@in_virtual_time
async def test_two_never_lead_at_once_whoever_loses_the_server(
    faults: list[tuple[str, str, float]],
) -> None:
    async with election_fixture() as r:
        by_name = {name: r.candidate(name) for name in "ab"}
        for name, fault, length in faults:
            await asyncio.sleep(length)
            setattr(by_name[name].line, fault, True)
            await asyncio.sleep(length)
            setattr(by_name[name].line, fault, False)
        await asyncio.sleep(120)
        assert sum(candidate.leading for candidate in r.candidates) == 1
        for candidate in r.candidates:
            await candidate.stop()
        terms = sorted(term for candidate in r.candidates for term in candidate.terms)
        assert all(end <= begin for (_, end), (begin, _) in pairwise(terms))
