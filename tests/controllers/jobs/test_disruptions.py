"""Disrupted pods of gang Jobs are replaced and counted nowhere."""

from __future__ import annotations

import asyncio

import pytest

from phalanx.api.batch import Job
from phalanx.api.core import Pod
from phalanx.api.errors import TooManyRequests
from phalanx.api.feature_gates import DEFAULT_GATES, parse_gates, resolve_gates
from phalanx.api.kinds import EVICTION, JOB, NODE, POD
from phalanx.api.wire import Object
from phalanx.controllers.jobs.completion import JobSnapshot
from phalanx.controllers.jobs.job_pods import JobPods
from phalanx.controllers.jobs.sync import SyncPlan, SyncResult, plan_sync
from phalanx.controllers.jobs.workload_manager import options_from_gates
from tests.builders import in_virtual_time, node, priority_class
from tests.controllers.cluster import Cluster, cluster, simulated_nodes
from tests.controllers.jobs import job_builders as decoded
from tests.controllers.jobs.job_builders import NOW
from tests.controllers.jobs.job_controller_harness import (
    conditions_of,
    indexed,
    job,
    running_job_controller,
)
from tests.controllers.trial_cluster import TrialCluster

DISRUPTED = [{"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}]
COUNT_ALL = {"rules": [{"action": "FailJob", "onExitCodes": {"operator": "In", "values": [42]}}]}


def plan(of: Job, *pods: Pod, ignores: bool = True) -> SyncPlan:
    return plan_sync(JobSnapshot(JobPods(of, pods), NOW, ignores_disruptions=ignores))


def test_disrupted_pod_is_replaced_at_once_and_not_counted() -> None:
    gang = decoded.job(parallelism=2, completions=2, backoffLimit=0)
    lost = decoded.pod("a", "Running", of=gang, terminating=True, conditions=DISRUPTED, node="n")
    failed = decoded.pod("b", "Failed", of=gang, conditions=DISRUPTED, finished=-1)
    made = plan(gang, lost, failed)
    assert made.outcome is None
    assert len(made.pods_to_create) == 2
    assert [pod.metadata.name for pod in made.pods_to_untrack] == ["a", "b"]
    status = made.build_status_update(SyncResult(created=2)).status
    assert "failed" not in status
    assert "uncountedTerminatedPods" not in status


@pytest.mark.parametrize("reason", ["a policy decides", "the gate is off", "no condition"])
def test_disruption_counts(reason: str) -> None:
    policy: Object = {"podFailurePolicy": COUNT_ALL} if reason == "a policy decides" else {}
    one = decoded.job(backoffLimit=0, **policy)
    failed = decoded.pod(
        "a", "Failed", of=one, conditions=[] if reason == "no condition" else DISRUPTED
    )
    made = plan(one, failed, ignores=reason != "the gate is off")
    assert made.outcome is not None
    assert made.outcome.reason == "BackoffLimitExceeded"
    assert made.counts.uncounted_failed == ("uid-a",)


def test_disruption_does_not_count_for_its_index() -> None:
    spec: Object = {"parallelism": 2, "completions": 2, "backoffLimitPerIndex": 0}
    one = decoded.job(completionMode="Indexed", backoffLimit=2**31 - 1, **spec)
    running = decoded.pod("b", of=one, index=1)
    lost = decoded.pod("a", "Failed", of=one, index=0, failures=0, conditions=DISRUPTED, finished=0)
    made = plan(one, running, lost)
    assert made.outcome is None
    assert made.counts.failed_indexes == frozenset()
    (new,) = made.pods_to_create
    assert (new.index, dict(new.annotations)) == (
        0,
        {
            "batch.kubernetes.io/job-index-failure-count": "0",
            "batch.kubernetes.io/job-index-ignored-failure-count": "1",
        },
    )


def test_genuine_failure_beside_a_disruption_still_backs_off() -> None:
    one = decoded.job(parallelism=2, completions=2)
    lost = decoded.pod("a", "Failed", of=one, conditions=DISRUPTED, finished=-1)
    failed = decoded.pod("b", "Failed", of=one, finished=-4)
    made = plan(one, lost, failed)
    assert (made.pods_to_create, made.replicas.requeue_after) == ((), 6.0)


async def evict(c: TrialCluster | Cluster, pod: Object) -> None:
    name = pod["metadata"]["name"]
    body = {"apiVersion": EVICTION.api_version, "kind": EVICTION.name, "metadata": {"name": name}}
    await c.client.post(POD.url_path("default", name, "eviction"), body)


def was_marked(c: TrialCluster, since: int) -> bool:
    changes = (change.after for change in c.store.changes(since))
    return any(b"EvictionByEvictionAPI" in one.value for one in changes if one)


@in_virtual_time
async def test_eviction_api_marks_the_pod_and_the_gang_job_goes_on() -> None:
    async with running_job_controller() as cluster:
        await cluster.create(indexed(3, gang=True, backoffLimit=0))
        await cluster.wait_until_idle()
        victim = (await cluster.list_objects(POD))[0]
        revision = cluster.store.revision
        await evict(cluster, victim)
        await cluster.wait_until_idle()
        assert was_marked(cluster, revision)
        found = await cluster.get_only(JOB)
        assert (found["status"].get("failed", 0), found["status"]["active"]) == (0, 3)
        assert conditions_of(found) == {}
        await cluster.finish("Succeeded")
        await cluster.wait_until_idle()
        assert conditions_of(await cluster.get_only(JOB))["Complete"][0] == "True"


@in_virtual_time
async def test_disruption_counts_without_the_gate_and_in_a_job_that_is_no_gang() -> None:
    gates = resolve_gates(parse_gates("JobIgnoreDisruptions=false"))
    for gang, given in ((True, gates), (False, DEFAULT_GATES)):
        async with running_job_controller(options_from_gates(given)) as cluster:
            await cluster.create(job(gang=gang, parallelism=2, completions=2, backoffLimit=0))
            await cluster.wait_until_idle()
            await evict(cluster, (await cluster.list_objects(POD))[0])
            await cluster.wait_until_idle()
            assert conditions_of(await cluster.get_only(JOB))["Failed"] == (
                "True",
                "BackoffLimitExceeded",
            )


@in_virtual_time
async def test_finished_pod_is_not_marked_by_an_eviction() -> None:
    async with running_job_controller() as cluster:
        await cluster.create(job(gang=True, parallelism=1, completions=1, backoffLimit=0))
        await cluster.wait_until_idle()
        revision = cluster.store.revision
        await cluster.finish("Failed")
        await evict(cluster, (await cluster.list_objects(POD))[0])
        await cluster.wait_until_idle()
        assert not was_marked(cluster, revision)
        assert conditions_of(await cluster.get_only(JOB))["Failed"][0] == "True"


@in_virtual_time
async def test_budget_still_refuses_an_eviction_and_leaves_no_mark() -> None:
    budget = {
        "apiVersion": "policy/v1", "kind": "PodDisruptionBudget",
        "metadata": {"name": "b", "namespace": "default"},
        "spec": {"minAvailable": 1, "selector": {}},
    }  # fmt: skip
    async with running_job_controller() as cluster:
        await cluster.create(job(gang=True, parallelism=1, completions=1), budget)
        await cluster.wait_until_idle()
        (pod,) = await cluster.list_objects(POD)
        with pytest.raises(TooManyRequests):
            await evict(cluster, pod)
        assert "DisruptionTarget" not in conditions_of((await cluster.list_objects(POD))[0])


def important(obj: Object, name: str) -> Object:
    obj["spec"]["template"]["spec"]["priorityClassName"] = name
    return obj


def sized(obj: Object, cpu: str = "1", seconds: str = "") -> Object:
    template = obj["spec"]["template"]
    template["spec"]["containers"][0]["resources"] = {"requests": {"cpu": cpu}}
    if seconds:
        template["metadata"] = {"annotations": {"phalanx.dev/run-seconds": seconds}}
    return obj


async def statuses(c: Cluster) -> dict[str, Object]:
    return {one["metadata"]["name"]: one["status"] for one in (await c.client.list(JOB)).items}


@in_virtual_time
async def test_preempted_gang_job_runs_again_and_completes() -> None:
    async with cluster(nodes=simulated_nodes(4, cpu="1", memory="8Gi")) as c:
        await c.create(priority_class("high", 100))
        low = job("low", gang=True, parallelism=4, completions=4, backoffLimit=0)
        high = important(
            job("high", gang=True, parallelism=4, completions=4, backoffLimit=0), "high"
        )
        await c.create(sized(low, seconds="40"))

        async def is_running(name: str) -> bool:
            return bool((await statuses(c))[name].get("ready") == 4)

        await c.until(lambda: is_running("low"))
        await c.create(sized(high, seconds="20"))
        await c.until(lambda: is_running("high"), 120)
        waiting = (await statuses(c))["low"]
        assert (waiting.get("failed", 0), waiting["active"]) == (0, 4)

        async def are_complete() -> bool:
            found = await statuses(c)
            return all(conditions_of({"status": one}).get("Complete") for one in found.values())

        await c.until(are_complete, 300)
        assert (await statuses(c))["low"].get("failed", 0) == 0


@in_virtual_time
async def test_gang_job_survives_the_loss_of_a_node() -> None:
    async with cluster() as c:
        for name in ("n0", "n1"):
            await c.add_node(node(name, cpu="1"))
        await c.create(sized(job("train", gang=True, parallelism=2, completions=2, backoffLimit=0)))

        async def are_placed() -> bool:
            return len(await c.node_by_pod()) == 2

        await c.until(are_placed)
        lost = {name for name, node in (await c.node_by_pod()).items() if node == "n0"}
        await c.delete(NODE, "n0")
        await asyncio.sleep(200)
        assert lost.isdisjoint(await c.node_by_pod())
        found = (await statuses(c))["train"]
        assert (found.get("failed", 0), found["active"]) == (0, 2)
        await c.add_node(node("n2", cpu="1"))
        await c.until(are_placed)


@in_virtual_time
async def test_terminating_members_do_not_count_towards_the_quorum() -> None:
    """Three of four members terminate slowly: their replacements are placed as a gang of four."""
    async with cluster(nodes=simulated_nodes(8, cpu="1", memory="8Gi")) as c:
        slow = sized(job("slow", gang=True, parallelism=4, completions=4, backoffLimit=0), "1")
        slow["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] = 600
        await c.create(slow)

        async def are_ready() -> bool:
            return bool((await statuses(c))["slow"].get("ready") == 4)

        await c.until(are_ready)
        for victim in (await c.client.list(POD)).items:
            await evict(c, victim)
        await asyncio.sleep(5)
        pods = (await c.client.list(POD)).items
        live = [pod for pod in pods if not pod["metadata"].get("deletionTimestamp")]
        assert len(live) == 4
        assert (await statuses(c))["slow"].get("failed", 0) == 0
