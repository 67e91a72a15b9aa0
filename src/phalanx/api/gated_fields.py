"""Fields that are dropped from writes while their feature gate is off.

A field stays where the stored object already has it. Runs before validation, so dropped fields are
not validated. A row names a struct and applies wherever that struct is embedded. The client gets a
warning where dropping a field means that pods are not scheduled together.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

from phalanx.api import feature_gates as names
from phalanx.api.feature_gates import FeatureGates
from phalanx.api.field_tree import FieldTree, build_field_tree
from phalanx.api.wire import Object


@dataclass(frozen=True, slots=True)
class GatedField:
    """A field of a struct, and the gate that guards it.

    The field stays where the stored object has it, or has `used_with`. `consequence` completes the
    warning for the client.
    """

    gate: str
    struct: str
    field: str
    used_with: str = ""
    consequence: str = ""


def _in_all_versions(gate: str, struct: str, field: str, used_with: str = "") -> list[GatedField]:
    versions = ("v1beta1", "v1alpha3")
    return [
        GatedField(gate, f"scheduling.{v}.{struct}", field, used_with=used_with) for v in versions
    ]


_NOT_SCHEDULED_TOGETHER, _NO_GANG = "pods are scheduled one by one", "no gang is formed"

GATED_FIELDS = (
    GatedField(
        names.GENERIC_WORKLOAD,
        "core.v1.PodSpec",
        "schedulingGroup",
        consequence=_NOT_SCHEDULED_TOGETHER,
    ),
    GatedField(
        names.WORKLOAD_WITH_JOB,
        "batch.v1.JobSpec",
        "scheduling",
        consequence=_NOT_SCHEDULED_TOGETHER,
    ),
    GatedField(names.JOB_GANG_POLICY, "batch.v1.JobSpec", "gangPolicy", consequence=_NO_GANG),
    *(
        GatedField(
            names.GENERIC_WORKLOAD, struct, "scheduling", consequence=_NOT_SCHEDULED_TOGETHER
        )
        for struct in ("jobset.v1alpha2.JobSetSpec", "leaderworkerset.v1.LeaderWorkerSetSpec")
    ),
    *_in_all_versions(names.TOPOLOGY_AWARE_SCHEDULING, "PodGroupTemplate", "schedulingConstraints"),
    *_in_all_versions(names.TOPOLOGY_AWARE_SCHEDULING, "PodGroupSpec", "schedulingConstraints"),
    *_in_all_versions(names.WORKLOAD_RESOURCE_CLAIMS, "PodGroupTemplate", "resourceClaims"),
    *_in_all_versions(names.WORKLOAD_RESOURCE_CLAIMS, "PodGroupSpec", "resourceClaims"),
    *_in_all_versions(
        names.WORKLOAD_RESOURCE_CLAIMS,
        "PodGroup",
        "status.resourceClaimStatuses",
        "spec.resourceClaims",
    ),
    *_in_all_versions(names.POD_GROUP_PREEMPTION_POLICY, "PodGroupTemplate", "preemptionPolicy"),
    *_in_all_versions(
        names.POD_GROUP_PREEMPTION_POLICY, "CompositePodGroupTemplate", "preemptionPolicy"
    ),
    *_in_all_versions(names.POD_GROUP_PREEMPTION_POLICY, "PodGroupSpec", "preemptionPolicy"),
    GatedField(
        names.POD_GROUP_PREEMPTION_POLICY,
        "scheduling.v1alpha3.CompositePodGroupSpec",
        "preemptionPolicy",
    ),
    *_in_all_versions(names.COMPOSITE_POD_GROUP, "WorkloadSpec", "compositePodGroupTemplates"),
    *_in_all_versions(
        names.COMPOSITE_POD_GROUP, "CompositePodGroupTemplate", "compositePodGroupTemplates"
    ),
    *_in_all_versions(names.COMPOSITE_POD_GROUP, "PodGroupSpec", "parentCompositePodGroupName"),
)


def drop_disabled(gates: FeatureGates, struct: str, new: Object, old: Object | None) -> list[str]:
    """Drop fields of disabled gates in place; return warnings for the client."""
    tree = _disabled_fields(gates, struct)
    return _drop_fields(tree, new, old or {}, "") if tree is not None else []


@cache
def _disabled_fields(gates: FeatureGates, struct: str) -> FieldTree[GatedField] | None:
    rows: dict[str, list[tuple[tuple[str, ...], GatedField]]] = {}
    for row in GATED_FIELDS:
        if not gates.is_enabled(row.gate):
            rows.setdefault(row.struct, []).append(((), row))
    return build_field_tree(struct, rows) if rows else None


def _drop_fields(tree: FieldTree[GatedField], new: Any, old: Any, path: str) -> list[str]:
    warnings: list[str] = []
    if isinstance(new, dict):
        before = old if isinstance(old, dict) else {}
        for row in tree.rows:
            if not _has_field(before, row.used_with or row.field):
                warnings += _warnings(row, new, path)
                _remove_field(new, row.field)
        for step, inner in tree.fields.items():
            if step in new:
                warnings += _drop_fields(inner, new[step], before.get(step), f"{path}.{step}")
    elif isinstance(new, list) and tree.item is not None:
        for at, item in enumerate(new):
            warnings += _drop_fields(tree.item, item, _find_by_name(item, old), f"{path}[{at}]")
    return warnings


def _warnings(row: GatedField, struct: Object, path: str) -> list[str]:
    if not row.consequence or not _has_field(struct, row.field):
        return []
    field = f"{path}.{row.field}".removeprefix(".")
    return [f"{field} is dropped: without the feature gate {row.gate} {row.consequence}"]


def _find_by_name(item: Any, items: Any) -> Any:
    """Return the stored item of the same name."""
    name = item.get("name") if isinstance(item, dict) else None
    return next((one for one in items or () if one.get("name") == name), None)


def _has_field(struct: Object, path: str) -> bool:
    value: Any = struct
    for step in path.split("."):
        value = value.get(step) if isinstance(value, dict) else None
    return value is not None


def _remove_field(struct: Object, path: str) -> None:
    *above, last = path.split(".")
    value: Any = struct
    for step in above:
        value = value.get(step, {})
    value.pop(last, None)
