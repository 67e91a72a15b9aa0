"""How many members there may be room for, by place."""

from __future__ import annotations

from phalanx.scheduler.headroom import Headroom, summed
from phalanx.scheduler.policy import DEFAULT
from phalanx.scheduler.shape import shape_of
from tests.scheduler.builders import cluster, entity, gang, node, pod

NODES = [node("a", {"rack": "x"}), node("b", {"rack": "x"}), node("c", {"rack": "y"})]
BUSY = [pod(f"busy-{name}", on=name, cpu="3", phase="Running") for name in "abc"]


def headroom(members: int, topology: str = "") -> Headroom:
    """Of a gang on nodes where there is room for one member each."""
    pods = [pod(f"p{n}", "g", cpu="1") for n in range(members)]
    one = entity(gang("g", members, topology=topology), pods)
    return Headroom(one, cluster(NODES, BUSY).snapshot(), DEFAULT)


def test_room_is_counted_over_all_nodes_or_in_each_place() -> None:
    assert headroom(3).suffices
    assert not headroom(4).suffices
    assert headroom(2, "rack").suffices
    assert not headroom(3, "rack").suffices


def test_who_leaves_makes_room_where_it_was() -> None:
    leaver = shape_of(BUSY[0])
    assert headroom(5, "rack").suffices_without(summed([(0, leaver)]))
    assert not headroom(6, "rack").suffices_without(summed([(0, leaver)]))
    assert not headroom(5, "rack").suffices_without(summed([(2, leaver)]))
    assert headroom(8, "rack").suffices_without(summed([(0, leaver), (1, leaver)]))
