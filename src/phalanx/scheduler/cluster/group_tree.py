"""Forest: how groups hang together. PodGroups are leaves, CompositePodGroups what they hang from.

A group names its parent; the one that names none is the root, and the whole tree below it is placed
and, where its mode says so, evicted as one. Trees are walked with a bound: what names itself as its
own ancestor, or is too deep, is as bad as a parent that is not there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from phalanx.api.meta import Key
from phalanx.api.scheduling import CompositePodGroup, PodGroup

Group = PodGroup | CompositePodGroup

#: Levels that a tree has at most, the groups of pods included.
MAX_DEPTH = 4


class GroupRef(NamedTuple):
    """A group by name: the two kinds may share one."""

    is_composite: bool
    key: Key


class GroupTreeProblem(NamedTuple):
    """What is wrong with where a group hangs: it cannot be placed before that is mended."""

    group: GroupRef
    #: The name of the parent that is missing; "" if the tree itself is wrong.
    missing_group: str
    message: str


class GroupTrees:
    """All groups, by name and by parent."""

    def __init__(self) -> None:
        self._groups: dict[GroupRef, Group] = {}
        self._children: dict[GroupRef, dict[GroupRef, None]] = {}

    def update(self, name: GroupRef, group: Group | None) -> None:
        """A group came, changed or went (None)."""
        old = self._groups.pop(name, None)
        if old is not None and (parent := parent_ref(old)):
            self._children[parent].pop(name)
            if not self._children[parent]:
                del self._children[parent]
        if group is not None:
            self._groups[name] = group
            if parent := parent_ref(group):
                self._children.setdefault(parent, {})[name] = None

    @property
    def groups(self) -> Mapping[GroupRef, Group]:
        """All groups that are there."""
        return self._groups

    def get(self, name: GroupRef) -> Group | None:
        """A group, if it is there."""
        return self._groups.get(name)

    def pod_group(self, key: Key) -> PodGroup | None:
        """A PodGroup, if it is there."""
        found = self._groups.get(GroupRef(False, key))
        return found if isinstance(found, PodGroup) else None

    def children(self, name: GroupRef) -> list[GroupRef]:
        """The groups that hang from one, the oldest first."""
        return sorted(self._children.get(name, ()), key=self._age_key)

    def ancestry(self, name: GroupRef) -> list[Group]:
        """A group and what it hangs from, up to the root or to what is missing."""
        found: list[Group] = []
        group = self._groups.get(name)
        while group is not None and len(found) <= MAX_DEPTH:
            found.append(group)
            parent = parent_ref(group)
            group = self._groups.get(parent) if parent else None
        return found

    def root(self, name: GroupRef) -> GroupRef | GroupTreeProblem:
        """The root of the tree that a group is in, or what is wrong with that tree."""
        line = self.ancestry(name)
        if not line:
            return GroupTreeProblem(
                name, name.key.name, f'waiting for PodGroup "{name.key.name}" to appear'
            )
        if len(line) > MAX_DEPTH:
            return GroupTreeProblem(
                name, "", f"its tree has more than {MAX_DEPTH} levels, or runs in a circle"
            )
        top = line[-1]
        if parent := parent_ref(top):
            missing = parent.key.name
            return GroupTreeProblem(
                name, missing, f'waiting for CompositePodGroup "{missing}" to appear'
            )
        return _check_single_workload(name, line) or group_ref(top)

    def subtree(self, name: GroupRef) -> Iterator[GroupRef]:
        """A group and everything that hangs from it, parents before children."""
        yield from self._subtree([name], MAX_DEPTH)

    def valid_children(self, name: GroupRef) -> list[GroupRef]:
        """The groups that hang from one and belong there: a stranger waits by itself."""
        return [one for one in self.children(name) if isinstance(self.root(one), GroupRef)]

    def valid_subtree(self, name: GroupRef) -> Iterator[GroupRef]:
        """A group and everything that is placed with it, parents before children."""
        return (one for one in self.subtree(name) if isinstance(self.root(one), GroupRef))

    def _subtree(self, names: Iterable[GroupRef], levels: int) -> Iterator[GroupRef]:
        for name in names:
            yield name
            if levels > 1:
                yield from self._subtree(self.children(name), levels - 1)

    def _age_key(self, name: GroupRef) -> tuple[str, str, bool]:
        meta = self._groups[name].metadata
        return meta.creation_timestamp or "", meta.name, name.is_composite


def group_ref(group: Group) -> GroupRef:
    """The name of a group."""
    return GroupRef(isinstance(group, CompositePodGroup), group.metadata.key)


def parent_ref(group: Group) -> GroupRef | None:
    """The name of what a group hangs from."""
    parent = group.spec.parent_composite_pod_group_name
    return GroupRef(True, Key(group.metadata.namespace, parent)) if parent else None


def _check_single_workload(name: GroupRef, points: list[Group]) -> GroupTreeProblem | None:
    """A tree is of one Workload."""
    workloads = {one.spec.workload_ref.workload_name for one in points if one.spec.workload_ref}
    if len(workloads) < 2:
        return None
    return GroupTreeProblem(
        name, "", f"its tree is of different Workloads: {', '.join(sorted(workloads))}"
    )
