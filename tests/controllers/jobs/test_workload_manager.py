"""The options and feature gates of the scheduling of Jobs."""

from __future__ import annotations

import orjson
import pytest

from phalanx.api.errors import Invalid
from phalanx.api.feature_gates import resolve_gates
from phalanx.api.kinds import JOB, POD, POD_GROUP, WORKLOAD
from phalanx.api.wire import Request
from phalanx.controllers.jobs.workload_manager import (
    LONG_QUEUE,
    JobSchedulingOptions,
    options_from_gates,
)
from tests.builders import in_virtual_time
from tests.controllers.jobs.job_controller_harness import (
    conditions_of,
    groups_of,
    indexed,
    job,
    job_controller,
    running_job_controller,
)
from tests.controllers.trial_cluster import TrialCluster, kubelets, running_parts


def test_feature_gates_select_the_options() -> None:
    assert options_from_gates(resolve_gates({})) == JobSchedulingOptions(
        include_basic=True, use_gang_policy=True, infer_gang=False, release_groups=False
    )
    assert options_from_gates(resolve_gates({}), include_basic=False) == JobSchedulingOptions(
        include_basic=False
    )
    assert options_from_gates(resolve_gates({"WorkloadWithJob": False})) is None
    assert options_from_gates(resolve_gates({"GenericWorkload": False})) is None
    on = resolve_gates(
        {"JobGangInference": True, "JobReleaseScheduling": True, "JobGangPolicy": False}
    )
    assert options_from_gates(on) == JobSchedulingOptions(
        use_gang_policy=False, infer_gang=True, release_groups=True
    )


@in_virtual_time
async def test_gang_policy_is_ignored_while_its_gate_is_disabled() -> None:
    async with running_job_controller(JobSchedulingOptions(use_gang_policy=False)) as cluster:
        await cluster.create(job(gangPolicy={"policy": "JobAsGang"}, parallelism=2))
        await cluster.wait_until_idle()
        assert (await cluster.get_only(POD_GROUP))["spec"]["schedulingPolicy"] == {"basic": {}}


@in_virtual_time
async def test_suspended_job_releases_its_group_and_gets_a_new_one_if_enabled() -> None:
    async with running_job_controller(JobSchedulingOptions(release_groups=True)) as cluster:
        await cluster.create(job(gang=True, parallelism=2, completions=2))
        await cluster.wait_until_idle()
        workload, pod_group = await cluster.get_only(WORKLOAD), await cluster.get_only(POD_GROUP)
        await cluster.patch(JOB, "train", {"spec": {"suspend": True}})
        await cluster.wait_until_idle()
        assert (await cluster.get_only(WORKLOAD), await cluster.list_objects(POD_GROUP)) == (
            workload,
            [],
        )
        await cluster.patch(JOB, "train", {"spec": {"suspend": False}})
        await cluster.wait_until_idle()
        again = await cluster.get_only(POD_GROUP)
        assert again["metadata"]["uid"] != pod_group["metadata"]["uid"]
        assert groups_of(await cluster.list_objects(POD)) == [again["metadata"]["name"]] * 2
        await cluster.finish("Succeeded")
        await cluster.wait_until_idle()
        assert await cluster.list_objects(POD_GROUP) == []


@in_virtual_time
async def test_with_a_long_queue_workloads_are_created_before_groups() -> None:
    cluster = TrialCluster()
    await cluster.server.start()
    many = [f"train-{n}" for n in range(2 * LONG_QUEUE)]
    await cluster.create(*map(job, many))
    order: list[str] = []
    cluster.store.subscribe(
        lambda changes: order.extend(
            change.key.split("/")[2] for change in changes if change.before is None
        )
    )
    async with running_parts(cluster, job_controller(), kubelets):
        await cluster.wait_until_idle()
    assert order.count("pods") == order.count("podgroups") == len(many)
    assert order[: order.index("podgroups")].count("workloads") >= LONG_QUEUE


@in_virtual_time
async def test_suspended_or_finished_job_keeps_its_group_by_default() -> None:
    async with running_job_controller() as cluster:
        await cluster.create(job(gang=True))
        await cluster.wait_until_idle()
        uid = (await cluster.get_only(POD_GROUP))["metadata"]["uid"]
        for suspend in (True, False):
            await cluster.patch(JOB, "train", {"spec": {"suspend": suspend}})
            await cluster.wait_until_idle()
        await cluster.finish("Succeeded")
        await cluster.wait_until_idle()
        assert (await cluster.get_only(POD_GROUP))["metadata"]["uid"] == uid


@in_virtual_time
async def test_inferred_gang_cannot_be_resized() -> None:
    gates = resolve_gates({"JobGangInference": True})
    async with running_job_controller(options_from_gates(gates), gates=gates) as cluster:
        await cluster.create(indexed(3))
        await cluster.wait_until_idle()
        pod_group = await cluster.get_only(POD_GROUP)
        assert pod_group["spec"]["schedulingPolicy"] == {"gang": {"minCount": 3}}
        with pytest.raises(Invalid) as error:
            await cluster.patch(JOB, "train", {"spec": {"parallelism": 4, "completions": 4}})
        assert [cause.field for cause in error.value.causes] == ["spec.parallelism"]
        # With another parallelism the Job is no gang by its shape; the group keeps its members.
        await cluster.patch(JOB, "train", {"spec": {"parallelism": 2}})
        await cluster.wait_until_idle()
        pod_group = await cluster.get_only(POD_GROUP)
        assert pod_group["metadata"]["annotations"]["phalanx.dev/members-to-run"] == "2"


@in_virtual_time
async def test_without_inference_the_shape_is_basic_and_may_change() -> None:
    async with running_job_controller() as cluster:
        await cluster.create(indexed(3))
        await cluster.wait_until_idle()
        assert (await cluster.get_only(POD_GROUP))["spec"]["schedulingPolicy"] == {"basic": {}}
        await cluster.patch(JOB, "train", {"spec": {"parallelism": 4, "completions": 4}})


@in_virtual_time
async def test_disabled_gate_is_reported_to_a_job_that_asks_for_a_gang() -> None:
    gates = resolve_gates({"WorkloadWithJob": False})
    async with running_job_controller(options_from_gates(gates), gates=gates) as cluster:
        gang = job("gang", gangPolicy={"policy": "JobAsGang"}, parallelism=2, completions=2)
        body = orjson.dumps(gang)
        request = Request("POST", JOB.url_path("default"), body=body)
        reply = await cluster.transport("user").send(request)
        assert reply.code == 201
        assert [text for name, text in reply.headers if name.lower() == "warning"] == [
            '299 - "spec.gangPolicy.policy is ignored: without the feature gate WorkloadWithJob '
            'pods are scheduled one by one"'
        ]
        await cluster.create(job("none", gangPolicy={"policy": "NoGang"}), job("plain"))
        await cluster.wait_until_idle()
        jobs = await cluster.list_objects(JOB)
        found = {one["metadata"]["name"]: conditions_of(one) for one in jobs}
        assert found == {
            "gang": {"SchedulingFallback": ("True", "WorkloadWithJobDisabled")},
            "none": {},
            "plain": {},
        }
        (event,) = await cluster.events("WorkloadWithJobDisabled")
        assert event["involvedObject"]["name"] == "gang"
        assert groups_of(await cluster.list_objects(POD)) == [""] * 4
