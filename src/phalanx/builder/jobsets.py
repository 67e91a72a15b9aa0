"""A JobSet as a workload: a CompositePodGroup with a PodGroup for each replicated Job.

Users configure a replicated Job in its own template (`template.spec.scheduling`) or in the list
`spec.scheduling.replicatedJobPolicies` of the JobSet; both give the same tree. A size in the
template is the size of each Job, a size in the list that of all Jobs together. Replicated Jobs
whose template says NoGang are in no group.

By default a JobSet is a gang of gangs: all Jobs start together, or none. The default is Basic, down
to the pods, if the JobSet says Basic, or if its Jobs start one after the other and so cannot wait
for each other.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from phalanx.api.errors import Cause, invalid, required
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
from phalanx.builder.groups import new_groups
from phalanx.builder.names import free_name
from phalanx.builder.ownership import (
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
    def pod_template(self) -> PodTemplate:
        """The template of the pods."""
        return PodTemplate(pod_template(self.value), f"{self.path}.template.spec.template")


def grouped_replicated_jobs(jobset: Object) -> list[ReplicatedJob]:
    """Return the replicated Jobs whose pods are in a PodGroup."""
    return [
        ReplicatedJob(value, f"spec.replicatedJobs[{index}]")
        for index, value in enumerate(replicated_jobs(jobset["spec"]))
        if not jobs.opts_out_of_groups(job_spec(value))
    ]


def decide_job_set_management(jobset: Object) -> Management:
    """Decide which scheduling objects to create for a JobSet."""
    grouped = grouped_replicated_jobs(jobset)
    decision = decide_management(jobset, [job.pod_template.spec for job in grouped])
    if decision == ManageBoth() and not grouped:
        return ManageNothing(_NO_GROUPS)
    return decision


def build_item(jobset: Object) -> WorkloadItem:
    """Return the tree of a JobSet: a root with a child for each replicated Job."""
    grouped = grouped_replicated_jobs(jobset)
    intent = read_intent(jobset["spec"].get("scheduling"), _PATH, composite=True)
    running = sum(job.pod_count > 0 for job in grouped)
    root = WorkloadItem(
        free_name("root", [job.name for job in grouped]),
        default=SchedulingConfig(
            policy=Basic() if has_sequential_startup(jobset["spec"]) else Gang()
        ),
        user=intent.config,
        callbacks=(default_min_count(running),),
        path=_PATH,
        fields={"podGroupTemplates": "spec.replicatedJobs", **intent.fields},
    )
    policy = Gang() if isinstance(root.resolve().policy, Gang) else Basic()
    return replace(root, children=tuple(_leaf_item(jobset, job, policy) for job in grouped))


def validate(jobset: Object, old: Object | None = None) -> list[Cause]:
    """Return the errors in the scheduling fields of a JobSet that `old` did not have."""
    causes = WorkloadBuilder(build_item(jobset), SUPPORTED).validate(
        build_item(old) if old else None
    )
    before = _check_group_count(old) if old else []
    return [*causes, *(cause for cause in _check_group_count(jobset) if cause not in before)]


def build_workload(jobset: Object) -> Object:
    """Build the Workload of a JobSet. Raises Invalid if the scheduling fields have errors."""
    if causes := _check_group_count(jobset):
        raise invalid_workload(jobset["metadata"]["name"], causes)
    return WorkloadBuilder(build_item(jobset), SUPPORTED).build(jobset)


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


def _check_group_count(jobset: Object) -> list[Cause]:
    """Check that the tree has as many children as its gang needs, and at least one."""
    root = build_item(jobset)
    if not root.children:
        return [required("spec.replicatedJobs", _NO_GROUPS)]
    match root.resolve().policy:
        case Gang(int() as count) if count > len(root.children):
            detail = f"must not be greater than the number of groups ({len(root.children)})"
            return [
                root.map_to_user_field(
                    invalid("schedulingPolicy.gang.minGroupCount", count, detail)
                )
            ]
    return []


def _leaf_item(jobset: Object, replicated_job: ReplicatedJob, policy: Basic | Gang) -> WorkloadItem:
    intent = _template_intent(replicated_job).override_with(_root_intent(jobset, replicated_job))
    return WorkloadItem(
        replicated_job.name,
        default=replicated_job.pod_template.default_config(policy),
        user=intent.config,
        callbacks=(default_min_count(replicated_job.pod_count),),
        path=f"{replicated_job.path}.template.spec.scheduling",
        fields={
            "name": f"{replicated_job.path}.name",
            **replicated_job.pod_template.fields,
            **intent.fields,
        },
    )


def _template_intent(replicated_job: ReplicatedJob) -> Intent:
    """The intent in the template of a replicated Job, its size multiplied by the replicas."""
    intent = jobs.read_job_intent(
        job_spec(replicated_job.value), f"{replicated_job.path}.template.spec"
    )
    match intent.config.policy:
        case Gang(int() as count) if count > 0:
            policy = Gang(count * max(replicated_job.replicas, 1))
            return replace(intent, config=replace(intent.config, policy=policy))
    return intent


def _root_intent(jobset: Object, replicated_job: ReplicatedJob) -> Intent:
    """The intent for a replicated Job in the list of the JobSet."""
    scheduling = jobset["spec"].get("scheduling") or {}
    for index, policy in enumerate(scheduling.get("replicatedJobPolicies") or ()):
        if policy.get("targetReplicatedJob") == replicated_job.name:
            return read_intent(policy, f"{_PATH}.replicatedJobPolicies[{index}]")
    return Intent()


#: The names of version 0.1, which programs may use.
management = decide_job_set_management
item = build_item
workload = build_workload
groups = build_groups
