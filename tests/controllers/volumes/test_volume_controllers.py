"""Volume and StatefulSet controllers against a server: events, adoption and rare paths."""

from __future__ import annotations

import asyncio

from phalanx.api.kinds import (
    CONTROLLER_REVISION,
    PERSISTENT_VOLUME,
    PERSISTENT_VOLUME_CLAIM,
    POD,
    RESOURCE_QUOTA,
    STATEFUL_SET,
    STORAGE_CLASS,
)
from phalanx.api.meta import Key
from phalanx.api.storage import SELECTED_NODE
from phalanx.api.wire import Object
from phalanx.client.client import Client
from phalanx.clock import Clock
from phalanx.controllers.event_recorder import EventRecorder
from phalanx.controllers.reconcile_loop import Informers
from phalanx.controllers.stateful_sets.controller import StatefulSetController
from phalanx.controllers.volumes.binder import VolumeBinder
from phalanx.controllers.volumes.ephemeral import EphemeralVolumeController
from phalanx.controllers.volumes.protection import ClaimProtection
from phalanx.controllers.volumes.provisioner import CLASS_NAME, SimulatedProvisioner
from phalanx.randomness import Random
from tests.builders import in_virtual_time, node, pod
from tests.controllers.trial_cluster import Runnable, TrialCluster, kubelets, running_parts
from tests.controllers.volume_scenarios import (
    claim,
    ephemeral_pod,
    pod_with_claim,
    set_image,
    simulated_node,
    stateful_set,
    storage_class,
    volume,
)

PROVISIONER = {"provisioner": "phalanx.dev/simulated"}


def controllers(
    client: Client, informers: Informers, clock: Clock, random: Random
) -> list[Runnable]:
    """All volume controllers and the StatefulSet controller, with their events."""
    recorder = EventRecorder(client, clock, random, component="test")
    record = recorder.record
    provisioner = SimulatedProvisioner(client, informers, clock, random=random, record=record)
    return [
        recorder.run,
        VolumeBinder(client, informers, record).run,
        ClaimProtection(client, informers, clock).run,
        EphemeralVolumeController(client, informers, record).run,
        StatefulSetController(client, informers, clock, record=record).run,
        provisioner.run_class,
        provisioner.run_claims,
        provisioner.run_volumes,
    ]


async def reasons(cluster: TrialCluster, kind: str) -> list[str]:
    found = [one for one in await cluster.events() if one["involvedObject"]["kind"] == kind]
    return sorted({one["reason"] for one in found})


async def get(cluster: TrialCluster, kind: object, name: str) -> Object:
    found: Object = await cluster.client.get(kind, Key("default", name))  # type: ignore[call-overload]
    return found


@in_virtual_time
async def test_simulated_nodes_bring_a_default_class_that_users_may_delete() -> None:
    cluster = TrialCluster()
    await cluster.server.start()
    async with running_parts(cluster, controllers):
        await cluster.create(node("real"))
        await cluster.wait_until_idle()
        assert await cluster.list_objects(STORAGE_CLASS) == []
        await cluster.create(simulated_node("a"))
        await cluster.wait_until_idle()
        (found,) = await cluster.list_objects(STORAGE_CLASS)
        assert found["provisioner"] == "phalanx.dev/simulated"
        assert found["volumeBindingMode"] == "WaitForFirstConsumer"
        assert found["metadata"]["annotations"]
        await cluster.delete(STORAGE_CLASS, CLASS_NAME)
        default = storage_class("mine")
        default["metadata"]["annotations"] = found["metadata"]["annotations"]
        await cluster.create(default)
        await cluster.wait_until_idle()
        await cluster.create(simulated_node("b"))
        await cluster.wait_until_idle()
        again = await cluster.client.get(STORAGE_CLASS, Key("", CLASS_NAME))
        assert "annotations" not in again["metadata"]


@in_virtual_time
async def test_provisioning_follows_the_parameters_of_the_class() -> None:
    cluster = TrialCluster()
    await cluster.server.start()
    local = {"topologyKey": "zone", "delaySeconds": "soon"}
    async with running_parts(cluster, controllers):
        await cluster.create(simulated_node("n"))
        await cluster.create(storage_class("local", parameters=local, **PROVISIONER))
        selected = claim("a", storageClassName="local")
        selected["metadata"]["annotations"] = {SELECTED_NODE: "n"}
        await cluster.create(selected)
        await cluster.wait_until_idle()
        (found,) = await cluster.list_objects(PERSISTENT_VOLUME)
        (term,) = found["spec"]["nodeAffinity"]["required"]["nodeSelectorTerms"]
        assert term["matchExpressions"] == [{"key": "zone", "operator": "In", "values": ["z"]}]
        assert found["status"]["phase"] == "Bound"
        assert await reasons(cluster, "PersistentVolumeClaim") == [
            "ExternalProvisioning",
            "ProvisioningSucceeded",
        ]


@in_virtual_time
async def test_an_immediate_claim_is_tried_again_after_a_failure() -> None:
    cluster = TrialCluster()
    await cluster.server.start()
    broken = {"failureRate": "1", "delaySeconds": "10"}
    async with running_parts(cluster, controllers):
        await cluster.create(storage_class("broken", parameters=broken, **PROVISIONER))
        await cluster.create(claim("a", storageClassName="broken"))
        await cluster.wait(35.0)
        (event,) = await cluster.events("ProvisioningFailed")
        assert event["count"] == 3
        assert event["type"] == "Warning"
        await cluster.delete(PERSISTENT_VOLUME_CLAIM, "a")
        await cluster.wait_until_idle()


@in_virtual_time
async def test_claim_of_another_object_is_reported_once_and_left_alone() -> None:
    cluster = TrialCluster()
    await cluster.server.start()
    async with running_parts(cluster, controllers):
        await cluster.create(claim("p-scratch"), ephemeral_pod("p"))
        await cluster.wait_until_idle()
        await cluster.patch(POD, "p", {"metadata": {"labels": {"a": "b"}}})
        await cluster.wait_until_idle()
        (event,) = await cluster.events("FailedBinding")
        assert event["message"] == (
            "PVC default/p-scratch was not created for pod default/p (pod is not owner)"
        )
        assert event.get("count", 1) == 1
        found = await get(cluster, PERSISTENT_VOLUME_CLAIM, "p-scratch")
        assert "ownerReferences" not in found["metadata"]


@in_virtual_time
async def test_an_ephemeral_claim_is_free_once_its_pod_has_ended() -> None:
    cluster = TrialCluster()
    await cluster.server.start()
    async with running_parts(cluster, controllers, kubelets):
        running = ephemeral_pod("p")
        running["spec"]["nodeName"] = "n"
        await cluster.create(node("n"), running)
        await cluster.wait_until_idle()
        await cluster.delete(PERSISTENT_VOLUME_CLAIM, "p-scratch")
        await cluster.wait_until_idle()
        assert len(await cluster.list_objects(PERSISTENT_VOLUME_CLAIM)) == 1
        await cluster.finish("Succeeded")
        await cluster.wait_until_idle()
        assert await cluster.list_objects(PERSISTENT_VOLUME_CLAIM) == []


@in_virtual_time
async def test_a_waiting_claim_is_woken_by_a_default_class_and_by_its_pod() -> None:
    cluster = TrialCluster()
    await cluster.server.start()
    async with running_parts(cluster, controllers):
        waiting = claim("a")
        del waiting["spec"]["storageClassName"]
        await cluster.create(waiting)
        await cluster.wait_until_idle()
        assert await reasons(cluster, "PersistentVolumeClaim") == ["FailedBinding"]
        default = storage_class("later", volumeBindingMode="WaitForFirstConsumer")
        default["metadata"]["annotations"] = {"storageclass.kubernetes.io/is-default-class": "true"}
        await cluster.create(default)
        await cluster.wait_until_idle()
        found = await get(cluster, PERSISTENT_VOLUME_CLAIM, "a")
        assert found["spec"]["storageClassName"] == "later"
        unplaced = pod_with_claim("p", "a")
        del unplaced["spec"]["nodeName"]
        await cluster.create(unplaced)
        await asyncio.sleep(15)
        await cluster.wait_until_idle()
        assert await reasons(cluster, "PersistentVolumeClaim") == [
            "FailedBinding", "WaitForFirstConsumer", "WaitForPodScheduled",
        ]  # fmt: skip


@in_virtual_time
async def test_two_claims_that_name_one_volume_are_not_both_bound() -> None:
    cluster = TrialCluster()
    await cluster.server.start()
    async with running_parts(cluster, controllers):
        await cluster.create(storage_class(), volume("v"))
        await cluster.create(claim("a", volumeName="v"), claim("b", volumeName="v"))
        await cluster.wait_until_idle()
        phases = [
            one["status"]["phase"] for one in await cluster.list_objects(PERSISTENT_VOLUME_CLAIM)
        ]
        assert sorted(phases) == ["Bound", "Pending"]


# ---- StatefulSets --------------------------------------------------------------------------------


@in_virtual_time
async def test_a_refused_pod_of_a_stateful_set_is_reported() -> None:
    cluster = TrialCluster()
    await cluster.server.start()
    quota = {
        "apiVersion": "v1", "kind": "ResourceQuota",
        "metadata": {"name": "none", "namespace": "default"}, "spec": {"hard": {"pods": "0"}},
    }  # fmt: skip
    async with running_parts(cluster, controllers, kubelets):
        await cluster.create(quota, stateful_set(1))
        await cluster.wait(5.0)
        events = await cluster.events("FailedCreate")
        assert events[0]["message"].startswith("create Pod web-0 in StatefulSet web failed error: ")
        assert (await get(cluster, STATEFUL_SET, "web"))["status"]["observedGeneration"] == 1
        await cluster.delete(RESOURCE_QUOTA, "none")
        await cluster.wait_until_idle()
        assert len(await cluster.list_objects(POD)) == 1


@in_virtual_time
async def test_pods_are_adopted_and_released_by_their_labels() -> None:
    cluster = TrialCluster()
    await cluster.server.start()
    async with running_parts(cluster, controllers, kubelets):
        loose = pod("web-0")
        loose["metadata"]["labels"] = {"app": "web"}
        other = pod("web-extra")
        other["metadata"]["labels"] = {"app": "web"}
        await cluster.create(loose, other, stateful_set(2))
        await cluster.wait_until_idle()
        adopted = await get(cluster, POD, "web-0")
        assert adopted["metadata"]["ownerReferences"][0]["kind"] == "StatefulSet"
        assert "ownerReferences" not in (await get(cluster, POD, "web-extra"))["metadata"]
        await cluster.patch(POD, "web-1", {"metadata": {"labels": {"app": "mine"}}})
        await cluster.wait_until_idle()
        released = await get(cluster, POD, "web-1")
        assert "ownerReferences" not in released["metadata"]
        status = (await get(cluster, STATEFUL_SET, "web"))["status"]
        assert status["replicas"] == 1
        await cluster.delete(POD, "web-1")
        await cluster.wait_until_idle()
        status = (await get(cluster, STATEFUL_SET, "web"))["status"]
        assert status["readyReplicas"] == 2


@in_virtual_time
async def test_a_revision_of_another_owner_raises_the_collision_count() -> None:
    cluster = TrialCluster()
    await cluster.server.start()
    async with running_parts(cluster, controllers, kubelets):
        await cluster.create(stateful_set(1))
        await cluster.wait_until_idle()
        (first,) = await cluster.list_objects(CONTROLLER_REVISION)
        name = first["metadata"]["name"]
        await cluster.delete(STATEFUL_SET, "web")
        for kind, gone in ((CONTROLLER_REVISION, name), (POD, "web-0")):
            await cluster.delete(kind, gone)
        await cluster.wait_until_idle()
        foreign = {
            "apiVersion": "apps/v1", "kind": "ControllerRevision",
            "metadata": {"name": name, "namespace": "default"}, "data": {}, "revision": 1,
        }  # fmt: skip
        await cluster.create(foreign, stateful_set(1))
        await cluster.wait_until_idle()
        status = (await get(cluster, STATEFUL_SET, "web"))["status"]
        assert status["collisionCount"] == 1
        assert status["updateRevision"] != name
        await cluster.patch(STATEFUL_SET, "web", set_image("web:v2"))
        await cluster.wait_until_idle()
        status = (await get(cluster, STATEFUL_SET, "web"))["status"]
        assert status["currentRevision"] == status["updateRevision"]


@in_virtual_time
async def test_conditions_of_claims_are_written_at_a_limited_rate() -> None:
    cluster = TrialCluster()
    await cluster.server.start()
    count = 180
    async with running_parts(cluster, controllers):
        for number in range(count):
            name, bound = f"c{number}", {"pv.kubernetes.io/bind-completed": "yes"}
            reference = {"namespace": "default", "name": name}
            named = claim(name, volumeName=name)
            named["metadata"]["annotations"] = bound
            await cluster.create(volume(name, claimRef=reference), named)
        await cluster.create(*(pod_with_claim(f"p{number}", f"c{number}") for number in range(9)))

        async def conditions() -> list[str]:
            claims = await cluster.list_objects(PERSISTENT_VOLUME_CLAIM)
            found = [one["status"].get("conditions") or () for one in claims]
            return [condition["reason"] for one in found for condition in one]

        await asyncio.sleep(0.5)
        assert 0 < len(await conditions()) < count
        await asyncio.sleep(4)
        reasons_now = await conditions()
        assert (len(reasons_now), reasons_now.count("PodUsingPVC")) == (count, 9)
