"""Entity: what the queue passes to the cycle, and the checks that need no cluster.

An entity is a tree of groups with its pending pods, or a pod without a group:

    Pod without a group    members (the pod)
    PodGroup               members (its pods)
    CompositePodGroup      members (all pods below), children (its groups, each an Entity)

`validate_entity` runs before any placement and rejects entities that no cluster can place. A check
reads the entity alone. The messages about unequal members are those of Kubernetes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from msgspec import Struct

from phalanx.api.core import Pod, PodSpec
from phalanx.api.meta import COMPOSITE_POD_GROUP_KIND, Key, Ref
from phalanx.api.scheduling import PodGroup
from phalanx.scheduler.cluster.group_tree import Group
from phalanx.scheduler.cluster.pod_shape import PodShape
from phalanx.scheduler.decision import (
    ENTITY_EVENTS,
    SCHEDULER_ERROR,
    ClusterEvent,
    GroupOutcome,
    Impossible,
    UnplacedPod,
)

#: The preemption policy of pods that never preempt.
PREEMPTION_NEVER = "Never"


class Member(Struct, frozen=True):
    """A pending pod, how often it has been tried, and since when it is pending."""

    pod: Pod
    shape: PodShape
    attempts: int = 0
    timestamp: float = 0.0


@dataclass(frozen=True, slots=True)
class Entity:
    """One unit of scheduling. A pod without a group counts as a group of one."""

    ref: Ref
    group: Group | None
    members: tuple[Member, ...]
    #: Live members that are not placed here: bound, assumed, or of another scheduler.
    other_members: tuple[Pod, ...] = ()
    attempts: int = 0
    timestamp: float = 0.0
    #: Since when the entity has been ready to be tried.
    ready_since: float = 0.0
    #: The child groups, the oldest first.
    children: tuple[Entity, ...] = ()
    #: For how many seconds the entity has been ready to be tried.
    waited_seconds: float = 0.0
    #: When the attempt began, in seconds since the epoch: the time of the decision.
    attempted_at: float = 0.0

    @property
    def pod_keys(self) -> frozenset[Key]:
        """The pending pods."""
        return frozenset(member.pod.metadata.key for member in self.members)

    @property
    def key(self) -> Key:
        """The namespace and name of the group, or of the pod that has none."""
        return self.ref.key

    @property
    def is_composite(self) -> bool:
        """Whether the entity is a CompositePodGroup."""
        return self.ref.kind == COMPOSITE_POD_GROUP_KIND

    @property
    def groups(self) -> Iterator[Entity]:
        """The entity and all groups below it, parents before children; empty for a pod."""
        if self.group is not None:
            yield self
        for part in self.children:
            yield from part.groups

    @property
    def leaves(self) -> Iterator[Entity]:
        """The PodGroups of the entity."""
        return (group for group in self.groups if not group.is_composite)

    @property
    def priority(self) -> int:
        """The priority of the group, or of the pod without a group."""
        return self.group.spec.priority if self.group else self.members[0].pod.spec.priority

    @property
    def may_preempt(self) -> bool:
        """Whether the preemption policy of the group, or else of its pods, allows preemption."""
        group_policy = self.group.spec.preemption_policy if self.group else ""
        return (group_policy or self.members[0].pod.spec.preemption_policy) != PREEMPTION_NEVER

    @property
    def kind(self) -> str:
        """The kind as Kubernetes spells it in messages: pod, podgroup, compositepodgroup."""
        return self.ref.kind.lower()

    @property
    def uid(self) -> str:
        """The uid of the group, or of the pod without a group."""
        return (self.group or self.members[0].pod).metadata.uid

    @property
    def group_key(self) -> Key | None:
        """The key of the group; None for a pod without a group."""
        return self.key if self.group else None

    @property
    def scheduler_name(self) -> str:
        """The scheduler name of the first member."""
        return self.members[0].pod.spec.scheduler_name

    @property
    def topology_key(self) -> str:
        """The label whose value the nodes of all members must share; "" for none."""
        constraints = self.group.spec.scheduling_constraints if self.group else None
        return constraints.topology[0].key if constraints and constraints.topology else ""

    @property
    def quorum(self) -> int:
        """How many members (of a CompositePodGroup: groups) must be placed for any to be."""
        return self.group.quorum if self.group else 1


@dataclass(frozen=True, slots=True)
class EntityRejection:
    """Why an entity is rejected: reason code, message, and what to edit."""

    reason: str
    message: str
    cure: str
    #: The events that may change the result.
    wakes_on: frozenset[ClusterEvent] = ENTITY_EVENTS


def _check_scheduler_names(entity: Entity, specs: list[PodSpec]) -> EntityRejection | None:
    scheduler_name = specs[0].scheduler_name
    for spec in specs:
        if (name := spec.scheduler_name) != scheduler_name:
            return EntityRejection(
                SCHEDULER_ERROR,
                "all pods in a single pod group should have the same .spec.schedulerName set, "
                f'got: "{name}" and "{scheduler_name}"',
                f'give all pods of the group the scheduler name "{scheduler_name}"',
            )
    return None


def _check_priorities(entity: Entity, specs: list[PodSpec]) -> EntityRejection | None:
    expected = entity.group.spec.priority if entity.group else 0
    for spec in specs:
        if (priority := spec.priority) != expected:
            return EntityRejection(
                SCHEDULER_ERROR,
                "all pods in a single pod group should have the same priority as the pod group's "
                f"priority, got {priority} and {expected}",
                "give the group and all its pods the same priority class",
            )
    return None


def _check_preemption_policies(entity: Entity, specs: list[PodSpec]) -> EntityRejection | None:
    group_policy = entity.group.spec.preemption_policy if entity.group else ""
    expected = group_policy or specs[0].preemption_policy
    for spec in specs:
        if (policy := spec.preemption_policy) != expected:
            suffix = " as the pod group's preemption policy" if group_policy else ""
            return EntityRejection(
                SCHEDULER_ERROR,
                "all pods in a single pod group should have the same preemption policy"
                f"{suffix}, got {policy} and {expected}",
                "give the group and all its pods the same preemption policy",
            )
    return None


#: `_is_consistent` must cover every check: checks run only for entities that are not consistent.
GROUP_CHECKS = (_check_scheduler_names, _check_priorities, _check_preemption_policies)
#: The checks of a group whose members may have different priorities.
MEMBER_PRIORITY_CHECKS = (_check_scheduler_names,)


def validate_entity(entity: Entity) -> Impossible | None:
    """Run the checks; return the first rejection as a decision, None if there is none."""
    group = entity.group
    if group is None or _is_consistent(entity):
        return None
    specs = [member.pod.spec for member in entity.members]
    specs += [pod.spec for pod in entity.other_members]
    has_own_priorities = isinstance(group, PodGroup) and group.takes_member_priority
    for check in MEMBER_PRIORITY_CHECKS if has_own_priorities else GROUP_CHECKS:
        if rejection := check(entity, specs):
            return reject_entity(entity, rejection)
    return None


def _is_consistent(entity: Entity) -> bool:
    """Whether all pods agree with their group. They almost always do, and then no check runs."""
    pods = [
        (spec.scheduler_name, spec.priority, spec.preemption_policy)
        for member in entity.members
        for spec in (member.pod.spec,)
    ]
    if entity.other_members:
        specs = [pod.spec for pod in entity.other_members]
        pods += [(one.scheduler_name, one.priority, one.preemption_policy) for one in specs]
    if not pods:
        return True
    name, priority, policy = pods[0]
    if entity.group is not None:
        parent_spec = entity.group.spec
        priority, policy = parent_spec.priority, parent_spec.preemption_policy or policy
    return pods.count((name, priority, policy)) == len(pods)


def reject_after_error(entity: Entity, error: Exception) -> Impossible:
    """Return the decision about an entity whose cycle raised: retried with back-off."""
    return reject_entity(
        entity,
        EntityRejection(
            SCHEDULER_ERROR,
            f"the scheduler failed on this {entity.ref.kind} ({type(error).__name__}: {error}) and "
            "retries with back-off; the traceback is in the log of the scheduler",
            "report the traceback in the log of the scheduler as a bug",
        ),
    )


def reject_entity(entity: Entity, rejection: EntityRejection) -> Impossible:
    """Turn a rejection into a decision."""
    pods = tuple(UnplacedPod(m.pod.metadata.key, m.pod.metadata.uid, None) for m in entity.members)
    groups = entity.groups if entity.is_composite else ()
    parts = tuple(GroupOutcome(one.ref, None) for one in groups)
    return Impossible(
        entity.group_key,
        pods,
        rejection.reason,
        message=rejection.message,
        cure=rejection.cure,
        wakes_on=rejection.wakes_on,
        parts=parts,
    )
