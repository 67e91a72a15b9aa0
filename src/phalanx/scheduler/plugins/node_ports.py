"""NodePorts: rejects nodes on which a host port that the pod requests is in use."""

from __future__ import annotations

import numpy as np

from phalanx.scheduler.cluster.pod_shape import RequestVector
from phalanx.scheduler.cluster.snapshot import BoolArray, NodeClass
from phalanx.scheduler.decision import CAPACITY_EVENTS
from phalanx.scheduler.plugins.plugin import Filter, FilterDependency, Plugin, Rejections
from phalanx.scheduler.plugins.plugin_context import PluginContext


def _reject(context: PluginContext) -> Rejections:
    ports = context.shape.ports
    if not ports:
        return
    rejected = np.zeros(len(context.snapshot), bool)
    for i, used in context.used_ports.items():
        rejected[i] = any(port.conflicts_with(other) for port in ports for other in used)
    yield "node(s) didn't have free ports for the requested pod ports", rejected


def _suggest_cure(context: PluginContext, nodes: BoolArray) -> str:
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
        reject=_reject,
        suggest_cure=_suggest_cure,
        depends_on=FilterDependency.LOAD,
        wakes_on=CAPACITY_EVENTS,
        admits_node_class=has_free_ports,
        applies_to=lambda shape: bool(shape.ports),
        is_modelled=True,
        limits_capacity=True,
    ),
)
