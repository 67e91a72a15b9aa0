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
from phalanx.api.meta import Condition, find_condition, parse_timestamp
from phalanx.api.scheduling import (
    COMPOSITE_INITIALLY_SCHEDULED,
    POD_GROUP_INITIALLY_SCHEDULED,
    CompositePodGroup,
)
from phalanx.scheduler.cluster.group_tree import (
    Group,
    GroupRef,
    GroupTreeProblem,
    GroupTrees,
    group_ref,
)
from phalanx.scheduler.diagnosis.diagnosis import NOT_READY
from phalanx.scheduler.explain import describe_unready
from phalanx.scheduler.queue.cluster_objects import ClusterObjects, creation_time, load_state
from phalanx.scheduler.queue.queued_entity import EntityId, QueuedEntityInfo

#: What is said of somebody whom no scheduler has spoken of yet.
NOT_TRIED_YET = "NotTriedYet"
_POD_SCHEDULED = "PodScheduled"


class WorkloadState(Enum):
    """How it is about a gang."""

    RUNNING = "running"
    WAITING = "waiting"
    HELD = "held"
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class WorkloadRow:
    """One line: a gang, a tree of them, or a pod alone that waits."""

    ref: EntityId
    state: WorkloadState
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
        return self.owner or self.ref.key.name

    @property
    def has_run(self) -> bool:
        """Whether as many members as it needs run, or have run to a good end."""
        return self.started + self.ended - self.failed >= self.needed

    @property
    def kind(self) -> str:
        """The name of the kind."""
        if not self.ref.is_group:
            return "Pod"
        return "CompositePodGroup" if self.ref.is_composite else "PodGroup"


@dataclass(slots=True)
class _EntityPods:
    """The pods of one entity."""

    placed: list[Pod] = field(default_factory=list)
    pending: list[Pod] = field(default_factory=list)
    ended: list[Pod] = field(default_factory=list)


def list_workloads(cluster: ClusterObjects, *, include_all: bool = False) -> list[WorkloadRow]:
    """Those that run, the longest first, and then those that wait, the next one first.

    With `everybody` also gangs that have ended, before all others, and pods alone that wait for
    nothing.
    """
    forest = _build_group_tree(cluster.groups)
    wholes = _pods_by_entity(cluster.pods, forest)
    places = load_state(cluster).queue.list_entities()
    waiting = {place.id for place in places}
    rest = [
        _settled_row(id_, whole, forest)
        for id_, whole in wholes.items()
        if id_ not in waiting and (id_.is_group or include_all) and (whole.placed or whole.ended)
    ]
    ended = [one for one in rest if one.state is WorkloadState.ENDED and include_all]
    running = [one for one in rest if one.state is WorkloadState.RUNNING]
    first = [*sorted(ended, key=_age_key), *sorted(running, key=_age_key)]
    return [*first, *_waiting_rows(places, wholes, forest)]


def _age_key(one: WorkloadRow) -> tuple[float, EntityId]:
    return one.since, one.ref


def _build_group_tree(groups: Iterable[Group]) -> GroupTrees:
    forest = GroupTrees()
    for group in groups:
        forest.update(group_ref(group), group)
    return forest


def _pods_by_entity(pods: Iterable[Pod], group_tree: GroupTrees) -> dict[EntityId, _EntityPods]:
    found: dict[EntityId, _EntityPods] = {}
    for pod in pods:
        whole = found.setdefault(entity_of_pod(pod, group_tree), _EntityPods())
        if pod.is_terminal:
            whole.ended.append(pod)
        elif pod.occupied_node:
            whole.placed.append(pod)
        elif not pod.metadata.deletion_timestamp:
            whole.pending.append(pod)
    return found


def entity_of_pod(pod: Pod, group_tree: GroupTrees) -> EntityId:
    """The entity that a pod is of: itself, its group, or the tree that it is in."""
    if pod.group is None:
        return EntityId(False, pod.metadata.key)
    own = GroupRef(False, pod.group)
    root = group_tree.root(own)
    name = own if isinstance(root, GroupTreeProblem) else root
    return EntityId(True, name.key, name.is_composite)


def pods_with_entities(cluster: ClusterObjects) -> list[tuple[EntityId, Pod]]:
    """All pods, each with the entity that it is of."""
    forest = _build_group_tree(cluster.groups)
    return [(entity_of_pod(pod, forest), pod) for pod in cluster.pods]


def _settled_row(id_: EntityId, pods: _EntityPods, group_tree: GroupTrees) -> WorkloadRow:
    """The line of somebody who waits for nothing."""
    group = group_tree.get(id_.name) if id_.is_group else None
    said, some = _scheduled_condition(group), (pods.placed or pods.ended)[0]
    since = creation_time(group.metadata if group else some.metadata)
    if said is not None and said.status == "True" and said.last_transition_time:
        since = parse_timestamp(said.last_transition_time)
    standing = WorkloadState.RUNNING if pods.placed else WorkloadState.ENDED
    return _row(id_, standing, 0, since, pods, group)


def _waiting_rows(
    infos: Iterable[QueuedEntityInfo],
    pods_by_entity: dict[EntityId, _EntityPods],
    group_tree: GroupTrees,
) -> Iterator[WorkloadRow]:
    position = 0
    for place in infos:
        standing = WorkloadState.HELD if place.unready else WorkloadState.WAITING
        position += standing is WorkloadState.WAITING
        turn = position if standing is WorkloadState.WAITING else 0
        whole, group = (
            pods_by_entity[place.ref],
            group_tree.get(place.ref.name) if place.is_group else None,
        )
        yield _row(place.ref, standing, turn, place.timestamp, whole, group, place)


def _row(
    id_: EntityId,
    state: WorkloadState,
    position: int,
    since: float,
    pods: _EntityPods,
    group: Group | None,
    info: QueuedEntityInfo | None = None,
) -> WorkloadRow:
    reason, message = _waiting_reason(info, pods, group) if info else ("", "")
    some = (pods.pending or pods.placed or pods.ended)[0]
    return WorkloadRow(
        id_, state, position,
        priority=group.spec.priority if group else some.spec.priority,
        since=since,
        placed=len(pods.placed), pending=len(pods.pending), ended=len(pods.ended),
        needed=group.quorum if group else 1,
        reason=reason, message=message,
        nodes=tuple(sorted({pod.occupied_node for pod in pods.placed})),
        scheduler=some.spec.scheduler_name,
        started=sum(pod.status.phase == "Running" for pod in pods.placed),
        failed=sum(pod.status.phase == "Failed" for pod in pods.ended),
        owner=owner_of(group or some),
    )  # fmt: skip


def _waiting_reason(
    info: QueuedEntityInfo, pods: _EntityPods, group: Group | None
) -> tuple[str, str]:
    """Why it has no place, in a word and in a sentence."""
    if info.unready is not None:
        return NOT_READY, describe_unready(info.unready)
    said = _scheduled_condition(group) if group else None
    if said is None or said.status == "True":
        # Members that come after their group was placed are spoken of one by one.
        told = (find_condition(pod.status.conditions, _POD_SCHEDULED) for pod in pods.pending)
        said = next((one for one in told if one is not None and one.status == "False"), None)
    return (
        (said.reason, said.message)
        if said
        else (NOT_TRIED_YET, "no scheduler has spoken of it yet")
    )


def _scheduled_condition(group: Group | None) -> Condition | None:
    """What the scheduler said of a group."""
    if group is None:
        return None
    kind = (
        COMPOSITE_INITIALLY_SCHEDULED
        if isinstance(group, CompositePodGroup)
        else POD_GROUP_INITIALLY_SCHEDULED
    )
    return find_condition(group.status.conditions, kind)


def owner_of(one: Group | Pod) -> str:
    """Who made a group or a pod, such as `Job/train`; "" if nobody says so."""
    makers = [ref for ref in one.metadata.owner_references if ref.controller]
    return f"{makers[0].kind}/{makers[0].name}" if makers else ""


def in_namespace(rows: Iterable[WorkloadRow], namespace: str) -> list[WorkloadRow]:
    """Those of one namespace, in their turns among all; "" for all."""
    return [one for one in rows if not namespace or one.ref.key.namespace == namespace]


def entity_title(id_: EntityId) -> str:
    """An entity as a phrase: `PodGroup default/train`."""
    kind = "CompositePodGroup" if id_.is_composite else "PodGroup"
    return f"{kind if id_.is_group else 'Pod'} {id_.key}"
