"""QueueListing: what the scheduling queue contains, for commands, status reports and metrics.

QueuedEntityInfo    an entity with its state and the reason for it
PendingEntity       an entity in the queue of kube-scheduler that corresponds to its state
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from phalanx.api.meta import COMPOSITE_POD_GROUP_KIND, POD_KIND, Key, Ref
from phalanx.scheduler.cluster.group_tree import GroupTreeProblem, GroupTrees
from phalanx.scheduler.decision import Decision, IncompleteGroupTree, PendingDecision, UnreadyReason
from phalanx.scheduler.queue.queued_entity import (
    QueuedEntity,
    QueueState,
    SubQueue,
)

#: The states of entities that cannot be attempted although they have pending pods.
HELD_BACK = (QueueState.INCOMPLETE, QueueState.GATED)


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
