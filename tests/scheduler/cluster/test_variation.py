"""The cluster without some pods, and with others."""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace as but

from phalanx.api.core import ContainerPort
from phalanx.scheduler.cluster.census import Crowd, Resident
from phalanx.scheduler.cluster.selection import Selection
from phalanx.scheduler.cluster.shape import shape_of
from phalanx.scheduler.cluster.variation import FEW, varied
from tests.scheduler.builders import cluster, key, node, pod


def resident(name: str, on: str, cpu: str = "1", **labels: str) -> Resident:
    made = pod(name, cpu=cpu, labels=labels)
    return Resident(key(name), f"uid-{name}", on, labels, shape_of(made))


def test_without_a_change_it_is_the_same_snapshot() -> None:
    snapshot = cluster([node("a")]).snapshot()
    assert varied(snapshot) is snapshot


def test_who_goes_leaves_what_it_took_and_who_comes_takes_it() -> None:
    cache = cluster([node("a"), node("b")], [pod("x", on="a", cpu="2")])
    snapshot = cache.snapshot()
    other = varied(snapshot, minus=[resident("x", "a", "2")], plus=[resident("y", "b", "1")])
    cpu = snapshot.columns["cpu"]
    assert snapshot.used[:, cpu].tolist() == [2000, 0]
    assert other.used[:, cpu].tolist() == [0, 1000]
    assert other.used[:, snapshot.columns["pods"]].tolist() == [0, 1]
    fresh = cluster([node("a"), node("b")], [pod("y", on="b", cpu="1")]).snapshot()
    assert np.array_equal(other.used, fresh.used)
    assert np.array_equal(other.scored, fresh.scored)


def test_many_come_and_go_as_a_few_do() -> None:
    snapshot = cluster([node("a"), node("b")], [pod("x", on="a", cpu="9")]).snapshot()
    pods = [resident(f"p{n}", "abc"[n % 3], str(1 + n % 4)) for n in range(2 * FEW)]
    few = snapshot
    for one in pods:
        few = varied(few, plus=[one])
    many = varied(snapshot, plus=pods)
    assert np.array_equal(many.used, few.used)
    assert np.array_equal(many.scored, few.scored)
    assert np.array_equal(varied(many, minus=pods).used, snapshot.used)


def test_pods_on_nodes_that_are_not_there_change_nothing() -> None:
    snapshot = cluster([node("a")]).snapshot()
    other = varied(snapshot, minus=[resident("x", "gone")], plus=[resident("y", "gone")])
    assert np.array_equal(other.used, snapshot.used)


def test_ports_come_free_and_are_taken() -> None:
    port = (ContainerPort(container_port=80, host_port=80),)
    web = pod("web", on="a", ports=port)
    snapshot = cluster([node("a"), node("b")], [web]).snapshot()
    gone = Resident(key("web"), "uid-web", "a", {}, shape_of(web))
    other = varied(snapshot, minus=[gone], plus=[but(gone, node="b")])
    assert (list(snapshot.ports), list(other.ports)) == ([0], [1])


def test_who_was_only_promised_a_place_is_counted_with_the_others_and_left_out() -> None:
    web = {"app": "web"}
    nodes = [node("a"), node("b")]
    snapshot = cluster(nodes, [pod("x", on="a", labels=web)]).snapshot()
    crowd = Crowd((Selection((), ("default",)),))
    kept = varied(snapshot, plus=[resident("y", "b", app="web")], promised=True)
    assert (snapshot.census.bare, kept.census.bare) == (snapshot.census, snapshot.census)
    assert kept.census.crowd(crowd).tolist() == [1, 1]
    beside = varied(kept, plus=[resident("z", "b", app="web")])
    assert beside.census.crowd(crowd).tolist() == [1, 2]
    assert beside.census.bare.crowd(crowd).tolist() == [1, 1]
    everybody = varied(beside, minus=list(kept.census.residents()))
    assert everybody.census.crowd(crowd).tolist() == [0, 1]
    assert everybody.census.bare.crowd(crowd).tolist() == [0, 1]


def test_crowds_are_counted_anew_and_the_old_ones_stay() -> None:
    web = {"app": "web"}
    snapshot = cluster([node("a"), node("b")], [pod("x", on="a", labels=web)]).snapshot()
    crowd = Crowd((Selection((), ("default",)),))
    gone, come = resident("x", "a", app="web"), resident("y", "b", app="web")
    other = varied(snapshot, minus=[gone], plus=[come])
    assert other.census.crowd(crowd).tolist() == [0, 1]
    assert snapshot.census.crowd(crowd).tolist() == [1, 0]
    assert [other.census.node_of(key(name)) for name in "xy"] == ["", "b"]
    assert [one.key.name for one in other.census.residents()] == ["y"]
