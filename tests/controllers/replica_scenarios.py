"""User actions on Deployments, ReplicaSets and ReplicationControllers in fault trials."""

from __future__ import annotations

from typing import Any

from phalanx.api.kinds import (
    DAEMON_SET,
    DEPLOYMENT,
    ENDPOINTS,
    NODE,
    POD,
    REPLICA_SET,
    REPLICATION_CONTROLLER,
    SERVICE,
)
from phalanx.api.meta import Key
from phalanx.api.wire import Object
from tests.builders import node, pod
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


async def follows_the_nodes(stage: TrialCluster) -> None:
    await stage.create(node("n0", labels={"disk": "ssd"}), node("n1"))
    await stage.create(workload_object("DaemonSet"))
    await stage.wait_until_idle()
    await stage.create(node("n2", labels={"disk": "ssd"}))
    await stage.wait_until_idle()
    await stage.delete(NODE, "n0")
    await stage.finish("Failed")
    await stage.wait_until_idle()
    change = {"spec": {"template": {"spec": {"nodeSelector": {"disk": "ssd"}}}}}
    await stage.patch(DAEMON_SET, "web", change)


async def updates_a_daemon_set(stage: TrialCluster) -> None:
    await stage.create(*(node(f"n{n}") for n in range(3)))
    await stage.create(workload_object("DaemonSet", minReadySeconds=5))
    await stage.wait_until_idle()
    surge = {"rollingUpdate": {"maxSurge": 2, "maxUnavailable": 0}}
    await stage.patch(DAEMON_SET, "web", image_change("v2", updateStrategy=surge))
    await stage.wait_until_idle()
    await stage.patch(DAEMON_SET, "web", image_change("v1", revisionHistoryLimit=0))


def service(name: str = "web", **spec: Any) -> Object:
    return {
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "namespace": "default"},
        "spec": {"ports": [{"name": "http", "port": 80, "targetPort": 8080}], **spec},
    }  # fmt: skip


async def _set_address(stage: TrialCluster, name: str, address: str) -> None:
    status = {"podIP": address, "podIPs": [{"ip": address}]}
    await stage.client.patch(POD, Key("default", name), {"status": status}, subresource="status")


async def publishes_endpoints_of_a_service(stage: TrialCluster) -> None:
    await stage.create(service(selector=LABELS))
    for number in range(3):
        await stage.create(loose_pod(f"p{number}"))
        await _set_address(stage, f"p{number}", f"10.0.0.{number + 1}")
    await stage.wait_until_idle()
    await stage.delete(POD, "p1")
    await stage.patch(SERVICE, "web", {"metadata": {"labels": {"team": "a"}}})
    await stage.wait_until_idle()
    await stage.create(service("other", selector=LABELS, clusterIP="None"))
    await stage.delete(SERVICE, "web")


async def mirrors_endpoints(stage: TrialCluster) -> None:
    subset = {"addresses": [{"ip": "192.0.2.1"}], "ports": [{"name": "http", "port": 8080}]}
    await stage.create(service())
    await stage.create(
        {
            "apiVersion": "v1", "kind": "Endpoints",
            "metadata": {"name": "web", "namespace": "default"}, "subsets": [subset],
        }
    )  # fmt: skip
    await stage.wait_until_idle()
    more = {**subset, "notReadyAddresses": [{"ip": "2001:db8::1"}]}
    await stage.patch(ENDPOINTS, "web", {"subsets": [more]})
    await stage.wait_until_idle()
    await stage.create(service("second"))
    await stage.delete(ENDPOINTS, "web")
