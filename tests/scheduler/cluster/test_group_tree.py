"""Trees of PodGroups and CompositePodGroups."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from phalanx.api.meta import composite_pod_group_ref, pod_group_ref
from phalanx.api.scheduling import WorkloadReference
from phalanx.scheduler.cluster.group_tree import (
    MAX_DEPTH,
    Group,
    GroupTreeProblem,
    GroupTrees,
    group_ref,
)
from tests.scheduler.builders import composite, gang, key


def group_trees(*groups: Group) -> GroupTrees:
    found = GroupTrees()
    for group in groups:
        found.update(group_ref(group), group)
    return found


LEAF, ROOT = pod_group_ref(key("g")), composite_pod_group_ref(key("t"))


def test_a_group_without_parent_is_its_own_root() -> None:
    assert group_trees(gang("g", 1)).root(LEAF) == LEAF


def test_the_root_is_found_through_all_levels() -> None:
    one = group_trees(composite("t", 1), composite("s", 1, parent="t"), gang("g", 1, parent="s"))
    assert one.root(LEAF) == ROOT
    assert [name.key.name for name in one.subtree(ROOT)] == ["t", "s", "g"]


def test_a_pod_group_and_a_composite_pod_group_may_share_a_name() -> None:
    one = group_trees(composite("g", 1), gang("g", 1, parent="g"))
    assert one.root(LEAF) == composite_pod_group_ref(key("g"))


def test_a_missing_group_is_reported_by_name() -> None:
    gone = group_trees().root(LEAF)
    orphan = group_trees(gang("g", 1, parent="t")).root(LEAF)
    assert isinstance(gone, GroupTreeProblem)
    assert isinstance(orphan, GroupTreeProblem)
    assert gone.message == 'waiting for PodGroup "g" to appear'
    assert orphan.message == 'waiting for CompositePodGroup "t" to appear'


def test_a_tree_that_is_too_deep_or_cyclic_is_invalid() -> None:
    chain = [composite(f"c{i}", 1, parent=f"c{i + 1}") for i in range(MAX_DEPTH)]
    deep = group_trees(*chain, composite(f"c{MAX_DEPTH}", 1), gang("g", 1, parent="c0"))
    circle = group_trees(
        composite("a", 1, parent="b"), composite("b", 1, parent="a"), gang("g", 1, parent="a")
    )
    for one in (deep, circle):
        problem = one.root(LEAF)
        assert isinstance(problem, GroupTreeProblem)
        assert (problem.missing_group, "more than 4 levels" in problem.message) == ("", True)
    assert len(list(circle.subtree(composite_pod_group_ref(key("a"))))) < 2**MAX_DEPTH


def with_workload(group: Group, workload: str) -> Group:
    return replace(group, spec=replace(group.spec, workload_ref=WorkloadReference(workload)))


def test_a_tree_of_different_workloads_is_invalid() -> None:
    problem = group_trees(
        with_workload(composite("t", 1), "a"), with_workload(gang("g", 1, parent="t"), "b")
    ).root(LEAF)
    assert isinstance(problem, GroupTreeProblem)
    assert problem.message == "the groups of the tree belong to different Workloads: a, b"


@pytest.mark.parametrize("order", [("x", "y"), ("y", "x")])
def test_children_are_ordered_by_creation_time(order: tuple[str, str]) -> None:
    made = []
    for hour, name in enumerate(order):
        group = gang(name, 1, parent="t")
        at = f"2026-01-01T0{hour}:00:00Z"
        made.append(replace(group, metadata=replace(group.metadata, creation_timestamp=at)))
    found = group_trees(composite("t", 1), *reversed(made)).children(ROOT)
    assert [name.key.name for name in found] == list(order)


def test_a_removed_group_is_no_longer_a_child() -> None:
    one = group_trees(composite("t", 1), gang("g", 1, parent="t"))
    one.update(LEAF, None)
    assert one.children(ROOT) == []
    assert one.get(LEAF) is None


def test_fewest_members_follow_every_change_of_the_tree() -> None:
    one = group_trees(composite("t", 2), *(gang(f"g{i}", i, parent="t") for i in (3, 1, 2)))
    assert one.fewest_members(ROOT) == 1 + 2
    assert [child.key.name for child in one.valid_children(ROOT)] == ["g1", "g2", "g3"]
    one.update(pod_group_ref(key("g1")), gang("g1", 4, parent="t"))
    assert one.fewest_members(ROOT) == 2 + 3
    one.update(pod_group_ref(key("g2")), None)
    assert one.fewest_members(ROOT) == 3 + 4
    assert [child.key.name for child in one.valid_children(ROOT)] == ["g1", "g3"]
    one.update(ROOT, None)
    assert isinstance(one.root(pod_group_ref(key("g3"))), GroupTreeProblem)
    assert one.fewest_members(ROOT) == 0
