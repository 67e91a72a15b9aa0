"""A Job as a workload: one PodGroup, with the policy Basic unless the user asks for a gang.

    management    which scheduling objects the Job controller creates, and why not others
    validate      the validation errors of the scheduling fields
    new_builder   the builder of a Job, whose `ensure` plans which objects to write
    workload      the Workload of a Job
    pod_group     the PodGroup of a Job, in its own Workload or in its parent's

A gang without a size has the size of `parallelism`: after a resize, building again gives the new
size.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from phalanx.api.errors import Cause
from phalanx.api.validation.job_policies import NO_GANG, is_gang_by_policy
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

#: The options that a Job supports.
SUPPORTED = (Basic, Gang, Single, All)


def decide_job_management(
    job: Object,
    *,
    enabled: bool = True,
    basic: bool = True,
    parents: Collection[tuple[str, str]] = SCHEDULING_PARENTS,
) -> Management:
    """Decide which scheduling objects to create for a Job; the first reason that applies decides.

    `enabled` is the feature gate WorkloadWithJob. Without `basic` only gangs get objects. `parents`
    are the API groups and kinds whose controllers manage the scheduling of their Jobs.
    """
    if not enabled:
        return ManageNothing("the feature gate WorkloadWithJob is disabled")
    decision = decide_management(job, [_pod_template(job).spec], parents)
    if decision != ManageBoth():
        return decision
    if opts_out_of_groups(job["spec"]):
        return ManageNothing("its gang policy is NoGang")
    if not basic and build_item(job).resolve().policy == Basic():
        return ManageNothing("it is not a gang, and only gangs get Workloads")
    return decision


def build_item(job: Object) -> WorkloadItem:
    """Return the tree of a Job: a single item."""
    intent, pods = read_job_intent(job["spec"], "spec"), _pod_template(job)
    return WorkloadItem(
        template_name(job["metadata"]["name"]),
        default=pods.default_config(Basic()),
        user=intent.config,
        callbacks=(default_min_count(job["spec"].get("parallelism", 1)),),
        path="spec.scheduling",
        fields={"name": "metadata.name", **pods.fields, **intent.fields},
        causes=intent.causes,
    )


def validate(job: Object, old: Object | None = None) -> list[Cause]:
    """Return the errors in the scheduling fields of a Job that `old` did not have."""
    return new_builder(job).validate(build_item(old) if old else None)


def build_workload(job: Object) -> Object:
    """Build the Workload of a Job. Raises Invalid if the scheduling fields have errors."""
    return new_builder(job).build(job)


def new_builder(job: Object) -> WorkloadBuilder:
    """Return the builder of the Workload of a Job."""
    return WorkloadBuilder(build_item(job), SUPPORTED)


def gang_size(job: Object) -> int | None:
    """Return the `minCount` of a Job; None if it is not a gang."""
    policy = build_item(job).resolve().policy
    return policy.min_count if isinstance(policy, Gang) else None


def build_pod_group(job: Object, workload: Object, link: Link | None = None) -> Object:
    """Build the PodGroup of a Job, in its own Workload or, with a link, in its parent's.

    A link without a template means the first one. Jobs that share a template have different
    PodGroups. Raises NotFound if the Workload has no such template.
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
    """Read the intent of a Job from the fields `scheduling` and `gangPolicy` of its spec."""
    intent = read_intent(spec.get("scheduling"), f"{path}.scheduling")
    if intent.config.policy is not None or not is_gang_by_policy(spec):
        return intent
    config = replace(intent.config, policy=Gang())
    paths = {**intent.fields, "schedulingPolicy": f"{path}.gangPolicy"}
    return Intent(config, paths, intent.causes)


def opts_out_of_groups(spec: Object) -> bool:
    """Whether the spec of a Job asks for no group: `gangPolicy` is NoGang."""
    return (spec.get("gangPolicy") or {}).get("policy") == NO_GANG


def _pod_template(job: Object) -> PodTemplate:
    return PodTemplate(job["spec"].get("template") or {}, "spec.template")


#: The names of version 0.1, which programs may use.
management = decide_job_management
item = build_item
workload = build_workload
pod_group = build_pod_group
