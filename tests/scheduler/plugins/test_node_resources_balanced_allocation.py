"""The formulas of the score of NodeResourcesBalancedAllocation."""

from __future__ import annotations

import pytest

from phalanx.api.core import Node, Pod
from phalanx.scheduler.cluster.pod_shape import shape_of
from phalanx.scheduler.plugins.load_scoring import (
    CPU_AND_MEMORY,
    MANY_NODES,
    ONE_NODE,
    ResourceWeight,
    columns_of,
)
from phalanx.scheduler.plugins.node_resources_balanced_allocation import balance_score
from tests.scheduler.builders import cluster, node, pod

GPU = ResourceWeight("example.com/gpu")
ALL_THREE = (*CPU_AND_MEMORY, GPU)


def score_of(
    machine: Node, new: Pod, *running: Pod, resources: tuple[ResourceWeight, ...] = CPU_AND_MEMORY
) -> int:
    """The score of a node for a pod, which is the same for one node and for many."""
    snapshot = cluster([machine], running).snapshot()
    scorer = balance_score(resources).build_scorer(shape_of(new), snapshot.columns)
    found: int = scorer(snapshot.node_class(0), ONE_NODE)
    assert scorer(columns_of(snapshot), MANY_NODES) == found
    return found


def test_pod_that_balances_a_node_scores_higher() -> None:
    new, load = pod("p", memory="4Gi"), pod("q", on="a", cpu="2")
    assert (score_of(node("a"), new, load), score_of(node("a"), new)) == (87, 62)


def test_pod_that_keeps_the_balance_scores_seventy_five() -> None:
    assert score_of(node("a"), pod("p", cpu="1", memory="2Gi")) == 75


def test_pod_without_requests_is_not_scored() -> None:
    assert score_of(node("a"), pod("p")) == 0
    assert score_of(node("a"), pod("p"), resources=ALL_THREE) == 0


@pytest.mark.parametrize("lacking", ["cpu", "memory"])
def test_one_resource_alone_is_always_in_balance(lacking: str) -> None:
    assert score_of(node("a", allocatable={lacking: "0"}), pod("p", cpu="2", memory="4Gi")) == 75
    assert score_of(node("a"), pod("p", cpu="2"), resources=(ResourceWeight("cpu"),)) == 75


def test_more_than_two_resources_are_balanced_by_their_standard_deviation() -> None:
    machine = node("a", allocatable={GPU.name: "4"})
    even = pod("p", cpu="1", memory="2Gi", requests={GPU.name: "1"})
    assert score_of(machine, even, resources=ALL_THREE) == 75
    # The shares 0, 0 and 1 deviate from their mean of a third by 0.47: 52 instead of 100.
    assert (
        score_of(machine, pod("p", requests={GPU.name: "4"}), resources=ALL_THREE)
        == 50 + (50 - 48) // 2
    )


def test_extended_resource_counts_only_for_pods_that_request_it() -> None:
    machine = node("a", allocatable={GPU.name: "4"})
    load = pod("q", on="a", requests={GPU.name: "4"})
    new = pod("p", cpu="1", memory="2Gi")
    assert score_of(machine, new, load, resources=ALL_THREE) == score_of(machine, new)


def test_of_three_resources_two_are_balanced_where_a_node_lacks_one() -> None:
    new, load = pod("p", memory="4Gi", requests={GPU.name: "1"}), pod("q", on="a", cpu="2")
    assert score_of(node("a"), new, load, resources=ALL_THREE) == 87
