"""Amounts that no machine has: whoever asks for them waits, and nobody else minds."""

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
#: More than arrays of integers can add up.
MANY = 200


@pytest.mark.parametrize("asks", HUGE, ids=str)
@pytest.mark.parametrize("members", [1, 2])
def test_what_asks_for_more_than_there_is_waits_and_says_for_what(
    asks: Amounts, members: int
) -> None:
    busy = pod("busy", on="n", cpu="1", memory="1Gi", asks={GPU: "1"})
    snapshot = cluster([node("n", room={GPU: "4"})], [busy]).snapshot()
    group = gang("g", members)
    decision = decide(
        entity(group, [pod(f"p{n}", "g", asks=asks) for n in range(members)]),
        snapshot,
        DEFAULT_POLICY,
    )
    assert isinstance(decision, Waiting)
    refusal = decision.pods[0].refusal
    assert refusal is not None
    assert refusal.counts == ((f"Insufficient {next(iter(asks))}", 1),)


@pytest.mark.parametrize("room", HUGE, ids=str)
def test_a_node_may_say_that_it_has_any_amount(room: Amounts) -> None:
    snapshot = cluster([node("a"), node("b", room=room)]).snapshot()
    assert isinstance(decide(alone(pod("p", cpu="1")), snapshot, DEFAULT_POLICY), Placed)
    view = NodeScores(snapshot, DEFAULT_POLICY, shape_of(pod("p", cpu="1")))
    each = [view.key_of(i, snapshot.node_class(i)) for i in range(2)]
    assert each == view.keys.tolist()


@pytest.mark.parametrize("asks", HUGE, ids=str)
def test_whoever_was_put_on_a_node_by_hand_is_counted_and_may_go_again(asks: Amounts) -> None:
    giants = [pod(f"g{n}", on="a", asks=asks) for n in range(MANY)]
    cache = cluster([node("a", room={GPU: "4"}), node("b", room={GPU: "4"})], giants)
    wanted = pod("p", cpu="1", memory="1Gi", asks={GPU: "1"})
    decision = decide(alone(wanted), cache.snapshot(), DEFAULT_POLICY)
    assert isinstance(decision, Placed)
    assert [binding.node for binding in decision.bindings] == ["b"]
    assert cache.check() == []
    for giant in giants:
        cache.update_pod(giant.metadata.key, None)
    cache.update_node("b", None)
    assert isinstance(decide(alone(wanted), cache.snapshot(), DEFAULT_POLICY), Placed)
    assert cache.check() == []
