"""Scheduler plugins: filters reject nodes, scores rank the nodes that remain.

A plugin is one `Plugin` value; `registry.py` lists them. Out-of-tree plugins import
what they need from here (docs/plugins.md).

    plugin              Plugin, Filter, the three kinds of scores, arguments
    registry            all plugins in order; checks of out-of-tree plugins
    plugin_context      what filters and scores read
    claim_assignments   the devices that a simulation gives to members
    volume_assignments  the volumes that a simulation gives to members
    peer_counts         pods per topology domain, for affinity and spread
    load_scoring        formulas that serve one node and many
    arguments           base structs and rules of plugin arguments
    filtering           runs filters, explains why no node takes a pod
    settings_plugins    plugins that neither filter nor score: Reservation, DefaultPreemption
    node_plugins        NodeUnschedulable, TaintToleration, NodePorts, ImageLocality
    volume_filters      VolumeRestrictions, NodeVolumeLimits, VolumeZone
    extended_resource_scoring    ExtendedResourcePacking, ExtendedResourceAvoidance
    node_affinity, node_resources_fit, node_resources_balanced_allocation, pod_topology_spread,
    inter_pod_affinity, volume_binding, dynamic_resources: one plugin each, of that name
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
