"""What the queue knows about one entity."""

from __future__ import annotations

from phalanx.scheduler.queueing.entry import Entry, Id, State
from tests.scheduler.builders import basic, gang, key, pod

GROUP = Id(True, key("g"))


def entry(members: int, quorum: int = 1) -> Entry:
    one = Entry(GROUP)
    one.forest.put(GROUP.name, gang("g", quorum))
    for i in range(members):
        one.put(pod(f"p{i}", "g"), 0.0, pending=True)
    return one


def test_errors_in_a_row_count_instead_of_failures() -> None:
    one = entry(1)
    one.failures, one.errors = 1, 3
    assert one.in_a_row == 3
    one.errors = 0
    assert one.in_a_row == 1


def test_an_entity_stands_where_its_parts_put_it() -> None:
    one = Entry(GROUP)
    seen = [one.standing]
    one.put(pod("p", "g", gates=["quota"]), 0.0, pending=True)
    seen.append(one.standing)
    one.forest.put(GROUP.name, gang("g", 2))
    seen.append(one.standing)
    one.put(pod("p", "g"), 0.0, pending=True)
    seen.append(one.standing)
    one.put(pod("q", "g", on="n"), 0.0, pending=False)
    seen.append(one.standing)
    assert seen == [State.IDLE, State.INCOMPLETE, State.GATED, State.INCOMPLETE, State.ACTIVE]


def test_a_basic_group_needs_one_member() -> None:
    one = entry(1)
    one.forest.put(GROUP.name, basic("g"))
    assert one.standing is State.ACTIVE


def test_a_new_version_that_changes_nothing_for_us_does_not_matter() -> None:
    one = entry(1)
    assert not one.put(pod("p0", "g"), 5.0, pending=True)
    assert one.pending[key("p0")].timestamp == 0.0
    assert one.put(pod("p0", "g", cpu="1"), 5.0, pending=True)
    assert one.put(pod("p0", "g", cpu="1", priority=1), 5.0, pending=True)
    assert one.put(pod("p0", "g", cpu="1", priority=1, gates=["x"]), 5.0, pending=True)
    assert one.put(pod("p0", "g", cpu="1", priority=1, preemption="Never"), 5.0, pending=True)


def test_labels_matter_to_whoever_minds_them() -> None:
    one = entry(1)
    assert one.put(pod("p0", "g", labels={"app": "web"}), 5.0, pending=True)
    assert not one.put(pod("p0", "g", labels={"app": "web"}), 6.0, pending=True)
    assert one.put(pod("p0", "g"), 7.0, pending=True)


def test_a_member_that_got_a_node_is_not_pending_any_more() -> None:
    one = entry(2)
    assert one.put(pod("p0", "g", on="n"), 1.0, pending=False)
    assert (list(one.pending), list(one.others)) == ([key("p1")], [key("p0")])
    assert not one.put(pod("p0", "g", on="n", phase="Running"), 2.0, pending=False)


def test_it_tells_a_pod_from_its_namesake() -> None:
    one = entry(1)
    assert one.holds(key("p0"), "uid-p0")
    assert not one.holds(key("p0"), "another")
    assert not one.holds(key("q"), "uid-q")


def test_every_attempt_is_counted_for_the_entity_and_each_pod() -> None:
    one = entry(2)
    one.take_off(0.0)
    one.put(pod("late", "g"), 1.0, pending=True)
    entity = one.take_off(0.0)
    assert entity.attempts == 2
    assert [member.attempts for member in entity.members] == [2, 2, 1]
