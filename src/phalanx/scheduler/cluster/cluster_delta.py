"""ClusterDelta: what a change of the cluster adds, so that the queue wakes only what it may cure.

The cache returns a change for every event. It holds the node before and after as a `NodeRoom`: how
many pods of a shape the node holds, for an entity of some priority.

    node a: 8 cpu, pods of 6 and 1 cpu; the pod of 6 cpu ends
    shape of 4 cpu     before 0, after 1     room is added
    shape of 8 cpu     before 0, after 0     no room is added: 7 cpu are free

An entity that may preempt counts pods of lower priority as room already, so their end adds none.
A change without rooms and pods, such as new labels of a namespace, may concern every entity.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from msgspec import Struct

from phalanx.api.core import Node
from phalanx.scheduler.cluster.node_constraints import UNSCHEDULABLE_TAINT
from phalanx.scheduler.cluster.peer_constraints import Labels
from phalanx.scheduler.cluster.pod_index import AssignedPod
from phalanx.scheduler.cluster.pod_shape import PodShape
from phalanx.scheduler.decision import ClusterEvent

_UNLIMITED = 1 << 30


class RoomView(NamedTuple):
    """For which entity room is counted: its priority, and which pods it may displace.

    Pods that leave count as room for an entity that may preempt, but not for ever: a pod may hang
    in Terminating. `counts_leaving` decides the doubtful case.
    """

    priority: int
    evicts: bool = False
    counts_leaving: bool = False


class RoomUser(NamedTuple):
    """A pod that uses room of a node."""

    shape: PodShape
    #: The priority of the root of its group, which preemption compares.
    priority: int
    is_leaving: bool = False
    #: Whether the node is only nominated for the pod.
    is_nominated: bool = False

    def occupies(self, view: RoomView) -> bool:
        """Whether the pod takes room from an entity."""
        if self.is_nominated:
            return self.priority >= view.priority
        if not view.evicts:
            return True
        return not view.counts_leaving if self.is_leaving else self.priority >= view.priority


@dataclass(frozen=True, slots=True, eq=False)
class NodeRoom:
    """A node and the pods on it at one moment."""

    node: Node
    columns: Mapping[str, int]
    allocatable: tuple[int, ...]
    #: Returns the pods; called when room is counted for the first time. The pods are those of the
    #: moment; the priorities of their groups are the present ones (a changed group is an event).
    list_users: Callable[[], tuple[RoomUser, ...]]
    _users: list[RoomUser] = field(default_factory=list)
    _free: dict[RoomView, list[int]] = field(default_factory=dict)

    @property
    def users(self) -> Sequence[RoomUser]:
        """The pods that use room of the node."""
        if not self._users:
            self._users.extend(self.list_users())
        return self._users

    def admits(self, shape: PodShape) -> bool:
        """Whether name, labels, taints and cordon of the node allow pods of a shape."""
        node, constraints = self.node, shape.node_constraints
        if node.spec.unschedulable and not constraints.tolerates(UNSCHEDULABLE_TAINT):
            return False
        if node.spec.taints and constraints.untolerated_taints(node.spec.taints):
            return False
        return constraints.matches(node.metadata.name, node.metadata.labels)

    def count(self, shape: PodShape, view: RoomView) -> int:
        """Count the pods of a shape that the node has room for."""
        if not self.admits(shape):
            return 0
        free, columns = self.free_amounts(view), self.columns
        most = 1 if shape.ports else _UNLIMITED
        for name, amount in shape.requests:
            # A column may be newer than this room.
            column = columns.get(name, len(free))
            if column >= len(free) or free[column] < amount:
                return 0
            most = min(most, free[column] // amount)
        if shape.ports:
            used = [port for user in self.users if user.occupies(view) for port in user.shape.ports]
            if any(port.conflicts_with(other) for port in shape.ports for other in used):
                return 0
        return most

    def free_amounts(self, view: RoomView) -> list[int]:
        """Return the amounts, by column, that no pod takes from an entity."""
        free = self._free.get(view)
        if free is None:
            free = self._free[view] = list(self.allocatable)
            for user in self.users:
                if user.occupies(view):
                    for name, amount in user.shape.requests:
                        # A nominated pod may request what no node has.
                        column = self.columns.get(name, len(free))
                        if column < len(free):
                            free[column] -= amount
        return free


class ClusterDelta(Struct, frozen=True, eq=False):
    """An event and what changed. Without details it may concern every entity."""

    event: ClusterEvent
    #: The node before and after the change; None for a node that did not exist, or is unknown.
    before: NodeRoom | None = None
    after: NodeRoom | None = None
    #: The versions of the pod that came, changed or went.
    pods: tuple[AssignedPod, ...] = ()
    #: Whether entities with equal conditions may get different decisions after the change.
    concerns_each: bool = False

    @property
    def has_details(self) -> bool:
        """Whether it is known what changed."""
        return bool(self.pods) or self.before is not None or self.after is not None

    @property
    def frees_anti_affinity(self) -> bool:
        """Whether a pod has gone that kept other pods away."""
        has_left = self.event is ClusterEvent.POD_GONE
        return has_left and any(pod.shape.peer_constraints.anti_affinity for pod in self.pods)

    @property
    def node_labels(self) -> tuple[Labels, Labels]:
        """The labels of the node before and after the change."""
        before, after = self.before, self.after
        return (
            before.node.metadata.labels if before else {},
            after.node.metadata.labels if after else {},
        )

    @property
    def changes_node(self) -> bool:
        """Whether the node came, or has other labels, taints or another cordon."""
        if self.before is None or self.after is None:
            return self.before is not self.after
        old, new = self.before.node, self.after.node
        return old.spec != new.spec or old.metadata.labels != new.metadata.labels

    def changes_labels(self, keys: Iterable[str]) -> bool:
        """Whether one of these labels of the node has another value."""
        old, new = self.node_labels
        return any(old.get(key) != new.get(key) for key in keys)

    def adds_room(
        self, shapes: Collection[PodShape], priority: int, *, free: bool, evictable: bool
    ) -> int:
        """Count at most how many more pods of some shapes the node holds; 0 if it cannot help.

        `free` counts room without pods, `evictable` room that an eviction can make.
        """
        added = self._added(shapes, RoomView(priority), RoomView(priority)) if free else 0
        if evictable:
            lower = RoomView(priority, evicts=True)
            upper = RoomView(priority, evicts=True, counts_leaving=True)
            added = max(added, self._added(shapes, lower, upper))
        return added

    def frees_held_room(
        self, shapes: Collection[PodShape], view: RoomView, *, reserved_pods: int
    ) -> int:
        """Count at most how many pods of some shapes more than before fit beside reservations.

        What these keep on the node is unknown, except that they keep at most `reserved_pods` pods.
        """
        before, after = self.before, self.after
        if after is None:
            return 0
        if before is None or before is after or self.changes_node:
            return sum(after.count(shape, view) for shape in shapes)
        old, new = before.free_amounts(view), after.free_amounts(view)
        old = old + [0] * (len(new) - len(old))
        grown = {name for name, i in after.columns.items() if i < len(new) and new[i] > old[i]}
        if "pods" in grown and old[after.columns["pods"]] > reserved_pods:
            grown.remove("pods")
        requested = (shape for shape in shapes if grown & {name for name, _ in shape.requests})
        return sum(after.count(shape, view) for shape in requested)

    def _added(self, shapes: Collection[PodShape], lower: RoomView, upper: RoomView) -> int:
        before, after = self.before, self.after
        if after is None:
            return 0
        added = 0
        is_mixed = len(shapes) > 1
        for shape in shapes:
            count = after.count(shape, upper)
            if not count:
                continue
            known = before.count(shape, lower) if before else 0
            if is_mixed and known and before:
                old, new = before.free_amounts(lower), after.free_amounts(upper)
                old = old + [0] * (len(new) - len(old))
                if any(amount > freed for freed, amount in zip(old, new, strict=True)):
                    # Members of different shapes may fit together although neither count has grown.
                    known = 0
            added += max(count - known, 0)
        return added


def is_equivalent_node(node: Node, other: Node) -> bool:
    """Whether two versions are equal in all that filters and scores read, as after a heartbeat."""
    return (
        node.spec == other.spec
        and node.metadata.labels == other.metadata.labels
        and node.status.allocatable == other.status.allocatable
        and node.status.images == other.status.images
    )
