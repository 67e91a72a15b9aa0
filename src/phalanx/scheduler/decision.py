"""What may happen in a cluster that lets a refused entity run after all.

Filters and decisions name the events that could cure them, the cache says which one took place, the
queue wakes whoever waits for it.

What a cycle decides, as values: Placed, Preempting, Waiting or Impossible. And what is unready.

The shell in `controllers/` matches on the class and acts; `explain.py` turns any of them into
sentences. A refusal is an ordinary answer here, never an exception.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from msgspec import Struct

from phalanx.api.meta import Key


class ClusterEvent(StrEnum):
    """One kind of event. The first four concern everybody, the next three one group or pod."""

    NODE_ADDED = "a node came"
    NODE_UPDATED = "a node changed"
    POD_GONE = "a pod left its node"
    POD_PLACED = "a pod got a node, or is seen otherwise by other pods"
    GROUP_CHANGED = "the group came or changed"
    MEMBER_CHANGED = "a member came or changed"
    MEMBER_GONE = "a member went"
    SEARCH_ENDED = "a long search came to an end"


#: Events that can make or free room.
CAPACITY_EVENTS = frozenset(
    {ClusterEvent.NODE_ADDED, ClusterEvent.NODE_UPDATED, ClusterEvent.POD_GONE}
)
#: Events that can change what a node accepts.
NODE_EVENTS = frozenset({ClusterEvent.NODE_ADDED, ClusterEvent.NODE_UPDATED})
#: Events that can change whom a pod would be near.
PEER_EVENTS = frozenset({*NODE_EVENTS, ClusterEvent.POD_GONE, ClusterEvent.POD_PLACED})
#: Events that can change what an entity asks for.
ENTITY_EVENTS = frozenset(
    {ClusterEvent.GROUP_CHANGED, ClusterEvent.MEMBER_CHANGED, ClusterEvent.MEMBER_GONE}
)


UNSCHEDULABLE = "Unschedulable"
SCHEDULER_ERROR = "SchedulerError"
#: No placement was found, and none was shown not to exist.
UNDECIDED = "SchedulingUndecided"


class Binding(NamedTuple):
    """A pod, known by name and uid, and the node that it gets."""

    pod: Key
    uid: str
    node: str


#: `new_binding(Binding, (pod, uid, node))` is `Binding(pod, uid, node)` in half the time.
new_binding = tuple.__new__


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why no node takes a pod: of `total` nodes, how many gave which reason."""

    total: int
    counts: tuple[tuple[str, int], ...] = ()
    #: Small changes, as sentences, each of which would let the pod in.
    cures: tuple[str, ...] = ()
    wakes_on: frozenset[ClusterEvent] = frozenset()
    #: The names of the filters that refused any node.
    filters: tuple[str, ...] = ()


class UnplacedPod(NamedTuple):
    """A pod without a node. No refusal of its own: it fitted or was not tried, its group failed."""

    pod: Key
    uid: str
    refusal: Refusal | None


class GroupOutcome(NamedTuple):
    """One group of a tree: why it gets nothing; None if it has what it needs."""

    ref: Key
    is_composite: bool
    waiting: Waiting | None


class PlacementChoice(NamedTuple):
    """Among how many placements a group could choose, how many it tried, how many held enough.

    Of a tree it is the choice of its root.
    """

    placements: int
    tried: int
    feasible: int


class Placed(Struct, frozen=True):
    """Enough members have a node: bind them. Leftovers are members beyond the quorum without."""

    group: Key | None
    bindings: tuple[Binding, ...]
    leftovers: tuple[UnplacedPod, ...] = ()
    #: What is to be said of each group of a tree; none for a group by itself.
    parts: tuple[GroupOutcome, ...] = ()
    #: The placements that it was chosen from; None where it may be anywhere.
    choice: PlacementChoice | None = None

    @property
    def lacks_quorum(self) -> bool:
        """Whether the group lacks members that it needs."""
        return False


@dataclass(frozen=True, slots=True)
class Waiting:
    """No placement now; an event of `wakes_on` may change that.

    `scheduled` counts the members that had or found a node, `remaining` those that were not tried
    any more when the attempt was given up, `unknown` those among them that might have fitted.
    """

    group: Key | None
    pods: tuple[UnplacedPod, ...]
    quorum: int
    scheduled: int
    remaining: int
    unknown: int
    wakes_on: frozenset[ClusterEvent]
    reason: str = UNSCHEDULABLE
    #: Among how many placements it could choose; None where it may be anywhere.
    placements: int | None = None
    #: Why it is not known whether there is a placement; "" if there is none.
    undecided: str = ""
    #: What came of thinking about whom to evict, in words; "" if nothing did.
    preemption: str = ""
    #: The nodes that the members are kept while others leave.
    nominated: tuple[Binding, ...] = ()
    #: Seconds after which it would be content with less; None if it never is.
    relaxes: float | None = None
    #: What is to be said of each group of a tree; none for a group by itself.
    parts: tuple[GroupOutcome, ...] = ()
    #: In how many of the placements it was tried.
    tried: int = 0

    @property
    def choice(self) -> PlacementChoice | None:
        """The placements of which none held enough; None where it may be anywhere."""
        return None if self.placements is None else PlacementChoice(self.placements, self.tried, 0)

    @property
    def lacks_quorum(self) -> bool:
        """Whether the group lacks members that it needs, and not only others."""
        return self.scheduled < self.quorum


class Victim(NamedTuple):
    """A pod that is to make way, and the group that loses it as a whole, if one does."""

    pod: Key
    uid: str
    node: str
    group: Key | None = None
    is_composite: bool = False


@dataclass(frozen=True, slots=True)
class Preempting:
    """There is room once the victims are gone: evict them, and keep the nodes for the members."""

    waiting: Waiting
    victims: tuple[Victim, ...]
    #: How many units of groups are lost: whole groups and trees, and pods that go alone from one.
    disruptions: int = 0
    #: How many pods go beyond what disruption budgets allow.
    violations: int = 0

    @property
    def choice(self) -> PlacementChoice | None:
        """The placements of which none held enough; None where it may be anywhere."""
        return self.waiting.choice

    @property
    def group(self) -> Key | None:
        """The group that it is about."""
        return self.waiting.group

    @property
    def pods(self) -> tuple[UnplacedPod, ...]:
        """Those who have no node yet."""
        return self.waiting.pods

    @property
    def reason(self) -> str:
        """Why there is nothing yet."""
        return self.waiting.reason

    @property
    def wakes_on(self) -> frozenset[ClusterEvent]:
        """What may change that."""
        return self.waiting.wakes_on

    @property
    def relaxes(self) -> float | None:
        """Seconds after which it would be content with less."""
        return self.waiting.relaxes

    @property
    def lacks_quorum(self) -> bool:
        """Whether the group lacks members that it needs, and not only others."""
        return self.waiting.lacks_quorum


@dataclass(frozen=True, slots=True)
class Impossible:
    """No room that comes free, only an edit of the objects themselves can help."""

    group: Key | None
    pods: tuple[UnplacedPod, ...]
    reason: str
    message: str
    cure: str
    wakes_on: frozenset[ClusterEvent]
    #: The groups of a tree; none for a group by itself.
    parts: tuple[GroupOutcome, ...] = ()
    relaxes: float | None = None

    @property
    def choice(self) -> PlacementChoice | None:
        """There was none: it was not tried."""
        return None

    @property
    def lacks_quorum(self) -> bool:
        """Whether the group lacks members that it needs: it is wrong as it is."""
        return True


#: Decisions that leave the entity waiting.
PendingDecision = Preempting | Waiting | Impossible
Decision = Placed | PendingDecision


def nominations_of(decision: Decision) -> tuple[Binding, ...]:
    """The nodes that are kept for members while others leave."""
    match decision:
        case Preempting():
            return decision.waiting.nominated
        case Waiting():
            return decision.nominated
        case _:
            return ()


@dataclass(frozen=True, slots=True)
class MissingGroup:
    """The pods name a PodGroup that does not exist."""

    name: str


@dataclass(frozen=True, slots=True)
class MissingMembers:
    """The gang has fewer live members than it needs."""

    quorum: int
    present: int


@dataclass(frozen=True, slots=True)
class MissingGroups:
    """Of the groups below, fewer have the members that they need than are needed."""

    quorum: int
    present: int


@dataclass(frozen=True, slots=True)
class IncompleteGroupTree:
    """The tree that the group is in is not whole yet, or (`invalid`) is none."""

    message: str
    is_invalid: bool = False


@dataclass(frozen=True, slots=True)
class SchedulingGated:
    """Somebody holds these pods of the entity back by scheduling gates."""

    pods: tuple[str, ...]
    gates: tuple[str, ...]


#: Why an entity is not even tried.
UnreadyReason = (
    MissingGroup | MissingMembers | MissingGroups | IncompleteGroupTree | SchedulingGated
)
