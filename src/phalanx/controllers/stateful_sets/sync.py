"""The plan of the StatefulSet controller: a pure function of a StatefulSet and what belongs to it.

Pods are created in the order of their ordinals and removed in the reverse order. With the policy
OrderedReady the plan stops at the first pod that is not available: the next pod is created,
removed or updated only after it is. With the policy Parallel nothing waits, but an update still
keeps to maxUnavailable.

    pod of an ordinal               action
    missing                         create its claims and the pod
    failed or succeeded             delete it; the next reconcile creates it again
    beyond the replicas             delete it, the highest ordinal first
    of an old revision              delete it, the highest ordinal first, down to the partition

A pod below the partition is created again from the current revision, every other pod from the
update revision. The current revision becomes the update revision when all pods are updated.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from msgspec.structs import asdict

from phalanx.api.apps import (
    REVISION_LABEL,
    ControllerRevision,
    StatefulSet,
    StatefulSetStatus,
)
from phalanx.api.core import Pod
from phalanx.api.formats import resolve_int_or_percent
from phalanx.api.kinds import PERSISTENT_VOLUME_CLAIM, POD, STATEFUL_SET
from phalanx.api.meta import find_condition, parse_timestamp
from phalanx.api.storage import PersistentVolumeClaim
from phalanx.api.wire import Object
from phalanx.controllers.event_recorder import ObjectEvent
from phalanx.controllers.reconcile_loop import (
    Action,
    Create,
    Delete,
    Patch,
    ReconcilePlan,
    RecordEvent,
)
from phalanx.controllers.stateful_sets.pod_objects import (
    build_claim,
    build_pod,
    claim_names,
    plan_claim_owner,
    pod_name,
)
from phalanx.controllers.stateful_sets.revisions import (
    RevisionPlan,
    plan_history_limit,
    plan_revisions,
    revision_template,
)

#: Pods that one sync creates at most; their creation causes the next sync.
MAX_STARTS = 500
#: The names of the counts in the status, with their fields in the API.
_STATUS_FIELDS = {
    "observed_generation": "observedGeneration",
    "replicas": "replicas",
    "ready_replicas": "readyReplicas",
    "available_replicas": "availableReplicas",
    "current_replicas": "currentReplicas",
    "updated_replicas": "updatedReplicas",
    "current_revision": "currentRevision",
    "update_revision": "updateRevision",
    "collision_count": "collisionCount",
}


@dataclass(frozen=True, slots=True)
class StatefulSetState:
    """What a sync reads: a StatefulSet with its pods by ordinal, its claims and revisions by name.

    `other_names` are names of pods and revisions that belong to others.
    """

    stateful_set: StatefulSet
    pods: Mapping[int, Pod]
    claims: Mapping[str, PersistentVolumeClaim]
    history: Sequence[ControllerRevision]
    other_names: frozenset[str]
    now: float

    @property
    def replicas(self) -> list[tuple[int, Pod | None]]:
        """The ordinals to keep with their pods, in order: all with a pod, the first without."""
        wanted = self.stateful_set.ordinals
        considered = dict.fromkeys(wanted[: len(self.pods) + MAX_STARTS])
        considered.update(dict.fromkeys(ordinal for ordinal in self.pods if ordinal in wanted))
        return [(ordinal, self.pods.get(ordinal)) for ordinal in sorted(considered)]

    def seconds_until_available(self, pod: Pod) -> float | None:
        """Return when a pod becomes available: 0 if it is, None if it is not ready."""
        ready = find_condition(pod.status.conditions, "Ready")
        if pod.status.phase != "Running" or ready is None or ready.status != "True":
            return None
        wait = self.stateful_set.spec.min_ready_seconds
        if not wait:
            return 0.0
        since = (
            parse_timestamp(ready.last_transition_time) if ready.last_transition_time else self.now
        )
        return max(since + wait - self.now, 0.0)

    def is_available(self, pod: Pod) -> bool:
        """Whether a pod counts as available for ordering and updates."""
        return not pod.metadata.deletion_timestamp and self.seconds_until_available(pod) == 0.0


def plan_sync(state: StatefulSetState) -> ReconcilePlan:
    """Plan: revisions, status, then pods and claims, then the history limit."""
    stateful_set = state.stateful_set
    if stateful_set.metadata.deletion_timestamp:
        return ReconcilePlan()
    revisions = plan_revisions(stateful_set, state.history, state.other_names.__contains__)
    status = _count_status(state, revisions)
    used = {
        status.current_revision,
        status.update_revision,
        *map(_revision_of, state.pods.values()),
    }
    limit = stateful_set.spec.revision_history_limit
    waits = [state.seconds_until_available(pod) for pod in state.pods.values()]
    return ReconcilePlan(
        [
            *revisions.actions,
            *_status_patch(stateful_set, status),
            *_PodPlanner(state, revisions).plan(),
            *plan_history_limit(state.history, used, limit),
        ],
        min((wait for wait in waits if wait), default=None),
    )


def _revision_of(pod: Pod) -> str:
    return pod.metadata.labels.get(REVISION_LABEL, "")


# ---- status --------------------------------------------------------------------------------------


def _count_status(state: StatefulSetState, revisions: RevisionPlan) -> StatefulSetStatus:
    stateful_set = state.stateful_set
    current, update = revisions.current.metadata.name, revisions.update.metadata.name
    pods = [pod for pod in state.pods.values() if not pod.is_terminal]
    alive = [pod for pod in pods if not pod.metadata.deletion_timestamp]
    ready = [pod for pod in pods if state.seconds_until_available(pod) is not None]
    updated = sum(_revision_of(pod) == update for pod in alive)
    strategy, wanted = stateful_set.spec.update_strategy, stateful_set.spec.replicas
    is_complete = len(pods) == updated == len(ready) == wanted
    if strategy.type == "RollingUpdate" and not strategy.rolling_update.partition and is_complete:
        current = update
    return StatefulSetStatus(
        observed_generation=stateful_set.metadata.generation,
        replicas=len(pods),
        ready_replicas=len(ready),
        available_replicas=sum(state.seconds_until_available(pod) == 0.0 for pod in ready),
        current_replicas=sum(_revision_of(pod) == current for pod in alive),
        updated_replicas=updated,
        current_revision=current,
        update_revision=update,
        collision_count=revisions.collision_count,
    )


def _status_patch(stateful_set: StatefulSet, status: StatefulSetStatus) -> list[Action]:
    """The patch of the status, or nothing if the status is up to date."""
    if status == stateful_set.status:
        return []
    new, old = asdict(status), asdict(stateful_set.status)
    changed: Object = {
        field: new[name] for name, field in _STATUS_FIELDS.items() if new[name] != old[name]
    }
    meta = stateful_set.metadata
    change = {"metadata": {"uid": meta.uid}, "status": changed}
    return [Patch(STATEFUL_SET, meta.key, change, subresource="status")]


# ---- pods ----------------------------------------------------------------------------------------


class _PodPlanner:
    """Plans the creations and deletions of one sync."""

    def __init__(self, state: StatefulSetState, revisions: RevisionPlan) -> None:
        self._state, self._revisions = state, revisions
        self._set = state.stateful_set
        self._is_ordered = self._set.spec.pod_management_policy != "Parallel"
        self._replicas = state.replicas
        condemned = [one for one in state.pods.items() if one[0] not in self._set.ordinals]
        self._condemned = sorted(condemned, key=lambda one: one[0], reverse=True)
        partition = self._set.spec.update_strategy.rolling_update.partition
        self._first_updated = self._set.ordinals.start + partition

    def plan(self) -> Iterator[Action]:
        """Yield the actions; ordered pods wait for each other."""
        for ordinal, pod in self._replicas:
            yield from self._keep(ordinal, pod)
            if self._is_ordered and (pod is None or not self._state.is_available(pod)):
                return
        for ordinal, pod in self._condemned:
            yield from self._remove(ordinal, pod)
            if self._is_ordered:
                return
        if self._set.spec.update_strategy.type == "RollingUpdate":
            yield from self._update()

    def _keep(self, ordinal: int, pod: Pod | None) -> Iterator[Action]:
        """Create the pod of an ordinal and its claims; delete a pod that has ended."""
        if pod is None:
            if pod_name(self._set, ordinal) not in self._state.other_names:
                yield from self._create(ordinal)
        elif pod.is_terminal:
            yield from self._delete(pod)
        else:
            if not pod.spec.node_name:
                yield from self._create_claims(ordinal)
            yield from self._own_claims(ordinal, pod, is_condemned=False)

    def _create(self, ordinal: int) -> Iterator[Action]:
        claims = [self._state.claims.get(name) for name, _ in claim_names(self._set, ordinal)]
        if any(claim is not None and claim.metadata.deletion_timestamp for claim in claims):
            return  # The pod would use a claim that goes away; its deletion is an event.
        yield from self._create_claims(ordinal)
        is_rolling = self._set.spec.update_strategy.type == "RollingUpdate"
        is_kept = is_rolling and ordinal < self._first_updated
        revision = self._revisions.current if is_kept else self._revisions.update
        template, name = revision_template(revision), revision.metadata.name
        pod = build_pod(self._set, template, ordinal, revision=name)
        yield Create(POD, pod)
        yield self._set_event(
            "SuccessfulCreate",
            f"create Pod {pod_name(self._set, ordinal)} in StatefulSet {self._set.metadata.name} "
            "successful",
        )

    def _create_claims(self, ordinal: int) -> Iterator[Action]:
        for name, template in claim_names(self._set, ordinal):
            if name not in self._state.claims:
                yield Create(PERSISTENT_VOLUME_CLAIM, build_claim(self._set, name, template))
                yield self._set_event(
                    "SuccessfulCreate",
                    f"create Claim {name} Pod {pod_name(self._set, ordinal)} in StatefulSet "
                    f"{self._set.metadata.name} success",
                )

    def _own_claims(self, ordinal: int, pod: Pod, *, is_condemned: bool) -> Iterator[Action]:
        for name, _ in claim_names(self._set, ordinal):
            claim = self._state.claims.get(name)
            if claim is not None and not claim.metadata.deletion_timestamp:
                yield from plan_claim_owner(self._set, pod, claim, is_condemned=is_condemned)

    def _remove(self, ordinal: int, pod: Pod) -> Iterator[Action]:
        """Delete a pod beyond the replicas; an unready one only after unready ones below it."""
        below = [
            other
            for other_ordinal, other in self._condemned
            if other_ordinal < ordinal and not self._state.is_available(other)
        ]
        if self._is_ordered and below and not self._state.is_available(pod):
            return
        yield from self._own_claims(ordinal, pod, is_condemned=True)
        yield from self._delete(pod)

    def _update(self) -> Iterator[Action]:
        """Delete pods of old revisions, as many as maxUnavailable allows."""
        rolling, total = self._set.spec.update_strategy.rolling_update, len(self._set.ordinals)
        pods = [(ordinal, pod) for ordinal, pod in self._replicas if pod is not None]
        available = sum(self._state.is_available(pod) for _, pod in pods)
        limit = resolve_int_or_percent(rolling.max_unavailable, total, round_up=False)
        allowed = max(limit, 1) - (total - available)
        first, update = self._first_updated, self._revisions.update.metadata.name
        for ordinal, pod in reversed(pods):
            if allowed <= 0 or ordinal < first:
                return
            if _revision_of(pod) != update and not pod.metadata.deletion_timestamp:
                yield from self._delete(pod)
                allowed -= 1

    def _delete(self, pod: Pod) -> Iterator[Action]:
        meta = pod.metadata
        if not meta.deletion_timestamp:
            yield Delete(POD, meta.key, meta.uid)
            yield self._set_event(
                "SuccessfulDelete",
                f"delete Pod {meta.name} in StatefulSet {self._set.metadata.name} successful",
            )

    def _set_event(self, reason: str, message: str) -> RecordEvent:
        return RecordEvent(ObjectEvent(STATEFUL_SET, self._set.metadata, reason, message=message))
