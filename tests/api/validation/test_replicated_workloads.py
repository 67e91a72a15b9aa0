"""Rules and defaults of Deployments, ReplicaSets, DaemonSets and ReplicationControllers."""

from __future__ import annotations

from typing import Any

import pytest

from phalanx.api.defaults.registry import prepare_for_update
from phalanx.api.kinds import (
    DAEMON_SET,
    DEPLOYMENT,
    REPLICA_SET,
    REPLICATION_CONTROLLER,
    Kind,
)
from phalanx.api.wire import Object
from tests.api.cause_summaries import prefix_summaries
from tests.api.stored_objects import NOW, change_stored, creation_causes, find_causes, make_stored

LABELS = {"app": "web"}
SELECTOR = {"matchLabels": LABELS}


def template(**spec: Any) -> Object:
    return {
        "metadata": {"labels": LABELS},
        "spec": {"containers": [{"name": "main", "image": "web"}], **spec},
    }


def workload(kind: Kind, **spec: Any) -> Object:
    selector = LABELS if kind is REPLICATION_CONTROLLER else SELECTOR
    return {"spec": {"selector": selector, "template": template(), **spec}}


def rolling(**bounds: Any) -> Object:
    return {"type": "RollingUpdate", "rollingUpdate": bounds}


@pytest.mark.parametrize("kind", [DEPLOYMENT, REPLICA_SET, DAEMON_SET, REPLICATION_CONTROLLER])
@pytest.mark.parametrize(
    ("spec", "causes"),
    [
        ({}, []),
        ({"minReadySeconds": -1}, ["minReadySeconds: Invalid"]),
        ({"template": template(restartPolicy="Never")},
         ["template.spec.restartPolicy: NotSupported"]),
        ({"template": template(activeDeadlineSeconds=5)},
         ["template.spec.activeDeadlineSeconds: Forbidden"]),
        ({"template": {"metadata": {"labels": LABELS}}}, ["template.spec.containers: Required"]),
    ],
)  # fmt: skip
def test_all_four_have_the_same_rules_for_templates(
    kind: Kind, spec: Object, causes: list[str]
) -> None:
    found = creation_causes(kind, workload(kind, **spec))
    assert found == prefix_summaries("spec", causes)


@pytest.mark.parametrize(
    ("spec", "causes"),
    [
        ({"replicas": -1}, ["replicas: Invalid"]),
        ({"selector": None}, ["selector: Required"]),
        ({"selector": {}}, ["selector: Invalid"]),
        ({"selector": {"matchLabels": {"app": "db"}}}, ["template.metadata.labels: Invalid"]),
        ({"revisionHistoryLimit": -1}, ["revisionHistoryLimit: Invalid"]),
        ({"progressDeadlineSeconds": 5, "minReadySeconds": 5},
         ["progressDeadlineSeconds: Invalid"]),
        ({"strategy": {"type": "Slow"}}, ["strategy.type: NotSupported"]),
        ({"strategy": {"type": "Recreate", "rollingUpdate": {"maxSurge": 1}}},
         ["strategy.rollingUpdate: Forbidden"]),
        ({"strategy": rolling(maxSurge=0, maxUnavailable="0%")},
         ["strategy.rollingUpdate.maxUnavailable: Invalid"]),
        ({"strategy": rolling(maxUnavailable="101%")},
         ["strategy.rollingUpdate.maxUnavailable: Invalid"]),
        ({"strategy": rolling(maxSurge="200%")}, []),
        ({"strategy": rolling(maxSurge=-1, maxUnavailable="many")},
         ["strategy.rollingUpdate.maxUnavailable: Invalid",
          "strategy.rollingUpdate.maxSurge: Invalid"]),
    ],
)  # fmt: skip
def test_rules_of_deployments(spec: Object, causes: list[str]) -> None:
    found = creation_causes(DEPLOYMENT, workload(DEPLOYMENT, **spec))
    assert found == prefix_summaries("spec", causes)


@pytest.mark.parametrize(
    ("strategy", "causes"),
    [
        ({"type": "OnDelete"}, []),
        ({"type": "Slow"}, ["updateStrategy: NotSupported"]),
        (rolling(maxSurge=1), ["updateStrategy.rollingUpdate.maxSurge: Invalid"]),
        (rolling(maxSurge=1, maxUnavailable=0), []),
        (rolling(maxUnavailable=0), ["updateStrategy.rollingUpdate.maxUnavailable: Required"]),
        (rolling(maxUnavailable="200%"),
         ["updateStrategy.rollingUpdate.maxUnavailable: Invalid"]),
        (rolling(maxUnavailable=-1), ["updateStrategy.rollingUpdate.maxUnavailable: Invalid"]),
    ],
)  # fmt: skip
def test_rules_of_daemon_set_updates(strategy: Object, causes: list[str]) -> None:
    found = creation_causes(DAEMON_SET, workload(DAEMON_SET, updateStrategy=strategy))
    assert found == prefix_summaries("spec", causes)


def test_selector_of_a_replication_controller_follows_its_template() -> None:
    stored = make_stored(REPLICATION_CONTROLLER, {"spec": {"template": template()}})
    assert stored["spec"]["selector"] == stored["metadata"]["labels"] == LABELS
    assert creation_causes(REPLICATION_CONTROLLER, {"spec": {"selector": LABELS}}) == [
        "spec.template: Required"
    ]
    other = {"spec": {"selector": {"app": "db"}, "template": template()}}
    assert creation_causes(REPLICATION_CONTROLLER, other) == [
        "spec.template.metadata.labels: Invalid"
    ]


def test_selector_cannot_be_changed() -> None:
    old = make_stored(DEPLOYMENT, workload(DEPLOYMENT))
    labels = {**LABELS, "tier": "a"}
    new = change_stored(DEPLOYMENT, old, spec={**old["spec"], "selector": {"matchLabels": labels}})
    assert "spec.selector: Invalid" in find_causes(DEPLOYMENT, new, old)


def test_a_daemon_set_counts_the_changes_of_its_template() -> None:
    old = make_stored(DAEMON_SET, workload(DAEMON_SET))
    generation = "deprecated.daemonset.template.generation"
    assert old["metadata"]["annotations"][generation] == "1"
    new = change_stored(
        DAEMON_SET, old, spec=workload(DAEMON_SET, template=template(hostPID=True))["spec"]
    )
    prepare_for_update(DAEMON_SET, new, old, now=NOW)
    assert new["metadata"]["annotations"][generation] == "2"


@pytest.mark.parametrize(
    ("kind", "status", "causes"),
    [
        (DEPLOYMENT, {"replicas": 1, "readyReplicas": 2}, ["readyReplicas: Invalid"]),
        (DEPLOYMENT, {"replicas": 2, "availableReplicas": 1}, ["availableReplicas: Invalid"]),
        (DEPLOYMENT, {"collisionCount": -1}, ["collisionCount: Invalid"]),
        (REPLICA_SET, {"replicas": -1}, ["replicas: Invalid"]),
        (DAEMON_SET, {"numberReady": -1}, ["numberReady: Invalid"]),
    ],
)
def test_counts_of_a_status(kind: Kind, status: Object, causes: list[str]) -> None:
    old = make_stored(kind, workload(kind))
    new = {**old, "status": {**old["status"], **status}}
    found = find_causes(kind, new, old, "status")
    assert [one for one in causes if f"status.{one}" not in found] == []
