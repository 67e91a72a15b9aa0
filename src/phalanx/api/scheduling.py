"""PodGroup as the scheduler and its controllers read it. Partial and frozen."""

from __future__ import annotations

from msgspec import Struct

from phalanx.api.meta import Condition, Meta

#: The condition that says, once and for all, whether a group was placed.
INITIALLY_SCHEDULED = "PodGroupInitiallyScheduled"
#: The same as the proposals name it; written beside the other.
SCHEDULED = "PodGroupScheduled"
#: Whether a group that was placed has lost members since, so that fewer than it needs are left.
DEGRADED = "Degraded"
#: How many members whoever makes the pods will still run, if fewer than `minCount`.
MEMBERS_TO_RUN = "phalanx.dev/members-to-run"
#: Keeps a PodGroup from going while live pods refer to it.
PROTECTION_FINALIZER = "scheduling.k8s.io/podgroup-protection"


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


class PodGroupSpec(Struct, frozen=True, rename="camel"):
    """What the group asks for."""

    scheduling_policy: SchedulingPolicy = SchedulingPolicy()
    scheduling_constraints: SchedulingConstraints | None = None
    parent_composite_pod_group_name: str = ""
    priority: int = 0
    preemption_policy: str = "PreemptLowerPriority"


class PodGroupStatus(Struct, frozen=True, rename="camel"):
    """What was decided about the group, and how its members are."""

    conditions: tuple[Condition, ...] = ()
    pending_pods: int = 0
    scheduled_pods: int = 0
    succeeded_pods: int = 0
    failed_pods: int = 0


class PodGroup(Struct, frozen=True):
    """A set of pods that is scheduled as one."""

    metadata: Meta
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
        left = self.metadata.annotations.get(MEMBERS_TO_RUN, "")
        return max(min(gang.min_count, int(left)), 1) if left.isdecimal() else gang.min_count

    @property
    def is_gang(self) -> bool:
        """Whether all or nothing is asked for."""
        return self.spec.scheduling_policy.gang is not None
