"""DirectPlacement: the nodes of jobs, by the scheduler's own filters and scores.

    job of 2 pods ─▶ ranking of its shape ─▶ best node, twice ─▶ rows of nodes; None if one lacks

The filters and scores are those of `NodeScores`: the smallest key is the best node, and of equal
nodes the one with the lower name. An assigned pod changes the class of its node, and so the key
that the node has in the ranking of each shape. Rankings follow when they are used:

    touched [4, 0, 4]      ranking of 1 GPU has seen 3, ranking of 8 GPUs has seen 1

A job of other constraints than requests and labels of nodes has no direct placement.

How many pods of a shape fit on all nodes together is kept in the same way. `assign_beside` places a
job beside what is held for another one: the nodes that hold something count as fuller.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence

import numpy as np

from phalanx.api.core import Node, Pod
from phalanx.api.meta import ObjectMeta
from phalanx.scheduler.cluster.cache import SchedulerCache
from phalanx.scheduler.cluster.pod_shape import PodShape, RequestVector, shape_of
from phalanx.scheduler.cluster.snapshot import NodeClass, Snapshot
from phalanx.scheduler.placement.node_scores import (
    INDEX_MASK,
    REJECTED_KEY,
    NodeClassMemo,
    NodeScores,
    SortedKeys,
)
from phalanx.scheduler.policy import SchedulerPolicy
from phalanx.sim.core_engine import build_pod_spec
from phalanx.sim.workloads.workload import TraceJob

#: How many touched nodes are kept at least: a ranking that has missed more is built anew.
_TOUCHED_LIMIT = 4096
#: How many rankings there may be, each with a key of every node and memos of thousands of loads.
_MAX_SHAPES = 64


def shape_key(job: TraceJob) -> Hashable:
    """Return what the pods of a job are placed by: equal for jobs of one shape."""
    return (*job.requests.items(), None, *job.node_labels.items())


def has_few_shapes(jobs: Iterable[TraceJob]) -> bool:
    """Whether there is a ranking for each shape of the jobs."""
    return len({shape_key(job) for job in jobs}) <= _MAX_SHAPES


class ShapeRanking:
    """The nodes that take pods of one shape, the best first, and how many pods they take."""

    __slots__ = (
        "after_removal",
        "amounts",
        "capacities",
        "capacity_of",
        "capacity_seen",
        "is_allowed",
        "is_direct",
        "scores",
        "seen",
        "sorted_keys",
        "total",
    )

    def __init__(self, snapshot: Snapshot, policy: SchedulerPolicy, shape: PodShape) -> None:
        self.scores = NodeScores(snapshot, policy, shape)
        #: Whether the best node depends on the load of each node alone.
        self.is_direct = not (
            self.scores.normalized_scores
            or shape.has_claims
            or shape.has_volumes
            or shape.has_peer_constraints
            or any(name not in snapshot.columns for name, _ in shape.requests)
        )
        request = self.scores.request
        freed = RequestVector(
            tuple((column, -amount) for column, amount in request.amounts),
            -request.nonzero_cpu,
            -request.nonzero_memory,
            *request[3:],
        )
        pool = snapshot.node_class_pool
        #: The class that a node class becomes when a pod of this shape ends.
        self.after_removal = NodeClassMemo[NodeClass](lambda one: pool.after_adding(one, freed))
        #: The keys of the nodes, as of the touched nodes that it has seen; None: not built.
        self.sorted_keys: SortedKeys | None = None
        self.seen = 0
        #: Whether each node is allowed by anything but its load.
        self.is_allowed: list[bool] = self.scores.allowed_nodes.tolist()
        #: What each pod requests, by column, and how many pods a node of a class takes by that.
        self.amounts = tuple((column, amount) for column, amount in request.amounts if amount)
        self.capacity_of = NodeClassMemo[int](self._count_pods)
        #: How many pods each node takes, and all together, as of the touched nodes that were seen.
        self.capacities: list[int] | None = None
        self.total = self.capacity_seen = 0

    def _count_pods(self, node_class: NodeClass) -> int:
        has, used = node_class.allocatable, node_class.requested
        return min([max(has[i] - used[i], 0) // amount for i, amount in self.amounts])


class DirectPlacement:
    """What runs on each node, and the best nodes for one more pod."""

    def __init__(self, nodes: Iterable[Node], policy: SchedulerPolicy) -> None:
        cache = SchedulerCache()
        for node in nodes:
            cache.update_node(node.metadata.name, node)
        self._snapshot, self._policy = cache.snapshot(), policy
        self.names, self._index = self._snapshot.names, self._snapshot.index
        #: The class of each node, which says what runs there.
        self.classes = [self._snapshot.node_class(i) for i in range(len(self.names))]
        self._all_rows, self._lost = range(len(self.names)), set[int]()
        self._rankings: dict[Hashable, ShapeRanking] = {}
        #: The rows whose keys have changed, in order.
        self._touched: list[int] = []

    def ranking_of(self, job: TraceJob) -> ShapeRanking:
        """Return the ranking for the pods of a job."""
        key = shape_key(job)
        ranking = self._rankings.get(key)
        if ranking is None:
            shape = shape_of(Pod(ObjectMeta(), build_pod_spec(job, "")))
            ranking = self._rankings[key] = ShapeRanking(self._snapshot, self._policy, shape)
        return ranking

    def place(self, job: TraceJob) -> list[int] | None:
        """Assign the pods of a job to their best nodes, one by one; None if one has no node.

        None too where the nodes depend on more than the load of each.
        """
        if job.topology:
            return None
        ranking = self.ranking_of(job)
        return self.assign(ranking, job.pods) if ranking.is_direct else None

    def assign(self, ranking: ShapeRanking, pods: int) -> list[int] | None:
        """Assign pods of a shape to their best nodes, one by one; None if one has no node."""
        keys, rows = self._update_keys(ranking), list[int]()
        best, classes, after = keys.best, self.classes, ranking.scores.after_placement
        for _ in range(pods):
            if not best and not keys.sort_more():
                self._touched += rows
                self.free(ranking, rows)
                return None
            key = best[0]
            row = key & INDEX_MASK
            classes[row], growth = after[classes[row]]
            keys.update(((row, key + growth),))
            rows.append(row)
        self._touched += rows
        ranking.seen = len(self._touched)
        return rows

    def assign_beside(
        self, ranking: ShapeRanking, pods: int, held: Mapping[int, NodeClass]
    ) -> list[int] | None:
        """Assign pods as if some nodes were of other classes, since they hold room for a job."""
        classes, before = self.classes, {row: self.classes[row] for row in held}
        for row, node_class in held.items():
            classes[row] = node_class
        self._touched += held
        rows, after = self.assign(ranking, pods), ranking.scores.after_placement
        assigned = Counter(rows)
        for row, node_class in before.items():
            for _ in range(assigned[row]):
                node_class, _ = after[node_class]
            classes[row] = node_class
        self._touched += held
        return rows

    def capacity(self, ranking: ShapeRanking) -> int:
        """Return how many pods of a shape fit on all nodes together."""
        touched = self._touched
        if ranking.capacity_seen == len(touched) and ranking.capacities is not None:
            return ranking.total
        self._trim_touched()
        found = ranking.capacities
        if found is None:
            found = ranking.capacities = [self._capacity_of(ranking, i) for i in self._all_rows]
            ranking.total = sum(found)
        else:
            for row in touched[ranking.capacity_seen :]:
                now = self._capacity_of(ranking, row)
                ranking.total += now - found[row]
                found[row] = now
        ranking.capacity_seen = len(touched)
        return ranking.total

    def open_rows(self, ranking: ShapeRanking) -> Iterator[int]:
        """Yield the rows of the nodes on which a pod fits, in order."""
        self.capacity(ranking)
        assert ranking.capacities is not None
        return (row for row, count in enumerate(ranking.capacities) if count)

    def capacity_beside(self, ranking: ShapeRanking, held: Mapping[int, NodeClass]) -> int:
        """Return how many pods fit if some nodes are of other classes."""
        total, count_on = self.capacity(ranking), ranking.capacity_of
        assert ranking.capacities is not None
        for row, node_class in held.items():
            if has := ranking.capacities[row]:
                total += count_on[node_class] - has
        return total

    def with_requested(self, row: int, amounts: Iterable[tuple[int, int]]) -> NodeClass:
        """Return the class of a node on which so much more is requested, given by column."""
        node_class = self.classes[row]
        requested = list(node_class.requested)
        for column, amount in amounts:
            requested[column] += amount
        cells = (*node_class.allocatable, *requested, *node_class.nonzero_requested)
        pool, width = self._snapshot.node_class_pool, len(requested)
        return pool.intern(cells, width, node_class.used_ports)

    def add(self, job: TraceJob, nodes: Iterable[str]) -> list[int]:
        """Count the pods of a job that the scheduler has placed; returns their rows."""
        after, classes = self.ranking_of(job).scores.after_placement, self.classes
        rows = [self._index[name] for name in nodes]
        for row in rows:
            classes[row], _ = after[classes[row]]
        self._touched += rows
        return rows

    def remove(self, job: TraceJob, rows: Sequence[int]) -> None:
        """The pods of a job are gone."""
        self.free(self.ranking_of(job), rows)

    def free(self, ranking: ShapeRanking, rows: Sequence[int]) -> None:
        """Pods of a shape are gone."""
        after, classes = ranking.after_removal, self.classes
        for row in rows:
            classes[row] = after[classes[row]]
        self._touched += rows

    def change_node(self, name: str, *, is_present: bool) -> None:
        """A node was lost or has returned."""
        row = self._index[name]
        (self._lost.discard if is_present else self._lost.add)(row)
        self._touched.append(row)

    def _update_keys(self, ranking: ShapeRanking) -> SortedKeys:
        """Bring a ranking up to date."""
        self._trim_touched()
        touched, keys = self._touched, ranking.sorted_keys
        if keys is None or len(touched) - ranking.seen > len(self.names):
            found = [self._key_of(ranking, row) for row in self._all_rows]
            keys = ranking.sorted_keys = SortedKeys(np.array(found, np.int64))
        elif ranking.seen < len(touched):
            keys.update([(row, self._key_of(ranking, row)) for row in touched[ranking.seen :]])
        ranking.seen = len(touched)
        return keys

    def _trim_touched(self) -> None:
        """Forget the touched nodes if there are too many: rankings are built anew then."""
        if len(self._touched) > max(_TOUCHED_LIMIT, 4 * len(self.names)):
            self._touched.clear()
            for ranking in self._rankings.values():
                ranking.sorted_keys = ranking.capacities = None
                ranking.seen = ranking.capacity_seen = 0

    def _capacity_of(self, ranking: ShapeRanking, row: int) -> int:
        if row in self._lost or not ranking.is_allowed[row]:
            return 0
        return ranking.capacity_of[self.classes[row]]

    def _key_of(self, ranking: ShapeRanking, row: int) -> int:
        if row in self._lost:
            return REJECTED_KEY
        return ranking.scores.key_of(row, self.classes[row])
