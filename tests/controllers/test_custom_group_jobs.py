"""Jobs on a server without the workload APIs: their annotations ask for gangs."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from msgspec.structs import replace

from phalanx.api.custom_resources.workload_definitions import workload_definitions
from phalanx.api.feature_gates import resolve_gates
from phalanx.api.kinds import JOB, POD, Kind
from phalanx.api.meta import Key
from phalanx.api.wire import Reply, Request, StreamReply
from phalanx.api.workload_sources import (
    COSCHEDULING_POD_GROUP,
    CUSTOM_POD_GROUP,
    CUSTOM_WORKLOAD,
    POD_GROUP_LABEL,
)
from phalanx.cli.cluster_queries import find_dropped_fields
from phalanx.cli.manifests import Manifest
from phalanx.client.client import Client
from phalanx.client.transports import InProcessTransport
from phalanx.server.security.authorization import ADMIN
from tests.builders import in_virtual_time, pod
from tests.controllers.cluster import Cluster, cluster
from tests.controllers.custom_groups import (
    COSCHEDULING_DEFINITION,
    annotated_job,
    compat_group,
    custom_cluster,
    custom_group,
    get_group,
    running_controllers,
    running_scheduler,
)


@in_virtual_time
async def test_annotated_job_of_our_controller_is_a_gang() -> None:
    async with (
        custom_cluster(*workload_definitions()) as c,
        running_scheduler(c),
        running_controllers(c),
    ):
        await c.create(pod("blocker", on="n0", cpu="3"))
        job = annotated_job("train", on_template=False, managedBy="phalanx.dev/job-controller")
        await c.create(job)
        await asyncio.sleep(20)
        pods = await c.pods()
        members = [one for name, one in pods.items() if name != "blocker"]
        assert [one.spec.node_name for one in members] == [""] * 3
        groups = (await c.client.list(CUSTOM_POD_GROUP)).items
        (group,) = groups
        assert group["spec"]["schedulingPolicy"] == {"gang": {"minCount": 3}}
        assert group["spec"]["schedulingConstraints"] == {"topology": [{"key": "kubernetes.io/os"}]}
        assert {one.metadata.labels[POD_GROUP_LABEL] for one in members} == {
            group["metadata"]["name"]
        }
        assert len((await c.client.list(CUSTOM_WORKLOAD)).items) == 1
        owners = {one["kind"]: one["apiVersion"] for one in group["metadata"]["ownerReferences"]}
        assert owners["Workload"] == CUSTOM_WORKLOAD.api_version
        await c.delete(POD, "blocker")
        await c.until_placed(*(one.metadata.name for one in members))


@in_virtual_time
async def test_annotated_job_of_another_controller_gets_its_group() -> None:
    async with (
        custom_cluster(without=("scheduler",)) as c,
        running_scheduler(c),
    ):
        await c.create(annotated_job("train", on_template=True))
        await asyncio.sleep(20)
        # The pods wait for their group.
        assert len(await c.pods()) == 3
        assert await c.node_by_pod() == {}
        async with running_controllers(c):
            await c.until_placed(*await c.pods())
            group = await get_group(c, "train")
            assert group["spec"]["schedulingPolicy"] == {"gang": {"minCount": 3}}
            assert [one["kind"] for one in group["metadata"]["ownerReferences"]] == ["Job"]


@pytest.mark.parametrize(
    ("kind", "label"),
    [
        (CUSTOM_POD_GROUP, POD_GROUP_LABEL),
        (COSCHEDULING_POD_GROUP, "scheduling.x-k8s.io/pod-group"),
    ],
)
@in_virtual_time
async def test_job_whose_template_names_a_group_gets_no_group_of_its_own(
    kind: Kind, label: str
) -> None:
    definitions = (*workload_definitions(), COSCHEDULING_DEFINITION)
    job = annotated_job("train", on_template=True, managedBy="phalanx.dev/job-controller")
    job["spec"]["template"]["metadata"] = {"labels": {label: "mine"}}
    async with (
        custom_cluster(*definitions) as c,
        running_scheduler(c, compat=["scheduler-plugins"]),
        running_controllers(c),
    ):
        await c.create(job)
        await asyncio.sleep(10)
        assert await c.node_by_pod() == {}
        assert (await c.client.list(CUSTOM_POD_GROUP)).items == []
        assert (await c.client.list(CUSTOM_WORKLOAD)).items == []
        is_ours = kind is CUSTOM_POD_GROUP
        group = custom_group("mine", 3) if is_ours else compat_group(kind, "mine", minMember=3)
        await c.client.create(kind, group)
        await c.until_placed(*await c.pods())
        named = [one.metadata.labels for one in (await c.pods()).values()]
        assert all(labels[label] == "mine" for labels in named)
        assert is_ours or all(POD_GROUP_LABEL not in labels for labels in named)


@in_virtual_time
async def test_group_of_a_job_follows_it_and_a_group_of_another_owner_is_left_alone() -> None:
    async with custom_cluster() as c, running_controllers(c):
        await c.client.create(CUSTOM_POD_GROUP, custom_group("taken", 1))
        for name in ("train", "taken"):
            await c.create(annotated_job(name, on_template=True))
        await asyncio.sleep(5)
        assert (await get_group(c, "train"))["spec"]["schedulingPolicy"]["gang"]["minCount"] == 3
        await c.client.patch(JOB, Key("default", "train"), {"spec": {"parallelism": 2}})
        await c.client.patch(
            JOB, Key("default", "train"), {"status": {"succeeded": 2}}, subresource="status"
        )
        await asyncio.sleep(5)
        group = await get_group(c, "train")
        assert group["spec"]["schedulingPolicy"]["gang"]["minCount"] == 2
        assert group["metadata"]["annotations"]["phalanx.dev/members-to-run"] == "1"
        taken = await get_group(c, "taken")
        assert taken["spec"]["schedulingPolicy"]["gang"]["minCount"] == 1
        ((_, message), *_) = await c.events("FailedPodGroupCreate")
        assert message == "PodGroup taken belongs to something else; rename the Job"


@in_virtual_time
async def test_group_name_that_is_longer_than_a_label_is_an_annotation_of_the_pods() -> None:
    async with (
        custom_cluster(*workload_definitions()) as c,
        running_scheduler(c),
        running_controllers(c),
    ):
        name = "train-" + "x" * 50
        await c.create(
            annotated_job(name, on_template=False, managedBy="phalanx.dev/job-controller")
        )
        await asyncio.sleep(20)
        assert len(await c.node_by_pod()) == 3
        for one in (await c.pods()).values():
            assert len(one.metadata.annotations[POD_GROUP_LABEL]) > 63


@in_virtual_time
async def test_what_if_warns_about_job_fields_that_the_server_drops() -> None:
    job = annotated_job("train", on_template=False)
    job["spec"]["gangPolicy"] = {"policy": "JobAsGang"}
    async with custom_cluster() as c:
        (warning,) = await find_dropped_fields(c.client, [Manifest(JOB, job)])
        assert warning.startswith("Job train: the API server drops spec.gangPolicy")
        assert await find_dropped_fields(c.client, [Manifest(POD, pod("a"))]) == []
    async with cluster(without=("scheduler", "controllers")) as c:
        assert await find_dropped_fields(c.client, [Manifest(JOB, job)]) == []


class PlainJobsTransport:
    """Shows a server as Kubernetes with the workload APIs: its Jobs have no `gangPolicy`."""

    def __init__(self, c: Cluster) -> None:
        self._inner = InProcessTransport(c.plane.server.handle, ADMIN)

    async def send(self, request: Request) -> Reply | StreamReply:
        reply = await self._inner.send(request)
        if request.path != f"/openapi/v3/apis/{JOB.api_version}" or isinstance(reply, StreamReply):
            return reply
        content = msgspec.json.decode(reply.body)
        (name,) = [one for one in content["components"]["schemas"] if one.endswith("v1.JobSpec")]
        del content["components"]["schemas"][name]["properties"]["gangPolicy"]
        return replace(reply, body=msgspec.json.encode(content))

    async def close(self) -> None:
        """Do nothing."""


@in_virtual_time
async def test_what_if_warns_about_gang_policy_where_jobs_have_scheduling_only() -> None:
    job = annotated_job("train", on_template=False)
    job["spec"] |= {"gangPolicy": {"policy": "JobAsGang"}, "scheduling": {"schedulingPolicy": {}}}
    gates = resolve_gates({"GroupBinding": False})
    async with custom_cluster(gates=gates) as c:
        client = Client(PlainJobsTransport(c))
        (warning,) = await find_dropped_fields(client, [Manifest(JOB, job)])
        assert warning.startswith("Job train: the API server drops spec.gangPolicy")
        assert await find_dropped_fields(c.client, [Manifest(JOB, job)]) == []
