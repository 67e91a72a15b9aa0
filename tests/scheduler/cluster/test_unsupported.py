"""What is not supported yet is noticed; what is only a wish is not."""

from __future__ import annotations

import pytest

from phalanx.api.core import (
    Affinity,
    Container,
    ContainerPort,
    NodeAffinity,
    PodAffinity,
    PodClaim,
    PodSpec,
    PodVolume,
    SpreadConstraint,
)
from phalanx.scheduler.cluster.unsupported import UNSUPPORTED, unsupported

PODS = [
    (PodSpec(volumes=(PodVolume("v", {"claimName": "c"}),)), "volume claims"),
    (PodSpec(volumes=(PodVolume("v", None, {"spec": {}}),)), "volume claims"),
    (PodSpec(resource_claims=(PodClaim("c"),)), "resource claims"),
]


@pytest.mark.parametrize(("spec", "what"), PODS)
def test_a_pod_that_asks_for_it_is_told_its_name(spec: PodSpec, what: str) -> None:
    assert unsupported(spec) == what


@pytest.mark.parametrize(
    "spec",
    [
        PodSpec(),
        PodSpec(affinity=Affinity(NodeAffinity(), PodAffinity(), PodAffinity())),
        PodSpec(topology_spread_constraints=(SpreadConstraint("zone", "ScheduleAnyway"),)),
        PodSpec(containers=(Container(ports=(ContainerPort(container_port=80),)),)),
        PodSpec(volumes=(PodVolume("scratch"),)),
    ],
)
def test_wishes_and_ordinary_things_are_not_refused(spec: PodSpec) -> None:
    assert unsupported(spec) == ""


def test_every_row_has_a_case_here() -> None:
    assert {row.what for row in UNSUPPORTED} == {what for _, what in PODS}
