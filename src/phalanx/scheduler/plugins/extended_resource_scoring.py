"""Scores by extended resources such as GPUs: pack the pods that request them, keep others away.

ExtendedResourcePacking packs the pods that request an extended resource by that resource. Nodes
whose GPUs are mostly in use score higher for a pod that requests GPUs, so that whole nodes stay
free for pods that need all GPUs of a node. For such a pod the scores that spread load by CPU and
memory only decide between nodes with equal use of the resource (`SchedulerPolicy.scores_of`), and
topology domains are compared by the resource too (`placement/domain_scores.py`).

    8 GPUs each, in use      6    2    0
    score for a pod of 1     87   37   12

Pods that request no extended resource are not scored. Devices of resource claims are packed where
they are assigned (`placement/claim_ranking.py`).

ExtendedResourceAvoidance keeps pods off nodes with an extended resource that they do not use.
Nodes with GPUs score 0 for a pod that requests none, all other nodes 90. So such a node is used
only when no other has room: at the default weights the score outweighs those of load and images
together, and a preferred affinity, but not a PreferNoSchedule taint. A resource that every node has
keeps no pod away.

    nodes                       a: GPUs    b: none    c: GPUs and FPGAs
    a pod without requests      0          90         0
    a pod that requests GPUs    90         90         0         (NodeResourcesFit rejects b)
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from phalanx.api.errors import Causes, invalid
from phalanx.api.validation.checks import all_of, each, mandatory, optional, struct, unique_field
from phalanx.api.validation.resources import is_extended_resource
from phalanx.scheduler.cluster.pod_shape import PodShape
from phalanx.scheduler.cluster.snapshot import BoolArray, IntArray, Snapshot
from phalanx.scheduler.plugins.arguments import RESOURCE_RULES, PluginArgs, ResourceSpec
from phalanx.scheduler.plugins.load_scoring import (
    LoadScorer,
    ResourceWeight,
    exact_scored_resources,
    no_score,
)
from phalanx.scheduler.plugins.node_resources_fit import MOST_ALLOCATED, allocation_scorer
from phalanx.scheduler.plugins.plugin import Arguments, LoadScore, Plugin, StaticScore


def _check_extended_resource(new: str, old: str) -> Causes:
    """Reject a name that no extended resource has."""
    detail = "must be the name of an extended resource, such as example.com/gpu"
    return () if is_extended_resource(new) else [invalid("", new, detail)]


# ---- ExtendedResourcePacking ---------------------------------------------------------------------


class ExtendedResourcePackingArgs(PluginArgs, frozen=True):
    """The arguments of ExtendedResourcePacking."""

    #: The resources that are packed, with their weights in the mean; none: every extended resource.
    resources: tuple[ResourceSpec, ...] = ()


_PACKING_RULES = struct(
    (
        "resources",
        optional(
            all_of(
                each(RESOURCE_RULES),
                each(struct(("name", mandatory(_check_extended_resource)))),
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
        arguments=Arguments(ExtendedResourcePackingArgs, extended_resource_packing, _PACKING_RULES),
    )


EXTENDED_RESOURCE_PACKING = extended_resource_packing(ExtendedResourcePackingArgs())


# ---- ExtendedResourceAvoidance -------------------------------------------------------------------


class ExtendedResourceAvoidanceArgs(PluginArgs, frozen=True):
    """The arguments of ExtendedResourceAvoidance."""

    #: Extended resources that keep no pod away.
    ignored_resources: tuple[str, ...] = ()


#: NodeResourcesFit, NodeResourcesBalancedAllocation and ImageLocality together differ by at most
#: 250, TaintToleration by 300: with the default weight of 3 the score is between them.
_UNAVOIDED_SCORE = 90

_AVOIDANCE_RULES = struct(("ignoredResources", optional(each(_check_extended_resource))))


def extended_resource_avoidance(args: ExtendedResourceAvoidanceArgs) -> Plugin:
    """The plugin without the resources that the arguments ignore."""
    ignored = frozenset(args.ignored_resources)

    def find_avoided(snapshot: Snapshot, shape: PodShape) -> BoolArray | None:
        """The nodes with a resource that a pod does not request; None if there are none."""
        used = ignored.union(name for name, _ in shape.requests)
        avoided: BoolArray | None = None
        for name, column in snapshot.columns.items():
            if name not in used and is_extended_resource(name):
                present = snapshot.allocatable[:, column] > 0
                if present.any() and not present.all():
                    avoided = present if avoided is None else avoided | present
        return avoided

    def score_nodes(snapshot: Snapshot, shape: PodShape) -> IntArray | None:
        avoided = find_avoided(snapshot, shape)
        return None if avoided is None else np.where(avoided, 0, _UNAVOIDED_SCORE)

    return Plugin(
        "ExtendedResourceAvoidance",
        score=StaticScore(score_nodes, find_avoided),
        weight=3,
        arguments=Arguments(
            ExtendedResourceAvoidanceArgs, extended_resource_avoidance, _AVOIDANCE_RULES
        ),
    )


EXTENDED_RESOURCE_AVOIDANCE = extended_resource_avoidance(ExtendedResourceAvoidanceArgs())
