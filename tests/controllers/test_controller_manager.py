"""Controllers beside a server: Phalanx, a foreign one, and one that lacks kinds."""

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
from tests.recording_log import RecordingLog

SERVER_ONLY = ("scheduler", "controllers", "nodes")
ALL = [row.name for row in CONTROLLERS if row.runs_on_phalanx]
UNGROUPED = tuple(kind for kind in FOREIGN_KINDS if kind.name not in ("Workload", "PodGroup"))
#: Seconds after which all controllers are idle.
SETTLE_SECONDS = 20.0


class RunningControllers:
    """A running ControllerManager with its own identity, and its log lines."""

    def __init__(
        self,
        c: Cluster,
        *words: str,
        name: str = "",
        gates: str = "",
        transport: Transport | None = None,
        root_ca: str = "PEM",
    ) -> None:
        async def load_root_ca() -> str:
            return root_ca

        self.log = RecordingLog()
        self.ready_names: list[Sequence[str]] = []
        user = UserInfo(f"controllers-{name}", (MASTERS,))
        client = Client(transport or InProcessTransport(c.plane.server.handle, user))
        config = ControllerManagerConfig(
            ControllerSelection(words or ("*",)),
            resolve_gates({gates: False} if gates else {}),
            load_root_ca=load_root_ca if root_ca else None,
        )
        self.manager = ControllerManager(
            client,
            c.clock,
            SeededRandom(1),
            on_ready=self.ready_names.append,
            config=config,
            election=ElectionConfig(name, LeaseTimings()) if name else None,
            log=self.log,
        )
        self.task = asyncio.create_task(self.manager.run())

    @property
    def messages(self) -> list[str]:
        """The log messages at info level and above, with their reasons."""
        return self.log.messages()

    async def stop(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


@asynccontextmanager
async def running_controllers(
    c: Cluster, *words: str, **more: Any
) -> AsyncIterator[RunningControllers]:
    controllers = RunningControllers(c, *words, **more)
    try:
        await asyncio.sleep(SETTLE_SECONDS)
        yield controllers
    finally:
        await controllers.stop()


def managed(name: str, by: str = OWN_JOB_CONTROLLER, **spec: Any) -> Object:
    return job(name, managedBy=by, **spec)


async def owners(c: Cluster) -> list[str]:
    """The names of the Jobs that own pods, once per pod."""
    pods = (await c.client.list(POD)).items
    return sorted(pod["metadata"]["ownerReferences"][0]["name"] for pod in pods)


async def events(c: Cluster, reason: str) -> list[str]:
    return [e["message"] for e in (await c.client.list(EVENT)).items if e["reason"] == reason]


@in_virtual_time
async def test_on_a_phalanx_server_all_controllers_run_and_reconcile_every_job() -> None:
    async with cluster(without=SERVER_ONLY) as c, running_controllers(c) as controllers:
        assert controllers.ready_names == [ALL]
        assert controllers.messages == ["controllers started"]
        assert controllers.manager.not_ready_reason == ""
        await c.create(job("plain", gang=True, parallelism=2, completions=2), managed("ours"))
        await c.create(managed("theirs", "example.com/controller"))
        await asyncio.sleep(SETTLE_SECONDS)
        assert await owners(c) == ["ours", "plain", "plain"]
        assert len((await c.client.list(WORKLOAD)).items) == 2
        await c.client.delete(JOB, Key("default", "plain"), propagation="Background")
        await asyncio.sleep(SETTLE_SECONDS)
        assert len((await c.client.list(WORKLOAD)).items) == 1


@in_virtual_time
async def test_on_a_foreign_server_only_jobs_with_our_managed_by_are_reconciled() -> None:
    async with foreign_cluster(0) as c, running_controllers(c) as controllers:
        assert controllers.ready_names == [["job"]]
        assert controllers.messages == [
            "the API server is not Phalanx: only Jobs with this managedBy are reconciled",
            "controllers started",
        ]
        assert controllers.log.lines[0].fields["managed_by"] == "phalanx.dev/job-controller"
        before = c.store.revision
        await c.create(job("plain"), managed("native", "kubernetes.io/job-controller"))
        await asyncio.sleep(SETTLE_SECONDS)
        assert c.store.revision == before + 2
        await c.create(managed("ours", gang=True, parallelism=2, completions=2))
        await asyncio.sleep(SETTLE_SECONDS)
        assert await owners(c) == ["ours", "ours"]
        assert len((await c.client.list(POD_GROUP)).items) == 1


@in_virtual_time
async def test_on_a_foreign_server_nothing_is_deleted_unless_a_controller_is_selected() -> None:
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
        async with running_controllers(c, "*", "garbage", "namespace", "node") as controllers:
            assert controllers.ready_names == [["namespace", "job", "node", "garbage"]]
            await asyncio.sleep(600)
            names = [n["metadata"]["name"] for n in (await c.client.list(NAMESPACE)).items]
            assert "old" not in names
            assert (await c.client.list(CONFIG_MAP)).items == []
            assert conditions_of((await c.client.list(NODE)).items[0])["Ready"][0] == "Unknown"


@in_virtual_time
async def test_without_workloads_plain_jobs_run_and_gangs_record_why_they_do_not() -> None:
    async with (
        cluster(without=SERVER_ONLY, kinds=UNGROUPED) as c,
        running_controllers(c) as controllers,
    ):
        assert controllers.ready_names == [["job"]]
        gang = managed("gang", gang=True, parallelism=2, completions=2)
        await c.create(managed("plain"), gang)
        await asyncio.sleep(SETTLE_SECONDS)
        assert await owners(c) == ["plain"]
        (message,) = await events(c, "FailedWorkloadCreate")
        assert message == (
            "Failed to create Workload for Job gang: "
            'no matches for kind "Workload" in version "scheduling.k8s.io/v1beta1"'
        )


@in_virtual_time
async def test_without_workloads_a_job_of_a_parent_is_scheduled_pod_by_pod() -> None:
    async with cluster(without=SERVER_ONLY, kinds=UNGROUPED) as c, running_controllers(c):
        child = managed("child")
        child["metadata"]["annotations"] = {"scheduling.k8s.io/group-template-name": "workers"}
        await c.create(child)
        await asyncio.sleep(SETTLE_SECONDS)
        assert await owners(c) == ["child"]
        found = await c.client.get(JOB, Key("default", "child"))
        assert conditions_of(found)["SchedulingFallback"] == ("True", "ParentWorkloadNotFound")


@in_virtual_time
async def test_controllers_whose_kinds_are_off_do_not_run_and_are_logged() -> None:
    gates = resolve_gates({"GenericWorkload": False})
    async with (
        cluster(without=SERVER_ONLY, gates=gates) as c,
        running_controllers(c) as controllers,
    ):
        off = [line.fields for line in controllers.log.lines if line.level == "WARNING"]
        assert [(fields["controller"], fields["missing"]) for fields in off] == [
            ("podgroup-protection", "podgroups.scheduling.k8s.io"),
            ("composite-groups", "compositepodgroups.scheduling.k8s.io"),
            ("replica-groups", "podgroups.scheduling.k8s.io"),
        ]
        await c.create(job("plain"))
        await asyncio.sleep(SETTLE_SECONDS)
        assert await owners(c) == ["plain"]


@in_virtual_time
async def test_without_a_certificate_authority_none_is_published_and_that_is_logged() -> None:
    async with (
        cluster(without=SERVER_ONLY) as c,
        running_controllers(c, root_ca="") as controllers,
    ):
        off = [line.fields for line in controllers.log.lines if line.level == "WARNING"]
        assert off == [{"controller": "root-ca-certificate-publisher"}]
        await asyncio.sleep(SETTLE_SECONDS)
        assert (await c.client.list(CONFIG_MAP)).items == []


@in_virtual_time
async def test_on_a_foreign_server_the_root_certificate_is_published_only_if_selected() -> None:
    async with foreign_cluster(0) as c:
        async with running_controllers(c):
            await asyncio.sleep(SETTLE_SECONDS)
            assert (await c.client.list(CONFIG_MAP)).items == []
        async with running_controllers(c, "root-ca-certificate-publisher"):
            await asyncio.sleep(SETTLE_SECONDS)
            found = (await c.client.list(CONFIG_MAP, namespace="default")).items
            assert [one["data"] for one in found] == [{"ca.crt": "PEM"}]


@in_virtual_time
async def test_only_the_leader_works_and_the_other_takes_over() -> None:
    async with (
        cluster(without=SERVER_ONLY) as c,
        running_controllers(c, name="first") as first,
        running_controllers(c, name="second") as second,
    ):
        assert (first.ready_names, second.ready_names) == ([ALL], [])
        assert second.messages == ["another candidate leads"]
        assert second.manager.not_ready_reason == ""
        await first.stop()
        await asyncio.sleep(SETTLE_SECONDS)
        assert second.ready_names == [ALL]
        lease = await c.client.get(LEASE, Key("kube-system", "phalanx-controllers"))
        assert lease["spec"]["holderIdentity"] == "second"


@in_virtual_time
async def test_not_ready_reason_names_the_cause() -> None:
    async with cluster(without=SERVER_ONLY) as c:
        transport = BlockableTransport(c.plane.server)
        transport.block()
        async with running_controllers(c, transport=transport) as controllers:
            assert controllers.manager.not_ready_reason == "waiting for the API server"
            transport.clear()
            await asyncio.sleep(SETTLE_SECONDS)
            assert controllers.manager.not_ready_reason == ""
            transport.block()
            await asyncio.sleep(SETTLE_SECONDS)
            assert (
                controllers.manager.not_ready_reason
                == "cannot reach https://there: Connection refused"
            )
