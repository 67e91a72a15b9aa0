"""What `phalanx describe` shows of a gang that waited, was preempted, ran again and ended."""

from __future__ import annotations

import asyncio
import re

from phalanx.api.kinds import JOB, POD, POD_GROUP, Kind
from phalanx.api.meta import Key
from phalanx.cli.cluster_queries import SubjectQuery
from phalanx.cli.describe import describe_subject, format_description
from phalanx.cli.why import answer_subject, explain_pending, format_answers
from tests.builders import in_virtual_time, pod, priority_class
from tests.controllers.cluster import Cluster, cluster, simulated_nodes
from tests.controllers.jobs.test_gang_status import gang_job, is_ready


async def describe(c: Cluster, name: str, kind: Kind = JOB) -> str:
    subject = SubjectQuery(kind, Key("default", name))
    (found,), _ = await describe_subject(c.client, subject, c.clock.now())
    return format_description(found)


@in_virtual_time
async def test_gang_is_described_over_its_whole_life() -> None:
    async with cluster(nodes=simulated_nodes(2, cpu="1")) as c:
        await c.create(priority_class("high", 100), gang_job("low", run_seconds="100"))
        await c.until(is_ready(c, "low", 2))
        running = await describe(c, "low")
        await c.create(gang_job("urgent", importance="high", run_seconds="20"))
        await c.until(is_ready(c, "urgent", 2), 120)
        await asyncio.sleep(2)
        waiting = await describe(c, "low")
        await asyncio.sleep(400)
        ended = await describe(c, "low")
    assert running.startswith("Job default/low: Running\n  group:      PodGroup low-")
    assert ", gang of at least 2\n" in running
    assert "  requests:   2 pods of cpu 1 (together cpu 2)\n" in running
    assert re.search(r"\n  low-\S+ +Running +n\d +\d+s ago +\d+s\n", running)
    assert waiting.startswith("Job default/low: Preempted\n")
    assert "  preempted:  1 time, last by job/urgent at 20" in waiting
    assert "  members:    0 with a node, 2 pending, 0 succeeded, 0 failed; 2 needed\n" in waiting
    assert ended.startswith("Job default/low: Completed\n")
    assert re.search(r"\n  ended: +\S+ \(\S+ ago\), ran (100|101)s, Complete\n", ended)
    timeline = [line.split(maxsplit=1)[1] for line in ended.partition("Timeline:\n")[2].split("\n")]
    heads = [re.split(r": |\(", line)[0].split() for line in timeline]
    for earlier, later in (
        (["Job", "WorkloadCreated"], ["PodGroup", "created"]),
        (["PodGroup", "created"], ["2", "pods", "created"]),
        (["2", "pods", "started"], ["2", "pods", "succeeded"]),
        (["2", "pods", "succeeded"], ["Job", "Completed"]),
    ):
        assert heads.index(earlier) < len(heads) - heads[::-1].index(later), (earlier, later, heads)


@in_virtual_time
async def test_group_is_described_by_its_own_name() -> None:
    async with cluster(nodes=simulated_nodes(1, cpu="1")) as c:
        await c.create(gang_job("big", 3))
        await asyncio.sleep(10)
        (group,) = (await c.client.list(POD_GROUP)).items
        subject = SubjectQuery(POD_GROUP, Key("default", group["metadata"]["name"]))
        (found,), _ = await describe_subject(c.client, subject, c.clock.now())
        by_owner = SubjectQuery(POD_GROUP, Key("default", "big"))
        (same,), _ = await describe_subject(c.client, by_owner, c.clock.now())
    assert same.groups == found.groups
    assert format_description(same).startswith("Job default/big: Never\n")
    text = format_description(found)
    assert text.startswith(f"PodGroup default/{group['metadata']['name']}: Never\n")
    assert "  queue:      position 1, reason Unschedulable\n" in text
    assert "   FailedScheduling: minCount (3) cannot be satisfied" in text
    assert text.count("minCount (3) cannot be satisfied") == 1


@in_virtual_time
async def test_pod_without_a_gang_is_described_while_it_runs_and_after_it_has_ended() -> None:
    async with cluster(nodes=simulated_nodes(1, cpu="1")) as c:
        lone = pod("lone", cpu="1")
        lone["metadata"]["annotations"] = {"phalanx.dev/run-seconds": "5"}
        lone["spec"]["restartPolicy"] = "Never"
        await c.create(lone)
        await asyncio.sleep(2)
        running = await describe(c, "lone", POD)
        await asyncio.sleep(30)
        ended = await describe(c, "lone", POD)
        why = await explain_pending(c.client, "pod/lone", "default")
    assert running.startswith("Pod default/lone: Running\n")
    assert ended.startswith("Pod default/lone: Completed\n")
    assert why == "Pod default/lone has finished: its phase is Succeeded"


@in_virtual_time
async def test_job_that_exceeded_its_deadline_is_described_without_its_pods() -> None:
    async with cluster(nodes=simulated_nodes(2, cpu="1")) as c:
        late = gang_job("late")
        late["spec"]["activeDeadlineSeconds"] = 20
        await c.create(late)
        await asyncio.sleep(60)
        ended = await describe(c, "late")
    assert ended.startswith("Job default/late: Failed\n")
    assert re.search(r"\n  ended: +\S+ \(\S+ ago\), ran (19|20|21)s, Failed\n", ended)
    assert "requests:" not in ended


@in_virtual_time
async def test_explanation_of_a_waiting_gang_says_that_no_scheduler_is_running() -> None:
    async with cluster(nodes=simulated_nodes(2, cpu="1"), without=("scheduler",)) as c:
        await c.create(gang_job("train"))
        await asyncio.sleep(10)
        subject = SubjectQuery(JOB, Key("default", "train"))
        text = format_answers(await answer_subject(c.client, subject, now=c.clock.now()))
    assert text.startswith("Job default/train would fit, but no scheduler is running")
