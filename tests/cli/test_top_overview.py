from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec

from phalanx.api.core import Node, Pod
from phalanx.api.scheduling import PodGroup
from phalanx.api.wire import Object
from phalanx.cli.cluster_overview import ClusterOverview, summarize_cluster
from phalanx.cli.top import overview_data, render_overview
from phalanx.cli.top_screen import TopScreen
from phalanx.cli.workload_states import RESERVED, assess_workloads
from phalanx.scheduler.diagnosis.expected_starts import ExpectedStart
from phalanx.scheduler.queue.scheduler_state import ClusterObjects
from tests.builders import gang, node, pod

RACK = "topology.kubernetes.io/rack"


def cluster(*objects: Object) -> ClusterObjects:
    def of(kind: str, struct: Any) -> Any:
        return [msgspec.convert(one, struct) for one in objects if one["kind"] == kind]

    return ClusterObjects(of("Node", Node), of("PodGroup", PodGroup), of("Pod", Pod))


def summarize(*objects: Object) -> ClusterOverview:
    return summarize_cluster(cluster(*objects), 0.0)


def test_nodes_are_summed_up_by_domain() -> None:
    nodes = [
        node(name, labels={RACK: rack}) for name, rack in (("a", "r1"), ("b", "r1"), ("c", "r2"))
    ]
    seen = summarize(*nodes, pod("p", on="a", cpu="1"), pod("q", on="c", cpu="4"))
    assert [(one.name, one.nodes, one.used.get("cpu")) for one in seen.domains[RACK]] == [
        ("r1", 2, 1000),
        ("r2", 1, 4000),
    ]
    assert (seen.total.pods, seen.total.allocatable["cpu"]) == (2, 12_000)


def test_ended_pods_use_no_resources() -> None:
    ended = pod("p", on="a", cpu="1") | {"status": {"phase": "Succeeded"}}
    assert summarize(node("a"), ended).total.used == {}


def test_a_node_that_is_not_ready_or_cordoned_is_marked() -> None:
    gone, closed = node("gone"), node("closed")
    gone["status"]["conditions"] = [{"type": "Ready", "status": "Unknown"}]
    closed["spec"]["unschedulable"] = True
    seen = summarize(gone, closed)
    assert (
        render_overview(seen)[0].text
        == "2 nodes (1 not ready, 1 cordoned), 0 pods placed, 0 waiting"
    )
    assert [site.problem for site in seen.nodes] == ["cordoned", "not ready"]


def test_overview_shows_the_progress_of_gangs() -> None:
    seen = summarize(node("a"), *gang("train", 2, cpu="1"))
    [line] = [line for line in render_overview(seen) if line.text.startswith("podgroup/train")]
    assert (line.text.split()[1], line.text.split()[3], line.colour) == ("Waiting", "0/2", "yellow")
    elsewhere = render_overview(seen, "elsewhere")
    assert not [one for one in elsewhere if one.text.startswith("podgroup/train")]


def test_overview_says_never_of_gangs_that_the_queue_calls_so() -> None:
    objects = cluster(node("a"), *gang("huge", 2, cpu="99"), *gang("train", 2, cpu="1"))
    seen = summarize_cluster(objects, 0.0)
    assert {one.row.title: one.state for one in seen.gangs} == {
        one.row.title: one.state for one in assess_workloads(objects, 0.0)
    }
    [line] = [line for line in render_overview(seen) if line.text.startswith("podgroup/huge")]
    assert (line.text.split()[1], line.colour) == ("Never", "red")


def test_overview_of_an_empty_cluster() -> None:
    seen = summarize()
    assert render_overview(seen)[0].text == "0 nodes, 0 pods placed, 0 waiting"
    assert overview_data(seen)["nodes"] == []


def test_overview_says_when_a_gang_with_reserved_nodes_starts() -> None:
    objects = cluster(node("a"), *gang("train", 2, cpu="1"))
    seen = summarize_cluster(objects, 0.0)
    start = ExpectedStart(720.0, is_reserved=True)
    gangs = [one._replace(state=RESERVED, expected=start) for one in seen.gangs]
    reserved = replace(seen, gangs=gangs)
    [line] = [one.text for one in render_overview(reserved) if one.text.startswith("podgroup/")]
    assert line.endswith("0/2       starts in 12m")
    screen = TopScreen(objects, reserved, now=0.0)
    [line] = [one.text for one in screen.render(80, 24) if one.text.startswith("> podgroup/")]
    assert line.endswith("starts in 12m")
