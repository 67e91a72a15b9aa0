"""Members that require each other are placed together, or not at all."""

from __future__ import annotations

import pytest

from phalanx.api.core import Affinity, Node, Pod, PodAffinity, PodAffinityTerm
from phalanx.controllers.scheduling.exact_solver import HighsSolver
from phalanx.scheduler.cycle import decide
from phalanx.scheduler.decision import Decision, Placed, Preempting, Waiting
from phalanx.scheduler.policy import DEFAULT_POLICY
from tests.scheduler.builders import alone, cluster, composite, entity, gang, node, pod, tree

pytest.importorskip("highspy", reason="the extra phalanx[exact] is not installed")

SOLVER = HighsSolver()
RACK = "rack"


def near(app: str, other: str, *, group: str = "g", cpu: str = "1", name: str = "") -> Pod:
    """A pod of one app that requires a pod of another one in its rack."""
    term = PodAffinityTerm(RACK, {"matchLabels": {"app": other}})
    affinity = Affinity(pod_affinity=PodAffinity((term,)))
    return pod(name or app, group, labels={"app": app}, affinity=affinity, cpu=cpu)


def racks(**cpus: str) -> list[Node]:
    """One node per rack."""
    return [node(f"n-{name}", {RACK: name}, cpu=cpu) for name, cpu in cpus.items()]


def decide_gang(pods: list[Pod], nodes: list[Node], quorum: int = 0) -> Decision:
    one = entity(gang("g", quorum or len(pods)), pods)
    return decide(one, cluster(nodes).snapshot(), DEFAULT_POLICY, solver=SOLVER)


def nodes_of(decision: Decision) -> dict[str, str]:
    assert isinstance(decision, Placed), decision
    return {key.name: where for key, _, where in decision.bindings}


def test_two_members_that_require_each_other_are_placed_in_one_rack() -> None:
    found = nodes_of(decide_gang([near("a", "b"), near("b", "a")], racks(r="1", s="2", t="1")))
    assert found == {"a": "n-s", "b": "n-s"}


def test_they_are_placed_without_a_solver_where_both_fit_anywhere() -> None:
    one = entity(gang("g", 2), [near("a", "b"), near("b", "a")])
    decision = decide(one, cluster(racks(r="4", s="4")).snapshot(), DEFAULT_POLICY)
    assert len(set(nodes_of(decision).values())) == 1


def test_a_chain_that_leads_back_is_placed_in_one_rack() -> None:
    pods = [near("a", "b"), near("b", "c"), near("c", "a"), near("d", "a")]
    assert set(nodes_of(decide_gang(pods, racks(r="3", s="4"))).values()) == {"n-s"}


def test_they_wait_if_no_rack_holds_both() -> None:
    decision = decide_gang([near("a", "b"), near("b", "a")], racks(r="1", s="1"))
    assert isinstance(decision, Waiting)
    assert decision.reason == "Unschedulable"


def test_they_need_a_node_with_the_topology_label() -> None:
    decision = decide_gang([near("a", "b"), near("b", "a")], [node("bare", cpu="9")])
    assert isinstance(decision, Waiting)


def test_a_member_beyond_the_quorum_is_not_placed_without_the_other() -> None:
    pods = [near("a", "b"), near("b", "a", cpu="9"), pod("c", "g", cpu="1")]
    assert nodes_of(decide_gang(pods, racks(r="4"), quorum=1)) == {"c": "n-r"}


def test_members_that_match_their_own_affinity_stay_in_one_rack() -> None:
    pods = [near("x", "x", name=f"x{i}", cpu=str(1 + i % 2)) for i in range(4)]
    assert isinstance(decide_gang(pods, racks(r="3", s="3")), Waiting)
    assert set(nodes_of(decide_gang(pods, racks(r="3", s="6"))).values()) == {"n-s"}


def test_groups_of_a_tree_that_require_each_other_are_placed_in_one_rack() -> None:
    left = entity(gang("l", 1, parent="t"), [near("a", "b", group="l")])
    right = entity(gang("r", 1, parent="t"), [near("b", "a", group="r")])
    one = tree(composite("t", 2), left, right)
    decision = decide(one, cluster(racks(r="1", s="2")).snapshot(), DEFAULT_POLICY, solver=SOLVER)
    assert nodes_of(decision) == {"a": "n-s", "b": "n-s"}


def test_pods_without_a_group_wait_for_each_other() -> None:
    snapshot = cluster(racks(r="4")).snapshot()
    decision = decide(alone(near("a", "b", group="")), snapshot, DEFAULT_POLICY, solver=SOLVER)
    assert isinstance(decision, Waiting)
    assert decision.reason == "Unschedulable"


def test_preemption_for_them_evicts_no_more_than_one_rack_needs() -> None:
    term = PodAffinityTerm(RACK, {"matchLabels": {"app": "b"}})
    back = PodAffinityTerm(RACK, {"matchLabels": {"app": "a"}})
    pods = [
        pod(app, "g", labels={"app": app}, priority=10, cpu="2",
            affinity=Affinity(pod_affinity=PodAffinity((wanted,))))
        for app, wanted in (("a", term), ("b", back))
    ]  # fmt: skip
    running = [pod(f"low-{name}-{i}", on=f"n-{name}", cpu="2") for name in "rs" for i in range(2)]
    running.append(pod("low-t", on="n-t", cpu="1"))
    one = entity(gang("g", 2, priority=10), pods)
    nodes = racks(r="4", s="4", t="4")
    decision = decide(one, cluster(nodes, running).snapshot(), DEFAULT_POLICY, solver=SOLVER)
    assert isinstance(decision, Preempting)
    assert [victim.pod.name for victim in decision.victims] == ["low-t"]
