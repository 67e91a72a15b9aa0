"""Which entity is tried next, and when."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from phalanx.api.core import Pod
from phalanx.api.meta import Key
from phalanx.api.scheduling import MEMBERS_TO_RUN_ANNOTATION, TOPOLOGY_ANNOTATION
from phalanx.scheduler.decision import ClusterEvent, MissingGroup, MissingMembers, SchedulingGated
from phalanx.scheduler.queue.queued_entity import QueueState
from phalanx.scheduler.queue.scheduling_queue import (
    TRANSITIONS,
    IllegalTransition,
    QueueTrigger,
    SchedulingQueue,
)
from tests.scheduler.builders import basic, gang, key, pod
from tests.scheduler.queue.queue_helpers import names, pop, queue_with, refusal, success

# ---- getting ready -------------------------------------------------------------------------------


def test_a_pod_alone_is_tried_once() -> None:
    queue = queue_with(pod("p"))
    one = pop(queue)
    assert (one.key, one.group, names(one), one.attempts) == (key("p"), None, ["p"], 1)
    assert queue.pop(0.0) is None


def test_a_gang_waits_until_its_last_member_arrives() -> None:
    queue = queue_with(pod("a", "g"), pod("b", "g"))
    queue.observe_group(gang("g", 3), 0.0)
    assert queue.pop(0.0) is None
    assert [place.unready for place in queue.held_back_entities()] == [MissingMembers(3, 2)]
    queue.observe_pod(pod("c", "g"), 1.0)
    assert names(queue.pop(1.0)) == ["a", "b", "c"]


def test_members_wait_for_their_group_to_appear() -> None:
    queue = queue_with(pod("a", "g"))
    assert [place.unready for place in queue.held_back_entities()] == [MissingGroup("g")]
    queue.observe_group(basic("g"), 1.0)
    assert names(queue.pop(1.0)) == ["a"]


def test_one_gate_holds_back_the_whole_group() -> None:
    queue = queue_with(pod("a", "g"), pod("b", "g", gates=["quota"]), pod("c", "g"))
    queue.observe_group(gang("g", 2), 0.0)
    assert queue.pop(0.0) is None
    assert [place.unready for place in queue.held_back_entities()] == [
        SchedulingGated(("b",), ("quota",))
    ]
    queue.observe_pod(pod("b", "g"), 1.0)
    assert names(queue.pop(1.0)) == ["a", "b", "c"]


def test_members_that_have_a_node_count_for_the_quorum() -> None:
    queue = queue_with(pod("a", "g", on="n"), pod("b", "g"))
    queue.observe_group(gang("g", 2), 0.0)
    one = pop(queue)
    assert names(one) == ["b"]
    assert [other.metadata.name for other in one.other_members] == ["a"]


@pytest.mark.parametrize("gone", [pod("a", "g", phase="Failed"), pod("a", "g", deleting=True)])
def test_members_that_ended_or_are_being_deleted_do_not_count(gone: Pod) -> None:
    queue = queue_with(pod("a", "g"), pod("b", "g"))
    queue.observe_group(gang("g", 2), 0.0)
    queue.observe_pod(gone, 1.0)
    assert queue.pop(1.0) is None
    assert [place.unready for place in queue.held_back_entities()] == [MissingMembers(2, 1)]


def test_lowering_the_quorum_lets_a_gang_go() -> None:
    queue = queue_with(pod("a", "g"))
    queue.observe_group(gang("g", 2), 0.0)
    queue.observe_group(gang("g", 1), 1.0)
    assert names(queue.pop(1.0)) == ["a"]


@pytest.mark.parametrize(
    ("left", "quorum"),
    [("2", 2), ("1", 1), ("0", 1), ("9", 3), ("", 3), ("two", 3), ("-1", 3), ("9" * 5000, 3)],
)
def test_a_gang_needs_no_more_members_than_are_still_to_run(left: str, quorum: int) -> None:
    group = gang("g", 3)
    marked = replace(
        group, metadata=replace(group.metadata, annotations={MEMBERS_TO_RUN_ANNOTATION: left})
    )
    queue = queue_with(*(pod(f"p{n}", "g") for n in range(quorum)))
    queue.observe_group(marked, 0.0)
    assert pop(queue).quorum == marked.quorum == quorum
    short = queue_with(*(pod(f"p{n}", "g") for n in range(quorum - 1)))
    short.observe_group(marked, 0.0)
    assert short.pop(0.0) is None


def test_saying_that_fewer_members_are_to_run_lets_the_last_ones_go() -> None:
    group = gang("g", 2)
    queue = queue_with(pod("ended", "g", on="n", phase="Succeeded"), pod("last", "g"))
    queue.observe_group(group, 0.0)
    assert queue.pop(0.0) is None
    marked = replace(group.metadata, annotations={MEMBERS_TO_RUN_ANNOTATION: "1"})
    queue.observe_group(replace(group, metadata=marked), 1.0)
    assert names(queue.pop(1.0)) == ["last"]


def test_members_to_run_mean_nothing_to_a_basic_group() -> None:
    group = basic("g")
    marked = replace(group.metadata, annotations={MEMBERS_TO_RUN_ANNOTATION: "5"})
    queue = queue_with(pod("a", "g"))
    queue.observe_group(replace(group, metadata=marked), 0.0)
    assert names(queue.pop(0.0)) == ["a"]


def test_a_group_made_again_under_its_name_wakes_its_members() -> None:
    queue = queue_with(pod("a", "g"))
    queue.observe_group(gang("g", 1), 0.0)
    one = pop(queue)
    queue.done(one, refusal(one), 0.0)
    assert queue.pop(0.1) is None
    queue.observe_group(
        replace(gang("g", 1), metadata=replace(gang("g", 1).metadata, uid="new")), 0.2
    )
    assert names(queue.pop(0.2)) == ["a"]


def test_a_group_whose_wish_to_be_near_is_mended_wakes_its_members() -> None:
    group = gang("g", 1)
    wishing = replace(
        group, metadata=replace(group.metadata, annotations={TOPOLOGY_ANNOTATION: "a after"})
    )
    queue = queue_with(pod("a", "g"))
    queue.observe_group(wishing, 0.0)
    one = pop(queue)
    queue.done(one, refusal(one), 0.0)
    queue.observe_group(wishing, 0.1)
    assert queue.pop(0.1) is None
    queue.observe_group(group, 0.2)
    one = pop(queue, 0.2)
    assert one.group == group
    queue.observe_group(wishing, 0.3)
    assert not queue.is_current(one, ())


def test_a_group_that_is_deleted_sends_its_members_back_to_waiting() -> None:
    queue = queue_with(pod("a", "g"))
    queue.observe_group(basic("g"), 0.0)
    queue.remove_group(key("g"), 1.0)
    assert queue.pop(1.0) is None
    assert [place.unready for place in queue.held_back_entities()] == [MissingGroup("g")]
    queue.remove_group(key("never"), 1.0)


# ---- whose pods ----------------------------------------------------------------------------------


def test_the_pods_of_another_scheduler_are_left_alone() -> None:
    queue = queue_with(pod("p", scheduler="other"), pod("m", "g", scheduler="other"))
    queue.observe_group(basic("g"), 0.0)
    assert queue.pop(0.0) is None
    assert queue.list_entities() == []


def test_a_group_of_two_schedulers_is_tried_so_that_somebody_says_so() -> None:
    queue = queue_with(pod("a", "g"), pod("b", "g", scheduler="other"))
    queue.observe_group(gang("g", 2), 0.0)
    one = pop(queue)
    assert (names(one), len(one.other_members)) == (["a"], 1)


def test_a_pod_that_somebody_else_bound_is_not_tried_any_more() -> None:
    queue = queue_with(pod("p"), pod("a", "g"))
    queue.observe_group(basic("g"), 0.0)
    queue.observe_pod(pod("p", on="n"), 1.0)
    queue.observe_pod(pod("a", "g", on="n"), 1.0)
    assert queue.pop(1.0) is None


def test_a_namesake_is_another_pod() -> None:
    queue = queue_with(pod("p", uid="1"))
    one = pop(queue)
    queue.observe_pod(pod("p", uid="2"), 1.0)
    queue.done(one, success(one), 2.0)
    assert [m.pod.metadata.uid for m in pop(queue, 2.0).members] == ["2"]


def test_a_namesake_in_another_group_leaves_the_first_group() -> None:
    queue = queue_with(pod("p", "g", uid="1"))
    queue.observe_group(basic("g"), 0.0)
    queue.observe_group(basic("h"), 0.0)
    queue.observe_pod(pod("p", "h", uid="2"), 1.0)
    assert pop(queue, 1.0).key == key("h")
    assert queue.pop(1.0) is None


# ---- order ---------------------------------------------------------------------------------------


def test_higher_priority_goes_first_then_whoever_came_first() -> None:
    queue = SchedulingQueue()
    queue.observe_group(gang("low", 1, priority=1), 0.0)
    queue.observe_group(gang("high", 1, priority=9), 0.0)
    queue.observe_pod(pod("l", "low", priority=1), 1.0)
    queue.observe_pod(pod("first", priority=5), 2.0)
    queue.observe_pod(pod("second", priority=5), 3.0)
    queue.observe_pod(pod("h", "high", priority=9), 4.0)
    assert [pop(queue, 5.0).key.name for _ in range(4)] == ["high", "first", "second", "low"]


def test_the_group_whose_first_pod_came_first_wins_though_their_pods_interleave() -> None:
    queue = queue_with(pod("b2", "b"), pod("a1", "a"), pod("b1", "b"), pod("a2", "a"))
    queue.observe_group(gang("a", 2), 0.0)
    queue.observe_group(gang("b", 2), 0.0)
    assert pop(queue).key == key("b")


def test_a_group_whose_priority_changes_moves_in_the_queue() -> None:
    queue = SchedulingQueue()
    for name in ("a", "b"):
        queue.observe_group(basic(name), 0.0)
        queue.observe_pod(pod(f"{name}0", name), 0.0)
    queue.observe_group(basic("b", priority=3), 1.0)
    assert [pop(queue, 1.0).key.name for _ in range(2)] == ["b", "a"]
    assert queue.pop(1.0) is None


def test_a_group_whose_priority_falls_loses_its_turn() -> None:
    queue = SchedulingQueue()
    for name in ("a", "b"):
        queue.observe_group(basic(name, priority=2), 0.0)
        queue.observe_pod(pod(f"{name}0", name, priority=2), 0.0)
    queue.observe_group(basic("a", priority=1), 1.0)
    assert [pop(queue, 1.0).key.name for _ in range(2)] == ["b", "a"]


def test_a_refused_entity_goes_behind_those_that_came_meanwhile() -> None:
    queue = queue_with(pod("first"))
    one = pop(queue)
    queue.observe_pod(pod("second"), 1.0)
    queue.done(one, refusal(one), 2.0)
    queue.wake(ClusterEvent.NODE_ADDED, 3.0)
    assert [names(queue.pop(3.0)), names(queue.pop(3.0))] == [["second"], ["first"]]


# ---- the table -----------------------------------------------------------------------------------


def test_an_attempt_that_was_not_begun_cannot_end_and_nothing_changes() -> None:
    queue = queue_with(pod("p"))
    one = pop(queue)
    queue.done(one, refusal(one), 0.0)
    before = queue.list_entities()
    with pytest.raises(IllegalTransition, match="default/p is BACKING_OFF, yet it was refused"):
        queue.done(one, refusal(one), 0.0)
    with pytest.raises(IllegalTransition):
        queue.done(one, success(one), 0.0)
    assert queue.list_entities() == before


def test_every_state_knows_what_to_do_when_something_about_it_changes() -> None:
    for stimulus in (QueueTrigger.CHANGED, QueueTrigger.RETURNED):
        assert all((state, stimulus) in TRANSITIONS for state in QueueState)


def test_the_listing_shows_who_is_next_and_why_the_others_wait() -> None:
    queue = queue_with(pod("flying"), now=0.0)
    pop(queue, 0.0)
    queue.observe_pod(pod("resting"), 1.0)
    one = pop(queue, 1.0)
    queue.done(one, refusal(one), 1.0)
    queue.observe_pod(pod("gated", gates=["quota"]), 2.0)
    queue.observe_pod(pod("alone", "g"), 2.0)
    queue.observe_pod(pod("next"), 3.0)
    listing = queue.list_entities()
    assert [(place.key.name, place.state) for place in listing] == [
        ("flying", QueueState.IN_FLIGHT),
        ("next", QueueState.ACTIVE),
        ("resting", QueueState.BACKING_OFF),
        ("gated", QueueState.GATED),
        ("g", QueueState.INCOMPLETE),
    ]
    assert [place.until for place in listing] == [None, None, 2.0, None, None]
    assert listing[4].pods == (Key("default", "alone"),)
    assert listing[2].outcome is not None
