"""User actions on volumes, claims and StatefulSets in fault trials of their controllers."""

from __future__ import annotations

from typing import Any

from phalanx.api.core import NODE_TYPE_ANNOTATION, SIMULATED_NODE_TYPE
from phalanx.api.kinds import PERSISTENT_VOLUME, PERSISTENT_VOLUME_CLAIM, POD, STATEFUL_SET
from phalanx.api.storage import SELECTED_NODE
from phalanx.api.wire import Object
from tests.builders import node, pod
from tests.controllers.trial_cluster import TrialCluster


def storage_class(name: str = "disk", **fields: Any) -> Object:
    return {
        "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": name},
        "provisioner": "kubernetes.io/no-provisioner", **fields,
    }  # fmt: skip


def volume(name: str, size: str = "1Gi", **spec: Any) -> Object:
    body = {
        "capacity": {"storage": size}, "accessModes": ["ReadWriteOnce"],
        "storageClassName": "disk", "hostPath": {"path": "/data"}, **spec,
    }  # fmt: skip
    return {
        "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name}, "spec": body,
    }  # fmt: skip


def claim(name: str, size: str = "1Gi", **spec: Any) -> Object:
    body = {
        "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": size}},
        "storageClassName": "disk", **spec,
    }  # fmt: skip
    return {
        "apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "metadata": {"name": name, "namespace": "default"}, "spec": body,
    }  # fmt: skip


def claim_volume(name: str) -> Object:
    return {"name": name, "persistentVolumeClaim": {"claimName": name}}


def pod_with_claim(name: str, *claims: str) -> Object:
    return pod(name, spec={"nodeName": "n", "volumes": [claim_volume(one) for one in claims]})


async def binds_the_smallest_volumes(stage: TrialCluster) -> None:
    await stage.create(storage_class(), claim("a", "2Gi"), claim("b"))
    await stage.wait_until_idle()
    await stage.create(volume("large", "8Gi"), volume("small"), volume("middle", "4Gi"))


async def binds_named_and_reserved_volumes(stage: TrialCluster) -> None:
    reference = {"namespace": "default", "name": "reserved"}
    await stage.create(storage_class(volumeBindingMode="WaitForFirstConsumer"))
    await stage.create(volume("v1", claimRef=reference), volume("v2"), volume("v3"))
    await stage.create(claim("reserved"), claim("named", volumeName="v2"), claim("waiting"))


async def releases_volumes(stage: TrialCluster) -> None:
    policies = {"kept": "Retain", "deleted": "Delete", "recycled": "Recycle"}
    await stage.create(storage_class())
    for name, policy in policies.items():
        await stage.create(volume(name, persistentVolumeReclaimPolicy=policy))
        await stage.create(claim(name, volumeName=name))
    await stage.wait_until_idle()
    for name in policies:
        await stage.patch(PERSISTENT_VOLUME_CLAIM, name, {"metadata": {"finalizers": None}})
        await stage.delete(PERSISTENT_VOLUME_CLAIM, name)
    await stage.wait_until_idle()
    await stage.create(claim("next", volumeName="kept"))


async def loses_a_volume(stage: TrialCluster) -> None:
    await stage.create(storage_class(), volume("v"), claim("c"))
    await stage.wait_until_idle()
    await stage.patch(PERSISTENT_VOLUME, "v", {"metadata": {"finalizers": None}})
    await stage.delete(PERSISTENT_VOLUME, "v")


async def protects_a_claim_in_use(stage: TrialCluster) -> None:
    await stage.create(storage_class(), volume("v"), claim("c"), claim("unused"))
    await stage.wait_until_idle()
    await stage.create(node("n"), pod_with_claim("p", "c"))
    await stage.wait_until_idle()
    await stage.delete(PERSISTENT_VOLUME_CLAIM, "c")
    await stage.delete(PERSISTENT_VOLUME_CLAIM, "unused")
    await stage.wait_until_idle()
    await stage.finish("Succeeded")
    await stage.wait_until_idle()
    assert len(await stage.list_objects(PERSISTENT_VOLUME_CLAIM)) == 1
    await stage.delete(POD, "p")


async def says_which_claims_are_unused(stage: TrialCluster) -> None:
    await stage.create(storage_class(), volume("v"), volume("w"), claim("c"), claim("d"))
    await stage.create(node("n"), pod_with_claim("p", "c"))
    await stage.wait_until_idle()
    await stage.finish("Succeeded")
    await stage.create(pod_with_claim("q", "d"))


async def releases_deleted_volumes(stage: TrialCluster) -> None:
    await stage.create(storage_class(), volume("v"), volume("w"), claim("c"))
    await stage.wait_until_idle()
    for name in ("v", "w"):
        await stage.delete(PERSISTENT_VOLUME, name)
    await stage.wait_until_idle()
    await stage.patch(PERSISTENT_VOLUME_CLAIM, "c", {"metadata": {"finalizers": None}})
    await stage.delete(PERSISTENT_VOLUME_CLAIM, "c")


def ephemeral_pod(name: str) -> Object:
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    template = {"metadata": {"labels": {"made": "here"}}, "spec": spec}
    source = {"ephemeral": {"volumeClaimTemplate": template}}
    return pod(name, spec={"volumes": [{"name": "scratch", **source}]})


async def creates_ephemeral_claims(stage: TrialCluster) -> None:
    await stage.create(claim("taken-scratch"))
    await stage.create(ephemeral_pod("p"), ephemeral_pod("taken"))
    await stage.wait_until_idle()
    await stage.patch(PERSISTENT_VOLUME_CLAIM, "p-scratch", {"metadata": {"finalizers": None}})
    await stage.delete(PERSISTENT_VOLUME_CLAIM, "p-scratch")


def simulated_node(name: str) -> Object:
    new = node(name, labels={"zone": "z"})
    new["metadata"]["annotations"] = {NODE_TYPE_ANNOTATION: SIMULATED_NODE_TYPE}
    return new


async def provisions_and_deletes_volumes(stage: TrialCluster) -> None:
    await stage.create(simulated_node("n"))
    await stage.wait_until_idle()
    for name in ("a", "b"):
        await stage.create(claim(name, storageClassName="simulated"))
        change = {"metadata": {"annotations": {SELECTED_NODE: "n"}}}
        await stage.patch(PERSISTENT_VOLUME_CLAIM, name, change)
    await stage.wait_until_idle()
    await stage.delete(PERSISTENT_VOLUME_CLAIM, "a")


async def gives_back_claims_that_cannot_be_provisioned(stage: TrialCluster) -> None:
    parameters = {"failureRate": "1", "delaySeconds": "3"}
    broken = storage_class("broken", provisioner="phalanx.dev/simulated", parameters=parameters)
    await stage.create(simulated_node("n"), {**broken, "volumeBindingMode": "WaitForFirstConsumer"})
    await stage.create(claim("a", storageClassName="broken"))
    change = {"metadata": {"annotations": {SELECTED_NODE: "n"}}}
    await stage.patch(PERSISTENT_VOLUME_CLAIM, "a", change)


# ---- StatefulSets --------------------------------------------------------------------------------


def stateful_set(replicas: int = 3, image: str = "web:v1", **spec: Any) -> Object:
    labels = {"app": "web"}
    template = {
        "metadata": {"labels": labels},
        "spec": {"containers": [{"name": "main", "image": image}]},
    }
    return {
        "apiVersion": "apps/v1", "kind": "StatefulSet",
        "metadata": {"name": "web", "namespace": "default"},
        "spec": {
            "serviceName": "web", "replicas": replicas, "selector": {"matchLabels": labels},
            "template": template, **spec,
        },
    }  # fmt: skip


def set_image(image: str) -> Object:
    return {"spec": {"template": {"spec": {"containers": [{"name": "main", "image": image}]}}}}


def claim_template(name: str = "data") -> Object:
    resources = {"requests": {"storage": "1Gi"}}
    return {
        "metadata": {"name": name},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": resources},
    }


async def scales_a_stateful_set(stage: TrialCluster) -> None:
    await stage.create(stateful_set(2, volumeClaimTemplates=[claim_template()]))
    await stage.wait_until_idle()
    await stage.patch(STATEFUL_SET, "web", {"spec": {"replicas": 4}})
    await stage.wait_until_idle()
    await stage.patch(STATEFUL_SET, "web", {"spec": {"replicas": 1}})


async def updates_a_stateful_set_and_goes_back(stage: TrialCluster) -> None:
    await stage.create(stateful_set(3))
    await stage.wait_until_idle()
    await stage.patch(STATEFUL_SET, "web", set_image("web:v2"))
    await stage.wait_until_idle()
    await stage.patch(STATEFUL_SET, "web", set_image("web:v1"))


async def updates_a_parallel_stateful_set(stage: TrialCluster) -> None:
    strategy = {"rollingUpdate": {"maxUnavailable": 2, "partition": 1}}
    parallel: Object = {"podManagementPolicy": "Parallel", "updateStrategy": strategy}
    await stage.create(stateful_set(4, minReadySeconds=5, **parallel))
    await stage.wait_until_idle()
    await stage.patch(STATEFUL_SET, "web", set_image("web:v2"))
    await stage.wait_until_idle()
    await stage.finish("Failed")


async def deletes_claims_by_their_policy(stage: TrialCluster) -> None:
    policy = {"whenScaled": "Delete", "whenDeleted": "Delete"}
    await stage.create(
        stateful_set(
            3, volumeClaimTemplates=[claim_template()], persistentVolumeClaimRetentionPolicy=policy
        )
    )
    await stage.wait_until_idle()
    await stage.patch(STATEFUL_SET, "web", {"spec": {"replicas": 1}})
    await stage.wait_until_idle()
    names = [one["metadata"]["name"] for one in await stage.list_objects(PERSISTENT_VOLUME_CLAIM)]
    assert names == ["data-web-0"]


async def adopts_pods_and_limits_the_history(stage: TrialCluster) -> None:
    await stage.create(stateful_set(2, revisionHistoryLimit=1))
    await stage.wait_until_idle()
    await stage.delete(STATEFUL_SET, "web", propagation="Orphan")
    await stage.wait_until_idle()
    await stage.create(stateful_set(2, revisionHistoryLimit=1))
    await stage.wait_until_idle()
    for image in ("web:v2", "web:v3", "web:v4"):
        await stage.patch(STATEFUL_SET, "web", set_image(image))
        await stage.wait_until_idle()
