"""Merges equal groups of a tree before the exact search, and divides its solution among them.

Child groups of one parent are equal if they need all of their members, the members are equal, and
so is the topology constraint. Which of them is in which domain makes no difference, so the program
counts only how many of them are in each domain. It has fewer columns, and the solver does not try
the same placement for every exchange of two groups.

    64 groups of 8 equal members, 100 racks      64 x 100 choices of a rack
    merged: 1 group in 64 copies                 100 numbers: how many copies are in each rack
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from phalanx.scheduler.search.heuristics import KindAssignment
from phalanx.scheduler.search.placement_problem import GroupRequirement, PlacementProblem


class MergedProblem:
    """A problem in which equal groups are one group in several copies."""

    def __init__(self, original: PlacementProblem) -> None:
        self._original = original
        #: For each kind of the merged problem the equal kinds of the original, one per copy.
        self._originals: list[tuple[int, ...]] = []
        requirement = self._merge(original.requirement)
        numbers = {kind: new for new, kinds in enumerate(self._originals) for kind in kinds}
        first = [kinds[0] for kinds in self._originals]

        def renumber(kinds: Iterable[int]) -> tuple[int, ...]:
            return tuple(dict.fromkeys(numbers[kind] for kind in kinds))

        self.problem = replace(
            original,
            kinds=tuple(
                original.kinds[kinds[0]]._replace(
                    members=tuple(m for kind in kinds for m in original.kinds[kind].members)
                )
                for kinds in self._originals
            ),
            requirement=requirement,
            requests=original.requests[first],
            allowed=original.allowed[first],
            conflicts=tuple(
                rule._replace(
                    pairs=tuple(
                        sorted(
                            {
                                (min(numbers[a], numbers[b]), max(numbers[a], numbers[b]))
                                for a, b in rule.pairs
                            }
                        )
                    )
                )
                for rule in original.conflicts
            ),
            affinities=tuple(
                rule._replace(
                    kinds=renumber(rule.kinds), matching_kinds=renumber(rule.matching_kinds)
                )
                for rule in original.affinities
            ),
            spreads=tuple(
                rule._replace(
                    kinds=renumber(rule.kinds), matching_kinds=renumber(rule.matching_kinds)
                )
                for rule in original.spreads
            ),
            totals=tuple(one._replace(requests=one.requests[first]) for one in original.totals),
        )

    def _merge(self, group: GroupRequirement) -> GroupRequirement:
        own = self._add_kinds([(kind,) for kind in group.kinds])
        equal: dict[object, list[GroupRequirement]] = {}
        for number, child in enumerate(group.children):
            equal.setdefault(self._signature(child) or number, []).append(child)
        children = []
        for copies in equal.values():
            if len(copies) == 1:
                children.append(self._merge(copies[0]))
            else:
                by_kind = list(zip(*(copy.kinds for copy in copies), strict=True))
                kinds = self._add_kinds(by_kind)
                children.append(copies[0]._replace(kinds=kinds, copies=len(copies)))
        return group._replace(kinds=own, children=tuple(children))

    def _add_kinds(self, originals: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
        begin = len(self._originals)
        self._originals += originals
        return tuple(range(begin, len(self._originals)))

    def _signature(self, group: GroupRequirement) -> object:
        """What equal groups have in common; None for a group that is not merged."""
        kinds, counts = self._original.kinds, self._original.counts
        members = sum(counts[kind] for kind in group.kinds)
        if group.children or len(group.levels) > 1 or not members or group.needed != members:
            return None
        levels = tuple(level.ids.tobytes() for level in group.levels)
        return levels, tuple((kinds[kind].features, counts[kind]) for kind in group.kinds)

    def divide(self, assignments: Iterable[KindAssignment]) -> Iterator[KindAssignment]:
        """Translate assignments of the merged problem: every copy gets members of one domain."""
        nodes: dict[int, list[int]] = {}
        for kind, node in assignments:
            nodes.setdefault(kind, []).append(node)
        for group in self.problem.requirement.groups:
            for kind in group.kinds:
                copies = self._originals[kind]
                found = nodes.get(kind, [])
                if group.levels and len(copies) > 1:
                    found = sorted(found, key=lambda node: int(group.levels[0].ids[node]))
                count = len(self.problem.kinds[kind].members) // len(copies)
                for number, node in enumerate(found):
                    yield KindAssignment(copies[min(number // count, len(copies) - 1)], node)
