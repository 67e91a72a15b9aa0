"""Entry: what the queue knows about one entity, and the arithmetic of it. Moves nothing itself."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from msgspec import Struct

from phalanx.api.core import Pod
from phalanx.api.meta import Key
from phalanx.api.scheduling import PodGroup
from phalanx.scheduler.decision import (
    SCHEDULER_ERROR,
    Gated,
    Impossible,
    MissingGroup,
    MissingMembers,
    Unready,
    Waiting,
)
from phalanx.scheduler.entity import Entity, Member
from phalanx.scheduler.events import Event
from phalanx.scheduler.shape import shape_of


class State(Enum):
    """Where an entity stands."""

    IDLE = "nothing to place"
    INCOMPLETE = "its group or some members are missing"
    GATED = "held back by a scheduling gate"
    ACTIVE = "to be tried next"
    BACKING_OFF = "failed, to be tried later or when woken"
    IN_FLIGHT = "being tried"


class Id(NamedTuple):
    """An entity by name: a pod and a group may share a key."""

    is_group: bool
    key: Key


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
    """One entity: its object, its members by name, its counters."""

    id: Id
    group: PodGroup | None = None
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
    outcome: Waiting | Impossible | None = None
    #: Its item in the heap of active entities, if there is one.
    queued: Rank | None = None

    @property
    def rank(self) -> Rank:
        """Its place in the order. A gang of which members may be bound already comes first."""
        is_new = self.group is None or not self.group.intent
        return Rank(is_new, -self.priority, self.timestamp, self.sequence)

    @property
    def priority(self) -> int:
        """The priority of the group, or of the pod that has none."""
        if self.id.is_group:
            return self.group.spec.priority if self.group else 0
        return next((member.pod.spec.priority for member in self.pending.values()), 0)

    @property
    def standing(self) -> State:
        """Where it belongs by what is there of it: ACTIVE if nothing is in its way."""
        if not self.pending:
            return State.IDLE
        if self.id.is_group and not self.group:
            return State.INCOMPLETE
        if self.gated:
            return State.GATED
        if self.group and self.there < self.group.quorum:
            return State.INCOMPLETE
        return State.ACTIVE

    @property
    def line(self) -> str:
        """The line that it stands in, as Kubernetes names them; "" if in none."""
        if self.state is State.BACKING_OFF:
            return "backoff" if self.errors else "unschedulable"
        if self.state is State.INCOMPLETE:
            return "gated" if self.group else "incomplete"
        return {State.ACTIVE: "active", State.GATED: "gated"}.get(self.state, "")

    @property
    def there(self) -> int:
        """How many live members were seen."""
        return len(self.pending) + len(self.others)

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
        if not self.group:
            return MissingGroup(self.id.key.name)
        return MissingMembers(self.group.quorum, self.there)

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

    def count(self, outcome: Waiting | Impossible) -> None:
        """Note a failed attempt."""
        self.outcome = outcome
        if outcome.reason == SCHEDULER_ERROR:
            self.errors += 1
        else:
            self.failures, self.errors = self.failures + 1, 0

    def take_off(self) -> Entity:
        """Begin an attempt: what the cycle gets to see."""
        self.attempts += 1
        self.pending = {
            key: Member(pod, shape, attempts + 1, timestamp)
            for key, (pod, shape, attempts, timestamp) in self.pending.items()
        }
        return Entity(
            self.id.key, self.group, tuple(self.pending.values()), tuple(self.others.values()),
            self.attempts, self.timestamp, self.ready,
        )  # fmt: skip

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
            key: self.pending[key]._replace(attempts=attempts, timestamp=timestamp)
            for key, attempts, timestamp in memory.members
        }
        self.others = {key: self.others[key] for key in memory.others}

    @property
    def in_a_row(self) -> int:
        """How often it failed for the same sort of reason."""
        return self.errors or self.failures


def _matters(old: Member, new: Member) -> bool:
    """Whether the queue or a cycle would treat the new version otherwise."""
    one, other = old.pod.spec, new.pod.spec
    return (
        old.shape != new.shape
        or one.scheduling_gates != other.scheduling_gates
        or one.priority != other.priority
        or one.preemption_policy != other.preemption_policy
    )
