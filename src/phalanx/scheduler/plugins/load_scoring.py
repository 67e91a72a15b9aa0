"""Formulas of resource scores, each written once for one node and for many.

A load score is computed for all nodes when a shape is first seen, and for one node each time the
load of that node changes. Both computations run the same function: a `LoadScorer` reads the node
through columns (`node.allocatable[CPU]`), which are integers for a `NodeClass` and arrays for
`NodeColumns`, and takes the few operations that differ from an `Arithmetic`. Both give the same
integers, which the tests check.

    def score(node, arithmetic):
        capacity, used = node.allocatable[CPU], node.requested[CPU]
        return arithmetic.maximum(capacity - used, 0) * 100 // arithmetic.maximum(capacity, 1)

    score(node_class, ONE_NODE)          75
    score(columns, MANY_NODES)           array([75, 75, 50])

Branches on values are written as products with a condition (`weight * (capacity > 0)`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from math import sqrt
from operator import getitem
from typing import Any, NamedTuple, Protocol

import numpy as np

from phalanx.scheduler.cluster.pod_shape import PodShape
from phalanx.scheduler.cluster.snapshot import FIRST_COLUMNS, IntArray, NodeTable

#: A number for one node, or an array with a number per node.
PerNode = Any


class Arithmetic(NamedTuple):
    """The operations that differ between Python numbers and arrays."""

    minimum: Callable[[PerNode, PerNode], PerNode]
    maximum: Callable[[PerNode, PerNode], PerNode]
    #: Cuts a float towards zero to an integer.
    truncate: Callable[[PerNode], PerNode]
    sqrt: Callable[[PerNode], PerNode]
    #: take(values, index)
    take: Callable[[Any, PerNode], PerNode]


def _truncate_all(values: PerNode) -> IntArray:
    return np.asarray(values, np.int64)


ONE_NODE = Arithmetic(minimum=min, maximum=max, truncate=int, sqrt=sqrt, take=getitem)
MANY_NODES = Arithmetic(
    minimum=np.minimum, maximum=np.maximum, truncate=_truncate_all, sqrt=np.sqrt, take=np.take
)


class NodeLoad(Protocol):
    """A node, or many, by column: what it has, what is requested, what scores count as requested.

    `NodeClass` and `NodeColumns` have this form.
    """

    @property
    def allocatable(self) -> Any:
        """The capacity per resource column."""
        ...

    @property
    def requested(self) -> Any:
        """The sum of requests per resource column."""
        ...

    @property
    def nonzero_requested(self) -> Any:
        """CPU and memory, where containers without a request count as small ones."""
        ...


class NodeColumns(NamedTuple):
    """Many nodes by column."""

    allocatable: IntArray
    requested: IntArray
    nonzero_requested: IntArray


def columns_of(rows: NodeTable) -> NodeColumns:
    """The columns of a table of nodes."""
    return NodeColumns(rows.allocatable.T, rows.requested.T, rows.nonzero_requested.T)


#: The score of a node, or of many, for the shape that the scorer was built for.
LoadScorer = Callable[[NodeLoad, Arithmetic], PerNode]


def no_score(node: NodeLoad, arithmetic: Arithmetic) -> PerNode:
    """The scorer of a score that does not apply to a shape: 0 for every node."""
    return 0


#: Resources that are scored even for pods that do not request them.
_ALWAYS_SCORED = ("cpu", "memory", "ephemeral-storage")
#: Resources without a slash in their name that are scored for pods that request them.
_SCALAR_PREFIXES = ("hugepages-", "attachable-volumes-")


class ResourceWeight(NamedTuple):
    """A resource and its weight in a score."""

    name: str
    weight: int = 1


CPU_AND_MEMORY = (ResourceWeight("cpu"), ResourceWeight("memory"))


class ScoredResource(NamedTuple):
    """A resource as a score counts it: its column, what the pod adds, its weight."""

    weight: int
    column: int
    requested: int
    #: Whether containers without a request count as small ones.
    uses_nonzero: bool

    def current(self, node: NodeLoad) -> PerNode:
        """How much of it the pods on a node use."""
        return (node.nonzero_requested if self.uses_nonzero else node.requested)[self.column]


def nonzero_scored_resources(
    shape: PodShape, columns: Mapping[str, int], resources: Iterable[ResourceWeight]
) -> list[ScoredResource]:
    """The scored resources of a shape; containers without a request count as small ones."""
    nonzero = dict(zip(FIRST_COLUMNS, shape.nonzero_requests, strict=False))
    return [
        one._replace(requested=nonzero[name], uses_nonzero=True) if name in nonzero else one
        for name, one in _scored_resources(shape, columns, resources)
    ]


def exact_scored_resources(
    shape: PodShape, columns: Mapping[str, int], resources: Iterable[ResourceWeight]
) -> list[ScoredResource]:
    """The scored resources of a shape, by requests as written."""
    return [one for _, one in _scored_resources(shape, columns, resources)]


def _scored_resources(
    shape: PodShape, columns: Mapping[str, int], resources: Iterable[ResourceWeight]
) -> Iterator[tuple[str, ScoredResource]]:
    requests = dict(shape.requests)
    for name, weight in resources:
        column, amount = columns.get(name), requests.get(name, 0)
        is_scalar = "/" in name or name.startswith(_SCALAR_PREFIXES)
        if column is not None and (name in _ALWAYS_SCORED or (amount and is_scalar)):
            yield name, ScoredResource(weight, column, amount, uses_nonzero=False)
