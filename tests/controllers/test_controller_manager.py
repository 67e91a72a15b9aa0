"""Controllers beside a server: one of ours, a foreign one, and one that lacks kinds."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from phalanx.api.batch import OWN_JOB_CONTROLLER
from phalanx.api.feature_gates import resolve_gates
from phalanx.api.kinds import (
    CONFIG_MAP,
    EVENT,
    JOB,
    LEASE,
    NAMESPACE,
    NODE,
    POD,
    POD_GROUP,
    WORKLOAD,
)
from phalanx.api.meta import Key
from phalanx.api.wire import Object, UserInfo
from phalanx.client.client import Client
from phalanx.client.leader_election import LeaseTimings
from phalanx.client.transports import InProcessTransport, Transport
from phalanx.controllers.controller_manager import (
    ControllerManager,
    ControllerManagerCallbacks,
    ControllerManagerConfig,
)
from phalanx.controllers.leadership import ElectionConfig
from phalanx.controllers.nodes.node_lifecycle import LEASE_NAMESPACE
from phalanx.controllers.registry import CONTROLLERS, ControllerSelection
from phalanx.randomness import SeededRandom
from phalanx.server.security.authorization import MASTERS
from tests.builders import in_virtual_time, node
from tests.controllers.cluster import Cluster, cluster
from tests.controllers.foreign_cluster import FOREIGN_KINDS, foreign_cluster
from tests.controllers.jobs.job_controller_harness import conditions_of, job
from tests.controllers.test_scheduler_runner import BlockableTransport

SERVER_ONLY = ("scheduler", "controllers", "nodes")
ALL = [row.name for row in CONTROLLERS]
UNGROUPED = tuple(kind for kind in FOREIGN_KINDS if kind.name not in ("Workload", "PodGroup"))
#: Longer than anything that is to happen takes.
SETTLE_SECONDS = 20.0


class RunningControllers:
    """A bureau, as another identity than anybody else's, and all that it said."""

    def __init__(
        self,
        c: Cluster,
        *words: str,
        name: str = "",
        gates: str = "",
        transport: Transport | None = None,
    ) -> None:
        self.messages: list[str] = []
        self.ready_names: list[Sequence[str]] = []
        user = UserInfo(f"clerk-{name}", (MASTERS,))
        client = Client(transport or InProcessTransport(c.plane.server.handle, user))
        wishes = ControllerManagerConfig(
            ControllerSelection(words or ("*",)), resolve_gates({gates: False} if gates else {})
        )
        candidacy = ElectionConfig(name, LeaseTimings()) if name else None
        voice = ControllerManagerCallbacks(self.messages.append, self.ready_names.append)
        self.manager = ControllerManager(client, c.clock, SeededRandom(1), voice, wishes, candidacy)
        self.task = asyncio.create_task(self.manager.run())

    async def stop(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


@asynccontextmanager
async def running_controllers(
    c: Cluster, *words: str, **more: Any
) -> AsyncIterator[RunningControllers]:
    clerks = RunningControllers(c, *words, **more)
    try:
        await asyncio.sleep(SETTLE_SECONDS)
        yield clerks
    finally:
        await clerks.stop()


def managed(name: str, by: str = OWN_JOB_CONTROLLER, **spec: Any) -> Object:
    return job(name, managedBy=by, **spec)


async def owners(c: Cluster) -> list[str]:
    """The Jobs that have pods, one word for each pod."""
    pods = (await c.client.list(POD)).items
    return sorted(pod["metadata"]["ownerReferences"][0]["name"] for pod in pods)


async def events(c: Cluster, reason: str) -> list[str]:
    return [e["message"] for e in (await c.client.list(EVENT)).items if e["reason"] == reason]


@in_virtual_time
async def test_beside_a_server_of_ours_all_of_them_run_and_every_job_is_theirs() -> None:
    async with cluster(without=SERVER_ONLY) as c, running_controllers(c) as clerks:
        assert clerks.ready_names == [ALL]
        assert (clerks.messages, clerks.manager.not_ready_reason) == ([], "")
        await c.create(job("plain", gang=True, parallelism=2, completions=2), managed("ours"))
        await c.create(managed("theirs", "example.com/controller"))
        await asyncio.sleep(SETTLE_SECONDS)
        assert await owners(c) == ["ours", "plain", "plain"]
        assert len((await c.client.list(WORKLOAD)).items) == 2
        await c.client.delete(JOB, Key("default", "plain"), propagation="Background")
        await asyncio.sleep(SETTLE_SECONDS)
        assert len((await c.client.list(WORKLOAD)).items) == 1


@in_virtual_time
async def test_on_a_foreign_server_only_jobs_that_ask_for_it_are_touched() -> None:
    async with foreign_cluster(0) as c, running_controllers(c) as clerks:
        assert clerks.ready_names == [["job"]]
        assert clerks.messages == [
            "the API server has no groupbindings.phalanx.dev, so it is not Phalanx: only Jobs with "
            "managedBy phalanx.dev/job-controller are run"
        ]
        before = c.store.revision
        await c.create(job("plain"), managed("native", "kubernetes.io/job-controller"))
        await asyncio.sleep(SETTLE_SECONDS)
        assert c.store.revision == before + 2
        await c.create(managed("ours", gang=True, parallelism=2, completions=2))
        await asyncio.sleep(SETTLE_SECONDS)
        assert await owners(c) == ["ours", "ours"]
        assert len((await c.client.list(POD_GROUP)).items) == 1


@in_virtual_time
async def test_on_a_foreign_server_nothing_is_cleared_away_unless_that_is_asked_for() -> None:
    async with foreign_cluster(0) as c:
        owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": "gone", "uid": "1-2-3"}
        meta = {"name": "left", "namespace": "default", "ownerReferences": [owner]}
        await c.create({"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta})
        await c.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "old"}})
        await c.client.delete(NAMESPACE, Key("", "old"))
        await c.add_node(node("silent"))
        lease = {"name": "silent", "namespace": LEASE_NAMESPACE}
        await c.client.create(LEASE, {"metadata": lease, "spec": {"holderIdentity": "kubelet"}})
        before = c.store.revision
        async with running_controllers(c):
            await asyncio.sleep(600)
            assert c.store.revision == before
        async with running_controllers(c, "*", "garbage", "namespace", "node") as clerks:
            assert clerks.ready_names == [["namespace", "job", "node", "garbage"]]
            await asyncio.sleep(600)
            names = [n["metadata"]["name"] for n in (await c.client.list(NAMESPACE)).items]
            assert "old" not in names
            assert (await c.client.list(CONFIG_MAP)).items == []
            assert conditions_of((await c.client.list(NODE)).items[0])["Ready"][0] == "Unknown"


@in_virtual_time
async def test_without_workloads_plain_jobs_run_and_gangs_say_why_they_do_not() -> None:
    async with cluster(without=SERVER_ONLY, kinds=UNGROUPED) as c, running_controllers(c) as clerks:
        assert clerks.ready_names == [["job"]]
        gang = managed("gang", gang=True, parallelism=2, completions=2)
        await c.create(managed("plain"), gang)
        await asyncio.sleep(SETTLE_SECONDS)
        assert await owners(c) == ["plain"]
        (told,) = await events(c, "FailedWorkloadCreate")
        assert told == (
            "Failed to create Workload for Job gang: "
            'no matches for kind "Workload" in version "scheduling.k8s.io/v1beta1"'
        )


@in_virtual_time
async def test_a_part_of_a_parent_without_workloads_goes_on_one_by_one() -> None:
    async with cluster(without=SERVER_ONLY, kinds=UNGROUPED) as c, running_controllers(c):
        part = managed("part")
        part["metadata"]["annotations"] = {"scheduling.k8s.io/group-template-name": "workers"}
        await c.create(part)
        await asyncio.sleep(SETTLE_SECONDS)
        assert await owners(c) == ["part"]
        found = await c.client.get(JOB, Key("default", "part"))
        assert conditions_of(found)["SchedulingFallback"] == ("True", "ParentWorkloadNotFound")


@in_virtual_time
async def test_where_the_gate_is_off_jobs_run_and_what_cannot_is_named() -> None:
    off = resolve_gates({"GenericWorkload": False})
    async with cluster(without=SERVER_ONLY, gates=off) as c, running_controllers(c) as clerks:
        assert clerks.messages == [
            "podgroup-protection is off: there are no podgroups.scheduling.k8s.io",
            "composite-groups is off: there are no compositepodgroups.scheduling.k8s.io",
            "replica-groups is off: there are no podgroups.scheduling.k8s.io",
        ]
        await c.create(job("plain"))
        await asyncio.sleep(SETTLE_SECONDS)
        assert await owners(c) == ["plain"]


@in_virtual_time
async def test_of_two_only_one_works_and_the_other_takes_over() -> None:
    async with (
        cluster(without=SERVER_ONLY) as c,
        running_controllers(c, name="first") as first,
        running_controllers(c, name="second") as second,
    ):
        assert (first.ready_names, second.ready_names) == ([ALL], [])
        assert second.messages == ["lease kube-system/phalanx-controllers: first leads"]
        assert second.manager.not_ready_reason == ""
        await first.stop()
        await asyncio.sleep(SETTLE_SECONDS)
        assert second.ready_names == [ALL]
        lease = await c.client.get(LEASE, Key("kube-system", "phalanx-controllers"))
        assert lease["spec"]["holderIdentity"] == "second"


@in_virtual_time
async def test_it_says_why_it_is_not_ready() -> None:
    async with cluster(without=SERVER_ONLY) as c:
        road = BlockableTransport(c.plane.server)
        road.block()
        async with running_controllers(c, transport=road) as clerks:
            assert clerks.manager.not_ready_reason == "waiting for the API server"
            road.clear()
            await asyncio.sleep(SETTLE_SECONDS)
            assert clerks.manager.not_ready_reason == ""
            road.block()
            await asyncio.sleep(SETTLE_SECONDS)
            assert (
                clerks.manager.not_ready_reason == "cannot reach https://there: Connection refused"
            )
