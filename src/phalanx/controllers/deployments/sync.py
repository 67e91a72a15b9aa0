"""The plan of the Deployment controller: a pure function of a Deployment and its ReplicaSets.

The first rule that has something to do decides; the status is written in any case. The next sync
sees the effect and continues.

    Deployment                      action
    is being deleted                the status only
    is paused, or was scaled        share the change of the size by the ReplicaSets
    Recreate                        scale the old ReplicaSets to 0; wait until their pods are gone;
                                    then create or scale the new one
    RollingUpdate                   create or scale up the new one as far as maxSurge allows; then
                                    scale old ones down as far as maxUnavailable allows, unhealthy
                                    pods first
    complete                        delete old ReplicaSets beyond revisionHistoryLimit
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from phalanx.api.apps import Deployment, DeploymentCondition, ReplicaSet
from phalanx.api.core import Pod
from phalanx.api.kinds import DEPLOYMENT, REPLICA_SET
from phalanx.builder.names import replica_set_name
from phalanx.controllers.deployments.replica_sets import (
    DESIRED_REPLICAS,
    creation_order,
    has_template,
    max_surge,
    max_unavailable,
    new_replica_set,
    plan_renewal,
    plan_size,
    revision_of,
    share_sizes,
    template_hash,
)
from phalanx.controllers.deployments.status import (
    PROGRESSING,
    count_status,
    get_condition,
    has_deadline,
    is_complete,
    plan_status,
    rollout_status,
    seconds_to_deadline,
    set_condition,
)
from phalanx.controllers.event_recorder import ObjectEvent
from phalanx.controllers.reconcile_loop import (
    Action,
    Create,
    Delete,
    ReconcilePlan,
    RecordEvent,
)

#: Collisions of names after which a Deployment waits for the next change.
_MAX_COLLISIONS = 100


@dataclass(frozen=True, slots=True)
class DeploymentState:
    """What a sync reads: a Deployment, its ReplicaSets and pods.

    `pods` are those of ReplicaSets that the Deployment controls; `other_names` are names of
    ReplicaSets that it does not.
    """

    deployment: Deployment
    replica_sets: Sequence[ReplicaSet]
    pods: Sequence[Pod]
    other_names: Collection[str]
    now: float


def plan_sync(state: DeploymentState) -> ReconcilePlan:
    """Plan one sync."""
    return _DeploymentPlanner(state).plan()


class _DeploymentPlanner:
    """Plans one sync: actions in order, and the status that follows."""

    def __init__(self, state: DeploymentState) -> None:
        self._state, self._deployment, self._now = state, state.deployment, state.now
        self._all = sorted(state.replica_sets, key=creation_order)
        template = state.deployment.spec.template
        self._new = next((one for one in self._all if has_template(one, template)), None)
        self._old = [one for one in self._all if one is not self._new]
        self._status = state.deployment.status
        self._revision = ""

    def plan(self) -> ReconcilePlan:
        """Return the plan."""
        deployment = self._deployment
        if deployment.metadata.deletion_timestamp:
            self._count()
            return ReconcilePlan(self._write_status())
        self._mark_paused()
        is_scaled = deployment.spec.paused or self._was_scaled()
        if is_scaled:
            actions = [*self._renew_new(creates=False), *self._scale()]
            if deployment.spec.paused:
                actions += self._clean_up()
            self._count()
        else:
            is_rolling = deployment.spec.strategy.type == "RollingUpdate"
            actions = list(self._roll_out() if is_rolling else self._recreate())
            self._count()
            self._status = rollout_status(
                deployment, self._status, self._all, new=self._new, now=self._now
            )
            if not actions and is_complete(deployment, self._status):
                actions = self._clean_up()
        wait = seconds_to_deadline(deployment, self._status, self._now)
        # Timestamps have whole seconds: one more, so that the deadline has passed.
        return ReconcilePlan([*actions, *self._write_status()], wait + 1.0 if wait else None)

    # ---- status ----------------------------------------------------------------------------------

    def _count(self) -> None:
        self._status = count_status(
            self._deployment, self._status, self._all, new=self._new, now=self._now
        )

    def _write_status(self) -> list[Action]:
        return [*plan_status(self._deployment, self._status, self._revision)]

    def _set_progressing(self, status: str, reason: str, message: str) -> None:
        condition = DeploymentCondition(PROGRESSING, status, reason, message=message)
        self._status = set_condition(self._status, condition, self._now)

    def _mark_paused(self) -> None:
        """Set the condition Progressing when a Deployment is paused or resumed."""
        current = get_condition(self._status, PROGRESSING)
        if not has_deadline(self._deployment) or (
            current is not None and current.reason == "ProgressDeadlineExceeded"
        ):
            return
        was_paused = current is not None and current.reason == "DeploymentPaused"
        if self._deployment.spec.paused and not was_paused:
            self._set_progressing("Unknown", "DeploymentPaused", "Deployment is paused")
        elif not self._deployment.spec.paused and was_paused:
            self._set_progressing("Unknown", "DeploymentResumed", "Deployment is resumed")

    # ---- the new ReplicaSet ----------------------------------------------------------------------

    def _renew_new(self, *, creates: bool) -> list[Action]:
        """Bring the new ReplicaSet up to date, or create it."""
        revision = max(map(revision_of, self._old), default=0) + 1
        if self._new is None:
            return self._create_new(revision) if creates else []
        self._revision = str(max(revision_of(self._new), revision))
        if has_deadline(self._deployment) and get_condition(self._status, PROGRESSING) is None:
            message = f'Found new replica set "{self._new.metadata.name}"'
            self._set_progressing("True", "FoundNewReplicaSet", message)
        return [*plan_renewal(self._deployment, self._new, revision)]

    def _create_new(self, revision: int) -> list[Action]:
        deployment, name = self._deployment, self._deployment.metadata.name
        collisions = deployment.status.collision_count
        last = collisions + _MAX_COLLISIONS
        while collisions < last and (
            replica_set_name(name, template_hash(deployment, collisions)) in self._state.other_names
        ):
            collisions += 1
        size = self._new_size(0)
        built = new_replica_set(deployment, size, revision, collisions=collisions)
        own_name = built["metadata"]["name"]
        self._status = replace(self._status, collision_count=collisions)
        self._revision = str(revision)
        if has_deadline(deployment):
            message = f'Created new replica set "{own_name}"'
            self._set_progressing("True", "NewReplicaSetCreated", message)
        scaled = [self._scaled_event(own_name, 0, size)] if size else []
        return [Create(REPLICA_SET, built), *scaled]

    def _new_size(self, present: int) -> int:
        """Return the size that the new ReplicaSet may have now."""
        wanted = self._deployment.spec.replicas
        if self._deployment.spec.strategy.type != "RollingUpdate":
            return wanted
        total = sum(one.spec.replicas for one in self._all)
        room = wanted + max_surge(self._deployment) - total
        return present + min(room, wanted - present) if room > 0 else present

    # ---- rollouts --------------------------------------------------------------------------------

    def _roll_out(self) -> Iterator[Action]:
        renewal = self._renew_new(creates=True)
        if renewal or self._new is None:
            yield from renewal
            return
        wanted, present = self._deployment.spec.replicas, self._new.spec.replicas
        size = wanted if present > wanted else self._new_size(present)
        growth = self._resize(self._new, size)
        yield from growth
        if size == present:
            yield from self._shrink_old(self._new)

    def _shrink_old(self, new: ReplicaSet) -> Iterator[Action]:
        """Scale old ReplicaSets down: first pods that are unavailable, then others."""
        deployment = self._deployment
        sizes = {one.metadata.uid: one.spec.replicas for one in self._old}
        minimum = deployment.spec.replicas - max_unavailable(deployment)
        missing = new.spec.replicas - new.status.available_replicas
        allowed = sum(sizes.values()) + new.spec.replicas - minimum - missing
        if allowed <= 0 or not any(sizes.values()):
            return
        for one in self._old:
            unhealthy = max(one.spec.replicas - one.status.available_replicas, 0)
            cut = min(allowed, unhealthy)
            sizes[one.metadata.uid] -= cut
            allowed -= cut
        spare = sum(one.status.available_replicas for one in self._all) - minimum
        for one in self._old:
            cut = min(max(spare, 0), sizes[one.metadata.uid])
            sizes[one.metadata.uid] -= cut
            spare -= cut
        for one in self._old:
            if sizes[one.metadata.uid] != one.spec.replicas:
                yield from self._resize(one, sizes[one.metadata.uid])

    def _recreate(self) -> Iterator[Action]:
        renewal = self._renew_new(creates=False)
        active = [one for one in self._old if one.spec.replicas]
        if renewal or active:
            yield from renewal
            for one in active:
                yield from self._resize(one, 0)
        elif not self._has_old_pods():
            if self._new is None:
                yield from self._renew_new(creates=True)
            else:
                yield from self._resize(self._new, self._deployment.spec.replicas)

    def _has_old_pods(self) -> bool:
        """Whether pods of old ReplicaSets are left; those that terminate count."""
        new = self._new.metadata.uid if self._new else ""
        return any(one.status.replicas for one in self._old) or any(
            not pod.is_terminal
            and not any(owner.uid == new for owner in pod.metadata.owner_references)
            for pod in self._state.pods
        )

    # ---- scaling ---------------------------------------------------------------------------------

    def _was_scaled(self) -> bool:
        """Whether the size changed since the active ReplicaSets were last scaled."""
        wanted = str(self._deployment.spec.replicas)
        texts = (
            one.metadata.annotations.get(DESIRED_REPLICAS) for one in self._all if one.spec.replicas
        )
        return any(text is not None and text != wanted for text in texts)

    def _scale(self) -> Iterator[Action]:
        wanted = self._deployment.spec.replicas
        active = [one for one in self._all if one.spec.replicas]
        if len(active) <= 1:
            latest = self._new or (self._old[-1] if self._old else None)
            only = active[0] if active else latest
            if only is not None:
                yield from self._resize(only, wanted)
        elif self._new is not None and self._is_saturated(self._new):
            for one in active:
                if one is not self._new:
                    yield from self._resize(one, 0)
        elif self._deployment.spec.strategy.type == "RollingUpdate":
            sizes = share_sizes(self._deployment, active)
            for one in active:
                yield from self._resize(one, sizes[one.metadata.uid])

    def _is_saturated(self, new: ReplicaSet) -> bool:
        """Whether the new ReplicaSet has all pods of the Deployment, available."""
        wanted = self._deployment.spec.replicas
        desired = new.metadata.annotations.get(DESIRED_REPLICAS)
        return new.spec.replicas == wanted == new.status.available_replicas and desired == str(
            wanted
        )

    def _resize(self, replica_set: ReplicaSet, size: int) -> list[Action]:
        patches = plan_size(self._deployment, replica_set, size)
        before = replica_set.spec.replicas
        if not patches or size == before:
            return [*patches]
        return [*patches, self._scaled_event(replica_set.metadata.name, before, size)]

    def _scaled_event(self, name: str, before: int, size: int) -> RecordEvent:
        direction = "up" if size > before else "down"
        message = f"Scaled {direction} replica set {name} from {before} to {size}"
        meta = self._deployment.metadata
        return RecordEvent(ObjectEvent(DEPLOYMENT, meta, "ScalingReplicaSet", message=message))

    # ---- history ---------------------------------------------------------------------------------

    def _clean_up(self) -> list[Action]:
        """Delete the oldest ReplicaSets without pods beyond the history limit."""
        kept = [one for one in self._old if not one.metadata.deletion_timestamp]
        excess = len(kept) - self._deployment.spec.revision_history_limit
        ordered = sorted(kept, key=lambda one: (revision_of(one), creation_order(one)))
        return [
            Delete(REPLICA_SET, one.metadata.key, one.metadata.uid)
            for one in ordered[: max(excess, 0)]
            if _is_unused(one)
        ]


def _is_unused(replica_set: ReplicaSet) -> bool:
    is_current = replica_set.metadata.generation <= replica_set.status.observed_generation
    return is_current and not replica_set.spec.replicas and not replica_set.status.replicas
