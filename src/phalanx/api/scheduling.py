"""PodGroup and Workload as the scheduler and controllers read them. Partial and frozen.

How high priorities go: those of users and groups up to a limit, those of the system beyond it.

The classes of the system are always there, by these names and values alone; pods may be of one, but
no group of pods can.

What a PodGroup says of itself once enough of its members have a node, whoever writes it.

The server does so in the transaction of a GroupBinding, the scheduler's reporter everywhere else.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from phalanx.api.core import PodResourceClaim, PodResourceClaimStatus
from phalanx.api.meta import Condition, ObjectMeta

#: The condition that says, once and for all, whether a group was placed.
POD_GROUP_INITIALLY_SCHEDULED = "PodGroupInitiallyScheduled"
#: The same as the proposals name it; written beside the other.
POD_GROUP_SCHEDULED = "PodGroupScheduled"
#: What it is called on a group of groups.
COMPOSITE_INITIALLY_SCHEDULED = "CompositePodGroupInitiallyScheduled"
#: That a pod, or a group as a whole, was told to make way.
DISRUPTION_TARGET = "DisruptionTarget"
#: Whether a group that was placed has lost members since, so that fewer than it needs are left.
DEGRADED = "Degraded"
#: How many members whoever makes the pods will still run, if fewer than `minCount`.
MEMBERS_TO_RUN_ANNOTATION = "phalanx.dev/members-to-run"
#: On a Workload or PodGroup that a controller has made: which one. What has no such mark and no
#: controller is its user's.
MANAGED_BY_ANNOTATION = "phalanx.dev/managed-by"
#: On a group, and on a Job for its group: how near members would like to be to each other.
TOPOLOGY_ANNOTATION = "phalanx.dev/topology"
#: On a gang: that its members are being bound one by one, and under which number. On a member: the
#: number under which it was bound.
BINDING_INTENT_ANNOTATION = "phalanx.dev/binding-intent"
#: Keeps a PodGroup from going while live pods refer to it.
POD_GROUP_PROTECTION_FINALIZER = "scheduling.k8s.io/podgroup-protection"
#: Numbers of more digits than this are larger than any `minCount`.
_MAX_DIGITS = 10


class GangPolicy(Struct, frozen=True, rename="camel"):
    """All or nothing, from so many members on."""

    min_count: int = 1


class SchedulingPolicy(Struct, frozen=True):
    """One of the two: basic (as many as fit) or gang."""

    basic: dict[str, object] | None = None
    gang: GangPolicy | None = None


class TopologyConstraint(Struct, frozen=True):
    """A node label whose value all members must share."""

    key: str = ""


class SchedulingConstraints(Struct, frozen=True):
    """Where the members may be in relation to each other."""

    topology: tuple[TopologyConstraint, ...] = ()


class DisruptionMode(Struct, frozen=True):
    """One of the two: members are disrupted one by one, or all of them together."""

    single: dict[str, object] | None = None
    all: dict[str, object] | None = None


class WorkloadReference(Struct, frozen=True, rename="camel"):
    """The template that a group was made of."""

    workload_name: str = ""
    template_name: str = ""


class PodGroupSpec(Struct, frozen=True, rename="camel"):
    """What the group asks for."""

    workload_ref: WorkloadReference | None = None
    scheduling_policy: SchedulingPolicy = SchedulingPolicy()
    scheduling_constraints: SchedulingConstraints | None = None
    disruption_mode: DisruptionMode | None = None
    parent_composite_pod_group_name: str = ""
    priority: int = 0
    preemption_policy: str = "PreemptLowerPriority"
    resource_claims: tuple[PodResourceClaim, ...] = ()


class PodGroupStatus(Struct, frozen=True, rename="camel"):
    """What was decided about the group, and how its members are."""

    conditions: tuple[Condition, ...] = ()
    pending_pods: int = 0
    scheduled_pods: int = 0
    succeeded_pods: int = 0
    failed_pods: int = 0
    resource_claim_statuses: tuple[PodResourceClaimStatus, ...] = ()


class PodGroup(Struct, frozen=True):
    """A set of pods that is scheduled as one."""

    metadata: ObjectMeta
    spec: PodGroupSpec = PodGroupSpec()
    status: PodGroupStatus = PodGroupStatus()

    @property
    def quorum(self) -> int:
        """How many members must be placed for any to be: one for a basic group.

        For a gang it is `minCount`, or the number of members that are still to run if that is less.
        """
        gang = self.spec.scheduling_policy.gang
        if gang is None:
            return 1
        left = self.metadata.annotations.get(MEMBERS_TO_RUN_ANNOTATION, "")
        is_number = left.isdecimal() and len(left) <= _MAX_DIGITS
        return max(min(gang.min_count, int(left)), 1) if is_number else gang.min_count

    @property
    def min_count(self) -> int:
        """How many members a gang needs; one for a basic group."""
        gang = self.spec.scheduling_policy.gang
        return gang.min_count if gang else 1

    @property
    def with_pod_preemption_policy(self) -> PodGroup:
        """The same group, as if it left it to its pods whether others may be evicted for them."""
        return replace(self, spec=replace(self.spec, preemption_policy=""))

    @property
    def is_gang(self) -> bool:
        """Whether all or nothing is asked for."""
        return self.spec.scheduling_policy.gang is not None

    @property
    def binding_intent(self) -> str:
        """The number of the intent to bind it that is still open, if there is one."""
        return self.metadata.annotations.get(BINDING_INTENT_ANNOTATION, "")


class CompositeGangPolicy(Struct, frozen=True, rename="camel"):
    """All or nothing, from so many groups on."""

    min_group_count: int = 1


class CompositePolicy(Struct, frozen=True):
    """One of the two: basic (as many groups as fit) or gang."""

    basic: dict[str, object] | None = None
    gang: CompositeGangPolicy | None = None


class CompositePodGroupSpec(Struct, frozen=True, rename="camel"):
    """What the group of groups asks for."""

    workload_ref: WorkloadReference | None = None
    scheduling_policy: CompositePolicy = CompositePolicy()
    scheduling_constraints: SchedulingConstraints | None = None
    disruption_mode: DisruptionMode | None = None
    parent_composite_pod_group_name: str = ""
    priority: int = 0
    preemption_policy: str = "PreemptLowerPriority"


class CompositePodGroupStatus(Struct, frozen=True, rename="camel"):
    """What was decided about it, and how its groups and the pods below them are."""

    conditions: tuple[Condition, ...] = ()
    pending_groups: int = 0
    scheduled_groups: int = 0
    pending_pods: int = 0
    scheduled_pods: int = 0
    succeeded_pods: int = 0
    failed_pods: int = 0


class CompositePodGroup(Struct, frozen=True):
    """A set of groups, or of such sets, that is scheduled as one."""

    metadata: ObjectMeta
    spec: CompositePodGroupSpec = CompositePodGroupSpec()
    status: CompositePodGroupStatus = CompositePodGroupStatus()

    @property
    def quorum(self) -> int:
        """How many of its groups must be placed for any to be: one if it is basic."""
        gang = self.spec.scheduling_policy.gang
        return gang.min_group_count if gang else 1

    @property
    def with_pod_preemption_policy(self) -> CompositePodGroup:
        """The same, as if it left it to its pods whether others may be evicted for them."""
        return replace(self, spec=replace(self.spec, preemption_policy=""))


class ControllerReference(Struct, frozen=True, rename="camel"):
    """The object whose pods a Workload is about."""

    api_group: str = ""
    kind: str = ""
    name: str = ""


class WorkloadSpec(Struct, frozen=True, rename="camel"):
    """Whom it is about and of what its groups are made; templates are copied as they are."""

    controller_ref: ControllerReference | None = None
    pod_group_templates: tuple[dict[str, Any], ...] | None = None
    composite_pod_group_templates: tuple[dict[str, Any], ...] | None = None


class Workload(Struct, frozen=True):
    """How the pods of an object are to be scheduled."""

    metadata: ObjectMeta
    spec: WorkloadSpec = WorkloadSpec()

    @property
    def controller_identity(self) -> tuple[str, str, str] | None:
        """API group, kind and name of the object that it is about."""
        ref = self.spec.controller_ref
        return (ref.api_group, ref.kind, ref.name) if ref else None

    @property
    def pod_group_template_count(self) -> int:
        """How many templates of groups it has at the top."""
        return len(self.spec.pod_group_templates or ())


#: The highest priority of a group, and of a class that is a user's.
MAX_USER_PRIORITY = 1_000_000_000
#: Classes for what the cluster itself needs, and their values.
SYSTEM_PRIORITY_CLASSES: Mapping[str, int] = {
    "system-cluster-critical": 2_000_000_000,
    "system-node-critical": 2_000_001_000,
}


def scheduled_conditions(needed: int) -> tuple[Condition, Condition]:
    """The same news under the two names that a group's condition goes by."""
    text = f"All required pods ({needed}/{needed}) have been assigned to nodes"
    return (
        Condition(POD_GROUP_INITIALLY_SCHEDULED, "True", "Scheduled"),
        Condition(POD_GROUP_SCHEDULED, "True", "MinCountSatisfied", text),
    )
