"""Entry: what the queue knows about one entity, and the arithmetic of it. Moves nothing itself."""

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
from phalanx.scheduler.cluster.forest import DEPTH, Flaw, Forest, Group, Name
from phalanx.scheduler.cluster.shape import shape_of
from phalanx.scheduler.decision import (
    SCHEDULER_ERROR,
    Gated,
    Misplaced,
    MissingGroup,
    MissingGroups,
    MissingMembers,
    Refusing,
    Unready,
)
from phalanx.scheduler.entity import Entity, Member
from phalanx.scheduler.events import Event


class State(Enum):
    """Where an entity stands."""

    IDLE = "nothing to place"
    INCOMPLETE = "its group or some members are missing"
    GATED = "held back by a scheduling gate"
    ACTIVE = "to be tried next"
    BACKING_OFF = "failed, to be tried later or when woken"
    IN_FLIGHT = "being tried"


class Id(NamedTuple):
    """An entity by name: a pod, a group and a group of groups may share a key."""

    is_group: bool
    key: Key
    is_composite: bool = False

    @property
    def name(self) -> Name:
        """The name of the group that it is."""
        return Name(self.is_composite, self.key)


class Rank(NamedTuple):
    """Who goes first: what was begun, the higher priority, the longer wait, the earlier arrival."""

    is_new: bool
    minus_priority: int
    timestamp: float
    sequence: int


class Turn(NamedTuple):
    """How often and since when a pending pod has been tried."""

    pod: Key
    attempts: int
    timestamp: float


class Memory(Struct, frozen=True):
    """What an entry knows beyond the objects that it is made of. A value that can be written."""

    id: Id
    state: str
    timestamp: float
    sequence: int
    ready: float
    attempts: int
    failures: int
    errors: int
    until: float
    wakes_on: tuple[Event, ...]
    queued: Rank | None
    members: tuple[Turn, ...]
    others: tuple[Key, ...]


@dataclass(slots=True)
class Entry:
    """One entity: its members by name, its counters. Its group is in the `forest`."""

    id: Id
    forest: Forest = field(default_factory=Forest)
    pending: dict[Key, Member] = field(default_factory=dict)
    #: Live members not to be placed by us: bound, assumed, or another scheduler's.
    others: dict[Key, Pod] = field(default_factory=dict)
    gated: dict[Key, None] = field(default_factory=dict)
    state: State = State.IDLE
    timestamp: float = 0.0
    sequence: int = 0
    #: Since when nothing has been missing that it needs to be tried.
    ready: float = 0.0
    attempts: int = 0
    failures: int = 0
    errors: int = 0
    until: float = 0.0
    wakes_on: frozenset[Event] = frozenset()
    #: What happened while it was in flight.
    missed: set[Event] = field(default_factory=set)
    #: Whether members came back unbound while it was in flight.
    returned: bool = False
    outcome: Refusing | None = None
    #: Its item in the heap of active entities, if there is one.
    queued: Rank | None = None

    @property
    def group(self) -> Group | None:
        """The group, or the root of the tree, that it is."""
        return self.forest.get(self.id.name) if self.id.is_group else None

    @property
    def rank(self) -> Rank:
        """Its place in the order. A gang of which members may be bound already comes first."""
        group = self.group
        is_begun = isinstance(group, PodGroup) and bool(group.intent)
        return Rank(not is_begun, -self.priority, self.timestamp, self.sequence)

    @property
    def priority(self) -> int:
        """The priority of the group, or of the pod that has none."""
        if self.id.is_group:
            group = self.group
            return group.spec.priority if group else 0
        return next((member.pod.spec.priority for member in self.pending.values()), 0)

    @property
    def standing(self) -> State:
        """Where it belongs by what is there of it: ACTIVE if nothing is in its way."""
        if not self.pending:
            return State.IDLE
        if not self.id.is_group:
            return State.GATED if self.gated else State.ACTIVE
        if self.flaw:
            return State.INCOMPLETE
        if self.gated:
            return State.GATED
        return State.ACTIVE if self.is_complete else State.INCOMPLETE

    @property
    def flaw(self) -> Flaw | None:
        """What is wrong with where its group hangs, if anything is."""
        root = self.forest.root(self.id.name)
        return root if isinstance(root, Flaw) else None

    @property
    def is_complete(self) -> bool:
        """Whether as many members, or groups with enough of them, are there as are needed."""
        group = self.group
        if isinstance(group, PodGroup):
            return self.there >= group.quorum
        counts = Counter(pod.group for pod in self.pods)
        return self._ready(self.id.name, counts, DEPTH)

    def _ready(self, name: Name, counts: Mapping[Key | None, int], levels: int) -> bool:
        group = self.forest.get(name)
        if group is None or not levels:
            return False
        if isinstance(group, PodGroup):
            return counts.get(name.key, 0) >= group.quorum
        return self._ready_below(name, counts, levels) >= group.quorum

    def _ready_below(self, name: Name, counts: Mapping[Key | None, int], levels: int) -> int:
        children = self.forest.parts(name)
        return sum(self._ready(child, counts, levels - 1) for child in children)

    @property
    def line(self) -> str:
        """The line that it stands in, as Kubernetes names them; "" if in none."""
        if self.state is State.BACKING_OFF:
            return "backoff" if self.errors else "unschedulable"
        if self.state is State.INCOMPLETE:
            return "incomplete" if self.flaw else "gated"
        return {State.ACTIVE: "active", State.GATED: "gated"}.get(self.state, "")

    @property
    def there(self) -> int:
        """How many live members were seen."""
        return len(self.pending) + len(self.others)

    @property
    def pods(self) -> Iterator[Pod]:
        """The live members that were seen."""
        yield from (member.pod for member in self.pending.values())
        yield from self.others.values()

    @property
    def unready(self) -> Unready | None:
        """What keeps it from being tried, in full."""
        if self.state is State.GATED:
            pods = [self.pending[key].pod for key in self.gated]
            gates = {gate.name for pod in pods for gate in pod.spec.scheduling_gates}
            names = sorted(pod.metadata.name for pod in pods)
            return Gated(tuple(names), tuple(sorted(gates)))
        if self.state is not State.INCOMPLETE:
            return None
        if flaw := self.flaw:
            misplaced = Misplaced(flaw.message, not flaw.missing)
            return misplaced if self.group else MissingGroup(self.id.key.name)
        group = self.group
        assert group is not None
        if isinstance(group, PodGroup):
            return MissingMembers(group.quorum, self.there)
        counts = Counter(pod.group for pod in self.pods)
        return MissingGroups(group.quorum, self._ready_below(self.id.name, counts, DEPTH))

    def put(self, pod: Pod, now: float, *, pending: bool) -> bool:
        """Take a pod in, or its new version; whether that changes anything for the queue."""
        key = pod.metadata.key
        if not pending:
            known = key in self.others
            self.drop(key)
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
        return old is None or _matters(old, self.pending[key])

    def adopt(self, key: Key, old: Entry) -> None:
        """Take a pod over from the entity that it was in."""
        if member := old.pending.get(key):
            self.pending[key] = member
            if key in old.gated:
                self.gated[key] = None
        else:
            self.others[key] = old.others[key]
        old.drop(key)

    def drop(self, key: Key) -> None:
        """A pod is not there any more."""
        self.pending.pop(key, None)
        self.others.pop(key, None)
        self.gated.pop(key, None)

    def awaits(self, key: Key, uid: str) -> bool:
        """Whether this very pod is still to be placed."""
        member = self.pending.get(key)
        return member is not None and member.pod.metadata.uid == uid

    def holds(self, key: Key, uid: str) -> bool:
        """Whether it holds this very pod, not a namesake."""
        member = self.pending.get(key)
        pod = member.pod if member else self.others.get(key)
        return pod is not None and pod.metadata.uid == uid

    def count(self, outcome: Refusing) -> None:
        """Note a failed attempt."""
        self.outcome = outcome
        if outcome.reason == SCHEDULER_ERROR:
            self.errors += 1
        else:
            self.failures, self.errors = self.failures + 1, 0

    def take_off(self, now: float) -> Entity:
        """Begin an attempt: what the cycle gets to see."""
        waited = max(now - self.ready, 0.0)
        self.attempts += 1
        self.pending = {
            key: but(member, attempts=member.attempts + 1) for key, member in self.pending.items()
        }
        parts: tuple[Entity, ...] = ()
        if self.id.is_composite:
            parts = self._parts(self.id.name, _by_group(self.pending.values()), DEPTH)
            parts = tuple(_having(part, waited) for part in parts)
        return Entity(
            self.id.key, self.group, tuple(self.pending.values()), tuple(self.others.values()),
            self.attempts, self.timestamp, self.ready, parts, waited,
        )  # fmt: skip

    def _parts(self, name: Name, pending: Pending, levels: int) -> tuple[Entity, ...]:
        """What hangs from a group, as entities."""
        children = self.forest.parts(name) if levels else ()
        return tuple(self._part(child, pending, levels - 1) for child in children)

    def _part(self, name: Name, pending: Pending, levels: int) -> Entity:
        group, parts = self.forest.get(name), self._parts(name, pending, levels)
        if parts or name.is_composite:
            members = tuple(member for part in parts for member in part.members)
            others = tuple(pod for part in parts for pod in part.others)
        else:
            members = tuple(pending.get(name.key, ()))
            others = tuple(pod for pod in self.others.values() if pod.group == name.key)
        return Entity(name.key, group, members, others, parts=parts)

    def memory(self) -> Memory:
        """What is to be kept of it, so that it can be recalled."""
        turns = [Turn(key, one.attempts, one.timestamp) for key, one in self.pending.items()]
        return Memory(
            self.id, self.state.name, self.timestamp, self.sequence, self.ready, self.attempts,
            self.failures, self.errors, self.until, tuple(e for e in Event if e in self.wakes_on),
            self.queued, tuple(turns), tuple(self.others),
        )  # fmt: skip

    def recall(self, memory: Memory) -> None:
        """Know again what was kept, but for where it stood."""
        self.timestamp, self.sequence = memory.timestamp, memory.sequence
        self.ready, self.queued = memory.ready, memory.queued
        self.attempts, self.failures = memory.attempts, memory.failures
        self.errors = memory.errors
        self.pending = {
            key: but(self.pending[key], attempts=attempts, timestamp=timestamp)
            for key, attempts, timestamp in memory.members
        }
        self.others = {key: self.others[key] for key in memory.others}

    @property
    def in_a_row(self) -> int:
        """How often it failed for the same sort of reason."""
        return self.errors or self.failures


Pending = Mapping[Key | None, Sequence[Member]]


def _having(entity: Entity, waited: float) -> Entity:
    """A part of a tree that has waited as long as the whole."""
    parts = tuple(_having(part, waited) for part in entity.parts)
    return replace(entity, parts=parts, waited=waited)


def _by_group(members: Iterable[Member]) -> Pending:
    found: dict[Key | None, list[Member]] = {}
    for member in members:
        found.setdefault(member.pod.group, []).append(member)
    return found


def _matters(old: Member, new: Member) -> bool:
    """Whether the queue or a cycle would treat the new version otherwise."""
    one, other = old.pod.spec, new.pod.spec
    return (
        old.shape != new.shape
        or old.pod.metadata.labels != new.pod.metadata.labels
        or one.scheduling_gates != other.scheduling_gates
        or one.priority != other.priority
        or one.preemption_policy != other.preemption_policy
    )
