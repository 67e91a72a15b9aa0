"""ExtendedResourceAvoidance: keeps pods off nodes with an extended resource that they do not use.

Nodes with GPUs score 0 for a pod that requests none, all other nodes 90. So such a node is used
only when no other has room: at the default weights the score outweighs those of load and images
together, and a preferred affinity, but not a PreferNoSchedule taint. A resource that every node has
keeps no pod away.

    nodes                       a: GPUs    b: none    c: GPUs and FPGAs
    a pod without requests      0          90         0
    a pod that requests GPUs    90         90         0         (NodeResourcesFit rejects b)
"""

from __future__ import annotations

import numpy as np

from phalanx.api.validation.checks import each, optional, struct
from phalanx.api.validation.resources import is_extended_resource
from phalanx.scheduler.cluster.pod_shape import PodShape
from phalanx.scheduler.cluster.snapshot import BoolArray, IntArray, Snapshot
from phalanx.scheduler.plugins.arguments import PluginArgs
from phalanx.scheduler.plugins.extended_resource_packing import check_extended_resource
from phalanx.scheduler.plugins.plugin import Arguments, Plugin, StaticScore


class ExtendedResourceAvoidanceArgs(PluginArgs, frozen=True):
    """The arguments of ExtendedResourceAvoidance."""

    #: Extended resources that keep no pod away.
    ignored_resources: tuple[str, ...] = ()


#: NodeResourcesFit, NodeResourcesBalancedAllocation and ImageLocality together differ by at most
#: 250, TaintToleration by 300: with the default weight of 3 the score is between them.
_SCORE = 90

_ARGS_RULES = struct(("ignoredResources", optional(each(check_extended_resource))))


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
        return None if avoided is None else np.where(avoided, 0, _SCORE)

    return Plugin(
        "ExtendedResourceAvoidance",
        score=StaticScore(score_nodes, find_avoided),
        weight=3,
        arguments=Arguments(
            ExtendedResourceAvoidanceArgs, extended_resource_avoidance, _ARGS_RULES
        ),
    )


EXTENDED_RESOURCE_AVOIDANCE = extended_resource_avoidance(ExtendedResourceAvoidanceArgs())
