"""A JobSet as a workload: a group of groups, one for the pods of each replicated Job.

Users speak of a replicated Job in its own template (`template.spec.scheduling`) or in the root's
`replicatedJobPolicies`; both ways lead to the same tree. A size in the template is that of each
Job, one in the root's list that of all of them together. Jobs whose template says NoGang are in no
group.

By default a JobSet is a gang of gangs: everything starts, or nothing. Where the root says basic, or
its Jobs start one after the other and so cannot wait for each other, the default is basic, down to
the pods.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from phalanx.api.errors import Cause
from phalanx.api.field_errors import invalid, required
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

#: What a JobSet supports.
SUPPORTED = (Basic, Gang, Single, All)
_PATH = "spec.scheduling"


@dataclass(frozen=True, slots=True)
class ReplicatedJob:
    """A replicated Job of a JobSet, and its place among them."""

    value: Object
    path: str

    @property
    def name(self) -> str:
        """Its name, unique in the JobSet."""
        name: str = self.value.get("name", "")
        return name

    @property
    def replicas(self) -> int:
        """How many Jobs it is."""
        replicas: int = self.value.get("replicas", 1)
        return replicas

    @property
    def pod_count(self) -> int:
        """How many pods it runs at once."""
        parallelism: int = job_spec(self.value).get("parallelism", 1)
        completions: int = job_spec(self.value).get("completions", parallelism)
        return self.replicas * min(parallelism, completions)

    @property
    def pod_template(self) -> PodTemplate:
        """What its pods are made of."""
        return PodTemplate(pod_template(self.value), f"{self.path}.template.spec.template")


def grouped_replicated_jobs(jobset: Object) -> list[ReplicatedJob]:
    """The replicated Jobs whose pods are in groups."""
    return [
        ReplicatedJob(value, f"spec.replicatedJobs[{at}]")
        for at, value in enumerate(replicated_jobs(jobset["spec"]))
        if not jobs.opts_out_of_groups(job_spec(value))
    ]


def management(jobset: Object) -> Management:
    """What to make for a JobSet."""
    found = decide_management(
        jobset, [role.pod_template.spec for role in grouped_replicated_jobs(jobset)]
    )
    if found == ManageBoth() and not grouped_replicated_jobs(jobset):
        return ManageNothing("none of its Jobs is to be in a group")
    return found


def item(jobset: Object) -> WorkloadItem:
    """A JobSet as a tree: the root, and below it a leaf for each replicated Job."""
    parts = grouped_replicated_jobs(jobset)
    intent = read_intent(jobset["spec"].get("scheduling"), _PATH, composite=True)
    running = sum(role.pod_count > 0 for role in parts)
    root = WorkloadItem(
        free_name("root", [role.name for role in parts]),
        default=SchedulingConfig(
            policy=Basic() if has_sequential_startup(jobset["spec"]) else Gang()
        ),
        user=intent.config,
        callbacks=(default_min_count(running),),
        path=_PATH,
        fields={"podGroupTemplates": "spec.replicatedJobs", **intent.fields},
    )
    policy = Gang() if isinstance(root.resolve().policy, Gang) else Basic()
    return replace(root, children=tuple(_leaf_item(jobset, role, policy) for role in parts))


def validate(jobset: Object, old: Object | None = None) -> list[Cause]:
    """What is wrong with how a JobSet is to be scheduled, and was not before."""
    found = WorkloadBuilder(item(jobset), SUPPORTED).validate(item(old) if old else None)
    before = _check_group_count(old) if old else []
    return [*found, *(cause for cause in _check_group_count(jobset) if cause not in before)]


def workload(jobset: Object) -> Object:
    """The Workload of a JobSet. Raises Invalid if there cannot be one."""
    if causes := _check_group_count(jobset):
        raise invalid_workload(jobset["metadata"]["name"], causes)
    return WorkloadBuilder(item(jobset), SUPPORTED).build(jobset)


def groups(jobset: Object, workload: Object, link: Link | None = None) -> list[Object]:
    """The root's CompositePodGroup and a PodGroup for each replicated Job, in this order.

    If there is a link to the Workload of a parent: what that has for the JobSet.
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
    """What a tree cannot show: that it has no leaves, or fewer than it needs."""
    root = item(jobset)
    if not root.children:
        return [required("spec.replicatedJobs", "none of its Jobs is to be in a group")]
    match root.resolve().policy:
        case Gang(int() as count) if count > len(root.children):
            detail = f"must not be greater than the number of groups ({len(root.children)})"
            return [
                root.at_user_field(invalid("schedulingPolicy.gang.minGroupCount", count, detail))
            ]
    return []


def _leaf_item(jobset: Object, replicated_job: ReplicatedJob, policy: Basic | Gang) -> WorkloadItem:
    intent = _template_intent(replicated_job).beneath(_root_intent(jobset, replicated_job))
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
    """What the template of a replicated Job says: of one Job, so the size is of each of them."""
    intent = jobs.read_job_intent(
        job_spec(replicated_job.value), f"{replicated_job.path}.template.spec"
    )
    match intent.config.policy:
        case Gang(int() as count) if count > 0:
            policy = Gang(count * max(replicated_job.replicas, 1))
            return replace(intent, config=replace(intent.config, policy=policy))
    return intent


def _root_intent(jobset: Object, replicated_job: ReplicatedJob) -> Intent:
    """What the root says of a replicated Job."""
    scheduling = jobset["spec"].get("scheduling") or {}
    for at, policy in enumerate(scheduling.get("replicatedJobPolicies") or ()):
        if policy.get("targetReplicatedJob") == replicated_job.name:
            return read_intent(policy, f"{_PATH}.replicatedJobPolicies[{at}]")
    return Intent()
