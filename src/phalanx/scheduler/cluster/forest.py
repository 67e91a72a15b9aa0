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
DEPTH = 4


class Name(NamedTuple):
    """A group by name: the two kinds may share one."""

    is_composite: bool
    key: Key


class Flaw(NamedTuple):
    """What is wrong with where a group hangs: it cannot be placed before that is mended."""

    group: Name
    #: The name of the parent that is missing; "" if the tree itself is wrong.
    missing: str
    message: str


class Forest:
    """All groups, by name and by parent."""

    def __init__(self) -> None:
        self._groups: dict[Name, Group] = {}
        self._children: dict[Name, dict[Name, None]] = {}

    def put(self, name: Name, group: Group | None) -> None:
        """A group came, changed or went (None)."""
        old = self._groups.pop(name, None)
        if old is not None and (parent := parent_of(old)):
            self._children[parent].pop(name)
            if not self._children[parent]:
                del self._children[parent]
        if group is not None:
            self._groups[name] = group
            if parent := parent_of(group):
                self._children.setdefault(parent, {})[name] = None

    @property
    def groups(self) -> Mapping[Name, Group]:
        """All groups that are there."""
        return self._groups

    def get(self, name: Name) -> Group | None:
        """A group, if it is there."""
        return self._groups.get(name)

    def leaf(self, key: Key) -> PodGroup | None:
        """A PodGroup, if it is there."""
        found = self._groups.get(Name(False, key))
        return found if isinstance(found, PodGroup) else None

    def children(self, name: Name) -> list[Name]:
        """The groups that hang from one, the oldest first."""
        return sorted(self._children.get(name, ()), key=self._age)

    def line(self, name: Name) -> list[Group]:
        """A group and what it hangs from, up to the root or to what is missing."""
        found: list[Group] = []
        group = self._groups.get(name)
        while group is not None and len(found) <= DEPTH:
            found.append(group)
            parent = parent_of(group)
            group = self._groups.get(parent) if parent else None
        return found

    def root(self, name: Name) -> Name | Flaw:
        """The root of the tree that a group is in, or what is wrong with that tree."""
        line = self.line(name)
        if not line:
            return Flaw(name, name.key.name, f'waiting for PodGroup "{name.key.name}" to appear')
        if len(line) > DEPTH:
            return Flaw(name, "", f"its tree has more than {DEPTH} levels, or runs in a circle")
        top = line[-1]
        if parent := parent_of(top):
            missing = parent.key.name
            return Flaw(name, missing, f'waiting for CompositePodGroup "{missing}" to appear')
        return _strangers(name, line) or name_of(top)

    def below(self, name: Name) -> Iterator[Name]:
        """A group and everything that hangs from it, parents before children."""
        yield from self._below([name], DEPTH)

    def parts(self, name: Name) -> list[Name]:
        """The groups that hang from one and belong there: a stranger waits by itself."""
        return [one for one in self.children(name) if isinstance(self.root(one), Name)]

    def tree(self, name: Name) -> Iterator[Name]:
        """A group and everything that is placed with it, parents before children."""
        return (one for one in self.below(name) if isinstance(self.root(one), Name))

    def _below(self, names: Iterable[Name], levels: int) -> Iterator[Name]:
        for name in names:
            yield name
            if levels > 1:
                yield from self._below(self.children(name), levels - 1)

    def _age(self, name: Name) -> tuple[str, str, bool]:
        meta = self._groups[name].metadata
        return meta.creation_timestamp or "", meta.name, name.is_composite


def name_of(group: Group) -> Name:
    """The name of a group."""
    return Name(isinstance(group, CompositePodGroup), group.metadata.key)


def parent_of(group: Group) -> Name | None:
    """The name of what a group hangs from."""
    parent = group.spec.parent_composite_pod_group_name
    return Name(True, Key(group.metadata.namespace, parent)) if parent else None


def _strangers(name: Name, line: list[Group]) -> Flaw | None:
    """A tree is of one Workload."""
    workloads = {one.spec.workload_ref.workload_name for one in line if one.spec.workload_ref}
    if len(workloads) < 2:
        return None
    return Flaw(name, "", f"its tree is of different Workloads: {', '.join(sorted(workloads))}")
