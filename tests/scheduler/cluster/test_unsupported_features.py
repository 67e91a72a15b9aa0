"""What is not supported yet is noticed; what is only a wish is not."""

from __future__ import annotations

import pytest

from phalanx.api.core import (
    Affinity,
    Container,
    ContainerPort,
    NodeAffinity,
    PodAffinity,
    PodResourceClaim,
    PodSpec,
    PodVolume,
    TopologySpreadConstraint,
)
from phalanx.scheduler.cluster.pod_shape import UNSUPPORTED_FEATURES, find_unsupported_feature

PODS = [
    (PodSpec(volumes=(PodVolume("v", {"claimName": "c"}),)), "volume claims"),
    (PodSpec(volumes=(PodVolume("v", None, {"spec": {}}),)), "volume claims"),
    (PodSpec(resource_claims=(PodResourceClaim("c"),)), "resource claims"),
]


@pytest.mark.parametrize(("spec", "what"), PODS)
def test_a_pod_that_asks_for_it_is_told_its_name(spec: PodSpec, what: str) -> None:
    assert find_unsupported_feature(spec) == what


@pytest.mark.parametrize(
    "spec",
    [
        PodSpec(),
        PodSpec(affinity=Affinity(NodeAffinity(), PodAffinity(), PodAffinity())),
        PodSpec(topology_spread_constraints=(TopologySpreadConstraint("zone", "ScheduleAnyway"),)),
        PodSpec(containers=(Container(ports=(ContainerPort(container_port=80),)),)),
        PodSpec(volumes=(PodVolume("scratch"),)),
    ],
)
def test_wishes_and_ordinary_things_are_not_refused(spec: PodSpec) -> None:
    assert find_unsupported_feature(spec) == ""


def test_every_row_has_a_case_here() -> None:
    assert {row.name for row in UNSUPPORTED_FEATURES} == {what for _, what in PODS}
