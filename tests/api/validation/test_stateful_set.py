"""Rules and defaults of StatefulSets and ControllerRevisions."""

from __future__ import annotations

from typing import Any

import pytest

from phalanx.api.kinds import CONTROLLER_REVISION, STATEFUL_SET
from phalanx.api.wire import Object
from tests.api.cause_summaries import CauseSummaries, prefix_summaries
from tests.api.stored_objects import change_stored, creation_causes, find_causes, make_stored

LABELS = {"app": "web"}


def template(**spec: Any) -> Object:
    return {
        "metadata": {"labels": LABELS},
        "spec": {"containers": [{"name": "main", "image": "web"}], **spec},
    }


def stateful_set(**spec: Any) -> Object:
    return {"spec": {"selector": {"matchLabels": LABELS}, "template": template(), **spec}}


@pytest.mark.parametrize(
    ("spec", "causes"),
    [
        ({}, []),
        ({"replicas": -1}, ["replicas: Invalid"]),
        ({"minReadySeconds": -1}, ["minReadySeconds: Invalid"]),
        ({"revisionHistoryLimit": -1}, ["revisionHistoryLimit: Invalid"]),
        ({"ordinals": {"start": -1}}, ["ordinals.start: Invalid"]),
        ({"podManagementPolicy": "Burst"}, ["podManagementPolicy: Invalid"]),
        ({"selector": {}}, ["selector: Invalid"]),
        ({"selector": {"matchLabels": {"app": "db"}}}, ["template.metadata.labels: Invalid"]),
        (
            {"template": template(restartPolicy="Never")},
            ["template.spec.restartPolicy: NotSupported"],
        ),
        (
            {"template": template(activeDeadlineSeconds=5)},
            ["template.spec.activeDeadlineSeconds: Forbidden"],
        ),
        ({"updateStrategy": {"type": "Recreate"}}, ["updateStrategy.type: Invalid"]),
        (
            {"updateStrategy": {"type": "OnDelete", "rollingUpdate": {"partition": 1}}},
            ["updateStrategy.rollingUpdate: Invalid"],
        ),
        (
            {"updateStrategy": {"rollingUpdate": {"partition": -1, "maxUnavailable": 0}}},
            [
                "updateStrategy.rollingUpdate.partition: Invalid",
                "updateStrategy.rollingUpdate.maxUnavailable: Invalid",
            ],
        ),
        (
            {"updateStrategy": {"rollingUpdate": {"maxUnavailable": "0%"}}},
            ["updateStrategy.rollingUpdate.maxUnavailable: Invalid"],
        ),
        (
            {"updateStrategy": {"rollingUpdate": {"maxUnavailable": "101%"}}},
            ["updateStrategy.rollingUpdate.maxUnavailable: Invalid"],
        ),
        (
            {"persistentVolumeClaimRetentionPolicy": {"whenScaled": "Keep"}},
            ["persistentVolumeClaimRetentionPolicy.whenScaled: NotSupported"],
        ),
    ],
)  # fmt: skip
def test_creation_is_checked(spec: Object, causes: CauseSummaries) -> None:
    assert creation_causes(STATEFUL_SET, stateful_set(**spec)) == prefix_summaries("spec", causes)


def test_selector_is_required() -> None:
    new = stateful_set()
    del new["spec"]["selector"]
    assert creation_causes(STATEFUL_SET, new) == ["spec.selector: Required"]


def test_defaults_are_filled_in() -> None:
    claim = {"metadata": {"name": "data"}, "spec": {"accessModes": ["ReadWriteOnce"]}}
    stored = make_stored(STATEFUL_SET, stateful_set(volumeClaimTemplates=[claim]))
    spec = stored["spec"]
    assert (spec["replicas"], spec["podManagementPolicy"]) == (1, "OrderedReady")
    assert spec["revisionHistoryLimit"] == 10
    assert spec["updateStrategy"] == {
        "type": "RollingUpdate",
        "rollingUpdate": {"partition": 0, "maxUnavailable": 1},
    }
    retention = {"whenDeleted": "Retain", "whenScaled": "Retain"}
    assert spec["persistentVolumeClaimRetentionPolicy"] == retention
    assert spec["template"]["spec"]["restartPolicy"] == "Always"
    (claim_template,) = spec["volumeClaimTemplates"]
    assert (claim_template["apiVersion"], claim_template["kind"]) == ("v1", "PersistentVolumeClaim")
    assert claim_template["spec"]["volumeMode"] == "Filesystem"
    assert claim_template["status"] == {"phase": "Pending"}
    assert stored["status"] == {"replicas": 0, "availableReplicas": 0}
    manual = make_stored(STATEFUL_SET, stateful_set(updateStrategy={"type": "OnDelete"}))
    assert manual["spec"]["updateStrategy"] == {"type": "OnDelete"}


@pytest.mark.parametrize(
    ("change", "causes"),
    [
        ({"replicas": 3, "ordinals": {"start": 2}, "minReadySeconds": 5}, []),
        ({"template": template(hostNetwork=True)}, []),
        ({"serviceName": "other"}, ["spec: Forbidden"]),
        ({"podManagementPolicy": "Parallel"}, ["spec: Forbidden"]),
    ],
)
def test_updates_change_only_what_is_mutable(change: Object, causes: CauseSummaries) -> None:
    old = make_stored(STATEFUL_SET, stateful_set())
    new = change_stored(STATEFUL_SET, old, spec={**old["spec"], **change})
    assert find_causes(STATEFUL_SET, new, old) == causes


@pytest.mark.parametrize(
    ("status", "causes"),
    [
        ({"replicas": 3, "readyReplicas": 2, "availableReplicas": 2}, []),
        ({"replicas": -1}, ["status.replicas: Invalid"]),
        (
            {"replicas": 1, "readyReplicas": 2, "updatedReplicas": 2},
            ["status.readyReplicas: Invalid", "status.updatedReplicas: Invalid"],
        ),
        (
            {"replicas": 3, "readyReplicas": 1, "availableReplicas": 2},
            ["status.availableReplicas: Invalid"],
        ),
        ({"replicas": 0, "collisionCount": 1}, ["status.collisionCount: Invalid"]),
    ],
)
def test_status_counts_are_consistent(status: Object, causes: CauseSummaries) -> None:
    old = make_stored(STATEFUL_SET, stateful_set())
    old["status"]["collisionCount"] = 2
    new = {**old, "status": {"collisionCount": 2, **status}}
    assert find_causes(STATEFUL_SET, new, old, "status") == causes


def test_data_of_a_revision_is_required_and_immutable() -> None:
    old = make_stored(CONTROLLER_REVISION, {"data": {"spec": {}}, "revision": 1})
    assert find_causes(CONTROLLER_REVISION, old) == []
    assert creation_causes(CONTROLLER_REVISION, {"revision": -1}) == [
        "data: Required",
        "revision: Invalid",
    ]
    changed = change_stored(CONTROLLER_REVISION, old, data={"spec": {"a": 1}})
    assert find_causes(CONTROLLER_REVISION, changed, old) == ["data: Invalid"]
