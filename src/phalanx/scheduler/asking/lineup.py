"""Lineup: who waits and who runs, in order, read from what the API shows.

`phalanx queue` and `phalanx top` print it. The order is that of a queue that has seen everything
when it came about: what was begun, the higher priority, the longer wait. Reasons are those that the
scheduler wrote down; nothing is decided anew.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum

from phalanx.api.core import Pod
from phalanx.api.meta import Condition, condition, seconds
from phalanx.api.scheduling import (
    COMPOSITE_INITIALLY_SCHEDULED,
    INITIALLY_SCHEDULED,
    CompositePodGroup,
)
from phalanx.scheduler.asking.diagnosis import NOT_READY, Cluster, made, queue_of
from phalanx.scheduler.cluster.forest import Flaw, Forest, Group, Name, name_of
from phalanx.scheduler.explain import not_ready
from phalanx.scheduler.queueing.entry import Id
from phalanx.scheduler.queueing.place import Place

#: What is said of somebody whom no scheduler has spoken of yet.
NEW = "NotTriedYet"
_POD_SCHEDULED = "PodScheduled"


class Standing(Enum):
    """How it is about a gang."""

    RUNNING = "running"
    WAITING = "waiting"
    HELD = "held"
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class Lined:
    """One line: a gang, a tree of them, or a pod alone that waits."""

    id: Id
    standing: Standing
    #: Its turn among those that wait, from 1; 0 if it has none.
    position: int
    priority: int
    #: Since when it waits, or runs.
    since: float
    placed: int
    pending: int
    ended: int
    needed: int
    reason: str
    message: str
    nodes: tuple[str, ...]
    scheduler: str
    #: Of those with a node, how many have started; of those that have ended, how many badly.
    started: int
    failed: int
    #: What it was made for, such as `Job/train`; "" if for nothing.
    owner: str = ""

    @property
    def members(self) -> int:
        """All that there are of it, the ended ones included."""
        return self.placed + self.pending + self.ended

    @property
    def title(self) -> str:
        """What people call it: what it was made for, or else its name."""
        return self.owner or self.id.key.name

    @property
    def has_run(self) -> bool:
        """Whether as many members as it needs run, or have run to a good end."""
        return self.started + self.ended - self.failed >= self.needed

    @property
    def kind(self) -> str:
        """The name of the kind."""
        if not self.id.is_group:
            return "Pod"
        return "CompositePodGroup" if self.id.is_composite else "PodGroup"


@dataclass(slots=True)
class _Whole:
    """The pods of one entity."""

    placed: list[Pod] = field(default_factory=list)
    pending: list[Pod] = field(default_factory=list)
    ended: list[Pod] = field(default_factory=list)


def lineup(cluster: Cluster, *, everybody: bool = False) -> list[Lined]:
    """Those that run, the longest first, and then those that wait, the next one first.

    With `everybody` also gangs that have ended, before all others, and pods alone that wait for
    nothing.
    """
    forest = _forest(cluster.groups)
    wholes = _wholes(cluster.pods, forest)
    places = queue_of(cluster).listing()
    waiting = {place.id for place in places}
    rest = [
        _settled(id_, whole, forest)
        for id_, whole in wholes.items()
        if id_ not in waiting and (id_.is_group or everybody) and (whole.placed or whole.ended)
    ]
    ended = [one for one in rest if one.standing is Standing.ENDED and everybody]
    running = [one for one in rest if one.standing is Standing.RUNNING]
    first = [*sorted(ended, key=_age), *sorted(running, key=_age)]
    return [*first, *_numbered(places, wholes, forest)]


def _age(one: Lined) -> tuple[float, Id]:
    return one.since, one.id


def _forest(groups: Iterable[Group]) -> Forest:
    forest = Forest()
    for group in groups:
        forest.put(name_of(group), group)
    return forest


def _wholes(pods: Iterable[Pod], forest: Forest) -> dict[Id, _Whole]:
    found: dict[Id, _Whole] = {}
    for pod in pods:
        whole = found.setdefault(home_of(pod, forest), _Whole())
        if pod.ended:
            whole.ended.append(pod)
        elif pod.node:
            whole.placed.append(pod)
        elif not pod.metadata.deletion_timestamp:
            whole.pending.append(pod)
    return found


def home_of(pod: Pod, forest: Forest) -> Id:
    """The entity that a pod is of: itself, its group, or the tree that it is in."""
    if pod.group is None:
        return Id(False, pod.metadata.key)
    own = Name(False, pod.group)
    root = forest.root(own)
    name = own if isinstance(root, Flaw) else root
    return Id(True, name.key, name.is_composite)


def homes(cluster: Cluster) -> list[tuple[Id, Pod]]:
    """All pods, each with the entity that it is of."""
    forest = _forest(cluster.groups)
    return [(home_of(pod, forest), pod) for pod in cluster.pods]


def _settled(id_: Id, whole: _Whole, forest: Forest) -> Lined:
    """The line of somebody who waits for nothing."""
    group = forest.get(id_.name) if id_.is_group else None
    said, some = _said(group), (whole.placed or whole.ended)[0]
    since = made(group.metadata if group else some.metadata)
    if said is not None and said.status == "True" and said.last_transition_time:
        since = seconds(said.last_transition_time)
    standing = Standing.RUNNING if whole.placed else Standing.ENDED
    return _line(id_, standing, 0, since, whole, group)


def _numbered(places: Iterable[Place], wholes: dict[Id, _Whole], forest: Forest) -> Iterator[Lined]:
    position = 0
    for place in places:
        standing = Standing.HELD if place.unready else Standing.WAITING
        position += standing is Standing.WAITING
        turn = position if standing is Standing.WAITING else 0
        whole, group = wholes[place.id], forest.get(place.id.name) if place.is_group else None
        yield _line(place.id, standing, turn, place.timestamp, whole, group, place)


def _line(
    id_: Id, standing: Standing, position: int, since: float, whole: _Whole, group: Group | None,
    place: Place | None = None,
) -> Lined:  # fmt: skip
    reason, message = _why(place, whole, group) if place else ("", "")
    some = (whole.pending or whole.placed or whole.ended)[0]
    return Lined(
        id_, standing, position,
        priority=group.spec.priority if group else some.spec.priority,
        since=since,
        placed=len(whole.placed), pending=len(whole.pending), ended=len(whole.ended),
        needed=group.quorum if group else 1,
        reason=reason, message=message,
        nodes=tuple(sorted({pod.node for pod in whole.placed})),
        scheduler=some.spec.scheduler_name,
        started=sum(pod.status.phase == "Running" for pod in whole.placed),
        failed=sum(pod.status.phase == "Failed" for pod in whole.ended),
        owner=owner_of(group or some),
    )  # fmt: skip


def _why(place: Place, whole: _Whole, group: Group | None) -> tuple[str, str]:
    """Why it has no place, in a word and in a sentence."""
    if place.unready is not None:
        return NOT_READY, not_ready(place.unready)
    said = _said(group) if group else None
    if said is None or said.status == "True":
        # Members that come after their group was placed are spoken of one by one.
        told = (condition(pod.status.conditions, _POD_SCHEDULED) for pod in whole.pending)
        said = next((one for one in told if one is not None and one.status == "False"), None)
    return (said.reason, said.message) if said else (NEW, "no scheduler has spoken of it yet")


def _said(group: Group | None) -> Condition | None:
    """What the scheduler said of a group."""
    if group is None:
        return None
    kind = (
        COMPOSITE_INITIALLY_SCHEDULED
        if isinstance(group, CompositePodGroup)
        else INITIALLY_SCHEDULED
    )
    return condition(group.status.conditions, kind)


def owner_of(one: Group | Pod) -> str:
    """Who made a group or a pod, such as `Job/train`; "" if nobody says so."""
    makers = [ref for ref in one.metadata.owner_references if ref.controller]
    return f"{makers[0].kind}/{makers[0].name}" if makers else ""


def of_namespace(lines: Iterable[Lined], namespace: str) -> list[Lined]:
    """Those of one namespace, in their turns among all; "" for all."""
    return [one for one in lines if not namespace or one.id.key.namespace == namespace]


def titled(id_: Id) -> str:
    """An entity as a phrase: `PodGroup default/train`."""
    kind = "CompositePodGroup" if id_.is_composite else "PodGroup"
    return f"{kind if id_.is_group else 'Pod'} {id_.key}"
