"""The pods of groups as the API shows them, counted: what rest is judged by.

What a scheduler must believe when nothing happens any more: what the API shows.

Asked by `ordeal` of each scheduler after the faults have ended and all is quiet. Everything is held
against the store's log; the scheduler's cache and queue are what is judged. What groups and pods
say of themselves is judged in `words.py`.

What groups and pods say of themselves when nothing happens any more: the truth, all of it.

Asked by `ordeal` after the faults have ended. What is true is counted from the store's log; in
which words it is to be said is what the scheduler's last decision about each comes to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from phalanx.api.core import DEFAULT_SCHEDULER, Pod
from phalanx.api.meta import Condition, Key, find_condition
from phalanx.api.scheduling import (
    COMPOSITE_INITIALLY_SCHEDULED,
    DEGRADED,
    DISRUPTION_TARGET,
    POD_GROUP_INITIALLY_SCHEDULED,
    POD_GROUP_SCHEDULED,
    CompositePodGroup,
    PodGroup,
)
from phalanx.scheduler.cluster.cache import SchedulerCache
from phalanx.scheduler.cluster.group_tree import GroupRef
from phalanx.scheduler.cluster.snapshot import Snapshot
from phalanx.scheduler.decision import Decision, Placed, nominations_of
from phalanx.scheduler.explain import describe_unready, explain
from phalanx.scheduler.queue.cluster_objects import ClusterObjects, load_state
from phalanx.scheduler.queue.queued_entity import EntityId, QueuedEntityInfo, QueueState
from phalanx.scheduler.queue.scheduling_queue import SchedulingQueue
from phalanx.sim.group_tree_oracle import AnyPodGroup, GroupTreeOracle
from tools.faults.model import StoreLogReader


class GroupMembers:
    """Live and ended ones."""

    def __init__(self, pods: list[Pod]) -> None:
        self.alive = [pod for pod in pods if is_alive(pod)]
        self.pending = [pod for pod in self.alive if not pod.spec.node_name]
        self.placed = len(self.alive) - len(self.pending)
        self.succeeded = sum(pod.status.phase == "Succeeded" for pod in pods)
        self.failed = sum(pod.status.phase == "Failed" for pod in pods)

    @property
    def has_gated(self) -> bool:
        """Whether somebody holds one of them back that a scheduler of ours would place."""
        return any(is_waiting(pod) and pod.spec.scheduling_gates for pod in self.pending)


NO_MEMBERS = GroupMembers([])


class MembersByGroup:
    """The members of every group, and the trees that groups form."""

    def __init__(self, pods: Mapping[Key, Pod], trees: GroupTreeOracle) -> None:
        self.trees = trees
        self._members = group_members(pods)

    def members_of(self, key: Key) -> GroupMembers:
        """The members of a PodGroup."""
        return self._members.get(key, NO_MEMBERS)

    def has_gated(self, group: AnyPodGroup) -> bool:
        """Whether a member of a group, or of one below it, is held back."""
        root, members = self.trees.root, self._members.items()
        return any(mine.has_gated for key, mine in members if root(key) is group)

    def has_required_members(self, group: AnyPodGroup) -> bool:
        """Whether as many members are there, or groups that have theirs, as are needed."""
        if isinstance(group, CompositePodGroup):
            return sum(map(self.has_required_members, self.trees.children(group))) >= group.quorum
        key = group.metadata.key
        return self.trees.is_valid(key) and len(self.members_of(key).alive) >= group.quorum

    def has_required_placed(self, group: AnyPodGroup) -> bool:
        """Whether as many members have a node, or groups have as many of theirs, as are needed."""
        if isinstance(group, CompositePodGroup):
            return sum(map(self.has_required_placed, self.trees.children(group))) >= group.quorum
        return self.members_of(group.metadata.key).placed >= group.quorum


def group_members(pods: Mapping[Key, Pod]) -> dict[Key, GroupMembers]:
    """The members of every group that a pod names."""
    found: dict[Key, list[Pod]] = {}
    for pod in pods.values():
        if pod.group is not None:
            found.setdefault(pod.group, []).append(pod)
    return {key: GroupMembers(members) for key, members in found.items()}


def is_alive(pod: Pod) -> bool:
    """Whether it has neither ended nor is being deleted."""
    return not pod.is_terminal and not pod.metadata.deletion_timestamp


def is_waiting(pod: Pod) -> bool:
    """Whether it wants a node of a scheduler of ours."""
    ours = pod.spec.scheduler_name == DEFAULT_SCHEDULER
    return ours and is_alive(pod) and not pod.spec.node_name


def check_scheduler(
    cache: SchedulerCache, queue: SchedulingQueue, store_log: StoreLogReader
) -> Iterator[str]:
    """Sentences about everything that a scheduler at rest believes and is not so."""
    yield from (f"pod {key} is still assumed to have a node" for key in cache.assumed_pods())
    yield from (f"pod {key} is still taken for a victim" for key, _ in cache.evicting_pods())
    yield from cache.check()
    yield from compare_snapshots(
        cache.snapshot(), load_state(_store_cluster(store_log)).cache.snapshot()
    )
    yield from _check_queue(queue, store_log)


def _store_cluster(tail: StoreLogReader) -> ClusterObjects:
    return ClusterObjects(
        tail.nodes.values(), [*tail.groups.values(), *tail.composites.values()],
        tail.pods.values(), tail.services.values(),
        {key.name: space.metadata.labels for key, space in tail.namespaces.items()},
        tail.budgets.values(),
    )  # fmt: skip


def compare_snapshots(held: Snapshot, actual: Snapshot) -> Iterator[str]:
    """Where one snapshot says something else than another, whatever the order of its columns."""
    if held.names != actual.names:
        yield f"it knows the nodes {held.names}, but there are {actual.names}"
        return
    for name in held.names:
        one, other = _node_facts(held, name), _node_facts(actual, name)
        if one != other:
            yield f"it believes {one} of node {name}, but true is {other}"
    if held.member_counts != actual.member_counts:
        yield f"it counts {held.member_counts} members with nodes, but there are {actual.member_counts}"
    if held.pod_index.existing_terms != actual.pod_index.existing_terms:
        yield "it believes other terms to be carried than pods carry"
    if _group_specs(held) != _group_specs(actual):
        yield "it knows other groups than there are"
    if held.nominations != actual.nominations:
        yield f"it keeps {_nominated_nodes(held)} for pods, but they were promised {_nominated_nodes(actual)}"
    if held.budgets != actual.budgets:
        yield "it knows other disruption budgets than there are"


def _node_facts(snapshot: Snapshot, name: str) -> dict[str, object]:
    """All that a snapshot says of a node."""
    at = snapshot.index[name]
    taints = list(snapshot.taints)[snapshot.taint_class[at]]
    known: dict[str, object] = {
        "labels": snapshot.labels[at],
        "taints": taints,
        "cordoned": bool(snapshot.cordoned[at]),
        "ports": sorted(snapshot.used_ports.get(at, ())),
        "scored": snapshot.nonzero_requested[at].tolist(),
    }
    for resource, column in sorted(snapshot.columns.items()):
        known[resource] = int(snapshot.requested[at, column]), int(snapshot.allocatable[at, column])
    return {name: value for name, value in known.items() if value and value != (0, 0)}


def _group_specs(snapshot: Snapshot) -> dict[GroupRef, object]:
    return {name: group.spec for name, group in snapshot.group_trees.groups.items()}


def _nominated_nodes(snapshot: Snapshot) -> dict[str, str]:
    return {str(key): claim.node for key, claim in sorted(snapshot.nominations.items())}


def _check_queue(queue: SchedulingQueue, tail: StoreLogReader) -> Iterator[str]:
    """Every pod that wants a node is in the queue, where it belongs, and nobody else is."""
    held = {key: place.state for place in queue.list_entities() for key in place.pods}
    waiting = {key: pod for key, pod in tail.pods.items() if is_waiting(pod)}
    families = MembersByGroup(tail.pods, GroupTreeOracle(tail.groups, tail.composites))
    yield from (f"pod {key} is in the queue for nothing" for key in held if key not in waiting)
    for key, pod in waiting.items():
        expected = _expected_state(families, pod)
        if held.get(key) is not expected:
            where = held[key].name if key in held else "not"
            yield f"pod {key} is {where} in the queue, but should be {expected.name}"


def _expected_state(families: MembersByGroup, pod: Pod) -> QueueState:
    """Where a pod that waits must stand, by what there is of the tree that its group is in."""
    if pod.group is None:
        return QueueState.GATED if pod.spec.scheduling_gates else QueueState.BACKING_OFF
    root = families.trees.root(pod.group)
    if root is None:
        return QueueState.INCOMPLETE
    if families.has_gated(root):
        return QueueState.GATED
    return QueueState.BACKING_OFF if families.has_required_members(root) else QueueState.INCOMPLETE


#: The last decision about an entity.
LastDecision = Callable[[EntityId], Decision | None]


def check_statuses(
    queue: SchedulingQueue, last: LastDecision, store_log: StoreLogReader
) -> Iterator[str]:
    """Sentences about everything that is said and is not so, or is so and is not said."""
    places = queue.list_entities()
    families = MembersByGroup(
        store_log.pods, GroupTreeOracle(store_log.groups, store_log.composites)
    )
    waiting = {place.ref: place for place in places if place.is_group}
    for key, group in store_log.groups.items():
        mine, id_ = families.members_of(key), EntityId(True, key)
        yield from _check_counts(group, mine)
        yield from _check_degraded(group, mine)
        yield from _check_scheduled(group, mine, waiting.get(id_), last(id_))
    for key, composite in store_log.composites.items():
        id_ = EntityId(True, key, True)
        has_enough = families.has_required_placed(composite)
        yield from _check_composite(composite, has_enough, waiting.get(id_), last(id_))
    for place in places:
        decision = last(place.ref)
        told = {one.pod: one.message for one in explain(decision).pods} if decision else {}
        nodes = {pod: node for pod, _, node in nominations_of(decision)} if decision else {}
        for key in place.pods:
            yield from _check_pod(store_log.pods[key], place, told.get(key), nodes.get(key, ""))


def _check_counts(group: PodGroup, members: GroupMembers) -> Iterator[str]:
    """A group counts its members right."""
    status = group.status
    said = status.scheduled_pods, status.pending_pods, status.succeeded_pods, status.failed_pods
    true = members.placed, len(members.pending), members.succeeded, members.failed
    if said != true:
        names = "(placed, pending, succeeded, failed)"
        yield f"group {group.metadata.key} counts {said} {names}, not {true}"


def _check_degraded(group: PodGroup, members: GroupMembers) -> Iterator[str]:
    """A gang that was placed says whether it has lost members that it needs."""
    if not group.is_gang or not _is_true(_group_condition(group, POD_GROUP_INITIALLY_SCHEDULED)):
        return
    said, there = _group_condition(group, DEGRADED), members.placed + members.succeeded
    if _is_true(said) != (there < group.quorum):
        has = f"group {group.metadata.key} has {there} of {group.quorum}"
        yield f"{has}, but says of {DEGRADED} {_describe_condition(said)}"


def _check_scheduled(
    group: PodGroup,
    members: GroupMembers,
    place: QueuedEntityInfo | None,
    decision: Decision | None,
) -> Iterator[str]:
    """A group says whether it is placed, and else why not."""
    said = _group_condition(group, POD_GROUP_SCHEDULED)
    if members.placed and members.placed >= group.quorum:
        if not _is_true(said):
            yield f"group {group.metadata.key} is placed, but says {_describe_condition(said)}"
    elif place is not None and not _is_true(_group_condition(group, POD_GROUP_INITIALLY_SCHEDULED)):
        wanted = (
            describe_unready(place.unready) if place.unready else _unscheduled_message(decision)
        )
        if said is None or said.status != "False" or wanted not in (None, said.message):
            yield f"group {group.metadata.key} says {_describe_condition(said)}, but should say {wanted}"


def _check_composite(
    composite: CompositePodGroup,
    has_enough: bool,
    place: QueuedEntityInfo | None,
    decision: Decision | None,
) -> Iterator[str]:
    """A group of groups says whether it was placed, and else why not; who is back is no target."""
    name, conditions = composite.metadata.key, composite.status.conditions
    said = find_condition(conditions, COMPOSITE_INITIALLY_SCHEDULED)
    if has_enough:
        if not _is_true(said):
            yield f"tree {name} is placed, but says {_describe_condition(said)}"
        if place is None and find_condition(conditions, DISRUPTION_TARGET) is not None:
            yield f"tree {name} is placed, but says that it is to make way"
    elif place is not None and not _is_true(said):
        wanted = (
            describe_unready(place.unready) if place.unready else _unscheduled_message(decision)
        )
        if said is None or said.status != "False" or wanted not in (None, said.message):
            yield f"tree {name} says {_describe_condition(said)}, but should say {wanted}"


def _unscheduled_message(decision: Decision | None) -> str | None:
    return None if decision is None or isinstance(decision, Placed) else explain(decision).message


def _check_pod(
    pod: Pod, place: QueuedEntityInfo, wanted: str | None, nominated: str
) -> Iterator[str]:
    """A pod that waits says why, and whether it was promised a node, but nothing else."""
    key, said = pod.metadata.key, find_condition(pod.status.conditions, "PodScheduled")
    if said is None or said.status != "False" or not said.reason:
        yield f"pod {key} waits, but says {_describe_condition(said)}"
    elif place.unready is None and wanted not in (None, said.message):
        yield f"pod {key} says {_describe_condition(said)}, but should say {wanted}"
    if (node := pod.status.nominated_node_name) != nominated and place.unready is None:
        yield f"pod {key} was refused and still has a promise of node {node}"


def _group_condition(group: PodGroup, kind: str) -> Condition | None:
    return find_condition(group.status.conditions, kind)


def _is_true(said: Condition | None) -> bool:
    return said is not None and said.status == "True"


def _describe_condition(said: Condition | None) -> str:
    return f"{said.status}: {said.message}" if said else "nothing"
