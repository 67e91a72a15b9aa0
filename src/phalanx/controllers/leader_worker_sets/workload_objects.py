"""The scheduling objects of a LeaderWorkerSet: its Workload, and the groups of each replica.

    Workload ─▶ CompositePodGroups ─▶ PodGroups ─▶ StatefulSets

`phalanx.builder` plans them; this module says which groups are wanted, and which stay. A replica
has a group for each revision that its pods have: pods of the old template that still terminate
never count towards the quorum of the new ones, and groups of several sizes exist during an update.
A group is created before its pods and deleted when it has none left. A Workload of the user, found
by its `controllerRef`, takes precedence over the one that would be created, and is used unchanged.

Where no group is possible (the Workload is ambiguous or does not fit, leader and workers have
different priorities) the pods are scheduled one by one, and a condition says why.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

from phalanx.api.errors import Invalid
from phalanx.api.kinds import LEADER_WORKER_SET, WORKLOAD
from phalanx.api.leader_worker_sets import GROUP_INDEX_LABEL, LeaderWorkerSet
from phalanx.api.meta import Key
from phalanx.api.scheduling import CompositePodGroup, PodGroup, Workload
from phalanx.api.wire import Object
from phalanx.builder import leaderworkersets as lws_builder
from phalanx.builder.config import Gang
from phalanx.builder.discovery import Fallback, ObjectFound, ObjectUnusable
from phalanx.builder.ensure import (
    ensure_linked,
    find_linked_workload,
    find_own_workload,
    kind_of_group,
    workload_object,
)
from phalanx.builder.ensure_plan import (
    CreateObject,
    DeleteObject,
    EnsurePlan,
    Group,
    ObjectOperation,
    ObservedObjects,
)
from phalanx.builder.ownership import SCHEDULING_PARENTS, Link, ManageGroups, ManageNothing
from phalanx.controllers.leader_worker_sets.revisions import LwsRevisions, revision_key
from phalanx.controllers.leader_worker_sets.rollout import RolloutStep
from phalanx.controllers.reconcile_loop import Action
from phalanx.controllers.workload_operations import to_actions

#: The value of the managed-by annotation on objects that this controller creates.
MANAGER_NAME = "leaderworkerset-controller"


class SchedulingObjectState(NamedTuple):
    """What the plan reads: Workloads that refer to the set or its owner, and the set's groups.

    `used` has the PodGroups that pods refer to. `preemption_policy` returns the policy of a
    priority class by name, "" for the default class.
    """

    workloads: Sequence[Workload]
    parent_workloads: Sequence[Workload]
    groups: Sequence[PodGroup]
    composites: Sequence[CompositePodGroup]
    used: Collection[Key]
    preemption_policy: Callable[[str], str]
    #: The kinds whose controllers manage the scheduling of their children.
    scheduling_parents: Collection[tuple[str, str]] = SCHEDULING_PARENTS


class SchedulingPlan(NamedTuple):
    """What to create, the prefix of the names of groups ("" for no groups), what to delete.

    Nothing else may be created for the set while it `is_blocked`: the caches do not show all of its
    groups yet, or one that it needs is being deleted, and is created anew once that is gone.
    """

    actions: list[Action]
    prefix: str = ""
    is_gang: bool = False
    cleanup: Sequence[Action] = ()
    fallback: Fallback | None = None
    is_blocked: bool = False


def lws_object(lws: LeaderWorkerSet) -> Object:
    """Encode the fields of a LeaderWorkerSet that the builder reads."""
    meta, spec = lws.metadata, lws.spec
    optional = {"scheduling": spec.scheduling, "networkConfig": spec.network_config}
    owners = [
        {"apiVersion": one.api_version, "kind": one.kind, "name": one.name, "uid": one.uid}
        | ({"controller": True} if one.controller else {})
        for one in meta.owner_references
    ]
    return {
        "apiVersion": LEADER_WORKER_SET.api_version,
        "kind": LEADER_WORKER_SET.name,
        "metadata": {
            "name": meta.name,
            "namespace": meta.namespace,
            "uid": meta.uid,
            "annotations": meta.annotations,
            "ownerReferences": owners,
        },
        "spec": {
            "replicas": spec.replicas,
            "startupPolicy": spec.startup_policy,
            "leaderWorkerTemplate": spec.leader_worker_template,
            **{field: value for field, value in optional.items() if value is not None},
        },
    }


def plan_scheduling(
    lws: LeaderWorkerSet,
    state: SchedulingObjectState,
    revisions: LwsRevisions,
    *,
    step: RolloutStep,
    leader_revisions: Mapping[int, str],
) -> SchedulingPlan:
    """Plan the Workload and the groups; `leader_revisions` are those of the leaders by index."""
    obj = lws_object(lws)
    management = lws_builder.decide_leader_worker_set_management(obj, state.scheduling_parents)
    if isinstance(management, ManageNothing):
        return SchedulingPlan([])
    link = management.link if isinstance(management, ManageGroups) else None
    observed = _observe(obj, state)
    replicas = _wanted_replicas(revisions, step, leader_revisions)
    with_pods = [one for one in state.groups if one.metadata.key in state.used]
    parents = (one.spec.parent_composite_pod_group_name for one in with_pods)
    used = {*(one.metadata.name for one in with_pods), *parents}
    groups: list[Group] = [*state.groups, *state.composites]
    kept = used | {one.metadata.name for one in groups if _may_get_pods(one, revisions, step)}
    try:
        plan = _ensure(obj, observed, revisions, replicas=replicas, kept=kept, link=link)
        root = lws_builder.build_item(obj).resolve().policy
    except Invalid as error:
        return SchedulingPlan([], fallback=Fallback("InvalidScheduling", str(error)))
    operations = [_with_preemption_policy(one, state) for one in plan.operations]
    actions = to_actions(operations, lws.metadata.uid)
    if plan.fallback is not None:
        return SchedulingPlan(actions, fallback=plan.fallback, is_blocked=not plan.is_ready)
    return SchedulingPlan(
        actions,
        lws_builder.group_prefix(obj),
        is_gang=isinstance(root, Gang),
        cleanup=to_actions(_delete_adopted(plan, observed, used), lws.metadata.uid),
        is_blocked=not plan.is_ready,
    )


def _observe(obj: Object, state: SchedulingObjectState) -> ObservedObjects:
    """What the plan considers: without Workloads of the user once the own one has groups.

    Pods cannot join other groups, so the own Workload gives way only while it has none.
    """
    workloads = state.workloads
    found = find_own_workload(obj, workloads)
    has_groups = state.groups or state.composites
    if isinstance(found, ObjectUnusable) and found.redundant is not None and has_groups:
        workloads = [found.redundant]
    return ObservedObjects([*workloads, *state.parent_workloads], state.groups, state.composites)


def _ensure(
    obj: Object,
    observed: ObservedObjects,
    revisions: LwsRevisions,
    *,
    replicas: Collection[tuple[int, str]],
    kept: Collection[str],
    link: Link | None,
) -> EnsurePlan:
    """Plan the groups of replicas, each with its revision, in the Workload of the set or parent."""
    if link is None:
        found = find_own_workload(obj, observed.workloads)
    else:
        found = find_linked_workload(obj, link, observed)
    workload = None
    if isinstance(found, ObjectFound) and (link or not found.is_owned):
        workload = workload_object(found.obj)
    if link and workload is None:
        return ensure_linked(obj, link, observed, manager=MANAGER_NAME)
    groups = [
        group
        for index, revision in sorted(replicas)
        for group in lws_builder.list_replica_groups(
            lws_object(revisions.sets[revision]), workload, index, revision=revision, link=link
        )
    ]
    if link is None:
        return lws_builder.ensure(obj, observed, groups, manager=MANAGER_NAME, kept=kept)
    return ensure_linked(obj, link, observed, groups=groups, manager=MANAGER_NAME, kept=kept)


def _wanted_replicas(
    revisions: LwsRevisions, step: RolloutStep, leader_revisions: Mapping[int, str]
) -> set[tuple[int, str]]:
    """The replicas that need a group, each with its revision.

    The StatefulSet creates leaders from the partition on with the newest template. Below it, the
    pod itself shows which template it has.
    """
    first = step.partition if len(revisions.sets) > 1 else 0
    found = {(index, revisions.key) for index in range(first, step.replicas)}
    return found | {
        (index, revision)
        for index, revision in leader_revisions.items()
        if revision in revisions.sets
    }


def _may_get_pods(group: Group, revisions: LwsRevisions, step: RolloutStep) -> bool:
    """Whether the replica and the revision of a group still exist."""
    meta = group.metadata
    index, revision = int(meta.labels.get(GROUP_INDEX_LABEL, "0")), revision_key(meta)
    if index >= step.replicas or revision not in revisions.sets:
        return False
    # Below the partition the StatefulSet may create pods of any revision again.
    return revision == revisions.key or index < step.partition


def _delete_adopted(
    plan: EnsurePlan, observed: ObservedObjects, used: Collection[str]
) -> Iterator[ObjectOperation]:
    """Delete groups that were adopted from a former set once they have no pods.

    They refer to the Workload of that set, and new pods name the groups of this one.
    """
    own = plan.workload.obj.metadata.name if plan.workload else ""
    for group in observed.all_groups:
        meta, ref = group.metadata, group.spec.workload_ref
        is_adopted = ref is not None and ref.workload_name != own
        if is_adopted and meta.name not in used and not meta.deletion_timestamp:
            yield DeleteObject(kind_of_group(group), meta)


def _with_preemption_policy(
    operation: ObjectOperation, state: SchedulingObjectState
) -> ObjectOperation:
    """Give a new group the preemption policy of its priority class."""
    if isinstance(operation, CreateObject) and operation.kind is not WORKLOAD:
        spec = operation.obj["spec"]
        policy = state.preemption_policy(spec.get("priorityClassName", ""))
        if policy:
            spec.setdefault("preemptionPolicy", policy)
    return operation
