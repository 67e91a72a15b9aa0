"""Victims, promises and trees: told again, they are decided again to the last bit."""

from __future__ import annotations

from phalanx.scheduler.decision import Decision, Placed, Preempting, Waiting
from phalanx.scheduler.queueing.record import Record, Seen
from phalanx.scheduler.queueing.replay import Replayed
from tests.scheduler.builders import composite, gang, key, node, pod
from tests.scheduler.queueing.test_replay import Told, begun, replayed


def crowded() -> Told:
    """A node full of somebody who goes as a whole, and a tree that is more important."""
    told = Told()
    low = gang("low", 1, goes_whole=True)
    told.come(node("n", cpu="2"), node("m", cpu="1"), low)
    told.come(*(pod(f"low-{i}", "low", on="n", cpu="1", phase="Running") for i in range(2)))
    told.come(composite("t", 2, priority=10), *(gang(name, 1, parent="t", priority=10)
                                                 for name in "ab"))  # fmt: skip
    told.come(*(pod(f"{name}-0", name, cpu="1", priority=10) for name in "ab"))
    return told


def decisions(records: list[Record]) -> list[Decision]:
    """What is decided of a record, which must be what was decided then."""
    found = replayed(records)
    assert all(isinstance(one, Replayed) and one.then == one.now for one in found), found
    return [one.then for one in found if isinstance(one, Replayed)]


def test_victims_promises_and_trees_are_decided_again_bit_for_bit() -> None:
    told = crowded()
    told.attempt(1.0)
    told.come(pod("late", cpu="1"), at=1.5)
    told.attempt(2.0)
    told.desk.spare([(key("low-0"), "uid-low-0"), (key("low-1"), "uid-low-1")], 2.5)
    told.attempt(100.0)
    told.attempt(101.0)
    found = decisions(told.records)
    assert [type(one) for one in found] == [Preempting, Waiting, Preempting, Placed]
    assert all(one.waiting.parts for one in found if isinstance(one, Preempting))


def test_a_record_may_begin_while_others_are_making_way() -> None:
    told = crowded()
    told.attempt(1.0)
    late = pod("late", cpu="1")
    told.come(late, at=1.5)
    pods = [told.desk.cache.promises(), told.desk.cache.doomed()]
    assert all(pods), "somebody was promised something, somebody is to go"
    things: list[Record] = [one for one in told.records if isinstance(one, Seen)]
    middle = [begun(told.desk, 2.0), *things, *told.desk.standing(2.0)]
    before = len(told.records)
    told.attempt(2.0)
    told.attempt(100.0)
    after = decisions([*middle, *told.records[before:]])
    assert [type(one) for one in after] == [Waiting, Waiting]
    assert any(one.promised for one in after if isinstance(one, Waiting))
