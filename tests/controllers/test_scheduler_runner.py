"""A scheduler beside an API server: waiting for it, leader election, losing either, recovery."""

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
    SchedulerRunnerConfig,
)
from phalanx.randomness import SeededRandom, SystemRandom
from phalanx.scheduler.policy import DEFAULT_POLICY, Profiles
from phalanx.server.app import Server, error_reply
from phalanx.server.http_server import bind_socket, serve_http
from phalanx.server.security.authorization import ADMIN, Tokens
from phalanx.server.security.keyring import server_tls_context
from phalanx.store.memory import MemoryStore
from tests.builders import gang, in_virtual_time, node, pod
from tests.controllers.cluster import Cluster, cluster, simulated_nodes
from tests.controllers.foreign_cluster import FOREIGN_KINDS, foreign_cluster, group_of
from tests.recording_log import RecordingLog

LOST = Unreachable("https://there", "Connection refused")
BOUND_ONE_BY_ONE = "the API server has no GroupBinding: pods are bound one by one"
LEASE_KEY = Key("kube-system", "default-scheduler")


class BlockableTransport:
    """A transport that can be blocked, or that refuses requests."""

    def __init__(self, server: Server) -> None:
        self._inner = InProcessTransport(server.handle, ADMIN)
        self._blocked = asyncio.Event()
        self.refuse: Callable[[Request], ApiError | None] = lambda request: None
        self.requests: list[Request] = []
        self.bind_seconds = 0.0

    def block(self) -> None:
        """Fail all requests and break open watches."""
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
        """Do nothing."""

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
    """A running SchedulerRunner, its transport and its log lines."""

    def __init__(
        self, c: Cluster, name: str = "", *, profiles: Profiles | None = None, gates: str = ""
    ) -> None:
        self.transport, self.log = BlockableTransport(c.plane.server), RecordingLog()
        self.ready_names: list[Sequence[str]] = []
        self.runner = SchedulerRunner(
            Client(self.transport),
            c.clock,
            SeededRandom(len(name)),
            on_ready=self.ready_names.append,
            config=SchedulerRunnerConfig(
                profiles=profiles, gates=resolve_gates({gates: False} if gates else {})
            ),
            election=ElectionConfig(name, LeaseTimings()) if name else None,
            log=self.log,
        )
        self.task = asyncio.create_task(self.runner.run())

    @property
    def messages(self) -> list[str]:
        """The log messages at info level and above, with their reasons."""
        return self.log.messages()

    @property
    def bind_paths(self) -> list[str]:
        """The last two segments of the path of each bind request."""
        paths = [request.path for request in self.transport.requests if request.method == "POST"]
        short = ["/".join(path.split("/")[-2:]) for path in paths]
        return [path for path in short if "binding" in path]

    async def wait_until_leading(self, terms: int = 1) -> float:
        """Wait until it schedules; returns the seconds that this took."""
        loop = asyncio.get_running_loop()
        begin = loop.time()
        while len(self.ready_names) < terms:
            assert loop.time() - begin < 120
            await asyncio.sleep(0.05)
        return loop.time() - begin

    async def crash(self) -> None:
        """Stop without releasing the lease."""
        self.transport.block()
        await self.stop()

    async def stop(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


@asynccontextmanager
async def phalanx_cluster(count: int = 2, **capacity: str) -> AsyncIterator[Cluster]:
    """A cluster on a Phalanx server, without a scheduler."""
    nodes = simulated_nodes(count, **{"cpu": "4", **capacity})
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
    """A gang whose pods name the scheduler of a foreign server."""
    group, *members = gang(name, pods, cpu="1")
    for member in members:
        member["spec"]["schedulerName"] = FOREIGN_SCHEDULER
    return [group, *members]


def hide_kind(kind: Kind) -> Callable[[Request], ApiError | None]:
    """Do not serve the API group version of a kind."""
    return lambda request: NotFound("not served") if kind.api_version in request.path else None


# ---- capabilities of a server --------------------------------------------------------------------


@in_virtual_time
async def test_on_a_phalanx_server_gangs_are_bound_in_one_request() -> None:
    async with phalanx_cluster() as c, running_scheduler(c) as one:
        await c.create(*gang("a", 3, cpu="1"))
        await c.until_placed("a-0", "a-1", "a-2")
        assert one.bind_paths == ["default/groupbindings"]
        assert (one.ready_names, one.messages) == ([("default-scheduler",)], ["scheduling"])
        await asyncio.sleep(3)
        found = await c.client.get(POD_GROUP, Key("default", "a"))
        assert found["status"]["scheduledPods"] == 3


@in_virtual_time
async def test_on_a_foreign_server_pods_of_its_scheduler_name_are_bound_one_by_one() -> None:
    async with foreign_cluster(2, cpu="4") as c, running_scheduler(c) as one:
        mine = foreign_gang("a", 2)
        await c.create(*mine, pod("theirs"))
        await c.until_placed("a-0", "a-1")
        await asyncio.sleep(10)
        assert sorted(await c.node_by_pod()) == ["a-0", "a-1"]
        assert one.bind_paths == ["a-0/binding", "a-1/binding"]
        assert one.ready_names == [(FOREIGN_SCHEDULER,)]
        assert one.messages == [BOUND_ONE_BY_ONE, "scheduling"]
        assert one.log.lines[0].fields == {"schedulers": f"('{FOREIGN_SCHEDULER}',)"}
        assert not (await group_of(c, "a")).binding_intent


@in_virtual_time
async def test_profiles_choose_the_scheduler_name() -> None:
    profiles = Profiles({"mine": DEFAULT_POLICY})
    async with foreign_cluster(1, cpu="4") as c, running_scheduler(c, profiles=profiles) as one:
        await c.create(pod("a", spec={"schedulerName": "mine"}))
        await c.until_placed("a")
        assert one.ready_names == [("mine",)]


@in_virtual_time
async def test_on_a_server_without_pod_groups_pods_are_placed_alone() -> None:
    async with foreign_cluster(1, cpu="4") as c, running_scheduler(c) as one:
        one.transport.refuse = hide_kind(POD_GROUP)
        await c.create(pod("a", spec={"schedulerName": FOREIGN_SCHEDULER}))
        await c.until_placed("a")
        assert one.messages == [
            BOUND_ONE_BY_ONE,
            "the API server has no PodGroups: gang scheduling is off; see phalanx install",
            "scheduling",
        ]


@in_virtual_time
async def test_a_feature_gate_switches_gang_scheduling_off() -> None:
    async with phalanx_cluster() as c, running_scheduler(c, gates="GangScheduling") as one:
        await c.create(*gang("a", 2, minimum=2, cpu="1")[:2])
        await c.until_placed("a-0")
        assert one.messages == ["scheduling"]
        await c.create(pod("a-1", "a"))
        await c.until_placed("a-1")


# ---- an unreachable server ----------------------------------------------------------------------


@in_virtual_time
async def test_waiting_for_a_server_is_one_warning() -> None:
    async with phalanx_cluster() as c:
        late = RunningScheduler(c)
        late.transport.block()
        await asyncio.sleep(60)
        assert late.messages == [
            "waiting for the API server: cannot reach https://there: Connection refused"
        ]
        waits = [line for line in late.log.lines if line.message == "waiting for the API server"]
        assert [line.level for line in waits[:3]] == ["WARNING", "DEBUG", "DEBUG"]
        assert [line.fields["attempt"] for line in waits[:3]] == ["1", "2", "3"]
        assert all(0.5 <= float(line.fields["backoff"]) <= 10 for line in waits)
        late.transport.clear()
        assert await late.wait_until_leading() < 12
        await late.stop()


@in_virtual_time
async def test_a_rejected_credential_ends_the_runner() -> None:
    async with phalanx_cluster() as c:
        one = RunningScheduler(c)
        one.transport.refuse = lambda request: Unauthorized()
        with pytest.raises(Unauthorized):
            await one.task


@in_virtual_time
async def test_after_an_outage_it_continues_in_the_same_term() -> None:
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
            "scheduling",
            "API server unreachable: cannot reach https://there: Connection refused",
            "API server reachable again",
        ]
        assert len(one.ready_names) == 1


@in_virtual_time
async def test_after_an_outage_it_discovers_how_the_server_binds() -> None:
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


# ---- forbidden resources ------------------------------------------------------------------------


@in_virtual_time
async def test_forbidden_namespaces_and_services_are_logged_with_their_effect() -> None:
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
        forbidden = [line for line in one.log.lines if line.message == "cannot read a resource"]
        assert sorted((line.fields["reason"], line.fields["effect"]) for line in forbidden) == [
            ("namespaces is forbidden", "namespaceSelectors see namespaces without labels"),
            ("services is forbidden", "pods are not spread by service"),
        ]
        assert {line.level for line in forbidden} == {"WARNING"}
        await one.stop()


@in_virtual_time
async def test_forbidden_nodes_keep_it_from_scheduling() -> None:
    async with phalanx_cluster() as c, running_scheduler(c) as one:
        one.transport.refuse = lambda request: (
            Forbidden("nodes is forbidden") if request.path == NODE.url_path() else None
        )
        await asyncio.sleep(60)
        assert one.messages == ["cannot read a resource: nodes is forbidden"]
        assert one.ready_names == []


# ---- leader election -----------------------------------------------------------------------------


async def holder(c: Cluster) -> str:
    found: Object = (await c.client.get(LEASE, LEASE_KEY))["spec"]
    name: str = found.get("holderIdentity", "")
    return name


@in_virtual_time
async def test_only_the_leader_schedules_and_the_other_logs_its_name() -> None:
    async with phalanx_cluster() as c, running_scheduler(c, "first") as first:
        await first.wait_until_leading()
        async with running_scheduler(c, "second") as second:
            await c.create(*gang("a", 2, cpu="1"))
            await c.until_placed("a-0", "a-1")
            await asyncio.sleep(30)
            assert (len(first.bind_paths), second.bind_paths, second.ready_names) == (1, [], [])
            assert second.messages == ["another candidate leads"]
            assert second.log.lines[-1].fields == {"lease": str(LEASE_KEY), "holder": "first"}
            assert first.messages == ["leadership acquired", "scheduling"]


@in_virtual_time
async def test_the_lease_says_which_scheduler_names_its_holder_serves() -> None:
    profiles = Profiles({"mine": DEFAULT_POLICY, "batch": DEFAULT_POLICY})
    async with phalanx_cluster() as c, running_scheduler(c, "first", profiles=profiles) as first:
        await first.wait_until_leading()
        lease = await c.client.get(LEASE, Key("kube-system", "mine"))
    assert lease["metadata"]["annotations"] == {"phalanx.dev/scheduler-names": "mine,batch"}


@in_virtual_time
async def test_a_stopped_leader_releases_the_lease() -> None:
    async with phalanx_cluster() as c, running_scheduler(c, "first") as first:
        await first.wait_until_leading()
        async with running_scheduler(c, "second") as second:
            await asyncio.sleep(5)
            await first.runner.drain()
            await first.stop()
            assert await holder(c) == ""
            assert await second.wait_until_leading() < 6


@in_virtual_time
async def test_a_leader_without_a_server_stops_scheduling_and_starts_over() -> None:
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
            assert "leadership lost" in first.messages
            await second.stop()
            await first.wait_until_leading(terms=2)


@in_virtual_time
async def test_a_gang_that_a_crashed_leader_began_is_completed_by_the_next() -> None:
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
        await first.crash()
        assert (await group_of(c, "a")).binding_intent
        await second.wait_until_leading()
        await c.until_placed("a-2")
        await asyncio.sleep(2)
        assert second.bind_paths == ["a-2/binding"]
        assert not (await group_of(c, "a")).binding_intent
        await second.stop()


@in_virtual_time
async def test_drain_waits_for_binds_in_progress_and_starts_no_cycle() -> None:
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
async def network_server(folder: Path) -> AsyncIterator[tuple[Client, Client]]:
    """A foreign server over TLS: a client of a user, and the client of the scheduler."""
    clock, tokens, sock = WallClock(), Tokens({"secret": ADMIN}), bind_socket("127.0.0.1", 0)
    tls, authority = server_tls_context(folder, [], clock.now())
    server = Server(MemoryStore(), clock, SystemRandom(), kinds=FOREIGN_KINDS, tokens=tokens)
    await server.start()
    url = f"https://127.0.0.1:{sock.getsockname()[1]}"
    client = kubeconfig.create_client(
        kubeconfig.ClientConfig(url, ca=authority.decode(), token="secret")
    )
    try:
        async with serve_http(server.handle, tokens, sock, tls=tls):
            yield Client(InProcessTransport(server.handle, ADMIN)), client
    finally:
        await client.close()


def test_a_gang_is_bound_one_by_one_over_the_network(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with network_server(tmp_path) as (user, client):
            ready = asyncio.Event()
            runner = SchedulerRunner(
                client,
                WallClock(),
                SystemRandom(),
                on_ready=lambda names: ready.set(),
                config=SchedulerRunnerConfig(Profiles({"me": DEFAULT_POLICY})),
                election=ElectionConfig("me", LeaseTimings()),
            )
            running = asyncio.create_task(runner.run())
            for name in ("n1", "n2"):
                await user.create(NODE, node(name, cpu="2"))
                await user.patch(NODE, Key("", name), {"spec": {"taints": None}})
            await asyncio.wait_for(ready.wait(), 240)
            group, *members = gang("a", 4, cpu="1")
            await user.create(POD_GROUP, group)
            for member in members:
                await user.create(
                    POD, {**member, "spec": {**member["spec"], "schedulerName": "me"}}
                )
            await asyncio.wait_for(wait_until_bound(user), 240)
            await runner.drain()
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            lease = await user.get(LEASE, Key("kube-system", "me"))
            assert "holderIdentity" not in lease["spec"]

    asyncio.run(scenario())


async def wait_until_bound(user: Client) -> None:
    """Wait until the gang is bound and its intent closed."""
    while True:
        pods = (await user.list(POD)).items
        group = await user.get(POD_GROUP, Key("default", "a"))
        if all(one["spec"].get("nodeName") for one in pods) and not group["metadata"].get(
            "annotations"
        ):
            return
        await asyncio.sleep(0.02)
