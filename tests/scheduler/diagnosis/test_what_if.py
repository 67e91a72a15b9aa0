from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from phalanx.api.core import Node, Pod
from phalanx.api.meta import Key, Ref, composite_pod_group_ref, pod_group_ref, pod_ref
from phalanx.api.scheduling import CompositePodGroup, PodGroup
from phalanx.api.wire import Object
from phalanx.scheduler.diagnosis.what_if import (
    Forecast,
    ForecastVerdict,
    NewNodeTemplate,
    UnknownObject,
    describe_impossible,
    forecast,
    node_template,
    with_min_count,
    with_nodes,
    without_node,
)
from phalanx.scheduler.queue.scheduler_state import ClusterObjects
from tests.builders import gang, node, pod

EARLY, LATE = "2026-01-01T00:00:00Z", "2026-01-01T01:00:00Z"


def with_creation_time(objects: Sequence[Object], when: str = EARLY) -> list[Object]:
    for one in objects:
        one["metadata"] |= {"uid": one["metadata"]["name"], "creationTimestamp": when}
    return list(objects)


def running(
    name: str, *nodes: str, when: str = EARLY, owned: bool = False, cpu: str
) -> list[Object]:
    """A gang with a member on each of these nodes."""
    group, *pods = gang(name, len(nodes), cpu=cpu)
    for one, on in zip(pods, nodes, strict=True):
        one["spec"]["nodeName"], one["status"] = on, {"phase": "Running"}
        if owned:
            one["metadata"]["ownerReferences"] = [
                {
                    "apiVersion": "batch/v1",
                    "kind": "Job",
                    "name": name,
                    "uid": name,
                    "controller": True,
                }
            ]
    return with_creation_time([group, *pods], when)


def cluster(*objects: Object) -> ClusterObjects:
    def of(kind: str, struct: Any) -> Any:
        return [msgspec.convert(one, struct) for one in objects if one["kind"] == kind]

    trees = of("CompositePodGroup", CompositePodGroup)
    return ClusterObjects(of("Node", Node), [*of("PodGroup", PodGroup), *trees], of("Pod", Pod))


def group_id(name: str) -> Ref:
    return pod_group_ref(Key("default", name))


def forecasts(seen: ClusterObjects, *names: str) -> list[Forecast]:
    return forecast([group_id(name) for name in names], seen)


def waited_for(one: Forecast) -> list[tuple[str, int]]:
    return [(holder.ref.key.name, holder.pods) for holder in one.waits_for]


def test_forecast_of_fitting_gang_names_its_nodes() -> None:
    seen = cluster(node("a"), node("b"), *with_creation_time(gang("new", 2, cpu="3")))
    [found] = forecasts(seen, "new")
    assert (found.verdict, found.message) == (ForecastVerdict.FITS, "2 of 2 members get a node now")
    assert sorted(binding.node for binding in found.bindings) == ["a", "b"]


def test_forecast_of_waiting_gang_names_only_the_necessary_workloads() -> None:
    seen = cluster(
        node("a"), node("b"), node("c"),
        *running("first", "a", "b", cpu="3"),
        *running("second", "c", when=LATE, cpu="3"),
        *with_creation_time(gang("new", 2, cpu="3"), LATE),
    )  # fmt: skip
    [found] = forecasts(seen, "new")
    assert (found.verdict, waited_for(found)) == (ForecastVerdict.WAITS, [("first", 2)])
    assert found.details == ("0/3 nodes are available: 3 Insufficient cpu.",)
    assert found.summary == "0 of 2 members fit: every node lacks cpu."


def test_several_workloads_may_have_to_end() -> None:
    seen = cluster(
        node("a"), node("b"), node("c"),
        *running("first", "a", cpu="3"),
        *running("second", "b", cpu="3"),
        *running("small", "c", cpu="1"),
        *with_creation_time(gang("new", 3, cpu="3"), LATE),
    )  # fmt: skip
    [found] = forecasts(seen, "new")
    assert waited_for(found) == [("first", 1), ("second", 1)]


def test_gang_that_does_not_fit_alone_never_fits() -> None:
    seen = cluster(
        node("a"), *running("old", "a", cpu="3"), *with_creation_time(gang("new", 2, cpu="3"))
    )
    [found] = forecasts(seen, "new")
    assert found.verdict is ForecastVerdict.NEVER
    assert found.message.startswith("even if nothing else ran: minCount (2) cannot be satisfied")
    assert found.summary == "1 of 2 members fit even if nothing else ran: all nodes run out of cpu."
    assert describe_impossible(group_id("new"), seen) == (
        "1 of 2 members fit: all nodes run out of cpu."
    )


def test_gang_that_fits_on_empty_nodes_is_not_impossible() -> None:
    seen = cluster(
        node("a"), *running("old", "a", cpu="3"), *with_creation_time(gang("new", 1, cpu="3"))
    )
    assert describe_impossible(group_id("new"), seen) == ""


def test_waiting_gang_precedes_a_new_one() -> None:
    seen = cluster(
        node("a"),
        *with_creation_time(gang("early", 1, cpu="3")),
        *with_creation_time(gang("new", 1, cpu="3"), LATE),
    )
    early, new = forecasts(seen, "early", "new")
    assert (early.verdict, new.verdict) == (ForecastVerdict.FITS, ForecastVerdict.WAITS)
    assert waited_for(new) == [("early", 1)]


def test_less_important_workload_is_preempted() -> None:
    urgent = with_creation_time(gang("new", 1, cpu="3"), LATE)
    for one in urgent:
        one["spec"]["priority"] = 100
    seen = cluster(node("a"), *running("old", "a", cpu="3"), *urgent)
    [found] = forecasts(seen, "new")
    assert found.verdict is ForecastVerdict.WAITS
    assert [(one.ref, one.pods) for one in found.victims] == [(group_id("old"), 1)]
    assert found.summary == "it fits after less important workloads are preempted."


def test_incomplete_gang_waits_for_its_members() -> None:
    seen = cluster(node("a"), *with_creation_time(gang("new", 1, minimum=3, cpu="1")))
    [found] = forecasts(seen, "new")
    assert (found.verdict, found.message) == (
        ForecastVerdict.WAITS, "waiting for 3 members, 1 is there",
    )  # fmt: skip


def test_pod_without_group_is_forecast() -> None:
    seen = cluster(node("a"), *with_creation_time([pod("one", cpu="1")]))
    [found] = forecast([pod_ref(Key("default", "one"))], seen)
    assert found.verdict is ForecastVerdict.FITS


def test_new_nodes_copy_an_existing_shape() -> None:
    seen = cluster(node("a", labels={"rack": "r"}), *with_creation_time(gang("new", 2, cpu="3")))
    like = node_template(seen)
    assert isinstance(like, NewNodeTemplate)
    more = with_nodes(seen, 2, like)
    assert [one.metadata.name for one in more.nodes] == ["a", "new-0", "new-1"]
    assert [one.metadata.labels.get("rack") for one in more.nodes] == ["r"] * 3
    assert forecasts(more, "new")[0].verdict is ForecastVerdict.FITS


def test_missing_node_template_is_reported() -> None:
    assert isinstance(node_template(cluster()), UnknownObject)
    assert isinstance(node_template(cluster(node("a")), "b"), UnknownObject)


def test_pods_of_a_drained_node_wait_if_a_controller_recreates_them() -> None:
    seen = cluster(
        node("a"), node("b"), *running("mine", "a", owned=True, cpu="3"),
        *running("lost", "a", cpu="1"),
    )  # fmt: skip
    less = without_node(seen, "a")
    assert not isinstance(less, UnknownObject)
    assert [(one.metadata.name, one.occupied_node) for one in less.pods] == [("mine-0", "")]
    [found] = forecasts(less, "mine")
    assert [binding.node for binding in found.bindings] == ["b"]
    assert isinstance(without_node(seen, "nowhere"), UnknownObject)


def test_min_count_can_be_changed() -> None:
    seen = cluster(node("a"), *with_creation_time(gang("new", 2, cpu="3")))
    fewer = with_min_count(seen, "default", "new", count=1)
    assert not isinstance(fewer, UnknownObject)
    assert forecasts(fewer, "new")[0].verdict is ForecastVerdict.FITS
    assert isinstance(with_min_count(seen, "elsewhere", "new", count=1), UnknownObject)


def tree(name: str, *leaves: list[Object]) -> list[Object]:
    """Gangs that are placed together."""
    root: Object = {
        "kind": "CompositePodGroup", "metadata": {"name": name, "namespace": "default"},
        "spec": {"schedulingPolicy": {"gang": {"minGroupCount": len(leaves)}}},
    }  # fmt: skip
    objects = [one for leaf in leaves for one in leaf]
    for one in objects:
        if one["kind"] == "PodGroup":
            one["spec"]["parentCompositePodGroupName"] = name
    return with_creation_time([root, *objects], LATE)


def test_tree_fits_or_waits_as_a_whole() -> None:
    root = composite_pod_group_ref(Key("default", "root"))
    leaves = (gang("x", 1, cpu="3"), gang("y", 1, cpu="3"))
    nodes, held = (node("a"), node("b")), running("old", "b", cpu="3")
    [fits] = forecast([root], cluster(*nodes, *tree("root", *leaves)))
    assert (fits.verdict, len(fits.bindings)) == (ForecastVerdict.FITS, 2)
    [waits] = forecast([root], cluster(*nodes, *held, *tree("root", *leaves)))
    assert (waits.verdict, waited_for(waits)) == (ForecastVerdict.WAITS, [("old", 1)])
    fewer = with_min_count(
        cluster(*nodes, *held, *tree("root", *leaves)), "default", "root", count=1
    )
    assert not isinstance(fewer, UnknownObject)
    assert forecast([root], fewer)[0].verdict is ForecastVerdict.FITS


def test_progress_is_reported_before_each_subject() -> None:
    objects = [node("n0", cpu="4"), *with_creation_time(gang("a", 1, cpu="1"))]
    objects += with_creation_time(gang("b", 1, cpu="9"), LATE)
    subjects = [pod_group_ref(Key("default", name)) for name in ("a", "b")]
    seen = list[tuple[int, int]]()
    forecast(subjects, cluster(*objects), on_progress=lambda *counts: seen.append(counts))
    assert seen == [(0, 2), (1, 2)]
