"""Candidates for one Lease on a server in the same process, in virtual time."""

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
from tests.builders import in_virtual_time, share_of_examples

EPOCH = 1_800_000_000.0
KEY = Key("kube-system", "the-lease")
LEASE_DURATION, RENEW_DEADLINE, RETRY_PERIOD = (
    LeaseTimings().lease_duration,
    LeaseTimings().renew_deadline,
    LeaseTimings().retry_period,
)
#: The longest interval between two reads of the Lease by a candidate.
POLL_INTERVAL = 2.2 * RETRY_PERIOD


class FaultyTransport:
    """A transport that can fail (`cut`) or never answer (`silent`)."""

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
        """Do nothing: there is no connection."""


class Candidate:
    """Stands for election repeatedly and records the terms in which it led."""

    def __init__(self, fixture: ElectionFixture, name: str) -> None:
        self.name, self.transport = name, FaultyTransport(fixture.server)
        self.client = Client(self.transport)
        self.election = LeaderElector(
            self.client, KEY, name, clock=fixture.clock, random=SeededRandom(sum(name.encode()))
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
    """A server, its clock, and the candidates."""

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

    async def steal(self, identity: str) -> None:
        """Overwrite the holder of a lease that has not expired."""
        lease = await self.client.get(LEASE, KEY)
        lease["spec"] |= {"holderIdentity": identity}
        await self.client.update(LEASE, lease)


@asynccontextmanager
async def election_fixture() -> AsyncIterator[ElectionFixture]:
    fixture = ElectionFixture()
    await fixture.server.start()
    try:
        yield fixture
    finally:
        for candidate in fixture.candidates:
            await candidate.stop()


async def wait_until_leading(candidate: Candidate) -> float:
    """Wait until a candidate leads; return the seconds that this took."""
    loop = asyncio.get_running_loop()
    begin = loop.time()
    while not candidate.leading:
        assert loop.time() - begin < 120
        await asyncio.sleep(0.05)
    return loop.time() - begin


@in_virtual_time
async def test_first_candidate_leads_and_holds_the_lease() -> None:
    async with election_fixture() as fixture:
        first = fixture.candidate("first")
        assert await wait_until_leading(first) < 0.1
        lease = await fixture.lease()
        assert (lease["holderIdentity"], lease["leaseDurationSeconds"]) == ("first", LEASE_DURATION)
        assert lease["leaseTransitions"] == 0
        assert lease["acquireTime"] == lease["renewTime"]
        assert len(lease["renewTime"].partition(".")[2]) == len("000000Z")


@in_virtual_time
async def test_leader_renews_while_another_candidate_waits_and_knows_the_holder() -> None:
    async with election_fixture() as fixture:
        first = fixture.candidate("first")
        await wait_until_leading(first)
        second = fixture.candidate("second")
        await asyncio.sleep(600)
        assert (first.leading, second.leading) == (True, False)
        for one, value in ((first, 1), (second, 0)):
            metric = f'leader_election_master_status{{name="the-lease"}} {value}'
            assert metric in one.client.metrics.render()
        assert second.election.holder == "first"
        lease = await fixture.lease()
        assert fixture.clock.now() - parse_timestamp(lease["renewTime"]) <= RETRY_PERIOD + 0.1
        assert parse_timestamp(lease["acquireTime"]) < EPOCH + 1
        assert lease["leaseTransitions"] == 0


@in_virtual_time
async def test_leader_that_stops_releases_the_lease_for_the_next_candidate() -> None:
    async with election_fixture() as fixture:
        first = fixture.candidate("first")
        await wait_until_leading(first)
        second = fixture.candidate("second")
        await asyncio.sleep(20)
        await first.stop()
        assert not (await fixture.lease()).get("holderIdentity")
        assert await wait_until_leading(second) <= POLL_INTERVAL + 1.1
        lease = await fixture.lease()
        assert (lease["holderIdentity"], lease["leaseTransitions"]) == ("second", 1)


@in_virtual_time
async def test_lease_of_a_dead_leader_is_acquired_after_it_expires_and_not_before() -> None:
    async with election_fixture() as fixture:
        first = fixture.candidate("first")
        await wait_until_leading(first)
        second = fixture.candidate("second")
        await asyncio.sleep(20)
        first.transport.silent = True
        took = await wait_until_leading(second)
        assert LEASE_DURATION - RETRY_PERIOD <= took <= LEASE_DURATION + 2 * POLL_INTERVAL


@pytest.mark.parametrize("fault", ["cut", "silent"])
@in_virtual_time
async def test_leader_without_a_connection_stops_before_another_candidate_leads(fault: str) -> None:
    async with election_fixture() as fixture:
        first = fixture.candidate("first")
        await wait_until_leading(first)
        second = fixture.candidate("second")
        await asyncio.sleep(20.5)
        begin = asyncio.get_running_loop().time()
        setattr(first.transport, fault, True)
        await wait_until_leading(second)
        ((_, end),) = first.terms
        assert RENEW_DEADLINE - RETRY_PERIOD <= end - begin <= RENEW_DEADLINE
        assert end < asyncio.get_running_loop().time() - 1


@in_virtual_time
async def test_leader_survives_a_short_outage() -> None:
    async with election_fixture() as fixture:
        first, second = fixture.candidate("first"), fixture.candidate("second")
        await wait_until_leading(first)
        first.transport.cut = True
        await asyncio.sleep(RENEW_DEADLINE - 2 * RETRY_PERIOD)
        assert isinstance(first.election.failure, Unreachable)
        first.transport.cut = False
        await asyncio.sleep(60)
        assert (first.leading, second.leading, first.terms) == (True, False, [])
        assert first.election.failure is None


@in_virtual_time
async def test_leader_stops_when_it_reads_another_holder() -> None:
    async with election_fixture() as fixture:
        first = fixture.candidate("first")
        await wait_until_leading(first)
        await asyncio.sleep(20)
        begin = asyncio.get_running_loop().time()
        await fixture.steal("thief")
        await asyncio.sleep(RETRY_PERIOD + 0.1)
        assert not first.leading
        assert first.terms[0][1] - begin <= RETRY_PERIOD + 0.1
        assert (await fixture.lease())["holderIdentity"] == "thief"
        assert await wait_until_leading(first) <= LEASE_DURATION + POLL_INTERVAL
        assert (await fixture.lease())["leaseTransitions"] == 1


@in_virtual_time
async def test_leader_recreates_a_deleted_lease() -> None:
    async with election_fixture() as fixture:
        first = fixture.candidate("first")
        await wait_until_leading(first)
        await fixture.client.delete(LEASE, KEY)
        await asyncio.sleep(30)
        assert (first.leading, first.terms) == (True, [])
        assert (await fixture.lease())["holderIdentity"] == "first"


@in_virtual_time
async def test_labels_of_an_existing_lease_are_kept() -> None:
    async with election_fixture() as fixture:
        meta = {"name": KEY.name, "namespace": KEY.namespace, "labels": {"a": "b"}}
        await fixture.client.create(LEASE, {"metadata": meta, "spec": {"holderIdentity": ""}})
        await wait_until_leading(fixture.candidate("first"))
        lease = await fixture.client.get(LEASE, KEY)
        assert lease["metadata"]["labels"] == {"a": "b"}


@in_virtual_time
async def test_exception_of_the_leaders_work_is_raised_and_the_lease_released() -> None:
    async with election_fixture() as fixture:

        async def work() -> None:
            raise LookupError("a bug")

        election = LeaderElector(
            fixture.client, KEY, "first", clock=fixture.clock, random=SeededRandom(1)
        )
        with pytest.raises(ExceptionGroup) as raised:
            await election.run(work)
        assert raised.group_contains(LookupError)
        assert not (await fixture.lease()).get("holderIdentity")


faults = st.lists(
    st.tuples(st.sampled_from("ab"), st.sampled_from(("cut", "silent")), st.floats(0.5, 40)),
    max_size=6,
)


@share_of_examples(0.2)
@given(faults)
@in_virtual_time
async def test_two_candidates_never_lead_at_once_whatever_fails(
    faults: list[tuple[str, str, float]],
) -> None:
    async with election_fixture() as fixture:
        by_name = {name: fixture.candidate(name) for name in "ab"}
        for name, fault, length in faults:
            await asyncio.sleep(length)
            setattr(by_name[name].transport, fault, True)
            await asyncio.sleep(length)
            setattr(by_name[name].transport, fault, False)
        await asyncio.sleep(120)
        assert sum(candidate.leading for candidate in fixture.candidates) == 1
        for candidate in fixture.candidates:
            await candidate.stop()
        terms = sorted(term for candidate in fixture.candidates for term in candidate.terms)
        assert all(end <= begin for (_, end), (begin, _) in pairwise(terms))
