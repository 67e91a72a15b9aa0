"""The words: what pods and groups are told, and what would help."""

from __future__ import annotations

import pytest

from phalanx.api.core import Node, Pod
from phalanx.scheduler.cycle import decide
from phalanx.scheduler.decision import (
    MissingGroup,
    MissingMembers,
    Refusal,
    SchedulingGated,
    UnreadyReason,
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
    return {sentence.pod.name: sentence.message for sentence in explanation.pods}


def members(count: int, *, cpu: str = "1") -> list[Pod]:
    return [pod(f"m{i}", "g", cpu=cpu) for i in range(count)]


def test_the_reasons_of_nodes_are_counted_and_sorted() -> None:
    refusal = Refusal(5, (("node(s) were unschedulable", 3), ("Insufficient cpu", 2)))
    assert describe_refusal(refusal) == (
        "0/5 nodes are available: 2 Insufficient cpu, 3 node(s) were unschedulable."
    )


def test_without_nodes_there_is_nothing_to_count() -> None:
    assert describe_refusal(Refusal(0)) == "no nodes available to schedule pods"


def test_a_pod_alone_is_told_about_the_nodes() -> None:
    explanation = explain_on(alone(pod("p", cpu="9")), [node("a")])
    sentence = "0/1 nodes are available: 1 Insufficient cpu."
    assert (explanation.reason, explanation.message) == ("Unschedulable", sentence)
    assert messages_by_pod(explanation) == {"p": sentence}


def test_a_gang_is_told_how_far_it_got() -> None:
    explanation = explain_on(entity(gang("g", 3), members(3)), [node("a", cpu="2")])
    message = "minCount (3) cannot be satisfied: 2 scheduled, 0 remaining"
    assert (explanation.reason, explanation.message) == ("Unschedulable", message)
    assert messages_by_pod(explanation) == {
        "m0": f"pod group is unschedulable, {message}",
        "m1": f"pod group is unschedulable, {message}",
        "m2": "0/1 nodes are available: 1 Insufficient cpu.",
    }


def test_a_group_of_which_only_extra_members_failed_is_told_no_numbers() -> None:
    running = [pod("old", "g", on="a", cpu="4")]
    explanation = explain_on(entity(gang("g", 1), members(1)), [node("a")], running)
    assert explanation.message == "pod group is unschedulable"
    assert messages_by_pod(explanation) == {"m0": "0/1 nodes are available: 1 Insufficient cpu."}


def test_a_placed_group_has_nothing_to_hear_but_its_leftovers_have() -> None:
    explanation = explain_on(entity(basic("g"), members(3)), [node("a", cpu="2")])
    assert (explanation.reason, explanation.message) == ("Scheduled", "")
    assert messages_by_pod(explanation) == {"m2": "0/1 nodes are available: 1 Insufficient cpu."}
    assert explanation.pods[0].reason == "Unschedulable"


def test_an_impossible_group_and_its_pods_hear_the_same() -> None:
    explanation = explain_on(entity(gang("g", 2, priority=5), members(2)), [node("a")])
    assert explanation.reason == "SchedulerError"
    assert set(messages_by_pod(explanation).values()) == {explanation.message}


@pytest.mark.parametrize(
    ("unready", "sentence"),
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
def test_those_who_are_not_even_tried_hear_why(unready: UnreadyReason, sentence: str) -> None:
    assert describe_unready(unready) == sentence


def test_a_gang_that_almost_fits_could_be_smaller_or_get_more_room() -> None:
    assert cures_for(entity(gang("g", 3), members(3)), [node("a", cpu="2")]) == [
        "lower minCount from 3 to 2",
        "free or add cpu 1 on node a",
        "add a node with room for cpu 1",
    ]


def test_a_gang_with_too_few_members_could_get_more() -> None:
    assert cures_for(entity(gang("g", 5), members(3)), [node("a")]) == [
        "add 2 more member(s) to the group"
    ]


def test_nobody_is_told_to_lower_the_quorum_to_a_number_that_is_not_known() -> None:
    pods = [*members(3), pod("z", "g")]
    said = cures_for(entity(gang("g", 4), pods), [node("a", cpu="1")])
    assert not [sentence for sentence in said if "minCount" in sentence]


def test_a_pod_alone_hears_only_of_nodes() -> None:
    said = cures_for(alone(pod("p", cpu="2")), [node("a", cordoned=True)])
    assert said == ["uncordon node a", "add a node with room for cpu 2"]


def test_leftovers_hear_what_would_help_them_and_each_thing_once() -> None:
    said = cures_for(entity(basic("g"), members(5)), [node("a", cpu="2")])
    assert said == ["free or add cpu 1 on node a", "add a node with room for cpu 1"]


def test_the_impossible_needs_an_edit() -> None:
    said = cures_for(entity(gang("g", 1, priority=5), members(1)), [node("a")])
    assert said == ["give the group and all its pods the same priority class"]
