"""Feature gates: what can be switched off, by the names that Kubernetes gives it.

A gate that is off is off both ways: its fields are dropped from what is written (`gatedfields.py`),
its kinds are not served, and nobody acts on what is stored; nothing stored is lost, and all of it
counts again when the gate is on again. Gates that others need come first in the table.

    gated(parse("GenericWorkload=false")).is_on("WorkloadWithJob")    # False: it needs that one

A gate that nobody mentions follows those that it needs; one that is asked for while another that it
needs is off is an error, as it is for Kubernetes.
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
    """Gates that cannot be set so. The text says why in one sentence."""


@dataclass(frozen=True, slots=True)
class FeatureGate:
    """One switch: whether it is on if nobody says otherwise, what it needs, how mature it is."""

    name: str
    requires: tuple[str, ...] = ()
    stage: str = "ALPHA"
    is_on_by_default: bool = True


#: Of the deprecated ones Kubernetes has made parts of others; here they can still be switched off.
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

#: Names that are no more, and the gates that they are now.
RENAMED_GATES: Mapping[str, str] = {
    "DelayedPreemption": WORKLOAD_AWARE_PREEMPTION,
    "GenericWorkloadPodGroup": GENERIC_WORKLOAD,
}

#: Resources that are served only while a gate is on, in every version.
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
    """The gates that are on. One of them never changes; its equal is only itself."""

    enabled: frozenset[str]

    def is_enabled(self, name: str) -> bool:
        """Whether a gate is on."""
        return name in self.enabled

    def filter_served(self, kinds: Iterable[Kind]) -> list[Kind]:
        """Those of some kinds that are to be served."""
        return [
            kind for kind in kinds if RESOURCE_GATES.get(kind.resource) in (None, *self.enabled)
        ]

    def states(self) -> list[tuple[str, str, bool]]:
        """All that there are: name, stage, and whether it is on."""
        return [
            (name, gate.stage, self.is_enabled(name))
            for name, gate in sorted(_GATES_BY_NAME.items())
        ]


def resolve_gates(overrides: Mapping[str, bool]) -> FeatureGates:
    """The gates, given those that somebody sets, by any of their names. Raises BadGates."""
    said = {_find_gate(name).name: is_on for name, is_on in overrides.items()}
    on: dict[str, None] = {}
    for gate in FEATURE_GATES:
        missing = [name for name in gate.requires if name not in on]
        if missing and said.get(gate.name):
            raise BadFeatureGates(
                f"{gate.name} is enabled, but depends on features that are disabled: "
                f"[{' '.join(missing)}]"
            )
        if said.get(gate.name, gate.is_on_by_default) and not missing:
            on[gate.name] = None
    return FeatureGates(frozenset(on))


def deprecation_warnings(names: Iterable[str]) -> list[str]:
    """What to tell somebody who sets gates of these names."""
    told: list[str] = []
    for name in names:
        current = _find_gate(name)
        if current.name != name:
            told.append(f"feature gate {name} is now called {current.name}")
        if current.stage == "DEPRECATED":
            told.append(f"feature gate {current.name} is deprecated: set {GENERIC_WORKLOAD}")
    return told


def parse_gates(text: str) -> dict[str, bool]:
    """`A=true,B=false`: what somebody sets. Raises BadGates."""
    wanted: dict[str, bool] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, equals, value = part.partition("=")
        if not equals:
            raise BadFeatureGates(f"missing bool value for feature gate {name}; write {name}=true")
        wanted[name.strip()] = _parse_bool(name, value.strip())
    return wanted


def _find_gate(name: str) -> FeatureGate:
    current = RENAMED_GATES.get(name, name)
    if current not in _GATES_BY_NAME:
        raise BadFeatureGates(
            f"unrecognized feature gate: {name}; known are {', '.join(_GATES_BY_NAME)}"
        )
    return _GATES_BY_NAME[current]


def _parse_bool(name: str, value: str) -> bool:
    if value not in (*_TRUE, *_FALSE):
        raise BadFeatureGates(f"invalid value of feature gate {name}={value}; write true or false")
    return value in _TRUE


#: What is on if nobody says otherwise.
DEFAULT_GATES = resolve_gates({})
