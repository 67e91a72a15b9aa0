"""Gangs on a server without the workload APIs: PodGroups are custom resources there."""

from __future__ import annotations

import asyncio
import logging
from copy import deepcopy

import pytest
from msgspec.structs import replace

from phalanx.api.batch import Job
from phalanx.api.core import Pod
from phalanx.api.custom_resources.workload_definitions import workload_definitions
from phalanx.api.errors import Forbidden, NotFound
from phalanx.api.feature_gates import resolve_gates
from phalanx.api.kinds import JOB, POD, POD_GROUP, PRIORITY_CLASS
from phalanx.api.meta import Key
from phalanx.api.scheduling import PodGroup
from phalanx.api.wire import Reply, Request, StreamReply
from phalanx.api.workload_sources import (
    COSCHEDULING_POD_GROUP,
    CUSTOM_COMPOSITE_POD_GROUP,
    CUSTOM_POD_GROUP,
    CUSTOM_WORKLOAD,
    VOLCANO_POD_GROUP,
)
from phalanx.cli.cluster_queries import read_cluster
from phalanx.client.client import Client
from phalanx.client.transports import InProcessTransport
from phalanx.client.workload_sources import discover_sources
from phalanx.controllers.reconcile_loop import Informers
from phalanx.controllers.scheduler_runner import FOREIGN_SCHEDULER
from phalanx.randomness import SeededRandom
from phalanx.server.app import error_reply
from phalanx.server.security.authorization import ADMIN
from tests.builders import in_virtual_time, pod, pod_group
from tests.controllers.cluster import Cluster, LaggingTransport
from tests.controllers.custom_groups import (
    COSCHEDULING_DEFINITION,
    VOLCANO_DEFINITION,
    annotated_job,
    compat_group,
    custom_cluster,
    custom_group,
    get_group,
    labelled_pods,
    running_controllers,
    running_scheduler,
)
from tests.controllers.foreign_cluster import ScriptedTransport


@in_virtual_time
async def test_gang_of_labelled_pods_waits_for_its_last_member_and_is_bound() -> None:
    async with custom_cluster() as c, running_scheduler(c) as log:
        await c.client.create(CUSTOM_POD_GROUP, custom_group("a", 3))
        first, second, third = labelled_pods("a", 3, cpu="3")
        await c.create(first, second)
        await asyncio.sleep(5)
        assert await c.node_by_pod() == {}
        await c.create(third)
        await c.until_placed("a-0", "a-1", "a-2")
        await asyncio.sleep(5)
        group = await get_group(c, "a")
        assert group["status"]["scheduledPods"] == 3
        reasons = {one["type"]: one["reason"] for one in group["status"]["conditions"]}
        assert reasons["PodGroupScheduled"] == "MinCountSatisfied"
        assert "phalanx.dev/binding-intent" not in group["metadata"].get("annotations", {})
        assert "PodGroups are custom resources" in log.messages()


def test_gang_is_bound_without_a_warning_though_watches_are_late(
    caplog: pytest.LogCaptureFixture,
) -> None:
    @in_virtual_time
    async def bind_gang() -> None:
        async with custom_cluster() as c, running_scheduler(c, LaggingTransport(c.plane, lag=0.3)):
            await c.client.create(CUSTOM_POD_GROUP, custom_group("a", 3))
            await c.create(*labelled_pods("a", 3, cpu="3"))
            await c.until_placed("a-0", "a-1", "a-2")
            await asyncio.sleep(10)
            group = await get_group(c, "a")
            assert "phalanx.dev/binding-intent" not in group["metadata"].get("annotations", {})

    bind_gang()
    assert "reconcile failed, retrying" not in [one.getMessage() for one in caplog.records]


class Kubernetes130Transport:
    """Shows a server as Kubernetes 1.30 does: devices in another version, Jobs without managedBy.

    Pods have no `schedulingGroup`, and the workload APIs do not exist.
    """

    def __init__(self, c: Cluster) -> None:
        self._inner = InProcessTransport(c.plane.server.handle, ADMIN)

    async def send(self, request: Request) -> Reply | StreamReply:
        if request.path.startswith(("/apis/resource.k8s.io/", f"/apis/{POD_GROUP.api_version}")):
            return error_reply(NotFound("the server could not find the requested resource"))
        body = request.body
        if request.method == "POST" and isinstance(body, dict) and request.path.endswith("/jobs"):
            spec = {name: value for name, value in body["spec"].items() if name != "managedBy"}
            request = replace(request, body={**body, "spec": spec})
        return await self._inner.send(request)

    async def close(self) -> None:
        """Do nothing."""


@in_virtual_time
async def test_gangs_of_pods_and_jobs_run_on_a_server_like_kubernetes_1_30() -> None:
    async with custom_cluster(*workload_definitions(), without=("scheduler",), nodes=6) as c:
        old = Kubernetes130Transport(c)
        async with running_scheduler(c, old) as log, running_controllers(c, old):
            await c.client.create(CUSTOM_POD_GROUP, custom_group("a", 3))
            await c.create(*labelled_pods("a", 3, cpu="3"))
            await c.until_placed("a-0", "a-1", "a-2")
            job = annotated_job("train", on_template=True, managedBy="phalanx.dev/job-controller")
            await Client(old).create(JOB, job)
            await c.until(lambda: _has_nodes(c, 6))
            await asyncio.sleep(5)
            assert (await get_group(c, "train"))["status"]["scheduledPods"] == 3
            assert log.messages(logging.ERROR) == []


async def _has_nodes(c: Cluster, count: int) -> bool:
    return len(await c.node_by_pod()) == count


@in_virtual_time
async def test_gang_that_does_not_fit_has_no_bound_member_and_says_why() -> None:
    async with custom_cluster() as c, running_scheduler(c):
        await c.client.create(CUSTOM_POD_GROUP, custom_group("a", 4))
        await c.create(*labelled_pods("a", 4, cpu="3"))
        await asyncio.sleep(10)
        assert await c.node_by_pod() == {}
        group = await get_group(c, "a")
        (found,) = [
            one for one in group["status"]["conditions"] if one["type"] == "PodGroupScheduled"
        ]
        assert found["status"] == "False"
        assert found["message"].startswith("minCount (4) cannot be satisfied")
        assert await c.events("FailedScheduling")


# ---- PodGroups of other projects -----------------------------------------------------------------


@in_virtual_time
async def test_gang_of_scheduler_plugins_is_bound_and_its_phase_is_written() -> None:
    async with (
        custom_cluster(COSCHEDULING_DEFINITION) as c,
        running_scheduler(c, compat=["scheduler-plugins"]),
    ):
        group = compat_group(COSCHEDULING_POD_GROUP, "a", minMember=3, scheduleTimeoutSeconds=10)
        await c.client.create(COSCHEDULING_POD_GROUP, group)
        first, *rest = labelled_pods("a", 3, label="scheduling.x-k8s.io/pod-group", cpu="3")
        await c.create(first)
        await asyncio.sleep(5)
        assert await c.node_by_pod() == {}
        assert (await get_group(c, "a", COSCHEDULING_POD_GROUP))["status"]["phase"] == "Pending"
        await c.create(*rest)
        await c.until_placed("a-0", "a-1", "a-2")
        await asyncio.sleep(5)
        status = (await get_group(c, "a", COSCHEDULING_POD_GROUP))["status"]
        assert (status["phase"], status["running"]) == ("Running", 3)


@in_virtual_time
async def test_gang_of_volcano_is_bound_and_its_phase_and_condition_are_written() -> None:
    names = ("volcano",)
    async with (
        custom_cluster(VOLCANO_DEFINITION) as c,
        running_scheduler(c, names=names, compat=["volcano"]),
    ):
        group = compat_group(VOLCANO_POD_GROUP, "a", minMember=2, queue="research")
        await c.client.create(VOLCANO_POD_GROUP, group)
        # Volcano's controllers wait for this phase before they create pods.
        await asyncio.sleep(3)
        assert (await get_group(c, "a", VOLCANO_POD_GROUP))["status"]["phase"] == "Inqueue"
        pods = [
            pod(
                f"a-{number}",
                meta={"annotations": {"scheduling.k8s.io/group-name": "a"}},
                spec={"schedulerName": "volcano"},
                cpu="3",
            )
            for number in range(4)
        ]
        await c.create(pods[0])
        await asyncio.sleep(5)
        assert await c.node_by_pod() == {}
        assert (await get_group(c, "a", VOLCANO_POD_GROUP))["status"]["phase"] == "Inqueue"
        await c.create(*pods[1:])
        await asyncio.sleep(10)
        assert len(await c.node_by_pod()) == 3
        status = (await get_group(c, "a", VOLCANO_POD_GROUP))["status"]
        assert status["phase"] == "Running"
        assert [one["type"] for one in status["conditions"]] == ["Scheduled"]


@in_virtual_time
async def test_forbidden_groups_of_a_project_are_logged_under_their_own_name() -> None:
    async with custom_cluster(VOLCANO_DEFINITION) as c:
        path = VOLCANO_POD_GROUP.url_path()
        transport = ScriptedTransport(
            c, refuse=lambda request: Forbidden("not for you") if request.path == path else None
        )
        async with running_scheduler(c, transport, compat=["volcano"]) as log:
            link = {"annotations": {"scheduling.k8s.io/group-name": "a"}}
            names = {"schedulerName": FOREIGN_SCHEDULER}
            await c.create(pod("member", meta=link, spec=names), pod("alone", spec=names))
            await c.until_placed("alone")
            await asyncio.sleep(60)
            assert list(await c.node_by_pod()) == ["alone"]
            (line,) = [one for one in log.lines if one.message == "cannot read a resource"]
            assert line.fields == {
                "resource": "podgroups.scheduling.volcano.sh",
                "reason": "not for you",
                "effect": "pods of these groups wait",
            }


@in_virtual_time
async def test_status_of_volcano_is_written_where_its_definition_has_a_subresource() -> None:
    definition = deepcopy(VOLCANO_DEFINITION)
    definition["spec"]["versions"][0]["subresources"] = {"status": {}}
    async with custom_cluster(definition) as c, running_scheduler(c, compat=["volcano"]):
        await c.client.create(VOLCANO_POD_GROUP, compat_group(VOLCANO_POD_GROUP, "a", minMember=2))
        await asyncio.sleep(3)
        assert (await get_group(c, "a", VOLCANO_POD_GROUP))["status"]["phase"] == "Inqueue"


@in_virtual_time
async def test_last_member_of_a_volcano_gang_runs_again_after_the_others_have_succeeded() -> None:
    async with (
        custom_cluster(VOLCANO_DEFINITION) as c,
        running_scheduler(c, compat=["volcano"]),
    ):
        await c.client.create(VOLCANO_POD_GROUP, compat_group(VOLCANO_POD_GROUP, "a", minMember=2))
        link = {"annotations": {"scheduling.k8s.io/group-name": "a"}}
        names = {"schedulerName": FOREIGN_SCHEDULER}
        short = {"annotations": {**link["annotations"], "phalanx.dev/run-seconds": "1"}}
        for name, meta in (("a-0", short), ("a-1", link)):
            await c.create(pod(name, meta=meta, spec=names, cpu="1"))
        await c.until_placed("a-0", "a-1")
        await asyncio.sleep(10)
        await c.delete(POD, "a-1")
        await c.create(pod("again", meta=link, spec=names, cpu="1"))
        await c.until_placed("again")
        await asyncio.sleep(5)
        found = await get_group(c, "a", VOLCANO_POD_GROUP)
        assert found["status"]["succeeded"] == 1
        assert "annotations" not in found["metadata"]


@in_virtual_time
async def test_groups_of_other_projects_are_left_alone_unless_they_are_asked_for() -> None:
    async with custom_cluster(VOLCANO_DEFINITION) as c, running_scheduler(c):
        await c.client.create(VOLCANO_POD_GROUP, compat_group(VOLCANO_POD_GROUP, "a", minMember=2))
        await asyncio.sleep(5)
        assert "status" not in await get_group(c, "a", VOLCANO_POD_GROUP)


@in_virtual_time
async def test_after_an_upgrade_groups_of_both_kinds_are_read_and_the_new_kind_wins() -> None:
    gates = resolve_gates({"GroupBinding": False})
    async with custom_cluster(gates=gates) as c, running_scheduler(c):
        for name, size in (("old", 2), ("both", 9)):
            await c.client.create(CUSTOM_POD_GROUP, custom_group(name, size))
        await c.create(pod_group("new", 2), pod_group("both", 1), *labelled_pods("old", 2, cpu="1"))
        for name in ("new-0", "new-1", "both-0"):
            group = name.partition("-")[0]
            await c.create(pod(name, group, spec={"schedulerName": FOREIGN_SCHEDULER}, cpu="1"))
        await c.until_placed("old-0", "old-1", "new-0", "new-1", "both-0")
        await asyncio.sleep(5)
        assert (await get_group(c, "old"))["status"]["scheduledPods"] == 2
        assert "status" not in await get_group(c, "both")
        condition = await c.group_condition("both", "PodGroupScheduled")
        assert condition is not None
        assert condition.status == "True"


# ---- priorities ----------------------------------------------------------------------------------


@in_virtual_time
async def test_gang_has_the_priority_of_its_members_and_spares_pods_of_other_schedulers() -> None:
    async with custom_cluster(nodes=2) as c, running_scheduler(c):
        await c.client.create(PRIORITY_CLASS, {"metadata": {"name": "high"}, "value": 1000})
        await c.create(
            pod("other", on="n0", cpu="3"),
            pod("own", on="n1", spec={"schedulerName": FOREIGN_SCHEDULER}, cpu="3"),
        )
        for name, members in (("one", 1), ("two", 2)):
            await c.client.create(CUSTOM_POD_GROUP, custom_group(name, members))
            for one in labelled_pods(name, members, cpu="3"):
                one["spec"]["priorityClassName"] = "high"
                await c.create(one)
        await asyncio.sleep(60)
        # The gang of two would have to evict a pod of another scheduler.
        assert sorted(await c.node_by_pod()) == ["one-0", "other"]


@in_virtual_time
async def test_members_need_the_priority_of_the_class_that_their_custom_group_names() -> None:
    async with custom_cluster() as c, running_scheduler(c):
        await c.client.create(PRIORITY_CLASS, {"metadata": {"name": "high"}, "value": 1000})
        group = custom_group("a", 2, priorityClassName="high")
        await c.client.create(CUSTOM_POD_GROUP, group)
        await c.create(*labelled_pods("a", 2, cpu="1"))
        await asyncio.sleep(20)
        assert await c.node_by_pod() == {}
        conditions = (await get_group(c, "a"))["status"]["conditions"]
        reasons = {one["type"]: one["reason"] for one in conditions}
        assert reasons["PodGroupScheduled"] == "SchedulerError"


@in_virtual_time
async def test_gang_of_volcano_has_the_priority_of_its_class_once_that_exists() -> None:
    async with (
        custom_cluster(VOLCANO_DEFINITION, nodes=1) as c,
        running_scheduler(c, names=["volcano"], compat=["volcano"]),
    ):
        names = {"schedulerName": "volcano"}
        await c.create(pod("running", on="n0", spec=names, cpu="3"))
        group = compat_group(VOLCANO_POD_GROUP, "a", minMember=1, priorityClassName="high")
        await c.client.create(VOLCANO_POD_GROUP, group)
        link = {"annotations": {"scheduling.k8s.io/group-name": "a"}}
        # The pods have no class of their own, as those of an MPIJob with a schedulingPolicy.
        await c.create(pod("a-0", meta=link, spec=names, cpu="3"))
        await asyncio.sleep(30)
        assert sorted(await c.node_by_pod()) == ["running"]
        await c.client.create(PRIORITY_CLASS, {"metadata": {"name": "high"}, "value": 1000})
        await c.until_placed("a-0")
        (found,) = (await read_cluster(c.client)).groups
        assert found.spec.priority == 1000


@in_virtual_time
async def test_tree_of_custom_resources_has_the_priority_of_its_class() -> None:
    policy = {"gang": {"minCount": 1}}
    async with custom_cluster(*workload_definitions(), nodes=2) as c, running_scheduler(c):
        await c.client.create(PRIORITY_CLASS, {"metadata": {"name": "high"}, "value": 1000})
        templates = [{"name": name, "schedulingPolicy": policy} for name in ("a", "b")]
        root = {
            "schedulingPolicy": {"gang": {"minGroupCount": 2}},
            "workloadRef": {"workloadName": "tree", "templateName": "root"},
            "priorityClassName": "high",
        }
        template = {
            "name": "root",
            "schedulingPolicy": root["schedulingPolicy"],
            "podGroupTemplates": templates,
        }
        for kind, name, spec in (
            (CUSTOM_WORKLOAD, "tree", {"compositePodGroupTemplates": [template]}),
            (CUSTOM_COMPOSITE_POD_GROUP, "tree-root", root),
        ):
            meta = {"name": name, "namespace": "default"}
            await c.client.create(kind, {"metadata": meta, "spec": spec})
        for name in ("a", "b"):
            group = custom_group(
                f"tree-{name}",
                1,
                workloadRef={"workloadName": "tree", "templateName": name},
                parentCompositePodGroupName="tree-root",
                priorityClassName="high",
            )
            await c.client.create(CUSTOM_POD_GROUP, group)
            (member,) = labelled_pods(f"tree-{name}", 1, cpu="3")
            member["spec"]["priorityClassName"] = "high"
            await c.create(member)
        await c.until_placed("tree-a-0", "tree-b-0")


# ---- reading ------------------------------------------------------------------------------------


@in_virtual_time
async def test_commands_read_groups_of_every_kind() -> None:
    definitions = (workload_definitions()[-1], VOLCANO_DEFINITION)
    async with custom_cluster(*definitions) as c:
        await c.client.create(PRIORITY_CLASS, {"metadata": {"name": "high"}, "value": 1000})
        await c.client.create(CUSTOM_POD_GROUP, custom_group("a", 2))
        await c.client.create(VOLCANO_POD_GROUP, compat_group(VOLCANO_POD_GROUP, "b", minMember=3))
        first, second = labelled_pods("a", 2, cpu="1")
        first["spec"]["priorityClassName"] = second["spec"]["priorityClassName"] = "high"
        annotations = {"scheduling.k8s.io/group-name": "b"}
        await c.create(first, second, pod("b-0", meta={"annotations": annotations}, cpu="1"))
        found = await read_cluster(c.client)
        sizes = {one.metadata.name: (one.quorum, one.spec.priority) for one in found.groups}
        assert sizes == {"a": (2, 1000), "b": (3, 0)}
        names = {one.metadata.name: one.group and one.group.name for one in found.pods}
        assert names == {"a-0": "a", "a-1": "a", "b-0": "b"}


@in_virtual_time
async def test_lists_of_the_api_link_pods_by_label_and_have_groups_of_every_kind() -> None:
    gates = resolve_gates({"GroupBinding": False})
    async with custom_cluster(gates=gates) as c:
        await c.client.create(CUSTOM_POD_GROUP, custom_group("old", 1))
        await c.create(pod_group("new", 1), *labelled_pods("old", 1, cpu="1"))
        informers = Informers(c.client, SeededRandom(1), await discover_sources(c.client))
        pods = await informers.list_from_api(Pod, "default")
        assert [one.group for one in pods] == [Key("default", "old")]
        groups = await informers.list_from_api(PodGroup, "default")
        assert sorted(one.metadata.name for one in groups) == ["new", "old"]
        assert await informers.list_from_api(Job, "default") == []


# ---- faults --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("last_write", "last_arrives"), [(0, True), (1, False), (2, True), (3, False), (4, True)]
)
@in_virtual_time
async def test_gang_is_whole_after_its_scheduler_was_killed_at_any_write(
    last_write: int, last_arrives: bool
) -> None:
    async with custom_cluster() as c:
        await c.client.create(CUSTOM_POD_GROUP, custom_group("a", 3))
        await c.create(*labelled_pods("a", 3, cpu="3"))
        killed = ScriptedTransport(c, last_write=last_write, last_arrives=last_arrives)
        async with running_scheduler(c, killed):
            await killed.ended.wait()
        async with running_scheduler(c):
            await c.until_placed("a-0", "a-1", "a-2")
            await asyncio.sleep(5)
        group = await get_group(c, "a")
        assert "phalanx.dev/binding-intent" not in group["metadata"].get("annotations", {})
        assert group["status"]["scheduledPods"] == 3
