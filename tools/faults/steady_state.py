"""Checks of the steady state, when nothing happens any more.

`check_scheduler` compares cache and queue of each scheduler with the store's log. `check_statuses`
compares conditions and counts of groups and pods with the log, and their messages with the
scheduler's last decision. `MembersByGroup` counts the pods of groups as the API shows them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from phalanx.api.core import DEFAULT_SCHEDULER, Pod
from phalanx.api.meta import (
    Condition,
    Key,
    Ref,
    composite_pod_group_ref,
    find_condition,
    pod_group_ref,
)
from phalanx.api.scheduling import (
    COMPOSITE_INITIALLY_SCHEDULED,
    DEGRADED,
    DISRUPTION_TARGET,
    POD_GROUP_INITIALLY_SCHEDULED,
    POD_GROUP_SCHEDULED,
    CompositePodGroup,
    PodGroup,
    required_when_scheduled,
)
from phalanx.api.scheme import DEVICE_KINDS, VOLUME_KINDS
from phalanx.scheduler.cluster.cache import SchedulerCache
from phalanx.scheduler.cluster.snapshot import Snapshot
from phalanx.scheduler.decision import Decision, Placed, nominations_of
from phalanx.scheduler.devices.state import claims_of_pod
from phalanx.scheduler.explain import describe_unready, explain
from phalanx.scheduler.queue.queue_listing import QueuedEntityInfo
from phalanx.scheduler.queue.queued_entity import QueueState
from phalanx.scheduler.queue.scheduler_state import ClusterObjects, load_state
from phalanx.scheduler.queue.scheduling_queue import SchedulingQueue
from phalanx.sim.invariants import AnyPodGroup, GroupTreeOracle
from tools.faults.model import StoreLogReader


class GroupMembers:
    """The live and ended members of a group."""

    def __init__(self, pods: list[Pod]) -> None:
        self.alive = [pod for pod in pods if is_alive(pod)]
        self.pending = [pod for pod in self.alive if not pod.spec.node_name]
        self.placed = len(self.alive) - len(self.pending)
        self.succeeded = sum(pod.status.phase == "Succeeded" for pod in pods)
        self.failed = sum(pod.status.phase == "Failed" for pod in pods)


NO_MEMBERS = GroupMembers([])


class MembersByGroup:
    """The members of every group, and the trees of groups."""

    def __init__(self, log: StoreLogReader) -> None:
        self.trees = GroupTreeOracle(log.groups, log.composites)
        self._members, self._claims = group_members(log.pods), log.device_claims

    def members_of(self, key: Key) -> GroupMembers:
        """Return the members of a PodGroup."""
        return self._members.get(key, NO_MEMBERS)

    def has_gated(self, group: AnyPodGroup) -> bool:
        """Whether a member of a group, or of a group below it, is gated."""
        return any(
            is_waiting(pod) and self.is_gated(pod)
            for key, members in self._members.items()
            if self.trees.root(key) is group
            for pod in members.pending
        )

    def is_gated(self, pod: Pod) -> bool:
        """Whether a pod has scheduling gates, or waits for its ResourceClaims to be created."""
        return bool(pod.spec.scheduling_gates) or any(
            key is None
            or (claim := self._claims.get(key)) is None
            or bool(claim.metadata.deletion_timestamp)
            for _, key in claims_of_pod(pod)
        )

    def has_required_members(self, group: AnyPodGroup) -> bool:
        """Whether the minimum of members, or of complete child groups, exists."""
        if isinstance(group, CompositePodGroup):
            return sum(map(self.has_required_members, self.trees.children(group))) >= group.quorum
        key = group.metadata.key
        return self.trees.is_valid(key) and len(self.members_of(key).alive) >= group.quorum

    def has_required_placed(self, group: AnyPodGroup) -> bool:
        """Whether the minimum of members, or of scheduled child groups, is bound."""
        if isinstance(group, CompositePodGroup):
            return sum(map(self.has_required_placed, self.trees.children(group))) >= group.quorum
        return self.members_of(group.metadata.key).placed >= group.quorum


def group_members(pods: Mapping[Key, Pod]) -> dict[Key, GroupMembers]:
    """Return the members of every group that a pod names."""
    found: dict[Key, list[Pod]] = {}
    for pod in pods.values():
        if pod.group is not None:
            found.setdefault(pod.group, []).append(pod)
    return {key: GroupMembers(members) for key, members in found.items()}


def is_alive(pod: Pod) -> bool:
    """Whether a pod has neither ended nor is being deleted."""
    return not pod.is_terminal and not pod.metadata.deletion_timestamp


def is_waiting(pod: Pod) -> bool:
    """Whether a pod needs a node from a scheduler of ours."""
    ours = pod.spec.scheduler_name == DEFAULT_SCHEDULER
    return ours and is_alive(pod) and not pod.spec.node_name


def check_scheduler(
    cache: SchedulerCache, queue: SchedulingQueue, store_log: StoreLogReader
) -> Iterator[str]:
    """Return the violations of a scheduler at rest."""
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
        devices=[one for kind in DEVICE_KINDS for one in tail.claimable[kind].values()],
        volumes=[one for kind in VOLUME_KINDS for one in tail.claimable[kind].values()],
    )  # fmt: skip


def compare_snapshots(held: Snapshot, actual: Snapshot) -> Iterator[str]:
    """Return the differences between two snapshots, independent of column order."""
    if held.names != actual.names:
        yield f"it knows the nodes {held.names}, but there are {actual.names}"
        return
    for name in held.names:
        one, other = _node_facts(held, name), _node_facts(actual, name)
        if one != other:
            yield f"it believes {one} of node {name}, instead of {other}"
    if held.member_counts != actual.member_counts:
        yield f"it counts {held.member_counts} bound members instead of {actual.member_counts}"
    if held.pod_index.existing_terms != actual.pod_index.existing_terms:
        yield "it believes other terms to be carried than pods carry"
    if _group_specs(held) != _group_specs(actual):
        yield "it knows other groups than there are"
    if held.nominations != actual.nominations:
        believed, shown = _nominated_nodes(held), _nominated_nodes(actual)
        yield f"it has the nominations {believed} instead of {shown}"
    if held.budgets != actual.budgets:
        yield "it knows other disruption budgets than there are"
    if held.devices.usage.as_dict() != actual.devices.usage.as_dict():
        yield "it counts other devices as used than are allocated"
    if held.devices.assumed or held.volumes.assumed:
        yield f"it still assumes {[*held.devices.assumed, *held.volumes.assumed]}"


def _node_facts(snapshot: Snapshot, name: str) -> dict[str, object]:
    """Return all facts of a node in a snapshot."""
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


def _group_specs(snapshot: Snapshot) -> dict[Ref, object]:
    return {name: group.spec for name, group in snapshot.group_trees.groups.items()}


def _nominated_nodes(snapshot: Snapshot) -> dict[str, str]:
    return {str(key): claim.node for key, claim in sorted(snapshot.nominations.items())}


def _check_queue(queue: SchedulingQueue, tail: StoreLogReader) -> Iterator[str]:
    """Check that exactly the pending pods are queued, in their right states."""
    held = {key: place.state for place in queue.list_entities() for key in place.pods}
    waiting = {key: pod for key, pod in tail.pods.items() if is_waiting(pod)}
    families = MembersByGroup(tail)
    yield from (f"pod {key} is in the queue for nothing" for key in held if key not in waiting)
    for key, pod in waiting.items():
        expected = _expected_state(families, pod)
        if held.get(key) is not expected:
            where = held[key].name if key in held else "not"
            yield f"pod {key} is {where} in the queue, but should be {expected.name}"


def _expected_state(families: MembersByGroup, pod: Pod) -> QueueState:
    """Return the queue state of a pending pod, from its group's tree."""
    if pod.group is None:
        return QueueState.GATED if families.is_gated(pod) else QueueState.BACKING_OFF
    root = families.trees.root(pod.group)
    if root is None:
        return QueueState.INCOMPLETE
    if families.has_gated(root):
        return QueueState.GATED
    return QueueState.BACKING_OFF if families.has_required_members(root) else QueueState.INCOMPLETE


#: Returns the last decision about an entity.
LastDecision = Callable[[Ref], Decision | None]


def check_statuses(
    queue: SchedulingQueue,
    last: LastDecision,
    store_log: StoreLogReader,
    *,
    has_counts: bool = True,
) -> Iterator[str]:
    """Return the violations of statuses: wrong and missing statements.

    With `has_counts` the scheduler writes the member counts of groups, and what follows from them.
    """
    places = queue.list_entities()
    families = MembersByGroup(store_log)
    waiting = {place.ref: place for place in places if place.is_group}
    for key, group in store_log.groups.items():
        mine, id_ = families.members_of(key), pod_group_ref(key)
        if has_counts:
            yield from _check_counts(group, mine)
            yield from _check_degraded(group, mine)
            # A foreign server also has the conditions of bind intents.
            yield from _check_scheduled(group, mine, waiting.get(id_), decision=last(id_))
    for key, composite in store_log.composites.items():
        id_ = composite_pod_group_ref(key)
        has_enough = families.has_required_placed(composite)
        yield from _check_composite(composite, has_enough, waiting.get(id_), decision=last(id_))
    for place in places:
        decision = last(place.ref)
        messages = {one.pod: one.message for one in explain(decision).pods} if decision else {}
        nodes = {pod: node for pod, _, node in nominations_of(decision)} if decision else {}
        for key in place.pods:
            yield from _check_pod(
                store_log.pods[key], place, messages.get(key), nominated=nodes.get(key, "")
            )


def _check_counts(group: PodGroup, members: GroupMembers) -> Iterator[str]:
    """Check the member counts of a group."""
    status = group.status
    counts = status.scheduled_pods, status.pending_pods, status.succeeded_pods, status.failed_pods
    expected = members.placed, len(members.pending), members.succeeded, members.failed
    if counts != expected:
        names = "(placed, pending, succeeded, failed)"
        yield f"group {group.metadata.key} counts {counts} {names}, not {expected}"


def _check_degraded(group: PodGroup, members: GroupMembers) -> Iterator[str]:
    """Check the condition Degraded of a scheduled gang.

    A gang that was scheduled with a smaller minimum may lack members without a loss.
    """
    scheduled = _group_condition(group, POD_GROUP_SCHEDULED)
    if not group.is_gang or scheduled is None or scheduled.status != "True":
        return
    condition, count = _group_condition(group, DEGRADED), members.placed + members.succeeded
    is_lacking = count < group.quorum
    has_grown = 0 < required_when_scheduled(group) < group.quorum
    if _is_true(condition) != is_lacking and not (is_lacking and has_grown):
        has = f"group {group.metadata.key} has {count} of {group.quorum}"
        yield f"{has}, but says of {DEGRADED} {_describe_condition(condition)}"


def _check_scheduled(
    group: PodGroup,
    members: GroupMembers,
    place: QueuedEntityInfo | None,
    *,
    decision: Decision | None,
) -> Iterator[str]:
    """Check that a group has the condition that it is scheduled, or the reason that it is not."""
    condition = _group_condition(group, POD_GROUP_SCHEDULED)
    if members.placed and members.placed >= group.quorum:
        if not _is_true(condition):
            yield f"group {group.metadata.key} is placed, but says {_describe_condition(condition)}"
    elif place is not None and not _is_true(_group_condition(group, POD_GROUP_INITIALLY_SCHEDULED)):
        wanted = (
            describe_unready(place.unready) if place.unready else _unscheduled_message(decision)
        )
        if (
            condition is None
            or condition.status != "False"
            or wanted not in (None, condition.message)
        ):
            actual = _describe_condition(condition)
            yield f"group {group.metadata.key} says {actual}, but should say {wanted}"


def _check_composite(
    composite: CompositePodGroup,
    has_enough: bool,
    place: QueuedEntityInfo | None,
    *,
    decision: Decision | None,
) -> Iterator[str]:
    """Check a composite group; a scheduled one has no DisruptionTarget condition."""
    name, conditions = composite.metadata.key, composite.status.conditions
    condition = find_condition(conditions, COMPOSITE_INITIALLY_SCHEDULED)
    if has_enough:
        if not _is_true(condition):
            yield f"tree {name} is placed, but says {_describe_condition(condition)}"
        if place is None and find_condition(conditions, DISRUPTION_TARGET) is not None:
            yield f"tree {name} is placed, but has the condition DisruptionTarget"
    elif place is not None and not _is_true(condition):
        wanted = (
            describe_unready(place.unready) if place.unready else _unscheduled_message(decision)
        )
        if (
            condition is None
            or condition.status != "False"
            or wanted not in (None, condition.message)
        ):
            yield f"tree {name} says {_describe_condition(condition)}, but should say {wanted}"


def _unscheduled_message(decision: Decision | None) -> str | None:
    return None if decision is None or isinstance(decision, Placed) else explain(decision).message


def _check_pod(
    pod: Pod, place: QueuedEntityInfo, wanted: str | None, *, nominated: str
) -> Iterator[str]:
    """Check that a pending pod has the reason, and its nomination, and nothing else."""
    key, condition = pod.metadata.key, find_condition(pod.status.conditions, "PodScheduled")
    if condition is None or condition.status != "False" or not condition.reason:
        yield f"pod {key} waits, but says {_describe_condition(condition)}"
    elif place.unready is None and wanted not in (None, condition.message):
        yield f"pod {key} says {_describe_condition(condition)}, but should say {wanted}"
    if (node := pod.status.nominated_node_name) != nominated and place.unready is None:
        yield f"pod {key} has the nominated node {node!r}, but should have {nominated!r}"


def _group_condition(group: PodGroup, kind: str) -> Condition | None:
    return find_condition(group.status.conditions, kind)


def _is_true(condition: Condition | None) -> bool:
    return condition is not None and condition.status == "True"


def _describe_condition(condition: Condition | None) -> str:
    return f"{condition.status}: {condition.message}" if condition else "nothing"
