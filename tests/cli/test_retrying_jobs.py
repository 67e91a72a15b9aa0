"""What `queue`, `why` and `describe` say of gangs whose Jobs retry, fail or are suspended."""

from __future__ import annotations

import asyncio
import re
from typing import Any

from phalanx.api.kinds import DEPLOYMENT, EVENT, JOB, POD, POD_GROUP, Kind
from phalanx.api.meta import Key, pod_group_ref
from phalanx.api.wire import Object
from phalanx.cli.cluster_overview import summarize_cluster
from phalanx.cli.cluster_queries import SubjectQuery, read_cluster
from phalanx.cli.describe import describe_gang, describe_subject, format_description
from phalanx.cli.queue import QueueFilter, list_queue, render_queue
from phalanx.cli.queue_report_process import build_report
from phalanx.cli.top import render_overview
from phalanx.cli.top_screen import TopScreen
from phalanx.cli.why import answer_subject, explain_pending, format_answers
from phalanx.cli.workload_states import COMPLETED, FAILED, HELD
from phalanx.library import Cluster as LibraryCluster
from tests.builders import gang, in_virtual_time, pod
from tests.cli.test_top_overview import cluster as cluster_objects
from tests.controllers.cluster import Cluster, cluster, simulated_nodes
from tests.controllers.jobs.test_gang_status import gang_job, group_of


def failing_job(
    name: str, members: int = 1, *, rate: float = 1.0, limit: int = 6, **spec: Any
) -> Object:
    """A gang whose pods run for five seconds; this part of them fails."""
    made = gang_job(name, members, stages=f"{{run: 5, failure: {rate}}}")
    made["spec"] |= {"backoffLimit": limit, **spec}
    return made


async def queue_line(c: Cluster, *, with_ended: bool = False) -> tuple[str, list[str]]:
    """The state of the only gang of the queue, and the cells of its line."""
    chosen = QueueFilter("default", "", ())
    listing = await list_queue(
        c.client, chosen, "default", now=c.clock.now(), with_ended=with_ended
    )
    (entry,) = listing.entries
    return entry.state, list(render_queue(listing))[-1].text.split()


async def describe(c: Cluster, name: str, kind: Kind = JOB) -> str:
    subject = SubjectQuery(kind, Key("default", name))
    (found,), _ = await describe_subject(c.client, subject, c.clock.now())
    return format_description(found)


async def answers(c: Cluster, kind: Kind, name: str) -> str:
    """What `phalanx why` prints."""
    subject = SubjectQuery(kind, Key("default", name))
    return format_answers(await answer_subject(c.client, subject, now=c.clock.now()))


async def until_failed(c: Cluster, pods: int) -> None:
    """Wait until this many pods have failed, and no other one is there."""

    async def are_failed() -> bool:
        return [pod.status.phase for pod in (await c.pods()).values()] == ["Failed"] * pods

    await c.until(are_failed, 300)


@in_virtual_time
async def test_job_whose_gang_has_failed_once_waits_to_retry() -> None:
    async with cluster(nodes=simulated_nodes(1, cpu="1")) as c:
        await c.create(failing_job("retry"))
        await until_failed(c, 1)
        await asyncio.sleep(2)
        text = await explain_pending(c.client, "job/retry", "default")
        by_gang = await explain_pending(c.client, "gang/retry", "default")
        state, cells = await queue_line(c)
        described = await describe(c, "retry")
    first, second, *_ = text.splitlines()
    assert first == (
        "Job default/retry waits to retry: 1 pod failed: exit code 1; the Job creates a replacement"
    )
    assert second.startswith("  1 pod failed, exit code 1: retry-")
    assert by_gang == text
    assert (state, cells[1], cells[-2:]) == (HELD, "Held", ["0/1", "Retrying"])
    assert described.startswith("Job default/retry: Held\n")


@in_virtual_time
async def test_job_beyond_its_backoff_limit_has_failed() -> None:
    async with cluster(nodes=simulated_nodes(1, cpu="1")) as c:
        await c.create(failing_job("fails", limit=1))
        await until_failed(c, 2)
        await asyncio.sleep(60)
        text = await explain_pending(c.client, "job/fails", "default")
        by_gang = await explain_pending(c.client, "gang/fails", "default")
        group = (await group_of(c, "fails")).metadata.name
        by_group = await explain_pending(c.client, f"podgroup/{group}", "default")
        state, cells = await queue_line(c, with_ended=True)
    assert text.startswith("Job default/fails has failed: BackoffLimitExceeded: ")
    assert re.search(r"\n  2 pods failed, exit code 1: fails-\S+, fails-\S+\n", text)
    assert "\n  their output: kubectl logs fails-" in text
    assert by_gang == text
    assert by_group == text
    assert (state, cells[-2:]) == (FAILED, ["0/1", "BackoffLimitExceeded"])


@in_virtual_time
async def test_job_that_completed_after_a_retry_is_completed_with_its_members() -> None:
    async with cluster(nodes=simulated_nodes(4, cpu="1")) as c:
        await c.create(failing_job("train", 4, rate=0.4, limit=20))
        await asyncio.sleep(900)
        failed = [pod for pod in (await c.pods()).values() if pod.status.phase == "Failed"]
        state, cells = await queue_line(c, with_ended=True)
        described = await describe(c, "train")
        (item,) = (await build_report(c.client))["items"]
    assert failed
    assert (state, cells[-2:]) == (COMPLETED, ["4/4", "Complete"])
    assert described.startswith("Job default/train: Completed\n")
    assert "0 with a node, 0 pending, 4 succeeded, 0 failed; 4 needed\n" in described
    assert [item[name] for name in ("state", "members", "ended", "failed")] == [
        "completed",
        4,
        4,
        0,
    ]


@in_virtual_time
async def test_gang_that_runs_after_a_retry_counts_its_members() -> None:
    async with cluster(nodes=simulated_nodes(1, cpu="1")) as c:
        made = failing_job("retry")
        made["spec"]["template"]["metadata"]["annotations"] = {
            "phalanx.dev/stages": "{run: 60, failure: 1}"
        }
        await c.create(made)
        await until_failed(c, 1)
        await asyncio.sleep(20)
        state, cells = await queue_line(c)
    assert (state, cells[-2:]) == ("running", ["1/1", "-"])


@in_virtual_time
async def test_suspended_gang_is_explained_by_every_name() -> None:
    async with cluster(nodes=simulated_nodes(1, cpu="1")) as c:
        await c.create(gang_job("susp"))
        await asyncio.sleep(10)
        await c.client.patch(JOB, Key("default", "susp"), {"spec": {"suspend": True}})
        await asyncio.sleep(60)
        text = await explain_pending(c.client, "job/susp", "default")
        by_gang = await explain_pending(c.client, "gang/susp", "default")
        described = await describe(c, "susp")
        described_gang = await describe(c, "susp", POD_GROUP)
    assert text.startswith("Job default/susp is suspended: JobSuspended")
    assert by_gang == text
    assert described.startswith("Job default/susp: Suspended\n")
    assert "\n  created:    2" in described
    assert "\n  members:    none" in described
    assert described_gang == described


@in_virtual_time
async def test_gang_that_exceeded_its_deadline_without_nodes_never_started() -> None:
    async with cluster(nodes=simulated_nodes(1, cpu="1")) as c:
        late = gang_job("late")
        late["spec"]["activeDeadlineSeconds"] = 20
        await c.create(late)
        await asyncio.sleep(60)
        text = await explain_pending(c.client, "job/late", "default")
        by_gang = await explain_pending(c.client, "gang/late", "default")
        for event in (await c.client.list(EVENT)).items:
            await c.delete(EVENT, event["metadata"]["name"])
        described = await describe(c, "late")
    first, second = text.splitlines()
    assert first.startswith("Job default/late has failed: DeadlineExceeded: ")
    assert second.startswith("  it never started: minCount (2) cannot be satisfied: ")
    assert by_gang == text
    assert "0 with a node, 0 pending, 0 succeeded, 0 failed, 2 deleted; 2 needed\n" in described
    timeline = described.partition("Timeline:\n")[2]
    assert re.search(r"Z   Job +Failed=True DeadlineExceeded: Job was active longer", timeline)


@in_virtual_time
async def test_gang_in_a_cluster_without_nodes_never_fits() -> None:
    async with cluster() as c:
        await c.create(gang_job("train"), pod("lone", cpu="1"))
        await asyncio.sleep(20)
        found = await answers(c, JOB, "train")
        lone = await answers(c, POD, "lone")
        short = await explain_pending(c.client, "job/train", "default")
    assert found.startswith("Job default/train never fits: the cluster has no nodes.\n")
    assert short.startswith("Job default/train never fits: the cluster has no nodes.\n")
    assert lone.startswith("Pod default/lone never fits: the cluster has no nodes.\n")


@in_virtual_time
async def test_without_a_scheduler_nothing_has_an_expected_start() -> None:
    async with cluster(nodes=simulated_nodes(2, cpu="1"), without=("scheduler",)) as c:
        await c.create(gang_job("fits"), gang_job("never", cpu="9"))
        await asyncio.sleep(10)
        fits, never = await answers(c, JOB, "fits"), await answers(c, JOB, "never")
        chosen, now = QueueFilter("default", "", ()), c.clock.now()
        listing = await list_queue(c.client, chosen, "default", now=now)
        objects = await read_cluster(c.client)
        overview = summarize_cluster(objects, now, outage="no scheduler is running")
    assert fits.startswith("Job default/fits would fit, but no scheduler is running")
    assert "start:" not in fits
    head, second, *_ = never.splitlines()
    assert head.startswith("Job default/never never fits on these nodes: ")
    assert second.startswith("  scheduler: ")
    assert {entry.expected for entry in listing.entries} == {None}
    assert {entry.expected for entry in overview.gangs} == {None}
    assert render_overview(overview)[0].text == "Warning: no scheduler is running"
    screen = TopScreen(objects, overview, now).render(80, 24)
    assert "Warning: no scheduler is running" in [line.text for line in screen]


@in_virtual_time
async def test_deployment_is_described_with_all_its_pods() -> None:
    async with cluster(nodes=simulated_nodes(1, cpu="1")) as c:
        template = {"metadata": {"labels": {"app": "web"}}, "spec": pod("web", cpu="1")["spec"]}
        spec = {"replicas": 2, "selector": {"matchLabels": {"app": "web"}}, "template": template}
        meta = {"name": "web", "namespace": "default"}
        await c.create({
            "apiVersion": "apps/v1", "kind": "Deployment", "metadata": meta, "spec": spec,
        })  # fmt: skip
        await asyncio.sleep(20)
        described = await describe(c, "web", DEPLOYMENT)
    head, *lines = described.splitlines()
    assert head == "Deployment default/web: Waiting"
    assert "  members:    1 with a node, 1 pending, 0 succeeded, 0 failed" in lines
    table = described.partition("Members:\n")[2].partition("Timeline:")[0].splitlines()
    assert sorted(line.split()[1] for line in table) == ["Pending", "Running", "STATE"]


def test_long_refusal_of_a_binding_is_short_and_names_the_preemptor() -> None:
    text = "is being deleted, cannot be assigned to a host"
    causes = ", ".join(f"bindings[{n}]: pod low-{n} {text}" for n in range(16))
    group, *members = gang("low", 2, cpu="1")
    meta = {"namespace": "default", "uid": "g", "creationTimestamp": "2027-01-15T07:59:00Z"}
    group["metadata"] |= meta
    group["status"] = {"conditions": [{
        "type": "Preempted", "status": "True", "reason": "PreemptionByScheduler",
        "message": "Preempted by PodGroup team/urgent-pg",
        "lastTransitionTime": "2027-01-15T08:00:00Z",
    }]}  # fmt: skip
    urgent, *_ = gang("urgent-pg", 1)
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "urgent", "uid": "u"}
    urgent["metadata"] |= {
        "namespace": "team", "ownerReferences": [owner | {"controller": True}],
    }  # fmt: skip
    event = {
        "involvedObject": {"kind": "PodGroup", "name": "low", "uid": "g"},
        "reason": "FailedBinding", "lastTimestamp": "2027-01-15T08:00:01Z",
        "message": f"no pod of the group was bound: [{causes}]",
    }  # fmt: skip
    objects = LibraryCluster(cluster_objects(group, *members, urgent), now=1.8e9)
    ref = pod_group_ref(Key("default", "low"))
    found = describe_gang(objects, [ref], None, title="PodGroup default/low", events=[event])
    (line,) = [one for one in format_description(found).splitlines() if "FailedBinding" in one]
    assert line.partition("PodGroup   ")[2] == (
        "FailedBinding: Preempted by job/urgent in team: no pod of the group was bound: "
        f"bindings[0]: pod low-0 {text} and 15 more"
    )
