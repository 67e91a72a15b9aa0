"""A scheduler beside a server: finding it, being elected, losing either, and beginning again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

import pytest

from phalanx.api.errors import ApiError, Forbidden, NotFound, Unauthorized
from phalanx.api.gates import gated
from phalanx.api.kinds import (
    GROUP_BINDING,
    LEASE,
    NAMESPACE,
    NODE,
    POD,
    POD_GROUP,
    SERVICE,
    Kind,
)
from phalanx.api.meta import Key
from phalanx.api.wire import Object, Reply, Request, Stream
from phalanx.chance import SeededChance, TrueChance
from phalanx.client import kubeconfig
from phalanx.client.client import Client
from phalanx.client.election import Terms
from phalanx.client.transports import InProcess, Unreachable
from phalanx.clock import WallClock
from phalanx.controllers.office import FOREIGN_SCHEDULER, Office, Voice
from phalanx.controllers.tenure import Candidacy
from phalanx.scheduler.policy import DEFAULT
from phalanx.scheduler.settings.profiles import Profiles
from phalanx.server.access import ADMIN, Tokens
from phalanx.server.app import Server, refusal
from phalanx.server.certificates import server_context
from phalanx.server.listener import bind_socket, listening
from phalanx.store.memory import MemoryStore
from tests.builders import gang, in_virtual_time, node, pod
from tests.controllers.cluster import Cluster, cluster, machines
from tests.controllers.foreign import KNOWN, foreign, group_of

LOST = Unreachable("https://there", "Connection refused")
BOUND_ONE_BY_ONE = (
    "the API server has no GroupBinding: pods are bound one by one, "
    "and only those whose schedulerName is phalanx-scheduler"
)
LEASE_KEY = Key("kube-system", "default-scheduler")


class Road:
    """A way to a server that can be blocked, or on which requests are refused."""

    def __init__(self, server: Server) -> None:
        self._inner = InProcess(server.handle, ADMIN)
        self._blocked = asyncio.Event()
        self.refuse: Callable[[Request], ApiError | None] = lambda request: None
        self.asked: list[Request] = []
        self.bind_takes = 0.0

    def block(self) -> None:
        """Nothing gets through any more, and what comes in pieces breaks off."""
        self._blocked.set()

    def clear(self) -> None:
        self._blocked.clear()

    async def send(self, request: Request) -> Reply | Stream:
        if self._blocked.is_set():
            raise LOST
        self.asked.append(request)
        if request.path.endswith("binding"):
            await asyncio.sleep(self.bind_takes)
        if error := self.refuse(request):
            return refusal(error)
        answer = await self._inner.send(request)
        return answer if isinstance(answer, Reply) else Stream(200, self._pieces(answer.chunks))

    async def close(self) -> None:
        """Nothing is held."""

    async def _pieces(self, chunks: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
        async with aclosing(chunks):
            while True:
                piece = asyncio.ensure_future(anext(chunks, b""))
                block = asyncio.ensure_future(self._blocked.wait())
                try:
                    await asyncio.wait((piece, block), return_when=asyncio.FIRST_COMPLETED)
                    if self._blocked.is_set():
                        raise LOST
                    if not (found := await piece):
                        return
                    yield found
                finally:
                    piece.cancel()
                    block.cancel()
                    await asyncio.gather(piece, block, return_exceptions=True)


class Clerk:
    """An office, the way to its server, and all that it said."""

    def __init__(
        self, c: Cluster, name: str = "", *, profiles: Profiles | None = None, gates: str = ""
    ) -> None:
        self.road, self.said = Road(c.plane.server), list[str]()
        self.terms: list[Sequence[str]] = []
        voice = Voice(self.said.append, self.terms.append)
        candidacy = Candidacy(name, Terms()) if name else None
        self.office = Office(
            Client(self.road), c.clock, SeededChance(len(name)), voice, profiles, candidacy,
            gated({gates: False} if gates else {}),
        )  # fmt: skip
        self.task = asyncio.create_task(self.office.run())

    @property
    def binds(self) -> list[str]:
        """Where binds were sent to: the last two words of each path."""
        paths = [request.path for request in self.road.asked if request.method == "POST"]
        short = ["/".join(path.split("/")[-2:]) for path in paths]
        return [path for path in short if "binding" in path]

    async def leads(self, terms: int = 1) -> float:
        """Wait until it schedules; how long that took."""
        loop = asyncio.get_running_loop()
        begin = loop.time()
        while len(self.terms) < terms:
            assert loop.time() - begin < 120
            await asyncio.sleep(0.05)
        return loop.time() - begin

    async def die(self) -> None:
        """End without a farewell."""
        self.road.block()
        await self.stop()

    async def stop(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


@asynccontextmanager
async def ours(count: int = 2, **room: str) -> AsyncIterator[Cluster]:
    """A cluster on a server of ours, without a scheduler."""
    nodes = machines(count, **{"cpu": "4", **room})
    async with cluster(nodes=nodes, without=["scheduler", "controllers"]) as c:
        yield c


@asynccontextmanager
async def clerk(
    c: Cluster, name: str = "", *, profiles: Profiles | None = None, gates: str = ""
) -> AsyncIterator[Clerk]:
    found = Clerk(c, name, profiles=profiles, gates=gates)
    try:
        yield found
    finally:
        await found.stop()
        assert found.task.cancelled() or found.task.exception() is None


def its_gang(name: str, pods: int) -> list[Object]:
    """A gang for the scheduler of a server that is not one of ours."""
    group, *members = gang(name, pods, cpu="1")
    for member in members:
        member["spec"]["schedulerName"] = FOREIGN_SCHEDULER
    return [group, *members]


def hiding(kind: Kind) -> Callable[[Request], ApiError | None]:
    """Nothing of the group version of a kind is there."""
    return lambda request: NotFound("not there") if kind.api_version in request.path else None


# ---- what a server offers ------------------------------------------------------------------------


@in_virtual_time
async def test_on_a_server_of_ours_gangs_are_bound_whole_for_everybody() -> None:
    async with ours() as c, clerk(c) as one:
        await c.create(*gang("a", 3, cpu="1"))
        await c.until_placed("a-0", "a-1", "a-2")
        assert one.binds == ["default/groupbindings"]
        assert (one.terms, one.said) == ([("default-scheduler",)], [])
        await asyncio.sleep(3)
        found = await c.client.get(POD_GROUP, Key("default", "a"))
        assert found["status"]["scheduledPods"] == 3


@in_virtual_time
async def test_on_another_server_pods_are_bound_one_by_one_and_only_its_own() -> None:
    async with foreign(2, cpu="4") as c, clerk(c) as one:
        mine = its_gang("a", 2)
        await c.create(*mine, pod("theirs"))
        await c.until_placed("a-0", "a-1")
        await asyncio.sleep(10)
        assert sorted(await c.placed()) == ["a-0", "a-1"]
        assert one.binds == ["a-0/binding", "a-1/binding"]
        assert (one.terms, one.said) == ([(FOREIGN_SCHEDULER,)], [BOUND_ONE_BY_ONE])
        assert not (await group_of(c, "a")).intent


@in_virtual_time
async def test_the_name_can_be_chosen() -> None:
    profiles = Profiles({"mine": DEFAULT})
    async with foreign(1, cpu="4") as c, clerk(c, profiles=profiles) as one:
        await c.create(pod("a", spec={"schedulerName": "mine"}))
        await c.until_placed("a")
        assert one.terms == [("mine",)]


@in_virtual_time
async def test_where_there_are_no_groups_pods_are_placed_without() -> None:
    async with foreign(1, cpu="4") as c, clerk(c) as one:
        one.road.refuse = hiding(POD_GROUP)
        await c.create(pod("a", spec={"schedulerName": FOREIGN_SCHEDULER}))
        await c.until_placed("a")
        assert one.said == [
            BOUND_ONE_BY_ONE,
            "the API server has no podgroups.scheduling.k8s.io: there are no gangs",
        ]


@in_virtual_time
async def test_gangs_can_be_switched_off() -> None:
    async with ours() as c, clerk(c, gates="GangScheduling") as one:
        await c.create(*gang("a", 2, minimum=2, cpu="1")[:2])
        await c.until_placed("a-0")
        assert one.said == []
        await c.create(pod("a-1", "a"))
        await c.until_placed("a-1")


# ---- a server that is not there ------------------------------------------------------------------


@in_virtual_time
async def test_it_waits_for_a_server_and_says_so_once() -> None:
    async with ours() as c:
        late = Clerk(c)
        late.road.block()
        await asyncio.sleep(60)
        assert late.said == [
            "waiting for the API server: cannot reach https://there: Connection refused"
        ]
        late.road.clear()
        assert await late.leads() < 12
        await late.stop()


@in_virtual_time
async def test_a_server_that_does_not_know_the_credential_is_given_up() -> None:
    async with ours() as c:
        one = Clerk(c)
        one.road.refuse = lambda request: Unauthorized()
        with pytest.raises(Unauthorized):
            await one.task


@in_virtual_time
async def test_after_an_outage_it_goes_on_where_it_was_and_says_so() -> None:
    async with ours() as c, clerk(c) as one:
        await one.leads()
        one.road.block()
        await asyncio.sleep(20)
        await c.create(*gang("a", 3, cpu="1"))
        await asyncio.sleep(20)
        assert await c.placed() == {}
        one.road.clear()
        await c.until_placed("a-0", "a-1", "a-2")
        await asyncio.sleep(40)
        assert one.said == [
            "lost the API server: cannot reach https://there: Connection refused",
            "the API server is back",
        ]
        assert len(one.terms) == 1


@in_virtual_time
async def test_after_an_outage_it_binds_as_the_server_does_by_then() -> None:
    async with ours() as c, clerk(c) as one:
        await one.leads()
        await c.create(*gang("a", 2, cpu="1"))
        await c.until_placed("a-0", "a-1")
        one.road.block()
        await asyncio.sleep(10)
        one.road.refuse = hiding(GROUP_BINDING)
        one.road.clear()
        await one.leads(terms=2)
        mine = [pod(f"b-{n}", spec={"schedulerName": FOREIGN_SCHEDULER}) for n in range(2)]
        await c.create(*mine)
        await c.until_placed("b-0", "b-1")
        assert one.binds == ["default/groupbindings", "b-0/binding", "b-1/binding"]


# ---- what may not be read ------------------------------------------------------------------------


@in_virtual_time
async def test_namespaces_and_services_need_not_be_readable_and_that_is_said() -> None:
    async with ours() as c:
        one = Clerk(c)
        places = (NAMESPACE.path(), SERVICE.path())

        def refuse(request: Request) -> ApiError | None:
            name = request.path.rpartition("/")[2]
            return Forbidden(f"{name} is forbidden") if request.path in places else None

        one.road.refuse = refuse
        await one.leads()
        await c.create(*gang("a", 2, cpu="1"))
        await c.until_placed("a-0", "a-1")
        await asyncio.sleep(60)
        assert sorted(one.said) == [
            "namespaces is forbidden; namespaces are taken to have no labels",
            "services is forbidden; pods are not spread for the sake of services",
        ]
        await one.stop()


@in_virtual_time
async def test_without_pods_and_nodes_nothing_begins_and_that_is_said() -> None:
    async with ours() as c, clerk(c) as one:
        one.road.refuse = lambda request: (
            Forbidden("nodes is forbidden") if request.path == NODE.path() else None
        )
        await asyncio.sleep(60)
        assert (one.said, one.terms) == (["nodes is forbidden"], [])


# ---- one of two ----------------------------------------------------------------------------------


async def holder(c: Cluster) -> str:
    found: Object = (await c.client.get(LEASE, LEASE_KEY))["spec"]
    name: str = found.get("holderIdentity", "")
    return name


@in_virtual_time
async def test_of_two_one_schedules_and_the_other_knows_who() -> None:
    async with ours() as c, clerk(c, "first") as first:
        await first.leads()
        async with clerk(c, "second") as second:
            await c.create(*gang("a", 2, cpu="1"))
            await c.until_placed("a-0", "a-1")
            await asyncio.sleep(30)
            assert (len(first.binds), second.binds, second.terms) == (1, [], [])
            assert second.said == ["lease kube-system/default-scheduler: first leads"]
            assert first.said == []


@in_virtual_time
async def test_who_stops_hands_over_at_once() -> None:
    async with ours() as c, clerk(c, "first") as first:
        await first.leads()
        async with clerk(c, "second") as second:
            await asyncio.sleep(5)
            await first.office.wind_up()
            await first.stop()
            assert await holder(c) == ""
            assert await second.leads() < 6


@in_virtual_time
async def test_who_loses_the_server_stops_scheduling_and_begins_anew_when_it_is_back() -> None:
    async with ours() as c, clerk(c, "first") as first:
        await first.leads()
        async with clerk(c, "second") as second:
            await asyncio.sleep(5)
            first.road.block()
            assert 10 < await second.leads() < 25
            first.road.clear()
            await asyncio.sleep(60)
            before = len(first.binds)
            await c.create(*gang("a", 2, cpu="1"))
            await c.until_placed("a-0", "a-1")
            assert (len(first.binds), len(second.binds)) == (before, 1)
            assert "lease kube-system/default-scheduler: the leadership is lost" in first.said
            await second.stop()
            await first.leads(terms=2)


@in_virtual_time
async def test_a_gang_that_the_dead_leader_began_is_finished_by_the_next() -> None:
    async with foreign(3, cpu="1") as c:
        first = Clerk(c, "first")
        await first.leads()
        second = Clerk(c, "second")
        first.road.refuse = lambda request: (
            Forbidden("not this one") if request.path.endswith("a-2/binding") else None
        )
        mine = its_gang("a", 3)
        await c.create(*mine)
        await c.until_placed("a-0", "a-1")
        await first.die()
        assert (await group_of(c, "a")).intent
        await second.leads()
        await c.until_placed("a-2")
        await asyncio.sleep(2)
        assert second.binds == ["a-2/binding"]
        assert not (await group_of(c, "a")).intent
        await second.stop()


@in_virtual_time
async def test_what_is_under_way_at_the_end_is_waited_for_and_nothing_more_is_begun() -> None:
    async with foreign(3, cpu="1") as c:
        one = Clerk(c)
        await one.leads()
        mine = its_gang("a", 3)
        one.road.bind_takes = 0.3
        await c.create(*mine)
        await asyncio.sleep(0.1)
        assert len(one.binds) == 3
        assert await c.placed() == {}
        await one.office.wind_up()
        await c.create(pod("late", spec={"schedulerName": FOREIGN_SCHEDULER}))
        await asyncio.sleep(5)
        assert sorted(await c.placed()) == ["a-0", "a-1", "a-2"]
        await one.stop()


# ---- over the network ----------------------------------------------------------------------------


@asynccontextmanager
async def on_the_network(folder: Path) -> AsyncIterator[tuple[Client, Client]]:
    """A server that is not one of ours, over TLS: a user of it, and the scheduler's client."""
    clock, tokens, sock = WallClock(), Tokens({"secret": ADMIN}), bind_socket("127.0.0.1", 0)
    tls, authority = server_context(folder, [], clock.now())
    server = Server(MemoryStore(), clock, TrueChance(), KNOWN, tokens)
    await server.start()
    url = f"https://127.0.0.1:{sock.getsockname()[1]}"
    client = kubeconfig.connect(kubeconfig.Access(url, ca=authority.decode(), token="secret"))
    try:
        async with listening(server.handle, tokens, sock, tls):
            yield Client(InProcess(server.handle, ADMIN)), client
    finally:
        await client.close()


def test_a_gang_is_bound_one_by_one_over_the_network(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with on_the_network(tmp_path) as (user, client):
            said: list[str] = []
            ready = asyncio.Event()
            voice = Voice(said.append, lambda names: ready.set())
            candidacy = Candidacy("me", Terms())
            office = Office(
                client, WallClock(), TrueChance(), voice, Profiles({"me": DEFAULT}), candidacy
            )
            running = asyncio.create_task(office.run())
            for name in ("n1", "n2"):
                await user.create(NODE, node(name, cpu="2"))
                await user.patch(NODE, Key("", name), {"spec": {"taints": None}})
            await asyncio.wait_for(ready.wait(), 10)
            group, *members = gang("a", 4, cpu="1")
            await user.create(POD_GROUP, group)
            for member in members:
                await user.create(
                    POD, {**member, "spec": {**member["spec"], "schedulerName": "me"}}
                )
            await asyncio.wait_for(whole(user), 10)
            await office.wind_up()
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            lease = await user.get(LEASE, Key("kube-system", "me"))
            assert "holderIdentity" not in lease["spec"]

    asyncio.run(scenario())


async def whole(user: Client) -> None:
    """Wait until the gang is bound and its intent closed."""
    while True:
        pods = (await user.list(POD)).items
        group = await user.get(POD_GROUP, Key("default", "a"))
        if all(one["spec"].get("nodeName") for one in pods) and not group["metadata"].get(
            "annotations"
        ):
            return
        await asyncio.sleep(0.02)
