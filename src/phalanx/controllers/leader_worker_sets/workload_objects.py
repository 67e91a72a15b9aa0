"""The scheduling objects of a LeaderWorkerSet: its Workload, and the groups of each replica.

    Workload ─▶ CompositePodGroups ─▶ PodGroups ─▶ StatefulSets

A replica has a group for each revision that its pods have: pods of the old template that still
terminate never count towards the quorum of the new ones, and groups of several sizes exist during
an update (`builder/ensure.py` plans one size per template, so groups are planned here). A group is
created before its pods and deleted when it has none left. A Workload of the user, found by its
`controllerRef`, takes precedence over the one that would be created, and is used unchanged.

Where no group is possible (the Workload is ambiguous or does not fit, leader and workers have
different priorities) the pods are scheduled one by one, and a condition says why.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from phalanx.api.errors import Invalid
from phalanx.api.kinds import (
    COMPOSITE_POD_GROUP,
    LEADER_WORKER_SET,
    POD_GROUP,
    WORKLOAD,
    Kind,
)
from phalanx.api.leader_worker_sets import GROUP_INDEX_LABEL, LeaderWorkerSet
from phalanx.api.meta import Key, ObjectMeta
from phalanx.api.scheduling import (
    MANAGED_BY_ANNOTATION,
    SYSTEM_PRIORITY_CLASSES,
    CompositePodGroup,
    PodGroup,
    Workload,
)
from phalanx.api.wire import Object
from phalanx.builder import leaderworkersets as lws_builder
from phalanx.builder.config import Gang
from phalanx.builder.discovery import (
    Fallback,
    ObjectFound,
    ObjectUnusable,
)
from phalanx.builder.ensure import find_own_workload, workload_object
from phalanx.builder.ownership import SCHEDULING_PARENTS, Link, ManageGroups, ManageNothing
from phalanx.controllers.leader_worker_sets.child_objects import contains_fields
from phalanx.controllers.leader_worker_sets.revisions import LwsRevisions, revision_key
from phalanx.controllers.leader_worker_sets.rollout import RolloutStep
from phalanx.controllers.reconcile_loop import Action, Create, Delete, Patch

#: The value of the managed-by annotation on objects that this controller creates.
MANAGER_NAME = "leaderworkerset-controller"
GroupObject = PodGroup | CompositePodGroup


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

    Nothing else may be created for the set while it `is_blocked`: a group that it needs is being
    deleted, and is created anew once that is gone.
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
    step: RolloutStep,
    *,
    leader_revisions: Mapping[int, str],
) -> SchedulingPlan:
    """Plan the Workload and the groups; `leader_revisions` are those of the leaders by index."""
    obj = lws_object(lws)
    management = lws_builder.decide_leader_worker_set_management(obj, state.scheduling_parents)
    if isinstance(management, ManageNothing):
        return SchedulingPlan([])
    link = management.link if isinstance(management, ManageGroups) else None
    planner = _GroupPlanner(lws, state, revisions, link)
    try:
        if link is None:
            workload = planner.choose_workload(obj)
            built = lws_builder.build_workload(obj)
        else:
            workload, built = _choose_parent_workload(state.parent_workloads), None
        _check_priority(obj)
        actions = planner.plan_workload(workload, built)
        wanted = _wanted_groups(state, revisions, step, leader_revisions)
        actions += planner.plan_groups(workload, wanted)
    except _UnusableWorkload as error:
        return SchedulingPlan([], fallback=error.fallback)
    except Invalid as error:
        return SchedulingPlan([], fallback=Fallback("InvalidScheduling", str(error)))
    root = lws_builder.build_item(obj).resolve().policy
    return SchedulingPlan(
        actions,
        lws_builder.group_prefix(obj),
        is_gang=isinstance(root, Gang),
        cleanup=[*planner.plan_cleanup(step), *planner.plan_redundant(workload)],
        is_blocked=planner.is_blocked,
    )


class _UnusableWorkload(Exception):
    """The Workload of the user or of the parent cannot be used."""

    def __init__(self, fallback: Fallback) -> None:
        super().__init__(fallback.message)
        self.fallback = fallback


def _is_owned(lws: LeaderWorkerSet, meta: ObjectMeta) -> bool:
    return meta.is_controlled_by(lws.metadata.uid)


def _choose_parent_workload(workloads: Sequence[Workload]) -> Workload:
    if len(workloads) != 1:
        found = "was not found" if not workloads else "is ambiguous"
        text = f"The Workload of its parent {found}"
        raise _UnusableWorkload(Fallback("ParentWorkloadNotFound", text))
    return workloads[0]


def _check_priority(obj: Object) -> None:
    name = lws_builder.build_item(obj).resolve().priority_class_name
    if name in SYSTEM_PRIORITY_CLASSES:
        text = f"A PodGroup cannot have the priority class {name}"
        raise _UnusableWorkload(Fallback("PriorityTooHigh", text))


def _wanted_groups(
    state: SchedulingObjectState,
    revisions: LwsRevisions,
    step: RolloutStep,
    leader_revisions: Mapping[int, str],
) -> dict[tuple[int, str], None]:
    """The replicas that need a group, each with its revision.

    The StatefulSet creates leaders from the partition on with the newest template. Below it, the
    pod itself shows which template it has.
    """
    first = step.partition if len(revisions.sets) > 1 else 0
    found = dict.fromkeys((index, revisions.key) for index in range(first, step.replicas))
    for index, revision in leader_revisions.items():
        if revision in revisions.sets:
            found[index, revision] = None
    return found


class _GroupPlanner:
    """Plans the scheduling objects of one sync."""

    def __init__(
        self,
        lws: LeaderWorkerSet,
        state: SchedulingObjectState,
        revisions: LwsRevisions,
        link: Link | None,
    ) -> None:
        self._lws, self._state, self._revisions, self._link = lws, state, revisions, link
        self.is_blocked = False

    def choose_workload(self, obj: Object) -> Workload | None:
        """Return the user's Workload, or the own one; None if there is none yet.

        The own one gives way to one of the user, unless groups refer to it already.
        """
        found = find_own_workload(obj, self._state.workloads)
        if isinstance(found, ObjectUnusable) and found.redundant is not None:
            if self._state.groups or self._state.composites:
                return found.redundant
            others = [one for one in self._state.workloads if one is not found.redundant]
            found = find_own_workload(obj, others)
        if isinstance(found, ObjectUnusable):
            raise _UnusableWorkload(found.fallback)
        return found.obj if isinstance(found, ObjectFound) else None

    def plan_workload(self, workload: Workload | None, built: Object | None) -> list[Action]:
        """Plan: create the Workload, or give the own one the present sizes."""
        if built is None:
            return []
        _mark_managed(built)
        if workload is None:
            return [Create(WORKLOAD, built, owner_uid=self._lws.metadata.uid)]
        meta = workload.metadata
        if not _is_owned(self._lws, meta) or contains_fields(
            _encode_templates(workload), _template_fields(built)
        ):
            return []
        if meta.deletion_timestamp:
            self.is_blocked = True
            return []
        if _without_counts(_template_fields(built)) == _without_counts(
            _reduce(_encode_templates(workload), _template_fields(built))
        ):
            change = {"metadata": {"uid": meta.uid}, "spec": _template_fields(built)}
            return [Patch(WORKLOAD, meta.key, change)]
        # Only sizes can change: another priority or topology needs a new Workload.
        self.is_blocked = True
        return [Delete(WORKLOAD, meta.key, meta.uid)]

    def plan_groups(
        self, workload: Workload | None, wanted: Collection[tuple[int, str]]
    ) -> list[Action]:
        """Plan: create the groups that are missing."""
        existing: dict[tuple[Kind, str], GroupObject] = {
            **{(POD_GROUP, one.metadata.name): one for one in self._state.groups},
            **{(COMPOSITE_POD_GROUP, one.metadata.name): one for one in self._state.composites},
        }
        actions: list[Action] = []
        for index, revision in sorted(wanted):
            for group in self._build_groups(workload, index, revision):
                kind = POD_GROUP if group["kind"] == POD_GROUP.name else COMPOSITE_POD_GROUP
                found = existing.get((kind, group["metadata"]["name"]))
                if found is None:
                    actions.append(Create(kind, group, owner_uid=self._lws.metadata.uid))
                elif found.metadata.deletion_timestamp:
                    self.is_blocked = True
        return actions

    def _build_groups(
        self, workload: Workload | None, index: int, revision: str
    ) -> Iterator[Object]:
        obj = lws_object(self._revisions.sets[revision])
        if workload is None or _is_owned(self._lws, workload.metadata):
            # With the sizes of the revision, which may differ from the present ones.
            source = lws_builder.build_workload(obj)
            if workload is not None:
                source["metadata"]["uid"] = workload.metadata.uid
        else:
            source = workload_object(workload)
        for group in lws_builder.build_replica_groups(
            obj, source, index, revision=revision, link=self._link
        ):
            _mark_managed(group)
            spec = group["spec"]
            policy = self._state.preemption_policy(spec.get("priorityClassName", ""))
            if policy and "preemptionPolicy" not in spec:
                spec["preemptionPolicy"] = policy
            yield group

    def plan_cleanup(self, step: RolloutStep) -> list[Action]:
        """Plan: delete groups without pods of replicas or revisions that are gone."""
        state = self._state
        kept = {
            one.spec.parent_composite_pod_group_name
            for one in state.groups
            if one.metadata.key in state.used
        }
        unused: list[tuple[Kind, GroupObject]] = [
            *((POD_GROUP, one) for one in state.groups if one.metadata.key not in state.used),
            *(
                (COMPOSITE_POD_GROUP, one)
                for one in state.composites
                if one.metadata.name not in kept
            ),
        ]
        return [
            Delete(kind, group.metadata.key, group.metadata.uid)
            for kind, group in unused
            if self._is_obsolete(group, step)
        ]

    def plan_redundant(self, chosen: Workload | None) -> list[Action]:
        """Plan: delete the own Workload if the user has made one, once no group refers to it."""
        groups: list[GroupObject] = [*self._state.groups, *self._state.composites]
        used = {one.spec.workload_ref.workload_name for one in groups if one.spec.workload_ref}
        return [
            Delete(WORKLOAD, one.metadata.key, one.metadata.uid)
            for one in self._state.workloads
            if one is not chosen
            and _is_owned(self._lws, one.metadata)
            and one.metadata.name not in used
            and not one.metadata.deletion_timestamp
        ]

    def _is_obsolete(self, group: GroupObject, step: RolloutStep) -> bool:
        meta = group.metadata
        if meta.deletion_timestamp:
            return False
        index, revision = int(meta.labels.get(GROUP_INDEX_LABEL, "0")), revision_key(meta)
        if index >= step.replicas or revision not in self._revisions.sets:
            return True
        # An adopted group of a former set: new pods name the groups of this one.
        if not meta.name.startswith(f"{lws_builder.group_prefix(lws_object(self._lws))}-"):
            return True
        # Below the partition the StatefulSet may create pods of any revision again.
        return revision != self._revisions.key and index >= step.partition


def _mark_managed(obj: Object) -> None:
    obj["metadata"].setdefault("annotations", {})[MANAGED_BY_ANNOTATION] = MANAGER_NAME


# ---- templates of Workloads ----------------------------------------------------------------------

_TEMPLATE_LISTS = ("podGroupTemplates", "compositePodGroupTemplates")
_COUNTS = ("minCount", "minGroupCount")


def _template_fields(workload: Object) -> Object:
    return {field: value for field, value in workload["spec"].items() if field in _TEMPLATE_LISTS}


def _encode_templates(workload: Workload) -> Object:
    spec = workload.spec
    lists = (spec.pod_group_templates, spec.composite_pod_group_templates)
    return {
        field: list(value) for field, value in zip(_TEMPLATE_LISTS, lists, strict=True) if value
    }


def _without_counts(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_counts(inner) for key, inner in value.items() if key not in _COUNTS}
    return [_without_counts(one) for one in value] if isinstance(value, list | tuple) else value


def _reduce(stored: Any, wanted: Any) -> Any:
    """The stored value without the fields that only the server has set."""
    if isinstance(stored, dict) and isinstance(wanted, dict):
        return {key: _reduce(value, wanted[key]) for key, value in stored.items() if key in wanted}
    if isinstance(stored, list | tuple) and isinstance(wanted, list | tuple):
        pairs = zip(stored, wanted, strict=False)
        return [_reduce(one, other) for one, other in pairs] + list(stored[len(wanted) :])
    return stored
