"""ExtendedResourcePacking: packs the pods that request an extended resource by that resource.

Nodes whose GPUs are mostly in use score higher for a pod that requests GPUs, so that whole nodes
stay free for pods that need all GPUs of a node. For such a pod the scores that spread load by CPU
and memory only decide between nodes with equal use of the resource (`SchedulerPolicy.scores_of`),
and topology domains are compared by the resource too (`placement/domain_scores.py`).

    8 GPUs each, in use      6    2    0
    score for a pod of 1     87   37   12

Pods that request no extended resource are not scored. Devices of resource claims are packed where
they are assigned (`placement/claim_ranking.py`).
"""

from __future__ import annotations

from collections.abc import Mapping

from phalanx.api.errors import Causes, invalid
from phalanx.api.validation.checks import all_of, each, mandatory, optional, struct, unique_field
from phalanx.api.validation.resources import is_extended_resource
from phalanx.scheduler.cluster.pod_shape import PodShape
from phalanx.scheduler.plugins.arguments import RESOURCE_RULES, PluginArgs, ResourceSpec
from phalanx.scheduler.plugins.load_scoring import (
    LoadScorer,
    ResourceWeight,
    exact_scored_resources,
    no_score,
)
from phalanx.scheduler.plugins.node_resources_fit import MOST_ALLOCATED, allocation_scorer
from phalanx.scheduler.plugins.plugin import Arguments, LoadScore, Plugin


class ExtendedResourcePackingArgs(PluginArgs, frozen=True):
    """The arguments of ExtendedResourcePacking."""

    #: The resources that are packed, with their weights in the mean; none: every extended resource.
    resources: tuple[ResourceSpec, ...] = ()


def check_extended_resource(new: str, old: str) -> Causes:
    """Reject a name that no extended resource has."""
    detail = "must be the name of an extended resource, such as example.com/gpu"
    return () if is_extended_resource(new) else [invalid("", new, detail)]


_ARGS_RULES = struct(
    (
        "resources",
        optional(
            all_of(
                each(RESOURCE_RULES),
                each(struct(("name", mandatory(check_extended_resource)))),
                unique_field("name"),
            )
        ),
    ),
)


def extended_resource_packing(args: ExtendedResourcePackingArgs) -> Plugin:
    """The plugin for the resources that the arguments name."""
    weights = {one.name: one.weight or 1 for one in args.resources}

    def packed_resources(shape: PodShape) -> tuple[ResourceWeight, ...]:
        return tuple(
            ResourceWeight(name, weights.get(name, 1))
            for name, _ in shape.requests
            if (name in weights if weights else is_extended_resource(name))
        )

    def build_scorer(shape: PodShape, columns: Mapping[str, int]) -> LoadScorer:
        resources = exact_scored_resources(shape, columns, packed_resources(shape))
        return allocation_scorer(MOST_ALLOCATED, resources) if resources else no_score

    return Plugin(
        "ExtendedResourcePacking",
        score=LoadScore(build_scorer, packed_resources),
        # At most what one preference of a pod weighs: a soft spread of a GPU gang is kept.
        weight=2,
        arguments=Arguments(ExtendedResourcePackingArgs, extended_resource_packing, _ARGS_RULES),
    )


EXTENDED_RESOURCE_PACKING = extended_resource_packing(ExtendedResourcePackingArgs())
