"""How groups hang together."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from phalanx.api.scheduling import WorkloadReference
from phalanx.scheduler.cluster.forest import DEPTH, Flaw, Forest, Group, Name, name_of
from tests.scheduler.builders import composite, gang, key


def forest(*groups: Group) -> Forest:
    found = Forest()
    for group in groups:
        found.put(name_of(group), group)
    return found


LEAF, ROOT = Name(False, key("g")), Name(True, key("t"))


def test_a_group_by_itself_is_its_own_root() -> None:
    assert forest(gang("g", 1)).root(LEAF) == LEAF


def test_the_root_is_found_through_all_levels() -> None:
    one = forest(composite("t", 1), composite("s", 1, parent="t"), gang("g", 1, parent="s"))
    assert one.root(LEAF) == ROOT
    assert [name.key.name for name in one.below(ROOT)] == ["t", "s", "g"]


def test_a_pod_group_and_a_composite_may_share_a_name() -> None:
    one = forest(composite("g", 1), gang("g", 1, parent="g"))
    assert one.root(LEAF) == Name(True, key("g"))


def test_what_is_missing_is_told_by_name() -> None:
    gone = forest().root(LEAF)
    orphan = forest(gang("g", 1, parent="t")).root(LEAF)
    assert isinstance(gone, Flaw)
    assert isinstance(orphan, Flaw)
    assert gone.message == 'waiting for PodGroup "g" to appear'
    assert orphan.message == 'waiting for CompositePodGroup "t" to appear'


def test_a_tree_that_is_too_deep_or_runs_in_a_circle_is_none() -> None:
    chain = [composite(f"c{i}", 1, parent=f"c{i + 1}") for i in range(DEPTH)]
    deep = forest(*chain, composite(f"c{DEPTH}", 1), gang("g", 1, parent="c0"))
    circle = forest(
        composite("a", 1, parent="b"), composite("b", 1, parent="a"), gang("g", 1, parent="a")
    )
    for one in (deep, circle):
        flaw = one.root(LEAF)
        assert isinstance(flaw, Flaw)
        assert (flaw.missing, "more than 4 levels" in flaw.message) == ("", True)
    assert len(list(circle.below(Name(True, key("a"))))) < 2**DEPTH


def of(group: Group, workload: str) -> Group:
    return replace(group, spec=replace(group.spec, workload_ref=WorkloadReference(workload)))


def test_a_tree_of_different_workloads_is_none() -> None:
    flaw = forest(of(composite("t", 1), "a"), of(gang("g", 1, parent="t"), "b")).root(LEAF)
    assert isinstance(flaw, Flaw)
    assert flaw.message == "its tree is of different Workloads: a, b"


@pytest.mark.parametrize("order", [("x", "y"), ("y", "x")])
def test_children_are_in_the_order_in_which_they_were_made(order: tuple[str, str]) -> None:
    made = []
    for hour, name in enumerate(order):
        group = gang(name, 1, parent="t")
        at = f"2026-01-01T0{hour}:00:00Z"
        made.append(replace(group, metadata=replace(group.metadata, creation_timestamp=at)))
    found = forest(composite("t", 1), *reversed(made)).children(ROOT)
    assert [name.key.name for name in found] == list(order)


def test_what_went_is_not_a_child_any_more() -> None:
    one = forest(composite("t", 1), gang("g", 1, parent="t"))
    one.put(LEAF, None)
    assert one.children(ROOT) == []
    assert one.get(LEAF) is None
