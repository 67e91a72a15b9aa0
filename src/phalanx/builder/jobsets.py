"""A JobSet as a workload: a CompositePodGroup with a PodGroup for each replicated Job.

Users configure a replicated Job in its own template (`template.spec.scheduling`) or in the list
`spec.scheduling.replicatedJobPolicies` of the JobSet; both give the same tree. A size in the
template is the size of each Job, a size in the list that of all Jobs together. Replicated Jobs
whose template says NoGang are in no group.

By default a JobSet is a gang of gangs: all Jobs start together, or none. If its Jobs start one
after the other (`InOrder`, `dependsOn`), and so cannot wait for each other, the root is Basic and
each replicated Job is a gang of its own. If the JobSet says Basic, the default is Basic down to the
pods.

With exclusive placement (annotation `exclusive-topology`) each Job is a group of its own, in one
domain of the topology.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from phalanx.api.errors import Cause, invalid, required
from phalanx.api.job_sets import EXCLUSIVE_TOPOLOGY, NODE_SELECTOR_STRATEGY
from phalanx.api.validation.job_set_policies import (
    has_sequential_startup,
    job_spec,
    pod_template,
    replicated_jobs,
)
from phalanx.api.wire import Object
from phalanx.builder import jobs
from phalanx.builder.builder import WorkloadBuilder, invalid_workload
from phalanx.builder.config import (
    All,
    Basic,
    Gang,
    Intent,
    PodTemplate,
    SchedulingConfig,
    Single,
    read_intent,
)
from phalanx.builder.discovery import ObjectMissing
from phalanx.builder.ensure import find_own_workload
from phalanx.builder.ensure_plan import EnsurePlan, GroupInstance, ObservedObjects
from phalanx.builder.groups import new_groups
from phalanx.builder.names import free_name
from phalanx.builder.ownership import (
    SCHEDULING_PARENTS,
    Link,
    ManageBoth,
    Management,
    ManageNothing,
    controller_reference,
    decide_management,
    group_owner_references,
)
from phalanx.builder.workload_item import WorkloadItem, default_min_count

#: The options that a JobSet supports.
SUPPORTED = (Basic, Gang, Single, All)
_PATH = "spec.scheduling"
_NO_GROUPS = "none of its replicated Jobs is in a PodGroup"


@dataclass(frozen=True, slots=True)
class ReplicatedJob:
    """A replicated Job of a JobSet, and its path in the JobSet."""

    value: Object
    path: str
    #: The node label of whose value each Job has a domain to itself; "" without it.
    exclusive_key: str = ""

    @property
    def name(self) -> str:
        """The name, unique in the JobSet."""
        name: str = self.value.get("name", "")
        return name

    @property
    def replicas(self) -> int:
        """The number of Jobs."""
        replicas: int = self.value.get("replicas", 1)
        return replicas

    @property
    def pod_count(self) -> int:
        """The number of pods that run at the same time."""
        parallelism: int = job_spec(self.value).get("parallelism", 1)
        completions: int = job_spec(self.value).get("completions", parallelism)
        return self.replicas * min(parallelism, completions)

    @property
    def group_count(self) -> int:
        """The number of its PodGroups: one for each Job if they exclude each other."""
        return self.replicas if self.exclusive_key else min(self.pod_count, 1)

    @property
    def group_size(self) -> int:
        """The number of pods in a PodGroup that run at the same time."""
        return self.pod_count // max(self.replicas, 1) if self.exclusive_key else self.pod_count

    @property
    def pod_template(self) -> PodTemplate:
        """The template of the pods."""
        return PodTemplate(pod_template(self.value), f"{self.path}.template.spec.template")


def grouped_replicated_jobs(jobset: Object) -> list[ReplicatedJob]:
    """Return the replicated Jobs whose pods are in a PodGroup."""
    return [
        ReplicatedJob(value, f"spec.replicatedJobs[{index}]", _exclusive_key(jobset, value))
        for index, value in enumerate(replicated_jobs(jobset["spec"]))
        if not jobs.opts_out_of_groups(job_spec(value))
    ]


def _exclusive_key(jobset: Object, replicated_job: Object) -> str:
    """The topology of exclusive placement; "" without it, or if nodes are selected by labels."""
    template = replicated_job.get("template") or {}
    key, has_labelled_nodes = "", False
    for holder in (jobset, template):
        annotations = (holder.get("metadata") or {}).get("annotations") or {}
        if EXCLUSIVE_TOPOLOGY in annotations:
            key = annotations[EXCLUSIVE_TOPOLOGY]
            has_labelled_nodes = has_labelled_nodes or NODE_SELECTOR_STRATEGY in annotations
    return "" if has_labelled_nodes else key


def decide_job_set_management(
    jobset: Object, parents: Collection[tuple[str, str]] = SCHEDULING_PARENTS
) -> Management:
    """Decide which scheduling objects to create for a JobSet; `parents` as for Jobs."""
    grouped = grouped_replicated_jobs(jobset)
    decision = decide_management(jobset, [job.pod_template.spec for job in grouped], parents)
    if decision == ManageBoth() and not grouped:
        return ManageNothing(_NO_GROUPS)
    return decision


def build_item(jobset: Object) -> WorkloadItem:
    """Return the tree of a JobSet: a root with a child for each replicated Job."""
    grouped = grouped_replicated_jobs(jobset)
    intent = read_intent(
        jobset["spec"].get("scheduling"),
        _PATH,
        composite=True,
        other_fields=("replicatedJobPolicies",),
    )
    running = sum(job.group_count for job in grouped)
    root = WorkloadItem(
        free_name("root", [job.name for job in grouped]),
        default=SchedulingConfig(
            policy=Basic() if has_sequential_startup(jobset["spec"]) else Gang()
        ),
        user=intent.config,
        callbacks=(default_min_count(running),),
        path=_PATH,
        fields={"podGroupTemplates": "spec.replicatedJobs", **intent.fields},
        causes=intent.causes,
    )
    policy = Basic() if intent.config.policy == Basic() else Gang()
    return replace(root, children=tuple(_leaf_item(jobset, job, policy) for job in grouped))


def validate(jobset: Object, old: Object | None = None) -> list[Cause]:
    """Return the errors in the scheduling fields of a JobSet that `old` did not have."""
    causes = WorkloadBuilder(build_item(jobset), SUPPORTED).validate(
        build_item(old) if old else None
    )
    before = _check_group_count(old, build_item(old)) if old else []
    found = _check_group_count(jobset, build_item(jobset))
    return [*causes, *(cause for cause in found if cause not in before)]


def ensure(
    jobset: Object,
    observed: ObservedObjects,
    groups: Sequence[GroupInstance],
    *,
    manager: str = "",
    is_started: bool = False,
    root: WorkloadItem | None = None,
) -> EnsurePlan:
    """Plan the Workload and the groups of a JobSet. Raises Invalid like `build_workload`.

    `root` is its tree, if the caller has built it before.
    """
    root = root or build_item(jobset)
    if isinstance(find_own_workload(jobset, observed.workloads), ObjectMissing):
        _require_group_count(jobset, root)
    builder = WorkloadBuilder(root, SUPPORTED)
    return builder.ensure(jobset, observed, groups, manager=manager, is_started=is_started)


def build_workload(jobset: Object) -> Object:
    """Build the Workload of a JobSet. Raises Invalid if the scheduling fields have errors."""
    root = build_item(jobset)
    _require_group_count(jobset, root)
    return WorkloadBuilder(root, SUPPORTED).build(jobset)


def build_groups(jobset: Object, workload: Object, link: Link | None = None) -> list[Object]:
    """Build the CompositePodGroup of a JobSet, then a PodGroup for each replicated Job.

    With a link, build the groups of the linked template of the parent's Workload.
    """
    if link is None:
        return new_groups(workload, owners=group_owner_references(jobset, workload))
    return new_groups(
        workload,
        link.template,
        instance=jobset["metadata"]["name"],
        parent=link.parent,
        owners=[controller_reference(jobset)],
    )


def _require_group_count(jobset: Object, root: WorkloadItem) -> None:
    if causes := _check_group_count(jobset, root):
        raise invalid_workload(jobset["metadata"]["name"], causes)


def _check_group_count(jobset: Object, root: WorkloadItem) -> list[Cause]:
    """Check that the tree has as many children as its gang needs, and at least one."""
    if not root.children:
        return [required("spec.replicatedJobs", _NO_GROUPS)]
    groups = sum(max(one.group_count, 1) for one in grouped_replicated_jobs(jobset))
    match root.resolve().policy:
        case Gang(int() as count) if count > groups:
            detail = f"must not be greater than the number of groups ({groups})"
            return [
                root.map_to_user_field(
                    invalid("schedulingPolicy.gang.minGroupCount", count, detail)
                )
            ]
    return []


def _leaf_item(jobset: Object, replicated_job: ReplicatedJob, policy: Basic | Gang) -> WorkloadItem:
    intent = _template_intent(replicated_job).override_with(_root_intent(jobset, replicated_job))
    default = replicated_job.pod_template.default_config(policy)
    if replicated_job.exclusive_key:
        default = replace(default, topology=(replicated_job.exclusive_key,))
    return WorkloadItem(
        replicated_job.name,
        default=default,
        user=intent.config,
        callbacks=(default_min_count(replicated_job.group_size),),
        path=f"{replicated_job.path}.template.spec.scheduling",
        fields={
            "name": f"{replicated_job.path}.name",
            **replicated_job.pod_template.fields,
            **intent.fields,
        },
        causes=intent.causes,
    )


def _template_intent(replicated_job: ReplicatedJob) -> Intent:
    """The intent in the template of a replicated Job, its size multiplied by the replicas."""
    intent = jobs.read_job_intent(
        job_spec(replicated_job.value), f"{replicated_job.path}.template.spec"
    )
    match intent.config.policy:
        case Gang(int() as count) if count > 0 and not replicated_job.exclusive_key:
            policy = Gang(count * max(replicated_job.replicas, 1))
            return replace(intent, config=replace(intent.config, policy=policy))
    return intent


def _root_intent(jobset: Object, replicated_job: ReplicatedJob) -> Intent:
    """The intent for a replicated Job in the list of the JobSet."""
    scheduling = jobset["spec"].get("scheduling") or {}
    for index, policy in enumerate(scheduling.get("replicatedJobPolicies") or ()):
        if policy.get("targetReplicatedJob") == replicated_job.name:
            path = f"{_PATH}.replicatedJobPolicies[{index}]"
            return read_intent(policy, path, other_fields=("targetReplicatedJob",))
    return Intent()


#: The names of version 0.1, which programs may use.
management = decide_job_set_management
item = build_item
workload = build_workload
groups = build_groups
