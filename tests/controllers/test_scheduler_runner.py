"""A scheduler beside a server: finding it, being elected, losing either, and beginning again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

import pytest

from phalanx.api.errors import ApiError, Forbidden, NotFound, Unauthorized
from phalanx.api.feature_gates import resolve_gates
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
from phalanx.api.wire import Object, Reply, Request, StreamReply
from phalanx.client import kubeconfig
from phalanx.client.client import Client
from phalanx.client.leader_election import LeaseTimings
from phalanx.client.transports import InProcessTransport, Unreachable
from phalanx.clock import WallClock
from phalanx.controllers.leadership import ElectionConfig
from phalanx.controllers.scheduler_runner import (
    FOREIGN_SCHEDULER,
    SchedulerRunner,
    SchedulerRunnerCallbacks,
)
from phalanx.randomness import SeededRandom, SystemRandom
from phalanx.scheduler.configuration.profiles import Profiles
from phalanx.scheduler.policy import DEFAULT_POLICY
from phalanx.server.app import Server, error_reply
from phalanx.server.http_server import bind_socket, serve_http
from phalanx.server.security.authorization import ADMIN, Tokens
from phalanx.server.security.keyring import server_tls_context
from phalanx.store.memory import MemoryStore
from tests.builders import gang, in_virtual_time, node, pod
from tests.controllers.cluster import Cluster, cluster, simulated_nodes
from tests.controllers.foreign_cluster import FOREIGN_KINDS, foreign_cluster, group_of

LOST = Unreachable("https://there", "Connection refused")
BOUND_ONE_BY_ONE = (
    "the API server has no GroupBinding: pods are bound one by one, "
    "and only those whose schedulerName is phalanx-scheduler"
)
LEASE_KEY = Key("kube-system", "default-scheduler")


class BlockableTransport:
    """A way to a server that can be blocked, or on which requests are refused."""

    def __init__(self, server: Server) -> None:
        self._inner = InProcessTransport(server.handle, ADMIN)
        self._blocked = asyncio.Event()
        self.refuse: Callable[[Request], ApiError | None] = lambda request: None
        self.requests: list[Request] = []
        self.bind_seconds = 0.0

    def block(self) -> None:
        """Nothing gets through any more, and what comes in pieces breaks off."""
        self._blocked.set()

    def clear(self) -> None:
        self._blocked.clear()

    async def send(self, request: Request) -> Reply | StreamReply:
        if self._blocked.is_set():
            raise LOST
        self.requests.append(request)
        if request.path.endswith("binding"):
            await asyncio.sleep(self.bind_seconds)
        if error := self.refuse(request):
            return error_reply(error)
        answer = await self._inner.send(request)
        return (
            answer if isinstance(answer, Reply) else StreamReply(200, self._chunks(answer.chunks))
        )

    async def close(self) -> None:
        """Nothing is held."""

    async def _chunks(self, chunks: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
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


class RunningScheduler:
    """An office, the way to its server, and all that it said."""

    def __init__(
        self, c: Cluster, name: str = "", *, profiles: Profiles | None = None, gates: str = ""
    ) -> None:
        self.transport, self.messages = BlockableTransport(c.plane.server), list[str]()
        self.ready_names: list[Sequence[str]] = []
        voice = SchedulerRunnerCallbacks(self.messages.append, self.ready_names.append)
        candidacy = ElectionConfig(name, LeaseTimings()) if name else None
        self.runner = SchedulerRunner(
            Client(self.transport), c.clock, SeededRandom(len(name)), voice, profiles, candidacy,
            resolve_gates({gates: False} if gates else {}),
        )  # fmt: skip
        self.task = asyncio.create_task(self.runner.run())

    @property
    def bind_paths(self) -> list[str]:
        """Where binds were sent to: the last two words of each path."""
        paths = [request.path for request in self.transport.requests if request.method == "POST"]
        short = ["/".join(path.split("/")[-2:]) for path in paths]
        return [path for path in short if "binding" in path]

    async def wait_until_leading(self, terms: int = 1) -> float:
        """Wait until it schedules; how long that took."""
        loop = asyncio.get_running_loop()
        begin = loop.time()
        while len(self.ready_names) < terms:
            assert loop.time() - begin < 120
            await asyncio.sleep(0.05)
        return loop.time() - begin

    async def die(self) -> None:
        """End without a farewell."""
        self.transport.block()
        await self.stop()

    async def stop(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


@asynccontextmanager
async def phalanx_cluster(count: int = 2, **room: str) -> AsyncIterator[Cluster]:
    """A cluster on a server of ours, without a scheduler."""
    nodes = simulated_nodes(count, **{"cpu": "4", **room})
    async with cluster(nodes=nodes, without=["scheduler", "controllers"]) as c:
        yield c


@asynccontextmanager
async def running_scheduler(
    c: Cluster, name: str = "", *, profiles: Profiles | None = None, gates: str = ""
) -> AsyncIterator[RunningScheduler]:
    found = RunningScheduler(c, name, profiles=profiles, gates=gates)
    try:
        yield found
    finally:
        await found.stop()
        assert found.task.cancelled() or found.task.exception() is None


def foreign_gang(name: str, pods: int) -> list[Object]:
    """A gang for the scheduler of a server that is not one of ours."""
    group, *members = gang(name, pods, cpu="1")
    for member in members:
        member["spec"]["schedulerName"] = FOREIGN_SCHEDULER
    return [group, *members]


def hide_kind(kind: Kind) -> Callable[[Request], ApiError | None]:
    """Nothing of the group version of a kind is there."""
    return lambda request: NotFound("not there") if kind.api_version in request.path else None


# ---- what a server offers ------------------------------------------------------------------------


@in_virtual_time
async def test_on_a_server_of_ours_gangs_are_bound_whole_for_everybody() -> None:
    async with phalanx_cluster() as c, running_scheduler(c) as one:
        await c.create(*gang("a", 3, cpu="1"))
        await c.until_placed("a-0", "a-1", "a-2")
        assert one.bind_paths == ["default/groupbindings"]
        assert (one.ready_names, one.messages) == ([("default-scheduler",)], [])
        await asyncio.sleep(3)
        found = await c.client.get(POD_GROUP, Key("default", "a"))
        assert found["status"]["scheduledPods"] == 3


@in_virtual_time
async def test_on_another_server_pods_are_bound_one_by_one_and_only_its_own() -> None:
    async with foreign_cluster(2, cpu="4") as c, running_scheduler(c) as one:
        mine = foreign_gang("a", 2)
        await c.create(*mine, pod("theirs"))
        await c.until_placed("a-0", "a-1")
        await asyncio.sleep(10)
        assert sorted(await c.node_by_pod()) == ["a-0", "a-1"]
        assert one.bind_paths == ["a-0/binding", "a-1/binding"]
        assert (one.ready_names, one.messages) == ([(FOREIGN_SCHEDULER,)], [BOUND_ONE_BY_ONE])
        assert not (await group_of(c, "a")).binding_intent


@in_virtual_time
async def test_the_name_can_be_chosen() -> None:
    profiles = Profiles({"mine": DEFAULT_POLICY})
    async with foreign_cluster(1, cpu="4") as c, running_scheduler(c, profiles=profiles) as one:
        await c.create(pod("a", spec={"schedulerName": "mine"}))
        await c.until_placed("a")
        assert one.ready_names == [("mine",)]


@in_virtual_time
async def test_where_there_are_no_groups_pods_are_placed_without() -> None:
    async with foreign_cluster(1, cpu="4") as c, running_scheduler(c) as one:
        one.transport.refuse = hide_kind(POD_GROUP)
        await c.create(pod("a", spec={"schedulerName": FOREIGN_SCHEDULER}))
        await c.until_placed("a")
        assert one.messages == [
            BOUND_ONE_BY_ONE,
            "the API server has no podgroups.scheduling.k8s.io: there are no gangs",
        ]


@in_virtual_time
async def test_gangs_can_be_switched_off() -> None:
    async with phalanx_cluster() as c, running_scheduler(c, gates="GangScheduling") as one:
        await c.create(*gang("a", 2, minimum=2, cpu="1")[:2])
        await c.until_placed("a-0")
        assert one.messages == []
        await c.create(pod("a-1", "a"))
        await c.until_placed("a-1")


# ---- a server that is not there ------------------------------------------------------------------


@in_virtual_time
async def test_it_waits_for_a_server_and_says_so_once() -> None:
    async with phalanx_cluster() as c:
        late = RunningScheduler(c)
        late.transport.block()
        await asyncio.sleep(60)
        assert late.messages == [
            "waiting for the API server: cannot reach https://there: Connection refused"
        ]
        late.transport.clear()
        assert await late.wait_until_leading() < 12
        await late.stop()


@in_virtual_time
async def test_a_server_that_does_not_know_the_credential_is_given_up() -> None:
    async with phalanx_cluster() as c:
        one = RunningScheduler(c)
        one.transport.refuse = lambda request: Unauthorized()
        with pytest.raises(Unauthorized):
            await one.task


@in_virtual_time
async def test_after_an_outage_it_goes_on_where_it_was_and_says_so() -> None:
    async with phalanx_cluster() as c, running_scheduler(c) as one:
        await one.wait_until_leading()
        one.transport.block()
        await asyncio.sleep(20)
        await c.create(*gang("a", 3, cpu="1"))
        await asyncio.sleep(20)
        assert await c.node_by_pod() == {}
        one.transport.clear()
        await c.until_placed("a-0", "a-1", "a-2")
        await asyncio.sleep(40)
        assert one.messages == [
            "lost the API server: cannot reach https://there: Connection refused",
            "the API server is back",
        ]
        assert len(one.ready_names) == 1


@in_virtual_time
async def test_after_an_outage_it_binds_as_the_server_does_by_then() -> None:
    async with phalanx_cluster() as c, running_scheduler(c) as one:
        await one.wait_until_leading()
        await c.create(*gang("a", 2, cpu="1"))
        await c.until_placed("a-0", "a-1")
        one.transport.block()
        await asyncio.sleep(10)
        one.transport.refuse = hide_kind(GROUP_BINDING)
        one.transport.clear()
        await one.wait_until_leading(terms=2)
        mine = [pod(f"b-{n}", spec={"schedulerName": FOREIGN_SCHEDULER}) for n in range(2)]
        await c.create(*mine)
        await c.until_placed("b-0", "b-1")
        assert one.bind_paths == ["default/groupbindings", "b-0/binding", "b-1/binding"]


# ---- what may not be read ------------------------------------------------------------------------


@in_virtual_time
async def test_namespaces_and_services_need_not_be_readable_and_that_is_said() -> None:
    async with phalanx_cluster() as c:
        one = RunningScheduler(c)
        places = (NAMESPACE.url_path(), SERVICE.url_path())

        def refuse(request: Request) -> ApiError | None:
            name = request.path.rpartition("/")[2]
            return Forbidden(f"{name} is forbidden") if request.path in places else None

        one.transport.refuse = refuse
        await one.wait_until_leading()
        await c.create(*gang("a", 2, cpu="1"))
        await c.until_placed("a-0", "a-1")
        await asyncio.sleep(60)
        assert sorted(one.messages) == [
            "namespaces is forbidden; namespaces are taken to have no labels",
            "services is forbidden; pods are not spread for the sake of services",
        ]
        await one.stop()


@in_virtual_time
async def test_without_pods_and_nodes_nothing_begins_and_that_is_said() -> None:
    async with phalanx_cluster() as c, running_scheduler(c) as one:
        one.transport.refuse = lambda request: (
            Forbidden("nodes is forbidden") if request.path == NODE.url_path() else None
        )
        await asyncio.sleep(60)
        assert (one.messages, one.ready_names) == (["nodes is forbidden"], [])


# ---- one of two ----------------------------------------------------------------------------------


async def holder(c: Cluster) -> str:
    found: Object = (await c.client.get(LEASE, LEASE_KEY))["spec"]
    name: str = found.get("holderIdentity", "")
    return name


@in_virtual_time
async def test_of_two_one_schedules_and_the_other_knows_who() -> None:
    async with phalanx_cluster() as c, running_scheduler(c, "first") as first:
        await first.wait_until_leading()
        async with running_scheduler(c, "second") as second:
            await c.create(*gang("a", 2, cpu="1"))
            await c.until_placed("a-0", "a-1")
            await asyncio.sleep(30)
            assert (len(first.bind_paths), second.bind_paths, second.ready_names) == (1, [], [])
            assert second.messages == ["lease kube-system/default-scheduler: first leads"]
            assert first.messages == []


@in_virtual_time
async def test_who_stops_hands_over_at_once() -> None:
    async with phalanx_cluster() as c, running_scheduler(c, "first") as first:
        await first.wait_until_leading()
        async with running_scheduler(c, "second") as second:
            await asyncio.sleep(5)
            await first.runner.drain()
            await first.stop()
            assert await holder(c) == ""
            assert await second.wait_until_leading() < 6


@in_virtual_time
async def test_who_loses_the_server_stops_scheduling_and_begins_anew_when_it_is_back() -> None:
    async with phalanx_cluster() as c, running_scheduler(c, "first") as first:
        await first.wait_until_leading()
        async with running_scheduler(c, "second") as second:
            await asyncio.sleep(5)
            first.transport.block()
            assert 10 < await second.wait_until_leading() < 25
            first.transport.clear()
            await asyncio.sleep(60)
            before = len(first.bind_paths)
            await c.create(*gang("a", 2, cpu="1"))
            await c.until_placed("a-0", "a-1")
            assert (len(first.bind_paths), len(second.bind_paths)) == (before, 1)
            assert "lease kube-system/default-scheduler: the leadership is lost" in first.messages
            await second.stop()
            await first.wait_until_leading(terms=2)


@in_virtual_time
async def test_a_gang_that_the_dead_leader_began_is_finished_by_the_next() -> None:
    async with foreign_cluster(3, cpu="1") as c:
        first = RunningScheduler(c, "first")
        await first.wait_until_leading()
        second = RunningScheduler(c, "second")
        first.transport.refuse = lambda request: (
            Forbidden("not this one") if request.path.endswith("a-2/binding") else None
        )
        mine = foreign_gang("a", 3)
        await c.create(*mine)
        await c.until_placed("a-0", "a-1")
        await first.die()
        assert (await group_of(c, "a")).binding_intent
        await second.wait_until_leading()
        await c.until_placed("a-2")
        await asyncio.sleep(2)
        assert second.bind_paths == ["a-2/binding"]
        assert not (await group_of(c, "a")).binding_intent
        await second.stop()


@in_virtual_time
async def test_what_is_under_way_at_the_end_is_waited_for_and_nothing_more_is_begun() -> None:
    async with foreign_cluster(3, cpu="1") as c:
        one = RunningScheduler(c)
        await one.wait_until_leading()
        mine = foreign_gang("a", 3)
        one.transport.bind_seconds = 0.3
        await c.create(*mine)
        await asyncio.sleep(0.1)
        assert len(one.bind_paths) == 3
        assert await c.node_by_pod() == {}
        await one.runner.drain()
        await c.create(pod("late", spec={"schedulerName": FOREIGN_SCHEDULER}))
        await asyncio.sleep(5)
        assert sorted(await c.node_by_pod()) == ["a-0", "a-1", "a-2"]
        await one.stop()


# ---- over the network ----------------------------------------------------------------------------


@asynccontextmanager
async def on_the_network(folder: Path) -> AsyncIterator[tuple[Client, Client]]:
    """A server that is not one of ours, over TLS: a user of it, and the scheduler's client."""
    clock, tokens, sock = WallClock(), Tokens({"secret": ADMIN}), bind_socket("127.0.0.1", 0)
    tls, authority = server_tls_context(folder, [], clock.now())
    server = Server(MemoryStore(), clock, SystemRandom(), FOREIGN_KINDS, tokens)
    await server.start()
    url = f"https://127.0.0.1:{sock.getsockname()[1]}"
    client = kubeconfig.create_client(
        kubeconfig.ClientConfig(url, ca=authority.decode(), token="secret")
    )
    try:
        async with serve_http(server.handle, tokens, sock, tls):
            yield Client(InProcessTransport(server.handle, ADMIN)), client
    finally:
        await client.close()


def test_a_gang_is_bound_one_by_one_over_the_network(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with on_the_network(tmp_path) as (user, client):
            said: list[str] = []
            ready = asyncio.Event()
            voice = SchedulerRunnerCallbacks(said.append, lambda names: ready.set())
            candidacy = ElectionConfig("me", LeaseTimings())
            office = SchedulerRunner(
                client,
                WallClock(),
                SystemRandom(),
                voice,
                Profiles({"me": DEFAULT_POLICY}),
                candidacy,
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
            await office.drain()
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
