"""User actions on LeaderWorkerSets in fault trials of their controller."""

from __future__ import annotations

from phalanx.api.kinds import LEADER_WORKER_SET, POD
from phalanx.api.meta import Key
from phalanx.api.wire import STRATEGIC_PATCH, Object
from tests.controllers.leader_worker_sets.lws_cluster import leader_worker_set, template
from tests.controllers.trial_cluster import TrialCluster


def new_image(image: str) -> Object:
    return {"spec": {"leaderWorkerTemplate": {"workerTemplate": template(image)}}}


async def scales_a_leader_worker_set(stage: TrialCluster) -> None:
    await stage.create(leader_worker_set(1, 3))
    await stage.wait_until_idle()
    await stage.patch(LEADER_WORKER_SET, "llm", {"spec": {"replicas": 3}})
    await stage.wait_until_idle()
    await stage.patch(LEADER_WORKER_SET, "llm", {"spec": {"replicas": 2}})


async def updates_groups_with_a_surge(stage: TrialCluster) -> None:
    await stage.create(leader_worker_set(2, 2, maxSurge=1))
    await stage.wait_until_idle()
    await stage.patch(LEADER_WORKER_SET, "llm", new_image("v2"))


async def updates_groups_down_to_a_partition_and_goes_back(stage: TrialCluster) -> None:
    await stage.create(leader_worker_set(3, 2, partition=1))
    await stage.wait_until_idle()
    await stage.patch(LEADER_WORKER_SET, "llm", new_image("v2"))
    await stage.wait_until_idle()
    await stage.patch(LEADER_WORKER_SET, "llm", new_image("v1"))


async def recreates_a_group(stage: TrialCluster) -> None:
    unique = {"subdomainPolicy": "UniquePerReplica"}
    await stage.create(leader_worker_set(2, 3, networkConfig=unique))
    await stage.wait_until_idle()
    container = {"name": "main", "image": "v1", "imageID": "", "ready": True, "restartCount": 1}
    change = {"status": {"containerStatuses": [container]}}
    await stage.client.patch(
        POD, Key("default", "llm-1-2"), change, subresource="status", content=STRATEGIC_PATCH
    )


async def resizes_groups_with_subgroups(stage: TrialCluster) -> None:
    await stage.create(leader_worker_set(2, 5, subGroupPolicy={"subGroupSize": 2}))
    await stage.wait_until_idle()
    await stage.patch(LEADER_WORKER_SET, "llm", {"spec": {"leaderWorkerTemplate": {"size": 4}}})


async def starts_workers_after_their_leaders(stage: TrialCluster) -> None:
    await stage.create(leader_worker_set(2, 2, startupPolicy="LeaderReady"))
    await stage.wait_until_idle()
    await stage.delete(POD, "llm-0")
