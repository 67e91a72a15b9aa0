"""QueueListing: what the scheduling queue contains, for commands, status reports and metrics.

QueuedEntityInfo    an entity with its state and the reason for it
PendingEntity       an entity in the queue of kube-scheduler that corresponds to its state
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from phalanx.api.core import Pod
from phalanx.api.meta import (
    COMPOSITE_POD_GROUP_KIND,
    POD_KIND,
    Key,
    Ref,
    pod_group_ref,
    pod_ref,
)
from phalanx.scheduler.cluster.group_tree import GroupTreeProblem, GroupTrees, is_same_group
from phalanx.scheduler.decision import (
    Binding,
    Decision,
    IncompleteGroupTree,
    PendingDecision,
    UnreadyReason,
)
from phalanx.scheduler.entity import Entity
from phalanx.scheduler.queue.queued_entity import (
    QueuedEntity,
    QueueState,
    SubQueue,
)

#: The states of entities that cannot be attempted although they have pending pods.
HELD_BACK = (QueueState.INCOMPLETE, QueueState.GATED)
_WAITING = (QueueState.ACTIVE, QueueState.BACKING_OFF)


class PendingEntity(NamedTuple):
    """An entity in a queue: its pods, its scheduler, and the refusal if there was one."""

    queue: SubQueue
    state: QueueState
    pods: int
    scheduler: str
    outcome: PendingDecision | None


_LISTING_ORDER = (
    QueueState.IN_FLIGHT,
    QueueState.ACTIVE,
    QueueState.BACKING_OFF,
    QueueState.GATED,
    QueueState.INCOMPLETE,
)


@dataclass(frozen=True, slots=True)
class QueuedEntityInfo:
    """An entity in the queue, its state and the reason for it."""

    ref: Ref
    state: QueueState
    priority: int
    pods: tuple[Key, ...]
    attempts: int
    timestamp: float
    #: When its back-off ends, if it is backing off.
    until: float | None
    unready: UnreadyReason | None
    outcome: Decision | None

    @property
    def key(self) -> Key:
        """The namespace and name of the entity."""
        return self.ref.key

    @property
    def is_group(self) -> bool:
        """Whether it is a PodGroup or a CompositePodGroup, not a pod without a group."""
        return self.ref.kind != POD_KIND


def _entity_info(entry: QueuedEntity) -> QueuedEntityInfo:
    """Describe an entity."""
    is_backing_off = entry.state is QueueState.BACKING_OFF
    return QueuedEntityInfo(
        ref=entry.ref,
        state=entry.state,
        priority=entry.priority,
        pods=tuple(entry.pending),
        attempts=entry.attempts,
        timestamp=entry.timestamp,
        until=entry.backoff_until if is_backing_off else None,
        unready=entry.unready,
        outcome=entry.outcome,
    )


class QueueListing:
    """The entities of a queue, read only. `SchedulingQueue` changes them."""

    def __init__(self) -> None:
        self._group_tree = GroupTrees()
        self._entries: dict[Ref, QueuedEntity] = {}
        self._in_flight: dict[Ref, QueuedEntity] = {}

    def waiting_entity(self, ref: Ref, now: float) -> Entity | None:
        """Return an entity that waits for its next attempt; None if there is none."""
        entry = self._entries.get(ref)
        return entry.build_entity(now) if entry and entry.state in _WAITING else None

    def is_in_flight(self, entity: Entity) -> bool:
        """Whether an attempt of the entity was started and has not ended."""
        return entity.ref in self._in_flight

    def is_current(self, entity: Entity, bindings: Iterable[Binding]) -> bool:
        """Whether these pods are still pending and the groups of the entity are unchanged."""
        entry = self._entries[entity.ref]
        is_pending = all(entry.is_pending(pod, uid) for pod, uid, _ in bindings)
        tree = [part.group for part in entity.groups]
        refs = self._group_tree.valid_subtree(entry.ref) if entry.ref.kind != POD_KIND else ()
        now = [self._group_tree.get(ref) for ref in refs]
        return is_pending and len(tree) == len(now) and all(map(is_same_group, tree, now))

    def list_held_back(self) -> list[QueuedEntityInfo]:
        """The entities that are incomplete or gated."""
        return [_entity_info(entry) for entry in self._entries.values() if entry.state in HELD_BACK]

    def broken_trees(self) -> Iterator[tuple[Key, IncompleteGroupTree]]:
        """Yield the CompositePodGroups whose tree is incomplete or invalid."""
        for name in self._group_tree.groups:
            if name.kind == COMPOSITE_POD_GROUP_KIND and isinstance(
                problem := self._group_tree.root(name), GroupTreeProblem
            ):
                yield name.key, IncompleteGroupTree(problem.message, not problem.missing_group)

    def list_entities(self) -> list[QueuedEntityInfo]:
        """All entities with pending pods, the next one first."""
        entries = [entry for entry in self._entries.values() if entry.state is not QueueState.IDLE]
        entries.sort(key=lambda entry: (_LISTING_ORDER.index(entry.state), entry.sort_key))
        return [_entity_info(entry) for entry in entries]

    def pending_entities(self) -> Iterator[PendingEntity]:
        """Yield the entities in the queues of kube-scheduler, in no order."""
        for entry in self._entries.values():
            if queue_name := entry.queue_name:
                scheduler_name = next(iter(entry.pending.values())).pod.spec.scheduler_name
                outcome = entry.outcome if entry.state is QueueState.BACKING_OFF else None
                sub_queue, pods = SubQueue(queue_name, entry.is_group), len(entry.pending)
                yield PendingEntity(
                    sub_queue, entry.state, pods, scheduler=scheduler_name, outcome=outcome
                )

    def entities_of_owner(self, uid: str) -> list[Ref]:
        """Return the entities with pending pods that an owner with this uid has created."""
        return [
            entry.ref
            for entry in self._entries.values()
            if any(
                owner.uid == uid
                for member in entry.pending.values()
                for owner in member.pod.metadata.owner_references
            )
        ]

    @property
    def late_member_count(self) -> int:
        """How many pods were created during the cycle of their group, and wait for its end."""
        groups_in_flight = (entry for entry in self._in_flight.values() if entry.is_group)
        return sum(
            not member.attempts for entry in groups_in_flight for member in entry.pending.values()
        )

    def _entity_of_group(self, name: Ref) -> Ref:
        """The entity of a group: the root of its tree, or itself if the tree has a problem."""
        root = self._group_tree.root(name)
        return name if isinstance(root, GroupTreeProblem) else root

    def _entity_of_pod(self, pod: Pod) -> Ref:
        return (
            self._entity_of_group(pod_group_ref(pod.group))
            if pod.group
            else pod_ref(pod.metadata.key)
        )
