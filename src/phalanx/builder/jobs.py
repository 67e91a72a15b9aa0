"""A Job as a workload: one group of pods, pod by pod unless its user says otherwise.

    management    what of a Job's scheduling objects is to be made for it, and why not the rest
    validate      what is wrong with what its user says
    workload      the Workload of a Job
    pod_group     its PodGroup, of its own Workload or of its parent's

The size of a gang follows the Job's parallelism where the user leaves it open, so building again
after a resize gives the new size.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from phalanx.api.errors import Cause
from phalanx.api.wire import Object
from phalanx.builder.blocks import Intent, read_intent
from phalanx.builder.builder import WorkloadBuilder
from phalanx.builder.config import All, Basic, Gang, Single
from phalanx.builder.groups import first_template, new_pod_group
from phalanx.builder.item import WorkloadItem, default_min_count
from phalanx.builder.links import Link
from phalanx.builder.management import PARENTS, ManageBoth, Management, ManageNothing, managed
from phalanx.builder.names import template_name
from phalanx.builder.owners import controller_reference, owners_of_group
from phalanx.builder.pods import PodTemplate

#: What a Job supports.
SUPPORTED = (Basic, Gang, Single, All)


def management(
    job: Mapping[str, Any],
    *,
    enabled: bool = True,
    basic: bool = True,
    parents: Collection[tuple[str, str]] = PARENTS,
) -> Management:
    """What to make for a Job; the first that holds counts.

    `enabled` is the gate WorkloadWithJob; `basic` whether Jobs that are no gangs get objects too;
    `parents` are the kinds, after their groups, that look after their Jobs themselves.
    """
    if not enabled:
        return ManageNothing("the feature gate WorkloadWithJob is off")
    found = managed(job, [_pods(job).spec], parents)
    if found != ManageBoth():
        return found
    if _gang_policy(job) == "NoGang":
        return ManageNothing("its gang policy is NoGang")
    if not basic and item(job).resolve().policy == Basic():
        return ManageNothing("it is no gang, and only gangs get workloads here")
    return found


def item(job: Mapping[str, Any]) -> WorkloadItem:
    """A Job as one group of pods."""
    intent, pods = _intent(job), _pods(job)
    return WorkloadItem(
        template_name(job["metadata"]["name"]),
        default=pods.default(Basic()),
        user=intent.config,
        callbacks=(default_min_count(job["spec"].get("parallelism", 1)),),
        path="spec.scheduling",
        fields={"name": "metadata.name", **pods.fields, **intent.fields},
    )


def validate(job: Mapping[str, Any], old: Mapping[str, Any] | None = None) -> list[Cause]:
    """What is wrong with how a Job is to be scheduled, and was not before."""
    return WorkloadBuilder(item(job), SUPPORTED).validate(item(old) if old else None)


def workload(job: Mapping[str, Any]) -> Object:
    """The Workload of a Job. Raises Invalid if there cannot be one."""
    return WorkloadBuilder(item(job), SUPPORTED).build(job)


def pod_group(
    job: Mapping[str, Any], workload: Mapping[str, Any], link: Link | None = None
) -> Object:
    """The PodGroup of a Job: of its own Workload, or of its parent's if there is a link to that.

    A link that names no template means the first one. Jobs that share a template of their parent
    get groups of their own. Raises NotFound if the Workload has no such template.
    """
    if link is None:
        owners = owners_of_group(job, workload)
        return new_pod_group(workload, first_template(workload), owners=owners)
    return new_pod_group(
        workload,
        link.template or first_template(workload),
        instance=job["metadata"]["name"],
        parent=link.parent,
        owners=[controller_reference(job)],
    )


def _intent(job: Mapping[str, Any]) -> Intent:
    """What the user says in `scheduling`, or in short in `gangPolicy`."""
    intent = read_intent(job["spec"].get("scheduling"), "spec.scheduling")
    if intent.config.policy is not None or _gang_policy(job) != "JobAsGang":
        return intent
    config = replace(intent.config, policy=Gang())
    return Intent(config, {**intent.fields, "schedulingPolicy": "spec.gangPolicy"})


def _gang_policy(job: Mapping[str, Any]) -> str | None:
    return (job["spec"].get("gangPolicy") or {}).get("policy")


def _pods(job: Mapping[str, Any]) -> PodTemplate:
    return PodTemplate(job["spec"].get("template") or {}, "spec.template")
