"""Plans of the Deployment controller: a pure function of a Deployment and its ReplicaSets."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from phalanx.api.apps import Deployment, ReplicaSet
from phalanx.api.core import Pod
from phalanx.api.kinds import DEPLOYMENT, REPLICA_SET
from phalanx.api.meta import timestamp
from phalanx.api.wire import Object
from phalanx.controllers.deployments.replica_sets import (
    DESIRED_REPLICAS,
    MAX_REPLICAS,
    REVISION,
    REVISION_HISTORY,
)
from phalanx.controllers.deployments.sync import DeploymentState, plan_sync
from phalanx.controllers.reconcile_loop import Create, Delete, Patch, ReconcilePlan, RecordEvent

NOW = 1_800_000_000.0
LABELS = {"app": "web"}


def template(image: str, **labels: str) -> Object:
    return {
        "metadata": {"labels": {**LABELS, **labels}},
        "spec": {"containers": [{"name": "main", "image": image}]},
    }


def deployment(replicas: int = 3, image: str = "v1", **spec: Any) -> Deployment:
    status, meta = spec.pop("status", {}), spec.pop("meta", {})
    obj = {
        "metadata": {
            "name": "web", "namespace": "default", "uid": "d", "generation": 1,
            "resourceVersion": "7", **meta,
        },
        "spec": {
            "replicas": replicas, "selector": {"matchLabels": LABELS}, "template": template(image),
            **spec,
        },
        "status": status,
    }  # fmt: skip
    return msgspec.convert(obj, Deployment)


def replica_set(
    image: str, replicas: int, *, available: int | None = None, revision: int = 1, **more: Any
) -> ReplicaSet:
    ready = replicas if available is None else available
    desired = more.pop("desired", 3)
    meta = {
        "name": f"web-{image}", "namespace": "default", "uid": image, "resourceVersion": "3",
        "generation": 1, "creationTimestamp": timestamp(NOW - 1000 + revision),
        "annotations": {
            REVISION: str(revision), DESIRED_REPLICAS: str(desired),
            MAX_REPLICAS: str(desired + more.pop("surge", 1)), **more.pop("annotations", {}),
        },
        **more,
    }  # fmt: skip
    return msgspec.convert(
        {
            "metadata": meta,
            "spec": {
                "replicas": replicas, "selector": {"matchLabels": LABELS},
                "template": template(image, **{"pod-template-hash": image}),
            },
            "status": {
                "replicas": replicas, "readyReplicas": ready, "availableReplicas": ready,
                "observedGeneration": 1,
            },
        },
        ReplicaSet,
    )  # fmt: skip


def plan(
    subject: Deployment, *sets: ReplicaSet, pods: tuple[Pod, ...] = (), others: tuple[str, ...] = ()
) -> ReconcilePlan:
    return plan_sync(DeploymentState(subject, sets, pods, other_names=others, now=NOW))


def sizes(found: ReconcilePlan) -> dict[str, int]:
    """The new sizes of ReplicaSets by name; a new one is called `new`."""
    patched = {
        action.key.name.removeprefix("web-"): action.change["spec"]["replicas"]  # type: ignore[call-overload]
        for action in found.actions
        if isinstance(action, Patch) and action.kind is REPLICA_SET and "spec" in action.change
    }
    created = [action.obj for action in found.actions if isinstance(action, Create)]
    return {**patched, **({"new": created[0]["spec"]["replicas"]} if created else {})}


def status_change(found: ReconcilePlan) -> Object:
    """The patch of the Deployment's status, {} for none."""
    for action in found.actions:
        if isinstance(action, Patch) and action.kind is DEPLOYMENT:
            assert isinstance(action.change, dict)
            return action.change
    return {}


def conditions(found: ReconcilePlan) -> dict[str, tuple[str, str]]:
    listed = status_change(found).get("status", {}).get("conditions", ())
    return {one["type"]: (one["status"], one["reason"]) for one in listed}


def test_first_sync_creates_the_replica_set_of_the_template() -> None:
    found = plan(deployment(progressDeadlineSeconds=600, meta={"annotations": {"team": "a"}}))
    (created,) = [action for action in found.actions if isinstance(action, Create)]
    meta, spec = created.obj["metadata"], created.obj["spec"]
    suffix = meta["labels"]["pod-template-hash"]
    assert meta["name"] == f"web-{suffix}"
    assert meta["annotations"] == {
        "team": "a",
        REVISION: "1",
        DESIRED_REPLICAS: "3",
        MAX_REPLICAS: "4",
    }
    assert spec["replicas"] == 3
    assert spec["selector"]["matchLabels"] == {**LABELS, "pod-template-hash": suffix}
    assert conditions(found)["Progressing"] == ("True", "NewReplicaSetCreated")
    assert status_change(found)["metadata"]["annotations"] == {REVISION: "1"}
    (event,) = [action.event for action in found.actions if isinstance(action, RecordEvent)]
    assert event.message == f"Scaled up replica set web-{suffix} from 0 to 3"


def test_a_taken_name_raises_the_collision_count() -> None:
    (first,) = [one for one in plan(deployment()).actions if isinstance(one, Create)]
    name = first.obj["metadata"]["name"]
    found = plan(deployment(), others=(name,))
    (second,) = [one for one in found.actions if isinstance(one, Create)]
    assert second.obj["metadata"]["name"] != name
    assert status_change(found)["status"]["collisionCount"] == 1


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ((3, 3), None, {"new": 1}),
        ((3, 3), (1, 0), {}),
        ((3, 3), (1, 1), {"v1": 2}),
        ((2, 2), (1, 1), {"v2": 2}),
        ((2, 2), (2, 2), {"v1": 1}),
        ((0, 0), (3, 3), {}),
        # Pods that are not available go first, and need no surge.
        ((3, 1), (1, 0), {}),
        ((3, 2), (1, 1), {"v1": 2}),
    ],
)
def test_rolling_update_keeps_to_its_bounds(
    old: tuple[int, int], new: tuple[int, int] | None, expected: dict[str, int]
) -> None:
    """maxSurge 1 and maxUnavailable 0: 25 % of three, rounded up and down."""
    sets = [replica_set("v1", old[0], available=old[1])]
    if new is not None:
        sets.append(replica_set("v2", new[0], available=new[1], revision=2))
    assert sizes(plan(deployment(image="v2"), *sets)) == expected


def test_rolling_update_without_room_replaces_one_pod_at_a_time() -> None:
    bounds = {"rollingUpdate": {"maxSurge": 0, "maxUnavailable": "10%"}}
    sets = (replica_set("v1", 3, surge=0), replica_set("v2", 0, revision=2, surge=0))
    assert sizes(plan(deployment(image="v2", strategy=bounds), *sets)) == {"v1": 2}


def test_recreate_waits_until_all_old_pods_are_gone() -> None:
    subject = deployment(image="v2", strategy={"type": "Recreate"})
    old = replica_set("v1", 3, surge=0)
    assert sizes(plan(subject, old)) == {"v1": 0}
    empty = replica_set("v1", 0, surge=0)
    meta = {"name": "p", "namespace": "default", "deletionTimestamp": timestamp(NOW),
            "ownerReferences": [{"kind": "ReplicaSet", "name": "web-v1", "uid": "v1"}]}  # fmt: skip
    ending = msgspec.convert({"metadata": meta, "status": {"phase": "Running"}}, Pod)
    assert sizes(plan(subject, empty, pods=(ending,))) == {}
    ended = msgspec.convert({"metadata": meta, "status": {"phase": "Succeeded"}}, Pod)
    assert sizes(plan(subject, empty, pods=(ended,))) == {"new": 3}
    stopped = replica_set("v2", 0, revision=2, surge=0)
    assert sizes(plan(subject, empty, stopped)) == {"v2": 3}


def test_going_back_reuses_the_old_replica_set_with_the_next_revision() -> None:
    found = plan(deployment(image="v1"), replica_set("v1", 0), replica_set("v2", 3, revision=2))
    patches = [one for one in found.actions if isinstance(one, Patch) and one.kind is REPLICA_SET]
    (renewal,) = patches
    assert isinstance(renewal.change, dict)
    annotations = renewal.change["metadata"]["annotations"]
    assert annotations == {REVISION: "3", REVISION_HISTORY: "1"}


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [(10, {"v1": 6, "v2": 7}), (2, {"v1": 1, "v2": 2}), (0, {"v1": 0, "v2": 0})],
)
def test_a_change_of_the_size_is_shared_in_proportion(
    wanted: int, expected: dict[str, int]
) -> None:
    sets = (
        replica_set("v1", 3, desired=5, surge=2),
        replica_set("v2", 4, revision=2, available=0, desired=5, surge=2),
    )
    assert sizes(plan(deployment(wanted, image="v2"), *sets)) == expected


def test_a_change_of_the_size_goes_to_the_only_active_replica_set() -> None:
    sets = (replica_set("v1", 0), replica_set("v2", 3, revision=2))
    assert sizes(plan(deployment(5, image="v2"), *sets)) == {"v2": 5}
    assert sizes(plan(deployment(5, image="v3", paused=True), *sets)) == {"v2": 5}


def test_after_the_new_replica_set_is_full_the_others_are_emptied() -> None:
    sets = (replica_set("v1", 2, desired=4), replica_set("v2", 3, revision=2))
    assert sizes(plan(deployment(3, image="v2"), *sets)) == {"v1": 0}


def test_paused_deployment_says_so_and_creates_nothing() -> None:
    paused = deployment(image="v2", paused=True, progressDeadlineSeconds=600)
    found = plan(paused, replica_set("v1", 3))
    assert conditions(found)["Progressing"] == ("Unknown", "DeploymentPaused")
    assert sizes(found) == {}
    was_paused = {"type": "Progressing", "status": "Unknown", "reason": "DeploymentPaused"}
    resumed = deployment(
        image="v1", progressDeadlineSeconds=600, status={"conditions": [was_paused]}
    )
    found = plan(resumed, replica_set("v1", 3, available=2))
    assert conditions(found)["Progressing"] == ("True", "ReplicaSetUpdated")


def test_a_rollout_without_progress_times_out() -> None:
    condition = {
        "type": "Progressing", "status": "True", "reason": "ReplicaSetUpdated",
        "lastUpdateTime": timestamp(NOW - 5), "lastTransitionTime": timestamp(NOW - 5),
    }  # fmt: skip
    counts = {"replicas": 3, "updatedReplicas": 3, "observedGeneration": 1}
    late = {"conditions": [condition], **counts, "unavailableReplicas": 3}
    waiting = plan(
        deployment(progressDeadlineSeconds=10, status=late), replica_set("v1", 3, available=0)
    )
    assert waiting.requeue_after == 6.0
    found = plan(
        deployment(progressDeadlineSeconds=5, status=late), replica_set("v1", 3, available=0)
    )
    assert conditions(found)["Progressing"] == ("False", "ProgressDeadlineExceeded")


def test_a_complete_rollout_deletes_old_replica_sets_beyond_the_limit() -> None:
    old = [replica_set(f"v{n}", 0, revision=n) for n in (1, 2, 3)]
    new = replica_set("v9", 3, revision=4)
    found = plan(deployment(image="v9", revisionHistoryLimit=1), *old, new)
    deleted = [action.key.name for action in found.actions if isinstance(action, Delete)]
    assert deleted == ["web-v1", "web-v2"]


def test_failure_of_a_replica_set_is_copied_to_the_deployment() -> None:
    failing = replica_set("v1", 3, available=0)
    failure = {"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate"}
    failing = msgspec.convert(
        {**msgspec.to_builtins(failing), "status": {"conditions": [failure]}}, ReplicaSet
    )
    assert conditions(plan(deployment(), failing))["ReplicaFailure"] == ("True", "FailedCreate")


def test_deployment_that_is_being_deleted_gets_its_status_only() -> None:
    found = plan(deployment(image="v2", meta={"deletionTimestamp": timestamp(NOW)}))
    assert [type(action) for action in found.actions] == [Patch]
    assert "status" in status_change(found)
