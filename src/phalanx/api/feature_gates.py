"""Feature gates, by the names that Kubernetes gives them.

While a gate is off, its fields are dropped from writes (`gated_fields.py`), its kinds are not
served, and no component acts on stored objects of it. Stored data is kept and takes effect again
when the gate is on again.

    resolve_gates(parse_gates("GenericWorkload=false")).is_enabled("WorkloadWithJob")     # False

A gate that is not set follows the gates that it requires. Enabling a gate while one that it
requires is off is an error, as in Kubernetes. In the table, required gates come first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from phalanx.api.kinds import Kind

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
            kind for kind in kinds if RESOURCE_GATES.get(kind.resource) in (None, *self.enabled)
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
