"""Headroom: how many members there is room for, by place. An estimate that is never too low.

What members mind about each other and about other pods is left out of account; the cycle alone
knows. Tells which changes are worth trying first, and people where it is tight.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

import numpy as np

from phalanx.scheduler.cluster.shape import Shape
from phalanx.scheduler.cluster.snapshot import IntArray, Snapshot
from phalanx.scheduler.entity import Entity
from phalanx.scheduler.placing.attempt import scheduled
from phalanx.scheduler.placing.sites import capacities
from phalanx.scheduler.placing.view import view_of
from phalanx.scheduler.policy import Policy

#: The requests of some pods, by node.
Freed = Mapping[int, Mapping[str, int]]


def shapes(entity: Entity) -> list[Shape]:
    """What members ask for, each once."""
    return list(dict.fromkeys(member.shape for member in entity.members))


def needed(entity: Entity, snapshot: Snapshot) -> int:
    """How many more members must find a node, at the least."""
    return max(_lacking(entity, snapshot), 1)


def _lacking(entity: Entity, snapshot: Snapshot) -> int:
    if entity.is_composite:
        below = sorted(_lacking(part, snapshot) for part in entity.parts)
        return sum(below[: entity.quorum])
    return max(entity.quorum - scheduled(entity, snapshot), 0)


class Headroom:
    """The room for members of one entity on each node and in each domain that it may choose."""

    def __init__(self, entity: Entity, snapshot: Snapshot, policy: Policy) -> None:
        self._snapshot = snapshot
        self._is_counted = policy.counts_room
        self._members = Counter(member.shape for member in entity.members)
        self.needed = needed(entity, snapshot)
        #: The groups below that need something, and how many of them must have it.
        lacking = [part for part in entity.parts if _lacking(part, snapshot)]
        self._parts = [Headroom(part, snapshot, policy) for part in lacking]
        self._groups = entity.quorum - (len(entity.parts) - len(lacking)) if entity.parts else 0
        self._each = {
            shape: np.minimum(capacities(snapshot, policy, shape), count)
            for shape, count in self._members.items()
        }
        #: How many more members each node holds, as if those of different shapes were in nobody's
        #: way but that of their like.
        self.each: IntArray = np.sum(list(self._each.values()), axis=0)
        self._allowed = {s: view_of(snapshot, policy, s).allowed for s in self._members}
        key = entity.topology
        #: The domain of each node; -1 for none.
        self.ids: IntArray = snapshot.domains(key).ids if key else np.zeros(len(snapshot), np.int64)
        inside = self.ids >= 0
        #: The same by domain, of each shape and of all.
        self._held = {
            shape: np.bincount(self.ids[inside], each[inside], 1).astype(np.int64)
            for shape, each in self._each.items()
        }
        self._all_held: IntArray = np.sum(list(self._held.values()), axis=0)

    def suffices(self, at_least: int = 1) -> bool:
        """Whether there may be room enough as things are, and for so many members."""
        if not self._is_counted:
            return True
        counts, needed = self._members, max(self.needed, at_least)
        reached = np.sum([np.minimum(held, counts[s]) for s, held in self._held.items()], axis=0)
        is_enough = bool((reached >= needed).any())
        return is_enough and sum(part.suffices() for part in self._parts) >= self._groups

    def missing(self, node: int) -> int:
        """For how many members there is no room in the domain of a node."""
        number = int(self.ids[node])
        return self.needed if number < 0 else max(self.needed - int(self._all_held[number]), 0)

    def suffices_without(self, freed: Freed, at_least: int = 1) -> bool:
        """Whether there may be room enough where some pods have ended."""
        gains: dict[int, Counter[Shape]] = {}
        for node, amounts in freed.items():
            here = gains.setdefault(int(self.ids[node]), Counter())
            for shape in self._members:
                here[shape] += self._count(node, shape, amounts) - int(self._each[shape][node])
        needed = max(self.needed, at_least)
        is_enough = any(
            self._reached(number, gain) >= needed for number, gain in gains.items() if number >= 0
        )
        below = (part.suffices() or part.suffices_without(freed) for part in self._parts)
        return not self._is_counted or (is_enough and sum(below) >= self._groups)

    def _reached(self, number: int, gain: Mapping[Shape, int]) -> int:
        """How many members a domain holds, if it holds so many more of each shape."""
        return sum(
            min(count, int(self._held[shape][number]) + gain[shape])
            for shape, count in self._members.items()
        )

    def _count(self, node: int, shape: Shape, freed: Mapping[str, int]) -> int:
        if not self._allowed[shape][node]:
            return 0
        snapshot, most = self._snapshot, self._members[shape]
        spot = snapshot.spot(node)
        for name, amount in shape.requests:
            column = snapshot.columns.get(name)
            if column is None:
                return 0
            free = spot.room[column] - spot.used[column]
            most = min(most, max(free + freed.get(name, 0), 0) // amount)
        return most


def summed(requests: Iterable[tuple[int, Shape]]) -> Freed:
    """What some pods take, by node."""
    total: dict[int, dict[str, int]] = {}
    for node, shape in requests:
        here = total.setdefault(node, {})
        for name, amount in shape.requests:
            here[name] = here.get(name, 0) + amount
    return total
