"""How full should a node be? The formulas."""

from __future__ import annotations

import pytest

from phalanx.api.core import Node, Pod
from phalanx.scheduler.cluster.pod_shape import shape_of
from phalanx.scheduler.plugins.node_resources import (
    CPU_AND_MEMORY,
    LEAST_ALLOCATED,
    MOST_ALLOCATED,
    AllocationScorer,
    AllocationStrategy,
    CpuMemoryLeastAllocatedScorer,
    ResourceWeight,
    UtilizationPoint,
    allocation_scorer_factory,
    nonzero_scored_resources,
    requested_to_capacity_ratio,
)
from tests.scheduler.builders import cluster, node, pod

GPU = ResourceWeight("example.com/gpu", 3)
FALLING: list[UtilizationPoint] = [(0, 100), (100, 0)]


def worth(
    machine: Node, new: Pod, *running: Pod, strategy: AllocationStrategy = LEAST_ALLOCATED,
    resources: tuple[ResourceWeight, ...] = CPU_AND_MEMORY,
) -> int:  # fmt: skip
    """What a node is worth to a pod, both forms saying the same."""
    snapshot = cluster([machine], running).snapshot()
    opinion = allocation_scorer_factory(strategy, resources)(shape_of(new), snapshot.columns)
    here = opinion.score_node(snapshot.node_class(0))
    assert opinion.score_nodes(snapshot).tolist() == [here]
    return here


def test_an_empty_node_that_stays_empty_is_worth_a_hundred() -> None:
    assert worth(node("a", cpu="100", memory="1000Gi"), pod("p", cpu="0", memory="0")) == 100


def test_the_emptier_node_is_better() -> None:
    new, load = pod("p", cpu="1", memory="2Gi"), pod("q", on="a", cpu="2")
    # A quarter of the CPU stays free with the load, three quarters without; memory: 72 and 75.
    assert (worth(node("a"), new, load), worth(node("a"), new)) == ((25 + 72) // 2, 75)


@pytest.mark.parametrize("lacking", ["cpu", "memory"])
def test_a_resource_that_a_node_does_not_have_is_left_out(lacking: str) -> None:
    assert worth(node("a", room={lacking: "0"}), pod("p", cpu="2", memory="4Gi")) == 50


def test_a_node_without_anything_scores_nothing() -> None:
    assert worth(node("a", cpu="0", memory="0"), pod("p", cpu="1")) == 0


def test_the_fuller_node_is_better_if_that_is_wanted() -> None:
    new, load = pod("p", cpu="1", memory="2Gi"), pod("q", on="a", cpu="2", memory="2Gi")
    assert worth(node("a"), new, strategy=MOST_ALLOCATED) == 25
    assert worth(node("a"), new, load, strategy=MOST_ALLOCATED) == (75 + 50) // 2


def test_a_node_that_is_more_than_full_counts_as_full() -> None:
    # Silent pods are counted as small ones and may add up to more than there is.
    load = [pod(f"q{i}", on="a") for i in range(9)]
    machine = node("a", cpu="500m", memory="1Gi")
    assert worth(machine, pod("p"), *load, strategy=MOST_ALLOCATED) == 100
    assert worth(machine, pod("p"), *load) == 0


def test_a_resource_counts_as_much_as_it_weighs() -> None:
    machine, new = node("a", room={GPU.name: "8"}), pod("p", cpu="1", asks={GPU.name: "4"})
    weighed = worth(machine, new, resources=(ResourceWeight("cpu", 1), GPU))
    assert weighed == (1 * 75 + 3 * 50) // 4


def test_an_odd_resource_counts_only_for_pods_that_ask_for_it() -> None:
    machine = node("a", room={GPU.name: "8"})
    assert worth(machine, pod("p", cpu="1"), resources=(ResourceWeight("cpu"), GPU)) == 75
    assert worth(machine, pod("p", cpu="1"), resources=(GPU,)) == 0


def test_scratch_space_counts_for_everybody() -> None:
    machine = node("a", room={"ephemeral-storage": "10G"})
    load = pod("q", on="a", asks={"ephemeral-storage": "4G"})
    assert worth(machine, pod("p"), load, resources=(ResourceWeight("ephemeral-storage"),)) == 60


def test_the_number_of_pods_never_counts() -> None:
    assert worth(node("a"), pod("p", cpu="1"), resources=(ResourceWeight("pods"),)) == 0


@pytest.mark.parametrize(
    ("line", "cpu", "score"),
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
def test_a_broken_line_says_what_a_share_is_worth(
    line: list[UtilizationPoint], cpu: str, score: int
) -> None:
    ratio = requested_to_capacity_ratio(line)
    assert (
        worth(node("a"), pod("p", cpu=cpu), strategy=ratio, resources=CPU_AND_MEMORY[:1]) == score
    )


def test_of_a_broken_line_what_is_worth_nothing_leaves_the_mean_which_is_rounded() -> None:
    ratio = requested_to_capacity_ratio([(0, 0), (50, 0), (51, 10), (100, 99)])
    machine, new = node("a"), pod("p", cpu="4", memory="4Gi")
    assert worth(machine, new, strategy=ratio) == 99
    assert worth(machine, pod("p", cpu="4", memory="8256Mi"), strategy=ratio) == 99
    both = requested_to_capacity_ratio([(50, 50), (100, 99)])
    assert worth(machine, new, strategy=both) == 75
    assert worth(machine, pod("p", cpu="1"), strategy=ratio) == 0


def test_the_usual_opinion_has_a_faster_form_that_says_the_same() -> None:
    new, load = pod("p", cpu="1", memory="1Gi"), pod("q", on="a", cpu="1500m", memory="3Gi")
    snapshot = cluster([node("a")], [load]).snapshot()
    shape, columns = shape_of(new), snapshot.columns
    alike = (ResourceWeight("memory", 7), ResourceWeight("cpu", 7))
    fast = allocation_scorer_factory(LEAST_ALLOCATED, alike)(shape, columns)
    slow = AllocationScorer(LEAST_ALLOCATED, nonzero_scored_resources(shape, columns, alike))
    assert isinstance(fast, CpuMemoryLeastAllocatedScorer)
    assert fast.score_node(snapshot.node_class(0)) == slow.score_node(snapshot.node_class(0))
    unlike = (ResourceWeight("cpu", 2), ResourceWeight("memory", 1))
    assert isinstance(
        allocation_scorer_factory(LEAST_ALLOCATED, unlike)(shape, columns), AllocationScorer
    )
