"""NodeResourcesFit: rejects nodes without enough free resources, and scores how full a node is.

The argument `scoringStrategy.type` chooses the formula of the score, over any resources:

    LeastAllocated              emptier nodes score higher: load is spread
    MostAllocated               fuller nodes score higher: nodes are packed
    RequestedToCapacityRatio    a piecewise linear function of the utilization
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from phalanx.api.errors import Causes, forbidden, required
from phalanx.api.validation.checks import (
    all_of,
    each,
    if_present,
    mandatory,
    one_of,
    optional,
    struct,
)
from phalanx.scheduler.cluster.pod_shape import PodShape, RequestVector, format_amount
from phalanx.scheduler.cluster.snapshot import BoolArray, NodeClass
from phalanx.scheduler.decision import CAPACITY_EVENTS
from phalanx.scheduler.plugins.arguments import (
    RESOURCE_RULES,
    UTILIZATION_SHAPE_RULES,
    ArgsPart,
    PluginArgs,
    ResourceSpec,
    UtilizationShapePoint,
    not_supported,
)
from phalanx.scheduler.plugins.load_scoring import (
    CPU_AND_MEMORY,
    Arithmetic,
    LoadScorer,
    NodeLoad,
    PerNode,
    ResourceWeight,
    ScoredResource,
    nonzero_scored_resources,
)
from phalanx.scheduler.plugins.plugin import (
    Arguments,
    Filter,
    FilterDependency,
    LoadScore,
    Plugin,
    Rejections,
)
from phalanx.scheduler.plugins.plugin_context import PluginContext

# ---- filter --------------------------------------------------------------------------------------


def _reject(context: PluginContext) -> Rejections:
    snapshot, requested = context.snapshot, context.requested
    for name, amount in context.shape.requests:
        reason = "Too many pods" if name == "pods" else f"Insufficient {name}"
        column = snapshot.columns.get(name)
        if column is None:
            yield reason, np.ones(len(snapshot), bool)
        else:
            yield reason, requested[:, column] + amount > snapshot.allocatable[:, column]


def _suggest_cure(context: PluginContext, nodes: BoolArray) -> str:
    """Name the node that lacks least, each resource measured by the pod's request."""
    snapshot, lacks = context.snapshot, {}
    for name, amount in context.shape.requests:
        column = snapshot.columns.get(name)
        free = (
            0 if column is None else snapshot.allocatable[:, column] - context.requested[:, column]
        )
        lacks[name, amount] = np.broadcast_to(np.maximum(amount - free, 0), nodes.shape)
    shortage = sum(lack / amount for (_, amount), lack in lacks.items())
    node = np.where(nodes, shortage, np.inf).argmin()
    needed = [
        format_amount(name, int(lack[node])) for (name, _), lack in lacks.items() if lack[node]
    ]
    return f"free or add {', '.join(needed)} on node {snapshot.names[node]}"


def fits(request: RequestVector, node_class: NodeClass) -> bool:
    """Whether one node has enough free resources for one more pod."""
    allocatable, requested = node_class.allocatable, node_class.requested
    for column, amount in request.amounts:
        if requested[column] + amount > allocatable[column]:
            return False
    return not request.has_unknown_resource


# ---- score ---------------------------------------------------------------------------------------


class AllocationStrategy(NamedTuple):
    """The score of one resource, 0 to 100, by how much of it is used of which capacity (not 0)."""

    score: Callable[[PerNode, PerNode, Arithmetic], PerNode]
    #: Whether resources with score 0 are left out of the mean, which is then rounded.
    skips_zero_scores: bool = False


def _least_allocated(used: PerNode, capacity: PerNode, arithmetic: Arithmetic) -> PerNode:
    return arithmetic.maximum(capacity - used, 0) * 100 // capacity


def _most_allocated(used: PerNode, capacity: PerNode, arithmetic: Arithmetic) -> PerNode:
    return arithmetic.minimum(used, capacity) * 100 // capacity


LEAST_ALLOCATED = AllocationStrategy(_least_allocated)
MOST_ALLOCATED = AllocationStrategy(_most_allocated)

#: A point of a piecewise linear function: a utilization in per cent and its score, 0 to 100.
UtilizationPoint = tuple[int, int]


def requested_to_capacity_ratio(points: Sequence[UtilizationPoint]) -> AllocationStrategy:
    """The strategy of a piecewise linear function, whose points are in order of utilization."""
    scores = [interpolate(points, utilization) for utilization in range(101)]

    def score(used: PerNode, capacity: PerNode, arithmetic: Arithmetic) -> PerNode:
        return arithmetic.take(scores, _most_allocated(used, capacity, arithmetic))

    return AllocationStrategy(score, skips_zero_scores=True)


def interpolate(points: Sequence[UtilizationPoint], at: int) -> int:
    """The function's value: constant outside the points, rounded towards the left one inside."""
    for (left, begin), (right, end) in pairwise(points):
        if left <= at <= right:
            change = abs(end - begin) * (at - left) // (right - left)
            return begin + change if end > begin else begin - change
    return points[0][1] if at < points[0][0] else points[-1][1]


def allocation_scorer(
    strategy: AllocationStrategy, resources: Sequence[ScoredResource]
) -> LoadScorer:
    """The weighted mean over resources; those that a node does not have are left out."""
    score_resource, skips_zero_scores = strategy

    def score(node: NodeLoad, arithmetic: Arithmetic) -> PerNode:
        maximum, allocatable = arithmetic.maximum, node.allocatable
        requested, nonzero_requested = node.requested, node.nonzero_requested
        total = weights = 0
        for weight, column, added, uses_nonzero in resources:
            capacity = allocatable[column]
            used = (nonzero_requested if uses_nonzero else requested)[column] + added
            value = score_resource(used, maximum(capacity, 1), arithmetic)
            counted = weight * (capacity > 0)
            if skips_zero_scores:
                counted = counted * (value > 0)
            total = total + counted * value
            weights = weights + counted
        divisor = maximum(weights, 1)
        return (2 * total + weights) // (2 * divisor) if skips_zero_scores else total // divisor

    return score


def allocation_score(
    strategy: AllocationStrategy = LEAST_ALLOCATED,
    resources: tuple[ResourceWeight, ...] = CPU_AND_MEMORY,
) -> LoadScore:
    """The score of a strategy over some resources."""

    def build_scorer(shape: PodShape, columns: Mapping[str, int]) -> LoadScorer:
        return allocation_scorer(strategy, nonzero_scored_resources(shape, columns, resources))

    return LoadScore(build_scorer)


# ---- arguments -----------------------------------------------------------------------------------

_RATIO = "RequestedToCapacityRatio"
_STRATEGIES = ("LeastAllocated", "MostAllocated", _RATIO)


class RequestedToCapacityRatioParam(ArgsPart, frozen=True):
    """The points of a piecewise linear function."""

    shape: tuple[UtilizationShapePoint, ...] = ()


class ScoringStrategy(ArgsPart, frozen=True):
    """The formula of the score and the resources that it counts."""

    type: str = _STRATEGIES[0]
    resources: tuple[ResourceSpec, ...] = ()
    requested_to_capacity_ratio: RequestedToCapacityRatioParam = RequestedToCapacityRatioParam()


class NodeResourcesFitArgs(PluginArgs, frozen=True):
    """The arguments of NodeResourcesFit."""

    scoring_strategy: ScoringStrategy = ScoringStrategy()
    ignored_resources: tuple[str, ...] = ()
    ignored_resource_groups: tuple[str, ...] = ()


def _check_ratio(new: Any, old: Any) -> Causes:
    field, ratio = "requestedToCapacityRatio", new.get("requestedToCapacityRatio")
    if new.get("type") == _RATIO:
        has_shape = ratio and ratio.get("shape")
        return (
            () if has_shape else [required(f"{field}.shape", f"{_RATIO} needs at least one point")]
        )
    return [] if ratio is None else [forbidden(field, f"is only allowed for the type {_RATIO}")]


_IGNORED = not_supported("the API server checks the capacity of every resource when it binds a pod")
_ARGS_RULES = struct(
    ("ignoredResources", _IGNORED),
    ("ignoredResourceGroups", _IGNORED),
    (
        "scoringStrategy",
        if_present(
            all_of(
                struct(
                    ("type", mandatory(one_of(*_STRATEGIES))),
                    ("resources", optional(each(RESOURCE_RULES))),
                    (
                        "requestedToCapacityRatio",
                        optional(struct(("shape", optional(UTILIZATION_SHAPE_RULES)))),
                    ),
                ),
                _check_ratio,
            )
        ),
    ),
)


def node_resources_fit(args: NodeResourcesFitArgs) -> Plugin:
    """The plugin with a scoring strategy."""
    chosen = args.scoring_strategy
    if chosen.type == _RATIO:
        points = chosen.requested_to_capacity_ratio.shape
        strategy = requested_to_capacity_ratio([(p.utilization, p.score * 10) for p in points])
    else:
        strategy = MOST_ALLOCATED if chosen.type == "MostAllocated" else LEAST_ALLOCATED
    resources = tuple(ResourceWeight(one.name, one.weight or 1) for one in chosen.resources)
    resources = resources or CPU_AND_MEMORY
    return Plugin(
        "NodeResourcesFit",
        filter=Filter(
            reject=_reject,
            suggest_cure=_suggest_cure,
            depends_on=FilterDependency.LOAD,
            wakes_on=CAPACITY_EVENTS,
            admits_node_class=fits,
            is_modelled=True,
            limits_capacity=True,
        ),
        score=allocation_score(strategy, resources),
        arguments=Arguments(NodeResourcesFitArgs, node_resources_fit, _ARGS_RULES),
        policy_fields={"packing_resources": resources},
        breaks_ties=True,
    )


NODE_RESOURCES_FIT = node_resources_fit(NodeResourcesFitArgs())
