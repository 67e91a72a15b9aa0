"""Packing by extended resources, and keeping other pods off the nodes that have them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given

from benchmarks.packing import (
    BestFitCluster,
    ChurnCase,
    DecidedCluster,
    gang_churn,
    pod_churn,
    run_churn,
)
from phalanx.api.core import (
    Affinity,
    Node,
    NodeAffinity,
    NodeRequirement,
    NodeTerm,
    Pod,
    PreferredNodeTerm,
    Taint,
    TopologySpreadConstraint,
)
from phalanx.scheduler.configuration.scheduler_configuration import parse_configuration
from phalanx.scheduler.cycle import decide
from phalanx.scheduler.decision import Placed
from phalanx.scheduler.entity import Entity
from phalanx.scheduler.placement.node_scores import node_scores_of
from phalanx.scheduler.plugins.plugin import MAX_WEIGHT
from phalanx.scheduler.policy import DEFAULT_POLICY, SchedulerPolicy
from tests.scheduler.builders import alone, basic, cluster, composite, entity, gang, node, pod, tree
from tests.scheduler.configurations import configuration_file, policy
from tests.scheduler.strategies import Situation, situations

GPU, FPGA = "nvidia.com/gpu", "example.com/fpga"
PACKING, AVOIDANCE = "ExtendedResourcePacking", "ExtendedResourceAvoidance"
BIG = {"cpu": "64", "memory": "256Gi"}
HOSTNAME = "kubernetes.io/hostname"


def gpu_node(name: str, gpus: int = 8, **labels: str) -> Node:
    return node(name, {HOSTNAME: name} | labels, allocatable={**BIG, GPU: gpus})


def plain_node(name: str, **labels: str) -> Node:
    return node(name, {HOSTNAME: name} | labels, allocatable=BIG)


def gpu_pod(name: str, gpus: int = 1, group: str = "", *, on: str = "", **fields: Any) -> Pod:
    return pod(name, group, on=on, cpu="1", requests={GPU: gpus}, **fields)


def without(*names: str) -> SchedulerPolicy:
    return policy({"plugins": {"score": {"disabled": [{"name": name} for name in names]}}})


def nodes_of(
    found: Entity,
    nodes: Sequence[Node],
    running: Sequence[Pod] = (),
    rules: SchedulerPolicy = DEFAULT_POLICY,
) -> list[str]:
    decision = decide(found, cluster(nodes, running).snapshot(), rules)
    assert isinstance(decision, Placed), decision
    return [binding.node for binding in decision.bindings]


# ---- one pod -------------------------------------------------------------------------------------


def test_a_gpu_pod_fills_the_node_whose_gpus_are_mostly_in_use() -> None:
    nodes = [gpu_node(name) for name in "abc"]
    # Node b is also the fullest in CPU and memory, which the default scores would avoid.
    running = [
        gpu_pod("old-a", 2, on="a"),
        pod("old-b", on="b", cpu="40", requests={GPU: 5, "memory": "200Gi"}),
    ]
    assert nodes_of(alone(gpu_pod("new")), nodes, running) == ["b"]
    assert nodes_of(alone(gpu_pod("new", 4)), nodes, running) == ["a"]
    assert nodes_of(alone(gpu_pod("new", 8)), nodes, running) == ["c"]
    assert nodes_of(alone(gpu_pod("new")), nodes, running, without(PACKING)) == ["c"]


def test_one_gpu_in_use_outweighs_images_and_load_together() -> None:
    nodes = [
        gpu_node("a", 16),
        node("b", allocatable={**BIG, GPU: 16}, images={"big:1": 1 << 40}),
    ]
    running = [pod("old", on="a", cpu="60", requests={GPU: 1, "memory": "250Gi"})]
    assert nodes_of(alone(gpu_pod("new", image="big:1")), nodes, running) == ["a"]


def test_nodes_with_equal_use_of_gpus_are_ranked_by_load() -> None:
    nodes = [gpu_node("a"), gpu_node("b")]
    running = [pod("old", on="a", cpu="32")]
    assert nodes_of(alone(gpu_pod("new")), nodes, running) == ["b"]


def test_a_pod_without_gpus_uses_a_gpu_node_only_if_no_other_has_room() -> None:
    nodes = [
        node("a", allocatable={**BIG, GPU: 8}, images={"big:1": 1 << 40}),
        plain_node("b"),
    ]
    loaded = [pod("old", on="b", cpu="62", memory="255Gi")]
    new = alone(pod("new", cpu="1", image="big:1"))
    assert nodes_of(new, nodes, loaded) == ["b"]
    assert nodes_of(new, nodes, [pod("old", on="b", cpu="64")]) == ["a"]
    assert nodes_of(new, nodes, loaded, without(AVOIDANCE)) == ["a"]


def test_a_pod_stays_off_nodes_with_a_resource_beyond_the_one_that_it_requests() -> None:
    nodes = [
        node("a", allocatable={**BIG, GPU: 8, FPGA: 1}),
        node("b", allocatable={**BIG, GPU: 8}),
    ]
    running = [gpu_pod("old", 7, on="a")]
    assert nodes_of(alone(gpu_pod("new")), nodes, running) == ["b"]
    both = pod("new", cpu="1", requests={GPU: 1, FPGA: 1})
    assert nodes_of(alone(both), nodes, running) == ["a"]


@pytest.mark.parametrize("name", ["hugepages-2Mi", "ephemeral-storage", "pods"])
def test_resources_of_kubernetes_itself_are_not_packed_and_keep_no_pod_away(name: str) -> None:
    nodes = [node("a", allocatable={**BIG, name: 64}), node("b", allocatable=BIG)]
    rules = without(PACKING, AVOIDANCE)
    for new in (pod("p", cpu="1"), pod("p", cpu="1", requests={name: 1})):
        for running in ([], [pod("old", on="a", cpu="9", requests={name: 1})]):
            ours = nodes_of(alone(new), nodes, running)
            assert ours == nodes_of(alone(new), nodes, running, rules)


def test_a_resource_that_every_node_has_or_none_has_left_keeps_no_pod_away() -> None:
    running = [pod("old", on="b", cpu="40")]
    everywhere = [gpu_node("a"), gpu_node("b")]
    broken = [gpu_node("a", 0), plain_node("b")]
    for nodes in (everywhere, broken):
        assert nodes_of(alone(pod("new", cpu="1")), nodes, running) == ["a"]


@given(situations())
def test_scores_are_unchanged_where_no_node_has_an_extended_resource(situation: Situation) -> None:
    kept = [replace_allocatable(one) for one in situation.nodes]
    snapshot = replace(situation, nodes=kept).cache().snapshot()
    rules = without(PACKING, AVOIDANCE)
    for member in situation.entity.members:
        shape = member.shape
        if not any("/" in name for name, _ in shape.requests):
            ours = node_scores_of(snapshot, DEFAULT_POLICY, shape).keys.tolist()
            assert ours == node_scores_of(snapshot, rules, shape).keys.tolist()


def replace_allocatable(one: Node) -> Node:
    """The node without extended resources."""
    amounts = {n: amount for n, amount in one.status.allocatable.items() if "/" not in n}
    return node(
        one.metadata.name,
        one.metadata.labels,
        taints=one.spec.taints,
        cordoned=one.spec.unschedulable,
        allocatable=amounts,
    )


# ---- preferences of users ------------------------------------------------------------------------


def preferring(label: str, value: str) -> Affinity:
    term = NodeTerm((NodeRequirement(label, "In", (value,)),))
    return Affinity(NodeAffinity(None, (PreferredNodeTerm(100, term),)))


def test_a_preferred_node_affinity_outweighs_packing() -> None:
    nodes = [gpu_node("a"), gpu_node("b", disk="ssd")]
    running = [gpu_pod("old", 7, on="a")]
    new = gpu_pod("new", affinity=preferring("disk", "ssd"))
    assert nodes_of(alone(new), nodes, running) == ["b"]


def test_a_soft_taint_outweighs_packing_and_keeping_off() -> None:
    slow = (Taint("slow", "", "PreferNoSchedule"),)
    nodes = [node("a", taints=slow, allocatable={**BIG, GPU: 8}), gpu_node("b")]
    assert nodes_of(alone(gpu_pod("new")), nodes, [gpu_pod("old", 7, on="a")]) == ["b"]
    mixed = [node("a", taints=slow, allocatable=BIG), gpu_node("b")]
    assert nodes_of(alone(pod("new", cpu="1")), mixed) == ["b"]


@pytest.mark.parametrize("how", ["DoNotSchedule", "ScheduleAnyway"])
def test_a_gang_that_asks_for_spread_is_spread(how: str) -> None:
    spread = TopologySpreadConstraint(HOSTNAME, how, label_selector={"matchLabels": {"app": "g"}})
    nodes = [gpu_node(name) for name in "abcdefgh"]
    running = [gpu_pod("old", 5, on="a")]
    pods = [gpu_pod(f"p{i}", 1, "g", labels={"app": "g"}, spreads=(spread,)) for i in range(8)]
    assert sorted(nodes_of(entity(gang("g", 8), pods), nodes, running)) == list("abcdefgh")


# ---- gangs ---------------------------------------------------------------------------------------


def test_a_gang_of_single_gpus_fills_one_node() -> None:
    nodes = [gpu_node(name) for name in "abcdefgh"]
    pods = [gpu_pod(f"p{i}", 1, "g") for i in range(8)]
    assert nodes_of(entity(gang("g", 8), pods), nodes) == ["a"] * 8
    # Nodes that are in use already are filled first.
    running = [gpu_pod("old", 6, on="c")]
    assert nodes_of(entity(gang("g", 8), pods), nodes, running) == ["c"] * 2 + ["a"] * 6


def test_members_of_different_sizes_leave_whole_nodes_free() -> None:
    nodes = [gpu_node(name) for name in "abcd"]
    pods = [gpu_pod(f"p{i}", gpus, "g") for i, gpus in enumerate((4, 2, 8, 1, 1))]
    assert nodes_of(entity(gang("g", 5), pods), nodes) == ["a", "a", "b", "a", "a"]


def test_the_launcher_of_a_gpu_gang_stays_off_gpu_nodes() -> None:
    nodes = [gpu_node("a"), gpu_node("b"), plain_node("c")]
    pods = [pod("launcher", "g", cpu="1"), *(gpu_pod(f"worker{i}", 4, "g") for i in range(2))]
    assert nodes_of(entity(gang("g", 3), pods), nodes) == ["c", "a", "a"]


# ---- topology ------------------------------------------------------------------------------------


def rack(name: str, count: int, gpus: int = 8) -> list[Node]:
    return [gpu_node(f"{name}{i}", gpus, rack=name) for i in range(count)]


def racks_of(found: list[str]) -> set[str]:
    return {name[0] for name in found}


def test_a_gpu_gang_picks_the_rack_with_the_tightest_fit_in_gpus() -> None:
    nodes = [*rack("a", 8), *rack("b", 8)]
    # Rack a is fuller in CPU, rack b in GPUs.
    running = [
        *(pod(f"cpu{i}", on=f"a{i}", cpu="20", memory="100Gi") for i in range(8)),
        *(gpu_pod(f"gpu{i}", 8, on=f"b{i}") for i in range(4)),
    ]
    group = gang("g", 4, topology="rack")
    equal = [gpu_pod(f"p{i}", 8, "g") for i in range(4)]
    assert racks_of(nodes_of(entity(group, equal), nodes, running)) == {"b"}
    assert racks_of(nodes_of(entity(group, equal), nodes, running, without(PACKING))) == {"a"}
    different = [*equal[:3], pod("p3", "g", cpu="2", requests={GPU: 8})]
    assert racks_of(nodes_of(entity(group, different), nodes, running)) == {"b"}
    child = entity(gang("g", 4, parent="root"), equal)
    whole = tree(composite("root", 1, topology="rack"), child)
    assert racks_of(nodes_of(whole, nodes, running)) == {"b"}


def test_one_gpu_in_use_decides_between_large_racks() -> None:
    nodes = [*rack("a", 30), *rack("b", 30)]
    running = [gpu_pod("old", 1, on="b0")]
    group, pods = gang("g", 2, topology="rack"), [gpu_pod(f"p{i}", 8, "g") for i in range(2)]
    assert racks_of(nodes_of(entity(group, pods), nodes, running)) == {"b"}


def test_a_gang_without_gpus_leaves_racks_of_gpu_nodes_free() -> None:
    plain = [plain_node(f"b{i}", rack="b") for i in range(2)]
    running = [pod(f"old{i}", on=f"a{i}", cpu="50") for i in range(2)]
    equal = [pod(f"p{i}", "g", cpu="2") for i in range(2)]
    different = [equal[0], pod("p1", "g", cpu="3")]
    for pods in (equal, different):
        found = entity(gang("g", 2, topology="rack"), pods)
        assert racks_of(nodes_of(found, [*rack("a", 2), *plain], running)) == {"b"}
        assert racks_of(nodes_of(found, [*rack("a", 2), *plain], running, without(AVOIDANCE))) == {
            "a"
        }


def test_a_tree_without_gpus_leaves_racks_of_gpu_nodes_free() -> None:
    nodes = [*rack("a", 2), *(plain_node(f"b{i}", rack="b") for i in range(2))]
    running = [pod(f"old{i}", on=f"a{i}", cpu="50") for i in range(2)]
    parts = [
        entity(gang(name, 1, parent="root"), [pod(f"{name}-0", name, cpu="2")]) for name in "gh"
    ]
    whole = tree(composite("root", 2, topology="rack"), *parts)
    assert racks_of(nodes_of(whole, nodes, running)) == {"b"}
    assert racks_of(nodes_of(whole, nodes, running, without(AVOIDANCE))) == {"a"}


def test_a_rack_whose_plain_nodes_hold_the_gang_is_not_avoided() -> None:
    # Rack a is fuller and has a GPU node beside its plain nodes.
    mixed = [gpu_node("a0", rack="a"), *(plain_node(f"a{i}", rack="a") for i in (1, 2))]
    plain = [plain_node(f"b{i}", rack="b") for i in range(3)]
    running = [pod("old", on="a1", cpu="20")]
    found = entity(gang("g", 2, topology="rack"), [pod(f"p{i}", "g", cpu="40") for i in range(2)])
    assert set(nodes_of(found, [*mixed, *plain], running)) == {"a1", "a2"}
    # With less room on its plain nodes it would need the GPU node.
    running = [pod("old", on="a1", cpu="30")]
    assert racks_of(nodes_of(found, [*mixed, *plain], running)) == {"b"}


def test_the_rack_is_chosen_by_the_load_of_now() -> None:
    mixed = [gpu_node("a0", rack="a"), *(plain_node(f"a{i}", rack="a") for i in range(1, 9))]
    plain = [plain_node(f"b{i}", rack="b") for i in range(9)]
    cache = cluster([*mixed, *plain], [pod(f"old{i}", on=f"a{i}", cpu="8") for i in range(1, 9)])
    found = entity(gang("g", 9, topology="rack"), [pod(f"p{i}", "g", cpu="32") for i in range(9)])

    def chosen() -> set[str]:
        decision = decide(found, cache.snapshot(), DEFAULT_POLICY)
        assert isinstance(decision, Placed)
        return racks_of([binding.node for binding in decision.bindings])

    # Rack a is fuller, but one member would have to be on its GPU node.
    assert chosen() == {"b"}
    for name, cpu in (("on-gpu", "60"), ("old1", "0")):
        one = pod(name, on="a0" if name == "on-gpu" else "a1", cpu=cpu)
        cache.update_pod(one.metadata.key, one)
        assert chosen() == ({"b"} if name == "on-gpu" else {"a"})


def test_racks_in_which_members_of_different_kinds_fit_are_compared_by_one_scale() -> None:
    nodes = [*rack("a", 1), *(plain_node(f"b{i}", rack="b") for i in range(2))]
    pods = [gpu_pod("p0", 8, "g"), pod("p1", "g", cpu="40"), pod("p2", "g", cpu="40")]
    # Rack b holds two members without GPUs, rack a the GPU member and one more.
    assert racks_of(nodes_of(entity(basic("g", topology="rack"), pods), nodes)) == {"b"}


# ---- churn ---------------------------------------------------------------------------------------

SMALL = [
    *(replace(pod_churn(share), nodes=16, deletions=260, warm_up=60) for share in (0.5, 0.7)),
    replace(gang_churn(0.6), nodes=40, deletions=160, warm_up=40),
]


@pytest.mark.parametrize("case", SMALL, ids=lambda case: case.name)
def test_as_many_nodes_and_racks_stay_whole_as_with_best_fit(case: ChurnCase) -> None:
    best = run_churn(case, BestFitCluster(case), seed=1)
    assert best > 0
    assert run_churn(case, DecidedCluster(case), seed=1) >= 0.9 * best
    unpacked = run_churn(case, DecidedCluster(case, without(PACKING)), seed=1)
    assert case.uses_racks or unpacked < 0.5 * best


# ---- configuration -------------------------------------------------------------------------------


def test_arguments_restrict_and_weigh_the_packed_resources() -> None:
    nodes = [node(name, allocatable={**BIG, GPU: 8, FPGA: 8}) for name in "ab"]
    running = [gpu_pod("old-a", 3, on="a"), pod("old-b", on="b", requests={FPGA: 2})]
    new = alone(pod("new", requests={GPU: 1, FPGA: 1}))
    for resources, where in (
        ([], "a"),
        ([{"name": FPGA}], "b"),
        ([{"name": FPGA, "weight": 2}, {"name": GPU, "weight": 1}], "b"),
    ):
        config = [{"name": PACKING, "args": {"resources": resources}}]
        assert nodes_of(new, nodes, running, policy({"pluginConfig": config})) == [where]


def test_an_ignored_resource_keeps_no_pod_away() -> None:
    nodes = [gpu_node("a"), plain_node("b")]
    running = [pod("old", on="b", cpu="32")]
    config = [{"name": AVOIDANCE, "args": {"ignoredResources": [GPU]}}]
    rules = policy({"pluginConfig": config})
    assert nodes_of(alone(pod("new", cpu="1")), nodes, running, rules) == ["a"]


def test_resources_that_node_resources_fit_names_are_left_to_it() -> None:
    nodes = [gpu_node("a"), gpu_node("b")]
    running = [gpu_pod("old", 4, on="a")]
    strategy = {"type": "LeastAllocated", "resources": [{"name": GPU, "weight": 1}]}
    config = [{"name": "NodeResourcesFit", "args": {"scoringStrategy": strategy}}]
    rules = policy({"pluginConfig": config})
    assert nodes_of(alone(gpu_pod("new")), nodes, running, rules) == ["b"]


def test_the_largest_weights_keep_rejected_nodes_last() -> None:
    scores = ("NodeResourcesFit", "NodeResourcesBalancedAllocation", PACKING, AVOIDANCE)
    enabled = [{"name": name, "weight": MAX_WEIGHT} for name in scores]
    rules = policy({"plugins": {"score": {"enabled": enabled}}})
    nodes = [node("a", cordoned=True, allocatable={**BIG, GPU: 8}), gpu_node("b")]
    assert nodes_of(alone(gpu_pod("new")), nodes, [gpu_pod("old", 7, on="a")], rules) == ["b"]
    cache = cluster(nodes)
    node_scores_of(cache.snapshot(), rules, alone(gpu_pod("new")).members[0].shape)
    later = gpu_pod("later", 7, on="a")
    cache.update_pod(later.metadata.key, later)
    decision = decide(alone(gpu_pod("new")), cache.snapshot(), rules)
    assert isinstance(decision, Placed)
    assert decision.bindings[0].node == "b"


@pytest.mark.parametrize(
    ("name", "args", "field"),
    [
        (PACKING, {"resources": [{"name": "cpu"}]}, "resources[0].name"),
        (PACKING, {"resources": [{"name": GPU}, {"name": GPU}]}, "resources[1].name"),
        (PACKING, {"resources": [{"name": GPU, "weight": 101}]}, "resources[0].weight"),
        (AVOIDANCE, {"ignoredResources": ["hugepages-2Mi"]}, "ignoredResources[0]"),
        (AVOIDANCE, {"resources": []}, "resources"),
    ],
)
def test_wrong_arguments_are_reported(name: str, args: dict[str, Any], field: str) -> None:
    found = parse_configuration(
        configuration_file({"pluginConfig": [{"name": name, "args": args}]})
    )
    assert isinstance(found, list)
    assert [cause.field for cause in found] == [f"profiles[0].pluginConfig[0].args.{field}"]
