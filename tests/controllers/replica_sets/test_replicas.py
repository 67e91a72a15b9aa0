"""Which pods a ReplicaSet creates and deletes, and its status."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from phalanx.api.apps import ReplicaSet
from phalanx.api.core import Pod
from phalanx.api.meta import timestamp
from phalanx.api.wire import Object
from phalanx.controllers.replica_sets.replicas import (
    DELETION_COST,
    ReplicaFailure,
    ReplicaState,
    build_status_change,
    next_availability,
    plan_replicas,
)

NOW = 1_800_000_000.0
LABELS = {"app": "web"}


def replica_set(replicas: int, *, status: Object | None = None, **spec: Any) -> ReplicaSet:
    template = {"metadata": {"labels": {**LABELS, "tier": "a"}}}
    obj = {
        "metadata": {"name": "web", "namespace": "default", "uid": "rs", "generation": 2},
        "spec": {"replicas": replicas, "template": template, **spec},
        "status": status or {},
    }
    return msgspec.convert(obj, ReplicaSet)


def pod(
    name: str, *, node: str = "n", ready: bool = True, phase: str = "Running", **more: Any
) -> Pod:
    since = more.pop("since", 60.0)
    condition = {
        "type": "Ready",
        "status": "True" if ready else "False",
        "lastTransitionTime": timestamp(NOW - since),
    }
    restarts = more.pop("restarts", 0)
    cost = more.pop("cost", "")
    meta = {
        "name": name, "namespace": "default", "uid": name, "labels": LABELS,
        "creationTimestamp": timestamp(NOW - more.pop("age", 100.0)),
        "annotations": {DELETION_COST: cost} if cost else {}, **more,
    }  # fmt: skip
    status = {
        "phase": phase,
        "conditions": [condition],
        "containerStatuses": [{"name": "main", "restartCount": restarts}],
    }
    return msgspec.convert({"metadata": meta, "spec": {"nodeName": node}, "status": status}, Pod)


def state(owner: ReplicaSet, *pods: Pod, **siblings: int) -> ReplicaState:
    return ReplicaState(owner, pods, siblings, now=NOW)


def test_missing_pods_are_created_in_bounded_number() -> None:
    assert plan_replicas(state(replica_set(3), pod("a"))).creations == 2
    assert plan_replicas(state(replica_set(100_000))).creations == 500
    ended = pod("b", phase="Succeeded")
    ending = pod("c", deletionTimestamp=timestamp(NOW))
    assert plan_replicas(state(replica_set(2), ended, ending)).creations == 2


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (pod("z", node=""), pod("a")),
        (pod("z", phase="Pending", ready=False), pod("a")),
        (pod("z", ready=False), pod("a")),
        (pod("z", cost="-5"), pod("a")),
        (pod("z"), pod("a", cost="5")),
        (pod("z", cost="many"), pod("a", cost="1")),
        (pod("z", node="full"), pod("a", node="empty")),
        (pod("z", since=2.0), pod("a", since=600.0)),
        (pod("z", restarts=3), pod("a", restarts=1)),
        (pod("z", age=2.0), pod("a", age=600.0)),
        # Of the same power of two: by uid.
        (pod("a", since=65.0), pod("z", since=60.0)),
        (pod("a", age=99.0), pod("z", age=98.0)),
    ],
)
def test_the_first_rule_that_differs_decides_which_pod_goes(first: Pod, second: Pod) -> None:
    for pods in ((first, second), (second, first)):
        found = plan_replicas(state(replica_set(1), *pods, full=3, empty=1))
        assert [one.metadata.name for one in found.deletions] == [first.metadata.name]


def test_owner_that_is_being_deleted_changes_no_pods() -> None:
    owner = replica_set(3)
    meta = msgspec.structs.replace(owner.metadata, deletion_timestamp=timestamp(NOW))
    found = plan_replicas(state(msgspec.structs.replace(owner, metadata=meta)))
    assert (found.creations, found.deletions) == (0, ())


def test_status_counts_pods() -> None:
    pods = (
        pod("a", labels={**LABELS, "tier": "a"}),
        pod("b", since=5.0),
        pod("c", ready=False),
        pod("d", deletionTimestamp=timestamp(NOW)),
        pod("e", phase="Failed"),
    )
    subject = state(replica_set(3, minReadySeconds=20), *pods)
    assert build_status_change(subject, None, is_complete=True) == {
        "replicas": 3,
        "fullyLabeledReplicas": 1,
        "readyReplicas": 2,
        "availableReplicas": 1,
        "terminatingReplicas": 1,
        "observedGeneration": 2,
    }
    assert next_availability(subject) == 15.0


def test_failure_becomes_a_condition_until_a_sync_succeeds() -> None:
    refused = ReplicaFailure("FailedCreate", "quota exceeded")
    change = build_status_change(state(replica_set(1)), refused, is_complete=True)
    (condition,) = change["conditions"]
    assert (condition["type"], condition["reason"]) == ("ReplicaFailure", "FailedCreate")
    failing = replica_set(0, status={"conditions": [condition], "observedGeneration": 2})
    assert build_status_change(state(failing), refused, is_complete=True) == {}
    assert build_status_change(state(failing), None, is_complete=False) == {}
    assert build_status_change(state(failing), None, is_complete=True) == {"conditions": []}
