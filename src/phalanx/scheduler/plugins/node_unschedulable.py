"""NodeUnschedulable: rejects cordoned nodes (`spec.unschedulable`)."""

from __future__ import annotations

from phalanx.scheduler.cluster.node_constraints import UNSCHEDULABLE_TAINT
from phalanx.scheduler.cluster.snapshot import BoolArray
from phalanx.scheduler.plugins.plugin import Filter, Plugin, Rejections
from phalanx.scheduler.plugins.plugin_context import PluginContext


def _reject(context: PluginContext) -> Rejections:
    if not context.shape.node_constraints.tolerates(UNSCHEDULABLE_TAINT):
        yield "node(s) were unschedulable", context.snapshot.cordoned


def _suggest_cure(context: PluginContext, nodes: BoolArray) -> str:
    return f"uncordon node {context.snapshot.names[nodes.argmax()]}"


NODE_UNSCHEDULABLE = Plugin(
    "NodeUnschedulable", filter=Filter(reject=_reject, suggest_cure=_suggest_cure, is_modelled=True)
)
