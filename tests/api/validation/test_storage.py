"""Rules and defaults of the kinds of storage.k8s.io and of DeviceTaintRules."""

from __future__ import annotations

from typing import Any

import pytest

from phalanx.api.kinds import (
    CSI_DRIVER,
    CSI_NODE,
    CSI_STORAGE_CAPACITY,
    DEVICE_TAINT_RULE,
    STORAGE_CLASS,
    VOLUME_ATTACHMENT,
    VOLUME_ATTRIBUTES_CLASS,
    Kind,
)
from phalanx.api.wire import Object
from tests.api.cause_summaries import CauseSummaries
from tests.api.stored_objects import change_stored, creation_causes, find_causes, make_stored


def topology(*values: str, key: str = "zone") -> Object:
    return {"matchLabelExpressions": [{"key": key, "values": list(values)}]}


def driver(**fields: Any) -> Object:
    return {"spec": fields}


def csi_node(**fields: Any) -> Object:
    return {"spec": {"drivers": [{"name": "d", "nodeID": "n", **fields}]}}


def attachment(**fields: Any) -> Object:
    spec = {"attacher": "d", "nodeName": "n", "source": {"persistentVolumeName": "v"}, **fields}
    return {"spec": spec}


INLINE = {"accessModes": ["ReadWriteOnce"], "csi": {"driver": "d", "volumeHandle": "h"}}


@pytest.mark.parametrize(
    ("kind", "obj", "causes"),
    [
        (STORAGE_CLASS, {"provisioner": "Disk.example/x"}, []),
        (STORAGE_CLASS, {"provisioner": ""}, ["provisioner: Required"]),
        (STORAGE_CLASS, {"provisioner": "a b"}, ["provisioner: Invalid"]),
        (
            STORAGE_CLASS,
            {"provisioner": "p", "reclaimPolicy": "Recycle"},
            ["reclaimPolicy: NotSupported"],
        ),
        (
            STORAGE_CLASS,
            {"provisioner": "p", "volumeBindingMode": "Later"},
            ["volumeBindingMode: NotSupported"],
        ),
        (STORAGE_CLASS, {"provisioner": "p", "parameters": {"": "x"}}, ["parameters: Invalid"]),
        (
            STORAGE_CLASS,
            {"provisioner": "p", "parameters": {str(at): "" for at in range(513)}},
            ["parameters: TooLong"],
        ),
        (
            STORAGE_CLASS,
            {"provisioner": "p", "parameters": {"a": "x" * 262_144}},
            ["parameters: TooLong"],
        ),
        (STORAGE_CLASS, {"provisioner": "p", "allowedTopologies": [topology("a", "b")]}, []),
        (
            STORAGE_CLASS,
            {"provisioner": "p", "allowedTopologies": [topology("a", "a"), topology("b", key="?")]},
            [
                "allowedTopologies[0].matchLabelExpressions[0].values[1]: Duplicate",
                "allowedTopologies[1].matchLabelExpressions[0].key: Invalid",
            ],
        ),
        (
            STORAGE_CLASS,
            {"provisioner": "p", "allowedTopologies": [topology(), topology()]},
            [
                "allowedTopologies[0].matchLabelExpressions[0].values: Required",
                "allowedTopologies[1].matchLabelExpressions[0].values: Required",
                "allowedTopologies[1].matchLabelExpressions: Duplicate",
            ],
        ),
        (VOLUME_ATTRIBUTES_CLASS, {"driverName": "d", "parameters": {"a": "b"}}, []),
        (
            VOLUME_ATTRIBUTES_CLASS,
            {"driverName": "", "parameters": {}},
            ["driverName: Required", "parameters: Required"],
        ),
        (CSI_DRIVER, driver(), []),
        (CSI_DRIVER, driver(fsGroupPolicy="Never"), ["spec.fsGroupPolicy: NotSupported"]),
        (
            CSI_DRIVER,
            driver(volumeLifecycleModes=["Long"]),
            ["spec.volumeLifecycleModes[0]: NotSupported"],
        ),
        (
            CSI_DRIVER,
            driver(tokenRequests=[{"audience": "a"}, {"audience": "a", "expirationSeconds": 1}]),
            [
                "spec.tokenRequests[1].expirationSeconds: Invalid",
                "spec.tokenRequests[1].audience: Duplicate",
            ],
        ),
        (CSI_NODE, csi_node(allocatable={"count": 4}, topologyKeys=["zone"]), []),
        (CSI_NODE, csi_node(nodeID=""), ["spec.drivers[0].nodeID: Required"]),
        (CSI_NODE, csi_node(nodeID="x" * 193), ["spec.drivers[0].nodeID: Invalid"]),
        (
            CSI_NODE,
            csi_node(allocatable={"count": -1}),
            ["spec.drivers[0].allocatable.count: Invalid"],
        ),
        (
            CSI_NODE,
            csi_node(name="x" * 64, topologyKeys=["a", "a"]),
            ["spec.drivers[0].name: TooLong", "spec.drivers[0].topologyKeys[1]: Duplicate"],
        ),
        (CSI_STORAGE_CAPACITY, {"storageClassName": "c", "capacity": "1Gi"}, []),
        (
            CSI_STORAGE_CAPACITY,
            {
                "storageClassName": "",
                "capacity": "-1",
                "maximumVolumeSize": "-1",
                "nodeTopology": {"matchLabels": {"?": "b"}},
            },
            [
                "storageClassName: Invalid",
                "nodeTopology.matchLabels: Invalid",
                "capacity: Invalid",
                "maximumVolumeSize: Invalid",
            ],
        ),
        (VOLUME_ATTACHMENT, attachment(), []),
        (VOLUME_ATTACHMENT, attachment(source={"inlineVolumeSpec": INLINE}), []),
        (VOLUME_ATTACHMENT, attachment(source={}), ["spec.source: Required"]),
        (
            VOLUME_ATTACHMENT,
            attachment(source={"inlineVolumeSpec": INLINE, "persistentVolumeName": "v"}),
            ["spec.source: Forbidden"],
        ),
        (
            VOLUME_ATTACHMENT,
            attachment(source={"inlineVolumeSpec": {}}),
            [
                "spec.source.inlineVolumeSpec.accessModes: Required",
                "spec.source.inlineVolumeSpec.csi: Required",
            ],
        ),
        (
            VOLUME_ATTACHMENT,
            attachment(attacher="", nodeName="?"),
            ["spec.attacher: Required", "spec.nodeName: Invalid"],
        ),
        (DEVICE_TAINT_RULE, {"spec": {"taint": {"key": "a", "effect": "NoExecute"}}}, []),
        (
            DEVICE_TAINT_RULE,
            {"spec": {"deviceSelector": {"driver": "?"}, "taint": {"key": "a", "effect": "Burn"}}},
            ["spec.deviceSelector.driver: Invalid", "spec.taint.effect: NotSupported"],
        ),
    ],
)
def test_creation_is_checked(kind: Kind, obj: Object, causes: CauseSummaries) -> None:
    assert creation_causes(kind, obj) == causes


@pytest.mark.parametrize(
    ("kind", "obj", "change", "causes"),
    [
        (STORAGE_CLASS, {"provisioner": "p"}, {"allowVolumeExpansion": True}, []),
        (
            STORAGE_CLASS,
            {"provisioner": "p"},
            {
                "provisioner": "q",
                "parameters": {"a": "b"},
                "reclaimPolicy": "Retain",
                "volumeBindingMode": "WaitForFirstConsumer",
            },
            [
                "volumeBindingMode: Invalid",
                "parameters: Forbidden",
                "provisioner: Forbidden",
                "reclaimPolicy: Forbidden",
            ],
        ),
        (
            VOLUME_ATTRIBUTES_CLASS,
            {"driverName": "d", "parameters": {"a": "b"}},
            {"parameters": {"a": "c"}},
            ["parameters: Forbidden"],
        ),
        (
            CSI_DRIVER,
            driver(),
            driver(attachRequired=False, storageCapacity=True),
            ["spec.attachRequired: Invalid"],
        ),
        (CSI_NODE, csi_node(), csi_node(allocatable={"count": 7}), []),
        (CSI_NODE, csi_node(), csi_node(nodeID="other"), ["spec.drivers: Invalid"]),
        (
            CSI_STORAGE_CAPACITY,
            {"storageClassName": "c"},
            {"storageClassName": "d", "capacity": "2Gi"},
            ["storageClassName: Invalid"],
        ),
        (VOLUME_ATTACHMENT, attachment(), attachment(nodeName="m"), ["spec: Invalid"]),
    ],
)
def test_updates_change_only_what_is_mutable(
    kind: Kind, obj: Object, change: Object, causes: CauseSummaries
) -> None:
    old = make_stored(kind, obj)
    assert find_causes(kind, change_stored(kind, old, **change), old) == causes


def test_status_is_checked() -> None:
    old = make_stored(VOLUME_ATTACHMENT, attachment())
    new = {**old, "status": {"attached": True, "attachmentMetadata": {"": "x"}}}
    assert find_causes(VOLUME_ATTACHMENT, new, old, "status") == [
        "status.attachmentMetadata: Invalid"
    ]
    rule = {"spec": {"taint": {"key": "a", "effect": "None"}}}
    old = make_stored(DEVICE_TAINT_RULE, rule)
    new = {**old, "status": {"conditions": [{"type": "EvictionInProgress"}]}}
    assert "status.conditions[0].reason: Required" in find_causes(
        DEVICE_TAINT_RULE, new, old, "status"
    )


@pytest.mark.parametrize(
    ("kind", "obj", "defaults"),
    [
        (
            STORAGE_CLASS,
            {"provisioner": "p"},
            {"reclaimPolicy": "Delete", "volumeBindingMode": "Immediate"},
        ),
        (VOLUME_ATTACHMENT, attachment(), {"status": {"attached": False}}),
    ],
)
def test_defaults_are_filled_in(kind: Kind, obj: Object, defaults: Object) -> None:
    stored = make_stored(kind, obj)
    assert {key: stored[key] for key in defaults} == defaults


def test_a_driver_has_all_its_defaults() -> None:
    assert make_stored(CSI_DRIVER, driver())["spec"] == {
        "attachRequired": True,
        "podInfoOnMount": False,
        "storageCapacity": False,
        "fsGroupPolicy": "ReadWriteOnceWithFSType",
        "requiresRepublish": False,
        "seLinuxMount": False,
        "volumeLifecycleModes": ["Persistent"],
    }
