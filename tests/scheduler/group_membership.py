"""GroupMembership: which pods belong to which groups and trees, read from plain objects."""

from __future__ import annotations

from collections.abc import Iterator

from phalanx.api.core import DEFAULT_SCHEDULER, Pod
from phalanx.api.meta import COMPOSITE_POD_GROUP_KIND, Key, Ref, parse_timestamp
from phalanx.api.scheduling import CompositePodGroup, PodGroup
from phalanx.scheduler.entity import Entity
from phalanx.scheduler.queue.scheduler_state import ClusterObjects
from phalanx.sim.invariants import AnyPodGroup, GroupTreeOracle


class GroupMembership:
    """All groups and pods of a cluster."""

    def __init__(self, seen: ClusterObjects) -> None:
        self.pods = list(seen.pods)
        self.evicting = seen.evicting
        self._pods_by_group: dict[Key | None, list[Pod]] = {}
        for pod in self.pods:
            self._pods_by_group.setdefault(pod.group, []).append(pod)
        groups = [one for one in seen.groups if isinstance(one, PodGroup)]
        composites = [one for one in seen.groups if isinstance(one, CompositePodGroup)]
        self.trees = GroupTreeOracle(
            {one.metadata.key: one for one in groups},
            {one.metadata.key: one for one in composites},
        )

    def group(self, ref: Ref) -> AnyPodGroup | None:
        is_composite = ref.kind == COMPOSITE_POD_GROUP_KIND
        return (self.trees.composites if is_composite else self.trees.groups).get(ref.key)

    def members(self, group: AnyPodGroup) -> list[Pod]:
        """The pods of a group, or of all groups below it."""
        return [
            p
            for key, pods in self._pods_by_group.items()
            if self.trees.contains(group, key)
            for p in pods
        ]

    @property
    def pods_without_group(self) -> list[Pod]:
        """The pods that are in no group."""
        return self._pods_by_group.get(None, [])

    def priority(self, pod: Pod) -> int:
        """Return the priority that counts for a pod: that of the root of its tree."""
        line = self.trees.ancestors(pod.group)
        return line[-1].spec.priority if line else pod.spec.priority

    def disruption_group(self, pod: Pod) -> AnyPodGroup | None:
        """Return the highest group above a pod that is evicted as a unit."""
        return self.trees.eviction_root(pod.group)

    def disruption_unit(self, pod: Pod) -> list[Pod]:
        """Return the pods that are evicted together with a pod."""
        whole = self.disruption_group(pod)
        return [pod] if whole is None else [p for p in self.members(whole) if self.is_staying(p)]

    def is_staying(self, pod: Pod) -> bool:
        """Whether a pod has a node and does not terminate."""
        return bool(pod.occupied_node) and not self.is_leaving(pod)

    def is_leaving(self, pod: Pod) -> bool:
        """Whether a pod is being deleted or evicted."""
        return bool(pod.metadata.deletion_timestamp) or pod.metadata.uid in self.evicting

    def leaving_uids(self, now: float = 0.0) -> set[str]:
        """Return the uids of the pods that terminate and are not overdue."""
        leaving = [pod for pod in self.pods if pod.occupied_node and self.is_leaving(pod)]
        return {pod.metadata.uid for pod in leaving if not _is_overdue(pod, now)}

    def live_members(self, key: Key) -> list[Pod]:
        """Return the live members of a PodGroup; none if its tree is invalid."""
        if not self.trees.is_valid(key):
            return []
        return [pod for pod in self._pods_by_group.get(key, ()) if is_alive(pod)]

    def count_placed(self, key: Key) -> int:
        """Count the members of a PodGroup that have a node and do not terminate."""
        return sum(map(self.is_staying, self._pods_by_group.get(key, ())))

    def nodes_of(self, one: Entity) -> list[str]:
        """Return the nodes of the live members of a group and of all groups below it."""
        return [
            p.occupied_node
            for leaf in one.leaves
            for p in self.live_members(leaf.key)
            if p.occupied_node
        ]


def _is_overdue(pod: Pod, now: float) -> bool:
    """Whether a pod still exists half a minute after it should be gone."""
    deleted = pod.metadata.deletion_timestamp
    return bool(deleted) and parse_timestamp(deleted) + 30 <= now


def is_alive(pod: Pod) -> bool:
    return not pod.is_terminal and not pod.metadata.deletion_timestamp


def is_pending(pod: Pod) -> bool:
    return not pod.spec.node_name and pod.spec.scheduler_name == DEFAULT_SCHEDULER


def entity_differences(
    membership: GroupMembership, entity: Entity, *, versions: bool
) -> Iterator[str]:
    """Yield how an entity differs from the objects, and why it should not have been tried."""
    if entity.group is None:
        mine = [p for p in membership.pods_without_group if p.metadata.key == entity.key]
        yield from _member_differences(
            entity, [p for p in mine if is_alive(p) and is_pending(p)], [], versions
        )
    else:
        if entity.group.spec.parent_composite_pod_group_name:
            yield "it was tried without its tree"
        yield from _tree_differences(membership, entity, versions)
        if not _is_complete(membership, entity):
            yield _describe_incomplete(membership, entity)
    if any(member.pod.spec.scheduling_gates for member in entity.members):
        yield "it was tried although a member has a scheduling gate"


def _tree_differences(membership: GroupMembership, one: Entity, versions: bool) -> Iterator[str]:
    group = membership.group(one.ref)
    if group is None or one.group is None or group.spec != one.group.spec:
        yield "its group differs from the object"
        return
    wanted = [child.metadata.key for child in membership.trees.children(group)]
    if [part.key for part in one.children] != wanted:
        yield "its child groups differ from the objects"
        return
    mine = [pod for leaf in one.leaves for pod in membership.live_members(leaf.key)]
    others = [pod for pod in mine if not is_pending(pod)]
    yield from _member_differences(one, [pod for pod in mine if is_pending(pod)], others, versions)
    for part in one.children:
        yield from _tree_differences(membership, part, versions)


def _member_differences(
    one: Entity, waiting: list[Pod], others: list[Pod], versions: bool
) -> Iterator[str]:
    found = {_version(member.pod, versions) for member in one.members}
    if found != {_version(pod, versions) for pod in waiting}:
        yield "its pending members differ from the pending pods"
    if {pod.metadata.uid for pod in one.other_members} != {pod.metadata.uid for pod in others}:
        yield "its other members differ from the live pods"


def _version(pod: Pod, exact: bool) -> tuple[str, str]:
    return pod.metadata.uid, pod.metadata.resource_version if exact else ""


def _is_complete(membership: GroupMembership, one: Entity) -> bool:
    """Whether an entity has as many live members, or complete groups, as it needs."""
    if one.is_composite:
        return sum(_is_complete(membership, child) for child in one.children) >= one.quorum
    return len(membership.live_members(one.key)) >= one.quorum


def _describe_incomplete(membership: GroupMembership, one: Entity) -> str:
    if one.is_composite:
        return "it was tried although too few of its groups have enough members"
    present = len(membership.live_members(one.key))
    return f"it was tried although only {present} of {one.quorum} members exist"
