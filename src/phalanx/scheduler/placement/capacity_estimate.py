"""Headroom: how many members there is room for, by place. An estimate that is never too low.

What members mind about each other and about other pods is left out of account; the cycle alone
knows. Tells which changes are worth trying first, and people where it is tight.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

import numpy as np

from phalanx.scheduler.cluster.pod_shape import PodShape
from phalanx.scheduler.cluster.snapshot import IntArray, Snapshot
from phalanx.scheduler.entity import Entity
from phalanx.scheduler.placement.group_placement import count_scheduled
from phalanx.scheduler.placement.node_scores import node_scores_of
from phalanx.scheduler.placement.topology_domains import node_capacities
from phalanx.scheduler.policy import SchedulerPolicy

#: The requests of some pods, by node.
FreedRequests = Mapping[int, Mapping[str, int]]


def distinct_shapes(entity: Entity) -> list[PodShape]:
    """What members ask for, each once."""
    return list(dict.fromkeys(member.shape for member in entity.members))


def count_needed(entity: Entity, snapshot: Snapshot) -> int:
    """How many more members must find a node, at the least."""
    return max(_count_lacking(entity, snapshot), 1)


def _count_lacking(entity: Entity, snapshot: Snapshot) -> int:
    if entity.is_composite:
        below = sorted(_count_lacking(part, snapshot) for part in entity.children)
        return sum(below[: entity.quorum])
    return max(entity.quorum - count_scheduled(entity, snapshot), 0)


class CapacityEstimate:
    """The room for members of one entity on each node and in each domain that it may choose."""

    def __init__(self, entity: Entity, snapshot: Snapshot, policy: SchedulerPolicy) -> None:
        self._snapshot = snapshot
        self._checks_capacity = policy.checks_capacity
        self._members = Counter(member.shape for member in entity.members)
        self.needed = count_needed(entity, snapshot)
        #: The groups below that need something, and how many of them must have it.
        lacking = [part for part in entity.children if _count_lacking(part, snapshot)]
        self._children = [CapacityEstimate(part, snapshot, policy) for part in lacking]
        self._children_needed = (
            entity.quorum - (len(entity.children) - len(lacking)) if entity.children else 0
        )
        self._capacity_by_shape = {
            shape: np.minimum(node_capacities(snapshot, policy, shape), count)
            for shape, count in self._members.items()
        }
        #: How many more members each node holds, as if those of different shapes were in nobody's
        #: way but that of their like.
        self.capacity_per_node: IntArray = np.sum(list(self._capacity_by_shape.values()), axis=0)
        self._allowed_nodes = {
            s: node_scores_of(snapshot, policy, s).allowed_nodes for s in self._members
        }
        key = entity.topology_key
        #: The domain of each node; -1 for none.
        self.domain_ids: IntArray = (
            snapshot.domains(key).ids if key else np.zeros(len(snapshot), np.int64)
        )
        inside = self.domain_ids >= 0
        #: The same by domain, of each shape and of all.
        self._domain_capacity_by_shape = {
            shape: np.bincount(self.domain_ids[inside], each[inside], 1).astype(np.int64)
            for shape, each in self._capacity_by_shape.items()
        }
        self._domain_capacity: IntArray = np.sum(
            list(self._domain_capacity_by_shape.values()), axis=0
        )

    def is_sufficient(self, at_least: int = 1) -> bool:
        """Whether there may be room enough as things are, and for so many members."""
        if not self._checks_capacity:
            return True
        counts, needed = self._members, max(self.needed, at_least)
        reached = np.sum(
            [np.minimum(held, counts[s]) for s, held in self._domain_capacity_by_shape.items()],
            axis=0,
        )
        is_enough = bool((reached >= needed).any())
        return (
            is_enough
            and sum(part.is_sufficient() for part in self._children) >= self._children_needed
        )

    def missing_in_domain(self, node: int) -> int:
        """For how many members there is no room in the domain of a node."""
        number = int(self.domain_ids[node])
        return (
            self.needed if number < 0 else max(self.needed - int(self._domain_capacity[number]), 0)
        )

    def is_sufficient_after_freeing(self, freed: FreedRequests, at_least: int = 1) -> bool:
        """Whether there may be room enough where some pods have ended."""
        gains: dict[int, Counter[PodShape]] = {}
        for node, amounts in freed.items():
            here = gains.setdefault(int(self.domain_ids[node]), Counter())
            for shape in self._members:
                here[shape] += self._node_capacity(node, shape, amounts) - int(
                    self._capacity_by_shape[shape][node]
                )
        needed = max(self.needed, at_least)
        is_enough = any(
            self._reachable_in_domain(number, gain) >= needed
            for number, gain in gains.items()
            if number >= 0
        )
        below = (
            part.is_sufficient() or part.is_sufficient_after_freeing(freed)
            for part in self._children
        )
        return not self._checks_capacity or (is_enough and sum(below) >= self._children_needed)

    def _reachable_in_domain(self, number: int, gain: Mapping[PodShape, int]) -> int:
        """How many members a domain holds, if it holds so many more of each shape."""
        return sum(
            min(count, int(self._domain_capacity_by_shape[shape][number]) + gain[shape])
            for shape, count in self._members.items()
        )

    def _node_capacity(self, node: int, shape: PodShape, freed: Mapping[str, int]) -> int:
        if not self._allowed_nodes[shape][node]:
            return 0
        snapshot, most = self._snapshot, self._members[shape]
        spot = snapshot.node_class(node)
        for name, amount in shape.requests:
            column = snapshot.columns.get(name)
            if column is None:
                return 0
            free = spot.allocatable[column] - spot.requested[column]
            most = min(most, max(free + freed.get(name, 0), 0) // amount)
        return most


def sum_requests(requests: Iterable[tuple[int, PodShape]]) -> FreedRequests:
    """What some pods take, by node."""
    total: dict[int, dict[str, int]] = {}
    for node, shape in requests:
        here = total.setdefault(node, {})
        for name, amount in shape.requests:
            here[name] = here.get(name, 0) + amount
    return total
