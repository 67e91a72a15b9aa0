"""Who belongs to whom, read from plain objects: pods, their groups, and what these hang from."""

from __future__ import annotations

from collections.abc import Iterator

from phalanx.api.core import DEFAULT_SCHEDULER, Pod
from phalanx.api.meta import Key
from phalanx.api.scheduling import CompositePodGroup, PodGroup
from phalanx.scheduler.entity import Entity
from phalanx.scheduler.queue.cluster_objects import ClusterObjects
from phalanx.sim.group_tree_oracle import AnyPodGroup, GroupTreeOracle


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

    def group(self, key: Key, *, is_composite: bool) -> AnyPodGroup | None:
        trees = self.trees
        return trees.composites.get(key) if is_composite else trees.groups.get(key)

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
        """How important a pod is: as important as the root of its tree."""
        line = self.trees.ancestors(pod.group)
        return line[-1].spec.priority if line else pod.spec.priority

    def disruption_group(self, pod: Pod) -> AnyPodGroup | None:
        """The highest group above a pod of which all pods go or none."""
        return self.trees.eviction_root(pod.group)

    def disruption_unit(self, pod: Pod) -> list[Pod]:
        """Who goes with a pod: all who stay so far of the group that goes as a whole."""
        whole = self.disruption_group(pod)
        return [pod] if whole is None else [p for p in self.members(whole) if self.is_staying(p)]

    def is_staying(self, pod: Pod) -> bool:
        """Whether a pod has a node and is not about to leave it."""
        return bool(pod.occupied_node) and not self.is_leaving(pod)

    def is_leaving(self, pod: Pod) -> bool:
        """Whether it is being deleted, or is to be evicted."""
        return bool(pod.metadata.deletion_timestamp) or pod.metadata.uid in self.evicting

    def leaving_uids(self) -> set[str]:
        """The pods that are about to leave their nodes, by uid."""
        return {pod.metadata.uid for pod in self.pods if pod.occupied_node and self.is_leaving(pod)}

    def live_members(self, key: Key) -> list[Pod]:
        """The live members of a PodGroup, as the API shows them; none if its tree is unsound."""
        if not self.trees.is_valid(key):
            return []
        return [pod for pod in self._pods_by_group.get(key, ()) if is_alive(pod)]

    def count_placed(self, key: Key) -> int:
        """How many live members of a PodGroup have a node and stay there."""
        return sum(map(self.is_staying, self._pods_by_group.get(key, ())))

    def nodes_of(self, one: Entity) -> list[str]:
        """The nodes of the live members of a group and of all below it."""
        return [
            p.occupied_node
            for leaf in one.leaves
            for p in self.live_members(leaf.key)
            if p.occupied_node
        ]


def is_alive(pod: Pod) -> bool:
    return not pod.is_terminal and not pod.metadata.deletion_timestamp


def is_pending(pod: Pod) -> bool:
    return not pod.spec.node_name and pod.spec.scheduler_name == DEFAULT_SCHEDULER


def entity_differences(
    membership: GroupMembership, entity: Entity, *, versions: bool
) -> Iterator[str]:
    """How an entity differs from what the objects say, and why it should not have been tried."""
    if entity.group is None:
        mine = [p for p in membership.pods_without_group if p.metadata.key == entity.key]
        yield from _member_differences(
            entity, [p for p in mine if is_alive(p) and is_pending(p)], [], versions
        )
    else:
        if entity.group.spec.parent_composite_pod_group_name:
            yield "it was tried without the tree that it is in"
        yield from _tree_differences(membership, entity, versions)
        if not _is_complete(membership, entity):
            yield _describe_incomplete(membership, entity)
    if any(member.pod.spec.scheduling_gates for member in entity.members):
        yield "it was tried although a gate holds it back"


def _tree_differences(membership: GroupMembership, one: Entity, versions: bool) -> Iterator[str]:
    group = membership.group(one.key, is_composite=one.is_composite)
    if group is None or one.group is None or group.spec != one.group.spec:
        yield "its group is another one"
        return
    wanted = [child.metadata.key for child in membership.trees.children(group)]
    if [part.key for part in one.children] != wanted:
        yield "other groups hang from it"
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
        yield "its pending members are others than those that wait"
    if {pod.metadata.uid for pod in one.other_members} != {pod.metadata.uid for pod in others}:
        yield "its other members are others than those that are there"


def _version(pod: Pod, exact: bool) -> tuple[str, str]:
    return pod.metadata.uid, pod.metadata.resource_version if exact else ""


def _is_complete(membership: GroupMembership, one: Entity) -> bool:
    """Whether as many members are there, or groups with as many, as are needed."""
    there = len(membership.live_members(one.key))
    if one.is_composite:
        there = sum(_is_complete(membership, part) for part in one.children)
    return there >= one.quorum


def _describe_incomplete(membership: GroupMembership, one: Entity) -> str:
    if one.is_composite:
        return "it was tried although too few of its groups have the members that they need"
    there = len(membership.live_members(one.key))
    return f"it was tried although only {there} of {one.quorum} members are there"
