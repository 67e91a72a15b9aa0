"""Capacity estimates: how many members may fit, by node and by domain."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from phalanx.scheduler.cluster.pod_shape import shape_of
from phalanx.scheduler.cycle import decide
from phalanx.scheduler.decision import Placed
from phalanx.scheduler.entity import Entity
from phalanx.scheduler.placement.capacity_estimate import CapacityEstimate, sum_requests
from phalanx.scheduler.policy import DEFAULT_POLICY, SchedulerPolicy
from tests.scheduler.builders import cluster, composite, entity, gang, node, pod, tree

NODES = [node("a", {"rack": "x"}), node("b", {"rack": "x"}), node("c", {"rack": "y"})]
BUSY = [pod(f"busy-{name}", on=name, cpu="3", phase="Running") for name in "abc"]


def capacity_estimate(members: int, topology: str = "") -> CapacityEstimate:
    """The estimate of a gang on nodes that hold one member each."""
    pods = [pod(f"p{n}", "g", cpu="1") for n in range(members)]
    one = entity(gang("g", members, topology=topology), pods)
    return CapacityEstimate(one, cluster(NODES, BUSY).snapshot(), DEFAULT_POLICY)


def test_capacity_is_estimated_over_all_nodes_or_per_domain() -> None:
    assert capacity_estimate(3).is_sufficient()
    assert not capacity_estimate(4).is_sufficient()
    assert capacity_estimate(2, "rack").is_sufficient()
    assert not capacity_estimate(3, "rack").is_sufficient()


def test_freed_resources_count_in_the_domain_of_their_node() -> None:
    freed_shape = shape_of(BUSY[0])
    assert capacity_estimate(5, "rack").is_sufficient_after_freeing(
        sum_requests([(0, freed_shape)])
    )
    assert not capacity_estimate(6, "rack").is_sufficient_after_freeing(
        sum_requests([(0, freed_shape)])
    )
    assert not capacity_estimate(5, "rack").is_sufficient_after_freeing(
        sum_requests([(2, freed_shape)])
    )
    assert capacity_estimate(8, "rack").is_sufficient_after_freeing(
        sum_requests([(0, freed_shape), (1, freed_shape)])
    )


def leaf(name: str, quorum: int, *cpus: str, topology: str = "") -> Entity:
    """A gang of pods with these CPU requests."""
    pods = [pod(f"{name}{n}", name, cpu=cpu) for n, cpu in enumerate(cpus)]
    return entity(gang(name, quorum, topology=topology), pods)


def tree_estimate(quorum: int, *parts: Entity) -> CapacityEstimate:
    return CapacityEstimate(
        tree(composite("t", quorum), *parts), cluster(NODES, BUSY).snapshot(), DEFAULT_POLICY
    )


def test_enough_groups_of_a_tree_must_fit() -> None:
    small, large = leaf("a", 2, "1", "1"), leaf("b", 1, "2")
    assert tree_estimate(1, small, large).is_sufficient()
    assert not tree_estimate(2, small, large).is_sufficient()
    assert not tree_estimate(1, leaf("c", 3, "1", "1", "1", topology="rack"), large).is_sufficient()


def test_freed_resources_count_for_the_groups_of_a_tree() -> None:
    one = tree_estimate(2, leaf("a", 2, "1", "1"), leaf("b", 1, "2"))
    assert one.is_sufficient_after_freeing(sum_requests([(0, shape_of(BUSY[0]))]))
    assert not tree_estimate(1, leaf("b", 1, "5")).is_sufficient_after_freeing(
        sum_requests([(0, shape_of(BUSY[0]))])
    )


def test_the_estimate_is_sufficient_without_the_resource_filter() -> None:
    one = leaf("a", 4, "9", "9", "9", "9")
    without_filters = SchedulerPolicy(filters={})
    assert CapacityEstimate(one, cluster(NODES, BUSY).snapshot(), without_filters).is_sufficient()


@st.composite
def leaves(draw: st.DrawFn, name: str) -> Entity:
    cpus = draw(st.lists(st.sampled_from("123"), min_size=1, max_size=3))
    rack = draw(st.sampled_from(["", "rack"]))
    return leaf(name, draw(st.integers(1, len(cpus))), *cpus, topology=rack)


@st.composite
def trees(draw: st.DrawFn) -> Entity:
    parts = [draw(leaves(name)) for name in draw(st.sampled_from(["a", "ab", "abc"]))]
    rack, quorum = draw(st.sampled_from(["", "rack"])), draw(st.integers(1, len(parts)))
    return tree(composite("t", quorum, topology=rack), *parts)


@given(one=trees(), busy=st.lists(st.integers(0, 2), max_size=3))
def test_the_estimate_is_never_below_what_is_placed(one: Entity, busy: list[int]) -> None:
    """An estimate that is too low would hide cures that help."""
    snapshot = cluster(NODES, [BUSY[n] for n in set(busy)]).snapshot()
    estimate = CapacityEstimate(one, snapshot, DEFAULT_POLICY)
    decision = decide(one, snapshot, DEFAULT_POLICY)
    if isinstance(decision, Placed):
        assert estimate.is_sufficient(len(decision.bindings))
