"""A Job as a workload: one group of pods, pod by pod unless its user says otherwise.

    management    what of a Job's scheduling objects is to be made for it, and why not the rest
    validate      what is wrong with what its user says
    workload      the Workload of a Job
    pod_group     its PodGroup, of its own Workload or of its parent's

The size of a gang follows the Job's parallelism where the user leaves it open, so building again
after a resize gives the new size.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from phalanx.api.errors import Cause
from phalanx.api.validation.job_scheduling import NO_GANG, is_gang_by_policy
from phalanx.api.wire import Object
from phalanx.builder.builder import WorkloadBuilder
from phalanx.builder.config import All, Basic, Gang, Intent, PodTemplate, Single, read_intent
from phalanx.builder.groups import first_template, new_pod_group
from phalanx.builder.names import pod_group_name, template_name
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

#: What a Job supports.
SUPPORTED = (Basic, Gang, Single, All)


def management(
    job: Object,
    *,
    enabled: bool = True,
    basic: bool = True,
    parents: Collection[tuple[str, str]] = SCHEDULING_PARENTS,
) -> Management:
    """What to make for a Job; the first that holds counts.

    `enabled` is the gate WorkloadWithJob; `basic` whether Jobs that are no gangs get objects too;
    `parents` are the kinds, after their groups, that look after their Jobs themselves.
    """
    if not enabled:
        return ManageNothing("the feature gate WorkloadWithJob is off")
    found = decide_management(job, [_pod_template(job).spec], parents)
    if found != ManageBoth():
        return found
    if opts_out_of_groups(job["spec"]):
        return ManageNothing("its gang policy is NoGang")
    if not basic and item(job).resolve().policy == Basic():
        return ManageNothing("it is no gang, and only gangs get workloads here")
    return found


def item(job: Object) -> WorkloadItem:
    """A Job as one group of pods."""
    wanted, pods = read_job_intent(job["spec"], "spec"), _pod_template(job)
    return WorkloadItem(
        template_name(job["metadata"]["name"]),
        default=pods.default_config(Basic()),
        user=wanted.config,
        callbacks=(default_min_count(job["spec"].get("parallelism", 1)),),
        path="spec.scheduling",
        fields={"name": "metadata.name", **pods.fields, **wanted.fields},
    )


def validate(job: Object, old: Object | None = None) -> list[Cause]:
    """What is wrong with how a Job is to be scheduled, and was not before."""
    return WorkloadBuilder(item(job), SUPPORTED).validate(item(old) if old else None)


def workload(job: Object) -> Object:
    """The Workload of a Job. Raises Invalid if there cannot be one."""
    return WorkloadBuilder(item(job), SUPPORTED).build(job)


def gang_size(job: Object) -> int | None:
    """How many pods a Job needs to begin; None if it is no gang."""
    policy = item(job).resolve().policy
    return policy.min_count if isinstance(policy, Gang) else None


def pod_group(job: Object, workload: Object, link: Link | None = None) -> Object:
    """The PodGroup of a Job: of its own Workload, or of its parent's if there is a link to that.

    A link that names no template means the first one. Jobs that share a template of their parent
    get groups of their own. Raises NotFound if the Workload has no such template.
    """
    if link is None:
        owners = group_owner_references(job, workload)
        return new_pod_group(workload, first_template(workload), owners=owners)
    template, name = link.template or first_template(workload), job["metadata"]["name"]
    return new_pod_group(
        workload,
        template,
        name=pod_group_name(workload["metadata"]["name"], template, name, shown=False),
        parent=link.parent,
        owners=[controller_reference(job)],
    )


def read_job_intent(spec: Object, path: str) -> Intent:
    """What a Job says in `scheduling`, or in short in `gangPolicy`, given its spec."""
    full = read_intent(spec.get("scheduling"), f"{path}.scheduling")
    if full.config.policy is not None or not is_gang_by_policy(spec):
        return full
    config = replace(full.config, policy=Gang())
    return Intent(config, {**full.fields, "schedulingPolicy": f"{path}.gangPolicy"})


def opts_out_of_groups(spec: Object) -> bool:
    """Whether a Job wants to be in no group at all, given its spec."""
    return (spec.get("gangPolicy") or {}).get("policy") == NO_GANG


def _pod_template(job: Object) -> PodTemplate:
    return PodTemplate(job["spec"].get("template") or {}, "spec.template")
