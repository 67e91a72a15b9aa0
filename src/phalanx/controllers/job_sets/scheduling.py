"""The groups of a JobSet: what `phalanx.builder` plans, and which group each Job names.

Each attempt has groups of its own: after a restart the gang is placed as a whole again, and pods of
the attempt before, which may still be terminating, never count towards its quorum. The groups of
the attempt before are deleted; their finalizer keeps them until their pods are gone.

    JobSet                               groups
    a root                               a CompositePodGroup, a PodGroup for each replicated Job
    linked to a composite template       the groups below it, by the names of the replicated Jobs
    linked to a template of pods         one PodGroup for all pods
      in both cases                      Jobs carry the link to the template of their pods
    its pods name a group already, or    none: pods are scheduled as their templates say
      another controller manages them
    no tree is possible                  none, and a condition says why
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import msgspec

from phalanx.api.batch import COMPLETE, Job
from phalanx.api.errors import Invalid, join_causes
from phalanx.api.job_sets import COMPLETED, JobSet, ReplicatedJobSpec, job_set_object
from phalanx.api.meta import OwnerReference
from phalanx.api.scheduling import (
    FINISHED_ANNOTATION,
    MEMBERS_TO_RUN_ANNOTATION,
    ON_DEGRADED_ANNOTATION,
    TOPOLOGY_ANNOTATION,
    PodGroup,
)
from phalanx.api.wire import Object
from phalanx.builder import jobsets as job_set_builder
from phalanx.builder.discovery import Fallback, ObjectFound
from phalanx.builder.ensure import (
    ensure_linked,
    find_linked_workload,
    kind_of_group,
    list_linked_templates,
    plan_deletion,
)
from phalanx.builder.ensure_plan import (
    EnsurePlan,
    GroupInstance,
    ObjectOperation,
    ObservedObjects,
    PatchObject,
)
from phalanx.builder.jobsets import ReplicatedJob, grouped_replicated_jobs
from phalanx.builder.ownership import (
    SCHEDULING_PARENTS,
    Link,
    ManageBoth,
    ManageGroups,
    ManageNothing,
)
from phalanx.builder.workload_item import WorkloadItem
from phalanx.controllers.job_sets.child_jobs import ChildJobs, job_index, pod_count

#: The value of the managed-by annotation on objects that this controller creates.
MANAGER_NAME = "jobset-controller"
#: The annotations of a JobSet that its PodGroups get.
_COPIED_ANNOTATIONS = (TOPOLOGY_ANNOTATION, ON_DEGRADED_ANNOTATION)


@dataclass(frozen=True, slots=True)
class JobSetGroups:
    """The operations on groups that are due; once `is_ready`, the groups that Jobs name."""

    is_ready: bool = True
    operations: tuple[ObjectOperation, ...] = ()
    fallback: Fallback | None = None
    #: Names by replicated Job and index of the Job; -1 for all Jobs of a replicated Job.
    names: Mapping[tuple[str, int], str] = field(default_factory=dict)
    #: The template in the Workload of a parent, by replicated Job.
    links: Mapping[str, Link] = field(default_factory=dict)

    def name_for(self, role: str, index: int) -> str:
        """Return the group of the pods of a Job; "" for none."""
        return self.names.get((role, index)) or self.names.get((role, -1), "")


@dataclass(frozen=True, slots=True)
class JobSetTree:
    """What the builder reads of a JobSet: its fields, its replicated Jobs in groups, its items."""

    encoded: Object
    grouped: list[ReplicatedJob]
    root: WorkloadItem

    @classmethod
    def build(cls, job_set: JobSet) -> JobSetTree:
        """Build the tree of a JobSet."""
        encoded = job_set_object(job_set)
        grouped = grouped_replicated_jobs(encoded)
        return cls(encoded, grouped, job_set_builder.build_item(encoded))


#: Trees that are kept; a JobSet is synced several times while its objects are created.
MAX_KEPT_TREES = 256


class JobSetTrees:
    """The trees of JobSets, each built once until a field that it depends on changes."""

    def __init__(self) -> None:
        self._kept: dict[str, tuple[tuple[object, ...], JobSetTree]] = {}

    def get(self, job_set: JobSet) -> JobSetTree:
        """Return the tree of a JobSet."""
        meta = job_set.metadata
        version = meta.generation, meta.annotations, meta.owner_references
        kept = self._kept.get(meta.uid)
        if kept is not None and kept[0] == version:
            return kept[1]
        tree = JobSetTree.build(job_set)
        self._kept[meta.uid] = version, tree
        if len(self._kept) > MAX_KEPT_TREES:
            del self._kept[next(iter(self._kept))]
        return tree


def plan_groups(
    job_set: JobSet,
    jobs: ChildJobs,
    observed: ObservedObjects,
    *,
    tree: JobSetTree,
    ancestors: Sequence[OwnerReference] = (),
    parents: Collection[tuple[str, str]] = SCHEDULING_PARENTS,
) -> JobSetGroups:
    """Plan the Workload and the groups of a JobSet that has not ended, by its `tree`.

    `ancestors` are the controllers above its own, whose Workload a link may name. `parents` are the
    kinds whose controllers manage the scheduling of their children.
    """
    match job_set_builder.decide_job_set_management(tree.encoded, parents):
        case ManageGroups(link):
            above = [msgspec.to_builtins(one) for one in ancestors]
            return _plan_linked_groups(job_set, jobs, observed, link=link, ancestors=above)
        case ManageNothing(reason):
            fallback = None if tree.grouped else Fallback("NoGang", _sentence(reason))
            return JobSetGroups(fallback=fallback)
        case ManageBoth():
            pass
    wanted = _wanted_groups(job_set, jobs, tree.grouped)
    try:
        plan = job_set_builder.ensure(
            tree.encoded,
            observed,
            list(wanted.values()),
            manager=MANAGER_NAME,
            is_started=bool(jobs.current or jobs.previous),
            root=tree.root,
        )
    except Invalid as error:
        text = f"Its replicated Jobs cannot share a Workload: {join_causes(error.causes)}"
        return JobSetGroups(fallback=Fallback("NoCommonWorkload", text))
    return _to_groups(plan, wanted)


def _plan_linked_groups(
    job_set: JobSet,
    jobs: ChildJobs,
    observed: ObservedObjects,
    *,
    link: Link,
    ancestors: Sequence[Object],
) -> JobSetGroups:
    """Plan the groups in the Workload of a parent: by replicated Job, or one for all."""
    encoded, roles = job_set_object(job_set), job_set.spec.replicated_jobs
    found = find_linked_workload(encoded, link, observed, ancestors=ancestors)
    known = list_linked_templates(found.obj, link) if isinstance(found, ObjectFound) else []
    shared = known[0] if len(known) == 1 else ""
    by_role = {role.name: role.name if role.name in known else shared for role in roles}
    wanted = {
        (name, -1): _wanted_group(
            job_set, jobs, template, roles=[one for one in roles if by_role[one.name] == template]
        )
        for name, template in by_role.items()
    }
    missing = [name for name, template in by_role.items() if not template]
    if known and missing:
        text = f'The template "{link.template}" has none below it for {", ".join(missing)}'
        return JobSetGroups(fallback=Fallback("TemplateNotFound", text))
    plan = ensure_linked(
        encoded,
        link,
        observed,
        groups=list({one.key: one for one in wanted.values()}.values()) if known else None,
        ancestors=ancestors,
        manager=MANAGER_NAME,
        is_started=bool(jobs.current or jobs.previous),
    )
    groups = _to_groups(plan, wanted)
    links: dict[str, Link] = {}
    for (name, _), one in wanted.items():
        # The link for the Jobs whose pods are in the group: its template, the composite above it.
        group = plan.groups.get(one.key)
        parent = group.spec.parent_composite_pod_group_name if group else ""
        links[name] = Link(one.template, parent)
    return replace(groups, links=links)


def plan_ended_groups(job_set: JobSet, observed: ObservedObjects) -> list[ObjectOperation]:
    """Annotate the groups of a JobSet that has ended; delete them if they hold devices."""
    end = job_set.end_condition
    if end is None:
        return []
    if any(_claims_devices(role) for role in job_set.spec.replicated_jobs):
        return plan_deletion(job_set_object(job_set), observed, keep_workload=True)
    text = COMPLETE if end.type == COMPLETED else f"{end.type}: {end.reason}"
    operations: list[ObjectOperation] = []
    for group in observed.all_groups:
        meta, desired = group.metadata, dict[str, str | None]({MEMBERS_TO_RUN_ANNOTATION: None})
        if isinstance(group, PodGroup):
            desired[FINISHED_ANNOTATION] = text
        change = {
            name: value for name, value in desired.items() if meta.annotations.get(name) != value
        }
        is_ours = meta.is_controlled_by(job_set.metadata.uid) and not meta.deletion_timestamp
        if change and is_ours:
            patch = {"metadata": {"annotations": change}}
            operations.append(PatchObject(kind_of_group(group), meta, patch))
    return operations


def _claims_devices(role: ReplicatedJobSpec) -> bool:
    """Whether pods of a role use resource claims, which a PodGroup keeps while it exists."""
    spec = (role.template.get("spec") or {}).get("template", {}).get("spec") or {}
    return bool(spec.get("resourceClaims"))


def _to_groups(plan: EnsurePlan, wanted: Mapping[tuple[str, int], GroupInstance]) -> JobSetGroups:
    names = {
        place: plan.group_name(one.template, one.instance)
        for place, one in wanted.items()
        if one.key in plan.groups
    }
    return JobSetGroups(plan.is_ready, plan.operations, plan.fallback, names)


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def _wanted_groups(
    job_set: JobSet, jobs: ChildJobs, grouped: list[ReplicatedJob]
) -> dict[tuple[str, int], GroupInstance]:
    """The wanted groups by replicated Job and index of the Job; -1 for all Jobs."""
    roles = {role.name: role for role in job_set.spec.replicated_jobs}
    return {
        (one.name, index): _wanted_group(
            job_set, jobs, one.name, roles=[roles[one.name]], index=index
        )
        for one in grouped
        for index in (range(roles[one.name].replicas) if one.exclusive_key else (-1,))
    }


def _wanted_group(
    job_set: JobSet,
    jobs: ChildJobs,
    template: str,
    *,
    roles: Sequence[ReplicatedJobSpec],
    index: int = -1,
) -> GroupInstance:
    """The group of all Jobs of replicated Jobs, or of one Job, in the present attempt."""
    attempt = str(job_set.status.restarts) if job_set.status.restarts else ""
    given = job_set.metadata.annotations
    members = {
        role.name: [job for job in jobs.of_role(role.name) if index in (-1, job_index(job))]
        for role in roles
    }

    def count_members(group: str) -> int:
        return sum(_members_to_run(role, members[role.name], index) for role in roles)

    return GroupInstance(
        template,
        attempt if index == -1 else f"{attempt or 0}-{index}",
        parent_instance=attempt,
        pod_groups=frozenset(_group_of(job) for some in members.values() for job in some),
        members_to_run=count_members,
        annotations={name: given[name] for name in _COPIED_ANNOTATIONS if given.get(name)},
    )


def _group_of(job: Job) -> str:
    spec = job.spec.template.get("spec") or {}
    name: str = (spec.get("schedulingGroup") or {}).get("podGroupName", "")
    return name


def _members_to_run(role: ReplicatedJobSpec, jobs: Sequence[Job], index: int) -> int:
    """Count the pods that are still to run of a replicated Job, or of one Job."""
    spec = role.template.get("spec") or {}
    parallelism: int = spec.get("parallelism", 1)
    missing = (role.replicas if index == -1 else 1) - len(jobs)
    each: int = min(parallelism, spec.get("completions", parallelism))
    return missing * each + sum(map(_pods_to_run, jobs))


def _pods_to_run(job: Job) -> int:
    if job.is_finished:
        return 0
    if job.spec.completions is None:
        return job.status.active if job.status.succeeded else job.spec.parallelism
    return max(min(pod_count(job), job.spec.completions - job.status.succeeded), 0)
