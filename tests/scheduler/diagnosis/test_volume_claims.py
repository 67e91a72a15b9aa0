"""What `phalanx why` says about the volume claims of pending pods."""

from __future__ import annotations

import msgspec
import pytest
from msgspec.structs import replace

from phalanx.api.meta import pod_ref, timestamp
from phalanx.api.storage import SELECTED_AT_ANNOTATION
from phalanx.api.wire import Object
from phalanx.library import Cluster
from phalanx.scheduler.diagnosis.diagnosis import FITS, PROVISIONING, Diagnosis, diagnose
from phalanx.scheduler.queue.scheduler_state import ClusterObjects
from phalanx.scheduler.volumes.state import VolumeObject
from tests.scheduler.builders import key
from tests.scheduler.volume_builders import (
    bound_pair,
    claiming_pod,
    host,
    storage_class,
    volume,
    volume_claim,
)

ZONE = "topology.kubernetes.io/zone"
NOW = 1_800_000_000.0


def why(*volumes: VolumeObject, nominated: str = "") -> Diagnosis:
    pod = claiming_pod("p", "data")
    pod = replace(pod, status=replace(pod.status, nominated_node_name=nominated))
    nodes = [host("n1", zone="a"), host("n2", zone="b", cpu="0")]
    objects = ClusterObjects(nodes, [], [pod], volumes=[*volumes, storage_class("other")])
    return diagnose(pod_ref(key("p")), objects, now=NOW)


def test_the_zone_of_a_bound_claim_is_named() -> None:
    found = why(*bound_pair("data", labels={ZONE: "b"}))
    assert found.claims == ("claim data is bound to volume v-data in zone b",)
    assert found.evidence is not None
    assert [row.limit for row in found.evidence.rows] == ["no available volume zone", "cpu"]


def test_the_node_of_a_bound_claim_is_named() -> None:
    found = why(*bound_pair("data", nodes=["n2"]))
    assert found.claims == (
        "claim data is bound to volume v-data, which only nodes with "
        "kubernetes.io/hostname=n2 can use",
    )


def test_a_claim_that_is_being_provisioned_is_waited_for() -> None:
    claim = volume_claim("data", selected_node="n1")
    annotations = {**claim.metadata.annotations, SELECTED_AT_ANNOTATION: timestamp(NOW - 12)}
    claim = replace(claim, metadata=replace(claim.metadata, annotations=annotations))
    found = why(claim, storage_class(provisioner="disk.example"), nominated="n1")
    assert (found.state, found.message) == (
        PROVISIONING,
        "waiting for claim data to be provisioned on n1 (12 s)",
    )


def test_a_pod_whose_volume_is_free_fits() -> None:
    found = why(volume("v"), volume_claim("data"), storage_class())
    assert (found.state, found.claims) == (FITS, ())


def test_cures_name_the_storage_class_that_lacks_a_volume() -> None:
    found = why(volume_claim("data"), storage_class())
    assert "add a volume of storage class disk that node n1 can use" in [
        cure.text for cure in found.cures
    ]


NEW_NODE = "add a node with capacity for cpu 1, where the volumes of its claims can be used"
UNBOUND = "create the storage classes or volumes that the pod's claims lack, or wait for them"


@pytest.mark.parametrize(
    ("volumes", "cures"),
    [
        ([], ['create what is missing, or wait for it: persistentvolumeclaim "data" not found']),
        ([volume_claim("data")], [UNBOUND]),
        (bound_pair("data")[1:], ["restore the volume that a claim of the pod is bound to"]),
        (
            bound_pair("data", nodes=["gone"]),
            ["let the pod use other claims: no node can use the volumes of these", NEW_NODE],
        ),
        (
            bound_pair("data", nodes=["n2"]),
            [
                "free or add cpu 1 on node n2",
                "make room on the nodes that the volumes of the pod's claims allow",
                NEW_NODE,
            ],
        ),
    ],
)
def test_cures_help_although_claims_restrict_the_nodes(
    volumes: list[VolumeObject], cures: list[str]
) -> None:
    assert [cure.text for cure in why(*volumes).cures] == cures


@pytest.mark.parametrize(
    ("volumes", "text"),
    [
        ([volume_claim("data")], "storage class disk does not exist"),
        (
            [volume_claim("data"), storage_class(volumeBindingMode="Immediate")],
            "it waits for a volume of storage class disk",
        ),
        (
            [volume_claim("data", storageClassName="")],
            "it waits for a volume of no storage class",
        ),
        (
            [volume_claim("data", volumeName="v"), storage_class()],
            "it names volume v, which does not exist",
        ),
        ([volume_claim("data", volumeName="v"), volume("v")], "it names volume v"),
    ],
)
def test_claims_that_no_pod_binds_are_named_with_what_they_lack(
    volumes: list[VolumeObject], text: str
) -> None:
    found = why(*volumes)
    problem = "pod has unbound immediate PersistentVolumeClaims"
    assert found.message == f"0/2 nodes are available: {problem}."
    assert found.claims == (f"claim data is not bound: {text}",)


def test_the_library_reads_volume_objects() -> None:
    def item(one: object, version: str, kind: str) -> Object:
        found: Object = msgspec.to_builtins(one)
        found["metadata"]["uid"] = f"uid-{kind}"
        return {"apiVersion": version, "kind": kind, **found}

    cluster = Cluster.from_objects(
        [
            item(host("n1"), "v1", "Node"),
            item(volume("v", nodes=["n1"]), "v1", "PersistentVolume"),
            item(volume_claim("data"), "v1", "PersistentVolumeClaim"),
            item(storage_class(), "storage.k8s.io/v1", "StorageClass"),
            item(claiming_pod("p", "data"), "v1", "Pod"),
        ]
    )
    assert cluster.diagnose("pod/p").state == FITS
