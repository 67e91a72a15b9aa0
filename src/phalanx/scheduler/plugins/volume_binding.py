"""VolumeBinding: rejects nodes from which the volumes of a pod's claims cannot be used.

Bound claims restrict the nodes by the node affinity of their volumes, whatever other pods do. For
claims that are bound with the pod, `volume_assignments.py` finds volumes node by node. The score
(`volume_scoring.py`) prefers nodes with emptier storage.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from phalanx.api.validation.checks import minimum, optional, struct
from phalanx.scheduler.cluster.node_constraints import nodes_matching_any, terms_of
from phalanx.scheduler.cluster.snapshot import BoolArray
from phalanx.scheduler.decision import NODE_EVENTS, ClusterEvent
from phalanx.scheduler.plugins.arguments import (
    UTILIZATION_SHAPE_RULES,
    Int32,
    PluginArgs,
    UtilizationShapePoint,
)
from phalanx.scheduler.plugins.plugin import (
    Arguments,
    Filter,
    FilterDependency,
    Plugin,
    Rejections,
)
from phalanx.scheduler.plugins.plugin_context import PluginContext
from phalanx.scheduler.plugins.volume_assignments import VolumeAssignments
from phalanx.scheduler.plugins.volume_scoring import DEFAULT_SHAPE, build_volume_score
from phalanx.scheduler.volumes.demand import UNBOUND_IMMEDIATE

AFFINITY_CONFLICT = "node(s) didn't match PersistentVolume's node affinity"
VOLUME_MISSING = "node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)"


def _reject_statically(context: PluginContext) -> Rejections:
    """Reject nodes whatever other pods use: claims with a problem, and bound claims."""
    demand, snapshot = context.shape.volumes, context.snapshot
    if demand.problem:
        yield demand.problem, np.ones(len(snapshot), bool)
        return
    if demand.affinities:
        yield AFFINITY_CONFLICT, ~_nodes_of_volumes(context)
    if demand.lacks_volume:
        yield VOLUME_MISSING, np.ones(len(snapshot), bool)


def _nodes_of_volumes(context: PluginContext) -> BoolArray:
    """The nodes from which the volumes of bound claims can be used."""
    mask = np.ones(len(context.snapshot), bool)
    for affinity in context.shape.volumes.affinities:
        mask &= nodes_matching_any(context.snapshot, terms_of(affinity))
    return mask


def _reject(context: PluginContext) -> Rejections:
    demand, size = context.shape.volumes, len(context.snapshot)
    remaining = context.candidates.copy()
    for reason, mask in _reject_statically(context):
        yield reason, mask
        remaining &= ~mask
    if not demand.unbound or demand.problem:
        return
    volumes = context.volumes or VolumeAssignments(context.snapshot)
    rejected: dict[str, BoolArray] = {}
    for i in np.flatnonzero(remaining).tolist():
        found = volumes.find_volumes(demand, i)
        if isinstance(found, str):
            rejected.setdefault(found, np.zeros(size, bool))[i] = True
    yield from rejected.items()


def _suggest_cure(context: PluginContext, nodes: BoolArray) -> str:
    demand, name = context.shape.volumes, context.snapshot.names[nodes.argmax()]
    if demand.problem == UNBOUND_IMMEDIATE:
        return "create the storage classes or volumes that the pod's claims lack, or wait for them"
    if demand.problem:
        return f"create what is missing, or wait for it: {demand.problem}"
    if demand.lacks_volume:
        return "restore the volume that a claim of the pod is bound to"
    if _nodes_of_volumes(context).any() and not demand.unbound:
        return "make room on the nodes that the volumes of the pod's claims allow"
    if not demand.unbound:
        return "let the pod use other claims: no node can use the volumes of these"
    classes = ", ".join(dict.fromkeys(one.storage_class for one in demand.unbound))
    return f"add a volume of storage class {classes} that node {name} can use"


class VolumeBindingArgs(PluginArgs, frozen=True):
    """The arguments of VolumeBinding."""

    bind_timeout_seconds: Int32 = 600
    shape: tuple[UtilizationShapePoint, ...] = ()


def _policy_fields(args: VolumeBindingArgs) -> dict[str, float]:
    return {"bind_timeout_seconds": float(args.bind_timeout_seconds)}


def _configure(args: VolumeBindingArgs) -> Plugin:
    points = [(point.utilization, point.score * 10) for point in args.shape]
    return replace(
        VOLUME_BINDING,
        policy_fields=_policy_fields(args),
        score=build_volume_score(points or DEFAULT_SHAPE),
    )


VOLUME_BINDING: Plugin = Plugin(
    "VolumeBinding",
    filter=Filter(
        reject=_reject,
        static_part=_reject_statically,
        suggest_cure=_suggest_cure,
        depends_on=FilterDependency.CLAIMS,
        wakes_on=NODE_EVENTS | {ClusterEvent.VOLUMES_CHANGED},
        is_modelled=True,
    ),
    score=build_volume_score(DEFAULT_SHAPE),
    policy_fields=_policy_fields(VolumeBindingArgs()),
    arguments=Arguments(
        VolumeBindingArgs,
        _configure,
        struct(
            ("bindTimeoutSeconds", optional(minimum(0))),
            ("shape", optional(UTILIZATION_SHAPE_RULES)),
        ),
    ),
)
