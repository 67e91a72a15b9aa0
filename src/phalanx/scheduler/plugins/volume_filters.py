"""The filters on the volumes of a pod that neither bind nor provision any.

    VolumeRestrictions    rejects all nodes while another pod uses a ReadWriteOncePod claim
    NodeVolumeLimits      rejects nodes that cannot attach all volumes of a pod. A CSINode says how
                          many volumes of a driver its node attaches; volumes that pods of the node
                          share count once
    VolumeZone            rejects nodes in other zones or regions than the volumes of bound claims.
                          Volumes say it by labels; a node without such labels is not rejected

`volume_binding.py` is about claims that are bound, or are bound with the pod.
"""

from __future__ import annotations

import numpy as np

from phalanx.api.selectors import LabelRequirement
from phalanx.scheduler.cluster.snapshot import BoolArray
from phalanx.scheduler.decision import CAPACITY_EVENTS, NODE_EVENTS, ClusterEvent
from phalanx.scheduler.plugins.plugin import Filter, FilterDependency, Plugin, Rejections
from phalanx.scheduler.plugins.plugin_context import PluginContext
from phalanx.scheduler.plugins.volume_assignments import VolumeAssignments
from phalanx.scheduler.volumes.state import ZONE_LABELS

# ---- VolumeRestrictions --------------------------------------------------------------------------

IN_USE = (
    "node(s) unavailable due to PersistentVolumeClaim with ReadWriteOncePod access mode already "
    "in-use by another pod"
)


def _reject_claims_in_use(context: PluginContext) -> Rejections:
    demand = context.shape.volumes
    if not demand.exclusive:
        return
    volumes = context.volumes or VolumeAssignments(context.snapshot)
    if volumes.has_conflict(demand):
        yield IN_USE, np.ones(len(context.snapshot), bool)


def _suggest_ending_user(context: PluginContext, nodes: BoolArray) -> str:
    names = ", ".join(key.name for key in context.shape.volumes.exclusive)
    return f"end the pod that uses claim {names}, which is ReadWriteOncePod"


VOLUME_RESTRICTIONS: Plugin = Plugin(
    "VolumeRestrictions",
    filter=Filter(
        reject=_reject_claims_in_use,
        suggest_cure=_suggest_ending_user,
        depends_on=FilterDependency.CLAIMS,
        wakes_on=CAPACITY_EVENTS,
        is_modelled=True,
    ),
)


# ---- NodeVolumeLimits ----------------------------------------------------------------------------

LIMIT_EXCEEDED = "node(s) exceed max volume count"
DRIVER_MISSING = "node(s) did not have CSI driver {}"


def _reject_full_nodes(context: PluginContext) -> Rejections:
    demand, snapshot = context.shape.volumes, context.snapshot
    if not demand.attached:
        return
    volumes = context.volumes or VolumeAssignments(snapshot)
    rejected: dict[str, BoolArray] = {}
    for i in np.flatnonzero(context.candidates).tolist():
        disk = volumes.find_limit(demand, i)
        if disk is not None:
            is_missing = snapshot.volumes.lacks_driver(snapshot.names[i], disk.driver)
            reason = DRIVER_MISSING.format(disk.driver) if is_missing else LIMIT_EXCEEDED
            rejected.setdefault(reason, np.zeros(len(snapshot), bool))[i] = True
    yield from rejected.items()


def _suggest_detaching(context: PluginContext, nodes: BoolArray) -> str:
    name = context.snapshot.names[nodes.argmax()]
    drivers = ", ".join(dict.fromkeys(disk.driver for disk in context.shape.volumes.attached))
    return f"end pods with volumes of {drivers} on node {name}, or raise its attach limit"


NODE_VOLUME_LIMITS: Plugin = Plugin(
    "NodeVolumeLimits",
    filter=Filter(
        reject=_reject_full_nodes,
        suggest_cure=_suggest_detaching,
        depends_on=FilterDependency.CLAIMS,
        wakes_on=CAPACITY_EVENTS | {ClusterEvent.VOLUMES_CHANGED},
        is_modelled=True,
    ),
)


# ---- VolumeZone ----------------------------------------------------------------------------------

ZONE_CONFLICT = "node(s) had no available volume zone"


def _reject_other_zones(context: PluginContext) -> Rejections:
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


def _suggest_zones(context: PluginContext, nodes: BoolArray) -> str:
    zones = [f"{key}={'|'.join(sorted(values))}" for key, values in context.shape.volumes.zones]
    return f"make room on nodes with {', '.join(zones)}, where the volumes of the pod are"


VOLUME_ZONE: Plugin = Plugin(
    "VolumeZone",
    filter=Filter(
        reject=_reject_other_zones,
        suggest_cure=_suggest_zones,
        wakes_on=NODE_EVENTS | {ClusterEvent.VOLUMES_CHANGED},
        is_modelled=True,
    ),
)
