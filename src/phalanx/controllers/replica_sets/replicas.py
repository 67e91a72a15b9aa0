"""How many pods a ReplicaSet creates, which pods it deletes, and its status.

Pure functions of a ReplicaSet (or ReplicationController) and its pods. Of two pods that can be
deleted, the first rule that tells them apart decides:

    deleted first                       rule
    not assigned to a node              its loss costs nothing
    Pending, then Unknown               they do no work
    not ready
    lower deletion cost                 `controller.kubernetes.io/pod-deletion-cost`
    more pods of siblings on its node   the rest is spread better
    ready for a shorter time            by powers of two, so that equally old pods are chosen evenly
    more restarts
    younger                             by powers of two
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cmp_to_key, partial

from msgspec.structs import asdict

from phalanx.api.apps import ReplicaSet, ReplicationController
from phalanx.api.core import Pod
from phalanx.api.meta import Condition, find_condition, parse_timestamp, timestamp
from phalanx.api.wire import Object
from phalanx.controllers.pod_control import BURST_REPLICAS
from phalanx.controllers.pod_ownership import is_active, is_terminating, seconds_until_available

ReplicaOwner = ReplicaSet | ReplicationController

DELETION_COST = "controller.kubernetes.io/pod-deletion-cost"
REPLICA_FAILURE = "ReplicaFailure"
_PHASE_ORDER = {"Pending": 0, "Unknown": 1, "Running": 2}
#: The names of the counts in the status, with their fields in the API.
_STATUS_FIELDS = {
    "replicas": "replicas",
    "fully_labeled_replicas": "fullyLabeledReplicas",
    "ready_replicas": "readyReplicas",
    "available_replicas": "availableReplicas",
    "terminating_replicas": "terminatingReplicas",
    "observed_generation": "observedGeneration",
}


@dataclass(frozen=True, slots=True)
class ReplicaFailure:
    """Why replicas could not be created or deleted: `FailedCreate` or `FailedDelete`."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class ReplicaState:
    """What a sync reads: the owner, all pods that it controls, and pods of siblings by node.

    `siblings` counts the pods on each node that belong to the same Deployment.
    """

    owner: ReplicaOwner
    pods: Sequence[Pod]
    siblings: Mapping[str, int]
    now: float

    @property
    def active(self) -> list[Pod]:
        """The pods that count as replicas."""
        return [pod for pod in self.pods if is_active(pod)]

    def seconds_until_available(self, pod: Pod) -> float | None:
        """Return when a pod becomes available: 0 if it is, None if it is not ready."""
        return seconds_until_available(pod, self.owner.spec.min_ready_seconds, self.now)


@dataclass(frozen=True, slots=True)
class ReplicaChanges:
    """How many pods to create and which to delete; one of them is none."""

    creations: int = 0
    deletions: Sequence[Pod] = ()


def plan_replicas(state: ReplicaState) -> ReplicaChanges:
    """Compare the active pods with the desired number."""
    if state.owner.metadata.deletion_timestamp:
        return ReplicaChanges()
    active = state.active
    excess = len(active) - state.owner.spec.replicas
    if excess <= 0:
        return ReplicaChanges(creations=min(-excess, BURST_REPLICAS))
    ranked = sorted(active, key=cmp_to_key(partial(_compare_pods, state)))
    return ReplicaChanges(deletions=ranked[: min(excess, BURST_REPLICAS)])


def _compare_pods(state: ReplicaState, one: Pod, other: Pod) -> int:
    """Return a negative number if `one` is deleted before `other`."""
    first, second = _rank(state, one), _rank(state, other)
    if first != second:
        return -1 if first < second else 1
    by_uid = -1 if one.metadata.uid < other.metadata.uid else 1
    if one.is_ready and _ready_since(one) != _ready_since(other):
        return _compare_ages(state.now, _ready_since(one), _ready_since(other)) or by_uid
    if restarts := _restarts(other) - _restarts(one):
        return restarts
    return _compare_ages(state.now, _created_at(one), _created_at(other)) or by_uid


def _rank(state: ReplicaState, pod: Pod) -> tuple[bool, int, bool, int, int]:
    return (
        bool(pod.spec.node_name),
        _PHASE_ORDER.get(pod.status.phase, 0),
        pod.is_ready,
        _deletion_cost(pod),
        -state.siblings.get(pod.spec.node_name, 0) if pod.spec.node_name else 0,
    )


def _deletion_cost(pod: Pod) -> int:
    text = pod.metadata.annotations.get(DELETION_COST, "")
    try:
        cost = int(text)
    except ValueError:
        return 0
    return cost if -(2**31) <= cost < 2**31 else 0


def _restarts(pod: Pod) -> int:
    return max((one.restart_count for one in pod.status.container_statuses), default=0)


def _ready_since(pod: Pod) -> float | None:
    ready = find_condition(pod.status.conditions, "Ready")
    text = ready.last_transition_time if ready else None
    return parse_timestamp(text) if text else None


def _created_at(pod: Pod) -> float | None:
    text = pod.metadata.creation_timestamp
    return parse_timestamp(text) if text else None


def _compare_ages(now: float, one: float | None, other: float | None) -> int:
    """Compare two ages by powers of two: the younger first; equal powers are equal."""
    return _age_power(now, one) - _age_power(now, other)


def _age_power(now: float, since: float | None) -> int:
    """Return the power of two of an age in nanoseconds; -1 for none."""
    age = 0.0 if since is None else now - since
    return math.floor(math.log2(age * 1e9)) if age > 0 else -1


# ---- status --------------------------------------------------------------------------------------


def build_status_change(
    state: ReplicaState, failure: ReplicaFailure | None, *, is_complete: bool
) -> Object:
    """Return the changed fields of the status; {} if it is up to date.

    Unless the sync `is_complete`, a recorded failure stays: it was not tried again.
    """
    owner, active = state.owner, state.active
    labels = (owner.spec.template.get("metadata") or {}).get("labels") or {}
    ready = [pod for pod in active if state.seconds_until_available(pod) is not None]
    counts = {
        "replicas": len(active),
        "fully_labeled_replicas": sum(
            labels.items() <= pod.metadata.labels.items() for pod in active
        ),
        "ready_replicas": len(ready),
        "available_replicas": sum(state.seconds_until_available(pod) == 0.0 for pod in ready),
        "terminating_replicas": sum(map(is_terminating, state.pods)),
        "observed_generation": owner.metadata.generation,
    }
    old = asdict(owner.status)
    changed: Object = {
        _STATUS_FIELDS[name]: value
        for name, value in counts.items()
        if name in old and old[name] != value
    }
    conditions = _update_conditions(state, failure, is_complete=is_complete)
    if conditions is not None:
        changed["conditions"] = conditions
    return changed


def _update_conditions(
    state: ReplicaState, failure: ReplicaFailure | None, *, is_complete: bool
) -> list[Object] | None:
    """Return the new conditions; None if they stay."""
    conditions = state.owner.status.conditions
    present = find_condition(conditions, REPLICA_FAILURE)
    others = [_condition_object(one) for one in conditions if one is not present]
    if failure is not None and present is None:
        new = {
            "type": REPLICA_FAILURE,
            "status": "True",
            "reason": failure.reason,
            "message": failure.message,
            "lastTransitionTime": timestamp(state.now),
        }
        return [*others, new]
    return others if present is not None and failure is None and is_complete else None


def _condition_object(condition: Condition) -> Object:
    found: Object = {
        "type": condition.type,
        "status": condition.status,
        "reason": condition.reason,
        "message": condition.message,
    }
    if condition.last_transition_time:
        found["lastTransitionTime"] = condition.last_transition_time
    return found


def next_availability(state: ReplicaState) -> float | None:
    """Return after how many seconds the next pod becomes available, None for none."""
    waits = (state.seconds_until_available(pod) for pod in state.active)
    return min((wait for wait in waits if wait), default=None)
