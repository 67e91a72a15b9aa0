"""A JobSet as a workload: a group of groups, one for the pods of each replicated Job.

Users speak of a replicated Job in its own template (`template.spec.scheduling`) or in the root's
`replicatedJobPolicies`; both ways lead to the same tree. A size in the template is that of each
Job, one in the root's list that of all of them together.

By default a JobSet is a gang of gangs: everything starts, or nothing. Where the root says basic, or
its Jobs start one after the other and so cannot wait for each other, the default is basic, down to
the pods.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from phalanx.api.causes import invalid, required
from phalanx.api.errors import Cause
from phalanx.api.wire import Object
from phalanx.builder.blocks import Intent, read_intent
from phalanx.builder.builder import WorkloadBuilder, refusal
from phalanx.builder.config import All, Basic, Gang, SchedulingConfig, Single
from phalanx.builder.groups import new_groups
from phalanx.builder.item import WorkloadItem, default_min_count
from phalanx.builder.links import Link
from phalanx.builder.management import Management, managed
from phalanx.builder.names import free_name
from phalanx.builder.owners import controller_reference, owners_of_group
from phalanx.builder.pods import PodTemplate

#: What a JobSet supports.
SUPPORTED = (Basic, Gang, Single, All)
_PATH = "spec.scheduling"


@dataclass(frozen=True, slots=True)
class Role:
    """A replicated Job of a JobSet: where it stands, how many Jobs it is, and the spec of each."""

    name: str
    path: str
    replicas: int
    job: Mapping[str, Any]
    depends_on: Sequence[Mapping[str, Any]] = ()

    @property
    def count(self) -> int:
        """How many pods it runs at once."""
        parallelism: int = self.job.get("parallelism", 1)
        completions: int = self.job.get("completions", parallelism)
        return self.replicas * min(parallelism, completions)

    @property
    def pods(self) -> PodTemplate:
        """The template of the pods."""
        return PodTemplate(self.job.get("template") or {}, f"{self.path}.template.spec.template")


def roles(jobset: Mapping[str, Any]) -> list[Role]:
    """The replicated Jobs of a JobSet."""
    return [
        Role(
            value.get("name", ""),
            f"spec.replicatedJobs[{at}]",
            value.get("replicas", 1),
            (value.get("template") or {}).get("spec") or {},
            value.get("dependsOn") or (),
        )
        for at, value in enumerate(jobset["spec"].get("replicatedJobs") or ())
    ]


def management(jobset: Mapping[str, Any]) -> Management:
    """What to make for a JobSet."""
    return managed(jobset, [role.pods.spec for role in roles(jobset)])


def item(jobset: Mapping[str, Any]) -> WorkloadItem:
    """A JobSet as a tree: the root, and below it a leaf for each replicated Job."""
    parts = roles(jobset)
    intent = read_intent(jobset["spec"].get("scheduling"), _PATH, composite=True)
    running = sum(role.count > 0 for role in parts)
    at_once = _made_first(jobset) == len(parts)
    root = WorkloadItem(
        free_name("root", [role.name for role in parts]),
        default=SchedulingConfig(policy=Gang() if at_once else Basic()),
        user=intent.config,
        callbacks=(default_min_count(running),),
        path=_PATH,
        fields={"podGroupTemplates": "spec.replicatedJobs", **intent.fields},
    )
    policy = Gang() if isinstance(root.resolve().policy, Gang) else Basic()
    return replace(root, children=tuple(_leaf(jobset, role, policy) for role in parts))


def validate(jobset: Mapping[str, Any], old: Mapping[str, Any] | None = None) -> list[Cause]:
    """What is wrong with how a JobSet is to be scheduled, and was not before."""
    found = WorkloadBuilder(item(jobset), SUPPORTED).validate(item(old) if old else None)
    before = _faults(old) if old else []
    return [*found, *(cause for cause in _faults(jobset) if cause not in before)]


def workload(jobset: Mapping[str, Any]) -> Object:
    """The Workload of a JobSet. Raises Invalid if there cannot be one."""
    if causes := _faults(jobset):
        raise refusal(jobset["metadata"]["name"], causes)
    return WorkloadBuilder(item(jobset), SUPPORTED).build(jobset)


def groups(
    jobset: Mapping[str, Any], workload: Mapping[str, Any], link: Link | None = None
) -> list[Object]:
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


def _faults(jobset: Mapping[str, Any]) -> list[Cause]:
    if not roles(jobset):
        return [required("spec.replicatedJobs", "there is nothing to be scheduled")]
    return _never_starts(jobset)


def _never_starts(jobset: Mapping[str, Any]) -> list[Cause]:
    """A gang waits for so many roles; no more of these than are made at first can be there."""
    root, first = item(jobset), _made_first(jobset)
    match root.resolve().policy:
        case Gang(int() as count) if count > first and first < len(roles(jobset)):
            detail = f"a gang of {count} cannot start: all but {first} wait for others to run"
            return [root.told(invalid("schedulingPolicy", "gang", detail))]
    return []


def _made_first(jobset: Mapping[str, Any]) -> int:
    """How many of its roles are made without waiting for others."""
    order = (jobset["spec"].get("startupPolicy") or {}).get("startupPolicyOrder")
    free = [role for role in roles(jobset) if not role.depends_on]
    return min(len(free), 1) if order == "InOrder" else len(free)


def _leaf(jobset: Mapping[str, Any], role: Role, policy: Basic | Gang) -> WorkloadItem:
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
    path = f"{role.path}.template.spec.scheduling"
    intent = read_intent(role.job.get("scheduling"), path)
    match intent.config.policy:
        case Gang(int() as count) if count > 0:
            policy = Gang(count * max(role.replicas, 1))
            return replace(intent, config=replace(intent.config, policy=policy))
    return intent


def _targeted(jobset: Mapping[str, Any], role: Role) -> Intent:
    """What the root says of a replicated Job."""
    scheduling = jobset["spec"].get("scheduling") or {}
    for at, policy in enumerate(scheduling.get("replicatedJobPolicies") or ()):
        if policy.get("targetReplicatedJob") == role.name:
            return read_intent(policy, f"{_PATH}.replicatedJobPolicies[{at}]")
    return Intent()
