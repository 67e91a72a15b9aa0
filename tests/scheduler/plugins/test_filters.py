"""May it run here? Each filter alone, and the words when nobody may."""

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
from phalanx.scheduler.plugins.filters import (
    FILTER_PLUGINS,
    FilterDependency,
    build_refusal,
    node_affinity_filter,
    rejected_nodes,
)
from phalanx.scheduler.plugins.plugin_context import initial_context
from tests.scheduler import oracle
from tests.scheduler.builders import cluster, node, pod
from tests.scheduler.strategies import Situation, situations

TAINT = Taint("dedicated", "train", "NoSchedule")


def refusal_on(nodes: list[Node], newcomer: Pod, running: list[Pod] | None = None) -> Refusal:
    snapshot = cluster(nodes, running or []).snapshot()
    return build_refusal(FILTER_PLUGINS, initial_context(snapshot, shape_of(newcomer)))


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
def test_a_toleration_covers_what_it_names(toleration: Toleration, covered: bool) -> None:
    assert tolerates(toleration, TAINT) is covered


def test_a_cordoned_node_refuses_all_but_those_that_tolerate_it() -> None:
    answer = refusal_on([node("a", cordoned=True)], pod("p"))
    assert answer.counts == (("node(s) were unschedulable", 1),)
    tolerant = pod("p", tolerations=(Toleration("node.kubernetes.io/unschedulable", "Exists"),))
    assert refusal_on([node("a", cordoned=True)], tolerant).counts == ()


def test_hard_taints_refuse_and_soft_ones_do_not() -> None:
    for effect, counts in (
        ("NoSchedule", (("node(s) had untolerated taint(s)", 1),)),
        ("NoExecute", (("node(s) had untolerated taint(s)", 1),)),
        ("PreferNoSchedule", ()),
    ):
        assert refusal_on([node("a", taints=(Taint("x", "y", effect),))], pod("p")).counts == counts


def test_a_selector_wants_all_its_labels() -> None:
    machines = [node("a", {"disk": "ssd"}), node("b", {"zone": "1"})]
    answer = refusal_on(machines, pod("p", selector={"disk": "ssd", "zone": "1"}))
    assert answer.counts == (("node(s) didn't match Pod's node affinity/selector", 2),)


def test_a_full_node_names_everything_that_it_lacks() -> None:
    machines = [node("a", cpu="1", memory="1Gi", pods="1")]
    answer = refusal_on(machines, pod("p", cpu="1", memory="1Gi"), [pod("q", on="a", cpu="1")])
    assert answer.counts == (("Insufficient cpu", 1), ("Too many pods", 1))


def test_a_resource_that_nobody_has_is_lacking_everywhere() -> None:
    answer = refusal_on([node("a"), node("b")], pod("p", asks={"example.com/gpu": "1"}))
    assert answer.counts == (("Insufficient example.com/gpu", 2),)


def test_a_node_counts_under_the_first_filter_that_refuses_it() -> None:
    answer = refusal_on([node("a", cordoned=True, cpu="1", taints=(TAINT,))], pod("p", cpu="2"))
    assert answer.counts == (("node(s) were unschedulable", 1),)


def test_only_events_that_can_cure_it_wake_a_refused_pod() -> None:
    assert refusal_on([], pod("p")).wakes_on == {ClusterEvent.NODE_ADDED}
    cordoned = refusal_on([node("a", cordoned=True)], pod("p"))
    assert cordoned.wakes_on == {ClusterEvent.NODE_ADDED, ClusterEvent.NODE_UPDATED}
    full = refusal_on([node("a", cpu="1")], pod("p", cpu="2"))
    assert full.wakes_on == {
        ClusterEvent.NODE_ADDED,
        ClusterEvent.NODE_UPDATED,
        ClusterEvent.POD_GONE,
    }


def test_what_a_node_is_cannot_be_cured_by_eviction() -> None:
    assert {row.depends_on for row in FILTER_PLUGINS if not row.helped_by_preemption} == {
        FilterDependency.NODES
    }
    assert FilterDependency.NODES not in {
        row.depends_on for row in FILTER_PLUGINS if row.helped_by_preemption
    }


@pytest.mark.parametrize(
    ("machine", "newcomer", "cure"),
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
            pod("p", asks={"example.com/gpu": "2"}),
            "free or add example.com/gpu 2 on node a",
        ),
    ],
)
def test_every_filter_knows_a_cure(machine: Node, newcomer: Pod, cure: str) -> None:
    assert refusal_on([machine], newcomer).cures[0] == cure


def test_a_cure_is_offered_where_nothing_else_is_in_the_way() -> None:
    machines = [
        node("a", cordoned=True, cpu="1"),
        node("b", cpu="1"),
        node("c", cpu="1500m"),
        node("d", cordoned=True),
    ]
    assert refusal_on(machines, pod("p", cpu="2")).cures == (
        "uncordon node d",
        "free or add cpu 500m on node c",
        "add a node with room for cpu 2",
    )


def test_a_new_node_would_need_the_labels_too() -> None:
    answer = refusal_on([], pod("p", cpu="1", selector={"disk": "ssd"}))
    assert answer.cures == ("add a node with room for cpu 1 and the label disk=ssd",)


def pod_with_terms(*terms: NodeTerm, selector: dict[str, str] | None = None) -> Pod:
    """A pod that insists on one of these, and on labels."""
    needs = NodeAffinity(NodeSelector(terms))
    return pod("p", cpu="1", selector=selector, affinity=Affinity(needs))


def node_term(key: str, operator: str, *values: str) -> NodeTerm:
    return NodeTerm((NodeRequirement(key, operator, values),))


NAMED = NodeTerm(match_fields=(NodeRequirement("metadata.name", "In", ("b",)),))
SSD = {"disk": "ssd"}


@pytest.mark.parametrize(
    ("newcomer", "labels"),
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
def test_labels_are_a_cure_if_they_are_all_that_selector_and_affinity_ask_for(
    newcomer: Pod, labels: str
) -> None:
    assert refusal_on([node("a")], newcomer).cures == (
        f"label node a with {labels}",
        f"add a node with room for cpu 1 and the label {labels}",
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
def test_where_labels_are_not_enough_no_label_is_named(term: NodeTerm, is_possible: bool) -> None:
    bounds = "the pod's node selector and affinity"
    new = (f"add a node with room for cpu 1 that {bounds} would allow",) if is_possible else ()
    found = refusal_on([node("a")], pod_with_terms(term, selector=SSD)).cures
    assert found == (f"let {bounds} allow node a", *new)


def test_an_affinity_alone_is_better_changed_than_the_node() -> None:
    assert refusal_on(
        [node("a", SSD)], pod_with_terms(node_term("zone", "In", "z"), selector=SSD)
    ).cures == (
        "let the pod's node affinity allow node a",
        "add a node with room for cpu 1 and the label disk=ssd, zone=z",
    )
    assert refusal_on([node("a")], pod_with_terms(node_term("cores", "Lt", "8"))).cures == (
        "let the pod's node affinity allow node a",
        "add a node with room for cpu 1 that the pod's node affinity would allow",
    )


def test_a_label_that_would_take_a_node_out_of_the_affinity_of_all_pods_is_no_cure() -> None:
    training = (NodeSelectorTerm((LabelRequirement("pool", "in", frozenset({"training"})),)),)
    rows = [
        node_affinity_filter(training) if row.name == "NodeAffinity" else row
        for row in FILTER_PLUGINS
    ]
    newcomer = shape_of(pod("p", selector={"pool": "serving"}))
    snapshot = cluster([node("a", {"pool": "training"})]).snapshot()
    assert build_refusal(rows, initial_context(snapshot, newcomer)).cures[0] == (
        "let the pod's node selector allow node a"
    )


def test_a_node_outside_the_affinity_that_all_pods_get_is_refused_for_that_first() -> None:
    training = (NodeSelectorTerm((LabelRequirement("pool", "in", frozenset({"training"})),)),)
    rows = [
        node_affinity_filter(training) if row.name == "NodeAffinity" else row
        for row in FILTER_PLUGINS
    ]
    machines = [node("a"), node("b", {"pool": "training"}), node("c", {"disk": "ssd"})]

    def answer(*found: Node) -> Refusal:
        newcomer = shape_of(pod("p", selector={"disk": "ssd"}))
        return build_refusal(rows, initial_context(cluster(found).snapshot(), newcomer))

    assert answer(*machines).counts == (
        ("node(s) didn't match scheduler-enforced node affinity", 2),
        ("node(s) didn't match Pod's node affinity/selector", 1),
    )
    assert answer(*machines).cures[0] == "label node b with disk=ssd"
    assert answer(machines[2]).cures[0] == (
        "let the affinity that the scheduler adds to all pods allow node c"
    )


@given(situations(constraints=False))
def test_all_nodes_at_once_are_judged_like_one_by_one(situation: Situation) -> None:
    snapshot = situation.cache().snapshot()
    world = situation.world()
    for member in situation.entity.members[:5]:
        ask = member.shape.request_vector(snapshot.columns)
        masks = [
            rejected_nodes(row, initial_context(snapshot, member.shape)) for row in FILTER_PLUGINS
        ]
        for i, machine in enumerate(world.nodes.values()):
            fine = not any(mask[i] for mask in masks)
            assert fine == (not oracle.refusals(member.pod, machine, world))
            for row, mask in zip(FILTER_PLUGINS, masks, strict=True):
                if row.admits_node_class:
                    assert row.admits_node_class(ask, snapshot.node_class(i)) == (not mask[i])
