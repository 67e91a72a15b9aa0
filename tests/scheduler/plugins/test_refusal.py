"""Each filter alone, and the refusal of a pod that no node takes."""

from __future__ import annotations

import pytest
from hypothesis import given

from phalanx.api.core import (
    Affinity,
    Node,
    NodeAffinity,
    NodeRequirement,
    NodeSelector,
    NodeTerm,
    Pod,
    Taint,
    Toleration,
)
from phalanx.api.selectors import LabelRequirement
from phalanx.scheduler.cluster.node_constraints import NodeSelectorTerm, tolerates
from phalanx.scheduler.cluster.pod_shape import shape_of
from phalanx.scheduler.decision import ClusterEvent, Refusal
from phalanx.scheduler.plugins.filtering import build_refusal, run_filter
from phalanx.scheduler.plugins.node_affinity import node_affinity_filter
from phalanx.scheduler.plugins.plugin_context import initial_context
from phalanx.scheduler.policy import DEFAULT_POLICY
from tests.scheduler import oracle
from tests.scheduler.builders import cluster, node, pod
from tests.scheduler.strategies import Situation, situations

TAINT = Taint("dedicated", "train", "NoSchedule")
FILTERS = DEFAULT_POLICY.filters


def refusal_on(nodes: list[Node], new_pod: Pod, running: list[Pod] | None = None) -> Refusal:
    snapshot = cluster(nodes, running or []).snapshot()
    return build_refusal(FILTERS, initial_context(snapshot, shape_of(new_pod)))


@pytest.mark.parametrize(
    ("toleration", "covered"),
    [
        (Toleration("dedicated", "Equal", "train", "NoSchedule"), True),
        (Toleration("dedicated", "Equal", "train"), True),
        (Toleration("dedicated", "Exists"), True),
        (Toleration("", "Exists"), True),
        (Toleration("dedicated", "Equal", "serve"), False),
        (Toleration("other", "Exists"), False),
        (Toleration("", "Equal", "train"), False),
        (Toleration("dedicated", "Exists", "", "NoExecute"), False),
    ],
)
def test_toleration_covers_the_taints_that_it_names(toleration: Toleration, covered: bool) -> None:
    assert tolerates(toleration, TAINT) is covered


def test_cordoned_node_rejects_pods_that_do_not_tolerate_it() -> None:
    answer = refusal_on([node("a", cordoned=True)], pod("p"))
    assert answer.counts == (("node(s) were unschedulable", 1),)
    tolerant = pod("p", tolerations=(Toleration("node.kubernetes.io/unschedulable", "Exists"),))
    assert refusal_on([node("a", cordoned=True)], tolerant).counts == ()


def test_hard_taints_reject_and_soft_taints_do_not() -> None:
    for effect, counts in (
        ("NoSchedule", (("node(s) had untolerated taint(s)", 1),)),
        ("NoExecute", (("node(s) had untolerated taint(s)", 1),)),
        ("PreferNoSchedule", ()),
    ):
        assert refusal_on([node("a", taints=(Taint("x", "y", effect),))], pod("p")).counts == counts


def test_node_selector_requires_all_its_labels() -> None:
    machines = [node("a", {"disk": "ssd"}), node("b", {"zone": "1"})]
    answer = refusal_on(machines, pod("p", selector={"disk": "ssd", "zone": "1"}))
    assert answer.counts == (("node(s) didn't match Pod's node affinity/selector", 2),)


def test_full_node_counts_under_every_resource_that_it_lacks() -> None:
    machines = [node("a", cpu="1", memory="1Gi", pods="1")]
    answer = refusal_on(machines, pod("p", cpu="1", memory="1Gi"), [pod("q", on="a", cpu="1")])
    assert answer.counts == (("Insufficient cpu", 1), ("Too many pods", 1))


def test_resource_that_no_node_has_is_insufficient_everywhere() -> None:
    answer = refusal_on([node("a"), node("b")], pod("p", requests={"example.com/gpu": "1"}))
    assert answer.counts == (("Insufficient example.com/gpu", 2),)


def test_node_counts_under_the_first_filter_that_rejects_it() -> None:
    answer = refusal_on([node("a", cordoned=True, cpu="1", taints=(TAINT,))], pod("p", cpu="2"))
    assert answer.counts == (("node(s) were unschedulable", 1),)


def test_refused_pod_is_woken_by_the_events_of_the_rejecting_filters() -> None:
    assert refusal_on([], pod("p")).wakes_on == {ClusterEvent.NODE_ADDED}
    cordoned = refusal_on([node("a", cordoned=True)], pod("p"))
    assert cordoned.wakes_on == {ClusterEvent.NODE_ADDED, ClusterEvent.NODE_UPDATED}
    full = refusal_on([node("a", cpu="1")], pod("p", cpu="2"))
    assert full.wakes_on == {
        ClusterEvent.NODE_ADDED,
        ClusterEvent.NODE_UPDATED,
        ClusterEvent.POD_GONE,
    }


@pytest.mark.parametrize(
    ("machine", "new_pod", "cure"),
    [
        (node("a", cordoned=True), pod("p"), "uncordon node a"),
        (
            node("a", taints=(TAINT,)),
            pod("p"),
            "tolerate dedicated=train:NoSchedule of node a, or remove it",
        ),
        (
            node("a", {"zone": "1"}),
            pod("p", selector={"disk": "ssd", "zone": "1"}),
            "label node a with disk=ssd",
        ),
        (
            node("a", cpu="1500m", memory="1Gi"),
            pod("p", cpu="2", memory="3Gi"),
            "free or add cpu 500m, memory 2Gi on node a",
        ),
        (
            node("a"),
            pod("p", requests={"example.com/gpu": "2"}),
            "free or add example.com/gpu 2 on node a",
        ),
    ],
)
def test_every_filter_suggests_a_cure(machine: Node, new_pod: Pod, cure: str) -> None:
    assert refusal_on([machine], new_pod).cures[0] == cure


def test_cure_is_suggested_for_nodes_that_one_filter_rejects() -> None:
    machines = [
        node("a", cordoned=True, cpu="1"),
        node("b", cpu="1"),
        node("c", cpu="1500m"),
        node("d", cordoned=True),
    ]
    assert refusal_on(machines, pod("p", cpu="2")).cures == (
        "uncordon node d",
        "free or add cpu 500m on node c",
        "add a node with capacity for cpu 2",
    )


def test_new_node_needs_the_labels_of_the_selector() -> None:
    answer = refusal_on([], pod("p", cpu="1", selector={"disk": "ssd"}))
    assert answer.cures == ("add a node with capacity for cpu 1 and the label disk=ssd",)


def pod_with_terms(*terms: NodeTerm, selector: dict[str, str] | None = None) -> Pod:
    """A pod that requires one of these terms, and labels."""
    needs = NodeAffinity(NodeSelector(terms))
    return pod("p", cpu="1", selector=selector, affinity=Affinity(needs))


def node_term(key: str, operator: str, *values: str) -> NodeTerm:
    return NodeTerm((NodeRequirement(key, operator, values),))


NAMED = NodeTerm(match_fields=(NodeRequirement("metadata.name", "In", ("b",)),))
SSD = {"disk": "ssd"}


@pytest.mark.parametrize(
    ("new_pod", "labels"),
    [
        (pod_with_terms(node_term("zone", "In", "z2", "z1"), selector=SSD), "disk=ssd, zone=z1"),
        (pod_with_terms(node_term("gpu", "Exists"), selector=SSD), "disk=ssd, gpu=true"),
        (pod_with_terms(node_term("old", "DoesNotExist"), selector=SSD), "disk=ssd"),
        (
            pod_with_terms(node_term("cores", "Gt", "8"), node_term("a", "In", "b"), selector=SSD),
            "a=b, disk=ssd",
        ),
    ],
)
def test_labels_are_a_cure_if_they_satisfy_selector_and_affinity(new_pod: Pod, labels: str) -> None:
    assert refusal_on([node("a")], new_pod).cures == (
        f"label node a with {labels}",
        f"add a node with capacity for cpu 1 and the label {labels}",
    )


@pytest.mark.parametrize(
    ("term", "is_possible"),
    [
        (node_term("cores", "Gt", "8"), True),
        (node_term("disk", "In", "hdd"), True),
        (NAMED, True),
        (NodeTerm(), False),
    ],
)
def test_no_label_is_suggested_if_labels_are_not_enough(term: NodeTerm, is_possible: bool) -> None:
    bounds = "the pod's node selector and affinity"
    new = (f"add a node with capacity for cpu 1 that {bounds} would allow",) if is_possible else ()
    found = refusal_on([node("a")], pod_with_terms(term, selector=SSD)).cures
    assert found == (f"let {bounds} allow node a", *new)


def test_affinity_is_changed_rather_than_the_node_if_the_selector_matches() -> None:
    assert refusal_on(
        [node("a", SSD)], pod_with_terms(node_term("zone", "In", "z"), selector=SSD)
    ).cures == (
        "let the pod's node affinity allow node a",
        "add a node with capacity for cpu 1 and the label disk=ssd, zone=z",
    )
    assert refusal_on([node("a")], pod_with_terms(node_term("cores", "Lt", "8"))).cures == (
        "let the pod's node affinity allow node a",
        "add a node with capacity for cpu 1 that the pod's node affinity would allow",
    )


TRAINING = NodeSelectorTerm((LabelRequirement("pool", "in", frozenset({"training"})),))
TRAINING_ONLY = {**FILTERS, "NodeAffinity": node_affinity_filter((TRAINING,))}


def test_label_that_violates_the_added_affinity_is_no_cure() -> None:
    new_pod = shape_of(pod("p", selector={"pool": "serving"}))
    snapshot = cluster([node("a", {"pool": "training"})]).snapshot()
    assert build_refusal(TRAINING_ONLY, initial_context(snapshot, new_pod)).cures[0] == (
        "let the pod's node selector allow node a"
    )


def test_node_outside_the_added_affinity_is_rejected_for_that_first() -> None:
    machines = [node("a"), node("b", {"pool": "training"}), node("c", {"disk": "ssd"})]

    def answer(*found: Node) -> Refusal:
        new_pod = shape_of(pod("p", selector={"disk": "ssd"}))
        return build_refusal(TRAINING_ONLY, initial_context(cluster(found).snapshot(), new_pod))

    assert answer(*machines).counts == (
        ("node(s) didn't match scheduler-enforced node affinity", 2),
        ("node(s) didn't match Pod's node affinity/selector", 1),
    )
    assert answer(*machines).cures[0] == "label node b with disk=ssd"
    assert answer(machines[2]).cures[0] == (
        "let the affinity that the scheduler adds to all pods allow node c"
    )


@given(situations(constraints=False))
def test_filters_agree_for_one_node_and_for_all(situation: Situation) -> None:
    snapshot = situation.cache().snapshot()
    world = situation.oracle_cluster()
    for member in situation.entity.members[:5]:
        request = member.shape.request_vector(snapshot.columns)
        context = initial_context(snapshot, member.shape)
        masks = [run_filter(filter_, context) for filter_ in FILTERS.values()]
        for i, machine in enumerate(world.nodes.values()):
            is_admitted = not any(mask[i] for mask in masks)
            assert is_admitted == (not oracle.refusals(member.pod, machine, world))
            for filter_, mask in zip(FILTERS.values(), masks, strict=True):
                if filter_.admits_node_class:
                    assert filter_.admits_node_class(request, snapshot.node_class(i)) == (
                        not mask[i]
                    )
