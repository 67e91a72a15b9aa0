"""What makes an entity impossible whatever the cluster looks like. Asked before any placing.

A row looks at the entity alone and returns an objection or nothing. The sentences about unequal
members are those of Kubernetes.
"""

from __future__ import annotations

from dataclasses import dataclass

from phalanx.api.core import PodSpec
from phalanx.scheduler.decision import (
    SCHEDULER_ERROR,
    UNSCHEDULABLE,
    Impossible,
    Part,
    Refused,
)
from phalanx.scheduler.entity import Entity
from phalanx.scheduler.events import OWN, Event


@dataclass(frozen=True, slots=True)
class Objection:
    """The reason code, the sentence, and what to edit."""

    reason: str
    message: str
    cure: str
    #: What may make it groundless.
    wakes_on: frozenset[Event] = OWN


def _scheduler_names(entity: Entity, specs: list[PodSpec]) -> Objection | None:
    ours = specs[0].scheduler_name
    for spec in specs:
        if (name := spec.scheduler_name) != ours:
            return Objection(
                SCHEDULER_ERROR,
                "all pods in a single pod group should have the same .spec.schedulerName set, "
                f'got: "{name}" and "{ours}"',
                f'give all pods of the group the scheduler name "{ours}"',
            )
    return None


def _priorities(entity: Entity, specs: list[PodSpec]) -> Objection | None:
    wanted = entity.group.spec.priority if entity.group else 0
    for spec in specs:
        if (priority := spec.priority) != wanted:
            return Objection(
                SCHEDULER_ERROR,
                "all pods in a single pod group should have the same priority as the pod group's "
                f"priority, got {priority} and {wanted}",
                "give the group and all its pods the same priority class",
            )
    return None


def _preemption_policies(entity: Entity, specs: list[PodSpec]) -> Objection | None:
    own = entity.group.spec.preemption_policy if entity.group else ""
    wanted = own or specs[0].preemption_policy
    for spec in specs:
        if (policy := spec.preemption_policy) != wanted:
            like_it = " as the pod group's preemption policy" if own else ""
            return Objection(
                SCHEDULER_ERROR,
                "all pods in a single pod group should have the same preemption policy"
                f"{like_it}, got {policy} and {wanted}",
                "give the group and all its pods the same preemption policy",
            )
    return None


def _unsupported_pod(entity: Entity, specs: list[PodSpec]) -> Objection | None:
    for member in entity.members:
        if what := member.shape.unsupported:
            message = f"pod asks for {what}, which is not supported yet"
            return Objection(UNSCHEDULABLE, message, f"take {what} out of the pod")
    return None


#: What each row objects to `_is_sound` must know of: rows are asked only of what is not sound.
POD_OBJECTIONS = (_unsupported_pod,)
GROUP_OBJECTIONS = (
    _scheduler_names,
    _priorities,
    _preemption_policies,
    _unsupported_pod,
)


def impossible(entity: Entity) -> Impossible | None:
    """The first objection to an entity as a decision about it."""
    if _is_sound(entity):
        return None
    specs = [member.pod.spec for member in entity.members] + [pod.spec for pod in entity.others]
    for row in GROUP_OBJECTIONS if entity.group else POD_OBJECTIONS:
        if found := row(entity, specs):
            return refused_outright(entity, found)
    return None


def _is_sound(entity: Entity) -> bool:
    """Whether all pods are as their group wants them; mostly they are, and no row need be asked."""
    pods = [
        (spec.scheduler_name, spec.priority, spec.preemption_policy, member.shape.unsupported)
        for member in entity.members
        for spec in (member.pod.spec,)
    ]
    if entity.others:
        specs = [pod.spec for pod in entity.others]
        pods += [(one.scheduler_name, one.priority, one.preemption_policy, "") for one in specs]
    if not pods:
        return True
    name, priority, policy, _ = pods[0]
    if entity.group is not None:
        own = entity.group.spec
        priority, policy = own.priority, own.preemption_policy or policy
    return pods.count((name, priority, policy, "")) == len(pods)


def refused_outright(entity: Entity, found: Objection) -> Impossible:
    """An objection to an entity as a decision about it."""
    pods = tuple(Refused(m.pod.metadata.key, m.pod.metadata.uid, None) for m in entity.members)
    groups = entity.groups if entity.is_composite else ()
    parts = tuple(Part(one.key, one.is_composite, None) for one in groups)
    return Impossible(
        entity.group_key, pods, found.reason, found.message, found.cure, found.wakes_on, parts
    )
