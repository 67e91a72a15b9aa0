"""The formulas of the score of NodeResourcesFit."""

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
from phalanx.scheduler.plugins.node_resources_fit import (
    LEAST_ALLOCATED,
    MOST_ALLOCATED,
    AllocationStrategy,
    UtilizationPoint,
    allocation_score,
    requested_to_capacity_ratio,
)
from tests.scheduler.builders import cluster, node, pod

GPU = ResourceWeight("example.com/gpu", 3)
FALLING: list[UtilizationPoint] = [(0, 100), (100, 0)]


def score_of(
    machine: Node, new: Pod, *running: Pod, strategy: AllocationStrategy = LEAST_ALLOCATED,
    resources: tuple[ResourceWeight, ...] = CPU_AND_MEMORY,
) -> int:  # fmt: skip
    """The score of a node for a pod, which is the same for one node and for many."""
    snapshot = cluster([machine], running).snapshot()
    build_scorer = allocation_score(strategy, resources).build_scorer
    scorer = build_scorer(shape_of(new), snapshot.columns)
    found: int = scorer(snapshot.node_class(0), ONE_NODE)
    assert scorer(columns_of(snapshot), MANY_NODES) == found
    return found


def test_node_that_stays_empty_scores_a_hundred() -> None:
    assert score_of(node("a", cpu="100", memory="1000Gi"), pod("p", cpu="0", memory="0")) == 100


def test_emptier_node_scores_higher() -> None:
    new, load = pod("p", cpu="1", memory="2Gi"), pod("q", on="a", cpu="2")
    # A quarter of the CPU stays free with the load, three quarters without; memory: 72 and 75.
    assert (score_of(node("a"), new, load), score_of(node("a"), new)) == ((25 + 72) // 2, 75)


@pytest.mark.parametrize("lacking", ["cpu", "memory"])
def test_resource_that_a_node_does_not_have_is_left_out(lacking: str) -> None:
    assert score_of(node("a", allocatable={lacking: "0"}), pod("p", cpu="2", memory="4Gi")) == 50


def test_node_without_resources_scores_zero() -> None:
    assert score_of(node("a", cpu="0", memory="0"), pod("p", cpu="1")) == 0


def test_fuller_node_scores_higher_with_most_allocated() -> None:
    new, load = pod("p", cpu="1", memory="2Gi"), pod("q", on="a", cpu="2", memory="2Gi")
    assert score_of(node("a"), new, strategy=MOST_ALLOCATED) == 25
    assert score_of(node("a"), new, load, strategy=MOST_ALLOCATED) == (75 + 50) // 2


def test_overcommitted_node_counts_as_full() -> None:
    # Containers without requests count as small ones and may add up to more than the capacity.
    load = [pod(f"q{i}", on="a") for i in range(9)]
    machine = node("a", cpu="500m", memory="1Gi")
    assert score_of(machine, pod("p"), *load, strategy=MOST_ALLOCATED) == 100
    assert score_of(machine, pod("p"), *load) == 0


def test_resources_count_by_weight() -> None:
    machine, new = (
        node("a", allocatable={GPU.name: "8"}),
        pod("p", cpu="1", requests={GPU.name: "4"}),
    )
    weighed = score_of(machine, new, resources=(ResourceWeight("cpu", 1), GPU))
    assert weighed == (1 * 75 + 3 * 50) // 4


def test_extended_resource_counts_only_for_pods_that_request_it() -> None:
    machine = node("a", allocatable={GPU.name: "8"})
    assert score_of(machine, pod("p", cpu="1"), resources=(ResourceWeight("cpu"), GPU)) == 75
    assert score_of(machine, pod("p", cpu="1"), resources=(GPU,)) == 0


def test_ephemeral_storage_counts_for_all_pods() -> None:
    machine = node("a", allocatable={"ephemeral-storage": "10G"})
    load = pod("q", on="a", requests={"ephemeral-storage": "4G"})
    assert score_of(machine, pod("p"), load, resources=(ResourceWeight("ephemeral-storage"),)) == 60


def test_number_of_pods_is_not_scored() -> None:
    assert score_of(node("a"), pod("p", cpu="1"), resources=(ResourceWeight("pods"),)) == 0


@pytest.mark.parametrize(
    ("points", "cpu", "score"),
    [
        (FALLING, "1", 75),
        ([(0, 0), (100, 100)], "1", 25),
        ([(0, 0), (50, 100), (100, 20)], "2", 100),
        ([(0, 0), (50, 100), (100, 20)], "3", 60),
        ([(40, 30), (60, 70)], "1", 30),
        ([(40, 30), (60, 70)], "4", 70),
        ([(0, 100), (30, 90)], "1", 92),
        ([(7, 40)], "1", 40),
    ],
)
def test_ratio_is_interpolated_between_points(
    points: list[UtilizationPoint], cpu: str, score: int
) -> None:
    ratio = requested_to_capacity_ratio(points)
    assert (
        score_of(node("a"), pod("p", cpu=cpu), strategy=ratio, resources=CPU_AND_MEMORY[:1])
        == score
    )


def test_ratio_leaves_zero_scores_out_and_rounds_the_mean() -> None:
    ratio = requested_to_capacity_ratio([(0, 0), (50, 0), (51, 10), (100, 99)])
    machine, new = node("a"), pod("p", cpu="4", memory="4Gi")
    assert score_of(machine, new, strategy=ratio) == 99
    assert score_of(machine, pod("p", cpu="4", memory="8256Mi"), strategy=ratio) == 99
    both = requested_to_capacity_ratio([(50, 50), (100, 99)])
    assert score_of(machine, new, strategy=both) == 75
    assert score_of(machine, pod("p", cpu="1"), strategy=ratio) == 0
