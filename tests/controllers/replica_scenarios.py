"""User actions on Deployments, ReplicaSets and ReplicationControllers in fault trials."""

from __future__ import annotations

from typing import Any

from phalanx.api.kinds import DEPLOYMENT, POD, REPLICA_SET, REPLICATION_CONTROLLER
from phalanx.api.wire import Object
from tests.builders import pod
from tests.controllers.trial_cluster import TrialCluster

LABELS = {"app": "web"}


def template(image: str = "v1", **spec: Any) -> Object:
    containers = [{"name": "main", "image": image}]
    return {"metadata": {"labels": LABELS}, "spec": {"containers": containers, **spec}}


def workload_object(kind: str, name: str = "web", *, image: str = "v1", **spec: Any) -> Object:
    """Build a Deployment or ReplicaSet."""
    body = {"selector": {"matchLabels": LABELS}, "template": template(image), **spec}
    return {
        "apiVersion": "apps/v1", "kind": kind,
        "metadata": {"name": name, "namespace": "default"}, "spec": body,
    }  # fmt: skip


def image_change(image: str, **spec: Any) -> Object:
    return {"spec": {"template": template(image), **spec}}


def loose_pod(name: str) -> Object:
    return pod(name, meta={"labels": LABELS})


async def scales_a_replica_set(stage: TrialCluster) -> None:
    await stage.create(workload_object("ReplicaSet", replicas=3))
    await stage.wait_until_idle()
    await stage.patch(REPLICA_SET, "web", {"spec": {"replicas": 5}})
    await stage.wait_until_idle()
    await stage.finish("Failed")
    await stage.wait_until_idle()
    await stage.patch(REPLICA_SET, "web", {"spec": {"replicas": 1}})


async def adopts_and_releases_pods(stage: TrialCluster) -> None:
    await stage.create(loose_pod("loose"), loose_pod("other"))
    await stage.wait_until_idle()
    await stage.create(workload_object("ReplicaSet", replicas=3))
    await stage.wait_until_idle()
    await stage.patch(POD, "loose", {"metadata": {"labels": {"app": "mine"}}})
    await stage.wait_until_idle()
    await stage.delete(REPLICA_SET, "web", "Orphan")


async def replaces_pods_of_a_replication_controller(stage: TrialCluster) -> None:
    await stage.create(loose_pod("loose"))
    await stage.wait_until_idle()
    await stage.create(
        {
            "apiVersion": "v1", "kind": "ReplicationController",
            "metadata": {"name": "web", "namespace": "default"},
            "spec": {"replicas": 2, "template": template()},
        }
    )  # fmt: skip
    await stage.wait_until_idle()
    await stage.patch(REPLICATION_CONTROLLER, "web", {"spec": {"replicas": 4}})
    await stage.wait_until_idle()
    await stage.delete(POD, "loose")


async def rolls_out_a_deployment_and_goes_back(stage: TrialCluster) -> None:
    await stage.create(workload_object("Deployment", replicas=3))
    await stage.wait_until_idle()
    await stage.patch(DEPLOYMENT, "web", image_change("v2"))
    await stage.wait_until_idle()
    await stage.patch(DEPLOYMENT, "web", image_change("v1", minReadySeconds=5))


async def scales_a_deployment_during_a_rollout(stage: TrialCluster) -> None:
    await stage.create(workload_object("Deployment", replicas=4, minReadySeconds=30))
    await stage.wait_until_idle()
    await stage.patch(DEPLOYMENT, "web", image_change("v2"))
    await stage.wait(10)
    await stage.patch(DEPLOYMENT, "web", {"spec": {"paused": True, "replicas": 8}})
    await stage.wait_until_idle()
    await stage.patch(DEPLOYMENT, "web", {"spec": {"paused": None}})


async def recreates_a_deployment(stage: TrialCluster) -> None:
    await stage.create(
        workload_object("Deployment", replicas=2, strategy={"type": "Recreate"}),
    )
    await stage.wait_until_idle()
    await stage.patch(DEPLOYMENT, "web", image_change("v2", revisionHistoryLimit=0))
    await stage.wait_until_idle()
    await stage.patch(DEPLOYMENT, "web", image_change("v3", replicas=0))


async def adopts_replica_sets(stage: TrialCluster) -> None:
    await stage.create(workload_object("ReplicaSet", "old", replicas=1))
    await stage.wait_until_idle()
    await stage.create(workload_object("Deployment", replicas=2))
    await stage.wait_until_idle()
    await stage.delete(DEPLOYMENT, "web", "Orphan")
