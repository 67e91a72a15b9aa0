"""Which entity is attempted next, and when."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from phalanx.api.core import Pod
from phalanx.api.meta import Key, pod_group_ref
from phalanx.api.scheduling import MEMBERS_TO_RUN_ANNOTATION, TOPOLOGY_ANNOTATION
from phalanx.scheduler.cluster.cluster_delta import ClusterDelta
from phalanx.scheduler.decision import ClusterEvent, MissingGroup, MissingMembers, SchedulingGated
from phalanx.scheduler.queue.queued_entity import QueueState, QueueTrigger
from phalanx.scheduler.queue.scheduling_queue import (
    TRANSITIONS,
    IllegalTransition,
    SchedulingQueue,
)
from tests.scheduler.builders import basic, gang, key, pod
from tests.scheduler.queue.queue_helpers import names, pop, queue_with, refusal, success

# ---- readiness -----------------------------------------------------------------------------------


def test_pod_without_group_is_attempted_once() -> None:
    queue = queue_with(pod("p"))
    one = pop(queue)
    assert (one.key, one.group, names(one), one.attempts) == (key("p"), None, ["p"], 1)
    assert queue.pop(0.0) is None


def test_gang_waits_until_its_last_member_arrives() -> None:
    queue = queue_with(pod("a", "g"), pod("b", "g"))
    queue.observe_group(gang("g", 3), 0.0)
    assert queue.pop(0.0) is None
    assert [place.unready for place in queue.list_held_back()] == [MissingMembers(3, 2)]
    queue.observe_pod(pod("c", "g"), 1.0)
    assert names(queue.pop(1.0)) == ["a", "b", "c"]


def test_members_wait_for_their_group_to_appear() -> None:
    queue = queue_with(pod("a", "g"))
    assert [place.unready for place in queue.list_held_back()] == [MissingGroup("g")]
    queue.observe_group(basic("g"), 1.0)
    assert names(queue.pop(1.0)) == ["a"]


def test_one_scheduling_gate_gates_the_whole_group() -> None:
    queue = queue_with(pod("a", "g"), pod("b", "g", gates=["quota"]), pod("c", "g"))
    queue.observe_group(gang("g", 2), 0.0)
    assert queue.pop(0.0) is None
    assert [place.unready for place in queue.list_held_back()] == [
        SchedulingGated(("b",), ("quota",))
    ]
    queue.observe_pod(pod("b", "g"), 1.0)
    assert names(queue.pop(1.0)) == ["a", "b", "c"]


def test_bound_members_count_for_the_quorum() -> None:
    queue = queue_with(pod("a", "g", on="n"), pod("b", "g"))
    queue.observe_group(gang("g", 2), 0.0)
    one = pop(queue)
    assert names(one) == ["b"]
    assert [other.metadata.name for other in one.other_members] == ["a"]


@pytest.mark.parametrize("gone", [pod("a", "g", phase="Failed"), pod("a", "g", deleting=True)])
def test_ended_and_terminating_members_do_not_count(gone: Pod) -> None:
    queue = queue_with(pod("a", "g"), pod("b", "g"))
    queue.observe_group(gang("g", 2), 0.0)
    queue.observe_pod(gone, 1.0)
    assert queue.pop(1.0) is None
    assert [place.unready for place in queue.list_held_back()] == [MissingMembers(2, 1)]


def test_lower_min_count_activates_a_gang() -> None:
    queue = queue_with(pod("a", "g"))
    queue.observe_group(gang("g", 2), 0.0)
    queue.observe_group(gang("g", 1), 1.0)
    assert names(queue.pop(1.0)) == ["a"]


@pytest.mark.parametrize(
    ("left", "quorum"),
    [("2", 2), ("1", 1), ("0", 1), ("9", 3), ("", 3), ("two", 3), ("-1", 3), ("9" * 5000, 3)],
)
def test_gang_needs_no_more_members_than_are_still_to_run(left: str, quorum: int) -> None:
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


def test_smaller_number_of_members_to_run_activates_the_gang() -> None:
    group = gang("g", 2)
    queue = queue_with(pod("ended", "g", on="n", phase="Succeeded"), pod("last", "g"))
    queue.observe_group(group, 0.0)
    assert queue.pop(0.0) is None
    marked = replace(group.metadata, annotations={MEMBERS_TO_RUN_ANNOTATION: "1"})
    queue.observe_group(replace(group, metadata=marked), 1.0)
    assert names(queue.pop(1.0)) == ["last"]


def test_basic_group_ignores_the_number_of_members_to_run() -> None:
    group = basic("g")
    marked = replace(group.metadata, annotations={MEMBERS_TO_RUN_ANNOTATION: "5"})
    queue = queue_with(pod("a", "g"))
    queue.observe_group(replace(group, metadata=marked), 0.0)
    assert names(queue.pop(0.0)) == ["a"]


def test_recreated_group_wakes_its_members() -> None:
    queue = queue_with(pod("a", "g"))
    queue.observe_group(gang("g", 1), 0.0)
    one = pop(queue)
    queue.done(one, refusal(one), 0.0)
    assert queue.pop(0.1) is None
    queue.observe_group(
        replace(gang("g", 1), metadata=replace(gang("g", 1).metadata, uid="new")), 0.2
    )
    assert names(queue.pop(0.2)) == ["a"]


def test_corrected_topology_annotation_wakes_the_members() -> None:
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


def test_members_are_incomplete_after_deletion_of_their_group() -> None:
    queue = queue_with(pod("a", "g"))
    queue.observe_group(basic("g"), 0.0)
    queue.remove_group(pod_group_ref(key("g")), 1.0)
    assert queue.pop(1.0) is None
    assert [place.unready for place in queue.list_held_back()] == [MissingGroup("g")]
    queue.remove_group(pod_group_ref(key("never")), 1.0)


# ---- pods of other schedulers and recreated pods -------------------------------------------------


def test_pods_of_another_scheduler_are_ignored() -> None:
    queue = queue_with(pod("p", scheduler="other"), pod("m", "g", scheduler="other"))
    queue.observe_group(basic("g"), 0.0)
    assert queue.pop(0.0) is None
    assert queue.list_entities() == []


def test_group_with_pods_of_two_schedulers_is_attempted() -> None:
    queue = queue_with(pod("a", "g"), pod("b", "g", scheduler="other"))
    queue.observe_group(gang("g", 2), 0.0)
    one = pop(queue)
    assert (names(one), len(one.other_members)) == (["a"], 1)


def test_pod_bound_by_another_client_is_not_attempted() -> None:
    queue = queue_with(pod("p"), pod("a", "g"))
    queue.observe_group(basic("g"), 0.0)
    queue.observe_pod(pod("p", on="n"), 1.0)
    queue.observe_pod(pod("a", "g", on="n"), 1.0)
    assert queue.pop(1.0) is None


def test_recreated_pod_is_another_pod() -> None:
    queue = queue_with(pod("p", uid="1"))
    one = pop(queue)
    queue.observe_pod(pod("p", uid="2"), 1.0)
    queue.done(one, success(one), 2.0)
    assert [m.pod.metadata.uid for m in pop(queue, 2.0).members] == ["2"]


def test_pod_recreated_in_another_group_leaves_the_first_group() -> None:
    queue = queue_with(pod("p", "g", uid="1"))
    queue.observe_group(basic("g"), 0.0)
    queue.observe_group(basic("h"), 0.0)
    queue.observe_pod(pod("p", "h", uid="2"), 1.0)
    assert pop(queue, 1.0).key == key("h")
    assert queue.pop(1.0) is None


# ---- order ---------------------------------------------------------------------------------------


def test_higher_priority_comes_first_then_earlier_arrival() -> None:
    queue = SchedulingQueue()
    queue.observe_group(gang("low", 1, priority=1), 0.0)
    queue.observe_group(gang("high", 1, priority=9), 0.0)
    queue.observe_pod(pod("l", "low", priority=1), 1.0)
    queue.observe_pod(pod("first", priority=5), 2.0)
    queue.observe_pod(pod("second", priority=5), 3.0)
    queue.observe_pod(pod("h", "high", priority=9), 4.0)
    assert [pop(queue, 5.0).key.name for _ in range(4)] == ["high", "first", "second", "low"]


def test_groups_are_ordered_by_their_first_pod() -> None:
    queue = queue_with(pod("b2", "b"), pod("a1", "a"), pod("b1", "b"), pod("a2", "a"))
    queue.observe_group(gang("a", 2), 0.0)
    queue.observe_group(gang("b", 2), 0.0)
    assert pop(queue).key == key("b")


def test_higher_priority_of_a_group_moves_it_forward() -> None:
    queue = SchedulingQueue()
    for name in ("a", "b"):
        queue.observe_group(basic(name), 0.0)
        queue.observe_pod(pod(f"{name}0", name), 0.0)
    queue.observe_group(basic("b", priority=3), 1.0)
    assert [pop(queue, 1.0).key.name for _ in range(2)] == ["b", "a"]
    assert queue.pop(1.0) is None


def test_lower_priority_of_a_group_moves_it_back() -> None:
    queue = SchedulingQueue()
    for name in ("a", "b"):
        queue.observe_group(basic(name, priority=2), 0.0)
        queue.observe_pod(pod(f"{name}0", name, priority=2), 0.0)
    queue.observe_group(basic("a", priority=1), 1.0)
    assert [pop(queue, 1.0).key.name for _ in range(2)] == ["b", "a"]


def test_refused_entity_queues_behind_later_arrivals() -> None:
    queue = queue_with(pod("first"))
    one = pop(queue)
    queue.observe_pod(pod("second"), 1.0)
    queue.done(one, refusal(one), 2.0)
    queue.wake(ClusterDelta(ClusterEvent.NODE_ADDED), 3.0)
    assert [names(queue.pop(3.0)), names(queue.pop(3.0))] == [["second"], ["first"]]


# ---- transitions ---------------------------------------------------------------------------------


def test_illegal_transition_raises_and_changes_nothing() -> None:
    queue = queue_with(pod("p"))
    one = pop(queue)
    queue.done(one, refusal(one), 0.0)
    before = queue.list_entities()
    with pytest.raises(IllegalTransition, match="default/p is BACKING_OFF, yet it was refused"):
        queue.done(one, refusal(one), 0.0)
    with pytest.raises(IllegalTransition):
        queue.done(one, success(one), 0.0)
    assert queue.list_entities() == before


def test_every_state_has_a_transition_for_changes() -> None:
    for stimulus in (QueueTrigger.CHANGED, QueueTrigger.RETURNED):
        assert all((state, stimulus) in TRANSITIONS for state in QueueState)


def test_listing_shows_the_order_and_the_reasons() -> None:
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
