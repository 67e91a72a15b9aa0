"""TaintToleration: rejects nodes with untolerated taints, and prefers nodes with fewer soft ones.

NoSchedule and NoExecute taints reject; PreferNoSchedule taints lower the score.
"""

from __future__ import annotations

import numpy as np

from phalanx.scheduler.cluster.snapshot import BoolArray, IntArray
from phalanx.scheduler.plugins.plugin import (
    Filter,
    NormalizedScore,
    Plugin,
    Rejections,
    percent_of_max,
)
from phalanx.scheduler.plugins.plugin_context import PluginContext


def _reject(context: PluginContext) -> Rejections:
    rejected = ~context.shape.node_constraints.tolerated_nodes(context.snapshot)
    if rejected.any():
        yield "node(s) had untolerated taint(s)", rejected


def _suggest_cure(context: PluginContext, nodes: BoolArray) -> str:
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
    filter=Filter(reject=_reject, suggest_cure=_suggest_cure, is_modelled=True),
    score=NormalizedScore(_has_untolerated_soft_taints, _score_soft_taints),
    weight=3,
)
