"""Counts and conditions of a Deployment.

    condition        status   reason
    Available        True     MinimumReplicasAvailable
                     False    MinimumReplicasUnavailable
    Progressing      True     NewReplicaSetCreated, FoundNewReplicaSet, ReplicaSetUpdated,
                              NewReplicaSetAvailable (the rollout is complete)
                     Unknown  DeploymentPaused, DeploymentResumed
                     False    ProgressDeadlineExceeded
    ReplicaFailure   True     the reason of the ReplicaSet's condition

A Deployment without `progressDeadlineSeconds` has no condition Progressing. The deadline counts
from `lastUpdateTime`, which every step of progress renews.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec.structs import asdict, replace

from phalanx.api.apps import Deployment, DeploymentCondition, DeploymentStatus, ReplicaSet
from phalanx.api.kinds import DEPLOYMENT
from phalanx.api.meta import find_condition, parse_timestamp, timestamp
from phalanx.api.wire import Object
from phalanx.controllers.deployments.replica_sets import REVISION, max_unavailable
from phalanx.controllers.reconcile_loop import Patch
from phalanx.controllers.replica_sets.replicas import REPLICA_FAILURE

AVAILABLE, PROGRESSING = "Available", "Progressing"
#: A deadline of this value means none.
_NO_DEADLINE = 2**31 - 1
#: The names of the counts in the status, with their fields in the API.
_STATUS_FIELDS = {
    "observed_generation": "observedGeneration",
    "replicas": "replicas",
    "updated_replicas": "updatedReplicas",
    "ready_replicas": "readyReplicas",
    "available_replicas": "availableReplicas",
    "unavailable_replicas": "unavailableReplicas",
    "terminating_replicas": "terminatingReplicas",
    "collision_count": "collisionCount",
}


def has_deadline(deployment: Deployment) -> bool:
    """Whether a rollout of the Deployment can time out."""
    deadline = deployment.spec.progress_deadline_seconds
    return deadline is not None and deadline != _NO_DEADLINE


def get_condition(status: DeploymentStatus, kind: str) -> DeploymentCondition | None:
    """Return the condition of a type, if there is one."""
    return next((one for one in status.conditions if one.type == kind), None)


def set_condition(
    status: DeploymentStatus, new: DeploymentCondition, now: float
) -> DeploymentStatus:
    """Return the status with a condition; an equal status and reason changes nothing."""
    old = get_condition(status, new.type)
    if old is not None and (old.status, old.reason) == (new.status, new.reason):
        return status
    return _put_condition(status, new, old, now=now)


def _put_condition(
    status: DeploymentStatus,
    new: DeploymentCondition,
    old: DeploymentCondition | None,
    *,
    now: float,
) -> DeploymentStatus:
    is_same = old is not None and old.status == new.status
    changed_at = old.last_transition_time if old is not None and is_same else timestamp(now)
    new = replace(new, last_update_time=timestamp(now), last_transition_time=changed_at)
    others = tuple(one for one in status.conditions if one.type != new.type)
    return replace(status, conditions=(*others, new))


def _remove_condition(status: DeploymentStatus, kind: str) -> DeploymentStatus:
    return replace(status, conditions=tuple(c for c in status.conditions if c.type != kind))


def count_status(
    deployment: Deployment,
    status: DeploymentStatus,
    replica_sets: Sequence[ReplicaSet],
    *,
    new: ReplicaSet | None,
    now: float,
) -> DeploymentStatus:
    """Return the status with current counts and the condition Available."""
    available = sum(one.status.available_replicas for one in replica_sets)
    wanted = sum(one.spec.replicas for one in replica_sets)
    status = replace(
        status,
        observed_generation=deployment.metadata.generation,
        replicas=sum(one.status.replicas for one in replica_sets),
        updated_replicas=new.status.replicas if new else 0,
        ready_replicas=sum(one.status.ready_replicas for one in replica_sets),
        available_replicas=available,
        unavailable_replicas=max(wanted - available, 0),
        terminating_replicas=sum(one.status.terminating_replicas for one in replica_sets),
    )
    is_available = available >= deployment.spec.replicas - max_unavailable(deployment)
    condition = (
        DeploymentCondition(
            AVAILABLE,
            "True",
            "MinimumReplicasAvailable",
            message="Deployment has minimum availability.",
        )
        if is_available
        else DeploymentCondition(
            AVAILABLE,
            "False",
            "MinimumReplicasUnavailable",
            message="Deployment does not have minimum availability.",
        )
    )
    return set_condition(status, condition, now)


def is_complete(deployment: Deployment, status: DeploymentStatus) -> bool:
    """Whether all pods are updated and available, and no other pod is left."""
    wanted = deployment.spec.replicas
    counts = (status.updated_replicas, status.replicas, status.available_replicas)
    return counts == (wanted,) * 3 and status.observed_generation >= deployment.metadata.generation


def rollout_status(
    deployment: Deployment,
    status: DeploymentStatus,
    replica_sets: Sequence[ReplicaSet],
    *,
    new: ReplicaSet | None,
    now: float,
) -> DeploymentStatus:
    """Return the counted status with the conditions Progressing and ReplicaFailure."""
    if not has_deadline(deployment):
        status = _remove_condition(status, PROGRESSING)
    current = get_condition(status, PROGRESSING)
    was_complete = (
        current is not None
        and current.reason == "NewReplicaSetAvailable"
        and status.replicas == status.updated_replicas
    )
    if has_deadline(deployment) and not was_complete:
        subject = (
            f'ReplicaSet "{new.metadata.name}"'
            if new
            else f'Deployment "{deployment.metadata.name}"'
        )
        if is_complete(deployment, status):
            message = f"{subject} has successfully progressed."
            condition = DeploymentCondition(
                PROGRESSING, "True", "NewReplicaSetAvailable", message=message
            )
            status = set_condition(status, condition, now)
        elif _has_progressed(deployment.status, status):
            message = f"{subject} is progressing."
            condition = DeploymentCondition(
                PROGRESSING, "True", "ReplicaSetUpdated", message=message
            )
            # Also an equal condition is renewed: the deadline counts from its update.
            status = _put_condition(status, condition, current, now=now)
        elif seconds_to_deadline(deployment, status, now) == 0.0:
            message = f"{subject} has timed out progressing."
            condition = DeploymentCondition(
                PROGRESSING, "False", "ProgressDeadlineExceeded", message=message
            )
            status = set_condition(status, condition, now)
    return _copy_replica_failure(status, replica_sets, new, now=now)


def _has_progressed(old: DeploymentStatus, new: DeploymentStatus) -> bool:
    return (
        new.updated_replicas > old.updated_replicas
        or new.replicas - new.updated_replicas < old.replicas - old.updated_replicas
        or new.ready_replicas > old.ready_replicas
        or new.available_replicas > old.available_replicas
    )


def seconds_to_deadline(
    deployment: Deployment, status: DeploymentStatus, now: float
) -> float | None:
    """Return after how many seconds the rollout times out; None if it cannot or is complete."""
    condition = get_condition(status, PROGRESSING)
    deadline = deployment.spec.progress_deadline_seconds
    if condition is None or deadline is None or not has_deadline(deployment):
        return None
    if condition.reason == "NewReplicaSetAvailable" or not condition.last_update_time:
        return None
    if condition.reason == "ProgressDeadlineExceeded":
        return 0.0
    return max(parse_timestamp(condition.last_update_time) + deadline - now, 0.0)


def _copy_replica_failure(
    status: DeploymentStatus,
    replica_sets: Sequence[ReplicaSet],
    new: ReplicaSet | None,
    *,
    now: float,
) -> DeploymentStatus:
    """Copy the failure of the new ReplicaSet, else of an old one."""
    ordered = [*([new] if new else []), *(one for one in replica_sets if one is not new)]
    found = (find_condition(one.status.conditions, REPLICA_FAILURE) for one in ordered)
    failure = next((one for one in found if one is not None), None)
    if failure is None:
        return _remove_condition(status, REPLICA_FAILURE)
    condition = DeploymentCondition(
        REPLICA_FAILURE, failure.status, failure.reason, message=failure.message
    )
    return set_condition(status, condition, now)


def plan_status(deployment: Deployment, status: DeploymentStatus, revision: str) -> list[Patch]:
    """Plan: write the status and the annotation with the revision, if they changed."""
    meta, old, new = deployment.metadata, asdict(deployment.status), asdict(status)
    changed: Object = {
        field: new[name] for name, field in _STATUS_FIELDS.items() if new[name] != old[name]
    }
    if status.conditions != deployment.status.conditions:
        changed["conditions"] = msgspec.to_builtins(list(status.conditions))
    is_new_revision = bool(revision) and meta.annotations.get(REVISION) != revision
    if not changed and not is_new_revision:
        return []
    # Conditional on the version: conditions are computed from what the cache shows.
    metadata: Object = {"uid": meta.uid, "resourceVersion": meta.resource_version}
    if is_new_revision:
        metadata["annotations"] = {REVISION: revision}
    change = {"metadata": metadata, "status": changed}
    return [Patch(DEPLOYMENT, meta.key, change, subresource="status")]
