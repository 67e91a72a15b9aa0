"""PodGroup, CompositePodGroup and Workload as our components read them. Partial and frozen.

Also the constants of `scheduling.k8s.io`: condition types, annotations, the range of priorities,
and the conditions of a PodGroup that has enough scheduled members. The server writes these in the
transaction of a GroupBinding; the scheduler writes them on foreign API servers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from phalanx.api.core import PodResourceClaim, PodResourceClaimStatus
from phalanx.api.meta import Condition, ObjectMeta, find_condition

#: The condition that says whether a group was scheduled; it stays True.
POD_GROUP_INITIALLY_SCHEDULED = "PodGroupInitiallyScheduled"
#: The same condition as the KEPs name it; both are written.
POD_GROUP_SCHEDULED = "PodGroupScheduled"
#: The same condition of a CompositePodGroup.
COMPOSITE_INITIALLY_SCHEDULED = "CompositePodGroupInitiallyScheduled"
#: A pod, or a whole group, is being preempted or evicted.
DISRUPTION_TARGET = "DisruptionTarget"
#: Whether a scheduled group has lost members and has fewer than its quorum.
DEGRADED = "Degraded"
#: The reason of Degraded once the scheduler could not replace the lost members.
REPLACEMENT_UNSCHEDULABLE = "ReplacementUnschedulable"
#: Which entity has preempted members of a group; removed once the group has its quorum again.
PREEMPTED = "Preempted"
#: On a group whose Job has ended: how, such as `Complete` or `Failed: BackoffLimitExceeded`.
FINISHED_ANNOTATION = "phalanx.dev/finished"
#: The user for which a workload runs, on a PodGroup or its pods; `phalanx queue --user` reads it.
USER_LABEL = "phalanx.dev/user"
#: On a group of an old API version without a priority: it has the lowest one of its members.
PRIORITY_FROM_MEMBERS_ANNOTATION = "phalanx.dev/priority-from-members"
#: On a Job, and on its group: what to do if lost members of its gang cannot be replaced.
ON_DEGRADED_ANNOTATION = "phalanx.dev/on-degraded"
#: The value of it that makes the Job controller evict the other members too.
RESTART = "Restart"
#: On a group that was restarted: how often, and when for the last time.
RESTARTS_ANNOTATION = "phalanx.dev/restarts"
RESTARTED_AT_ANNOTATION = "phalanx.dev/restarted-at"
#: On a group where the schema has no `status.shortfall`: the same as JSON.
SHORTFALL_ANNOTATION = "phalanx.dev/shortfall"
#: Whether nodes are kept for a waiting group.
RESERVED = "Reserved"
#: The number of members that their controller will still run, if fewer than `minCount`.
MEMBERS_TO_RUN_ANNOTATION = "phalanx.dev/members-to-run"
#: On a Workload or PodGroup that a controller created: its name. Without it and without a
#: controller reference, the object belongs to the user.
MANAGED_BY_ANNOTATION = "phalanx.dev/managed-by"
#: On Workloads that are replaced: which templates, apart from sizes, they were created with. A
#: server drops the fields of disabled features.
TEMPLATES_ANNOTATION = "phalanx.dev/templates-sha256"
#: On a group, and on a Job for its group: the preferred topology levels of its members.
TOPOLOGY_ANNOTATION = "phalanx.dev/topology"
#: On a gang: the number of the intent under which its members are bound one by one. On a member:
#: the number of the intent under which it was bound.
BINDING_INTENT_ANNOTATION = "phalanx.dev/binding-intent"
#: Keeps a PodGroup while pods that are not terminal refer to it.
POD_GROUP_PROTECTION_FINALIZER = "scheduling.k8s.io/podgroup-protection"
#: Numbers with more digits are larger than any `minCount`.
_MAX_DIGITS = 10


class GangPolicy(Struct, frozen=True, rename="camel"):
    """Gang scheduling: at least `minCount` members or none."""

    min_count: int = 1


class SchedulingPolicy(Struct, frozen=True):
    """Exactly one of basic (as many members as fit) and gang."""

    basic: dict[str, object] | None = None
    gang: GangPolicy | None = None


class TopologyConstraint(Struct, frozen=True):
    """A node label whose value must be equal for all members."""

    key: str = ""


class SchedulingConstraints(Struct, frozen=True):
    """The topology constraints of a group."""

    topology: tuple[TopologyConstraint, ...] = ()


class DisruptionMode(Struct, frozen=True):
    """Exactly one of single (members are disrupted one by one) and all (together)."""

    single: dict[str, object] | None = None
    all: dict[str, object] | None = None


class WorkloadReference(Struct, frozen=True, rename="camel"):
    """The Workload and the template that a group was created from."""

    workload_name: str = ""
    template_name: str = ""


class PodGroupSpec(Struct, frozen=True, rename="camel"):
    """The spec of a PodGroup."""

    workload_ref: WorkloadReference | None = None
    scheduling_policy: SchedulingPolicy = SchedulingPolicy()
    scheduling_constraints: SchedulingConstraints | None = None
    disruption_mode: DisruptionMode | None = None
    parent_composite_pod_group_name: str = ""
    priority_class_name: str = ""
    priority: int = 0
    preemption_policy: str = "PreemptLowerPriority"
    resource_claims: tuple[PodResourceClaim, ...] = ()


class PodGroupStatus(Struct, frozen=True, rename="camel"):
    """The conditions of a PodGroup, and the counts of its members."""

    conditions: tuple[Condition, ...] = ()
    pending_pods: int = 0
    scheduled_pods: int = 0
    succeeded_pods: int = 0
    failed_pods: int = 0
    desired_pods: int = 0
    ready_pods: int = 0
    preemptions: int = 0
    shortfall: dict[str, Any] | None = None
    resource_claim_statuses: tuple[PodResourceClaimStatus, ...] = ()


def _limit_to_members_to_run(minimum: int, metadata: ObjectMeta) -> int:
    """Return the minimum of a gang, or the number of members that are still to run if lower."""
    left = metadata.annotations.get(MEMBERS_TO_RUN_ANNOTATION, "")
    is_number = left.isdecimal() and len(left) <= _MAX_DIGITS
    return max(min(minimum, int(left)), 1) if is_number else minimum


class PodGroup(Struct, frozen=True):
    """A PodGroup: pods that are scheduled together."""

    metadata: ObjectMeta
    spec: PodGroupSpec = PodGroupSpec()
    status: PodGroupStatus = PodGroupStatus()

    @property
    def quorum(self) -> int:
        """The number of members that must be scheduled together; 1 for a basic group.

        For a gang it is `minCount`, or the number of members that are still to run if that is
        lower.
        """
        return _limit_to_members_to_run(self.min_count, self.metadata)

    @property
    def min_count(self) -> int:
        """The `minCount` of a gang; 1 for a basic group."""
        gang = self.spec.scheduling_policy.gang
        return gang.min_count if gang else 1

    @property
    def with_pod_preemption_policy(self) -> PodGroup:
        """The same group without its own preemption policy, so that its pods' policies apply."""
        return replace(self, spec=replace(self.spec, preemption_policy=""))

    @property
    def is_gang(self) -> bool:
        """Whether the group has a gang policy."""
        return self.spec.scheduling_policy.gang is not None

    @property
    def takes_member_priority(self) -> bool:
        """Whether the priority is the lowest of the members, which may differ."""
        return PRIORITY_FROM_MEMBERS_ANNOTATION in self.metadata.annotations

    @property
    def is_finished(self) -> bool:
        """Whether the Job of the group has ended."""
        return FINISHED_ANNOTATION in self.metadata.annotations

    @property
    def binding_intent(self) -> str:
        """The number of the open intent to bind the group; "" if there is none."""
        return self.metadata.annotations.get(BINDING_INTENT_ANNOTATION, "")


class CompositeGangPolicy(Struct, frozen=True, rename="camel"):
    """Gang scheduling of groups: at least `minGroupCount` child groups or none."""

    min_group_count: int = 1


class CompositePolicy(Struct, frozen=True):
    """Exactly one of basic (as many child groups as fit) and gang."""

    basic: dict[str, object] | None = None
    gang: CompositeGangPolicy | None = None


class CompositePodGroupSpec(Struct, frozen=True, rename="camel"):
    """The spec of a CompositePodGroup."""

    workload_ref: WorkloadReference | None = None
    scheduling_policy: CompositePolicy = CompositePolicy()
    scheduling_constraints: SchedulingConstraints | None = None
    disruption_mode: DisruptionMode | None = None
    parent_composite_pod_group_name: str = ""
    priority_class_name: str = ""
    priority: int = 0
    preemption_policy: str = "PreemptLowerPriority"


class CompositePodGroupStatus(Struct, frozen=True, rename="camel"):
    """The conditions of a CompositePodGroup, and the counts of its groups and pods."""

    conditions: tuple[Condition, ...] = ()
    pending_groups: int = 0
    scheduled_groups: int = 0
    pending_pods: int = 0
    scheduled_pods: int = 0
    succeeded_pods: int = 0
    failed_pods: int = 0


class CompositePodGroup(Struct, frozen=True):
    """A CompositePodGroup: groups that are scheduled together."""

    metadata: ObjectMeta
    spec: CompositePodGroupSpec = CompositePodGroupSpec()
    status: CompositePodGroupStatus = CompositePodGroupStatus()

    @property
    def quorum(self) -> int:
        """The number of child groups that must be scheduled together; 1 if it is basic.

        For a gang it is `minGroupCount`, or the number of groups with members that are still to run
        if that is lower.
        """
        return _limit_to_members_to_run(self.min_group_count, self.metadata)

    @property
    def min_group_count(self) -> int:
        """The `minGroupCount` of a gang; 1 for a basic group."""
        gang = self.spec.scheduling_policy.gang
        return gang.min_group_count if gang else 1

    @property
    def is_gang(self) -> bool:
        """Whether as many child groups as its quorum must be scheduled together."""
        return self.spec.scheduling_policy.gang is not None

    @property
    def with_pod_preemption_policy(self) -> CompositePodGroup:
        """The same group without its own preemption policy, so that its pods' policies apply."""
        return replace(self, spec=replace(self.spec, preemption_policy=""))


class ControllerReference(Struct, frozen=True, rename="camel"):
    """The object whose pods a Workload describes."""

    api_group: str = ""
    kind: str = ""
    name: str = ""


class WorkloadSpec(Struct, frozen=True, rename="camel"):
    """The controller of a Workload and its group templates, which are copied as JSON."""

    controller_ref: ControllerReference | None = None
    pod_group_templates: tuple[dict[str, Any], ...] | None = None
    composite_pod_group_templates: tuple[dict[str, Any], ...] | None = None


class Workload(Struct, frozen=True):
    """A Workload: the scheduling of the pods of a controller."""

    metadata: ObjectMeta
    spec: WorkloadSpec = WorkloadSpec()

    @property
    def controller_identity(self) -> tuple[str, str, str] | None:
        """API group, kind and name of the controller, if there is one."""
        ref = self.spec.controller_ref
        return (ref.api_group, ref.kind, ref.name) if ref else None

    @property
    def pod_group_template_count(self) -> int:
        """The number of pod group templates at the top level."""
        return len(self.spec.pod_group_templates or ())


#: The highest priority of a group, and of a PriorityClass of users.
MAX_USER_PRIORITY = 1_000_000_000
#: The built-in PriorityClasses. They always exist with these values; pods may use them, groups not.
SYSTEM_PRIORITY_CLASSES: Mapping[str, int] = {
    "system-cluster-critical": 2_000_000_000,
    "system-node-critical": 2_000_001_000,
}


_REQUIRED_PODS = re.compile(r"All required pods \((\d+)/")


def required_when_scheduled(group: PodGroup) -> int:
    """Return how many members the group required when it was scheduled; 0 if that is unknown."""
    condition = find_condition(group.status.conditions, POD_GROUP_SCHEDULED)
    found = _REQUIRED_PODS.match(condition.message) if condition else None
    return int(found[1]) if found else 0


def scheduled_conditions(needed: int) -> tuple[Condition, Condition]:
    """Return the conditions of a scheduled group, under the two types that clients know."""
    text = f"All required pods ({needed}/{needed}) have been assigned to nodes"
    return (
        Condition(POD_GROUP_INITIALLY_SCHEDULED, "True", "Scheduled"),
        Condition(POD_GROUP_SCHEDULED, "True", "MinCountSatisfied", message=text),
    )
