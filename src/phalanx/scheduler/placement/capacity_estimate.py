"""CapacityEstimate: an upper bound of how many members of an entity fit, by node and by domain.

Never too low: constraints between pods are left out of account, and only the cycle decides. Cures
use it to choose which changes are worth trying, and `phalanx why` shows it as evidence.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

import numpy as np

from phalanx.scheduler.cluster.pod_shape import PodShape
from phalanx.scheduler.cluster.snapshot import IntArray, Snapshot
from phalanx.scheduler.entity import Entity
from phalanx.scheduler.placement.claim_placement import (
    resolve_claims,
    resolve_volumes,
    with_device_nodes,
)
from phalanx.scheduler.placement.group_placement import count_scheduled
from phalanx.scheduler.placement.node_scores import node_scores_of
from phalanx.scheduler.placement.topology_domains import node_capacities
from phalanx.scheduler.policy import SchedulerPolicy

#: Resource amounts that pods would free, by node index.
FreedRequests = Mapping[int, Mapping[str, int]]


def distinct_shapes(entity: Entity) -> list[PodShape]:
    """Return the distinct shapes of the members."""
    return list(dict.fromkeys(member.shape for member in entity.members))


def count_needed(entity: Entity, snapshot: Snapshot) -> int:
    """Count how many more members must be placed at least."""
    return max(_count_lacking(entity, snapshot), 1)


def _count_lacking(entity: Entity, snapshot: Snapshot) -> int:
    if entity.is_composite:
        lacking = sorted(_count_lacking(child, snapshot) for child in entity.children)
        return sum(lacking[: entity.quorum])
    return max(entity.quorum - count_scheduled(entity, snapshot), 0)


class CapacityEstimate:
    """How many members of one entity fit on each node and in each domain that it may choose."""

    def __init__(self, entity: Entity, snapshot: Snapshot, policy: SchedulerPolicy) -> None:
        self._snapshot = snapshot = with_device_nodes(entity, snapshot)
        entity = resolve_volumes(resolve_claims(entity, snapshot), snapshot, policy)
        self._checks_capacity = policy.checks_capacity
        self._members = Counter(member.shape for member in entity.members)
        self.needed = count_needed(entity, snapshot)
        #: The child groups that lack members, and how many of them must get theirs.
        lacking = [child for child in entity.children if _count_lacking(child, snapshot)]
        self._children = [CapacityEstimate(child, snapshot, policy) for child in lacking]
        self._children_needed = (
            entity.quorum - (len(entity.children) - len(lacking)) if entity.children else 0
        )
        self._capacity_by_shape = {
            shape: np.minimum(node_capacities(snapshot, policy, shape), count)
            for shape, count in self._members.items()
        }
        #: How many more members each node holds, as if members of different shapes did not
        #: compete for resources.
        self.capacity_per_node: IntArray = np.sum(list(self._capacity_by_shape.values()), axis=0)
        self._allowed_nodes = {
            shape: node_scores_of(snapshot, policy, shape).allowed_nodes for shape in self._members
        }
        key = entity.topology_key
        #: The domain of each node; -1 for none.
        self.domain_ids: IntArray = (
            snapshot.domains(key).ids if key else np.zeros(len(snapshot), np.int64)
        )
        inside = self.domain_ids >= 0
        #: The same by domain, for each shape and for all.
        self._domain_capacity_by_shape = {
            shape: np.bincount(self.domain_ids[inside], each[inside], 1).astype(np.int64)
            for shape, each in self._capacity_by_shape.items()
        }
        self._domain_capacity: IntArray = np.sum(
            list(self._domain_capacity_by_shape.values()), axis=0
        )

    def is_sufficient(self, at_least: int = 1) -> bool:
        """Whether enough members may fit now, and at least so many."""
        if not self._checks_capacity:
            return True
        counts, needed = self._members, max(self.needed, at_least)
        reached = np.sum(
            [np.minimum(held, counts[s]) for s, held in self._domain_capacity_by_shape.items()],
            axis=0,
        )
        if not (reached >= needed).any():
            return False
        sufficient = sum(child.is_sufficient() for child in self._children)
        return sufficient >= self._children_needed

    def missing_in_domain(self, node: int) -> int:
        """Count how many of the needed members do not fit in the domain of a node."""
        number = int(self.domain_ids[node])
        return (
            self.needed if number < 0 else max(self.needed - int(self._domain_capacity[number]), 0)
        )

    def is_sufficient_after_freeing(self, freed: FreedRequests, at_least: int = 1) -> bool:
        """Whether enough members may fit on the nodes where pods free these amounts."""
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
        sufficient = (
            child.is_sufficient() or child.is_sufficient_after_freeing(freed)
            for child in self._children
        )
        return not self._checks_capacity or (is_enough and sum(sufficient) >= self._children_needed)

    def _reachable_in_domain(self, number: int, gain: Mapping[PodShape, int]) -> int:
        """Count the members that a domain holds if it holds so many more of each shape."""
        return sum(
            min(count, int(self._domain_capacity_by_shape[shape][number]) + gain[shape])
            for shape, count in self._members.items()
        )

    def _node_capacity(self, node: int, shape: PodShape, freed: Mapping[str, int]) -> int:
        if not self._allowed_nodes[shape][node]:
            return 0
        snapshot, most = self._snapshot, self._members[shape]
        row = snapshot.node_class(node)
        for name, amount in shape.requests:
            column = snapshot.columns.get(name)
            if column is None:
                return 0
            free = row.allocatable[column] - row.requested[column]
            most = min(most, max(free + freed.get(name, 0), 0) // amount)
        return most


def sum_requests(requests: Iterable[tuple[int, PodShape]]) -> FreedRequests:
    """Sum the requests of pods, given by node index and shape, per node."""
    total: dict[int, dict[str, int]] = {}
    for node, shape in requests:
        node_total = total.setdefault(node, {})
        for name, amount in shape.requests:
            node_total[name] = node_total.get(name, 0) + amount
    return total
