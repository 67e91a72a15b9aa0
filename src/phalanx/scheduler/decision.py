"""Decisions of the scheduling cycle, the events that wake pending entities, and unready reasons.

A cycle returns Placed, Preempting, Waiting or Impossible. `controllers/scheduling/` matches on the
class and acts; `explain.py` turns each into messages. A rejected entity is an ordinary result here,
never an exception.

Filters and decisions name the events that may make a rejected entity schedulable. The cache returns
which event a change causes, and the queue wakes the entities that wait for it:

    Waiting(wakes_on={NODE_ADDED, ...}) ... cache.update_node(...) -> NODE_ADDED ... queue.wake
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from msgspec import Struct

from phalanx.api.meta import Key, Ref
from phalanx.api.other_kinds import ClaimConsumer
from phalanx.api.wire import Object


class ClusterEvent(StrEnum):
    """A kind of event. The first four concern every entity, the next three one group or pod.

    The values stand in decision logs.
    """

    NODE_ADDED = "a node came"
    NODE_UPDATED = "a node changed"
    POD_GONE = "a pod left its node"
    POD_PLACED = "a pod got a node, or is seen otherwise by other pods"
    GROUP_CHANGED = "the group came or changed"
    MEMBER_CHANGED = "a member came or changed"
    MEMBER_GONE = "a member went"
    SEARCH_ENDED = "a long search came to an end"
    DEVICES_CHANGED = "devices were published, freed, or are selected otherwise"
    VOLUMES_CHANGED = "volumes, storage classes or attach limits came or changed"
    RESERVATION_CHANGED = "a reservation changed or ended"


#: Events that can add or free resources.
CAPACITY_EVENTS = frozenset(
    {ClusterEvent.NODE_ADDED, ClusterEvent.NODE_UPDATED, ClusterEvent.POD_GONE}
)
#: Events that can change what a node accepts.
NODE_EVENTS = frozenset({ClusterEvent.NODE_ADDED, ClusterEvent.NODE_UPDATED})
#: Events that can change which pods share a topology domain.
PEER_EVENTS = frozenset({*NODE_EVENTS, ClusterEvent.POD_GONE, ClusterEvent.POD_PLACED})
#: Events that can change what an entity requires.
ENTITY_EVENTS = frozenset(
    {ClusterEvent.GROUP_CHANGED, ClusterEvent.MEMBER_CHANGED, ClusterEvent.MEMBER_GONE}
)


UNSCHEDULABLE = "Unschedulable"
SCHEDULER_ERROR = "SchedulerError"
#: No placement was found, and it is not proven that there is none.
UNDECIDED = "SchedulingUndecided"


class Binding(NamedTuple):
    """A pod, by key and uid, and its node."""

    pod: Key
    uid: str
    node: str


#: `new_binding(Binding, (pod, uid, node))` is `Binding(pod, uid, node)` in half the time.
new_binding = tuple.__new__


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why no node takes a pod: how many of `total` nodes were rejected for which reason."""

    total: int
    counts: tuple[tuple[str, int], ...] = ()
    #: Small changes, as sentences, each of which would make some node fit.
    cures: tuple[str, ...] = ()
    wakes_on: frozenset[ClusterEvent] = frozenset()
    #: The names of the filters that rejected any node.
    filters: tuple[str, ...] = ()


class UnplacedPod(NamedTuple):
    """A pod without a node.

    `refusal` is None if the pod fitted or was not tried, and only its group was rejected.
    """

    pod: Key
    uid: str
    refusal: Refusal | None


class GroupOutcome(NamedTuple):
    """One group of a tree: why it is not placed; None if it has the members that it needs."""

    ref: Ref
    waiting: Waiting | None


class PlacementChoice(NamedTuple):
    """How many placements a group could choose from, how many were tried, how many were feasible.

    For a tree this is the choice of its root.
    """

    placements: int
    tried: int
    feasible: int


class ClaimReservation(Struct, frozen=True):
    """A claim that is reserved for a pod or PodGroup, and allocated unless it already is."""

    claim: Key
    uid: str
    consumer: ClaimConsumer
    #: The uid of the pod for whose binding it is written.
    pod_uid: str
    #: The allocation as the API has it; None if the claim has one.
    allocation: Object | None = None
    #: The spec of a claim that is created for extended resources of the pod, and which request
    #: serves which resource of which container; None: the claim exists.
    spec: Object | None = None
    request_mappings: tuple[Object, ...] = ()


class VolumeAssignment(Struct, frozen=True):
    """A claim and the volume that it is bound to; "": one that is provisioned for the node."""

    claim: Key
    uid: str
    #: The uid of the pod for whose binding it is written.
    pod_uid: str
    node: str
    volume: str = ""


class Placed(Struct, frozen=True):
    """Enough members have a node: bind them.

    `leftovers` are members beyond the quorum that have no node.
    """

    group: Key | None
    bindings: tuple[Binding, ...]
    leftovers: tuple[UnplacedPod, ...] = ()
    #: The outcome of each group of a tree; empty for a PodGroup without parent.
    parts: tuple[GroupOutcome, ...] = ()
    #: The placements that it was chosen from; None without topology constraint.
    choice: PlacementChoice | None = None
    #: The claims of the pods.
    claims: tuple[ClaimReservation, ...] = ()
    #: The volumes of claims that are not bound yet.
    volumes: tuple[VolumeAssignment, ...] = ()

    @property
    def lacks_quorum(self) -> bool:
        """Whether the group has fewer placed members than it needs."""
        return False


@dataclass(frozen=True, slots=True)
class Waiting:
    """No placement now; an event of `wakes_on` may change that.

    `scheduled` counts the members that had or found a node, `remaining` those that were not tried
    after the attempt had failed, `unknown` those of them that might have fitted.
    """

    group: Key | None
    pods: tuple[UnplacedPod, ...]
    quorum: int
    scheduled: int
    remaining: int
    unknown: int
    wakes_on: frozenset[ClusterEvent]
    reason: str = UNSCHEDULABLE
    #: How many placements it could choose from; None without topology constraint.
    placements: int | None = None
    #: Why it is undecided whether a placement exists; "" if there is none.
    undecided: str = ""
    #: The result of preemption as a message; "" if preemption was not tried.
    preemption: str = ""
    #: The nominated nodes of the members while victims terminate.
    nominated: tuple[Binding, ...] = ()
    #: Seconds until a wider topology level is allowed; None if none ever is.
    relaxation_delay: float | None = None
    #: The outcome of each group of a tree; empty for a PodGroup without parent.
    parts: tuple[GroupOutcome, ...] = ()
    #: How many of the placements were tried.
    tried: int = 0
    #: Seconds until a terminating pod that hangs no longer counts as leaving; None for none.
    leaving_delay: float | None = None
    #: The reservation that keeps the room that the entity would fit in; "" if none does.
    held_by: str = ""
    #: The entities whose reservations keep room from the entity that it could use.
    holders: tuple[Ref, ...] = ()
    #: Whether the nominated nodes are those of its reservation, which are about to become free.
    starts_soon: bool = False

    @property
    def retry_delay(self) -> float | None:
        """Seconds until time alone may change the decision; None if it never does."""
        delays = (self.relaxation_delay, self.leaving_delay)
        return min((delay for delay in delays if delay is not None), default=None)

    @property
    def choice(self) -> PlacementChoice | None:
        """The placements, none of them feasible; None without topology constraint."""
        return None if self.placements is None else PlacementChoice(self.placements, self.tried, 0)

    @property
    def lacks_quorum(self) -> bool:
        """Whether the group has fewer placed members than it needs."""
        return self.scheduled < self.quorum


class Victim(NamedTuple):
    """A pod to evict, and the group that is evicted as a whole with it, if any."""

    pod: Key
    uid: str
    node: str
    group: Ref | None = None


@dataclass(frozen=True, slots=True)
class Preempting:
    """The entity fits once the victims are gone: evict them and nominate the nodes."""

    waiting: Waiting
    victims: tuple[Victim, ...]
    #: How many groups are disrupted: whole groups and trees, and single pods of groups; at least
    #: those that fall below their quorum.
    disruptions: int = 0
    #: How many evictions exceed PodDisruptionBudgets.
    violations: int = 0
    #: The PodGroups that fall below their quorum, and were not below it before.
    broken_groups: tuple[Key, ...] = ()
    #: Whether no other set of victims costs less; False if the search ended at its limit.
    optimal: bool = True

    @property
    def choice(self) -> PlacementChoice | None:
        """The placements, none of them feasible; None without topology constraint."""
        return self.waiting.choice

    @property
    def group(self) -> Key | None:
        """The group of the entity."""
        return self.waiting.group

    @property
    def pods(self) -> tuple[UnplacedPod, ...]:
        """The pods without a node."""
        return self.waiting.pods

    @property
    def reason(self) -> str:
        """The reason code of the pending entity."""
        return self.waiting.reason

    @property
    def wakes_on(self) -> frozenset[ClusterEvent]:
        """The events that may make the entity schedulable."""
        return self.waiting.wakes_on

    @property
    def retry_delay(self) -> float | None:
        """Seconds until time alone may change the decision; None if it never does."""
        return self.waiting.retry_delay

    @property
    def lacks_quorum(self) -> bool:
        """Whether the group has fewer placed members than it needs."""
        return self.waiting.lacks_quorum


@dataclass(frozen=True, slots=True)
class Impossible:
    """Unschedulable whatever resources become free: the objects themselves must be edited."""

    group: Key | None
    pods: tuple[UnplacedPod, ...]
    reason: str
    message: str
    cure: str
    wakes_on: frozenset[ClusterEvent]
    #: The groups of a tree; empty for a PodGroup without parent.
    parts: tuple[GroupOutcome, ...] = ()
    relaxation_delay: float | None = None

    @property
    def retry_delay(self) -> float | None:
        """Seconds until time alone may change the decision; None if it never does."""
        return self.relaxation_delay

    @property
    def choice(self) -> PlacementChoice | None:
        """None: no placement was tried."""
        return None

    @property
    def lacks_quorum(self) -> bool:
        """Whether the group has fewer placed members than it needs: always true."""
        return True


#: Decisions that leave the entity pending.
PendingDecision = Preempting | Waiting | Impossible
Decision = Placed | PendingDecision


def nominations_of(decision: Decision) -> tuple[Binding, ...]:
    """Return the nominated nodes of a decision."""
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
    """The gang has fewer live members than minCount."""

    quorum: int
    present: int


@dataclass(frozen=True, slots=True)
class MissingGroups:
    """Fewer child groups have enough live members than minGroupCount."""

    quorum: int
    present: int


@dataclass(frozen=True, slots=True)
class IncompleteGroupTree:
    """The tree of the group is not complete yet, or (`is_invalid`) is not a valid tree."""

    message: str
    is_invalid: bool = False


@dataclass(frozen=True, slots=True)
class SchedulingGated:
    """These pods of the entity have scheduling gates."""

    pods: tuple[str, ...]
    gates: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class MissingClaims:
    """These pods of the entity have claims that are not there yet, or are being deleted."""

    pods: tuple[str, ...]
    problem: str


#: Why an entity is not tried.
UnreadyReason = (
    MissingGroup
    | MissingMembers
    | MissingGroups
    | IncompleteGroupTree
    | SchedulingGated
    | MissingClaims
)
