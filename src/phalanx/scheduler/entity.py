"""Entity: what the queue hands to the cycle. A tree of groups and its pending pods, or a pod alone.

pod alone            members (pod)
PodGroup             members (its pods)
CompositePodGroup    members (all pods below), parts (the groups below, each an entity itself)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from msgspec import Struct

from phalanx.api.core import Pod
from phalanx.api.meta import Key
from phalanx.api.scheduling import CompositePodGroup
from phalanx.scheduler.cluster.forest import Group
from phalanx.scheduler.cluster.shape import Shape

#: The preemption policy by which nobody is evicted.
NEVER = "Never"


class Member(Struct, frozen=True):
    """A pod that waits for a node, and how long and how often it has been tried."""

    pod: Pod
    shape: Shape
    attempts: int = 0
    timestamp: float = 0.0


@dataclass(frozen=True, slots=True)
class Entity:
    """One thing to place. A pod without a group is a group of one."""

    key: Key
    group: Group | None
    members: tuple[Member, ...]
    #: Live members that are not to be placed: bound, assumed, or another scheduler's.
    others: tuple[Pod, ...] = ()
    attempts: int = 0
    timestamp: float = 0.0
    #: Since when nothing has been missing that it needs to be tried.
    ready: float = 0.0
    #: The groups that hang from this one, the oldest first.
    parts: tuple[Entity, ...] = ()
    #: For how many seconds nothing has been missing that it needs to be tried.
    waited: float = 0.0

    @property
    def is_composite(self) -> bool:
        """Whether it is a group of groups."""
        return isinstance(self.group, CompositePodGroup)

    @property
    def groups(self) -> Iterator[Entity]:
        """Itself and all groups below it, if it is one; parents before children."""
        if self.group is not None:
            yield self
        for part in self.parts:
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
    def preempts(self) -> bool:
        """Whether others may be evicted for it: what its group says, or else its pods."""
        own = self.group.spec.preemption_policy if self.group else ""
        return (own or self.members[0].pod.spec.preemption_policy) != NEVER

    @property
    def sort(self) -> str:
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
    def scheduler(self) -> str:
        """The name of the scheduler that is to place it: what its first member says."""
        return self.members[0].pod.spec.scheduler_name

    @property
    def topology(self) -> str:
        """The label whose value the nodes of all members must share; "" for none."""
        constraints = self.group.spec.scheduling_constraints if self.group else None
        return constraints.topology[0].key if constraints and constraints.topology else ""

    @property
    def quorum(self) -> int:
        """How many members must have a node for any to get one."""
        return self.group.quorum if self.group else 1
