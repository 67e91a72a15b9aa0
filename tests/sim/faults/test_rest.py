"""What must hold at rest: each sort of disagreement is found."""

from __future__ import annotations

from msgspec.structs import replace

from phalanx.api.core import Node, Pod, Taint
from phalanx.scheduler.cache import Cache
from phalanx.sim.faults.rest import differences
from tests.scheduler.builders import basic, cluster, key, node, pod


def found(held: Cache, true: Cache) -> list[str]:
    return list(differences(held.snapshot(), true.snapshot()))


def running(name: str, **labels: str) -> Pod:
    return pod(name, on="n", cpu="1", labels=labels)


def test_two_views_of_one_cluster_agree_whatever_came_first() -> None:
    one = cluster([node("n", room={"a": "1"}), node("m", room={"b": "1"})], [running("p")])
    other = cluster([node("m", room={"b": "1"}), node("n", room={"a": "1"})], [running("p")])
    assert found(one, other) == []


def test_nodes_that_only_one_knows_are_found() -> None:
    assert found(cluster([node("n")]), cluster([node("n"), node("m")])) == [
        "it knows the nodes ['n'], but there are ['m', 'n']"
    ]


def changed(one: Node) -> list[str]:
    return found(cluster([one]), cluster([node("n")]))


def test_anything_that_differs_about_a_node_is_found() -> None:
    assert changed(node("n")) == []
    assert len(changed(node("n", cpu="3"))) == 1
    assert len(changed(node("n", labels={"a": "b"}))) == 1
    assert len(changed(node("n", cordoned=True))) == 1
    assert len(changed(node("n", taints=(Taint("a", "", "NoSchedule"),)))) == 1


def test_room_that_is_taken_for_nobody_is_found() -> None:
    (sentence,) = found(cluster([node("n")], [running("p")]), cluster([node("n")]))
    assert "'cpu': (1000, 4000)" in sentence
    assert "'cpu': (0, 4000)" in sentence


def test_members_and_groups_that_are_counted_wrongly_are_found() -> None:
    member = replace(running("p"), spec=pod("p", "g", on="n", cpu="1").spec)
    held, true = cluster([node("n")], [member]), cluster([node("n")], [running("p")])
    assert any("members with nodes" in sentence for sentence in found(held, true))
    held.group(key("g"), basic("g"))
    assert "it knows other groups than there are" in found(held, true)
