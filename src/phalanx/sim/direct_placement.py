"""DirectPlacement: the nodes of jobs that need not wait, by the scheduler's own scores.

    job of 2 pods ─▶ ranking of its shape ─▶ best node, twice ─▶ rows of nodes; None if one lacks

The filters and scores are those of `NodeScores`: the smallest key is the best node, and of equal
nodes the one with the lower name. An assigned pod changes the class of its node, and so the key
that the node has in the ranking of each shape. Rankings follow when they are used:

    touched [4, 0, 4]      ranking of 1 GPU has seen 3, ranking of 8 GPUs has seen 1

A job of other constraints than requests and labels of nodes has no direct placement.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

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


class ShapeRanking:
    """The nodes that take pods of one shape, the best first."""

    __slots__ = ("after_removal", "is_direct", "scores", "seen", "sorted_keys")

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


class DirectPlacement:
    """What runs on each node, and the best nodes for one more pod."""

    def __init__(self, nodes: Iterable[Node], policy: SchedulerPolicy) -> None:
        cache = SchedulerCache()
        for node in nodes:
            cache.update_node(node.metadata.name, node)
        self._snapshot, self._policy = cache.snapshot(), policy
        self.names, self._index = self._snapshot.names, self._snapshot.index
        self._classes = [self._snapshot.node_class(i) for i in range(len(self.names))]
        self._lost: set[int] = set()
        self._rankings: dict[tuple[object, ...], ShapeRanking] = {}
        #: The rows whose keys have changed, in order.
        self._touched: list[int] = []

    def ranking_of(self, job: TraceJob) -> ShapeRanking:
        """Return the ranking for the pods of a job."""
        key = (*job.requests.items(), None, *job.node_labels.items())
        ranking = self._rankings.get(key)
        if ranking is None:
            shape = shape_of(Pod(ObjectMeta(), build_pod_spec(job, "")))
            ranking = self._rankings[key] = ShapeRanking(self._snapshot, self._policy, shape)
        return ranking

    def place(self, job: TraceJob) -> list[int] | None:
        """Assign the pods of a job to their best nodes, one by one; None if one has no node.

        None too where the nodes depend on more than the load of each, or where the scheduler must
        observe how long the job runs.
        """
        if job.topology or job.estimate is None:
            return None
        ranking = self.ranking_of(job)
        if not ranking.is_direct:
            return None
        keys, rows = self._update_keys(ranking), list[int]()
        best, classes, after = keys.best, self._classes, ranking.scores.after_placement
        for _ in range(job.pods):
            if not best and not keys.sort_more():
                self._touched += rows
                self.remove(job, rows)
                return None
            key = best[0]
            row = key & INDEX_MASK
            classes[row], growth = after[classes[row]]
            keys.update(((row, key + growth),))
            rows.append(row)
        self._touched += rows
        ranking.seen = len(self._touched)
        return rows

    def add(self, job: TraceJob, nodes: Iterable[str]) -> list[int]:
        """Count the pods of a job that the scheduler has placed; returns their rows."""
        after, classes = self.ranking_of(job).scores.after_placement, self._classes
        rows = [self._index[name] for name in nodes]
        for row in rows:
            classes[row], _ = after[classes[row]]
        self._touched += rows
        return rows

    def remove(self, job: TraceJob, rows: Sequence[int]) -> None:
        """The pods of a job are gone."""
        after, classes = self.ranking_of(job).after_removal, self._classes
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
        touched, keys = self._touched, ranking.sorted_keys
        if len(touched) > max(_TOUCHED_LIMIT, 4 * len(self.names)):
            touched.clear()
            for other in self._rankings.values():
                other.sorted_keys, other.seen = None, 0
            keys = None
        if keys is None or len(touched) - ranking.seen > len(self.names):
            found = [self._key_of(ranking, row) for row in range(len(self.names))]
            keys = ranking.sorted_keys = SortedKeys(np.array(found, np.int64))
        elif ranking.seen < len(touched):
            keys.update([(row, self._key_of(ranking, row)) for row in touched[ranking.seen :]])
        ranking.seen = len(touched)
        return keys

    def _key_of(self, ranking: ShapeRanking, row: int) -> int:
        if row in self._lost:
            return REJECTED_KEY
        return ranking.scores.key_of(row, self._classes[row])
