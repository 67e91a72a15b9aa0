"""Packs the groups of a tree: a heuristic for trees that no greedy order places.

The largest groups come first, and every group takes the tightest topology domain that has enough
free resources for it. Every member takes the tightest node. If a group does not fit in a domain,
its members are removed again and the next domain is tried; the number of steps is limited. The
result may miss a placement, but the members of every group that it contains fit together.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from phalanx.scheduler.cluster.snapshot import BoolArray, IntArray
from phalanx.scheduler.search.heuristics import KindAssignment, PartialPlacement
from phalanx.scheduler.search.placement_problem import GroupRequirement, PlacementProblem

#: In how many domains a group is tried.
MAX_DOMAINS = 16
#: How many members are tried in one packing, as a multiple of all members, and at least.
STEPS_PER_MEMBER, MIN_STEPS = 4, 256
#: How many members are tried between two yields.
MEMBERS_PER_STEP = 32

FloatArray = NDArray[np.float64]


def pack_groups(
    problem: PlacementProblem, order: GroupOrder
) -> Generator[int, None, list[KindAssignment]]:
    """Pack the groups that a tree needs in this order; an empty list if some do not fit."""
    packer = _Packer(problem, order)
    is_packed = yield from packer.pack(problem.requirement, np.ones(len(problem.nodes), bool))
    return packer.placement.assignments if is_packed else []


class _Packer:
    """Packs the groups of one tree, in one order, up to a number of steps."""

    def __init__(self, problem: PlacementProblem, order: GroupOrder) -> None:
        self.placement, self._problem = PartialPlacement(problem), problem
        self._order = order
        self._steps_left = max(STEPS_PER_MEMBER * sum(problem.counts), MIN_STEPS)
        self._weights: FloatArray = 1 / np.maximum(problem.free.sum(axis=0), 1)
        #: The share of all free resources that a member of each kind requests.
        self._shares: list[float] = (problem.requests @ self._weights).tolist()

    def pack(self, group: GroupRequirement, inside: BoolArray) -> Generator[int, None, bool]:
        """Pack what a group needs among these nodes; change nothing on failure."""
        before = len(self.placement.assignments)
        for nodes in self._domains(group, inside):
            if (yield from self._pack_inside(group, nodes)):
                return True
            while len(self.placement.assignments) > before:
                self.placement.unassign(self.placement.assignments[-1])
        return False

    def _domains(self, group: GroupRequirement, inside: BoolArray) -> Iterator[BoolArray]:
        """Yield the nodes of each domain with enough free resources, the tightest first."""
        if not group.levels:
            yield inside
            return
        free, needed = self.placement.free, least_requests(group, self._problem)
        found: list[tuple[float, int, int]] = []
        for number, level in enumerate(group.levels):
            within = inside & level.labelled
            total = np.zeros((level.size, free.shape[1]), np.int64)
            np.add.at(total, level.ids[within], free[within])
            enough = (total >= needed).all(axis=1)
            enough &= np.bincount(level.ids[within], minlength=level.size) > 0
            tightness = total @ self._weights
            found += [(tightness[d], number, d) for d in np.flatnonzero(enough).tolist()]
        for _, number, domain in sorted(found)[:MAX_DOMAINS]:
            yield inside & (group.levels[number].ids == domain)

    def _pack_inside(self, group: GroupRequirement, nodes: BoolArray) -> Generator[int, None, bool]:
        """Pack child groups with a topology constraint, own members, then other child groups."""
        ordered = sorted(group.children, key=lambda one: self._order(one, self._shares))
        packed = yield from self._pack_children(
            [one for one in ordered if has_topology(one)], nodes
        )
        if not (yield from self._pack_members(group, nodes)):
            return False
        if packed < group.children_needed:
            others = [one for one in ordered if not has_topology(one)]
            packed += yield from self._pack_children(others, nodes, group.children_needed - packed)
        return packed >= group.children_needed

    def _pack_children(
        self, children: Sequence[GroupRequirement], nodes: BoolArray, most: int | None = None
    ) -> Generator[int, None, int]:
        packed = 0
        for child in children:
            if packed == most:
                break
            packed += yield from self.pack(child, nodes)
        return packed

    def _pack_members(
        self, group: GroupRequirement, nodes: BoolArray
    ) -> Generator[int, None, bool]:
        """Pack as many own members as the group needs: the largest, or if it needs few, others."""
        counts = self._problem.counts
        members = [kind for kind in group.kinds for _ in range(counts[kind])]
        members.sort(key=lambda kind: self._shares[kind], reverse=len(members) == group.needed)
        needed = group.needed
        for number, kind in enumerate(members):
            if not needed or len(members) - number < needed or not self._steps_left:
                break
            self._steps_left -= 1
            if self._steps_left % MEMBERS_PER_STEP == 0:
                yield number
            node = self._tightest_node(kind, nodes)
            if node is not None:
                self.placement.assign(KindAssignment(kind, node))
                needed -= 1
        return not needed

    def _tightest_node(self, kind: int, nodes: BoolArray) -> int | None:
        mask = self.placement.feasible_nodes(kind) & nodes
        if not mask.any():
            return None
        left = self.placement.free @ self._weights
        return int(np.where(mask, left, np.inf).argmin())


def has_topology(group: GroupRequirement) -> bool:
    """Whether the group or a group below it has a topology constraint."""
    return any(one.levels for one in group.groups)


def least_requests(group: GroupRequirement, problem: PlacementProblem) -> IntArray:
    """The least amount of each resource that a group requests when it has all it needs."""
    kinds = np.repeat(group.kinds, [problem.counts[kind] for kind in group.kinds]).astype(np.int64)
    below = [least_requests(child, problem) for child in group.children]
    own = np.sort(problem.requests[kinds], axis=0)[: group.needed].sum(axis=0)
    width = problem.requests.shape[1]
    children = np.sort(np.array(below).reshape(len(below), width), axis=0)
    total: IntArray = own + children[: group.children_needed].sum(axis=0)
    return total


#: Sorts the groups below a group, given the share of all resources that each kind requests.
GroupOrder = Callable[[GroupRequirement, Sequence[float]], tuple[float, ...]]


def _largest_group_first(group: GroupRequirement, shares: Sequence[float]) -> tuple[float, ...]:
    return (-_needed_share(group, shares),)


def _largest_member_first(group: GroupRequirement, shares: Sequence[float]) -> tuple[float, ...]:
    largest = max((shares[kind] for kind in group.all_kinds), default=0.0)
    return (-largest, -_needed_share(group, shares))


def _smallest_group_first(group: GroupRequirement, shares: Sequence[float]) -> tuple[float, ...]:
    return (_needed_share(group, shares),)


def _needed_share(group: GroupRequirement, shares: Sequence[float]) -> float:
    own = [shares[kind] for kind in group.kinds]
    below = sorted(_needed_share(child, shares) for child in group.children)
    mean = sum(own) / len(own) if own else 0.0
    return mean * group.needed + sum(below[: group.children_needed])


#: The orders to try. The smallest groups are packed first if not all are needed.
GROUP_ORDERS: tuple[GroupOrder, ...] = (
    _largest_group_first,
    _largest_member_first,
    _smallest_group_first,
)
