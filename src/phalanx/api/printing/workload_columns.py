"""Columns of `kubectl get` for Deployments, ReplicaSets, DaemonSets and StatefulSets."""

from __future__ import annotations

from collections.abc import Mapping

from phalanx.api.printing.cells import (
    AGE_COLUMN,
    NAME_COLUMN,
    Column,
    field_at,
    item_list,
    label_selector,
    labels,
)
from phalanx.api.wire import Object


def container_columns(pod_spec: str) -> tuple[Column, ...]:
    """Return the columns of a pod template."""
    return (
        Column("Containers", item_list(f"{pod_spec}.containers", "name"), priority=1),
        Column("Images", item_list(f"{pod_spec}.containers", "image"), priority=1),
    )


def _ready_replicas(obj: Object, now: float) -> str:
    ready = obj.get("status", {}).get("readyReplicas", 0)
    return f"{ready}/{obj.get('spec', {}).get('replicas', 0)}"


_TEMPLATE_COLUMNS = container_columns("spec.template.spec")
_SELECTOR_COLUMN = Column("Selector", label_selector("spec.selector"), priority=1)
_REPLICA_COLUMNS = (
    NAME_COLUMN,
    Column("Desired", field_at("spec.replicas", 0), "integer"),
    Column("Current", field_at("status.replicas", 0), "integer"),
    Column("Ready", field_at("status.readyReplicas", 0), "integer"),
    AGE_COLUMN,
    *_TEMPLATE_COLUMNS,
)

WORKLOAD_COLUMNS: Mapping[str, tuple[Column, ...]] = {
    "DaemonSet": (
        NAME_COLUMN,
        Column("Desired", field_at("status.desiredNumberScheduled", 0), "integer"),
        Column("Current", field_at("status.currentNumberScheduled", 0), "integer"),
        Column("Ready", field_at("status.numberReady", 0), "integer"),
        Column("Up-to-date", field_at("status.updatedNumberScheduled", 0), "integer"),
        Column("Available", field_at("status.numberAvailable", 0), "integer"),
        Column("Node Selector", labels("spec.template.spec.nodeSelector")),
        AGE_COLUMN,
        *_TEMPLATE_COLUMNS,
        _SELECTOR_COLUMN,
    ),
    "Deployment": (
        NAME_COLUMN,
        Column("Ready", _ready_replicas),
        Column("Up-to-date", field_at("status.updatedReplicas", 0), "integer"),
        Column("Available", field_at("status.availableReplicas", 0), "integer"),
        AGE_COLUMN,
        *_TEMPLATE_COLUMNS,
        _SELECTOR_COLUMN,
    ),
    "ReplicaSet": (*_REPLICA_COLUMNS, _SELECTOR_COLUMN),
    "ReplicationController": (
        *_REPLICA_COLUMNS,
        Column("Selector", labels("spec.selector"), priority=1),
    ),
    "StatefulSet": (NAME_COLUMN, Column("Ready", _ready_replicas), AGE_COLUMN, *_TEMPLATE_COLUMNS),
}
