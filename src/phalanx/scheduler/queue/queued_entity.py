"""Entry: what the queue knows about one entity, and the arithmetic of it. Moves nothing itself.

The lines that entities stand in while they wait, for whoever counts them. Values only.

`Entry.line` says which line that is, `queue.Queue` who stands there and who has come.

Place: one line of the queue as people see it. Values only; `queue.py` moves the entities.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace as but

from phalanx.api.core import Pod
from phalanx.api.meta import Key
from phalanx.api.scheduling import PodGroup
from phalanx.scheduler.cluster.group_tree import (
    MAX_DEPTH,
    Group,
    GroupRef,
    GroupTreeProblem,
    GroupTrees,
)
from phalanx.scheduler.cluster.pod_shape import shape_of
from phalanx.scheduler.decision import (
    SCHEDULER_ERROR,
    ClusterEvent,
    Decision,
    IncompleteGroupTree,
    MissingGroup,
    MissingGroups,
    MissingMembers,
    PendingDecision,
    SchedulingGated,
    UnreadyReason,
)
from phalanx.scheduler.entity import Entity, Member


class QueueState(Enum):
    """Where an entity stands."""

    IDLE = "nothing to place"
    INCOMPLETE = "its group or some members are missing"
    GATED = "held back by a scheduling gate"
    ACTIVE = "to be tried next"
    BACKING_OFF = "failed, to be tried later or when woken"
    IN_FLIGHT = "being tried"


class EntityId(NamedTuple):
    """An entity by name: a pod, a group and a group of groups may share a key."""

    is_group: bool
    key: Key
    is_composite: bool = False

    @property
    def name(self) -> GroupRef:
        """The name of the group that it is."""
        return GroupRef(self.is_composite, self.key)


class QueueSortKey(NamedTuple):
    """Who goes first: what was begun, the higher priority, the longer wait, the earlier arrival."""

    is_new: bool
    negated_priority: int
    timestamp: float
    sequence: int


class MemberAttempts(NamedTuple):
    """How often and since when a pending pod has been tried."""

    pod: Key
    attempts: int
    timestamp: float


class QueuedEntityCheckpoint(Struct, frozen=True):
    """What an entry knows beyond the objects that it is made of. A value that can be written."""

    id: EntityId
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


@dataclass(slots=True)
class QueuedEntity:
    """One entity: its members by name, its counters. Its group is in the `forest`."""

    ref: EntityId
    group_tree: GroupTrees = field(default_factory=GroupTrees)
    pending: dict[Key, Member] = field(default_factory=dict)
    #: Live members not to be placed by us: bound, assumed, or another scheduler's.
    others: dict[Key, Pod] = field(default_factory=dict)
    gated: dict[Key, None] = field(default_factory=dict)
    state: QueueState = QueueState.IDLE
    timestamp: float = 0.0
    sequence: int = 0
    #: Since when nothing has been missing that it needs to be tried.
    ready_since: float = 0.0
    attempts: int = 0
    failures: int = 0
    errors: int = 0
    backoff_until: float = 0.0
    wakes_on: frozenset[ClusterEvent] = frozenset()
    #: What happened while it was in flight.
    missed_events: set[ClusterEvent] = field(default_factory=set)
    #: Whether members came back unbound while it was in flight.
    has_returned_pods: bool = False
    outcome: PendingDecision | None = None
    #: Its item in the heap of active entities, if there is one.
    heap_key: QueueSortKey | None = None

    @property
    def group(self) -> Group | None:
        """The group, or the root of the tree, that it is."""
        return self.group_tree.get(self.ref.name) if self.ref.is_group else None

    @property
    def sort_key(self) -> QueueSortKey:
        """Its place in the order. A gang of which members may be bound already comes first."""
        group = self.group
        is_begun = isinstance(group, PodGroup) and bool(group.binding_intent)
        return QueueSortKey(not is_begun, -self.priority, self.timestamp, self.sequence)

    @property
    def priority(self) -> int:
        """The priority of the group, or of the pod that has none."""
        if self.ref.is_group:
            group = self.group
            return group.spec.priority if group else 0
        return next((member.pod.spec.priority for member in self.pending.values()), 0)

    @property
    def target_state(self) -> QueueState:
        """Where it belongs by what is there of it: ACTIVE if nothing is in its way."""
        if not self.pending:
            return QueueState.IDLE
        if not self.ref.is_group:
            return QueueState.GATED if self.gated else QueueState.ACTIVE
        if self.flaw:
            return QueueState.INCOMPLETE
        if self.gated:
            return QueueState.GATED
        return QueueState.ACTIVE if self.is_complete else QueueState.INCOMPLETE

    @property
    def flaw(self) -> GroupTreeProblem | None:
        """What is wrong with where its group hangs, if anything is."""
        root = self.group_tree.root(self.ref.name)
        return root if isinstance(root, GroupTreeProblem) else None

    @property
    def is_complete(self) -> bool:
        """Whether as many members, or groups with enough of them, are there as are needed."""
        group = self.group
        if isinstance(group, PodGroup):
            return self.live_count >= group.quorum
        counts = Counter(pod.group for pod in self.pods)
        return self._is_ready(self.ref.name, counts, MAX_DEPTH)

    def _is_ready(self, name: GroupRef, counts: Mapping[Key | None, int], levels: int) -> bool:
        group = self.group_tree.get(name)
        if group is None or not levels:
            return False
        if isinstance(group, PodGroup):
            return counts.get(name.key, 0) >= group.quorum
        return self._count_ready_below(name, counts, levels) >= group.quorum

    def _count_ready_below(
        self, name: GroupRef, counts: Mapping[Key | None, int], levels: int
    ) -> int:
        children = self.group_tree.valid_children(name)
        return sum(self._is_ready(child, counts, levels - 1) for child in children)

    @property
    def queue_name(self) -> str:
        """The line that it stands in, as Kubernetes names them; "" if in none."""
        if self.state is QueueState.BACKING_OFF:
            return "backoff" if self.errors else "unschedulable"
        if self.state is QueueState.INCOMPLETE:
            return "incomplete" if self.flaw else "gated"
        return {QueueState.ACTIVE: "active", QueueState.GATED: "gated"}.get(self.state, "")

    @property
    def live_count(self) -> int:
        """How many live members were seen."""
        return len(self.pending) + len(self.others)

    @property
    def pods(self) -> Iterator[Pod]:
        """The live members that were seen."""
        yield from (member.pod for member in self.pending.values())
        yield from self.others.values()

    @property
    def unready(self) -> UnreadyReason | None:
        """What keeps it from being tried, in full."""
        if self.state is QueueState.GATED:
            pods = [self.pending[key].pod for key in self.gated]
            gates = {gate.name for pod in pods for gate in pod.spec.scheduling_gates}
            names = sorted(pod.metadata.name for pod in pods)
            return SchedulingGated(tuple(names), tuple(sorted(gates)))
        if self.state is not QueueState.INCOMPLETE:
            return None
        if flaw := self.flaw:
            misplaced = IncompleteGroupTree(flaw.message, not flaw.missing_group)
            return misplaced if self.group else MissingGroup(self.ref.key.name)
        group = self.group
        assert group is not None
        if isinstance(group, PodGroup):
            return MissingMembers(group.quorum, self.live_count)
        counts = Counter(pod.group for pod in self.pods)
        return MissingGroups(
            group.quorum, self._count_ready_below(self.ref.name, counts, MAX_DEPTH)
        )

    def upsert_pod(self, pod: Pod, now: float, *, pending: bool) -> bool:
        """Take a pod in, or its new version; whether that changes anything for the queue."""
        key = pod.metadata.key
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
        if pod.spec.scheduling_gates:
            self.gated[key] = None
        else:
            self.gated.pop(key, None)
        return old is None or _affects_scheduling(old, self.pending[key])

    def adopt_pod(self, key: Key, old: QueuedEntity) -> None:
        """Take a pod over from the entity that it was in."""
        if member := old.pending.get(key):
            self.pending[key] = member
            if key in old.gated:
                self.gated[key] = None
        else:
            self.others[key] = old.others[key]
        old.remove_pod(key)

    def remove_pod(self, key: Key) -> None:
        """A pod is not there any more."""
        self.pending.pop(key, None)
        self.others.pop(key, None)
        self.gated.pop(key, None)

    def is_pending(self, key: Key, uid: str) -> bool:
        """Whether this very pod is still to be placed."""
        member = self.pending.get(key)
        return member is not None and member.pod.metadata.uid == uid

    def contains(self, key: Key, uid: str) -> bool:
        """Whether it holds this very pod, not a namesake."""
        member = self.pending.get(key)
        pod = member.pod if member else self.others.get(key)
        return pod is not None and pod.metadata.uid == uid

    def record_failure(self, outcome: PendingDecision) -> None:
        """Note a failed attempt."""
        self.outcome = outcome
        if outcome.reason == SCHEDULER_ERROR:
            self.errors += 1
        else:
            self.failures, self.errors = self.failures + 1, 0

    def start_attempt(self, now: float) -> Entity:
        """Begin an attempt: what the cycle gets to see."""
        waited = max(now - self.ready_since, 0.0)
        self.attempts += 1
        self.pending = {
            key: but(member, attempts=member.attempts + 1) for key, member in self.pending.items()
        }
        parts: tuple[Entity, ...] = ()
        if self.ref.is_composite:
            parts = self._build_parts(self.ref.name, _by_group(self.pending.values()), MAX_DEPTH)
            parts = tuple(_with_wait(part, waited) for part in parts)
        return Entity(
            self.ref.key, self.group, tuple(self.pending.values()), tuple(self.others.values()),
            self.attempts, self.timestamp, self.ready_since, parts, waited,
        )  # fmt: skip

    def _build_parts(
        self, name: GroupRef, pending: PendingByGroup, levels: int
    ) -> tuple[Entity, ...]:
        """What hangs from a group, as entities."""
        children = self.group_tree.valid_children(name) if levels else ()
        return tuple(self._build_part(child, pending, levels - 1) for child in children)

    def _build_part(self, name: GroupRef, pending: PendingByGroup, levels: int) -> Entity:
        group, parts = self.group_tree.get(name), self._build_parts(name, pending, levels)
        if parts or name.is_composite:
            members = tuple(member for part in parts for member in part.members)
            others = tuple(pod for part in parts for pod in part.other_members)
        else:
            members = tuple(pending.get(name.key, ()))
            others = tuple(pod for pod in self.others.values() if pod.group == name.key)
        return Entity(name.key, group, members, others, children=parts)

    def checkpoint(self) -> QueuedEntityCheckpoint:
        """What is to be kept of it, so that it can be recalled."""
        turns = [
            MemberAttempts(key, one.attempts, one.timestamp) for key, one in self.pending.items()
        ]
        return QueuedEntityCheckpoint(
            self.ref,
            self.state.name,
            self.timestamp,
            self.sequence,
            self.ready_since,
            self.attempts,
            self.failures,
            self.errors,
            self.backoff_until,
            tuple(e for e in ClusterEvent if e in self.wakes_on),
            self.heap_key,
            tuple(turns),
            tuple(self.others),
        )

    def restore(self, checkpoint: QueuedEntityCheckpoint) -> None:
        """Know again what was kept, but for where it stood."""
        self.timestamp, self.sequence = checkpoint.timestamp, checkpoint.sequence
        self.ready_since, self.heap_key = checkpoint.ready, checkpoint.queued
        self.attempts, self.failures = checkpoint.attempts, checkpoint.failures
        self.errors = checkpoint.errors
        self.pending = {
            key: but(self.pending[key], attempts=attempts, timestamp=timestamp)
            for key, attempts, timestamp in checkpoint.members
        }
        self.others = {key: self.others[key] for key in checkpoint.others}

    @property
    def consecutive_failures(self) -> int:
        """How often it failed for the same sort of reason."""
        return self.errors or self.failures


PendingByGroup = Mapping[Key | None, Sequence[Member]]


def _with_wait(entity: Entity, waited: float) -> Entity:
    """A part of a tree that has waited as long as the whole."""
    parts = tuple(_with_wait(part, waited) for part in entity.children)
    return replace(entity, children=parts, waited_seconds=waited)


def _by_group(members: Iterable[Member]) -> PendingByGroup:
    found: dict[Key | None, list[Member]] = {}
    for member in members:
        found.setdefault(member.pod.group, []).append(member)
    return found


def _affects_scheduling(old: Member, new: Member) -> bool:
    """Whether the queue or a cycle would treat the new version otherwise."""
    one, other = old.pod.spec, new.pod.spec
    return (
        old.shape != new.shape
        or old.pod.metadata.labels != new.pod.metadata.labels
        or one.scheduling_gates != other.scheduling_gates
        or one.priority != other.priority
        or one.preemption_policy != other.preemption_policy
    )


class SubQueue(NamedTuple):
    """A line, and of what sort those are who stand in it."""

    name: str
    is_group: bool


class QueueArrival(NamedTuple):
    """Somebody came to stand in a line: because of an Event, or of another Stimulus."""

    queue: SubQueue
    cause: Enum


class PendingEntity(NamedTuple):
    """Somebody who stands in a line: how many pods, for which scheduler, and why if refused."""

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
    """One line of the queue, for people: an entity, where it stands and why."""

    key: Key
    is_group: bool
    state: QueueState
    priority: int
    pods: tuple[Key, ...]
    attempts: int
    timestamp: float
    #: When it is tried again at the latest, if it is backing off.
    until: float | None
    unready: UnreadyReason | None
    outcome: Decision | None
    is_composite: bool = False

    @property
    def ref(self) -> EntityId:
        """The entity by name."""
        return EntityId(self.is_group, self.key, self.is_composite)


def listing_key(entry: QueuedEntity) -> tuple[int, QueueSortKey]:
    """Where an entity stands in the queue as a whole."""
    return _LISTING_ORDER.index(entry.state), entry.sort_key


def entity_info(entry: QueuedEntity) -> QueuedEntityInfo:
    """The line of an entity."""
    resting = entry.state is QueueState.BACKING_OFF
    return QueuedEntityInfo(
        key=entry.ref.key,
        is_group=entry.ref.is_group,
        state=entry.state,
        priority=entry.priority,
        pods=tuple(entry.pending),
        attempts=entry.attempts,
        timestamp=entry.timestamp,
        until=entry.backoff_until if resting else None,
        unready=entry.unready,
        outcome=entry.outcome,
        is_composite=entry.ref.is_composite,
    )
