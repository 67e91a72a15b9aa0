"""How groups hang together, read anew from plain objects at every question: for judging only.

Slow and obvious on purpose: the scheduler's own account of trees (`scheduler/cluster/forest.py`) is
held against this one.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

from phalanx.api.meta import Key
from phalanx.api.scheduling import CompositePodGroup, PodGroup

Group = PodGroup | CompositePodGroup
#: Levels that a tree has at most.
LEVELS = 4


class Trees:
    """All groups, of pods and of groups, by name. The maps may change."""

    def __init__(
        self, groups: Mapping[Key, PodGroup], composites: Mapping[Key, CompositePodGroup]
    ) -> None:
        self.groups, self.composites = groups, composites

    def above(self, group: Group) -> CompositePodGroup | None:
        """What a group hangs from, if that is there."""
        parent = group.spec.parent_composite_pod_group_name
        return self.composites.get(Key(group.metadata.namespace, parent)) if parent else None

    def line(self, key: Key | None) -> list[Group]:
        """A PodGroup and what it hangs from, up to the root or to what is missing."""
        return self._up(self.groups.get(key) if key else None)

    def _up(self, group: Group | None) -> list[Group]:
        found: list[Group] = []
        while group is not None and len(found) <= LEVELS:
            found.append(group)
            group = self.above(group)
        return found

    def is_sound(self, key: Key | None) -> bool:
        """Whether the tree that a PodGroup is in is one: of few levels, with a root, of a piece."""
        return _is_sound(self.line(key))

    def root(self, key: Key | None) -> Group | None:
        """The root of the tree that a PodGroup is in, if that is sound."""
        return self.line(key)[-1] if self.is_sound(key) else None

    def children(self, group: Group) -> list[Group]:
        """The groups that hang from one and belong there, the oldest first."""
        every: list[Group] = [*self.groups.values(), *self.composites.values()]
        found = [one for one in every if self.above(one) is group and _is_sound(self._up(one))]
        return sorted(found, key=_age)

    def whole(self, key: Key | None) -> Group | None:
        """The highest group above the pods of a PodGroup of which all pods go or none."""
        modes = [(group, group.spec.disruption_mode) for group in self.line(key)]
        return next(
            (group for group, mode in reversed(modes) if mode and mode.all is not None), None
        )

    def holds(self, group: Group, key: Key | None) -> bool:
        """Whether a PodGroup is this group, or is below it."""
        return any(one is group for one in self.line(key))


def _is_sound(line: list[Group]) -> bool:
    if not line or len(line) > LEVELS or line[-1].spec.parent_composite_pod_group_name:
        return False
    works = [one.spec.workload_ref.workload_name for one in line if one.spec.workload_ref]
    return all(one == other for one, other in pairwise(works))


def _age(group: Group) -> tuple[str, str, bool]:
    meta = group.metadata
    return meta.creation_timestamp or "", meta.name, isinstance(group, CompositePodGroup)
