"""Out-of-tree filters never lead to a false proof, a false placement or a spared victim."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from phalanx.api.core import ContainerPort, Pod
from phalanx.scheduler.cluster.pod_shape import PodShape, RequestVector
from phalanx.scheduler.cluster.snapshot import PODS, NodeClass
from phalanx.scheduler.cycle import decide
from phalanx.scheduler.decision import (
    UNDECIDED,
    UNSCHEDULABLE,
    Decision,
    Placed,
    Preempting,
    Waiting,
)
from phalanx.scheduler.placement.group_placement import PlacementContext
from phalanx.scheduler.plugins.plugin import Filter, FilterDependency, Rejections
from phalanx.scheduler.plugins.plugin_context import PluginContext
from phalanx.scheduler.policy import DEFAULT_POLICY, SchedulerPolicy
from phalanx.scheduler.search.placement_problem import PlacementProblem, build_problem
from tests.scheduler.builders import cluster, entity, gang, node, pod
from tests.scheduler.placement_instances import RACK, with_rack_topology


def load_filter(
    admits: Callable[[int], bool], applies_to: Callable[[PodShape], bool] = lambda shape: True
) -> SchedulerPolicy:
    """The default policy with a filter that reads the number of pods on a node."""

    def reject(context: PluginContext) -> Rejections:
        if applies_to(context.shape):
            counts = context.requested[:, PODS].tolist()
            yield "node(s) had the wrong number of pods", ~np.array([admits(n) for n in counts])

    def admits_node_class(request: RequestVector, node_class: NodeClass) -> bool:
        return admits(node_class.requested[PODS])

    extra = Filter(
        reject=reject,
        depends_on=FilterDependency.LOAD,
        admits_node_class=admits_node_class,
        applies_to=applies_to,
    )
    return replace(DEFAULT_POLICY, filters={**DEFAULT_POLICY.filters, "Extra": extra})


def nodes_filter(reject: Callable[[PluginContext], Rejections]) -> SchedulerPolicy:
    extra = Filter(reject=reject)
    return replace(DEFAULT_POLICY, filters={**DEFAULT_POLICY.filters, "Extra": extra})


ONE_POD_PER_NODE = load_filter(lambda count: count < 1)
#: Pods with a memory request go only to nodes that have a pod: the order of placement matters.
FOLLOWERS = load_filter(
    lambda count: count > 0, lambda shape: dict(shape.requests).get("memory", 0) > 0
)


def decide_gang(pods: list[Pod], policy: SchedulerPolicy, nodes: int = 2) -> Decision:
    machines = [node(f"n{i}") for i in range(nodes)]
    one = entity(gang("g", len(pods)), pods)
    return decide(one, cluster(machines).snapshot(), policy)


def waiting_reason(decision: Decision) -> str:
    assert isinstance(decision, Waiting)
    return decision.reason


def members(count: int, cpu: str) -> list[Pod]:
    return [pod(f"p{n}", "g", cpu=cpu) for n in range(count)]


# ---- proofs --------------------------------------------------------------------------------------


def test_gang_of_equal_members_that_the_filter_rejects_is_undecided() -> None:
    decision = decide_gang(members(3, cpu="1"), ONE_POD_PER_NODE)
    assert waiting_reason(decision) == UNDECIDED
    assert isinstance(decision, Waiting)
    assert decision.undecided == "the exact search does not support filter Extra"


def test_gang_that_would_fit_in_another_order_is_undecided() -> None:
    pods = [pod("a", "g", memory="1Gi"), pod("b", "g", memory="1Gi"), pod("c", "g", cpu="1")]
    assert waiting_reason(decide_gang(pods, FOLLOWERS)) == UNDECIDED
    starter_first = [pod("a", "g", cpu="1"), pod("b", "g", memory="1Gi")]
    assert isinstance(decide_gang(starter_first, FOLLOWERS, nodes=1), Placed)


def test_host_ports_do_not_turn_a_rejection_into_a_proof() -> None:
    port = (ContainerPort(host_port=80),)
    pods = [pod("a", "g", memory="1Gi", ports=port), pod("b", "g", cpu="1")]
    assert waiting_reason(decide_gang(pods, FOLLOWERS)) == UNDECIDED


def test_cluster_without_enough_resources_is_proven_full() -> None:
    assert waiting_reason(decide_gang(members(3, cpu="3"), ONE_POD_PER_NODE)) == UNSCHEDULABLE


def test_single_pod_that_every_node_rejects_is_proven_unschedulable() -> None:
    never = load_filter(lambda count: False)
    one = entity(None, [pod("p", cpu="1")])
    decision = decide(one, cluster([node("n0")]).snapshot(), never)
    assert waiting_reason(decision) == UNSCHEDULABLE
    assert isinstance(decision, Waiting)
    assert decision.pods[0].refusal is not None
    assert decision.pods[0].refusal.filters == ("Extra",)


def test_filter_that_depends_on_nodes_alone_leaves_proofs_intact() -> None:
    def reject(context: PluginContext) -> Rejections:
        yield "node(s) had no license", np.array([n != "n0" for n in context.snapshot.names])

    pods = [pod("a", "g", cpu="1"), pod("b", "g", cpu="4")]
    decision = decide_gang(pods, nodes_filter(reject))
    assert waiting_reason(decision) == UNSCHEDULABLE
    smaller = [pods[0], pod("b", "g", cpu="3")]
    assert isinstance(decide_gang(smaller, nodes_filter(reject)), Placed)


def test_members_that_only_an_out_of_tree_filter_distinguishes_are_two_kinds() -> None:
    def reject(context: PluginContext) -> Rejections:
        images = context.shape.node_constraints.images
        yield "node(s) lacked the image", np.array([n not in images[0] for n in "ab"])

    pods = [pod(name, "g", cpu="1", image=f"{name}:1") for name in "ab"]
    one = entity(gang("g", 2), pods)
    snapshot = cluster([node("a"), node("b")]).snapshot()
    problem = build_problem(PlacementContext(snapshot, nodes_filter(reject)), one.members, 2)
    assert isinstance(problem, PlacementProblem)
    assert problem.allowed.tolist() == [[True, False], [False, True]]
    default = build_problem(PlacementContext(snapshot, DEFAULT_POLICY), one.members, 2)
    assert isinstance(default, PlacementProblem)
    assert len(default.kinds) == 1


# ---- placements ----------------------------------------------------------------------------------


def test_every_rack_is_tried_if_capacity_does_not_predict_what_a_rack_holds() -> None:
    # By resources both racks hold the gang, and rack a would be fuller. The filter admits one pod.
    machines = [node("a0", {RACK: "a"}, cpu="2")]
    machines += [node(f"b{n}", {RACK: "b"}, cpu="8") for n in range(2)]
    one = entity(with_rack_topology(gang("g", 2)), members(2, cpu="1"))
    decision = decide(one, cluster(machines).snapshot(), ONE_POD_PER_NODE)
    assert isinstance(decision, Placed)
    assert sorted(binding.node for binding in decision.bindings) == ["b0", "b1"]


# ---- preemption ----------------------------------------------------------------------------------


def test_victim_is_evicted_that_only_the_filter_requires_to_leave() -> None:
    snapshot = cluster([node("n0")], [pod("low", on="n0", cpu="1")]).snapshot()
    one = entity(None, [pod("high", cpu="1", priority=10)])
    decision = decide(one, snapshot, ONE_POD_PER_NODE)
    assert isinstance(decision, Preempting)
    assert [victim.pod.name for victim in decision.victims] == ["low"]


def test_pods_that_the_filter_does_not_mind_are_not_evicted() -> None:
    running = [pod(f"low{n}", on="n0", cpu="1") for n in range(3)]
    snapshot = cluster([node("n0")], running).snapshot()
    one = entity(None, [pod("high", cpu="1", priority=10)])
    decision = decide(one, snapshot, load_filter(lambda count: count < 2))
    assert isinstance(decision, Preempting)
    assert len(decision.victims) == 2
