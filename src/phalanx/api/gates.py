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
TOPOLOGY_AWARE = "TopologyAwareWorkloadScheduling"
WORKLOAD_WITH_JOB = "WorkloadWithJob"
COMPOSITE_POD_GROUP = "CompositePodGroup"
RESOURCE_CLAIMS = "DRAWorkloadResourceClaims"
PREEMPTION_POLICY = "PodGroupPreemptionPolicy"
JOB_GANG_POLICY = "JobGangPolicy"
JOB_GANG_INFERENCE = "JobGangInference"
JOB_RELEASE_SCHEDULING = "JobReleaseScheduling"


class BadGates(ValueError):
    """Gates that cannot be set so. The text says why in one sentence."""


@dataclass(frozen=True, slots=True)
class Gate:
    """One switch: whether it is on if nobody says otherwise, what it needs, how mature it is."""

    name: str
    needs: tuple[str, ...] = ()
    stage: str = "ALPHA"
    is_on: bool = True


#: Of the deprecated ones Kubernetes has made parts of others; here they can still be switched off.
GATES = (
    Gate(GENERIC_WORKLOAD, stage="BETA"),
    Gate(GANG_SCHEDULING, (GENERIC_WORKLOAD,), "DEPRECATED"),
    Gate(WORKLOAD_AWARE_PREEMPTION, (GENERIC_WORKLOAD,), "DEPRECATED"),
    Gate(TOPOLOGY_AWARE, (GENERIC_WORKLOAD,)),
    Gate(WORKLOAD_WITH_JOB, (GENERIC_WORKLOAD,)),
    Gate(COMPOSITE_POD_GROUP, (GENERIC_WORKLOAD, TOPOLOGY_AWARE)),
    Gate(RESOURCE_CLAIMS, (GENERIC_WORKLOAD,), "BETA"),
    Gate(PREEMPTION_POLICY, (GENERIC_WORKLOAD,)),
    Gate(JOB_GANG_POLICY, (GENERIC_WORKLOAD, GANG_SCHEDULING)),
    Gate(JOB_GANG_INFERENCE, (GENERIC_WORKLOAD, GANG_SCHEDULING, WORKLOAD_WITH_JOB), is_on=False),
    Gate(JOB_RELEASE_SCHEDULING, (GENERIC_WORKLOAD, WORKLOAD_WITH_JOB), is_on=False),
)

#: Names that are no more, and the gates that they are now.
OLD_NAMES: Mapping[str, str] = {
    "DelayedPreemption": WORKLOAD_AWARE_PREEMPTION,
    "GenericWorkloadPodGroup": GENERIC_WORKLOAD,
}

#: Resources that are served only while a gate is on, in every version.
SERVED_BY: Mapping[str, str] = {
    "workloads.scheduling.k8s.io": GENERIC_WORKLOAD,
    "podgroups.scheduling.k8s.io": GENERIC_WORKLOAD,
    "compositepodgroups.scheduling.k8s.io": COMPOSITE_POD_GROUP,
}

_KNOWN = {gate.name: gate for gate in GATES}
_TRUE = ("1", "t", "T", "true", "TRUE", "True")
_FALSE = ("0", "f", "F", "false", "FALSE", "False")


@dataclass(frozen=True, slots=True, eq=False)
class Gates:
    """The gates that are on. One of them never changes; its equal is only itself."""

    on: frozenset[str]

    def is_on(self, name: str) -> bool:
        """Whether a gate is on."""
        return name in self.on

    def served(self, kinds: Iterable[Kind]) -> list[Kind]:
        """Those of some kinds that are to be served."""
        return [kind for kind in kinds if SERVED_BY.get(kind.resource) in (None, *self.on)]

    def states(self) -> list[tuple[str, str, bool]]:
        """All that there are: name, stage, and whether it is on."""
        return [(name, gate.stage, self.is_on(name)) for name, gate in sorted(_KNOWN.items())]


def gated(wanted: Mapping[str, bool]) -> Gates:
    """The gates, given those that somebody sets, by any of their names. Raises BadGates."""
    said = {_gate(name).name: is_on for name, is_on in wanted.items()}
    on: dict[str, None] = {}
    for gate in GATES:
        missing = [name for name in gate.needs if name not in on]
        if missing and said.get(gate.name):
            raise BadGates(
                f"{gate.name} is enabled, but depends on features that are disabled: "
                f"[{' '.join(missing)}]"
            )
        if said.get(gate.name, gate.is_on) and not missing:
            on[gate.name] = None
    return Gates(frozenset(on))


def advice(names: Iterable[str]) -> list[str]:
    """What to tell somebody who sets gates of these names."""
    told: list[str] = []
    for name in names:
        current = _gate(name)
        if current.name != name:
            told.append(f"feature gate {name} is now called {current.name}")
        if current.stage == "DEPRECATED":
            told.append(f"feature gate {current.name} is deprecated: set {GENERIC_WORKLOAD}")
    return told


def parse(text: str) -> dict[str, bool]:
    """`A=true,B=false`: what somebody sets. Raises BadGates."""
    wanted: dict[str, bool] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, equals, value = part.partition("=")
        if not equals:
            raise BadGates(f"missing bool value for feature gate {name}; write {name}=true")
        wanted[name.strip()] = _truth(name, value.strip())
    return wanted


def _gate(name: str) -> Gate:
    current = OLD_NAMES.get(name, name)
    if current not in _KNOWN:
        raise BadGates(f"unrecognized feature gate: {name}; known are {', '.join(_KNOWN)}")
    return _KNOWN[current]


def _truth(name: str, value: str) -> bool:
    if value not in (*_TRUE, *_FALSE):
        raise BadGates(f"invalid value of feature gate {name}={value}; write true or false")
    return value in _TRUE


#: What is on if nobody says otherwise.
DEFAULT = gated({})
