"""Would a pod even out what is used? The formulas."""

from __future__ import annotations

import pytest

from phalanx.api.core import Node, Pod
from phalanx.scheduler.cluster.pod_shape import shape_of
from phalanx.scheduler.plugins.node_resources import (
    CPU_AND_MEMORY,
    ResourceWeight,
    balance_scorer_factory,
)
from tests.scheduler.builders import cluster, node, pod

GPU = ResourceWeight("example.com/gpu")
ALL_THREE = (*CPU_AND_MEMORY, GPU)


def worth(
    machine: Node, new: Pod, *running: Pod, resources: tuple[ResourceWeight, ...] = CPU_AND_MEMORY
) -> int:
    """What a node is worth to a pod, both forms saying the same."""
    snapshot = cluster([machine], running).snapshot()
    opinion = balance_scorer_factory(resources)(shape_of(new), snapshot.columns)
    here = opinion.score_node(snapshot.node_class(0))
    assert opinion.score_nodes(snapshot).tolist() == [here]
    return here


def test_a_pod_that_evens_out_a_node_is_better_there() -> None:
    new, load = pod("p", memory="4Gi"), pod("q", on="a", cpu="2")
    assert (worth(node("a"), new, load), worth(node("a"), new)) == (87, 62)


def test_a_pod_that_changes_no_balance_scores_seventy_five() -> None:
    assert worth(node("a"), pod("p", cpu="1", memory="2Gi")) == 75


def test_a_pod_that_asks_for_nothing_has_no_opinion() -> None:
    assert worth(node("a"), pod("p")) == 0
    assert worth(node("a"), pod("p"), resources=ALL_THREE) == 0


@pytest.mark.parametrize("lacking", ["cpu", "memory"])
def test_one_resource_alone_is_always_in_balance(lacking: str) -> None:
    assert worth(node("a", room={lacking: "0"}), pod("p", cpu="2", memory="4Gi")) == 75
    assert worth(node("a"), pod("p", cpu="2"), resources=(ResourceWeight("cpu"),)) == 75


def test_more_than_two_resources_are_balanced_by_their_standard_deviation() -> None:
    machine = node("a", room={GPU.name: "4"})
    even = pod("p", cpu="1", memory="2Gi", asks={GPU.name: "1"})
    assert worth(machine, even, resources=ALL_THREE) == 75
    # The shares 0, 0 and 1 deviate from their mean of a third by 0.47: 52 instead of 100.
    assert (
        worth(machine, pod("p", asks={GPU.name: "4"}), resources=ALL_THREE) == 50 + (50 - 48) // 2
    )


def test_an_odd_resource_counts_only_for_pods_that_ask_for_it() -> None:
    machine = node("a", room={GPU.name: "4"})
    load = pod("q", on="a", asks={GPU.name: "4"})
    new = pod("p", cpu="1", memory="2Gi")
    assert worth(machine, new, load, resources=ALL_THREE) == worth(machine, new)


def test_of_three_resources_two_are_balanced_where_a_node_lacks_one() -> None:
    new, load = pod("p", memory="4Gi", asks={GPU.name: "1"}), pod("q", on="a", cpu="2")
    assert worth(node("a"), new, load, resources=ALL_THREE) == 87
