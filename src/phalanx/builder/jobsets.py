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

from phalanx.api.causes import invalid, required
from phalanx.api.errors import Cause
from phalanx.api.rules.jobsets import job_spec, pod_template, replicated_jobs
from phalanx.api.rules.jobsetscheduling import is_sequenced
from phalanx.api.wire import Object
from phalanx.builder import jobs
from phalanx.builder.blocks import Intent, read_intent
from phalanx.builder.builder import WorkloadBuilder, refusal
from phalanx.builder.config import All, Basic, Gang, SchedulingConfig, Single
from phalanx.builder.groups import new_groups
from phalanx.builder.item import WorkloadItem, default_min_count
from phalanx.builder.links import Link
from phalanx.builder.management import ManageBoth, Management, ManageNothing, managed
from phalanx.builder.names import free_name
from phalanx.builder.owners import controller_reference, owners_of_group
from phalanx.builder.pods import PodTemplate

#: What a JobSet supports.
SUPPORTED = (Basic, Gang, Single, All)
_PATH = "spec.scheduling"


@dataclass(frozen=True, slots=True)
class Role:
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
    def count(self) -> int:
        """How many pods it runs at once."""
        parallelism: int = job_spec(self.value).get("parallelism", 1)
        completions: int = job_spec(self.value).get("completions", parallelism)
        return self.replicas * min(parallelism, completions)

    @property
    def pods(self) -> PodTemplate:
        """What its pods are made of."""
        return PodTemplate(pod_template(self.value), f"{self.path}.template.spec.template")


def roles(jobset: Object) -> list[Role]:
    """The replicated Jobs whose pods are in groups."""
    return [
        Role(value, f"spec.replicatedJobs[{at}]")
        for at, value in enumerate(replicated_jobs(jobset["spec"]))
        if not jobs.stays_alone(job_spec(value))
    ]


def management(jobset: Object) -> Management:
    """What to make for a JobSet."""
    found = managed(jobset, [role.pods.spec for role in roles(jobset)])
    if found == ManageBoth() and not roles(jobset):
        return ManageNothing("none of its Jobs is to be in a group")
    return found


def item(jobset: Object) -> WorkloadItem:
    """A JobSet as a tree: the root, and below it a leaf for each replicated Job."""
    parts = roles(jobset)
    intent = read_intent(jobset["spec"].get("scheduling"), _PATH, composite=True)
    running = sum(role.count > 0 for role in parts)
    root = WorkloadItem(
        free_name("root", [role.name for role in parts]),
        default=SchedulingConfig(policy=Basic() if is_sequenced(jobset["spec"]) else Gang()),
        user=intent.config,
        callbacks=(default_min_count(running),),
        path=_PATH,
        fields={"podGroupTemplates": "spec.replicatedJobs", **intent.fields},
    )
    policy = Gang() if isinstance(root.resolve().policy, Gang) else Basic()
    return replace(root, children=tuple(_leaf(jobset, role, policy) for role in parts))


def validate(jobset: Object, old: Object | None = None) -> list[Cause]:
    """What is wrong with how a JobSet is to be scheduled, and was not before."""
    found = WorkloadBuilder(item(jobset), SUPPORTED).validate(item(old) if old else None)
    before = _faults(old) if old else []
    return [*found, *(cause for cause in _faults(jobset) if cause not in before)]


def workload(jobset: Object) -> Object:
    """The Workload of a JobSet. Raises Invalid if there cannot be one."""
    if causes := _faults(jobset):
        raise refusal(jobset["metadata"]["name"], causes)
    return WorkloadBuilder(item(jobset), SUPPORTED).build(jobset)


def groups(jobset: Object, workload: Object, link: Link | None = None) -> list[Object]:
    """The root's CompositePodGroup and a PodGroup for each replicated Job, in this order.

    If there is a link to the Workload of a parent: what that has for the JobSet.
    """
    if link is None:
        return new_groups(workload, owners=owners_of_group(jobset, workload))
    return new_groups(
        workload,
        link.template,
        instance=jobset["metadata"]["name"],
        parent=link.parent,
        owners=[controller_reference(jobset)],
    )


def _faults(jobset: Object) -> list[Cause]:
    """What a tree cannot show: that it has no leaves, or fewer than it needs."""
    root = item(jobset)
    if not root.children:
        return [required("spec.replicatedJobs", "none of its Jobs is to be in a group")]
    match root.resolve().policy:
        case Gang(int() as count) if count > len(root.children):
            detail = f"must not be greater than the number of groups ({len(root.children)})"
            return [root.told(invalid("schedulingPolicy.gang.minGroupCount", count, detail))]
    return []


def _leaf(jobset: Object, role: Role, policy: Basic | Gang) -> WorkloadItem:
    intent = _nested(role).beneath(_targeted(jobset, role))
    return WorkloadItem(
        role.name,
        default=role.pods.default(policy),
        user=intent.config,
        callbacks=(default_min_count(role.count),),
        path=f"{role.path}.template.spec.scheduling",
        fields={"name": f"{role.path}.name", **role.pods.fields, **intent.fields},
    )


def _nested(role: Role) -> Intent:
    """What the template of a replicated Job says: of one Job, so the size is of each of them."""
    intent = jobs.intent(job_spec(role.value), f"{role.path}.template.spec")
    match intent.config.policy:
        case Gang(int() as count) if count > 0:
            policy = Gang(count * max(role.replicas, 1))
            return replace(intent, config=replace(intent.config, policy=policy))
    return intent


def _targeted(jobset: Object, role: Role) -> Intent:
    """What the root says of a replicated Job."""
    scheduling = jobset["spec"].get("scheduling") or {}
    for at, policy in enumerate(scheduling.get("replicatedJobPolicies") or ()):
        if policy.get("targetReplicatedJob") == role.name:
            return read_intent(policy, f"{_PATH}.replicatedJobPolicies[{at}]")
    return Intent()
