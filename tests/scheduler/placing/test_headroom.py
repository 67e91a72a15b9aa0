"""How many members there may be room for, by place."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from phalanx.scheduler.cluster.shape import shape_of
from phalanx.scheduler.cycle import decide
from phalanx.scheduler.decision import Placed
from phalanx.scheduler.entity import Entity
from phalanx.scheduler.placing.headroom import Headroom, summed
from phalanx.scheduler.policy import DEFAULT, Policy
from tests.scheduler.builders import cluster, composite, entity, gang, node, pod, tree

NODES = [node("a", {"rack": "x"}), node("b", {"rack": "x"}), node("c", {"rack": "y"})]
BUSY = [pod(f"busy-{name}", on=name, cpu="3", phase="Running") for name in "abc"]


def headroom(members: int, topology: str = "") -> Headroom:
    """Of a gang on nodes where there is room for one member each."""
    pods = [pod(f"p{n}", "g", cpu="1") for n in range(members)]
    one = entity(gang("g", members, topology=topology), pods)
    return Headroom(one, cluster(NODES, BUSY).snapshot(), DEFAULT)


def test_room_is_counted_over_all_nodes_or_in_each_place() -> None:
    assert headroom(3).suffices()
    assert not headroom(4).suffices()
    assert headroom(2, "rack").suffices()
    assert not headroom(3, "rack").suffices()


def test_who_leaves_makes_room_where_it_was() -> None:
    leaver = shape_of(BUSY[0])
    assert headroom(5, "rack").suffices_without(summed([(0, leaver)]))
    assert not headroom(6, "rack").suffices_without(summed([(0, leaver)]))
    assert not headroom(5, "rack").suffices_without(summed([(2, leaver)]))
    assert headroom(8, "rack").suffices_without(summed([(0, leaver), (1, leaver)]))


def leaf(name: str, quorum: int, *cpus: str, topology: str = "") -> Entity:
    """A group of pods that ask for so much each."""
    pods = [pod(f"{name}{n}", name, cpu=cpu) for n, cpu in enumerate(cpus)]
    return entity(gang(name, quorum, topology=topology), pods)


def of_tree(quorum: int, *parts: Entity) -> Headroom:
    return Headroom(tree(composite("t", quorum), *parts), cluster(NODES, BUSY).snapshot(), DEFAULT)


def test_in_a_tree_each_of_enough_groups_must_have_room() -> None:
    small, large = leaf("a", 2, "1", "1"), leaf("b", 1, "2")
    assert of_tree(1, small, large).suffices()
    assert not of_tree(2, small, large).suffices()
    assert not of_tree(1, leaf("c", 3, "1", "1", "1", topology="rack"), large).suffices()


def test_in_a_tree_who_leaves_makes_room_for_some_group() -> None:
    one = of_tree(2, leaf("a", 2, "1", "1"), leaf("b", 1, "2"))
    assert one.suffices_without(summed([(0, shape_of(BUSY[0]))]))
    assert not of_tree(1, leaf("b", 1, "5")).suffices_without(summed([(0, shape_of(BUSY[0]))]))


def test_where_room_is_not_asked_for_there_is_always_enough() -> None:
    one = leaf("a", 4, "9", "9", "9", "9")
    careless = Policy(filters=())
    assert Headroom(one, cluster(NODES, BUSY).snapshot(), careless).suffices()


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
def test_what_is_placed_has_room_however_it_is_counted(one: Entity, busy: list[int]) -> None:
    """An estimate that is too low would keep from a gang what it can have."""
    snapshot = cluster(NODES, [BUSY[n] for n in set(busy)]).snapshot()
    headroom = Headroom(one, snapshot, DEFAULT)
    decision = decide(one, snapshot, DEFAULT)
    if isinstance(decision, Placed):
        assert headroom.suffices(len(decision.bindings))
