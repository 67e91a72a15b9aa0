"""Scheduler plugins: filters reject nodes, scores rank the nodes that remain.

A plugin is one `Plugin` value in one module; `registry.py` lists them. Out-of-tree plugins import
what they need from here (docs/plugins.md).

    plugin              Plugin, Filter, the three kinds of scores, arguments
    registry            all plugins in order; checks of out-of-tree plugins
    plugin_context      what filters and scores read
    claim_assignments   the devices that a simulation gives to members
    volume_assignments  the volumes that a simulation gives to members
    peer_counts         pods per topology domain, for affinity and spread
    volume_scoring      the score of VolumeBinding
    load_scoring        formulas that serve one node and many
    arguments           base structs and rules of plugin arguments
    filtering           runs filters, explains why no node takes a pod
    not_implemented     names of Kubernetes' plugins without a filter or a score here
    node_unschedulable, taint_toleration, node_affinity, node_ports, node_resources_fit,
    node_resources_balanced_allocation, pod_topology_spread, inter_pod_affinity,
    volume_restrictions, node_volume_limits, volume_binding, volume_zone,
    dynamic_resources, image_locality,
    extended_resource_packing, extended_resource_avoidance,
    reservation (settings of `scheduler/reservation/`)
"""

from phalanx.scheduler.plugins.arguments import PluginArgs
from phalanx.scheduler.plugins.load_scoring import Arithmetic, NodeLoad, no_score
from phalanx.scheduler.plugins.plugin import (
    Filter,
    FilterDependency,
    LoadScore,
    NormalizedScore,
    Plugin,
    StaticScore,
    percent_of_max,
)
from phalanx.scheduler.plugins.plugin_context import PluginContext

__all__ = [
    "Arithmetic",
    "Filter",
    "FilterDependency",
    "LoadScore",
    "NodeLoad",
    "NormalizedScore",
    "Plugin",
    "PluginArgs",
    "PluginContext",
    "StaticScore",
    "no_score",
    "percent_of_max",
]
