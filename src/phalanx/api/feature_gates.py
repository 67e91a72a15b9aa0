"""Feature gates, by the names that Kubernetes gives them, and the fields that they guard.

While a gate is off, its fields are dropped from writes (`drop_disabled`), its kinds are not served,
and no component acts on stored objects of it. Stored data is kept and takes effect again when the
gate is on again.

    resolve_gates(parse_gates("GenericWorkload=false")).is_enabled("WorkloadWithJob")     # False

A gate that is not set follows the gates that it requires. Enabling a gate while one that it
requires is off is an error, as in Kubernetes. In the table, required gates come first.

A guarded field stays where the stored object already has it. Fields are dropped before validation,
so they are not validated. A row of `GATED_FIELDS` names a struct and applies wherever that struct
is embedded. The client gets a warning where dropping a field means that pods are not scheduled
together.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from phalanx.api.kinds import Kind
from phalanx.api.schema import FieldTree, build_field_tree
from phalanx.api.wire import Object

GENERIC_WORKLOAD = "GenericWorkload"
GANG_SCHEDULING = "GangScheduling"
WORKLOAD_AWARE_PREEMPTION = "WorkloadAwarePreemption"
TOPOLOGY_AWARE_SCHEDULING = "TopologyAwareWorkloadScheduling"
WORKLOAD_WITH_JOB = "WorkloadWithJob"
COMPOSITE_POD_GROUP = "CompositePodGroup"
WORKLOAD_RESOURCE_CLAIMS = "DRAWorkloadResourceClaims"
POD_GROUP_PREEMPTION_POLICY = "PodGroupPreemptionPolicy"
JOB_GANG_POLICY = "JobGangPolicy"
JOB_GANG_INFERENCE = "JobGangInference"
JOB_RELEASE_SCHEDULING = "JobReleaseScheduling"
JOB_IGNORE_DISRUPTIONS = "JobIgnoreDisruptions"
STORAGE_CAPACITY_SCORING = "StorageCapacityScoring"
GROUP_BINDING = "GroupBinding"


class BadFeatureGates(ValueError):
    """The gates cannot be set like this; the message says why."""


@dataclass(frozen=True, slots=True)
class FeatureGate:
    """One gate: its default, the gates that it requires, its stage."""

    name: str
    requires: tuple[str, ...] = ()
    stage: str = "ALPHA"
    is_on_by_default: bool = True


#: Kubernetes has merged the deprecated gates into others; here they can still be switched off.
FEATURE_GATES = (
    FeatureGate(GENERIC_WORKLOAD, stage="BETA"),
    FeatureGate(GANG_SCHEDULING, (GENERIC_WORKLOAD,), "DEPRECATED"),
    FeatureGate(WORKLOAD_AWARE_PREEMPTION, (GENERIC_WORKLOAD,), "DEPRECATED"),
    FeatureGate(TOPOLOGY_AWARE_SCHEDULING, (GENERIC_WORKLOAD,)),
    FeatureGate(WORKLOAD_WITH_JOB, (GENERIC_WORKLOAD,)),
    FeatureGate(COMPOSITE_POD_GROUP, (GENERIC_WORKLOAD, TOPOLOGY_AWARE_SCHEDULING)),
    FeatureGate(WORKLOAD_RESOURCE_CLAIMS, (GENERIC_WORKLOAD,), "BETA"),
    FeatureGate(POD_GROUP_PREEMPTION_POLICY, (GENERIC_WORKLOAD,)),
    FeatureGate(JOB_GANG_POLICY, (GENERIC_WORKLOAD, GANG_SCHEDULING)),
    FeatureGate(
        JOB_GANG_INFERENCE,
        (GENERIC_WORKLOAD, GANG_SCHEDULING, WORKLOAD_WITH_JOB),
        is_on_by_default=False,
    ),
    FeatureGate(
        JOB_RELEASE_SCHEDULING, (GENERIC_WORKLOAD, WORKLOAD_WITH_JOB), is_on_by_default=False
    ),
    FeatureGate(JOB_IGNORE_DISRUPTIONS, (GENERIC_WORKLOAD, WORKLOAD_WITH_JOB)),
    FeatureGate(STORAGE_CAPACITY_SCORING, stage="BETA"),
    # Ours: without it pods are bound and evicted one by one, as on a server that is not Phalanx.
    FeatureGate(GROUP_BINDING),
)

#: Former names of gates.
RENAMED_GATES: Mapping[str, str] = {
    "DelayedPreemption": WORKLOAD_AWARE_PREEMPTION,
    "GenericWorkloadPodGroup": GENERIC_WORKLOAD,
}

#: The gates of resources, for all their versions.
RESOURCE_GATES: Mapping[str, str] = {
    "workloads.scheduling.k8s.io": GENERIC_WORKLOAD,
    "podgroups.scheduling.k8s.io": GENERIC_WORKLOAD,
    "compositepodgroups.scheduling.k8s.io": COMPOSITE_POD_GROUP,
    "groupbindings.phalanx.dev": GROUP_BINDING,
    "groupevictions.phalanx.dev": GROUP_BINDING,
}

_GATES_BY_NAME = {gate.name: gate for gate in FEATURE_GATES}
_TRUE = ("1", "t", "T", "true", "TRUE", "True")
_FALSE = ("0", "f", "F", "false", "FALSE", "False")


@dataclass(frozen=True, slots=True, eq=False)
class FeatureGates:
    """The gates that are on. Immutable; compared by identity."""

    enabled: frozenset[str]

    def is_enabled(self, name: str) -> bool:
        """Whether a gate is on."""
        return name in self.enabled

    def filter_served(self, kinds: Iterable[Kind]) -> list[Kind]:
        """Return the kinds that are served with these gates."""
        return [
            kind
            for kind in kinds
            if (gate := RESOURCE_GATES.get(kind.resource)) is None or gate in self.enabled
        ]

    def states(self) -> list[tuple[str, str, bool]]:
        """Return name, stage and whether it is on, for every gate."""
        return [
            (name, gate.stage, self.is_enabled(name))
            for name, gate in sorted(_GATES_BY_NAME.items())
        ]


def resolve_gates(overrides: Mapping[str, bool]) -> FeatureGates:
    """Resolve explicit settings, by current or former name, to the gates that are on.

    Raises BadFeatureGates.
    """
    explicit = {_find_gate(name).name: is_on for name, is_on in overrides.items()}
    on: dict[str, None] = {}
    for gate in FEATURE_GATES:
        missing = [name for name in gate.requires if name not in on]
        if missing and explicit.get(gate.name):
            raise BadFeatureGates(
                f"{gate.name} is enabled, but depends on features that are disabled: "
                f"[{' '.join(missing)}]"
            )
        if explicit.get(gate.name, gate.is_on_by_default) and not missing:
            on[gate.name] = None
    return FeatureGates(frozenset(on))


def deprecation_warnings(names: Iterable[str]) -> list[str]:
    """Return warnings for renamed and deprecated gates among those that are set."""
    warnings: list[str] = []
    for name in names:
        current = _find_gate(name)
        if current.name != name:
            warnings.append(f"feature gate {name} is now called {current.name}")
        if current.stage == "DEPRECATED":
            warnings.append(f"feature gate {current.name} is deprecated: set {GENERIC_WORKLOAD}")
    return warnings


def parse_gates(text: str) -> dict[str, bool]:
    """Parse `A=true,B=false`. Raises BadFeatureGates."""
    gates: dict[str, bool] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, equals, value = part.partition("=")
        if not equals:
            raise BadFeatureGates(f"missing bool value for feature gate {name}; write {name}=true")
        if value.strip() not in (*_TRUE, *_FALSE):
            raise BadFeatureGates(
                f"invalid value of feature gate {name}={value.strip()}; write true or false"
            )
        gates[name.strip()] = value.strip() in _TRUE
    return gates


def _find_gate(name: str) -> FeatureGate:
    current = RENAMED_GATES.get(name, name)
    if current not in _GATES_BY_NAME:
        raise BadFeatureGates(
            f"unrecognized feature gate: {name}; available: {', '.join(_GATES_BY_NAME)}"
        )
    return _GATES_BY_NAME[current]


#: The gates without any explicit setting.
DEFAULT_GATES = resolve_gates({})


@dataclass(frozen=True, slots=True)
class GatedField:
    """A field of a struct, and the gate that guards it.

    The field stays where the stored object has it, or has `used_with`. `consequence` completes the
    warning for the client. With `ignored_value` the field is never dropped: this value of it has no
    effect without the gate, and the client is warned.
    """

    gate: str
    struct: str
    field: str
    used_with: str = ""
    consequence: str = ""
    ignored_value: str = ""


def _in_all_versions(
    gate: str, struct: str, field: str, *, used_with: str = ""
) -> list[GatedField]:
    versions = ("v1beta1", "v1alpha3")
    return [
        GatedField(gate, f"scheduling.{v}.{struct}", field, used_with=used_with) for v in versions
    ]


_NOT_SCHEDULED_TOGETHER, _NO_GANG = "pods are scheduled one by one", "no gang is formed"

GATED_FIELDS = (
    GatedField(
        GENERIC_WORKLOAD,
        "core.v1.PodSpec",
        "schedulingGroup",
        consequence=_NOT_SCHEDULED_TOGETHER,
    ),
    GatedField(
        WORKLOAD_WITH_JOB,
        "batch.v1.JobSpec",
        "scheduling",
        consequence=_NOT_SCHEDULED_TOGETHER,
    ),
    GatedField(JOB_GANG_POLICY, "batch.v1.JobSpec", "gangPolicy", consequence=_NO_GANG),
    GatedField(
        WORKLOAD_WITH_JOB,
        "batch.v1.JobSpec",
        "gangPolicy.policy",
        consequence=_NOT_SCHEDULED_TOGETHER,
        ignored_value="JobAsGang",
    ),
    *(
        GatedField(GENERIC_WORKLOAD, struct, "scheduling", consequence=_NOT_SCHEDULED_TOGETHER)
        for struct in ("jobset.v1alpha2.JobSetSpec", "leaderworkerset.v1.LeaderWorkerSetSpec")
    ),
    *_in_all_versions(TOPOLOGY_AWARE_SCHEDULING, "PodGroupTemplate", "schedulingConstraints"),
    *_in_all_versions(TOPOLOGY_AWARE_SCHEDULING, "PodGroupSpec", "schedulingConstraints"),
    *_in_all_versions(WORKLOAD_RESOURCE_CLAIMS, "PodGroupTemplate", "resourceClaims"),
    *_in_all_versions(WORKLOAD_RESOURCE_CLAIMS, "PodGroupSpec", "resourceClaims"),
    *_in_all_versions(
        WORKLOAD_RESOURCE_CLAIMS,
        "PodGroup",
        "status.resourceClaimStatuses",
        used_with="spec.resourceClaims",
    ),
    *_in_all_versions(POD_GROUP_PREEMPTION_POLICY, "PodGroupTemplate", "preemptionPolicy"),
    *_in_all_versions(POD_GROUP_PREEMPTION_POLICY, "CompositePodGroupTemplate", "preemptionPolicy"),
    *_in_all_versions(POD_GROUP_PREEMPTION_POLICY, "PodGroupSpec", "preemptionPolicy"),
    GatedField(
        POD_GROUP_PREEMPTION_POLICY,
        "scheduling.v1alpha3.CompositePodGroupSpec",
        "preemptionPolicy",
    ),
    *_in_all_versions(COMPOSITE_POD_GROUP, "WorkloadSpec", "compositePodGroupTemplates"),
    *_in_all_versions(
        COMPOSITE_POD_GROUP, "CompositePodGroupTemplate", "compositePodGroupTemplates"
    ),
    *_in_all_versions(COMPOSITE_POD_GROUP, "PodGroupSpec", "parentCompositePodGroupName"),
)


def drop_disabled(
    gates: FeatureGates, struct: str, new: Object, *, old: Object | None
) -> list[str]:
    """Drop fields of disabled gates in place; return warnings for the client."""
    tree = _disabled_fields(gates, struct)
    return _drop_fields(tree, new, old or {}, path="") if tree is not None else []


@cache
def _disabled_fields(gates: FeatureGates, struct: str) -> FieldTree[GatedField] | None:
    rows: dict[str, list[tuple[tuple[str, ...], GatedField]]] = {}
    for row in GATED_FIELDS:
        if not gates.is_enabled(row.gate):
            rows.setdefault(row.struct, []).append(((), row))
    return build_field_tree(struct, rows) if rows else None


def _drop_fields(tree: FieldTree[GatedField], new: Any, old: Any, *, path: str) -> list[str]:
    warnings: list[str] = []
    if isinstance(new, dict):
        before = old if isinstance(old, dict) else {}
        for row in tree.rows:
            if _find_field(before, row.used_with or row.field) is None:
                warnings += _warnings(row, new, path)
                if not row.ignored_value:
                    _remove_field(new, row.field)
        for step, inner in tree.fields.items():
            if step in new:
                warnings += _drop_fields(inner, new[step], before.get(step), path=f"{path}.{step}")
    elif isinstance(new, list) and tree.item is not None:
        for at, item in enumerate(new):
            name = item.get("name") if isinstance(item, dict) else None
            stored = next((one for one in old or () if one.get("name") == name), None)
            warnings += _drop_fields(tree.item, item, stored, path=f"{path}[{at}]")
    return warnings


def _warnings(row: GatedField, struct: Object, path: str) -> list[str]:
    value = _find_field(struct, row.field)
    if not row.consequence or value is None or row.ignored_value not in ("", value):
        return []
    field = f"{path}.{row.field}".removeprefix(".")
    effect = "ignored" if row.ignored_value else "dropped"
    return [f"{field} is {effect}: without the feature gate {row.gate} {row.consequence}"]


def _find_field(struct: Object, path: str) -> Any:
    value: Any = struct
    for step in path.split("."):
        value = value.get(step) if isinstance(value, dict) else None
    return value


def _remove_field(struct: Object, path: str) -> None:
    *above, last = path.split(".")
    value: Any = struct
    for step in above:
        value = value.get(step, {})
    value.pop(last, None)
