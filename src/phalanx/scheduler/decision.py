"""What a cycle decides, as values: Placed, Waiting or Impossible. And why the queue holds one back.

The shell in `controllers/` matches on the class and acts; `explain.py` turns any of them into
sentences. A refusal is an ordinary answer here, never an exception.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from phalanx.api.meta import Key
from phalanx.scheduler.events import Event

UNSCHEDULABLE = "Unschedulable"
SCHEDULER_ERROR = "SchedulerError"


class Binding(NamedTuple):
    """A pod, known by name and uid, and the node that it gets."""

    pod: Key
    uid: str
    node: str


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why no node takes a pod: of `total` nodes, how many gave which reason."""

    total: int
    counts: tuple[tuple[str, int], ...] = ()
    #: Small changes, as sentences, each of which would let the pod in.
    cures: tuple[str, ...] = ()
    wakes_on: frozenset[Event] = frozenset()
    #: The names of the filters that refused any node.
    filters: tuple[str, ...] = ()


class Refused(NamedTuple):
    """A pod without a node. No refusal of its own: it fitted or was not tried, its group failed."""

    pod: Key
    uid: str
    refusal: Refusal | None


@dataclass(frozen=True, slots=True)
class Placed:
    """Enough members have a node: bind them. Leftovers are members beyond the quorum without."""

    group: Key | None
    bindings: tuple[Binding, ...]
    leftovers: tuple[Refused, ...] = ()

    @property
    def fails_group(self) -> bool:
        """Whether the group lacks members that it needs."""
        return False


@dataclass(frozen=True, slots=True)
class Waiting:
    """No placement now; an event of `wakes_on` may change that.

    `scheduled` counts the members that had or found a node, `remaining` those that were not tried
    any more when the attempt was given up, `unknown` those among them that might have fitted.
    """

    group: Key | None
    pods: tuple[Refused, ...]
    quorum: int
    scheduled: int
    remaining: int
    unknown: int
    wakes_on: frozenset[Event]
    reason: str = UNSCHEDULABLE
    #: Among how many placements it could choose; None where it may be anywhere.
    placements: int | None = None

    @property
    def fails_group(self) -> bool:
        """Whether the group lacks members that it needs, and not only others."""
        return self.scheduled < self.quorum


@dataclass(frozen=True, slots=True)
class Impossible:
    """No event of the cluster, only an edit of the objects themselves can help."""

    group: Key | None
    pods: tuple[Refused, ...]
    reason: str
    message: str
    cure: str
    wakes_on: frozenset[Event]

    @property
    def fails_group(self) -> bool:
        """Whether the group lacks members that it needs: it is wrong as it is."""
        return True


Decision = Placed | Waiting | Impossible


@dataclass(frozen=True, slots=True)
class MissingGroup:
    """The pods name a PodGroup that does not exist."""

    name: str


@dataclass(frozen=True, slots=True)
class MissingMembers:
    """The gang has fewer live members than it needs."""

    quorum: int
    there: int


@dataclass(frozen=True, slots=True)
class Gated:
    """Somebody holds these pods of the entity back by scheduling gates."""

    pods: tuple[str, ...]
    gates: tuple[str, ...]


#: Why an entity is not even tried.
Unready = MissingGroup | MissingMembers | Gated
