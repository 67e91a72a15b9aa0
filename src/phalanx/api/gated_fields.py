"""Fields that are dropped from what is written while their gate is off.

Not from an object that already has them: what was stored while the gate was on stays. Runs before
rules, so that what is dropped is not judged. A row is about a struct and holds wherever it stands.
Whoever asks for pods to be scheduled together, where they will not be, is told so.
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
    """A field of a struct, and the gate without which it goes.

    It stays where the old object has it, or has that which tells that it is used. `loss` is what
    its writer is told: how things are without it.
    """

    gate: str
    struct: str
    field: str
    used_with: str = ""
    consequence: str = ""


def _in_all_versions(gate: str, struct: str, field: str, used_with: str = "") -> list[GatedField]:
    versions = ("v1beta1", "v1alpha3")
    return [GatedField(gate, f"scheduling.{v}.{struct}", field, used_with) for v in versions]


_NOT_SCHEDULED_TOGETHER, _NO_GANG = "pods are scheduled one by one", "it makes no gang"

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
    """Drop in place what is not to be written to an object of a struct; what to tell its writer."""
    site = _disabled_fields(gates, struct)
    return _drop_fields(site, new, old or {}, "") if site is not None else []


@cache
def _disabled_fields(gates: FeatureGates, struct: str) -> FieldTree[GatedField] | None:
    rows: dict[str, list[tuple[tuple[str, ...], GatedField]]] = {}
    for row in GATED_FIELDS:
        if not gates.is_enabled(row.gate):
            rows.setdefault(row.struct, []).append(((), row))
    return build_field_tree(struct, rows) if rows else None


def _drop_fields(site: FieldTree[GatedField], new: Any, old: Any, path: str) -> list[str]:
    told: list[str] = []
    if isinstance(new, dict):
        before = old if isinstance(old, dict) else {}
        for row in site.rows:
            if not _has_field(before, row.used_with or row.field):
                told += _warnings(row, new, path)
                _remove_field(new, row.field)
        for step, inner in site.fields.items():
            if step in new:
                told += _drop_fields(inner, new[step], before.get(step), f"{path}.{step}")
    elif isinstance(new, list) and site.item is not None:
        for at, item in enumerate(new):
            told += _drop_fields(site.item, item, _find_by_name(item, old), f"{path}[{at}]")
    return told


def _warnings(row: GatedField, struct: Object, path: str) -> list[str]:
    if not row.consequence or not _has_field(struct, row.field):
        return []
    field = f"{path}.{row.field}".removeprefix(".")
    return [f"{field} is dropped: without the feature gate {row.gate} {row.consequence}"]


def _find_by_name(item: Any, items: Any) -> Any:
    """The old item that a new one takes the place of."""
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
