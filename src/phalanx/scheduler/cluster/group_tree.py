"""GroupTrees: the trees that PodGroups (leaves) and CompositePodGroups (inner nodes) form.

A group names its parent; a group without a parent is a root. The whole tree below a root is placed
as one entity and, where its disruption mode says so, evicted as one:

    CompositePodGroup train               the root: one entity of the queue
    ├── PodGroup driver                   parent: train
    └── CompositePodGroup workers         parent: train
        ├── PodGroup worker-0             parent: workers
        └── PodGroup worker-1             parent: workers

Every walk is bounded by MAX_DEPTH: a tree that is too deep or contains itself is a problem just as
a missing parent is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from phalanx.api.meta import (
    COMPOSITE_POD_GROUP_KIND,
    Key,
    Ref,
    composite_pod_group_ref,
    pod_group_ref,
)
from phalanx.api.scheduling import TOPOLOGY_ANNOTATION, CompositePodGroup, PodGroup

Group = PodGroup | CompositePodGroup

#: The maximum number of levels of a tree, PodGroups included.
MAX_DEPTH = 4


class GroupTreeProblem(NamedTuple):
    """Why a group cannot be placed: its parent is missing, or its tree is invalid."""

    group: Ref
    #: The name of the missing group; "" if the tree itself is invalid.
    missing_group: str
    message: str


class GroupTrees:
    """All groups by reference and by parent.

    What is computed about a tree is kept until a group changes in a way that matters to trees: a
    pod asks for it whenever it changes.
    """

    def __init__(self) -> None:
        self._groups: dict[Ref, Group] = {}
        self._children: dict[Ref, dict[Ref, None]] = {}
        self._priority_counts: dict[int, int] = {}
        self._roots: dict[Ref, Ref | GroupTreeProblem] = {}
        self._valid_children: dict[Ref, tuple[Ref, ...]] = {}
        self._fewest_members: dict[Ref, int] = {}

    def update(self, ref: Ref, group: Group | None) -> None:
        """Add, replace or (None) remove a group."""
        old = self._groups.pop(ref, None)
        if not _is_same_node(old, group):
            for computed in (self._roots, self._valid_children, self._fewest_members):
                computed.clear()
        for one, change in ((old, -1), (group, +1)):
            if one is not None:
                priority, counts = one.spec.priority, self._priority_counts
                counts[priority] = counts.get(priority, 0) + change
                if not counts[priority]:
                    del counts[priority]
        if old is not None and (parent := parent_ref(old)):
            self._children[parent].pop(ref)
            if not self._children[parent]:
                del self._children[parent]
        if group is not None:
            self._groups[ref] = group
            if parent := parent_ref(group):
                self._children.setdefault(parent, {})[ref] = None

    @property
    def groups(self) -> Mapping[Ref, Group]:
        """All groups."""
        return self._groups

    def lowest_priority(self) -> int | None:
        """Return the lowest priority of all groups; None if there is no group."""
        return min(self._priority_counts, default=None)

    def get(self, ref: Ref) -> Group | None:
        """Return a group; None if there is no such group."""
        return self._groups.get(ref)

    def pod_group(self, key: Key) -> PodGroup | None:
        """Return a PodGroup; None if there is no such group."""
        found = self._groups.get(pod_group_ref(key))
        return found if isinstance(found, PodGroup) else None

    def children(self, ref: Ref) -> list[Ref]:
        """Return the groups that name this one as their parent, the oldest first."""
        return sorted(self._children.get(ref, ()), key=self._age_key)

    def ancestry(self, ref: Ref) -> list[Group]:
        """Return a group and its ancestors, up to the root or to a missing parent."""
        found: list[Group] = []
        group = self._groups.get(ref)
        while group is not None and len(found) <= MAX_DEPTH:
            found.append(group)
            parent = parent_ref(group)
            group = self._groups.get(parent) if parent else None
        return found

    def root(self, ref: Ref) -> Ref | GroupTreeProblem:
        """Return the root of the tree of a group, or what is wrong with that tree."""
        group = self._groups.get(ref)
        if group is not None and not group.spec.parent_composite_pod_group_name:
            # Most groups have no parent.
            return ref
        found = self._roots.get(ref)
        if found is None:
            found = self._roots[ref] = self._find_root(ref)
        return found

    def _find_root(self, ref: Ref) -> Ref | GroupTreeProblem:
        line = self.ancestry(ref)
        if not line:
            return GroupTreeProblem(ref, ref.name, f'waiting for PodGroup "{ref.name}" to appear')
        if len(line) > MAX_DEPTH:
            return GroupTreeProblem(
                ref, "", f"the tree has more than {MAX_DEPTH} levels or contains a cycle"
            )
        top = line[-1]
        if parent := parent_ref(top):
            return GroupTreeProblem(
                ref, parent.name, f'waiting for CompositePodGroup "{parent.name}" to appear'
            )
        workloads = {
            group.spec.workload_ref.workload_name for group in line if group.spec.workload_ref
        }
        if len(workloads) > 1:
            names = ", ".join(sorted(workloads))
            return GroupTreeProblem(
                ref, "", f"the groups of the tree belong to different Workloads: {names}"
            )
        return group_ref(top)

    def subtree(self, ref: Ref) -> Iterator[Ref]:
        """Iterate over a group and all groups below it, parents before children."""
        return self._subtree([ref], MAX_DEPTH) if ref in self._children else iter((ref,))

    def valid_children(self, ref: Ref) -> tuple[Ref, ...]:
        """Return the children that are placed with a group.

        A child whose path to the root is invalid, for instance of another Workload, waits alone.
        """
        found = self._valid_children.get(ref)
        if found is None:
            children = (one for one in self.children(ref) if isinstance(self.root(one), Ref))
            found = self._valid_children[ref] = tuple(children)
        return found

    def fewest_members(self, ref: Ref, levels: int = MAX_DEPTH) -> int:
        """Return the number of pods with which a group may be complete; fewer are never enough."""
        found = self._fewest_members.get(ref)
        if found is None:
            group = self._groups.get(ref)
            found = group.quorum if group is not None else 0
            if isinstance(group, CompositePodGroup):
                below = self.valid_children(ref) if levels else ()
                sizes = sorted(self.fewest_members(child, levels - 1) for child in below)
                found = sum(sizes[: group.quorum])
            self._fewest_members[ref] = found
        return found

    def valid_subtree(self, ref: Ref) -> Iterator[Ref]:
        """Iterate over a group and all groups that are placed with it, parents before children."""
        return (group for group in self.subtree(ref) if isinstance(self.root(group), Ref))

    def _subtree(self, refs: Iterable[Ref], levels: int) -> Iterator[Ref]:
        for ref in refs:
            yield ref
            if levels > 1:
                yield from self._subtree(self.children(ref), levels - 1)

    def _age_key(self, ref: Ref) -> tuple[str, str, bool]:
        meta = self._groups[ref].metadata
        return meta.creation_timestamp or "", meta.name, ref.kind == COMPOSITE_POD_GROUP_KIND


def group_ref(group: Group) -> Ref:
    """Refer to a group."""
    is_composite = isinstance(group, CompositePodGroup)
    return (composite_pod_group_ref if is_composite else pod_group_ref)(group.metadata.key)


def parent_ref(group: Group) -> Ref | None:
    """Refer to the parent of a group; None for a root."""
    parent = group.spec.parent_composite_pod_group_name
    return composite_pod_group_ref(Key(group.metadata.namespace, parent)) if parent else None


def root_priority(groups: Mapping[Ref, Group], ref: Ref | None, default: int) -> int:
    """Return the priority of the root above a group; the default if there is no such group."""
    priority = default
    for _ in range(MAX_DEPTH + 1):
        group = groups.get(ref) if ref else None
        if group is None:
            break
        priority, ref = group.spec.priority, parent_ref(group)
    return priority


def eviction_fields(group: Group | None) -> tuple[object, ...]:
    """The fields of a group that decide which of its pods are evicted, and for which entities."""
    return (group.spec.priority, group.spec.disruption_mode, parent_ref(group)) if group else ()


def _is_same_node(group: Group | None, other: Group | None) -> bool:
    """Whether two versions of a group have the same place in a tree, and the same quorum."""
    if group is None or other is None:
        return group is other
    return (
        group.quorum == other.quorum
        and group.spec == other.spec
        and group.metadata.creation_timestamp == other.metadata.creation_timestamp
    )


def is_same_group(group: Group | None, other: Group | None) -> bool:
    """Whether two versions are of one group (same uid) and equal for scheduling."""
    if group is None or other is None or group is other:
        return group is other
    return _scheduling_fields(group) == _scheduling_fields(other)


def _scheduling_fields(group: Group) -> tuple[object, ...]:
    """The fields of a group that a cycle reads."""
    meta = group.metadata
    return meta.uid, group.spec, group.quorum, meta.annotations.get(TOPOLOGY_ANNOTATION, "")
