"""Entity: what the queue hands to the cycle. A tree of groups and its pending pods, or a pod alone.

pod alone            members (pod)
PodGroup             members (its pods)
CompositePodGroup    members (all pods below), parts (the groups below, each an entity itself)

What makes an entity impossible whatever the cluster looks like. Asked before any placing.

A row looks at the entity alone and returns an objection or nothing. The sentences about unequal
members are those of Kubernetes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from msgspec import Struct

from phalanx.api.core import Pod, PodSpec
from phalanx.api.meta import Key
from phalanx.api.scheduling import CompositePodGroup
from phalanx.scheduler.cluster.group_tree import Group
from phalanx.scheduler.cluster.pod_shape import PodShape
from phalanx.scheduler.decision import (
    ENTITY_EVENTS,
    SCHEDULER_ERROR,
    UNSCHEDULABLE,
    ClusterEvent,
    GroupOutcome,
    Impossible,
    UnplacedPod,
)

#: The preemption policy by which nobody is evicted.
PREEMPTION_NEVER = "Never"


class Member(Struct, frozen=True):
    """A pod that waits for a node, and how long and how often it has been tried."""

    pod: Pod
    shape: PodShape
    attempts: int = 0
    timestamp: float = 0.0


@dataclass(frozen=True, slots=True)
class Entity:
    """One thing to place. A pod without a group is a group of one."""

    key: Key
    group: Group | None
    members: tuple[Member, ...]
    #: Live members that are not to be placed: bound, assumed, or another scheduler's.
    other_members: tuple[Pod, ...] = ()
    attempts: int = 0
    timestamp: float = 0.0
    #: Since when nothing has been missing that it needs to be tried.
    ready_since: float = 0.0
    #: The groups that hang from this one, the oldest first.
    children: tuple[Entity, ...] = ()
    #: For how many seconds nothing has been missing that it needs to be tried.
    waited_seconds: float = 0.0

    @property
    def is_composite(self) -> bool:
        """Whether it is a group of groups."""
        return isinstance(self.group, CompositePodGroup)

    @property
    def groups(self) -> Iterator[Entity]:
        """Itself and all groups below it, if it is one; parents before children."""
        if self.group is not None:
            yield self
        for part in self.children:
            yield from part.groups

    @property
    def leaves(self) -> Iterator[Entity]:
        """The groups of pods in it."""
        return (one for one in self.groups if not one.is_composite)

    @property
    def priority(self) -> int:
        """How important it is: what its group says, or the pod that has none."""
        return self.group.spec.priority if self.group else self.members[0].pod.spec.priority

    @property
    def may_preempt(self) -> bool:
        """Whether others may be evicted for it: what its group says, or else its pods."""
        own = self.group.spec.preemption_policy if self.group else ""
        return (own or self.members[0].pod.spec.preemption_policy) != PREEMPTION_NEVER

    @property
    def kind(self) -> str:
        """What it is, as Kubernetes calls it in messages."""
        if self.group is None:
            return "pod"
        return "compositepodgroup" if self.is_composite else "podgroup"

    @property
    def uid(self) -> str:
        """The uid of its group, or of the pod that has none."""
        return (self.group or self.members[0].pod).metadata.uid

    @property
    def group_key(self) -> Key | None:
        """The key of the group, if it is one."""
        return self.key if self.group else None

    @property
    def scheduler_name(self) -> str:
        """The name of the scheduler that is to place it: what its first member says."""
        return self.members[0].pod.spec.scheduler_name

    @property
    def topology_key(self) -> str:
        """The label whose value the nodes of all members must share; "" for none."""
        constraints = self.group.spec.scheduling_constraints if self.group else None
        return constraints.topology[0].key if constraints and constraints.topology else ""

    @property
    def quorum(self) -> int:
        """How many members must have a node for any to get one."""
        return self.group.quorum if self.group else 1


@dataclass(frozen=True, slots=True)
class EntityRejection:
    """The reason code, the sentence, and what to edit."""

    reason: str
    message: str
    cure: str
    #: What may make it groundless.
    wakes_on: frozenset[ClusterEvent] = ENTITY_EVENTS


def _check_scheduler_names(entity: Entity, specs: list[PodSpec]) -> EntityRejection | None:
    ours = specs[0].scheduler_name
    for spec in specs:
        if (name := spec.scheduler_name) != ours:
            return EntityRejection(
                SCHEDULER_ERROR,
                "all pods in a single pod group should have the same .spec.schedulerName set, "
                f'got: "{name}" and "{ours}"',
                f'give all pods of the group the scheduler name "{ours}"',
            )
    return None


def _check_priorities(entity: Entity, specs: list[PodSpec]) -> EntityRejection | None:
    wanted = entity.group.spec.priority if entity.group else 0
    for spec in specs:
        if (priority := spec.priority) != wanted:
            return EntityRejection(
                SCHEDULER_ERROR,
                "all pods in a single pod group should have the same priority as the pod group's "
                f"priority, got {priority} and {wanted}",
                "give the group and all its pods the same priority class",
            )
    return None


def _check_preemption_policies(entity: Entity, specs: list[PodSpec]) -> EntityRejection | None:
    own = entity.group.spec.preemption_policy if entity.group else ""
    wanted = own or specs[0].preemption_policy
    for spec in specs:
        if (policy := spec.preemption_policy) != wanted:
            like_it = " as the pod group's preemption policy" if own else ""
            return EntityRejection(
                SCHEDULER_ERROR,
                "all pods in a single pod group should have the same preemption policy"
                f"{like_it}, got {policy} and {wanted}",
                "give the group and all its pods the same preemption policy",
            )
    return None


def _check_supported_features(entity: Entity, specs: list[PodSpec]) -> EntityRejection | None:
    for member in entity.members:
        if what := member.shape.unsupported:
            message = f"pod asks for {what}, which is not supported yet"
            return EntityRejection(UNSCHEDULABLE, message, f"take {what} out of the pod")
    return None


#: What each row objects to `_is_sound` must know of: rows are asked only of what is not sound.
POD_CHECKS = (_check_supported_features,)
GROUP_CHECKS = (
    _check_scheduler_names,
    _check_priorities,
    _check_preemption_policies,
    _check_supported_features,
)


def validate_entity(entity: Entity) -> Impossible | None:
    """The first objection to an entity as a decision about it."""
    if _is_consistent(entity):
        return None
    specs = [member.pod.spec for member in entity.members] + [
        pod.spec for pod in entity.other_members
    ]
    for row in GROUP_CHECKS if entity.group else POD_CHECKS:
        if found := row(entity, specs):
            return reject_entity(entity, found)
    return None


def _is_consistent(entity: Entity) -> bool:
    """Whether all pods are as their group wants them; mostly they are, and no row need be asked."""
    pods = [
        (spec.scheduler_name, spec.priority, spec.preemption_policy, member.shape.unsupported)
        for member in entity.members
        for spec in (member.pod.spec,)
    ]
    if entity.other_members:
        specs = [pod.spec for pod in entity.other_members]
        pods += [(one.scheduler_name, one.priority, one.preemption_policy, "") for one in specs]
    if not pods:
        return True
    name, priority, policy, _ = pods[0]
    if entity.group is not None:
        own = entity.group.spec
        priority, policy = own.priority, own.preemption_policy or policy
    return pods.count((name, priority, policy, "")) == len(pods)


def reject_entity(entity: Entity, found: EntityRejection) -> Impossible:
    """An objection to an entity as a decision about it."""
    pods = tuple(UnplacedPod(m.pod.metadata.key, m.pod.metadata.uid, None) for m in entity.members)
    groups = entity.groups if entity.is_composite else ()
    parts = tuple(GroupOutcome(one.key, one.is_composite, None) for one in groups)
    return Impossible(
        entity.group_key, pods, found.reason, found.message, found.cure, found.wakes_on, parts
    )
