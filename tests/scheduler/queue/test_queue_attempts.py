"""The state of an entity after an attempt, and events during one."""

from __future__ import annotations

import pytest

from phalanx.scheduler.cluster.cluster_delta import ClusterDelta
from phalanx.scheduler.decision import (
    ENTITY_EVENTS,
    SCHEDULER_ERROR,
    Binding,
    ClusterEvent,
    Impossible,
)
from phalanx.scheduler.queue.queued_entity import QueueState
from tests.scheduler.builders import basic, gang, key, pod
from tests.scheduler.queue.queue_helpers import (
    bindings,
    names,
    pop,
    queue_with,
    refusal,
    state,
    success,
)


def test_refused_entity_is_attempted_again_after_its_back_off() -> None:
    queue = queue_with(pod("p"))
    one = pop(queue)
    queue.done(one, refusal(one), 10.0)
    assert (queue.pop(10.9), queue.next_backoff_end()) == (None, 11.0)
    again = pop(queue, 11.0)
    assert again.attempts == 2
    queue.done(again, refusal(again), 11.0)
    assert queue.next_backoff_end() == 13.0


def test_only_awaited_events_wake_a_refused_entity() -> None:
    queue = queue_with(pod("p"))
    one = pop(queue)
    queue.done(one, refusal(one), 0.0)
    queue.wake(ClusterDelta(ClusterEvent.POD_GONE), 0.1)
    assert queue.pop(0.1) is None
    queue.wake(ClusterDelta(ClusterEvent.NODE_ADDED), 0.2)
    queue.wake(ClusterDelta(ClusterEvent.NODE_ADDED), 0.2)
    assert names(queue.pop(0.2)) == ["p"]
    assert (queue.pop(0.2), queue.next_backoff_end()) == (None, None)


def test_awaited_event_during_the_cycle_is_remembered() -> None:
    queue = queue_with(pod("p"))
    one = pop(queue)
    queue.wake(ClusterDelta(ClusterEvent.NODE_ADDED), 0.1)
    queue.done(one, refusal(one), 0.2)
    assert names(queue.pop(0.2)) == ["p"]


def test_late_member_wakes_the_group_after_its_cycle() -> None:
    queue = queue_with(pod("a", "g"))
    queue.observe_group(gang("g", 1), 0.0)
    one = pop(queue)
    queue.observe_pod(pod("b", "g"), 0.1)
    assert queue.pop(0.1) is None
    queue.done(one, refusal(one), 0.2)
    assert names(queue.pop(0.2)) == ["a", "b"]


def test_status_updates_do_not_wake_a_refused_group() -> None:
    queue = queue_with(pod("a", "g"))
    queue.observe_group(gang("g", 1), 0.0)
    one = pop(queue)
    queue.done(one, refusal(one), 0.0)
    queue.observe_pod(pod("a", "g"), 0.1)
    queue.observe_group(gang("g", 1), 0.1)
    assert queue.pop(0.1) is None


def test_members_back_off_or_are_incomplete_after_another_is_deleted() -> None:
    queue = queue_with(pod("a", "g"), pod("b", "g"), pod("c", "g"))
    queue.observe_group(gang("g", 2), 0.0)
    one = pop(queue)
    queue.done(one, refusal(one), 0.0)
    queue.remove_pod(key("a"), 0.1)
    assert state(queue, "g") is QueueState.BACKING_OFF
    queue.remove_pod(key("b"), 0.1)
    assert state(queue, "g") is QueueState.INCOMPLETE
    queue.remove_pod(key("c"), 0.1)
    assert (queue.list_entities(), queue.next_backoff_end()) == ([], None)


def test_gated_member_ends_the_back_off_of_its_group() -> None:
    queue = queue_with(pod("a", "g"))
    queue.observe_group(gang("g", 1), 0.0)
    one = pop(queue)
    queue.observe_pod(pod("b", "g", gates=["quota"]), 0.1)
    queue.done(one, refusal(one), 0.2)
    assert (state(queue, "g"), queue.pop(99.0)) == (QueueState.GATED, None)


def test_group_that_loses_members_during_its_cycle_is_incomplete_afterwards() -> None:
    queue = queue_with(pod("a", "g"), pod("b", "g"))
    queue.observe_group(gang("g", 2), 0.0)
    one = pop(queue)
    queue.remove_pod(key("b"), 0.1)
    queue.done(one, refusal(one), 0.2)
    assert (state(queue, "g"), queue.next_backoff_end()) == (QueueState.INCOMPLETE, None)


def test_leftovers_of_a_placed_group_keep_their_position() -> None:
    queue = queue_with(pod("a", "g"), pod("b", "g"))
    queue.observe_group(gang("g", 1), 0.0)
    one = pop(queue)
    queue.observe_pod(pod("other"), 1.0)
    queue.done(one, success(one, "a"), 2.0)
    assert [names(queue.pop(2.0)), names(queue.pop(2.0))] == [["b"], ["other"]]


def test_late_members_of_a_placed_group_start_a_new_wait() -> None:
    queue = queue_with(pod("a", "g"))
    queue.observe_group(gang("g", 1), 0.0)
    one = pop(queue)
    queue.observe_pod(pod("b", "g"), 0.5)
    queue.observe_pod(pod("other"), 1.0)
    queue.done(one, success(one), 2.0)
    assert [names(queue.pop(2.0)), names(queue.pop(2.0))] == [["other"], ["b"]]


def test_placed_members_count_for_later_members() -> None:
    queue = queue_with(pod("a", "g"), pod("b", "g"))
    queue.observe_group(gang("g", 2), 0.0)
    one = pop(queue)
    queue.done(one, success(one), 0.0)
    assert queue.list_entities() == []
    queue.observe_pod(pod("a", "g", on="n"), 0.1)
    queue.observe_pod(pod("c", "g"), 0.2)
    assert names(queue.pop(0.2)) == ["c"]


def test_stale_update_does_not_queue_a_placed_pod_again() -> None:
    queue = queue_with(pod("p"), pod("a", "g"))
    queue.observe_group(basic("g"), 0.0)
    for _ in range(2):
        one = pop(queue)
        queue.done(one, success(one), 0.0)
    queue.observe_pod(pod("p"), 0.1)
    queue.observe_pod(pod("a", "g"), 0.1)
    assert queue.pop(0.1) is None


@pytest.mark.parametrize("group", ["", "g"])
def test_pod_is_queued_after_a_back_off_if_its_binding_fails(group: str) -> None:
    queue = queue_with(pod("p", group))
    queue.observe_group(basic("g"), 0.0)
    one = pop(queue)
    queue.done(one, success(one), 0.0)
    queue.return_unbound(bindings(one), 1.0)
    queue.return_unbound(bindings(one), 1.0)
    queue.wake(ClusterDelta(ClusterEvent.NODE_ADDED), 1.0)
    assert (queue.pop(1.0), queue.next_backoff_end()) == (None, 2.0)
    assert names(queue.pop(2.0)) == ["p"]


def test_deleted_pod_is_not_returned_to_the_queue() -> None:
    queue = queue_with(pod("p"))
    one = pop(queue)
    queue.done(one, success(one), 0.0)
    queue.remove_pod(key("p"), 0.5)
    queue.return_unbound(bindings(one), 1.0)
    assert queue.list_entities() == []


def test_bound_pod_is_not_returned_to_the_queue() -> None:
    queue = queue_with(pod("a", "g"))
    queue.observe_group(basic("g"), 0.0)
    one = pop(queue)
    queue.done(one, success(one), 0.0)
    queue.observe_pod(pod("a", "g", on="n"), 0.5)
    queue.return_unbound(bindings(one), 1.0)
    assert queue.list_entities() == []


def test_members_are_returned_to_a_group_in_any_state() -> None:
    queue = queue_with(pod("a", "g"), pod("b", "g"))
    queue.observe_group(gang("g", 1), 0.0)
    one = pop(queue)
    queue.done(one, success(one, "a"), 0.0)
    queue.return_unbound([Binding(key("a"), "uid-a", "n")], 0.1)
    assert state(queue, "g") is QueueState.BACKING_OFF
    again = pop(queue, 2.0)
    queue.done(again, success(again, "a"), 2.0)
    flying = pop(queue, 2.0)
    queue.return_unbound([Binding(key("a"), "uid-a", "n")], 2.1)
    queue.done(flying, refusal(flying), 2.2)
    assert names(pop(queue, 99.0)) == ["b", "a"]


@pytest.mark.parametrize("placed", [True, False])
def test_group_backs_off_after_its_cycle_if_bindings_fail_meanwhile(placed: bool) -> None:
    queue = queue_with(pod("a", "g"), pod("b", "g"))
    queue.observe_group(basic("g"), 0.0)
    one = pop(queue)
    queue.done(one, success(one, "a"), 0.0)
    flying = pop(queue)
    queue.return_unbound([Binding(key("a"), "uid-a", "n")], 0.0)
    # The failed binding seems to free resources that were never used.
    queue.wake(ClusterDelta(ClusterEvent.NODE_ADDED), 0.0)
    queue.done(flying, success(flying) if placed else refusal(flying), 0.0)
    assert (state(queue, "g"), queue.pop(0.0)) == (QueueState.BACKING_OFF, None)
    assert "a" in names(queue.pop(99.0))


def test_errors_have_their_own_back_off() -> None:
    queue = queue_with(pod("p"))
    for now, wait in ((0.0, 1.0), (1.0, 2.0), (3.0, 4.0)):
        one = pop(queue, now)
        refused = refusal(one).pods
        queue.done(
            one, Impossible(None, refused, SCHEDULER_ERROR, "odd", "edit", ENTITY_EVENTS), now
        )
        assert queue.next_backoff_end() == now + wait


def test_impossible_group_is_woken_by_deletion_of_the_inconsistent_member() -> None:
    queue = queue_with(pod("a", "g"), pod("b", "g", priority=4))
    queue.observe_group(basic("g"), 0.0)
    one = pop(queue)
    refused = refusal(one).pods
    queue.done(
        one, Impossible(key("g"), refused, SCHEDULER_ERROR, "odd", "edit", ENTITY_EVENTS), 0.0
    )
    queue.remove_pod(key("b"), 0.1)
    assert names(queue.pop(0.1)) == ["a"]


def test_entity_deleted_during_its_cycle_leaves_no_entry() -> None:
    queue = queue_with(pod("p"))
    one = pop(queue)
    queue.remove_pod(key("p"), 0.1)
    queue.done(one, success(one), 0.2)
    assert (queue.list_entities(), queue.next_backoff_end(), queue.pop(9.0)) == ([], None, None)
