"""Groups with a topology constraint: all members in one domain, and in which."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace as replace_fields

from phalanx.api.core import Node, Pod
from phalanx.api.resources import pod_requests
from phalanx.api.scheduling import PodGroup, SchedulingConstraints, TopologyConstraint
from phalanx.scheduler.cycle import decide
from phalanx.scheduler.decision import (
    SCHEDULER_ERROR,
    ClusterEvent,
    Decision,
    Impossible,
    Placed,
    Waiting,
)
from phalanx.scheduler.entity import Entity
from phalanx.scheduler.explain import explain
from phalanx.scheduler.policy import DEFAULT_POLICY, SchedulerPolicy
from tests.scheduler import oracle
from tests.scheduler.builders import basic, cluster, entity, gang, node, pod
from tests.scheduler.configurations import policy as policy_of
from tests.scheduler.oracle_agreement import assert_bindings_allowed
from tests.scheduler.oracle_cluster import OracleCluster
from tests.scheduler.strategies import Situation, situations

RACK = SchedulingConstraints((TopologyConstraint("rack"),))


def with_topology(group: PodGroup, key: str = "rack") -> PodGroup:
    constraints = SchedulingConstraints((TopologyConstraint(key),))
    return replace_fields(
        group, spec=replace_fields(group.spec, scheduling_constraints=constraints)
    )


def rack(name: str, count: int, **amounts: str) -> list[Node]:
    return [node(f"{name}{i}", {"rack": name}, allocatable=amounts) for i in range(count)]


def members(count: int, **amounts: str) -> list[Pod]:
    return [pod(f"p{i}", "g", requests=amounts) for i in range(count)]


def decide_on(
    group: PodGroup, pods: list[Pod], nodes: list[Node], running: list[Pod] | None = None,
    policy: SchedulerPolicy = DEFAULT_POLICY,
) -> Decision:  # fmt: skip
    others = [one for one in running or [] if one.group]
    return decide(entity(group, pods, others), cluster(nodes, running or []).snapshot(), policy)


def racks_of(decision: Decision) -> set[str]:
    assert isinstance(decision, Placed)
    return {binding.node[0] for binding in decision.bindings}


def test_all_members_are_in_one_rack() -> None:
    nodes = rack("a", 2) + rack("b", 2)
    assert len(racks_of(decide_on(with_topology(gang("g", 3)), members(3, cpu="2"), nodes))) == 1


def test_the_only_feasible_rack_is_chosen_although_another_scores_higher() -> None:
    nodes = rack("a", 1, cpu="3") + rack("b", 4, cpu="1")
    assert racks_of(decide_on(with_topology(gang("g", 4)), members(4, cpu="1"), nodes)) == {"b"}


def test_of_feasible_racks_the_fuller_one_is_chosen() -> None:
    nodes = rack("a", 4) + rack("b", 2)
    assert racks_of(decide_on(with_topology(gang("g", 2)), members(2, cpu="1"), nodes)) == {"b"}


GPU = "nvidia.com/gpu"
#: Rack a has a higher utilization of GPUs, rack b of CPU and memory.
DEVICES = [
    node(f"{name}{i}", {"rack": name}, allocatable={"cpu": "64", "memory": "64Gi", GPU: "8"})
    for name in "ab"
    for i in range(2)
]
TAKEN = [
    pod("on-a", on="a0", cpu="1", requests={GPU: "4"}),
    pod("on-b", on="b0", cpu="40", requests={"memory": "40Gi"}),
]
ALIKE = [pod(f"p{i}", "g", cpu="1", requests={GPU: "1"}) for i in range(2)]
UNLIKE = [ALIKE[0], pod("p1", "g", cpu="2", requests={GPU: "1"})]


def packing(*resources: Mapping[str, object]) -> SchedulerPolicy:
    strategy = {"type": "LeastAllocated", "resources": resources}
    config = {"name": "NodeResourcesFit", "args": {"scoringStrategy": strategy}}
    return policy_of({"pluginConfig": [config]})


@pytest.mark.parametrize("pods", [ALIKE, UNLIKE])
@pytest.mark.parametrize(
    ("packed", "where"),
    [
        (("cpu", 1), "b"),
        ((GPU, 1), "a"),
        (("cpu", 9, GPU, 1), "b"),
        (("cpu", 1, GPU, 9), "a"),
        # No node has the resource: all racks are equal.
        (("moon.com/dust", 1), "a"),
    ],
)
def test_racks_are_compared_by_the_resources_of_the_profile(
    packed: tuple[str | int, ...], where: str, pods: list[Pod]
) -> None:
    named = [{"name": n, "weight": w} for n, w in zip(packed[::2], packed[1::2], strict=True)]
    assert racks_of(
        decide_on(with_topology(gang("g", 2)), pods, DEVICES, TAKEN, packing(*named))
    ) == {where}


@pytest.mark.parametrize("requests", [{}, {GPU: "1"}])
def test_resources_that_no_member_requests_do_not_count(requests: dict[str, str]) -> None:
    policy = packing({"name": "cpu"}, {"name": GPU, "weight": 9})
    for first in ("1", "2"):
        pods = [
            pod("p0", "g", cpu=first, requests=requests),
            pod("p1", "g", cpu="1", requests=requests),
        ]
        where = racks_of(decide_on(with_topology(gang("g", 2)), pods, DEVICES, TAKEN, policy))
        assert where == ({"a"} if requests else {"b"})


def test_nodes_without_the_label_do_not_count() -> None:
    nodes = [node(f"x{i}") for i in range(9)]
    decision = decide_on(with_topology(gang("g", 1)), members(1), nodes)
    assert isinstance(decision, Waiting)
    assert explain(decision).message == "no feasible placements found"


def test_a_gang_that_fits_in_no_rack_reports_its_best_placement() -> None:
    nodes = rack("a", 1, cpu="1") + rack("b", 2, cpu="1")
    decision = decide_on(with_topology(gang("g", 3)), members(3, cpu="1"), nodes)
    assert explain(decision).message == (
        "0/2 placements are available, first placement status: "
        "minCount (3) cannot be satisfied: 2 scheduled, 0 remaining"
    )
    assert {one.refusal.total for one in decision.pods if one.refusal} == {2}  # type: ignore[union-attr]


def test_members_with_a_node_restrict_the_placement_to_their_rack() -> None:
    nodes = rack("a", 1) + rack("b", 3)
    there = pod("old", "g", on="a0", cpu="1")
    assert racks_of(decide_on(with_topology(gang("g", 2)), members(1), nodes, [there])) == {"a"}


@pytest.mark.parametrize(
    ("where", "why"),
    [
        (["a0", "b0"], "they are in a and b"),
        (["x"], "node x of pod default/old0 has no label rack"),
        (["gone"], "node gone of pod default/old0 has no label rack"),
    ],
)
def test_placed_members_in_different_domains_are_an_error(where: list[str], why: str) -> None:
    nodes = rack("a", 1) + rack("b", 1) + [node("x")]
    there = [pod(f"old{i}", "g", on=name) for i, name in enumerate(where)]
    decision = decide_on(with_topology(gang("g", 3)), members(1), nodes, there)
    assert isinstance(decision, Impossible)
    assert decision.reason == SCHEDULER_ERROR
    assert decision.message == f"cannot determine domain for already scheduled pods: {why}"


def test_a_basic_group_is_placed_in_the_rack_that_holds_most_members() -> None:
    nodes = rack("a", 1, cpu="2") + rack("b", 3, cpu="1")
    decision = decide_on(with_topology(basic("g")), members(3, cpu="1"), nodes)
    assert racks_of(decision) == {"b"}
    assert isinstance(decision, Placed)
    assert len(decision.bindings) == 3


def place_with_oracle(situation: Situation, key: str) -> tuple[dict[str, str], int]:
    """Try every placement with the oracle; return the best feasible one and their number."""
    values = sorted({n.metadata.labels[key] for n in situation.nodes if key in n.metadata.labels})
    offers: list[tuple[str, dict[str, str], set[str], int, OracleCluster]] = []
    for value in values:
        oracle_cluster = situation.oracle_cluster()
        inside = {n: m for n, m in oracle_cluster.nodes.items() if m.labels.get(key) == value}
        answer = oracle.place(situation.entity, oracle_cluster, 0, inside)
        if answer.bindings:
            pods = {m.pod.metadata.name: m.pod for m in situation.entity.members}
            placed = [(pods[name], inside[where]) for name, where in answer.bindings.items()]
            avoided = sum(oracle.avoids(one, where, oracle_cluster) for one, where in placed)
            packed = {name for one, _ in placed for name in pod_requests(one) if "/" in name}
            offers.append((value, answer.bindings, packed, avoided, OracleCluster(inside)))
    most = max((len(offer[1]) for offer in offers), default=0)

    def score(offer: tuple[str, dict[str, str], set[str], int, OracleCluster]) -> int:
        _, bindings, packed, avoided, domain = offer
        members = len(bindings) * 100 // most * 100
        return members + _utilization(domain, packed) - 20_000 * avoided // len(bindings)

    ranked = sorted(offers, key=lambda offer: (-score(offer), offer[0]))
    return (ranked[0][1] if ranked else {}), len(values)


def _utilization(cluster: OracleCluster, packed: set[str]) -> int:
    """In hundredths of a per cent; CPU and memory are cut to per cents."""
    shares, unit = [], 1 if packed else 100
    for name in packed or ("cpu", "memory"):
        allocatable = sum(node.allocatable.get(name, 0) for node in cluster.nodes.values())
        requested = sum(
            (node.requested if packed else node.nonzero_requested)[name]
            for node in cluster.nodes.values()
        )
        if allocatable:
            shares.append(min(requested, allocatable) * (10_000 // unit) // allocatable)
    return sum(shares) // len(shares) * unit if shares else 0


@given(situations(), st.sampled_from(["zone", "disk"]))
def test_the_placement_equals_trying_each_domain_with_the_oracle(
    situation: Situation, key: str
) -> None:
    one: Entity = situation.entity
    if not isinstance(one.group, PodGroup):
        return
    running = [old for old in situation.running if not old.group]
    situation = replace(
        situation, running=running, entity=replace(one, group=with_topology(one.group, key))
    )
    decision = decide(situation.entity, situation.cache().snapshot(), DEFAULT_POLICY)
    bindings, number = place_with_oracle(situation, key)
    if bindings:
        assert isinstance(decision, Placed)
        assert {b.pod.name: b.node for b in decision.bindings} == bindings
    elif isinstance(decision, Placed):
        # Greedy placement fails in every domain, but the search found a placement.
        assert_bindings_allowed(decision.bindings, situation.entity, situation.oracle_cluster())
    else:
        assert isinstance(decision, Waiting)
        assert decision.placements == number


@pytest.mark.parametrize("sizes", [("2", "2"), ("2", "3")])
def test_a_pod_leaving_another_rack_than_the_best_wakes_the_gang(
    sizes: tuple[str, ...],
) -> None:
    nodes = [
        node("a", {"rack": "a"}, cpu="4"),
        node("b", {"rack": "b", "disk": "fast"}, cpu="6"),
    ]
    pods = [pod(f"p{i}", "g", cpu=cpu, selector={"disk": "fast"}) for i, cpu in enumerate(sizes)]
    running = [pod("x", on="a", cpu="4"), pod("y", on="b", cpu="5")]
    decision = decide_on(with_topology(gang("g", 2)), pods, nodes, running)
    assert isinstance(decision, Waiting)
    assert ClusterEvent.POD_GONE in decision.wakes_on


@pytest.mark.parametrize("nodes", [[], [node("a", {}, cpu="4")]])
def test_a_gang_wakes_when_a_node_may_bring_a_missing_topology_label(nodes: list[Node]) -> None:
    decision = decide_on(with_topology(gang("g", 1)), [pod("p", "g")], nodes)
    assert isinstance(decision, Waiting)
    assert {ClusterEvent.NODE_ADDED, ClusterEvent.NODE_UPDATED} <= decision.wakes_on
