"""Entry: what the queue knows about one entity, and the arithmetic of it. Moves nothing itself."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from math import sqrt
from typing import NamedTuple

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

#: Seconds after the first failure, doubled with each further one …
FIRST_BACK_OFF = 1.0
#: … up to this, times the square root of the number of pods.
LONGEST_BACK_OFF = 10.0
_DOUBLINGS = 32


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
    """Who goes first: the higher priority, then the longer wait, then the earlier arrival."""

    minus_priority: int
    timestamp: float
    sequence: int


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
    attempts: int = 0
    failures: int = 0
    errors: int = 0
    until: float = 0.0
    wakes_on: frozenset[Event] = frozenset()
    #: What happened while it was in flight.
    missed: set[Event] = field(default_factory=set)
    outcome: Waiting | Impossible | None = None
    #: Its item in the heap of active entities, if there is one.
    queued: Rank | None = None

    @property
    def rank(self) -> Rank:
        """Its place in the order."""
        return Rank(-self.priority, self.timestamp, self.sequence)

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
        members, others = tuple(self.pending.values()), tuple(self.others.values())
        return Entity(self.id.key, self.group, members, others, self.attempts, self.timestamp)

    def back_off(self) -> float:
        """Seconds to wait after the failures so far."""
        doublings = min(max(self.errors or self.failures, 1) - 1, _DOUBLINGS)
        longest = LONGEST_BACK_OFF * sqrt(max(len(self.pending), 1))
        return min(FIRST_BACK_OFF * (1 << doublings), longest)


def _matters(old: Member, new: Member) -> bool:
    """Whether the queue or a cycle would treat the new version otherwise."""
    one, other = old.pod.spec, new.pod.spec
    return (
        old.shape != new.shape
        or one.scheduling_gates != other.scheduling_gates
        or one.priority != other.priority
        or one.preemption_policy != other.preemption_policy
    )
