"""The room that refused gangs lack."""

from __future__ import annotations

from typing import Any

from phalanx.library import Cluster
from phalanx.scheduler.decision import Decision
from phalanx.scheduler.diagnosis.diagnosis import Attempt, prepare_attempt
from phalanx.scheduler.shortfall import GroupShortfall, find_shortfalls
from tests.builders import gang, node, pod

RACK = "example.com/rack"


def attempt(cluster: Cluster, subject: str) -> tuple[Attempt, Decision]:
    (ref,) = cluster.find(subject)
    prepared = prepare_attempt(ref, cluster.objects)
    assert isinstance(prepared, Attempt)
    return prepared, prepared.decide()


def shortfalls(cluster: Cluster, subject: str) -> list[GroupShortfall]:
    labels = {one.metadata.name: one.metadata.labels for one in cluster.objects.nodes}
    prepared, decision = attempt(cluster, subject)
    return list(
        find_shortfalls(
            prepared.entity, decision, lambda name, key: labels.get(name, {}).get(key, "")
        )
    )


def in_rack(objects: list[Any]) -> list[Any]:
    objects[0]["spec"]["schedulingConstraints"] = {"topology": [{"key": RACK}]}
    return objects


def test_shortfall_names_the_missing_members_and_what_each_requests() -> None:
    members = list(gang("a", 4, cpu="1500m"))
    for one in members[1:]:
        one["spec"]["containers"][0]["resources"]["requests"]["memory"] = "3Gi"
    cluster = Cluster.from_objects([node("n", cpu="4", memory="64Gi"), *members])
    (found,) = shortfalls(cluster, "podgroup/a")
    assert found.data == {
        "missingMembers": 2,
        "requests": [{"members": 2, "resources": {"cpu": "1500m", "memory": "3Gi"}}],
    }


def test_members_of_different_shapes_are_listed_by_shape() -> None:
    group, first, second = gang("a", 2, cpu="3")
    second["spec"]["containers"][0]["resources"]["requests"] = {"cpu": "1", "example.com/gpu": "7"}
    cluster = Cluster.from_objects([node("n", cpu="2"), group, first, second])
    (found,) = shortfalls(cluster, "podgroup/a")
    assert found.data["missingMembers"] == 2
    assert {
        (row["members"], tuple(row["resources"].items())) for row in found.data["requests"]
    } == {(1, (("cpu", "3"),)), (1, (("cpu", "1"), ("example.com/gpu", "7")))}


def test_domain_is_that_of_the_members_that_run() -> None:
    group, running, waiting = in_rack(list(gang("a", 2, cpu="2")))
    running["spec"]["nodeName"] = "n0"
    nodes = [node(f"n{n}", cpu="2", labels={RACK: f"r{n}"}) for n in range(2)]
    cluster = Cluster.from_objects([*nodes, group, running, waiting])
    (found,) = shortfalls(cluster, "podgroup/a")
    assert found.data == {
        "missingMembers": 1,
        "requests": [{"members": 1, "resources": {"cpu": "2"}}],
        "topologyKey": RACK,
        "domain": "r0",
    }
    assert found.message.startswith("no node in rack r0 takes another member: 0/1 nodes are")
    assert found.message.endswith("restart the gang in another domain")


def test_nothing_lacks_for_a_gang_that_fits_or_preempts() -> None:
    fits = Cluster.from_objects([node("n", cpu="4"), *gang("a", 2, cpu="1")])
    assert [one.data for one in shortfalls(fits, "podgroup/a")] == [{}]
    group, *members = gang("b", 2, cpu="2")
    for one in (group, *members):
        one["spec"]["priority"] = 10
        one["metadata"]["uid"] = one["metadata"]["name"]
    victim = pod("v", cpu="4", spec={"nodeName": "n"})
    victim["metadata"]["uid"] = "v"
    preempts = Cluster.from_objects([node("n", cpu="4"), victim, group, *members])
    assert [(one.data, one.message) for one in shortfalls(preempts, "podgroup/b")] == [({}, "")]


def test_every_group_of_a_tree_has_its_own_shortfall() -> None:
    reference = {"workloadName": "w", "templateName": "t"}
    root = {
        "apiVersion": "scheduling.k8s.io/v1alpha3", "kind": "CompositePodGroup",
        "metadata": {"name": "root", "namespace": "default"},
        "spec": {"schedulingPolicy": {"gang": {"minGroupCount": 2}}, "workloadRef": reference},
    }  # fmt: skip
    small, large = list(gang("small", 1, cpu="1")), list(gang("large", 1, cpu="9"))
    for group in (small[0], large[0]):
        group["spec"] |= {"parentCompositePodGroupName": "root", "workloadRef": reference}
    cluster = Cluster.from_objects([node("n", cpu="4"), root, *small, *large])
    found = {one.group.key.name: one.data for one in shortfalls(cluster, "podgroup/large")}
    assert set(found) == {"small", "large"}
    assert found["large"]["requests"] == [{"members": 1, "resources": {"cpu": "9"}}]
