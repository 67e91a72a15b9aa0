"""How groups hang together."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from phalanx.api.scheduling import WorkloadReference
from phalanx.scheduler.cluster.group_tree import (
    MAX_DEPTH,
    Group,
    GroupRef,
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


LEAF, ROOT = GroupRef(False, key("g")), GroupRef(True, key("t"))


def test_a_group_by_itself_is_its_own_root() -> None:
    assert group_trees(gang("g", 1)).root(LEAF) == LEAF


def test_the_root_is_found_through_all_levels() -> None:
    one = group_trees(composite("t", 1), composite("s", 1, parent="t"), gang("g", 1, parent="s"))
    assert one.root(LEAF) == ROOT
    assert [name.key.name for name in one.subtree(ROOT)] == ["t", "s", "g"]


def test_a_pod_group_and_a_composite_may_share_a_name() -> None:
    one = group_trees(composite("g", 1), gang("g", 1, parent="g"))
    assert one.root(LEAF) == GroupRef(True, key("g"))


def test_what_is_missing_is_told_by_name() -> None:
    gone = group_trees().root(LEAF)
    orphan = group_trees(gang("g", 1, parent="t")).root(LEAF)
    assert isinstance(gone, GroupTreeProblem)
    assert isinstance(orphan, GroupTreeProblem)
    assert gone.message == 'waiting for PodGroup "g" to appear'
    assert orphan.message == 'waiting for CompositePodGroup "t" to appear'


def test_a_tree_that_is_too_deep_or_runs_in_a_circle_is_none() -> None:
    chain = [composite(f"c{i}", 1, parent=f"c{i + 1}") for i in range(MAX_DEPTH)]
    deep = group_trees(*chain, composite(f"c{MAX_DEPTH}", 1), gang("g", 1, parent="c0"))
    circle = group_trees(
        composite("a", 1, parent="b"), composite("b", 1, parent="a"), gang("g", 1, parent="a")
    )
    for one in (deep, circle):
        flaw = one.root(LEAF)
        assert isinstance(flaw, GroupTreeProblem)
        assert (flaw.missing_group, "more than 4 levels" in flaw.message) == ("", True)
    assert len(list(circle.subtree(GroupRef(True, key("a"))))) < 2**MAX_DEPTH


def with_workload(group: Group, workload: str) -> Group:
    return replace(group, spec=replace(group.spec, workload_ref=WorkloadReference(workload)))


def test_a_tree_of_different_workloads_is_none() -> None:
    flaw = group_trees(
        with_workload(composite("t", 1), "a"), with_workload(gang("g", 1, parent="t"), "b")
    ).root(LEAF)
    assert isinstance(flaw, GroupTreeProblem)
    assert flaw.message == "its tree is of different Workloads: a, b"


@pytest.mark.parametrize("order", [("x", "y"), ("y", "x")])
def test_children_are_in_the_order_in_which_they_were_made(order: tuple[str, str]) -> None:
    made = []
    for hour, name in enumerate(order):
        group = gang(name, 1, parent="t")
        at = f"2026-01-01T0{hour}:00:00Z"
        made.append(replace(group, metadata=replace(group.metadata, creation_timestamp=at)))
    found = group_trees(composite("t", 1), *reversed(made)).children(ROOT)
    assert [name.key.name for name in found] == list(order)


def test_what_went_is_not_a_child_any_more() -> None:
    one = group_trees(composite("t", 1), gang("g", 1, parent="t"))
    one.update(LEAF, None)
    assert one.children(ROOT) == []
    assert one.get(LEAF) is None
