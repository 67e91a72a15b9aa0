"""The plan of the LeaderWorkerSet controller: a pure function of a set and what belongs to it.

    0. objects that a deleted set of this name has left behind are adopted
    1. the revision of the present template
    2. the Workload and the groups of the replicas           nothing else is created before them
    3. the StatefulSet of the leaders, with the next step of a rolling update
    4. the Services; for each leader the StatefulSet of its workers, or the restart of its group
    5. the status; groups and revisions that are no longer needed

A group restarts by deleting its leader in the foreground: the workers are gone before the next
leader is created, and the new pods are placed as one gang again.

    policy                        the group restarts if
    RecreateGroupOnPodRestart     a container restarted, or a pod failed, is deleted or was replaced
    RecreateGroupAfterStart       the same, but not while a pod of the group is pending
    None                          never; the StatefulSets replace single pods
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from phalanx.api.apps import ControllerRevision, StatefulSet
from phalanx.api.core import Node, Pod
from phalanx.api.kinds import LEADER_WORKER_SET, POD, SERVICE, STATEFUL_SET, WORKLOAD, Kind
from phalanx.api.leader_worker_sets import (
    EXCLUSIVE_TOPOLOGY_ANNOTATION,
    GROUP_INDEX_LABEL,
    LEADER_INDEX,
    LEADER_READY,
    NAME_LABEL,
    RECREATE_AFTER_START,
    RECREATE_ON_RESTART,
    REPLICAS_ANNOTATION,
    WORKER_INDEX_LABEL,
    LeaderWorkerSet,
)
from phalanx.api.meta import ObjectMeta, find_condition, parse_timestamp
from phalanx.api.wire import Object
from phalanx.controllers.event_recorder import ObjectEvent
from phalanx.controllers.leader_worker_sets.child_objects import (
    build_leader_set,
    build_service,
    build_worker_set,
    group_size,
    has_own_subdomain,
    plan_leader_set_change,
)
from phalanx.controllers.leader_worker_sets.revisions import (
    LwsRevisions,
    plan_lws_revisions,
    plan_revision_cleanup,
    revision_key,
)
from phalanx.controllers.leader_worker_sets.rollout import (
    GroupState,
    LeaderSetState,
    RolloutStep,
    plan_rollout,
)
from phalanx.controllers.leader_worker_sets.status import plan_status
from phalanx.controllers.leader_worker_sets.workload_objects import (
    SchedulingObjectState,
    SchedulingPlan,
    plan_scheduling,
)
from phalanx.controllers.pod_ownership import controller_reference
from phalanx.controllers.reconcile_loop import (
    Action,
    Create,
    Delete,
    Patch,
    ReconcilePlan,
    RecordEvent,
)

#: Seconds until the node of a leader is looked up again.
_NODE_RETRY_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class LeaderWorkerSetState:
    """What a sync reads: a set, its StatefulSets and pods by name, revisions, groups and nodes.

    `orphans` have the label of the set, but no controller: a set of this name was deleted without
    them. `leaders` are the pods that the StatefulSet of the leaders controls, by index. `workers`
    are all other pods of the set. `scheduling` is None where the server has no Workloads or
    PodGroups.
    """

    lws: LeaderWorkerSet
    leader_set: StatefulSet | None
    worker_sets: Mapping[str, StatefulSet]
    leaders: Mapping[int, Pod]
    workers: Sequence[Pod]
    history: Sequence[ControllerRevision]
    services: frozenset[str]
    nodes: Mapping[str, Node]
    scheduling: SchedulingObjectState | None
    now: float
    orphans: Sequence[tuple[Kind, ObjectMeta]] = ()

    def own_worker_set(self, leader: Pod) -> StatefulSet | None:
        """Return the StatefulSet of the workers of this leader, not of a former one."""
        found = self.worker_sets.get(leader.metadata.name)
        return found if found and found.metadata.is_controlled_by(leader.metadata.uid) else None

    def own_workers(self, leader: Pod) -> list[Pod]:
        """Return the workers of this leader."""
        workers = self.own_worker_set(leader)
        if workers is None:
            return []
        return [pod for pod in self.workers if pod.metadata.is_controlled_by(workers.metadata.uid)]


def plan_sync(state: LeaderWorkerSetState) -> ReconcilePlan:
    """Plan one sync of a LeaderWorkerSet."""
    lws, leader_set = state.lws, state.leader_set
    if lws.metadata.deletion_timestamp:
        return ReconcilePlan()
    reference = controller_reference(LEADER_WORKER_SET, lws.metadata)
    if refusal := _explain_foreign_leader_set(lws, leader_set):
        event = ObjectEvent(LEADER_WORKER_SET, lws.metadata, "FailedAdoption", refusal, "Warning")
        return ReconcilePlan([RecordEvent(event)])
    if state.orphans:
        return ReconcilePlan(_plan_adoption(state, reference))
    revisions = plan_lws_revisions(lws, state.history, reference)
    groups = {
        index: _group_state(state, leader, revisions) for index, leader in state.leaders.items()
    }
    step = _plan_step(state, revisions, groups)
    scheduling = _plan_scheduling(state, revisions, step)
    actions: list[Action] = [*revisions.actions]
    if revisions.actions:
        text = f"Creating revision with key {revisions.key} for "
        new = "a newly created LeaderWorkerSet" if leader_set is None else "updated LWS"
        actions.append(_event(lws, "CreatingRevision", text + new))
    actions += scheduling.actions
    if scheduling.is_blocked:
        return ReconcilePlan(actions)
    actions += _plan_leader_set(state, revisions, step, scheduling=scheduling)
    if not has_own_subdomain(lws) and lws.metadata.name not in state.services:
        actions.append(Create(SERVICE, build_service(lws, None)))
    planner = _ReplicaPlanner(state, revisions, step, scheduling=scheduling)
    for _, leader in sorted(state.leaders.items()):
        actions += planner.plan(leader)
    complete = {
        index: group
        for index, group in groups.items()
        if group_size(lws) == 1 or state.leaders[index].metadata.name in state.worker_sets
    }
    count = leader_set.status.replicas if leader_set else 0
    status = plan_status(lws, complete, count, fallback=scheduling.fallback, now=state.now)
    actions += status.actions
    actions += scheduling.cleanup
    if status.is_update_done:
        actions += plan_revision_cleanup(state.history, revisions.key)
    return ReconcilePlan(actions, _NODE_RETRY_SECONDS if planner.waits_for_node else None)


def _event(lws: LeaderWorkerSet, reason: str, message: str) -> RecordEvent:
    return RecordEvent(ObjectEvent(LEADER_WORKER_SET, lws.metadata, reason, message))


# ---- adoption ------------------------------------------------------------------------------------


def _explain_foreign_leader_set(lws: LeaderWorkerSet, leader_set: StatefulSet | None) -> str:
    """Say why the StatefulSet with the name of the set cannot be its own; "" if it can."""
    if leader_set is None or leader_set.metadata.is_controlled_by(lws.metadata.uid):
        return ""
    meta, spec = leader_set.metadata, leader_set.spec
    if (owner := meta.controller) is not None:
        cause = f"it belongs to {owner.kind} {owner.name} (uid {owner.uid})"
    elif meta.deletion_timestamp:
        cause = "it is being deleted"
    else:
        labels = {WORKER_INDEX_LABEL: LEADER_INDEX, NAME_LABEL: lws.metadata.name}
        wanted = ({"matchLabels": labels}, "Parallel")
        if (spec.selector, spec.pod_management_policy) == wanted:
            return ""
        cause = "its selector or podManagementPolicy differs, and cannot be changed; delete it"
    return f"The StatefulSet {meta.name} cannot be used for the leaders: {cause}"


def _plan_adoption(state: LeaderWorkerSetState, reference: Object) -> list[Action]:
    """Plan: become the controller of orphans, as a server-side apply of them would.

    The Workload is the exception: its name follows from the uid of the former set.
    """
    actions: list[Action] = []
    for kind, meta in state.orphans:
        if kind is WORKLOAD:
            actions.append(Delete(kind, meta.key, meta.uid))
            continue
        owners = [*map(msgspec.to_builtins, meta.owner_references), reference]
        precondition = {"uid": meta.uid, "resourceVersion": meta.resource_version}
        change = {"metadata": {**precondition, "ownerReferences": owners}}
        actions.append(Patch(kind, meta.key, change))
    names = ", ".join(f"{kind.name} {meta.name}" for kind, meta in state.orphans)
    actions.append(_event(state.lws, "Adopted", f"Adopted the objects of a former set: {names}"))
    return actions


# ---- the StatefulSet of the leaders --------------------------------------------------------------


def _group_state(state: LeaderWorkerSetState, leader: Pod, revisions: LwsRevisions) -> GroupState:
    """Whether the leader and its workers are ready, and have the newest template."""
    key, meta = revisions.key, leader.metadata
    is_ready = leader.status.phase == "Running" and leader.is_ready and not meta.deletion_timestamp
    is_updated = revision_key(meta) == key
    own = revisions.sets.get(revision_key(meta), state.lws)
    if group_size(own) == 1:
        return GroupState(is_ready, is_updated)
    workers = state.worker_sets.get(meta.name)
    if workers is None:
        return GroupState()
    # The workers of a former leader of this name are not ready, but need no update.
    is_own = workers.metadata.is_controlled_by(meta.uid)
    is_ready = is_ready and is_own and workers.status.ready_replicas == workers.spec.replicas
    return GroupState(is_ready, is_updated and revision_key(workers.metadata) == key)


def _plan_step(
    state: LeaderWorkerSetState, revisions: LwsRevisions, groups: Mapping[int, GroupState]
) -> RolloutStep:
    lws, leader_set, leaders = state.lws, state.leader_set, None
    if leader_set is not None:
        leaders = LeaderSetState(
            leader_set.spec.replicas,
            leader_set.spec.update_strategy.rolling_update.partition,
            wanted_replicas=_wanted_replicas(lws, leader_set),
            is_current=revision_key(leader_set.metadata) == revisions.key,
        )
    total = leaders.replicas if leaders else 0
    states = [groups.get(index, GroupState()) for index in range(total)]
    config = lws.spec.rollout_strategy.rolling_update_configuration
    return plan_rollout(lws.spec.replicas, config, leaders, groups=states)


def _wanted_replicas(lws: LeaderWorkerSet, leader_set: StatefulSet) -> int:
    """The replicas without surge for which the StatefulSet was last made."""
    text = leader_set.metadata.annotations.get(REPLICAS_ANNOTATION, "")
    return int(text) if text.isdecimal() else lws.spec.replicas


def _plan_scheduling(
    state: LeaderWorkerSetState, revisions: LwsRevisions, step: RolloutStep
) -> SchedulingPlan:
    if state.scheduling is None:
        return SchedulingPlan([])
    leader_revisions = {
        index: revision_key(leader.metadata) for index, leader in state.leaders.items()
    }
    return plan_scheduling(
        state.lws, state.scheduling, revisions, step=step, leader_revisions=leader_revisions
    )


def _plan_leader_set(
    state: LeaderWorkerSetState,
    revisions: LwsRevisions,
    step: RolloutStep,
    *,
    scheduling: SchedulingPlan,
) -> Iterator[Action]:
    lws, leader_set = state.lws, state.leader_set
    built = build_leader_set(lws, revisions.key, step, workload=scheduling.prefix)
    if leader_set is None:
        yield Create(STATEFUL_SET, built)
        text = f"Created leader statefulset {lws.metadata.name}"
        yield _event(lws, "GroupsProgressing", text)
        return
    changes: list[Patch] = plan_leader_set_change(leader_set, built)
    yield from changes
    if not changes:
        return
    partition = leader_set.spec.update_strategy.rolling_update.partition
    if revision_key(leader_set.metadata) == revisions.key and partition != step.partition:
        text = f"Updating replicas {partition} to {step.partition}"
        yield _event(lws, "GroupsUpdating", text)
    # A set that is scaled down loses replicas too, but no surge.
    wanted = max(lws.spec.replicas, _wanted_replicas(lws, leader_set))
    if wanted <= step.replicas < leader_set.spec.replicas:
        text = f"deleting surge replica {lws.metadata.name}-{step.replicas}"
        yield _event(lws, "GroupsProgressing", text)


# ---- groups --------------------------------------------------------------------------------------


class _ReplicaPlanner:
    """Plans the objects of single replicas: Service, workers, restart."""

    def __init__(
        self,
        state: LeaderWorkerSetState,
        revisions: LwsRevisions,
        step: RolloutStep,
        *,
        scheduling: SchedulingPlan,
    ) -> None:
        self._state, self._revisions = state, revisions
        self._step, self._scheduling = step, scheduling
        self._lws = state.lws
        #: Whether a leader has a node that is not known yet.
        self.waits_for_node = False

    def plan(self, leader: Pod) -> Iterator[Action]:
        """Plan the objects of a leader, or its deletion."""
        meta, state = leader.metadata, self._state
        if meta.deletion_timestamp:
            return  # Its workers are deleted with it; they are created for the next leader.
        if cause := self._find_restart_cause(leader):
            yield Delete(POD, meta.key, meta.uid, propagation="Foreground")
            index = meta.labels.get(GROUP_INDEX_LABEL, "")
            policy = self._lws.spec.leader_worker_template["restartPolicy"]
            text = f"deleted leader pod {meta.name} to recreate group {index}"
            yield _event(self._lws, policy, f"{cause}, {text}")
            return
        if self._is_stuck(leader):
            yield Delete(POD, meta.key, meta.uid, propagation="Foreground")
            return
        own = self._revisions.sets.get(revision_key(meta))
        if own is None:
            return
        if has_own_subdomain(own) and meta.name not in state.services:
            yield Create(SERVICE, build_service(own, leader))
        if group_size(own) > 1 and meta.name not in state.worker_sets:
            yield from self._create_workers(own, leader)

    def _create_workers(self, own: LeaderWorkerSet, leader: Pod) -> Iterator[Action]:
        if own.spec.startup_policy == LEADER_READY and not leader.is_ready:
            return
        selector: dict[str, str] = {}
        topology = self._lws.metadata.annotations.get(EXCLUSIVE_TOPOLOGY_ANNOTATION)
        if topology and not self._scheduling.is_gang:
            # Pods that are not placed together follow the leader into its domain.
            node = self._state.nodes.get(leader.spec.node_name)
            domain = node.metadata.labels.get(topology) if node else None
            if domain is None:
                self.waits_for_node = bool(leader.spec.node_name)
                return
            selector = {topology: domain}
        prefix = self._scheduling.prefix
        built = build_worker_set(own, leader, workload=prefix, node_selector=selector)
        yield Create(STATEFUL_SET, built)
        text = f"Created worker statefulset for leader pod {leader.metadata.name}"
        yield _event(self._lws, "GroupsProgressing", text)

    def _find_restart_cause(self, leader: Pod) -> str:
        """The pod for which the policy restarts the group, and why; "" if there is none."""
        policy = self._lws.spec.leader_worker_template.get("restartPolicy")
        if policy not in (RECREATE_ON_RESTART, RECREATE_AFTER_START):
            return ""
        workers = self._state.own_workers(leader)
        pods = [leader, *workers]
        own = self._revisions.sets.get(revision_key(leader.metadata), self._lws)
        is_pending = len(pods) < group_size(own) or any(
            pod.status.phase == "Pending" for pod in pods
        )
        if policy == RECREATE_AFTER_START and is_pending:
            return ""
        for pod in pods:
            if what := _describe_failure(pod):
                role = "Leader" if pod is leader else "Worker"
                return f"{role} pod {pod.metadata.name} {what}"
        if policy == RECREATE_ON_RESTART and self._scheduling.is_gang:
            for pod in workers:
                if _was_replaced(pod, leader):
                    return f"Worker pod {pod.metadata.name} was replaced"
        return ""

    def _is_stuck(self, leader: Pod) -> bool:
        """Whether a group of an old template is not ready, and may be updated.

        The StatefulSet replaces old leaders only while others are available. A set whose groups
        are all unready, such as one that does not fit, could not be repaired by a new template.
        """
        state, meta = self._state, leader.metadata
        leader_set = state.leader_set
        if leader_set is None or revision_key(leader_set.metadata) != self._revisions.key:
            return False
        if leader_set.status.observed_generation < leader_set.metadata.generation:
            return False
        index = int(meta.labels.get(GROUP_INDEX_LABEL, "0"))
        partition = leader_set.spec.update_strategy.rolling_update.partition
        is_old = revision_key(meta) != self._revisions.key
        group = _group_state(state, leader, self._revisions)
        return is_old and index >= partition and not group.is_ready


def _describe_failure(pod: Pod) -> str:
    """Say that a pod is deleted or has failed, or a container of it did; "" if none of it."""
    status = pod.status
    if pod.metadata.deletion_timestamp and status.phase != "Failed":
        return "is being deleted"
    has_restarted = not pod.is_terminal and any(
        one.restart_count for one in (*status.init_container_statuses, *status.container_statuses)
    )
    return "failed" if status.phase == "Failed" or has_restarted else ""


def _was_replaced(worker: Pod, leader: Pod) -> bool:
    """Whether a worker of a gang was created after the gang was placed.

    The deletion of the worker before it may have been missed. All first pods of a gang exist before
    one of them has a node.
    """
    placed = find_condition(leader.status.conditions, "PodScheduled")
    if not leader.spec.node_name or placed is None or not placed.last_transition_time:
        return False
    created = worker.metadata.creation_timestamp
    return bool(created) and parse_timestamp(created) > parse_timestamp(placed.last_transition_time)
