"""Pods that use an unsupported feature are recognized; others are not."""

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
]


@pytest.mark.parametrize(("spec", "what"), PODS)
def test_the_message_names_the_unsupported_feature(spec: PodSpec, what: str) -> None:
    assert find_unsupported_feature(spec) == what


@pytest.mark.parametrize(
    "spec",
    [
        PodSpec(),
        PodSpec(affinity=Affinity(NodeAffinity(), PodAffinity(), PodAffinity())),
        PodSpec(topology_spread_constraints=(TopologySpreadConstraint("zone", "ScheduleAnyway"),)),
        PodSpec(containers=(Container(ports=(ContainerPort(container_port=80),)),)),
        PodSpec(volumes=(PodVolume("scratch"),)),
        PodSpec(resource_claims=(PodResourceClaim("c"),)),
    ],
)
def test_supported_features_are_not_rejected(spec: PodSpec) -> None:
    assert find_unsupported_feature(spec) == ""


def test_every_unsupported_feature_has_a_case() -> None:
    assert {row.name for row in UNSUPPORTED_FEATURES} == {what for _, what in PODS}
