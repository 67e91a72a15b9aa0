"""Why a pod or group is pending, from the objects of a cluster."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace as but

from phalanx.api.core import Node, Pod, Taint
from phalanx.api.meta import Ref, composite_pod_group_ref, pod_group_ref, pod_ref
from phalanx.api.scheduling import TOPOLOGY_ANNOTATION
from phalanx.scheduler.cluster.group_tree import Group
from phalanx.scheduler.diagnosis.diagnosis import (
    EMPTY,
    FAILED,
    FINISHED,
    FITS,
    NOT_READY,
    PLACED,
    Diagnosis,
    diagnose,
)
from phalanx.scheduler.explain import CureKind
from phalanx.scheduler.policy import DEFAULT_POLICY, Profiles, SchedulerPolicy
from phalanx.scheduler.queue.scheduler_state import ClusterObjects
from tests.scheduler.builders import composite, gang, key, node, pod


def diagnose_objects(
    subject: Ref, nodes: Iterable[Node], pods: Iterable[Pod], groups: Iterable[Group] = (),
    now: float = 0.0,
) -> Diagnosis:  # fmt: skip
    return diagnose(subject, ClusterObjects(list(nodes), list(groups), list(pods)), now=now)


def group_id(name: str) -> Ref:
    return pod_group_ref(key(name))


def members(count: int, group: str = "g", *, cpu: str = "1") -> list[Pod]:
    return [pod(f"{group}-{i}", group, cpu=cpu) for i in range(count)]


def with_creation_time(one: Pod, at: str) -> Pod:
    return but(one, metadata=but(one.metadata, creation_timestamp=at))


def test_waiting_gang_has_reason_evidence_and_cures() -> None:
    found = diagnose_objects(group_id("g"), [node("a", cpu="2")], members(3), [gang("g", 3)])
    assert (found.state, found.bound, found.pending) == ("Unschedulable", 0, 3)
    assert found.message == "minCount (3) cannot be satisfied: 2 scheduled, 0 remaining"
    assert found.evidence is not None
    assert [row.fit for row in found.evidence.rows] == [2]
    assert [cure.text for cure in found.cures if cure.is_verified] == [
        "lower minCount from 3 to 2",
        "add 1 node like a (cpu 2, memory 8Gi)",
    ]


def test_verified_cures_come_first_and_are_not_repeated() -> None:
    found = diagnose_objects(group_id("g"), [node("a", cpu="2")], members(3), [gang("g", 3)])
    assert [cure.kind for cure in found.cures] == [CureKind.SMALLER, CureKind.NODES, None]
    assert found.cures[-1].text == "free or add cpu 1 on node a"


def test_gang_that_fits_has_no_cures() -> None:
    found = diagnose_objects(group_id("g"), [node("a")], members(3), [gang("g", 3)])
    assert (found.state, found.cures, found.evidence) == (FITS, (), None)


def test_placed_gang_and_empty_gang_are_reported() -> None:
    bound = [pod("g-0", "g", on="a")]
    assert diagnose_objects(group_id("g"), [node("a")], bound, [gang("g", 1)]).state == PLACED
    assert diagnose_objects(group_id("g"), [node("a")], [], [gang("g", 1)]).state == EMPTY


def test_incomplete_gang_is_not_ready() -> None:
    found = diagnose_objects(group_id("g"), [node("a")], members(1), [gang("g", 2)])
    assert (found.state, found.message) == (NOT_READY, "waiting for 2 members, 1 is there")


def test_pod_of_missing_group_waits_for_the_group() -> None:
    found = diagnose_objects(group_id("g"), [node("a")], members(1))
    assert (found.state, found.pending) == (NOT_READY, 1)
    assert found.message == 'waiting for PodGroup "g" to appear'


def test_group_of_a_tree_is_decided_with_the_whole_tree() -> None:
    groups: list[Group] = [composite("t", 2), gang("x", 2, parent="t"), gang("y", 2, parent="t")]
    pods = [*members(2, "x"), *members(2, "y")]
    found = diagnose_objects(group_id("y"), [node("a", cpu="3")], pods, groups)
    assert (found.tree, found.pending) == (key("t"), 2)
    assert {one.ref.name for one in found.groups} == {"t", "x", "y"}
    assert {one.pod.name for one in found.pods} == {"y-0", "y-1"}
    whole = diagnose_objects(composite_pod_group_ref(key("t")), [node("a", cpu="3")], pods, groups)
    assert (whole.tree, whole.pending) == (None, 4)
    assert whole.cures == found.cures
    assert [cure.text for cure in whole.cures if cure.kind is CureKind.SMALLER] == [
        "lower minCount of PodGroup x from 2 to 1",
        "lower minCount of PodGroup y from 2 to 1",
        "lower minGroupCount from 2 to 1",
    ]


def test_incomplete_tree_names_the_missing_group() -> None:
    found = diagnose_objects(
        group_id("x"), [node("a")], members(1, "x"), [gang("x", 1, parent="t")]
    )
    assert (found.state, found.message) == (
        NOT_READY, 'waiting for CompositePodGroup "t" to appear',
    )  # fmt: skip


def test_preempting_pod_has_no_cures() -> None:
    pods = [pod("low", on="a", cpu="4"), pod("p", cpu="4", priority=5)]
    found = diagnose_objects(pod_ref(key("p")), [node("a")], pods)
    assert "preempting 1 victims" in found.message
    assert found.cures == ()


def test_pods_of_any_scheduler_are_diagnosed() -> None:
    found = diagnose_objects(pod_ref(key("p")), [node("a")], [pod("p", cpu="9", scheduler="other")])
    assert found.message == "0/1 nodes are available: 1 Insufficient cpu."


def test_policy_of_the_profile_is_used() -> None:
    tolerant = SchedulerPolicy(
        filters={n: f for n, f in DEFAULT_POLICY.filters.items() if n != "TaintToleration"}
    )
    nodes = [node("a", taints=(Taint("ours", "", "NoSchedule"),))]
    cluster = ClusterObjects(nodes, [], [pod("p", cpu="1", scheduler="tolerant")])
    subject = pod_ref(key("p"))
    assert diagnose(subject, cluster).state == "Unschedulable"
    assert diagnose(subject, cluster, Profiles({"tolerant": tolerant})).state == FITS


def test_topology_is_relaxed_after_the_waiting_time() -> None:
    annotations = {TOPOLOGY_ANNOTATION: "rack, * after 1m"}
    group = but(gang("g", 2), metadata=but(gang("g", 2).metadata, annotations=annotations))
    nodes = [node("a", {"rack": "r"}, cpu="1"), node("b", {"rack": "s"}, cpu="1")]
    pods = [with_creation_time(one, "1970-01-01T00:01:40Z") for one in members(2)]
    early, late = (
        diagnose_objects(group_id("g"), nodes, pods, [group], now) for now in (110.0, 170.0)
    )
    assert (early.state, late.state) == ("Unschedulable", FITS)
    assert early.cures[1].text == "add 1 node like a (cpu 1, memory 8Gi)"
    assert early.cures[2].text == (
        "wait until 60 s have passed since it was complete: then any nodes will do"
    )


def test_contradictory_group_needs_an_edit_and_has_no_evidence() -> None:
    found = diagnose_objects(group_id("g"), [node("a")], members(2), [gang("g", 2, priority=5)])
    assert (found.state, found.evidence) == ("SchedulerError", None)
    assert [cure.text for cure in found.cures] == [
        "give the group and all its pods the same priority class"
    ]


def test_diagnosis_without_nodes_has_no_evidence_rows() -> None:
    found = diagnose_objects(group_id("g"), [], members(2), [gang("g", 2)])
    assert found.evidence is not None
    assert found.evidence.rows == ()
    assert [cure.text for cure in found.cures] == ["add a node with capacity for cpu 1"]


def test_removal_of_the_topology_is_suggested_if_no_node_has_the_label() -> None:
    found = diagnose_objects(
        group_id("g"), [node("a")], members(2), [gang("g", 2, topology="rack")]
    )
    assert found.message == "no feasible placements found"
    assert [cure.text for cure in found.cures if cure.is_verified] == [
        "let the members be anywhere, not in one rack"
    ]


def test_pods_that_have_ended_say_how() -> None:
    refused = pod("p", "g", on="a", phase="Failed")
    refused = but(refused, status=but(refused.status, reason="Refused", message="no right to run"))
    lone = but(refused, spec=but(refused.spec, scheduling_group=None))
    found = diagnose_objects(pod_ref(key("p")), [node("a")], [lone])
    assert (found.state, found.message) == (FAILED, "Refused: no right to run")
    pods = [refused, pod("q", "g", on="a", phase="Succeeded")]
    found = diagnose_objects(group_id("g"), [node("a")], pods, [gang("g", 2)])
    assert (found.state, found.message) == (
        FAILED, "1 of 2 members failed: Refused: no right to run"
    )  # fmt: skip
    found = diagnose_objects(group_id("g"), [node("a")], pods[1:], [gang("g", 1)])
    assert (found.state, found.message) == (FINISHED, "1 of 1 members succeeded")
