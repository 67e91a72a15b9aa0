"""The verifier accepts correct victims, nominations and trees, and reports wrong ones."""

from __future__ import annotations

from dataclasses import replace

import pytest
from msgspec.structs import replace as altered

from phalanx.api.core import Pod
from phalanx.api.meta import pod_group_ref
from phalanx.scheduler.cluster.group_tree import Group
from phalanx.scheduler.cycle import decide
from phalanx.scheduler.decision import Binding, Decision, Placed, Preempting, Victim, Waiting
from phalanx.scheduler.entity import Entity
from phalanx.scheduler.policy import DEFAULT_POLICY
from phalanx.scheduler.preemption.evaluator import OWN_VICTIMS_TERMINATING
from phalanx.scheduler.queue.scheduler_state import ClusterObjects, load_state
from phalanx.sim.invariants import GroupTreeOracle
from tests.scheduler.builders import alone, composite, entity, gang, key, node, pod, tree
from tests.scheduler.preemption_instances import FAMILIES, build_instance
from tests.scheduler.verifier import Verifier

NODES = [node("a", cpu="2"), node("b", cpu="1")]
WHOLE = gang("low", 1, priority=1, disrupted_as_unit=True)
LOW = [pod(f"low-{i}", "low", on="a", cpu="1", priority=1, phase="Running") for i in range(2)]
EQUAL = pod("equal", on="b", cpu="1", priority=10, phase="Running")
VIP = pod("vip", cpu="1", priority=10)


def cluster(*pods: Pod, groups: tuple[Group, ...] = (WHOLE,)) -> ClusterObjects:
    return ClusterObjects(NODES, groups, [*LOW, EQUAL, *pods])


def objections(seen: ClusterObjects, one: Entity, decision: Decision) -> list[str]:
    return Verifier().violations(seen, one, decision)


def decide_for(seen: ClusterObjects, one: Entity) -> Decision:
    return decide(one, load_state(seen).cache.snapshot(), DEFAULT_POLICY)


def preempting_decision(victims: list[Pod], on: str = "a") -> Preempting:
    decision = decide_for(cluster(VIP), alone(VIP))
    assert isinstance(decision, Preempting)
    nominated = (Binding(key("vip"), "uid-vip", on),)
    found = tuple(
        Victim(p.metadata.key, p.metadata.uid, p.occupied_node, p.group and pod_group_ref(p.group))
        for p in victims
    )
    return Preempting(replace(decision.waiting, nominated=nominated), found)


def test_decisions_of_the_scheduler_pass() -> None:
    decision = decide_for(cluster(VIP), alone(VIP))
    assert isinstance(decision, Preempting)
    assert objections(cluster(VIP), alone(VIP), decision) == []


@pytest.mark.mostly_slow(quick_every=3)
@pytest.mark.parametrize("family", FAMILIES)
def test_victims_in_many_instances_pass(family: str) -> None:
    for seed in range(25):
        one = build_instance(seed, family)
        cache, wanted = one.cache(), one.entity()
        seen = ClusterObjects(one.api_nodes(), one.api_groups(), [*one.api_pods(), *_pods(wanted)])
        assert objections(seen, wanted, decide(wanted, cache.snapshot(), DEFAULT_POLICY)) == [], (
            seed
        )


def _pods(one: Entity) -> list[Pod]:
    return [member.pod for member in one.members]


@pytest.mark.parametrize(
    ("victims", "on", "expected"),
    [
        (LOW[:1], "a", "default/low-0 would be evicted without others of its disruption unit"),
        ([EQUAL], "b", "default/equal does not have a lower priority"),
        (LOW, "b", "default/vip may not be on b: Insufficient cpu"),
        ([], "a", "it preempts without victims"),
        ([pod("ghost", on="a")], "a", "default/ghost does not run where it is to be evicted"),
    ],
)
def test_wrong_victim_is_reported(victims: list[Pod], on: str, expected: str) -> None:
    found = objections(cluster(VIP), alone(VIP), preempting_decision(victims, on))
    assert any(expected in sentence for sentence in found), found


def test_unnecessary_eviction_is_reported() -> None:
    small = altered(LOW[0], spec=altered(LOW[0].spec, scheduling_group=None))
    other = pod("other", on="a", cpu="1", priority=1, phase="Running")
    seen = ClusterObjects(NODES, [], [small, other, EQUAL, VIP])
    found = objections(seen, alone(VIP), preempting_decision([small, other]))
    assert "default/vip: default/other is evicted, but could stay" in found


def test_eviction_while_terminating_pods_free_enough_is_reported() -> None:
    leaving = altered(LOW[0], metadata=pod("low-0", deleting=True).metadata)
    seen = ClusterObjects(NODES, [WHOLE], [leaving, LOW[1], EQUAL, VIP])
    assert objections(seen, alone(VIP), decide_for(seen, alone(VIP))) == []
    (sentence,) = objections(seen, alone(VIP), preempting_decision([LOW[1]]))
    assert "could stay" in sentence or "fits once terminating pods are gone" in sentence


def test_forbidden_preemption_is_reported() -> None:
    polite = altered(VIP, spec=altered(VIP.spec, preemption_policy="Never"))
    (sentence,) = objections(cluster(polite), alone(polite), preempting_decision(LOW))
    assert sentence == "default/vip: its preemption policy allows no victims"


def test_use_of_a_node_nominated_for_another_pod_is_reported() -> None:
    claimed = altered(EQUAL, spec=altered(EQUAL.spec, node_name=""))
    claimed = altered(claimed, status=altered(claimed.status, nominated_node_name="b"))
    seen = ClusterObjects(NODES, [WHOLE], [*LOW, claimed, VIP])
    taken = Placed(None, (Binding(key("vip"), "uid-vip", "b"),))
    assert objections(seen, alone(VIP), taken) == [
        "default/vip: default/vip may not be on b: Insufficient cpu"
    ]


def test_nomination_without_terminating_pods_is_reported() -> None:
    polite = altered(VIP, spec=altered(VIP.spec, preemption_policy="Never"))
    waiting = decide_for(cluster(polite), alone(polite))
    assert isinstance(waiting, Waiting)
    promising = replace(waiting, nominated=(Binding(key("vip"), "uid-vip", "a"),))
    assert "it has nominations, but waits for no pod to terminate" in str(
        objections(cluster(polite), alone(polite), promising)
    )


@pytest.mark.parametrize(("cordoned", "is_allowed"), [(False, True), (True, False)])
def test_nomination_is_kept_without_room_but_not_on_a_cordoned_node(
    cordoned: bool, is_allowed: bool
) -> None:
    vip = altered(VIP, status=altered(VIP.status, nominated_node_name="a"))
    leaving = pod("leaving", on="a", cpu="1", priority=1, deleting=True)
    taken = pod("taken", on="a", cpu="2", priority=500, phase="Running")
    seen = ClusterObjects([node("a", cpu="2", cordoned=cordoned)], [], [leaving, taken, vip])
    waiting = decide_for(seen, alone(vip))
    assert isinstance(waiting, Waiting)
    nominated = (Binding(key("vip"), "uid-vip", "a"),)
    kept = replace(waiting, preemption=OWN_VICTIMS_TERMINATING, nominated=nominated)
    expected = "default/vip: default/vip may not be on a: node(s) were unschedulable"
    assert objections(seen, alone(vip), kept) == ([] if is_allowed else [expected])


# ---- trees ---------------------------------------------------------------------------------------

ROOT = composite("t", 2)
LEAVES = [gang(name, 1, parent="t") for name in "xy"]
MEMBERS = {name: pod(f"{name}-0", name, cpu="1") for name in "xy"}


def tree_with_members(*names: str) -> tuple[ClusterObjects, Entity]:
    """A tree in which the named groups have members."""
    parts = [
        entity(group, [MEMBERS[group.metadata.name]] if group.metadata.name in names else [])
        for group in LEAVES
    ]
    pods = [MEMBERS[name] for name in names]
    return ClusterObjects([node("n", {"zone": "a"}), node("m")], [ROOT, *LEAVES], pods), tree(
        ROOT, *parts
    )


def placed_decision(**homes: str) -> Placed:
    pods = {name.replace("_", "-"): on for name, on in homes.items()}
    return Placed(
        key("t"), tuple(Binding(key(name), f"uid-{name}", on) for name, on in pods.items())
    )


def test_tree_that_is_placed_as_a_whole_passes() -> None:
    seen, one = tree_with_members("x", "y")
    assert objections(seen, one, decide_for(seen, one)) == []


def test_tree_below_min_group_count_is_reported() -> None:
    seen, one = tree_with_members("x", "y")
    assert objections(seen, one, placed_decision(x_0="n")) == [
        "default/t: only 1 of 2 groups of default/t would have enough members"
    ]


def test_attempt_of_an_incomplete_tree_is_reported() -> None:
    seen, one = tree_with_members("x")
    (sentence,) = objections(seen, one, placed_decision(x_0="n"))
    assert "too few of its groups have enough members" in sentence


def test_refusal_of_a_fitting_tree_is_reported() -> None:
    seen, one = tree_with_members("x", "y")
    waiting = Waiting(key("t"), (), 2, 0, 0, 0, frozenset())
    assert objections(seen, one, waiting) == [
        "default/t: it is not placed, but group by group it would be"
    ]


def test_tree_outside_its_topology_is_reported() -> None:
    seen, one = tree_with_members("x", "y")
    root = composite("t", 2, topology="zone")
    seen = replace(seen, groups=[root, *LEAVES])
    one = replace(one, group=root)
    assert "default/t: it would not be in one domain" in objections(
        seen, one, placed_decision(x_0="n", y_0="m")
    )


def test_attempt_of_a_group_without_its_tree_is_reported() -> None:
    seen, _ = tree_with_members("x", "y")
    one = entity(LEAVES[0], [MEMBERS["x"]])
    assert "default/x: it was tried without its tree" in objections(
        seen, one, placed_decision(x_0="n")
    )


def test_incomplete_ancestry_is_walked_to_its_end() -> None:
    trees = GroupTreeOracle({one.metadata.key: one for one in LEAVES}, {})
    assert [one.metadata.name for one in trees.ancestors(key("x"))] == ["x"]
    assert not trees.is_valid(key("x"))
