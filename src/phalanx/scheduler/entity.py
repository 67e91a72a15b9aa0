"""Entity: what the queue hands to the cycle. A PodGroup with its pending pods, or a pod alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from phalanx.api.core import Pod
from phalanx.api.meta import Key
from phalanx.api.scheduling import PodGroup
from phalanx.scheduler.shape import Shape


class Member(NamedTuple):
    """A pod that waits for a node, and how long and how often it has been tried."""

    pod: Pod
    shape: Shape
    attempts: int = 0
    timestamp: float = 0.0


@dataclass(frozen=True, slots=True)
class Entity:
    """One thing to place. A pod without a group is a group of one."""

    key: Key
    group: PodGroup | None
    members: tuple[Member, ...]
    #: Live members that are not to be placed: bound, assumed, or another scheduler's.
    others: tuple[Pod, ...] = ()
    attempts: int = 0
    timestamp: float = 0.0
    #: Since when nothing has been missing that it needs to be tried.
    ready: float = 0.0

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
