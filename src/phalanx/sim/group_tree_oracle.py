"""Trees of groups, read from plain objects for every question: an oracle for tests.

Slow and obvious on purpose: the scheduler's own `scheduler/cluster/group_tree.py` is compared with
it.
"""

from __future__ import annotations

from collections.abc import Mapping

from phalanx.api.meta import Key
from phalanx.api.scheduling import CompositePodGroup, PodGroup

AnyPodGroup = PodGroup | CompositePodGroup
#: Maximum number of levels of a tree.
MAX_LEVELS = 4


class GroupTreeOracle:
    """All PodGroups and CompositePodGroups by key. The maps may change."""

    def __init__(
        self, groups: Mapping[Key, PodGroup], composites: Mapping[Key, CompositePodGroup]
    ) -> None:
        self.groups, self.composites = groups, composites

    def parent(self, group: AnyPodGroup) -> CompositePodGroup | None:
        """Return the parent of a group, if it exists."""
        parent = group.spec.parent_composite_pod_group_name
        return self.composites.get(Key(group.metadata.namespace, parent)) if parent else None

    def ancestors(self, key: Key | None) -> list[AnyPodGroup]:
        """Return a PodGroup and its ancestors, up to the root or a missing parent."""
        return self._path_to_root(self.groups.get(key) if key else None)

    def _path_to_root(self, group: AnyPodGroup | None) -> list[AnyPodGroup]:
        found: list[AnyPodGroup] = []
        while group is not None and len(found) <= MAX_LEVELS:
            found.append(group)
            group = self.parent(group)
        return found

    def is_valid(self, key: Key | None) -> bool:
        """Whether the tree of a PodGroup is valid: depth, root, one Workload."""
        return _is_valid_path(self.ancestors(key))

    def root(self, key: Key | None) -> AnyPodGroup | None:
        """Return the root of a PodGroup's tree, if the tree is valid."""
        return self.ancestors(key)[-1] if self.is_valid(key) else None

    def children(self, group: AnyPodGroup) -> list[AnyPodGroup]:
        """Return the child groups that belong to a group, oldest first."""
        groups: list[AnyPodGroup] = [*self.groups.values(), *self.composites.values()]
        children = [
            child
            for child in groups
            if self.parent(child) is group and _is_valid_path(self._path_to_root(child))
        ]
        return sorted(children, key=_age_key)

    def eviction_root(self, key: Key | None) -> AnyPodGroup | None:
        """Return the highest ancestor with disruption mode All."""
        modes = [(group, group.spec.disruption_mode) for group in self.ancestors(key)]
        return next(
            (group for group, mode in reversed(modes) if mode and mode.all is not None), None
        )

    def contains(self, group: AnyPodGroup, key: Key | None) -> bool:
        """Whether a PodGroup is this group or below it."""
        return any(ancestor is group for ancestor in self.ancestors(key))


def _is_valid_path(path: list[AnyPodGroup]) -> bool:
    if not path or len(path) > MAX_LEVELS or path[-1].spec.parent_composite_pod_group_name:
        return False
    workloads = [group.spec.workload_ref.workload_name for group in path if group.spec.workload_ref]
    return len(set(workloads)) <= 1


def _age_key(group: AnyPodGroup) -> tuple[str, str, bool]:
    meta = group.metadata
    return meta.creation_timestamp or "", meta.name, isinstance(group, CompositePodGroup)
