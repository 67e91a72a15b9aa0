"""`phalanx why` shows the groups of a set as a tree, and explains waiting ones and ended sets."""

from __future__ import annotations

from phalanx.cli.why import explain_pending
from tests.builders import in_virtual_time
from tests.controllers.cluster import cluster, simulated_nodes
from tests.controllers.job_sets.job_set_harness import job_set, job_set_cluster, role
from tests.controllers.leader_worker_sets.lws_cluster import LwsUser, leader_worker_set


def columns(text: str) -> list[list[str]]:
    return [line.split()[1:] for line in text.splitlines() if line.startswith("  ")]


@in_virtual_time
async def test_the_tree_says_which_replicas_are_placed() -> None:
    async with cluster(nodes=simulated_nodes(1, cpu="5")) as c:
        await c.create(leader_worker_set(2, 3))
        await LwsUser(c).settle(5)
        head, waiting = (await explain_pending(c.client, "lws/llm", "default")).split("\n\n")
        assert head.startswith("LeaderWorkerSet default/llm: 1 of 2 groups placed")
        assert columns(head) == [
            ["ROLE", "PLACED", "PENDING", "STATE"],
            ["replica", "3", "0", "placed"],
            ["replica", "0", "3", "Unschedulable"],
        ]
        assert "is waiting: 2 of 3 members fit" in waiting


@in_virtual_time
async def test_subgroups_are_below_their_replica() -> None:
    async with cluster(nodes=simulated_nodes(1, cpu="5")) as c:
        await c.create(leader_worker_set(1, 8, subGroupPolicy={"subGroupSize": 4}))
        await LwsUser(c).settle(5)
        head, _ = (await explain_pending(c.client, "lws/llm", "default")).split("\n\n")
        assert columns(head)[1:] == [
            ["replica", "0", "8", "Unschedulable"],
            ["subgroup", "0", "4", "Unschedulable"],
            ["subgroup", "0", "4", "Unschedulable"],
        ]


@in_virtual_time
async def test_ended_suspended_and_foreign_job_sets_say_so() -> None:
    async with job_set_cluster() as c:
        foreign = job_set(role("a"), name="foreign", managedBy="example.com/other")
        paused = job_set(role("a"), name="paused", suspend=True)
        await c.create(job_set(role("a"), failurePolicy={"maxRestarts": 0}), paused, foreign)
        await c.settle()
        await c.end("Failed", "a")
        failed, suspended, managed = [
            await explain_pending(c.client, f"jobset/{name}", "default")
            for name in ("train", "paused", "foreign")
        ]
        assert failed.startswith("JobSet default/train has failed: ReachedMaxRestarts: jobset ")
        assert suspended.startswith("JobSet default/paused is suspended: SuspendedJobs: ")
        assert "groups placed" not in failed + suspended
        assert managed == (
            "JobSet default/foreign is managed by example.com/other (spec.managedBy), "
            "which creates its Jobs"
        )


@in_virtual_time
async def test_leader_worker_set_without_replicas_says_so() -> None:
    async with cluster(nodes=simulated_nodes(1, cpu="5")) as c:
        await c.create(leader_worker_set(0, 3))
        await LwsUser(c).settle(5)
        text = await explain_pending(c.client, "lws/llm", "default")
        assert text == "LeaderWorkerSet default/llm has no pods, because spec.replicas is 0"
