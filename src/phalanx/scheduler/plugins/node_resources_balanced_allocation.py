"""NodeResourcesBalancedAllocation: prefers nodes whose resources the pod makes more evenly used.

The balance of a node is 100 when all resources are used in equal shares, and falls with the
standard deviation of the shares. The score compares the balance with the pod and without it: 75
where the pod changes nothing, up to 100 where it evens out, down to 50 where it unbalances. Pods
that request none of the resources are not scored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any

from phalanx.api.errors import Causes, invalid
from phalanx.api.validation.checks import all_of, each, optional, struct, unique_field
from phalanx.scheduler.cluster.pod_shape import PodShape
from phalanx.scheduler.plugins.arguments import RESOURCE_RULES, PluginArgs, ResourceSpec
from phalanx.scheduler.plugins.load_scoring import (
    CPU_AND_MEMORY,
    Arithmetic,
    LoadScorer,
    NodeLoad,
    PerNode,
    ResourceWeight,
    ScoredResource,
    exact_scored_resources,
    no_score,
)
from phalanx.scheduler.plugins.plugin import Arguments, LoadScore, Plugin


def balance_scorer(resources: Sequence[ScoredResource]) -> LoadScorer:
    """The gain in balance over resources; those that a node does not have are left out."""
    if len(resources) == 2:
        return _pair_scorer(*resources)

    def score(node: NodeLoad, arithmetic: Arithmetic) -> PerNode:
        present, before, after = [], [], []
        for resource in resources:
            capacity, used = node.allocatable[resource.column], node.requested[resource.column]
            divisor = arithmetic.maximum(capacity, 1)
            present.append(capacity > 0)
            before.append(arithmetic.minimum(used / divisor, 1.0))
            after.append(arithmetic.minimum((used + resource.requested) / divisor, 1.0))
        return _score_change(
            _deviation(before, present, arithmetic),
            _deviation(after, present, arithmetic),
            arithmetic,
        )

    return score


def _score_change(before: PerNode, after: PerNode, arithmetic: Arithmetic) -> PerNode:
    gain = arithmetic.truncate((1 - after) * 100) - arithmetic.truncate((1 - before) * 100)
    return 50 + (50 + gain) // 2


def _pair_scorer(first: ScoredResource, second: ScoredResource) -> LoadScorer:
    """The scorer for two resources, mostly CPU and memory: the inner loop of most schedulers."""
    (_, column, added, _), (_, other_column, other_added, _) = first, second

    def score(node: NodeLoad, arithmetic: Arithmetic) -> PerNode:
        minimum, maximum = arithmetic.minimum, arithmetic.maximum
        capacity, other_capacity = node.allocatable[column], node.allocatable[other_column]
        used, other_used = node.requested[column], node.requested[other_column]
        divisor, other_divisor = maximum(capacity, 1), maximum(other_capacity, 1)
        has_both = (capacity > 0) & (other_capacity > 0)
        before = minimum(used / divisor, 1.0) - minimum(other_used / other_divisor, 1.0)
        after = minimum((used + added) / divisor, 1.0) - minimum(
            (other_used + other_added) / other_divisor, 1.0
        )
        # The standard deviation of two shares is half of their difference.
        return _score_change(abs(before) / 2 * has_both, abs(after) / 2 * has_both, arithmetic)

    return score


def _deviation(
    shares: Sequence[PerNode], present: Sequence[PerNode], arithmetic: Arithmetic
) -> PerNode:
    """The standard deviation of the used shares of the resources that a node has."""
    if len(shares) < 2:
        return 0.0
    count = sum(present)
    divisor = arithmetic.maximum(count, 1)
    counted = [share * has for share, has in zip(shares, present, strict=True)]
    mean = sum(counted) / divisor
    squares = [
        (share - mean) * (share - mean) * has for share, has in zip(shares, present, strict=True)
    ]
    many = arithmetic.sqrt(sum(squares) / divisor)
    # Of two shares half the difference is taken, as Kubernetes does: it rounds differently. A share
    # is at most 1, so that a resource that is not there is never the least used.
    most = reduce(arithmetic.maximum, counted)
    least = reduce(
        arithmetic.minimum,
        [arithmetic.maximum(share, 1 - has) for share, has in zip(shares, present, strict=True)],
    )
    return (count > 2) * many + (count == 2) * ((most - least) / 2)


def balance_score(resources: tuple[ResourceWeight, ...] = CPU_AND_MEMORY) -> LoadScore:
    """The score over some resources."""

    def build_scorer(shape: PodShape, columns: Mapping[str, int]) -> LoadScorer:
        requested = {name for name, _ in shape.requests if name != "pods"}
        if not any(one.name in requested for one in resources):
            return no_score
        return balance_scorer(exact_scored_resources(shape, columns, resources))

    return LoadScore(build_scorer)


class NodeResourcesBalancedAllocationArgs(PluginArgs, frozen=True):
    """The arguments of NodeResourcesBalancedAllocation."""

    resources: tuple[ResourceSpec, ...] = ()


def _check_weight_is_one(new: Any, old: Any) -> Causes:
    return () if new in (0, 1) else [invalid("", new, "must be 1")]


_ARGS_RULES = struct(
    (
        "resources",
        optional(
            all_of(
                each(RESOURCE_RULES),
                each(struct(("weight", optional(_check_weight_is_one)))),
                unique_field("name"),
            )
        ),
    ),
)


def node_resources_balanced_allocation(
    args: NodeResourcesBalancedAllocationArgs,
) -> Plugin:
    """The plugin over the resources that the arguments name."""
    resources = tuple(ResourceWeight(one.name) for one in args.resources) or CPU_AND_MEMORY
    return Plugin(
        "NodeResourcesBalancedAllocation",
        score=balance_score(resources),
        arguments=Arguments(
            NodeResourcesBalancedAllocationArgs, node_resources_balanced_allocation, _ARGS_RULES
        ),
        breaks_ties=True,
    )


NODE_RESOURCES_BALANCED_ALLOCATION = node_resources_balanced_allocation(
    NodeResourcesBalancedAllocationArgs()
)
