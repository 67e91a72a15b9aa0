"""Rules and defaults of PersistentVolumes and claims."""

from __future__ import annotations

from typing import Any

import pytest

from phalanx.api.defaults.registry import prepare_for_update
from phalanx.api.kinds import PERSISTENT_VOLUME as VOLUME
from phalanx.api.kinds import PERSISTENT_VOLUME_CLAIM as CLAIM
from phalanx.api.wire import Object
from tests.api.cause_summaries import CauseSummaries, prefix_summaries
from tests.api.stored_objects import NOW, change_stored, creation_causes, find_causes, make_stored

ONCE = ["ReadWriteOnce"]
OTHER_CLAIM = {"kind": "PersistentVolumeClaim", "name": "x"}


def volume(**fields: Any) -> Object:
    where = {"hostPath": {"path": "/data"}}
    return {"accessModes": ONCE, "capacity": {"storage": "1Gi"}, **where, **fields}


def csi(**fields: Any) -> Object:
    return volume(hostPath=None, csi={"driver": "d", "volumeHandle": "h", **fields})


def claim(**fields: Any) -> Object:
    return {"accessModes": ONCE, "resources": {"requests": {"storage": "1Gi"}}, **fields}


@pytest.mark.parametrize(
    ("spec", "causes"),
    [
        (volume(), []),
        (volume(storageClassName="fast", volumeMode="Block"), []),
        (volume(accessModes=[]), ["accessModes: Required"]),
        (volume(accessModes=["Sometimes"]), ["accessModes: NotSupported"]),
        (volume(accessModes=["ReadWriteOncePod", "ReadWriteMany"]), ["accessModes: Forbidden"]),
        (volume(capacity={}), ["capacity: Required", "capacity: NotSupported"]),
        (volume(capacity={"storage": "0"}), ["capacity[storage]: Invalid"]),
        (volume(capacity={"storage": "1Gi", "cpu": "1"}), ["capacity: NotSupported"]),
        (volume(persistentVolumeReclaimPolicy="Burn"), [
            "persistentVolumeReclaimPolicy: NotSupported"
        ]),
        (volume(storageClassName="A B"), ["storageClassName: Invalid"]),
        (volume(volumeMode="Tape"), ["volumeMode: NotSupported"]),
        (volume(hostPath={"path": "/a/../b"}), ["hostPath.path: Invalid"]),
        (volume(nfs={"server": "s", "path": "/"}), ["nfs: Forbidden"]),
        (volume(hostPath=None), [": Required"]),
        (volume(hostPath=None, local={"path": ""}), [
            "local.path: Required", "nodeAffinity: Required"
        ]),
        (volume(nodeAffinity={}), ["nodeAffinity.required: Required"]),
        (
            volume(nodeAffinity={"required": {}}),
            ["nodeAffinity.required.nodeSelectorTerms: Required"],
        ),
        (volume(hostPath=None, nfs={"server": "s", "path": "data"}), ["nfs.path: Invalid"]),
        (volume(hostPath=None, csi={"driver": "D?", "volumeHandle": "h"}), ["csi.driver: Invalid"]),
        (volume(hostPath=None, csi={"driver": "d"}), ["csi.volumeHandle: Required"]),
        (csi(nodePublishSecretRef={"name": "s", "namespace": "n"}), []),
        (csi(nodePublishSecretRef={}), [
            "csi.nodePublishSecretRef.name: Required",
            "csi.nodePublishSecretRef.namespace: Required",
        ]),
        (csi(controllerExpandSecretRef={"name": "A b", "namespace": "n"}), [
            "csi.controllerExpandSecretRef.name: Invalid"
        ]),
        ({**csi(), "volumeAttributesClassName": "fast"}, []),
        ({**csi(), "volumeAttributesClassName": ""}, ["volumeAttributesClassName: Required"]),
        (volume(volumeAttributesClassName="fast"), ["csi: Required"]),
        (volume(hostPath={"path": "/"}, persistentVolumeReclaimPolicy="Recycle"), [
            "persistentVolumeReclaimPolicy: Forbidden"
        ]),
    ],
)  # fmt: skip
def test_a_volume_is_somewhere_and_of_some_size(spec: Object, causes: CauseSummaries) -> None:
    assert creation_causes(VOLUME, {"spec": spec}) == prefix_summaries("spec", causes)


def test_a_new_volume_waits_for_a_claim() -> None:
    new = make_stored(VOLUME, {"spec": volume(), "status": {"phase": "Bound"}})
    assert new["status"] == {"phase": "Pending", "lastPhaseTransitionTime": NOW}
    assert new["spec"]["persistentVolumeReclaimPolicy"] == "Retain"
    assert new["spec"]["volumeMode"] == "Filesystem"


@pytest.mark.parametrize(
    ("change", "causes"),
    [
        ({"persistentVolumeReclaimPolicy": "Delete"}, []),
        ({"claimRef": {"namespace": "n", "name": "c"}}, []),
        ({"hostPath": {"path": "/else"}}, ["spec.persistentvolumesource: Forbidden"]),
        (
            {"hostPath": None, "local": {"path": "/data"}},
            ["spec.persistentvolumesource: Forbidden"],
        ),
        ({"volumeMode": "Block"}, ["volumeMode: Invalid"]),
        ({"nodeAffinity": None}, ["nodeAffinity: Invalid"]),
    ],
)
def test_a_volume_stays_where_it_is(change: Object, causes: CauseSummaries) -> None:
    term = {"matchExpressions": [{"key": "host", "operator": "In", "values": ["a"]}]}
    near = {"required": {"nodeSelectorTerms": [term]}}
    old = make_stored(VOLUME, {"spec": volume(nodeAffinity=near)})
    new = change_stored(VOLUME, old, spec={**old["spec"], **change})
    assert find_causes(VOLUME, new, old) == causes


@pytest.mark.parametrize(
    ("spec", "causes"),
    [
        (claim(), []),
        (claim(storageClassName="fast", selector={"matchLabels": {"a": "b"}}), []),
        (claim(accessModes=[]), ["accessModes: Required"]),
        (claim(accessModes=["Sometimes"]), ["accessModes: NotSupported"]),
        (claim(resources={}), ["resources[storage]: Required"]),
        (claim(resources={"requests": {"storage": "-1"}}), ["resources[storage]: Invalid"]),
        (claim(storageClassName="A B"), ["storageClassName: Invalid"]),
        (claim(volumeMode="Tape"), ["volumeMode: NotSupported"]),
        (claim(selector={"matchLabels": {"a b": "c"}}), ["selector.matchLabels: Invalid"]),
        (claim(dataSource={"kind": "", "name": "x"}), []),
        (
            claim(dataSource={"kind": "PersistentVolumeClaim", "name": ""}),
            ["dataSource.name: Required", "dataSourceRef.name: Required"],
        ),
        (
            claim(dataSourceRef={"kind": "Pod", "name": "x"}),
            ["dataSource: Invalid", "dataSourceRef: Invalid"],
        ),
        (
            claim(dataSourceRef={"apiGroup": "a b", "kind": "Pod", "name": "x", "namespace": "n"}),
            ["dataSourceRef.apiGroup: Invalid"],
        ),
        (
            claim(dataSource=OTHER_CLAIM, dataSourceRef={**OTHER_CLAIM, "namespace": "n"}),
            [": Invalid"],
        ),
        (claim(dataSource=OTHER_CLAIM, dataSourceRef={**OTHER_CLAIM, "name": "y"}), [": Invalid"]),
        (claim(volumeAttributesClassName="A b"), ["volumeAttributesClassName: Invalid"]),
    ],
)
def test_volume_claim_needs_a_storage_request(spec: Object, causes: CauseSummaries) -> None:
    assert creation_causes(CLAIM, {"spec": spec}) == prefix_summaries("spec", causes)


def test_a_new_claim_waits_for_a_volume() -> None:
    new = make_stored(CLAIM, {"spec": claim()})
    assert new["status"] == {"phase": "Pending"}
    assert new["spec"]["volumeMode"] == "Filesystem"


@pytest.mark.parametrize(
    ("phase", "change", "causes"),
    [
        ("Pending", {"volumeName": "v"}, []),
        ("Pending", {"storageClassName": "fast"}, []),
        ("Pending", {"accessModes": ["ReadOnlyMany"]}, ["spec: Forbidden"]),
        ("Pending", {"resources": {"requests": {"storage": "2Gi"}}}, ["spec: Forbidden"]),
        ("Bound", {"resources": {"requests": {"storage": "2Gi"}}}, []),
        (
            "Bound",
            {"resources": {"requests": {"storage": "1Mi"}}},
            ["spec.resources.requests.storage: Forbidden"],
        ),
        ("Bound", {"volumeAttributesClassName": "gold"}, []),
    ],
)
def test_a_claim_that_is_bound_may_grow(phase: str, change: Object, causes: CauseSummaries) -> None:
    old = {**make_stored(CLAIM, {"spec": claim()}), "status": {"phase": phase}}
    new = change_stored(CLAIM, old, spec={**old["spec"], **change})
    assert find_causes(CLAIM, new, old) == causes


@pytest.mark.parametrize("field", ["dataSource", "dataSourceRef"])
def test_who_removes_one_source_of_a_claim_changes_nothing(field: str) -> None:
    old = make_stored(CLAIM, {"spec": claim(dataSource=OTHER_CLAIM)})
    assert old["spec"]["dataSource"] == old["spec"]["dataSourceRef"] == OTHER_CLAIM
    left = {key: value for key, value in old["spec"].items() if key != field}
    new = change_stored(CLAIM, old, spec=left)
    prepare_for_update(CLAIM, new, old, now=NOW)
    assert new["spec"] == old["spec"]


def test_a_claim_keeps_its_volume_mode() -> None:
    old = make_stored(CLAIM, {"spec": claim()})
    new = change_stored(CLAIM, old, spec={**old["spec"], "volumeMode": "Block"})
    assert find_causes(CLAIM, new, old) == ["spec: Forbidden", "volumeMode: Invalid"]


@pytest.mark.parametrize(
    ("status", "time"),
    [
        ({"phase": "Pending"}, NOW),
        ({"phase": "Available"}, "2026-01-02T00:00:00Z"),
        ({"phase": "Available", "lastPhaseTransitionTime": NOW}, "2026-01-02T00:00:00Z"),
        ({"phase": "Pending", "lastPhaseTransitionTime": "2020-01-01T00:00:00Z"},
         "2020-01-01T00:00:00Z"),
    ],
)  # fmt: skip
def test_a_volume_keeps_the_time_of_its_phase(status: Object, time: str) -> None:
    old = make_stored(VOLUME, {"spec": volume()})
    new = change_stored(VOLUME, old, status=status)
    prepare_for_update(VOLUME, new, old, now="2026-01-02T00:00:00Z")
    assert new["status"]["lastPhaseTransitionTime"] == time
