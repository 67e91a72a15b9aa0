"""The plugins that read one node and have no arguments.

NodeUnschedulable    rejects cordoned nodes (`spec.unschedulable`)
TaintToleration      rejects nodes with untolerated NoSchedule and NoExecute taints; prefers
                     nodes with fewer untolerated PreferNoSchedule taints
NodePorts            rejects nodes on which a host port that the pod requests is in use
ImageLocality        prefers nodes that already have the images of a pod
"""

from __future__ import annotations

import numpy as np

from phalanx.scheduler.cluster.node_constraints import UNSCHEDULABLE_TAINT
from phalanx.scheduler.cluster.pod_shape import PodShape, RequestVector
from phalanx.scheduler.cluster.snapshot import BoolArray, IntArray, NodeClass, Snapshot
from phalanx.scheduler.decision import CAPACITY_EVENTS
from phalanx.scheduler.plugins.plugin import (
    Filter,
    FilterDependency,
    NormalizedScore,
    Plugin,
    Rejections,
    StaticScore,
    percent_of_max,
)
from phalanx.scheduler.plugins.plugin_context import PluginContext

# ---- NodeUnschedulable ---------------------------------------------------------------------------


def _reject_cordoned(context: PluginContext) -> Rejections:
    if not context.shape.node_constraints.tolerates(UNSCHEDULABLE_TAINT):
        yield "node(s) were unschedulable", context.snapshot.cordoned


def _suggest_uncordoning(context: PluginContext, nodes: BoolArray) -> str:
    return f"uncordon node {context.snapshot.names[nodes.argmax()]}"


NODE_UNSCHEDULABLE = Plugin(
    "NodeUnschedulable",
    filter=Filter(reject=_reject_cordoned, suggest_cure=_suggest_uncordoning, is_modelled=True),
)


# ---- TaintToleration -----------------------------------------------------------------------------


def _reject_tainted(context: PluginContext) -> Rejections:
    rejected = ~context.shape.node_constraints.tolerated_nodes(context.snapshot)
    if rejected.any():
        yield "node(s) had untolerated taint(s)", rejected


def _suggest_toleration(context: PluginContext, nodes: BoolArray) -> str:
    snapshot, node = context.snapshot, nodes.argmax()
    taints = context.shape.node_constraints.untolerated_taints(
        list(snapshot.taints)[snapshot.taint_class[node]]
    )
    names = ", ".join(f"{taint.key}={taint.value}:{taint.effect}" for taint in taints)
    return f"tolerate {names} of node {snapshot.names[node]}, or remove it"


def _has_untolerated_soft_taints(context: PluginContext) -> bool:
    constraints = context.shape.node_constraints
    return any(constraints.count_untolerated_soft_taints(context.snapshot.taints))


def _score_soft_taints(context: PluginContext, passed: BoolArray) -> IntArray:
    snapshot, constraints = context.snapshot, context.shape.node_constraints
    counts = np.array(constraints.count_untolerated_soft_taints(snapshot.taints), np.int64)
    return 100 - percent_of_max(counts[snapshot.taint_class], passed)


TAINT_TOLERATION = Plugin(
    "TaintToleration",
    filter=Filter(reject=_reject_tainted, suggest_cure=_suggest_toleration, is_modelled=True),
    score=NormalizedScore(_has_untolerated_soft_taints, _score_soft_taints),
    weight=3,
)


# ---- NodePorts -----------------------------------------------------------------------------------


def _reject_used_ports(context: PluginContext) -> Rejections:
    ports = context.shape.ports
    if not ports:
        return
    rejected = np.zeros(len(context.snapshot), bool)
    for i, used in context.used_ports.items():
        rejected[i] = any(port.conflicts_with(other) for port in ports for other in used)
    yield "node(s) didn't have free ports for the requested pod ports", rejected


def _suggest_freeing_port(context: PluginContext, nodes: BoolArray) -> str:
    node = int(nodes.argmax())
    used = context.used_ports[node]
    conflicts = [p for p in context.shape.ports if any(p.conflicts_with(other) for other in used)]
    numbers = ", ".join(f"{port.number}/{port.protocol}" for port in conflicts)
    return f"free port {numbers} of node {context.snapshot.names[node]}"


def has_free_ports(request: RequestVector, node_class: NodeClass) -> bool:
    """Whether all host ports that a pod requests are free on one node."""
    return not any(
        port.conflicts_with(used) for port in request.ports for used in node_class.used_ports
    )


NODE_PORTS = Plugin(
    "NodePorts",
    filter=Filter(
        reject=_reject_used_ports,
        suggest_cure=_suggest_freeing_port,
        depends_on=FilterDependency.LOAD,
        wakes_on=CAPACITY_EVENTS,
        admits_node_class=has_free_ports,
        applies_to=lambda shape: bool(shape.ports),
        is_modelled=True,
        limits_capacity=True,
    ),
)


# ---- ImageLocality -------------------------------------------------------------------------------

_MEBIBYTE = 1024 * 1024
#: The score is 0 up to the first size and 100 from the second size per image on.
_MIN_IMAGE_BYTES, _MAX_IMAGE_BYTES = 23 * _MEBIBYTE, 1000 * _MEBIBYTE


def score_image_locality(snapshot: Snapshot, shape: PodShape) -> IntArray | None:
    """Score nodes by the bytes of a pod's images on them; an image that few nodes have counts less.

    None if no node has any of the images.
    """
    images = shape.node_constraints.images
    found = [sizes for sizes in map(snapshot.image_sizes, images) if sizes.any()]
    if not found:
        return None
    total = np.zeros(len(snapshot), np.int64)
    for sizes in found:
        share = np.count_nonzero(sizes) / len(snapshot)
        total += np.asarray(sizes * share, np.int64)
    most = _MAX_IMAGE_BYTES * len(images)
    clamped = np.clip(total, _MIN_IMAGE_BYTES, most)
    return np.asarray(100 * (clamped - _MIN_IMAGE_BYTES) // (most - _MIN_IMAGE_BYTES), np.int64)


IMAGE_LOCALITY = Plugin("ImageLocality", score=StaticScore(score_image_locality), breaks_ties=True)
