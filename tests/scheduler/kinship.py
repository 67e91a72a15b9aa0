"""Who belongs to whom, read from plain objects: pods, their groups, and what these hang from."""

from __future__ import annotations

from collections.abc import Iterator

from phalanx.api.core import DEFAULT_SCHEDULER, Pod
from phalanx.api.meta import Key
from phalanx.api.scheduling import CompositePodGroup, PodGroup
from phalanx.scheduler.asking.diagnosis import Cluster
from phalanx.scheduler.entity import Entity
from phalanx.sim.trees import Group, Trees


class Kin:
    """All groups and pods of a cluster."""

    def __init__(self, seen: Cluster) -> None:
        self.pods = list(seen.pods)
        self.doomed = seen.doomed
        self._of: dict[Key | None, list[Pod]] = {}
        for pod in self.pods:
            self._of.setdefault(pod.group, []).append(pod)
        groups = [one for one in seen.groups if isinstance(one, PodGroup)]
        composites = [one for one in seen.groups if isinstance(one, CompositePodGroup)]
        self.trees = Trees(
            {one.metadata.key: one for one in groups},
            {one.metadata.key: one for one in composites},
        )

    def group(self, key: Key, *, is_composite: bool) -> Group | None:
        trees = self.trees
        return trees.composites.get(key) if is_composite else trees.groups.get(key)

    def members(self, group: Group) -> list[Pod]:
        """The pods of a group, or of all groups below it."""
        return [p for key, pods in self._of.items() if self.trees.holds(group, key) for p in pods]

    @property
    def singles(self) -> list[Pod]:
        """The pods that are in no group."""
        return self._of.get(None, [])

    def priority(self, pod: Pod) -> int:
        """How important a pod is: as important as the root of its tree."""
        line = self.trees.line(pod.group)
        return line[-1].spec.priority if line else pod.spec.priority

    def whole(self, pod: Pod) -> Group | None:
        """The highest group above a pod of which all pods go or none."""
        return self.trees.whole(pod.group)

    def unit(self, pod: Pod) -> list[Pod]:
        """Who goes with a pod: all who stay so far of the group that goes as a whole."""
        whole = self.whole(pod)
        return [pod] if whole is None else [p for p in self.members(whole) if self.stays(p)]

    def stays(self, pod: Pod) -> bool:
        """Whether a pod has a node and is not about to leave it."""
        return bool(pod.node) and not self.leaves(pod)

    def leaves(self, pod: Pod) -> bool:
        """Whether it is being deleted, or is to be evicted."""
        return bool(pod.metadata.deletion_timestamp) or pod.metadata.uid in self.doomed

    def leaving(self) -> set[str]:
        """The pods that are about to leave their nodes, by uid."""
        return {pod.metadata.uid for pod in self.pods if pod.node and self.leaves(pod)}

    def alive(self, key: Key) -> list[Pod]:
        """The live members of a PodGroup, as the API shows them; none if its tree is unsound."""
        if not self.trees.is_sound(key):
            return []
        return [pod for pod in self._of.get(key, ()) if is_alive(pod)]

    def placed(self, key: Key) -> int:
        """How many live members of a PodGroup have a node and stay there."""
        return sum(map(self.stays, self._of.get(key, ())))

    def hosts(self, one: Entity) -> list[str]:
        """The nodes of the live members of a group and of all below it."""
        return [p.node for leaf in one.leaves for p in self.alive(leaf.key) if p.node]


def is_alive(pod: Pod) -> bool:
    return not pod.ended and not pod.metadata.deletion_timestamp


def waits(pod: Pod) -> bool:
    return not pod.spec.node_name and pod.spec.scheduler_name == DEFAULT_SCHEDULER


def unlike(kin: Kin, entity: Entity, *, versions: bool) -> Iterator[str]:
    """How an entity differs from what the objects say, and why it should not have been tried."""
    if entity.group is None:
        mine = [p for p in kin.singles if p.metadata.key == entity.key]
        yield from _members(entity, [p for p in mine if is_alive(p) and waits(p)], [], versions)
    else:
        if entity.group.spec.parent_composite_pod_group_name:
            yield "it was tried without the tree that it is in"
        yield from _tree(kin, entity, versions)
        if not _is_complete(kin, entity):
            yield _incomplete(kin, entity)
    if any(member.pod.spec.scheduling_gates for member in entity.members):
        yield "it was tried although a gate holds it back"


def _tree(kin: Kin, one: Entity, versions: bool) -> Iterator[str]:
    group = kin.group(one.key, is_composite=one.is_composite)
    if group is None or one.group is None or group.spec != one.group.spec:
        yield "its group is another one"
        return
    wanted = [child.metadata.key for child in kin.trees.children(group)]
    if [part.key for part in one.parts] != wanted:
        yield "other groups hang from it"
        return
    mine = [pod for leaf in one.leaves for pod in kin.alive(leaf.key)]
    others = [pod for pod in mine if not waits(pod)]
    yield from _members(one, [pod for pod in mine if waits(pod)], others, versions)
    for part in one.parts:
        yield from _tree(kin, part, versions)


def _members(one: Entity, waiting: list[Pod], others: list[Pod], versions: bool) -> Iterator[str]:
    found = {_version(member.pod, versions) for member in one.members}
    if found != {_version(pod, versions) for pod in waiting}:
        yield "its pending members are others than those that wait"
    if {pod.metadata.uid for pod in one.others} != {pod.metadata.uid for pod in others}:
        yield "its other members are others than those that are there"


def _version(pod: Pod, exact: bool) -> tuple[str, str]:
    return pod.metadata.uid, pod.metadata.resource_version if exact else ""


def _is_complete(kin: Kin, one: Entity) -> bool:
    """Whether as many members are there, or groups with as many, as are needed."""
    there = len(kin.alive(one.key))
    if one.is_composite:
        there = sum(_is_complete(kin, part) for part in one.parts)
    return there >= one.quorum


def _incomplete(kin: Kin, one: Entity) -> str:
    if one.is_composite:
        return "it was tried although too few of its groups have the members that they need"
    there = len(kin.alive(one.key))
    return f"it was tried although only {there} of {one.quorum} members are there"
