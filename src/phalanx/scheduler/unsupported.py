"""What pods and groups may ask for that this scheduler does not give yet.

Such a pod is refused with a reason and never placed as if it had not asked. A row goes when the
feature comes. Preferences (soft terms) are not listed: leaving them out of account is allowed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from phalanx.api.core import PodAffinity, PodSpec
from phalanx.api.scheduling import PodGroupSpec


class PodRow(NamedTuple):
    """Whether a pod asks for it, and how it is called."""

    asked: Callable[[PodSpec], bool]
    what: str


class GroupRow(NamedTuple):
    """Whether a group asks for it, and how it is called."""

    asked: Callable[[PodGroupSpec], bool]
    what: str


def _required(terms: PodAffinity | None) -> bool:
    return bool(terms and terms.required_during_scheduling_ignored_during_execution)


def _node_affinity(spec: PodSpec) -> bool:
    terms = spec.affinity and spec.affinity.node_affinity
    return bool(terms and terms.required_during_scheduling_ignored_during_execution)


def _affinity(spec: PodSpec) -> bool:
    return bool(spec.affinity and _required(spec.affinity.pod_affinity))


def _anti_affinity(spec: PodSpec) -> bool:
    return bool(spec.affinity and _required(spec.affinity.pod_anti_affinity))


def _spread(spec: PodSpec) -> bool:
    return any(c.when_unsatisfiable == "DoNotSchedule" for c in spec.topology_spread_constraints)


def _host_ports(spec: PodSpec) -> bool:
    containers = (*spec.init_containers, *spec.containers)
    return any(port.host_port for container in containers for port in container.ports)


def _volume_claims(spec: PodSpec) -> bool:
    return any(v.persistent_volume_claim or v.ephemeral for v in spec.volumes)


UNSUPPORTED = (
    PodRow(_node_affinity, "required node affinity"),
    PodRow(_affinity, "required inter-pod affinity"),
    PodRow(_anti_affinity, "required inter-pod anti-affinity"),
    PodRow(_spread, "required topology spread"),
    PodRow(_host_ports, "host ports"),
    PodRow(_volume_claims, "volume claims"),
    PodRow(lambda spec: bool(spec.resource_claims), "resource claims"),
)

UNSUPPORTED_GROUPS = (
    GroupRow(
        lambda spec: bool(spec.scheduling_constraints and spec.scheduling_constraints.topology),
        "a topology constraint",
    ),
    GroupRow(lambda spec: bool(spec.parent_composite_pod_group_name), "a parent composite group"),
)


def unsupported(spec: PodSpec) -> str:
    """The first thing that a pod asks for and does not get, or nothing."""
    return next((row.what for row in UNSUPPORTED if row.asked(spec)), "")


def unsupported_of_group(spec: PodGroupSpec) -> str:
    """The first thing that a group asks for and does not get, or nothing."""
    return next((row.what for row in UNSUPPORTED_GROUPS if row.asked(spec)), "")
