"""What the queue knows about one entity."""

from __future__ import annotations

from phalanx.api.meta import pod_group_ref
from phalanx.scheduler.queue.queued_entity import QueuedEntity, QueueState
from tests.scheduler.builders import basic, gang, key, pod

GROUP = pod_group_ref(key("g"))


def entry(members: int, quorum: int = 1) -> QueuedEntity:
    one = QueuedEntity(GROUP)
    one.group_tree.update(GROUP, gang("g", quorum))
    for i in range(members):
        one.upsert_pod(pod(f"p{i}", "g"), 0.0, pending=True)
    return one


def test_consecutive_errors_count_instead_of_failures() -> None:
    one = entry(1)
    one.failures, one.errors = 1, 3
    assert one.consecutive_failures == 3
    one.errors = 0
    assert one.consecutive_failures == 1


def test_target_state_follows_from_the_objects() -> None:
    one = QueuedEntity(GROUP)
    seen = [one.target_state]
    one.upsert_pod(pod("p", "g", gates=["quota"]), 0.0, pending=True)
    seen.append(one.target_state)
    one.group_tree.update(GROUP, gang("g", 2))
    seen.append(one.target_state)
    one.upsert_pod(pod("p", "g"), 0.0, pending=True)
    seen.append(one.target_state)
    one.upsert_pod(pod("q", "g", on="n"), 0.0, pending=False)
    seen.append(one.target_state)
    assert seen == [
        QueueState.IDLE,
        QueueState.INCOMPLETE,
        QueueState.GATED,
        QueueState.INCOMPLETE,
        QueueState.ACTIVE,
    ]


def test_basic_group_needs_one_member() -> None:
    one = entry(1)
    one.group_tree.update(GROUP, basic("g"))
    assert one.target_state is QueueState.ACTIVE


def test_irrelevant_update_does_not_affect_scheduling() -> None:
    one = entry(1)
    assert not one.upsert_pod(pod("p0", "g"), 5.0, pending=True)
    assert one.pending[key("p0")].timestamp == 0.0
    assert one.upsert_pod(pod("p0", "g", cpu="1"), 5.0, pending=True)
    assert one.upsert_pod(pod("p0", "g", cpu="1", priority=1), 5.0, pending=True)
    assert one.upsert_pod(pod("p0", "g", cpu="1", priority=1, gates=["x"]), 5.0, pending=True)
    assert one.upsert_pod(
        pod("p0", "g", cpu="1", priority=1, preemption="Never"), 5.0, pending=True
    )


def test_changed_labels_affect_scheduling() -> None:
    one = entry(1)
    assert one.upsert_pod(pod("p0", "g", labels={"app": "web"}), 5.0, pending=True)
    assert not one.upsert_pod(pod("p0", "g", labels={"app": "web"}), 6.0, pending=True)
    assert one.upsert_pod(pod("p0", "g"), 7.0, pending=True)


def test_bound_member_is_not_pending() -> None:
    one = entry(2)
    assert one.upsert_pod(pod("p0", "g", on="n"), 1.0, pending=False)
    assert (list(one.pending), list(one.others)) == ([key("p1")], [key("p0")])
    assert not one.upsert_pod(pod("p0", "g", on="n", phase="Running"), 2.0, pending=False)


def test_pods_of_the_same_name_are_distinguished_by_uid() -> None:
    one = entry(1)
    assert one.contains(key("p0"), "uid-p0")
    assert not one.contains(key("p0"), "another")
    assert not one.contains(key("q"), "uid-q")


def test_attempts_are_counted_for_the_entity_and_each_pod() -> None:
    one = entry(2)
    one.start_attempt(0.0)
    one.upsert_pod(pod("late", "g"), 1.0, pending=True)
    entity = one.start_attempt(0.0)
    assert entity.attempts == 2
    assert [member.attempts for member in entity.members] == [2, 2, 1]
