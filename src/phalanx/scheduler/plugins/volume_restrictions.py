"""VolumeRestrictions: rejects all nodes while another pod uses a ReadWriteOncePod claim."""

from __future__ import annotations

import numpy as np

from phalanx.scheduler.cluster.snapshot import BoolArray
from phalanx.scheduler.decision import CAPACITY_EVENTS
from phalanx.scheduler.plugins.plugin import Filter, FilterDependency, Plugin, Rejections
from phalanx.scheduler.plugins.plugin_context import PluginContext
from phalanx.scheduler.plugins.volume_assignments import VolumeAssignments

IN_USE = (
    "node(s) unavailable due to PersistentVolumeClaim with ReadWriteOncePod access mode already "
    "in-use by another pod"
)


def _reject(context: PluginContext) -> Rejections:
    demand = context.shape.volumes
    if not demand.exclusive:
        return
    volumes = context.volumes or VolumeAssignments(context.snapshot)
    if volumes.has_conflict(demand):
        yield IN_USE, np.ones(len(context.snapshot), bool)


def _suggest_cure(context: PluginContext, nodes: BoolArray) -> str:
    names = ", ".join(key.name for key in context.shape.volumes.exclusive)
    return f"end the pod that uses claim {names}, which is ReadWriteOncePod"


VOLUME_RESTRICTIONS: Plugin = Plugin(
    "VolumeRestrictions",
    filter=Filter(
        reject=_reject,
        suggest_cure=_suggest_cure,
        depends_on=FilterDependency.CLAIMS,
        wakes_on=CAPACITY_EVENTS,
        is_modelled=True,
    ),
)
