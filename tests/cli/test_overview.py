from __future__ import annotations

from typing import Any

import msgspec

from phalanx.api.core import Node, Pod
from phalanx.api.scheduling import PodGroup
from phalanx.api.wire import Object
from phalanx.cli.overview import as_data, overview, page
from phalanx.scheduler.asking.diagnosis import Cluster
from tests.builders import gang, node, pod

RACK = "topology.kubernetes.io/rack"


def cluster(*objects: Object) -> Cluster:
    def of(kind: str, struct: Any) -> Any:
        return [msgspec.convert(one, struct) for one in objects if one["kind"] == kind]

    return Cluster(of("Node", Node), of("PodGroup", PodGroup), of("Pod", Pod))


def test_nodes_are_added_up_by_domain() -> None:
    nodes = [
        node(name, labels={RACK: rack}) for name, rack in (("a", "r1"), ("b", "r1"), ("c", "r2"))
    ]
    seen = overview(cluster(*nodes, pod("p", on="a", cpu="1"), pod("q", on="c", cpu="4")))
    assert [(one.name, one.nodes, one.used.get("cpu")) for one in seen.domains[RACK]] == [
        ("r1", 2, 1000),
        ("r2", 1, 4000),
    ]
    assert (seen.whole.pods, seen.whole.room["cpu"]) == (2, 12_000)


def test_pods_that_have_ended_take_no_room() -> None:
    ended = pod("p", on="a", cpu="1") | {"status": {"phase": "Succeeded"}}
    assert overview(cluster(node("a"), ended)).whole.used == {}


def test_a_node_that_is_not_ready_or_cordoned_is_marked() -> None:
    gone, closed = node("gone"), node("closed")
    gone["status"]["conditions"] = [{"type": "Ready", "status": "Unknown"}]
    closed["spec"]["unschedulable"] = True
    seen = overview(cluster(gone, closed))
    assert page(seen)[0].text == "2 nodes (1 not ready, 1 cordoned), 0 pods placed, 0 waiting"
    assert [site.trouble for site in seen.nodes] == ["cordoned", "not ready"]


def test_the_page_says_how_gangs_get_on() -> None:
    seen = overview(cluster(node("a"), *gang("train", 2, cpu="1")))
    [line] = [line for line in page(seen) if line.text.startswith("train")]
    assert (line.text.split()[1], line.text.split()[3], line.colour) == ("waiting", "0/2", "yellow")
    assert not [one for one in page(seen, "elsewhere") if one.text.startswith("train")]


def test_an_empty_cluster_has_a_page_too() -> None:
    seen = overview(cluster())
    assert page(seen)[0].text == "0 nodes, 0 pods placed, 0 waiting"
    assert as_data(seen)["nodes"] == []
