"""How well? The formulas, and that all forms of one give the same integers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.scheduler.scores import (
    SCORES,
    balanced_allocation,
    balanced_allocation_everywhere,
    least_allocated,
    least_allocated_everywhere,
)
from phalanx.scheduler.shape import shape_of
from tests.scheduler import oracle
from tests.scheduler.builders import cluster, node, pod
from tests.scheduler.strategies import Situation, situations

GI = 1024**3


def test_an_empty_node_that_stays_empty_is_worth_a_hundred() -> None:
    snapshot = cluster([node("a", cpu="100", memory="1000Gi")]).snapshot()
    ask = shape_of(pod("p", cpu="0", memory="0")).ask(snapshot.columns)
    assert least_allocated(ask, snapshot.spot(0)) == 100


def test_the_emptier_node_is_better() -> None:
    snapshot = cluster([node("a"), node("b")], [pod("q", on="a", cpu="2")]).snapshot()
    ask = shape_of(pod("p", cpu="1", memory="2Gi")).ask(snapshot.columns)
    # A quarter of the CPU stays free on a, three quarters on b; memory: 72 and 75 per cent.
    assert least_allocated_everywhere(snapshot, ask).tolist() == [(25 + 72) // 2, 75]


def test_a_pod_that_evens_out_a_node_is_better_there() -> None:
    snapshot = cluster([node("a"), node("b")], [pod("q", on="a", cpu="2")]).snapshot()
    ask = shape_of(pod("p", memory="4Gi")).ask(snapshot.columns)
    assert balanced_allocation_everywhere(snapshot, ask).tolist() == [87, 62]


def test_a_pod_that_changes_no_balance_scores_seventy_five() -> None:
    snapshot = cluster([node("a")]).snapshot()
    ask = shape_of(pod("p", cpu="1", memory="2Gi")).ask(snapshot.columns)
    assert balanced_allocation(ask, snapshot.spot(0)) == 75


def test_a_pod_that_asks_for_nothing_has_no_opinion_on_balance() -> None:
    snapshot = cluster([node("a")]).snapshot()
    ask = shape_of(pod("p")).ask(snapshot.columns)
    assert balanced_allocation_everywhere(snapshot, ask).tolist() == [0]
    assert balanced_allocation(ask, snapshot.spot(0)) == 0


@pytest.mark.parametrize("lacking", ["cpu", "memory"])
def test_a_resource_that_a_node_does_not_have_is_left_out(lacking: str) -> None:
    snapshot = cluster([node("a", room={lacking: "0"})]).snapshot()
    ask = shape_of(pod("p", cpu="2", memory="4Gi")).ask(snapshot.columns)
    assert least_allocated(ask, snapshot.spot(0)) == 50
    assert balanced_allocation(ask, snapshot.spot(0)) == 75


def test_a_node_without_anything_scores_nothing() -> None:
    snapshot = cluster([node("a", cpu="0", memory="0")]).snapshot()
    ask = shape_of(pod("p", cpu="1")).ask(snapshot.columns)
    assert least_allocated_everywhere(snapshot, ask).tolist() == [0]
    assert least_allocated(ask, snapshot.spot(0)) == 0


@given(situations())
def test_all_nodes_at_once_one_node_and_the_oracle_agree(situation: Situation) -> None:
    snapshot = situation.cache().snapshot()
    machines = list(situation.world().machines.values())
    for member in situation.entity.members[:5]:
        ask = member.shape.ask(snapshot.columns)
        for row, slow in zip(
            SCORES, (oracle.least_allocated, oracle.balanced_allocation), strict=True
        ):
            everywhere = row.everywhere(snapshot, ask).tolist()
            assert everywhere == [row.here(ask, snapshot.spot(i)) for i in range(len(snapshot))]
            assert everywhere == [slow(member.pod, machine) for machine in machines]


amount = st.integers(0, 2**50)


@given(st.lists(st.tuples(amount, amount, amount, amount), min_size=1), amount, amount)
def test_both_forms_agree_on_any_amounts(
    rows: list[tuple[int, int, int, int]], cpu: int, memory: int
) -> None:
    machines = [
        node(f"n{i:03}", room={"cpu": f"{row[0]}m", "memory": row[1]}) for i, row in enumerate(rows)
    ]
    load = [
        pod(f"p{i}", on=f"n{i:03}", asks={"cpu": f"{row[2]}m", "memory": row[3]})
        for i, row in enumerate(rows)
    ]
    snapshot = cluster(machines, load).snapshot()
    ask = shape_of(pod("new", asks={"cpu": f"{cpu}m", "memory": memory})).ask(snapshot.columns)
    for row in SCORES:
        one_by_one = [row.here(ask, snapshot.spot(i)) for i in range(len(snapshot))]
        assert row.everywhere(snapshot, ask).tolist() == one_by_one
        assert all(0 <= score <= 100 for score in one_by_one)
