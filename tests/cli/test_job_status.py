"""What a Job itself says in `phalanx why job/NAME`."""

from __future__ import annotations

import asyncio
import re

import msgspec

from phalanx.api.batch import Job
from phalanx.api.feature_gates import resolve_gates
from phalanx.api.wire import Object
from phalanx.cli.job_status import find_job_findings
from phalanx.cli.why import explain_pending
from tests.builders import in_virtual_time
from tests.controllers.cluster import cluster, simulated_nodes
from tests.controllers.jobs.job_controller_harness import job as job_object
from tests.controllers.jobs.test_quota import quota


def job(*conditions: tuple[str, str, str]) -> Job:
    listed = [
        {"type": kind, "status": "True", "reason": reason, "message": message}
        for kind, reason, message in conditions
    ]
    meta = {"name": "train", "namespace": "default", "uid": "u"}
    return msgspec.convert({"metadata": meta, "status": {"conditions": listed}}, Job)


def event(reason: str, message: str, time: str = "1", uid: str = "u") -> Object:
    involved = {"uid": uid}
    return {
        "reason": reason,
        "message": message,
        "lastTimestamp": time,
        "involvedObject": involved,
    }


def texts(found: Job, *events: Object) -> list[str]:
    return [finding.text for finding in find_job_findings(found, events)]


def test_final_condition_is_the_only_answer() -> None:
    failed = job(("QuotaExceeded", "QuotaExceeded", "few"), ("Failed", "DeadlineExceeded", "late"))
    assert texts(failed, event("FailedCreate", "no")) == [
        "Job default/train has failed: DeadlineExceeded: late"
    ]


def test_refused_objects_are_reported_by_their_latest_event() -> None:
    events = [
        event("FailedWorkloadCreate", "old", "1"),
        event("FailedWorkloadCreate", "new", "2"),
        event("FailedPodGroupCreate", "of another Job", uid="v"),
        event("SuccessfulCreate", "ignored"),
    ]
    assert texts(job(), *events) == ["Job default/train cannot create its Workload: new"]
    assert texts(job()) == []


def test_quota_is_reported_once() -> None:
    waiting = job(("QuotaExceeded", "QuotaExceeded", "exceeded quota: few"))
    assert texts(waiting, event("FailedCreate", "exceeded quota: few")) == [
        "Job default/train waits for a ResourceQuota: exceeded quota: few"
    ]


@in_virtual_time
async def test_why_reports_a_quota_and_a_refused_workload_instead_of_no_pods() -> None:
    async with cluster(nodes=simulated_nodes(1, cpu="8")) as c:
        objects = {"count/workloads.scheduling.k8s.io": "1"}
        await c.create(quota(pods="1", **objects))
        for name in ("first", "second"):
            await c.create(job_object(name, gang=True, parallelism=2, completions=2))
            await asyncio.sleep(5)
        first = await explain_pending(c.client, "job/first", "default")
        assert first.startswith(
            "Job default/first waits for a ResourceQuota: 2 pods are needed at once: exceeded quota"
        )
        second = await explain_pending(c.client, "job/second", "default")
        failure = "Failed to create Workload for Job second"
        assert second.startswith(f"Job default/second cannot create its Workload: {failure}")


@in_virtual_time
async def test_why_reports_a_gang_that_a_gate_turned_off() -> None:
    gates = resolve_gates({"WorkloadWithJob": False})
    async with cluster(nodes=simulated_nodes(1, cpu="8"), gates=gates) as c:
        await c.create(job_object("train", gangPolicy={"policy": "JobAsGang"}))
        await asyncio.sleep(5)
        answer = await explain_pending(c.client, "job/train", "default")
        assert answer.startswith(
            "Job default/train is not scheduled as a gang: WorkloadWithJobDisabled: "
            "The feature gate WorkloadWithJob is off"
        )


@in_virtual_time
async def test_why_says_how_the_pods_of_a_failed_job_ended() -> None:
    async with cluster(nodes=simulated_nodes(2, cpu="8")) as c:
        made = job_object("train", gang=True, parallelism=2, completions=2, backoffLimit=0)
        stages = "{run: 1, failure: 1, exitCode: 42}"
        made["spec"]["template"]["metadata"] = {"annotations": {"phalanx.dev/stages": stages}}
        await c.create(made)
        await asyncio.sleep(60)
        answer = await explain_pending(c.client, "job/train", "default")
    first, pods, log = answer.splitlines()
    assert first.startswith("Job default/train has failed: BackoffLimitExceeded: ")
    assert re.fullmatch(r"  2 pods failed, exit code 42: train-\S+, train-\S+", pods)
    assert re.fullmatch(r"  their output: kubectl logs train-\S+ -n default", log)
