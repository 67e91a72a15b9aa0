"""What the scheduling queue knows about one entity: its pods, its state and its attempts.

An entity is a pod without a group, a PodGroup, or a tree of CompositePodGroups, scheduled as one.

    QueuedEntity            the mutable entry of an entity in the queue
    QueueState, SubQueue    its state, and the queue of kube-scheduler that corresponds to it
    QueuedEntityCheckpoint  what a decision log stores of it

`scheduling_queue.py` moves entries between states; nothing here does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace as but

from phalanx.api.batch import parse_run_time
from phalanx.api.core import Pod
from phalanx.api.meta import COMPOSITE_POD_GROUP_KIND, POD_GROUP_KIND, POD_KIND, Key, Ref
from phalanx.api.scheduling import PodGroup
from phalanx.scheduler.cluster.cluster_delta import ClusterDelta
from phalanx.scheduler.cluster.group_tree import MAX_DEPTH, Group, GroupTreeProblem, GroupTrees
from phalanx.scheduler.cluster.pod_shape import shape_of
from phalanx.scheduler.decision import (
    SCHEDULER_ERROR,
    ClusterEvent,
    IncompleteGroupTree,
    MissingClaims,
    MissingGroup,
    MissingGroups,
    MissingMembers,
    PendingDecision,
    SchedulingGated,
    UnreadyReason,
)
from phalanx.scheduler.entity import Entity, Member
from phalanx.scheduler.queue.wake_condition import NO_CONDITION, RefusalScope, WakeCondition

#: The changes during a cycle that are kept with their details.
MAX_MISSED_CHANGES = 1000


class QueueState(Enum):
    """The state of an entity in the queue."""

    IDLE = "nothing to place"
    INCOMPLETE = "its group or members are missing"
    GATED = "held back by a scheduling gate"
    ACTIVE = "ready to be attempted"
    BACKING_OFF = "refused; attempted again after a time or an event"
    IN_FLIGHT = "in a scheduling cycle"

    # Each is one object: hashing its name, as Enum does, takes longer.
    __hash__ = object.__hash__


class QueueTrigger(Enum):
    """A reason for an entity to change its state."""

    CHANGED = "its group or a member was created, changed or deleted"
    WOKEN = "an event occurred that may end its refusal"
    EXPIRED = "its back-off has ended"
    POPPED = "it was popped"
    PLACED = "members got nodes"
    REFUSED = "it was refused"
    REFUSED_AGAIN = "its refusal is certain without an attempt"
    OUTDATED = "its decision is outdated"
    RETURNED = "bindings of members failed"

    __hash__ = object.__hash__


class HeldBackPod(NamedTuple):
    """A pending pod whose entity is incomplete or gated, or was; and whether it was ready."""

    key: Key
    uid: str
    was_ready: bool


class QueueSortKey(NamedTuple):
    """The queue order: a begun binding, a higher priority, a longer wait, an earlier arrival."""

    is_new: bool
    negated_priority: int
    timestamp: float
    sequence: int


class MemberAttempts(NamedTuple):
    """How often and since when a pending pod has been attempted."""

    pod: Key
    attempts: int
    timestamp: float


#: The queue of kube-scheduler by state, where the state alone decides it.
_QUEUE_NAMES = {QueueState.ACTIVE: "active", QueueState.GATED: "gated"}

#: A Ref as decision logs of FORMAT 1 spell it: whether it is a group, its key, whether composite.
EncodedRef = tuple[bool, Key, bool]


def encode_ref(ref: Ref) -> EncodedRef:
    """Spell a reference as the decision log does."""
    return ref.kind != POD_KIND, ref.key, ref.kind == COMPOSITE_POD_GROUP_KIND


def decode_ref(encoded: EncodedRef) -> Ref:
    """Read a reference as the decision log spells it."""
    is_group, key, is_composite = encoded
    kind = COMPOSITE_POD_GROUP_KIND if is_composite else POD_GROUP_KIND if is_group else POD_KIND
    return Ref(kind, *key)


class RefusedEntity(NamedTuple):
    """An entity as it was refused, and what equal entities have in common (`RefusalMemo`)."""

    entity: Entity
    signature: Hashable


class QueuedEntityCheckpoint(Struct, frozen=True):
    """The state of an entity that does not follow from its objects, for the decision log."""

    id: EncodedRef
    state: str
    timestamp: float
    sequence: int
    ready: float
    attempts: int
    failures: int
    errors: int
    until: float
    wakes_on: tuple[ClusterEvent, ...]
    queued: QueueSortKey | None
    members: tuple[MemberAttempts, ...]
    others: tuple[Key, ...]
    outdated: int = 0
    #: What its wake condition is built from; None if every event of `wakes_on` may help.
    scope: RefusalScope | None = None
    lacking: int = 1
    #: Whether the cluster has changed since its last attempt.
    is_outdated: bool = True


ClaimProblem = Callable[[Pod], str]


@dataclass(slots=True)
class QueuedEntity:
    """One entity: its pods, its state and its counters. `group_tree` has its groups."""

    ref: Ref
    group_tree: GroupTrees = field(default_factory=GroupTrees)
    pending: dict[Key, Member] = field(default_factory=dict)
    #: Live members that are not pending here: bound, assumed, or of another scheduler.
    others: dict[Key, Pod] = field(default_factory=dict)
    gated: dict[Key, None] = field(default_factory=dict)
    #: Says why the claims of a pod cannot be allocated yet; "" if they can.
    claim_problem: ClaimProblem = lambda pod: ""
    state: QueueState = QueueState.IDLE
    timestamp: float = 0.0
    sequence: int = 0
    #: Since when it is ready: complete and without scheduling gates.
    ready_since: float = 0.0
    attempts: int = 0
    failures: int = 0
    errors: int = 0
    backoff_until: float = 0.0
    #: What may end its refusal, while it is backing off.
    condition: WakeCondition | None = None
    #: The condition under which it waited before its present attempt, and of its last refusal.
    attempted_for: WakeCondition | None = None
    refused_for: WakeCondition = NO_CONDITION
    #: How many members must get a node for its last refusal to end.
    lacking: int = 1
    #: As it was refused, until it changes; None if its refusal is not that of equal entities.
    refused: RefusedEntity | None = None
    #: How often the cluster had changed at its last attempt.
    changes_seen: int = -1
    #: The changes that occurred during its cycle.
    missed_changes: list[ClusterDelta] = field(default_factory=list)
    #: Whether bindings of its members failed during its cycle.
    has_returned_pods: bool = False
    outcome: PendingDecision | None = None
    #: How many decisions to preempt in a row were outdated.
    outdated_count: int = 0
    #: The key of its item in the heap of active entities, if there is one.
    heap_key: QueueSortKey | None = None

    @property
    def is_group(self) -> bool:
        """Whether it is a PodGroup or a CompositePodGroup, not a pod without a group."""
        return self.ref.kind != POD_KIND

    @property
    def group(self) -> Group | None:
        """The group, or the root of the tree."""
        return self.group_tree.get(self.ref) if self.is_group else None

    @property
    def sort_key(self) -> QueueSortKey:
        """Its position in the queue order. A gang whose binding has begun comes first."""
        group = self.group
        is_begun = isinstance(group, PodGroup) and bool(group.binding_intent)
        priority = group.spec.priority if group is not None else self.priority
        return QueueSortKey(not is_begun, -priority, self.timestamp, self.sequence)

    @property
    def priority(self) -> int:
        """The priority of the group, or of the pod that has none."""
        if self.is_group:
            group = self.group
            return group.spec.priority if group else 0
        return next((member.pod.spec.priority for member in self.pending.values()), 0)

    @property
    def target_state(self) -> QueueState:
        """The state that follows from its objects: ACTIVE if it can be attempted."""
        if not self.pending:
            return QueueState.IDLE
        if not self.is_group:
            return QueueState.GATED if self.gated else QueueState.ACTIVE
        if self.problem:
            return QueueState.INCOMPLETE
        if self.gated:
            return QueueState.GATED
        return QueueState.ACTIVE if self.is_complete else QueueState.INCOMPLETE

    @property
    def problem(self) -> GroupTreeProblem | None:
        """The problem of the tree that its group belongs to, if there is one."""
        root = self.group_tree.root(self.ref)
        return root if isinstance(root, GroupTreeProblem) else None

    @property
    def is_complete(self) -> bool:
        """Whether it has enough members, or enough groups with enough members."""
        group = self.group
        if isinstance(group, PodGroup):
            return self.live_count >= group.quorum
        if self.live_count < self.group_tree.fewest_members(self.ref):
            return False
        counts = Counter(pod.group for pod in self.pods)
        return self._is_ready(self.ref, counts, MAX_DEPTH)

    def _is_ready(self, name: Ref, counts: Mapping[Key | None, int], levels: int) -> bool:
        group = self.group_tree.get(name)
        if group is None or not levels:
            return False
        if isinstance(group, PodGroup):
            return counts.get(name.key, 0) >= group.quorum
        return self._count_ready_below(name, counts, levels) >= group.quorum

    def _count_ready_below(self, name: Ref, counts: Mapping[Key | None, int], levels: int) -> int:
        children = self.group_tree.valid_children(name)
        return sum(self._is_ready(child, counts, levels - 1) for child in children)

    @property
    def queue_name(self) -> str:
        """The name of its queue in the metrics of kube-scheduler; "" for none."""
        if self.state is QueueState.BACKING_OFF:
            return "backoff" if self.errors else "unschedulable"
        if self.state is QueueState.INCOMPLETE:
            return "incomplete" if self.problem else "gated"
        return _QUEUE_NAMES.get(self.state, "")

    @property
    def live_count(self) -> int:
        """The number of live members."""
        return len(self.pending) + len(self.others)

    @property
    def pods(self) -> Iterator[Pod]:
        """The live members."""
        yield from (member.pod for member in self.pending.values())
        yield from self.others.values()

    @property
    def unready(self) -> UnreadyReason | None:
        """Why it cannot be attempted; None if it can."""
        if self.state is QueueState.GATED:
            pods = [self.pending[key].pod for key in self.gated]
            gates = {gate.name for pod in pods for gate in pod.spec.scheduling_gates}
            if not gates:
                names = sorted(pod.metadata.name for pod in pods)
                return MissingClaims(tuple(names), self.claim_problem(pods[0]))
            names = sorted(pod.metadata.name for pod in pods)
            return SchedulingGated(tuple(names), tuple(sorted(gates)))
        if self.state is not QueueState.INCOMPLETE:
            return None
        if problem := self.problem:
            incomplete = IncompleteGroupTree(problem.message, not problem.missing_group)
            return incomplete if self.group else MissingGroup(self.ref.name)
        group = self.group
        assert group is not None
        if isinstance(group, PodGroup):
            return MissingMembers(group.quorum, self.live_count)
        counts = Counter(pod.group for pod in self.pods)
        return MissingGroups(group.quorum, self._count_ready_below(self.ref, counts, MAX_DEPTH))

    def upsert_pod(self, pod: Pod, now: float, *, pending: bool) -> bool:
        """Add a pod or its new version; whether that may change the state of the entity."""
        key, self.refused = pod.metadata.key, None
        if not pending:
            known = key in self.others
            self.remove_pod(key)
            self.others[key] = pod
            return not known
        old = self.pending.get(key)
        self.others.pop(key, None)
        if old is None:
            self.pending[key] = Member(pod, shape_of(pod), 0, now)
        else:
            self.pending[key] = Member(pod, shape_of(pod), old.attempts, old.timestamp)
        was_gated = key in self.gated
        if pod.spec.scheduling_gates or (pod.spec.resource_claims and self.claim_problem(pod)):
            self.gated[key] = None
        else:
            self.gated.pop(key, None)
        is_released = was_gated != (key in self.gated)
        return old is None or is_released or _affects_scheduling(old, self.pending[key])

    def adopt_pod(self, key: Key, old: QueuedEntity) -> None:
        """Move a pod here from another entity."""
        self.refused = None
        if member := old.pending.get(key):
            self.pending[key] = member
            if key in old.gated:
                self.gated[key] = None
        else:
            self.others[key] = old.others[key]
        old.remove_pod(key)

    def remove_pod(self, key: Key) -> None:
        """Remove a pod."""
        self.refused = None
        self.pending.pop(key, None)
        self.others.pop(key, None)
        self.gated.pop(key, None)

    def is_pending(self, key: Key, uid: str) -> bool:
        """Whether the pod with this uid is pending."""
        member = self.pending.get(key)
        return member is not None and member.pod.metadata.uid == uid

    def contains(self, key: Key, uid: str) -> bool:
        """Whether the pod with this uid is a member."""
        member = self.pending.get(key)
        pod = member.pod if member else self.others.get(key)
        return pod is not None and pod.metadata.uid == uid

    @property
    def wakes_on(self) -> frozenset[ClusterEvent]:
        """The events that may end its refusal, while it is backing off."""
        return self.condition.events if self.condition else frozenset()

    def miss_change(self, change: ClusterDelta) -> None:
        """Note a change that occurred during the cycle; of very many only that they occurred."""
        if len(self.missed_changes) < MAX_MISSED_CHANGES or not change.has_details:
            self.missed_changes.append(change)
        else:
            self.missed_changes[-1] = ClusterDelta(change.event)

    def record_failure(self, outcome: PendingDecision) -> None:
        """Count a failed attempt."""
        self.outcome = outcome
        if outcome.reason == SCHEDULER_ERROR:
            self.errors += 1
        else:
            self.failures, self.errors = self.failures + 1, 0

    def start_attempt(self, now: float) -> Entity:
        """Count an attempt and return the input of the cycle."""
        self.attempts += 1
        self.pending = {
            key: but(member, attempts=member.attempts + 1) for key, member in self.pending.items()
        }
        return self.build_entity(now)

    def build_entity(self, now: float) -> Entity:
        """Return the entity as a cycle reads it."""
        waited = max(now - self.ready_since, 0.0)
        parts: tuple[Entity, ...] = ()
        if self.ref.kind == COMPOSITE_POD_GROUP_KIND:
            parts = self._build_parts(self.ref, _by_group(self.pending.values()), MAX_DEPTH)
            parts = tuple(_with_wait(part, waited) for part in parts)
        return Entity(
            self.ref,
            self.group,
            tuple(self.pending.values()),
            other_members=tuple(self.others.values()),
            attempts=self.attempts,
            timestamp=self.timestamp,
            ready_since=self.ready_since,
            children=parts,
            waited_seconds=waited,
            attempted_at=now,
        )

    def _build_parts(self, name: Ref, pending: PendingByGroup, levels: int) -> tuple[Entity, ...]:
        children = self.group_tree.valid_children(name) if levels else ()
        return tuple(self._build_part(child, pending, levels - 1) for child in children)

    def _build_part(self, name: Ref, pending: PendingByGroup, levels: int) -> Entity:
        group, parts = self.group_tree.get(name), self._build_parts(name, pending, levels)
        if name.kind == COMPOSITE_POD_GROUP_KIND:
            members = tuple(member for part in parts for member in part.members)
            others = tuple(pod for part in parts for pod in part.other_members)
        else:
            members = tuple(pending.get(name.key, ()))
            others = tuple(pod for pod in self.others.values() if pod.group == name.key)
        return Entity(name, group, members, other_members=others, children=parts)

    def checkpoint(self, *, is_outdated: bool = True) -> QueuedEntityCheckpoint:
        """Return what `restore` needs to bring another entry to this state."""
        attempts = tuple(
            MemberAttempts(key, member.attempts, member.timestamp)
            for key, member in self.pending.items()
        )
        return QueuedEntityCheckpoint(
            id=encode_ref(self.ref),
            state=self.state.name,
            timestamp=self.timestamp,
            sequence=self.sequence,
            ready=self.ready_since,
            attempts=self.attempts,
            failures=self.failures,
            errors=self.errors,
            until=self.backoff_until,
            wakes_on=tuple(e for e in ClusterEvent if e in self.wakes_on),
            scope=self.condition.scope if self.condition else None,
            lacking=self.lacking,
            is_outdated=is_outdated,
            queued=self.heap_key,
            members=attempts,
            others=tuple(self.others),
            outdated=self.outdated_count,
        )

    def restore(self, checkpoint: QueuedEntityCheckpoint) -> None:
        """Restore everything but the state, which the queue sets."""
        self.timestamp, self.sequence = checkpoint.timestamp, checkpoint.sequence
        self.ready_since, self.heap_key = checkpoint.ready, checkpoint.queued
        self.attempts, self.failures = checkpoint.attempts, checkpoint.failures
        self.errors, self.outdated_count = checkpoint.errors, checkpoint.outdated
        self.pending = {
            key: but(self.pending[key], attempts=attempts, timestamp=timestamp)
            for key, attempts, timestamp in checkpoint.members
        }
        self.others = {key: self.others[key] for key in checkpoint.others}

    @property
    def consecutive_failures(self) -> int:
        """How often it failed in a row, by error or by refusal."""
        return self.errors or self.failures


PendingByGroup = Mapping[Key | None, Sequence[Member]]


def _with_wait(entity: Entity, waited: float) -> Entity:
    """Copy a part of a tree with the waiting time of the whole."""
    parts = tuple(_with_wait(part, waited) for part in entity.children)
    return replace(entity, children=parts, waited_seconds=waited)


def _by_group(members: Iterable[Member]) -> PendingByGroup:
    found: dict[Key | None, list[Member]] = {}
    for member in members:
        found.setdefault(member.pod.group, []).append(member)
    return found


def _affects_scheduling(old: Member, new: Member) -> bool:
    """Whether the queue or a cycle reads a field that has changed."""
    old_spec, new_spec = old.pod.spec, new.pod.spec
    old_meta, new_meta = old.pod.metadata, new.pod.metadata
    return (
        old.shape != new.shape
        or old_meta.labels != new_meta.labels
        or parse_run_time(old_meta.annotations) != parse_run_time(new_meta.annotations)
        or old_spec.scheduling_gates != new_spec.scheduling_gates
        or old_spec.priority != new_spec.priority
        or old_spec.preemption_policy != new_spec.preemption_policy
    )


class SubQueue(NamedTuple):
    """A queue of kube-scheduler, separately for pods and for groups."""

    name: str
    is_group: bool


class QueueArrival(NamedTuple):
    """The arrival of an entity in a queue, and the ClusterEvent or QueueTrigger that caused it."""

    queue: SubQueue
    cause: Enum


def is_live(pod: Pod) -> bool:
    """Whether a pod counts as a member: it has not ended and is not terminating."""
    return not pod.is_terminal and not pod.metadata.deletion_timestamp
