"""The score of VolumeBinding: emptier storage is preferred."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from phalanx.api.feature_gates import parse_gates, resolve_gates
from phalanx.scheduler.cycle import decide
from phalanx.scheduler.decision import Placed
from phalanx.scheduler.placement.claim_placement import resolve_volumes
from phalanx.scheduler.plugins.arguments import UtilizationShapePoint
from phalanx.scheduler.plugins.plugin_context import initial_context
from phalanx.scheduler.plugins.volume_binding import (
    DEFAULT_SHAPE,
    VOLUME_BINDING,
    VolumeBindingArgs,
    build_volume_score,
)
from phalanx.scheduler.policy import DEFAULT_POLICY, DEFAULT_PROFILES, apply_feature_gates
from phalanx.scheduler.queue.scheduler_state import ClusterObjects, load_state
from tests.scheduler.volume_builders import (
    HOST,
    claiming_pod,
    csi_driver,
    host,
    storage_capacity,
    storage_class,
    volume,
    volume_claim,
)

DYNAMIC = storage_class(provisioner="disk.example")


def scores(volumes: Sequence[Any], *claims: str, shape: Any = DEFAULT_SHAPE) -> list[int]:
    """The scores of nodes n1, n2 and n3 for a pod with these claims of 5Gi."""
    nodes = [host("n1"), host("n2"), host("n3")]
    own = [volume_claim(name) for name in claims]
    objects = ClusterObjects(nodes, [], [claiming_pod("p", *claims)], volumes=[*volumes, *own])
    state = load_state(objects)
    entity, snapshot = state.pop(0.0), state.cache.snapshot()
    assert entity is not None
    (member,) = resolve_volumes(entity, snapshot, DEFAULT_POLICY).members
    context = initial_context(snapshot, member.shape)
    score = build_volume_score(shape)
    found: list[int] = score.score_nodes(context, context.candidates).tolist()
    return found


def placed_on(volumes: Sequence[Any], policy: Any = DEFAULT_POLICY) -> str:
    nodes = [host("n1"), host("n2"), host("n3")]
    pods = [claiming_pod("p", "data")]
    objects = ClusterObjects(nodes, [], pods, volumes=[*volumes, volume_claim("data")])
    state = load_state(objects)
    entity = state.pop(0.0)
    assert entity is not None
    decision = decide(entity, state.cache.snapshot(), policy)
    assert isinstance(decision, Placed)
    return decision.bindings[0].node


STATIC = [
    storage_class(),
    volume("a", "10Gi", nodes=["n1"]),
    volume("b", "20Gi", nodes=["n2"]),
    volume("c", "50Gi", nodes=["n2"]),
    volume("d", "8Gi", nodes=["n3"]),
]


def test_smallest_volume_of_each_node_counts() -> None:
    assert scores(STATIC, "data") == [50, 75, 38]
    assert placed_on(STATIC) == "n2"


def test_storage_capacity_counts_where_volumes_are_provisioned() -> None:
    capacities = [
        DYNAMIC,
        csi_driver(storageCapacity=True),
        storage_capacity("a", "10Gi", {HOST: "n1"}),
        storage_capacity("b", "100Gi", {HOST: "n2"}),
        storage_capacity("c", "1Gi", {HOST: "n3"}),
    ]
    assert scores(capacities, "data") == [50, 95, 0]
    assert scores(capacities, "data", "more") == [0, 90, 0]
    assert placed_on(capacities) == "n2"


def test_amounts_beyond_64_bits_count_as_very_large() -> None:
    capacities = [
        DYNAMIC,
        csi_driver(storageCapacity=True),
        storage_capacity("a", "10Gi", {HOST: "n1"}),
        storage_capacity("b", "1e40", {HOST: "n2"}),
    ]
    assert scores(capacities, "data") == [50, 100, 0]
    static = [storage_class(), volume("a", "10Gi", nodes=["n1"]), volume("b", "1e40", nodes=["n2"])]
    assert scores(static, "data") == [50, 100, 0]


def test_drivers_that_publish_no_capacity_have_no_score() -> None:
    assert scores([DYNAMIC, csi_driver()], "data") == [0, 0, 0]


@pytest.mark.parametrize(("at_full", "node"), [(10, "n3"), (0, "n1")])
def test_shape_of_the_arguments_decides(at_full: int, node: str) -> None:
    points = (UtilizationShapePoint(0, 0), UtilizationShapePoint(100, at_full))
    plugin = VOLUME_BINDING.configure(VolumeBindingArgs(shape=points))
    assert plugin.score is not None
    scored = [one._replace(score=plugin.score) if one.name == plugin.name else one
              for one in DEFAULT_POLICY.scores]  # fmt: skip
    assert placed_on(STATIC, replace(DEFAULT_POLICY, scores=tuple(scored))) == node


def test_gate_turns_the_score_off() -> None:
    gates = resolve_gates(parse_gates("StorageCapacityScoring=false"))
    (policy,) = apply_feature_gates(gates, DEFAULT_PROFILES).policies.values()
    assert placed_on(STATIC, policy) == "n1"
