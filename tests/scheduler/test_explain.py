"""Explanations: messages for pods and groups, and hints about what would help."""

from __future__ import annotations

from dataclasses import replace

import pytest

from phalanx.api.core import Node, Pod
from phalanx.api.meta import Key, composite_pod_group_ref, pod_group_ref
from phalanx.scheduler.cycle import decide
from phalanx.scheduler.decision import (
    GroupOutcome,
    MissingGroup,
    MissingMembers,
    Refusal,
    SchedulingGated,
    UnreadyReason,
    Waiting,
)
from phalanx.scheduler.entity import Entity
from phalanx.scheduler.explain import (
    Explanation,
    describe_refusal,
    describe_unready,
    explain,
    suggest_cures,
)
from phalanx.scheduler.policy import DEFAULT_POLICY
from tests.scheduler.builders import alone, basic, cluster, entity, gang, node, pod


def explain_on(one: Entity, nodes: list[Node], running: list[Pod] | None = None) -> Explanation:
    return explain(decide(one, cluster(nodes, running or []).snapshot(), DEFAULT_POLICY))


def cures_for(one: Entity, nodes: list[Node]) -> list[str]:
    return suggest_cures(decide(one, cluster(nodes).snapshot(), DEFAULT_POLICY))


def messages_by_pod(explanation: Explanation) -> dict[str, str]:
    return {one.pod.name: one.message for one in explanation.pods}


def members(count: int, *, cpu: str = "1") -> list[Pod]:
    return [pod(f"m{i}", "g", cpu=cpu) for i in range(count)]


def test_the_reasons_of_nodes_are_counted_and_sorted() -> None:
    refusal = Refusal(5, (("node(s) were unschedulable", 3), ("Insufficient cpu", 2)))
    assert describe_refusal(refusal) == (
        "0/5 nodes are available: 2 Insufficient cpu, 3 node(s) were unschedulable."
    )


def test_the_message_without_nodes_has_no_counts() -> None:
    assert describe_refusal(Refusal(0)) == "no nodes available to schedule pods"


def test_the_message_of_a_pod_without_group_is_about_nodes() -> None:
    explanation = explain_on(alone(pod("p", cpu="9")), [node("a")])
    message = "0/1 nodes are available: 1 Insufficient cpu."
    assert (explanation.reason, explanation.message) == ("Unschedulable", message)
    assert messages_by_pod(explanation) == {"p": message}


def test_the_message_of_a_gang_counts_scheduled_and_remaining_members() -> None:
    explanation = explain_on(entity(gang("g", 3), members(3)), [node("a", cpu="2")])
    message = "minCount (3) cannot be satisfied: 2 scheduled, 0 remaining"
    assert (explanation.reason, explanation.message) == ("Unschedulable", message)
    assert messages_by_pod(explanation) == {
        "m0": f"pod group is unschedulable, {message}",
        "m1": f"pod group is unschedulable, {message}",
        "m2": "0/1 nodes are available: 1 Insufficient cpu.",
    }


def test_the_message_of_a_group_with_quorum_has_no_counts() -> None:
    running = [pod("old", "g", on="a", cpu="4")]
    explanation = explain_on(entity(gang("g", 1), members(1)), [node("a")], running)
    assert explanation.message == "pod group is unschedulable"
    assert messages_by_pod(explanation) == {"m0": "0/1 nodes are available: 1 Insufficient cpu."}


def test_a_placed_group_has_no_message_but_its_leftovers_have() -> None:
    explanation = explain_on(entity(basic("g"), members(3)), [node("a", cpu="2")])
    assert (explanation.reason, explanation.message) == ("Scheduled", "")
    assert messages_by_pod(explanation) == {"m2": "0/1 nodes are available: 1 Insufficient cpu."}
    assert explanation.pods[0].reason == "Unschedulable"


def test_an_impossible_group_and_its_pods_have_the_same_message() -> None:
    explanation = explain_on(entity(gang("g", 2, priority=5), members(2)), [node("a")])
    assert explanation.reason == "SchedulerError"
    assert set(messages_by_pod(explanation).values()) == {explanation.message}


@pytest.mark.parametrize(
    ("unready", "message"),
    [
        (MissingGroup("train"), 'waiting for PodGroup "train" to appear'),
        (MissingMembers(3, 2), "waiting for 3 members, 2 are there"),
        (MissingMembers(3, 1), "waiting for 3 members, 1 is there"),
        (
            SchedulingGated(("a",), ("quota", "secret")),
            "waiting for scheduling gates quota, secret of a",
        ),
        (
            SchedulingGated(("a", "b", "c", "d", "e"), ("quota",)),
            "waiting for scheduling gates quota of a, b, c and 2 more",
        ),
    ],
)
def test_unready_reasons_are_described(unready: UnreadyReason, message: str) -> None:
    assert describe_unready(unready) == message


def test_cures_of_a_gang_that_almost_fits_lower_min_count_or_add_capacity() -> None:
    assert cures_for(entity(gang("g", 3), members(3)), [node("a", cpu="2")]) == [
        "lower minCount from 3 to 2",
        "free or add cpu 1 on node a",
        "add a node with capacity for cpu 1",
    ]


def test_cures_of_a_gang_with_too_few_members_add_members() -> None:
    assert cures_for(entity(gang("g", 5), members(3)), [node("a")]) == [
        "add 2 more member(s) to the group"
    ]


def test_no_cure_adds_members_to_a_gang_that_has_all_of_them() -> None:
    cures = cures_for(entity(gang("g", 3, topology="rack"), members(3)), [node("a")])
    assert not [cure for cure in cures if "member" in cure]


def test_no_cure_lowers_min_count_to_an_unknown_number() -> None:
    pods = [*members(3), pod("z", "g")]
    cures = cures_for(entity(gang("g", 4), pods), [node("a", cpu="1")])
    assert not [cure for cure in cures if "minCount" in cure]


def test_cures_of_a_pod_without_group_are_about_nodes() -> None:
    cures = cures_for(alone(pod("p", cpu="2")), [node("a", cordoned=True)])
    assert cures == ["uncordon node a", "add a node with capacity for cpu 2"]


def test_cures_of_leftovers_are_listed_once() -> None:
    cures = cures_for(entity(basic("g"), members(5)), [node("a", cpu="2")])
    assert cures == ["free or add cpu 1 on node a", "add a node with capacity for cpu 1"]


def test_the_cure_of_an_impossible_entity_is_an_edit() -> None:
    cures = cures_for(entity(gang("g", 1, priority=5), members(1)), [node("a")])
    assert cures == ["give the group and all its pods the same priority class"]


def test_the_root_of_a_tree_gets_the_message_of_the_tree_whatever_reservations_hold_room() -> None:
    key = Key("default", "tree")
    root = composite_pod_group_ref(key)
    own = Waiting(key, (), quorum=3, scheduled=0, remaining=2, unknown=0, wakes_on=frozenset())
    decision = replace(
        own,
        preemption="not helpful for scheduling",
        holders=(pod_group_ref(Key("default", "large")),),
        parts=(GroupOutcome(root, own),),
    )
    explanation = explain(decision)
    assert [one.message for one in explanation.groups] == [explanation.message]
    assert explanation.message.endswith("preemption: not helpful for scheduling")
