"""VolumeZone: rejects nodes in other zones or regions than the volumes of a pod's bound claims.

Volumes say it by labels. A node without any zone or region label is not rejected.
"""

from __future__ import annotations

import numpy as np

from phalanx.api.selectors import LabelRequirement
from phalanx.scheduler.cluster.snapshot import BoolArray
from phalanx.scheduler.decision import NODE_EVENTS, ClusterEvent
from phalanx.scheduler.plugins.plugin import Filter, Plugin, Rejections
from phalanx.scheduler.plugins.plugin_context import PluginContext
from phalanx.scheduler.volumes.state import ZONE_LABELS

ZONE_CONFLICT = "node(s) had no available volume zone"


def _reject(context: PluginContext) -> Rejections:
    zones, snapshot = context.shape.volumes.zones, context.snapshot
    if not zones:
        return
    labelled = np.zeros(len(snapshot), bool)
    for key in ZONE_LABELS:
        labelled |= snapshot.nodes_matching(LabelRequirement(key, "exists"))
    allowed = np.ones(len(snapshot), bool)
    for key, values in zones:
        mask = snapshot.nodes_matching(LabelRequirement(key, "in", values))
        # The other name of the label counts where the node does not have this one.
        absent = snapshot.nodes_matching(LabelRequirement(key, "absent"))
        other = snapshot.nodes_matching(LabelRequirement(ZONE_LABELS[key], "in", values))
        allowed &= mask | (absent & other)
    yield ZONE_CONFLICT, labelled & ~allowed


def _suggest_cure(context: PluginContext, nodes: BoolArray) -> str:
    zones = [f"{key}={'|'.join(sorted(values))}" for key, values in context.shape.volumes.zones]
    return f"make room on nodes with {', '.join(zones)}, where the volumes of the pod are"


VOLUME_ZONE: Plugin = Plugin(
    "VolumeZone",
    filter=Filter(
        reject=_reject,
        suggest_cure=_suggest_cure,
        wakes_on=NODE_EVENTS | {ClusterEvent.VOLUMES_CHANGED},
        is_modelled=True,
    ),
)
