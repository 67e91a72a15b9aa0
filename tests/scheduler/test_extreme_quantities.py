"""Amounts that no node has: such pods wait, and other pods are not affected."""

from __future__ import annotations

import pytest

from phalanx.scheduler.cluster.pod_shape import shape_of
from phalanx.scheduler.cycle import decide
from phalanx.scheduler.decision import Placed, Waiting
from phalanx.scheduler.placement.node_scores import NodeScores
from phalanx.scheduler.policy import DEFAULT_POLICY
from tests.scheduler.builders import Amounts, alone, cluster, entity, gang, node, pod

GPU = "nvidia.com/gpu"
HUGE: list[Amounts] = [
    {"memory": "8Ei"},
    {"memory": "1e30"},
    {"memory": str(2**63 - 1)},
    {"cpu": "1e19"},
    {"cpu": str(2**63 - 1)},
    {GPU: "1e19"},
    {GPU: str(2**63 - 1)},
]
#: So many that the sum of their requests exceeds 64-bit integers.
MANY = 200


@pytest.mark.parametrize("requests", HUGE, ids=str)
@pytest.mark.parametrize("members", [1, 2])
def test_an_unsatisfiable_request_waits_and_names_the_resource(
    requests: Amounts, members: int
) -> None:
    busy = pod("busy", on="n", cpu="1", memory="1Gi", requests={GPU: "1"})
    snapshot = cluster([node("n", allocatable={GPU: "4"})], [busy]).snapshot()
    group = gang("g", members)
    decision = decide(
        entity(group, [pod(f"p{n}", "g", requests=requests) for n in range(members)]),
        snapshot,
        DEFAULT_POLICY,
    )
    assert isinstance(decision, Waiting)
    refusal = decision.pods[0].refusal
    assert refusal is not None
    assert refusal.counts == ((f"Insufficient {next(iter(requests))}", 1),)


@pytest.mark.parametrize("allocatable", HUGE, ids=str)
def test_a_node_may_report_any_amount(allocatable: Amounts) -> None:
    snapshot = cluster([node("a"), node("b", allocatable=allocatable)]).snapshot()
    assert isinstance(decide(alone(pod("p", cpu="1")), snapshot, DEFAULT_POLICY), Placed)
    scores = NodeScores(snapshot, DEFAULT_POLICY, shape_of(pod("p", cpu="1")))
    each = [scores.key_of(i, snapshot.node_class(i)) for i in range(2)]
    assert each == scores.keys.tolist()


@pytest.mark.parametrize("requests", HUGE, ids=str)
def test_manually_bound_pods_beyond_capacity_are_counted_and_removed(requests: Amounts) -> None:
    huge_pods = [pod(f"g{n}", on="a", requests=requests) for n in range(MANY)]
    cache = cluster(
        [node("a", allocatable={GPU: "4"}), node("b", allocatable={GPU: "4"})], huge_pods
    )
    pending = pod("p", cpu="1", memory="1Gi", requests={GPU: "1"})
    decision = decide(alone(pending), cache.snapshot(), DEFAULT_POLICY)
    assert isinstance(decision, Placed)
    assert [binding.node for binding in decision.bindings] == ["b"]
    assert cache.check() == []
    for huge_pod in huge_pods:
        cache.update_pod(huge_pod.metadata.key, None)
    cache.update_node("b", None)
    assert isinstance(decide(alone(pending), cache.snapshot(), DEFAULT_POLICY), Placed)
    assert cache.check() == []
