"""The pods of groups as the API shows them, counted: what rest is judged by."""

from __future__ import annotations

from collections.abc import Mapping

from phalanx.api.core import DEFAULT_SCHEDULER, Pod
from phalanx.api.meta import Key
from phalanx.api.scheduling import CompositePodGroup
from phalanx.sim.trees import Group, Trees


class Members:
    """Live and ended ones."""

    def __init__(self, pods: list[Pod]) -> None:
        self.alive = [pod for pod in pods if is_alive(pod)]
        self.pending = [pod for pod in self.alive if not pod.spec.node_name]
        self.placed = len(self.alive) - len(self.pending)
        self.succeeded = sum(pod.status.phase == "Succeeded" for pod in pods)
        self.failed = sum(pod.status.phase == "Failed" for pod in pods)

    @property
    def are_gated(self) -> bool:
        """Whether somebody holds one of them back that a scheduler of ours would place."""
        return any(is_waiting(pod) and pod.spec.scheduling_gates for pod in self.pending)


NOBODY = Members([])


class Families:
    """The members of every group, and the trees that groups form."""

    def __init__(self, pods: Mapping[Key, Pod], trees: Trees) -> None:
        self.trees = trees
        self._members = by_group(pods)

    def of(self, key: Key) -> Members:
        """The members of a PodGroup."""
        return self._members.get(key, NOBODY)

    def are_gated(self, group: Group) -> bool:
        """Whether a member of a group, or of one below it, is held back."""
        root, members = self.trees.root, self._members.items()
        return any(mine.are_gated for key, mine in members if root(key) is group)

    def are_there(self, group: Group) -> bool:
        """Whether as many members are there, or groups that have theirs, as are needed."""
        if isinstance(group, CompositePodGroup):
            return sum(map(self.are_there, self.trees.children(group))) >= group.quorum
        key = group.metadata.key
        return self.trees.is_sound(key) and len(self.of(key).alive) >= group.quorum

    def have_enough(self, group: Group) -> bool:
        """Whether as many members have a node, or groups have as many of theirs, as are needed."""
        if isinstance(group, CompositePodGroup):
            return sum(map(self.have_enough, self.trees.children(group))) >= group.quorum
        return self.of(group.metadata.key).placed >= group.quorum


def by_group(pods: Mapping[Key, Pod]) -> dict[Key, Members]:
    """The members of every group that a pod names."""
    found: dict[Key, list[Pod]] = {}
    for pod in pods.values():
        if pod.group is not None:
            found.setdefault(pod.group, []).append(pod)
    return {key: Members(members) for key, members in found.items()}


def is_alive(pod: Pod) -> bool:
    """Whether it has neither ended nor is being deleted."""
    return not pod.ended and not pod.metadata.deletion_timestamp


def is_waiting(pod: Pod) -> bool:
    """Whether it wants a node of a scheduler of ours."""
    ours = pod.spec.scheduler_name == DEFAULT_SCHEDULER
    return ours and is_alive(pod) and not pod.spec.node_name
