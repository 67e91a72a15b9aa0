"""NodeVolumeLimits: rejects nodes that cannot attach all volumes of a pod.

A CSINode says how many volumes of a driver its node attaches. Volumes that pods of the node share
count once.
"""

from __future__ import annotations

import numpy as np

from phalanx.scheduler.cluster.snapshot import BoolArray
from phalanx.scheduler.decision import CAPACITY_EVENTS, ClusterEvent
from phalanx.scheduler.plugins.plugin import Filter, FilterDependency, Plugin, Rejections
from phalanx.scheduler.plugins.plugin_context import PluginContext
from phalanx.scheduler.plugins.volume_assignments import VolumeAssignments

LIMIT_EXCEEDED = "node(s) exceed max volume count"
DRIVER_MISSING = "node(s) did not have CSI driver {}"


def _reject(context: PluginContext) -> Rejections:
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


def _suggest_cure(context: PluginContext, nodes: BoolArray) -> str:
    name = context.snapshot.names[nodes.argmax()]
    drivers = ", ".join(dict.fromkeys(disk.driver for disk in context.shape.volumes.attached))
    return f"end pods with volumes of {drivers} on node {name}, or raise its attach limit"


NODE_VOLUME_LIMITS: Plugin = Plugin(
    "NodeVolumeLimits",
    filter=Filter(
        reject=_reject,
        suggest_cure=_suggest_cure,
        depends_on=FilterDependency.CLAIMS,
        wakes_on=CAPACITY_EVENTS | {ClusterEvent.VOLUMES_CHANGED},
        is_modelled=True,
    ),
)
