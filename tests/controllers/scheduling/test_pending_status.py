"""Who is told what it waits for, when, and how often."""

from __future__ import annotations

from dataclasses import replace

from phalanx.api.core import Pod
from phalanx.api.meta import ObjectMeta
from phalanx.api.scheduling import CompositePodGroup, PodGroup
from phalanx.client.cache import ObjectCache
from phalanx.client.protocol import Listing
from phalanx.controllers.scheduling.pending_status import NOT_READY, PendingStatusReporter
from phalanx.controllers.scheduling.status_writer import ConditionUpdate
from phalanx.scheduler.decision import (
    IncompleteGroupTree,
    MissingGroup,
    MissingGroups,
    MissingMembers,
    SchedulingGated,
    UnreadyReason,
)
from phalanx.scheduler.queue.queued_entity import QueuedEntityInfo, QueueState
from tests.scheduler.builders import composite, gang, key, pod, pod_like


class RecordingSink:
    """Hears what is to be said, and says it to nobody."""

    def __init__(self) -> None:
        self.reports: list[str] = []

    def report_pod(self, about: ObjectMeta, update: ConditionUpdate) -> None:
        self._add(about, update)

    def report_group(self, about: ObjectMeta, update: ConditionUpdate) -> None:
        self._add(about, update)

    def report_composite(self, about: ObjectMeta, update: ConditionUpdate) -> None:
        self.reports.append(f"tree {about.name}: {update.reason}: {update.message}")

    def take(self) -> list[str]:
        """What was heard since the last time."""
        heard, self.reports = self.reports, []
        return heard

    def _add(self, about: ObjectMeta, verdict: ConditionUpdate) -> None:
        assert (verdict.status, verdict.reason, verdict.is_pending) == ("False", NOT_READY, True)
        self.reports.append(f"{about.name}: {verdict.message}")


class PendingFixture:
    """Some pods, a group, and those who wait among them."""

    def __init__(self, *pods: Pod, group: PodGroup | None = None) -> None:
        self.groups: ObjectCache[PodGroup] = ObjectCache()
        self.groups.replace(Listing([group] if group else [], 1))
        self.pods: ObjectCache[Pod] = ObjectCache()
        self.pods.replace(Listing(list(pods), 1))
        self.sink, self.events = RecordingSink(), list[str]()
        trees: ObjectCache[CompositePodGroup] = ObjectCache()
        trees.replace(Listing([composite("t", 2)], 1))
        self.reporter = PendingStatusReporter(
            self.pods, self.groups, trees, self.sink, self.sink, self._record
        )

    def update(self, now: float, *places: QueuedEntityInfo) -> list[str]:
        """Who is told what."""
        self.reporter.update(places, now)
        return self.sink.take()

    def _record(self, one: Pod, reason: str, message: str) -> None:
        assert reason == NOT_READY
        self.events.append(f"{one.metadata.name}: {message}")


def queue_entry(
    unready: UnreadyReason, *pods: str, name: str = "g", is_group: bool = True
) -> QueuedEntityInfo:
    state = QueueState.GATED if isinstance(unready, SchedulingGated) else QueueState.INCOMPLETE
    keys = tuple(key(one) for one in pods)
    return QueuedEntityInfo(key(name), is_group, state, 0, keys, 0, 0.0, None, unready, None)


TWO = (pod("a", "g"), pod("b", "g"))
ONE_OF_THREE, TWO_OF_THREE = MissingMembers(3, 1), MissingMembers(3, 2)
ONE, BOTH = "waiting for 3 members, 1 is there", "waiting for 3 members, 2 are there"


def test_a_group_is_told_at_once_and_again_only_when_the_numbers_change() -> None:
    world = PendingFixture(*TWO, group=gang("g", 3))
    assert world.update(1.0, queue_entry(ONE_OF_THREE, "a")) == [f"g: {ONE}"]
    assert world.update(2.0, queue_entry(ONE_OF_THREE, "a")) == []
    assert world.update(3.0, queue_entry(TWO_OF_THREE, "a", "b")) == [f"g: {BOTH}"]


def test_pods_are_told_after_a_while_once_each_and_an_event_says_so_too() -> None:
    world = PendingFixture(*TWO, group=gang("g", 3))
    world.update(1.0, queue_entry(TWO_OF_THREE, "a", "b"))
    assert world.update(5.9, queue_entry(TWO_OF_THREE, "a", "b")) == []
    assert world.update(6.0, queue_entry(TWO_OF_THREE, "a", "b")) == [f"a: {BOTH}", f"b: {BOTH}"]
    assert world.update(7.0, queue_entry(TWO_OF_THREE, "a", "b")) == []
    assert world.events == [f"a: {BOTH}", f"b: {BOTH}"]


def test_numbers_that_change_neither_delay_nor_repeat_what_pods_are_told() -> None:
    world = PendingFixture(*TWO, group=gang("g", 3))
    world.update(1.0, queue_entry(ONE_OF_THREE, "a"))
    world.update(5.0, queue_entry(TWO_OF_THREE, "a", "b"))
    assert world.update(6.0, queue_entry(TWO_OF_THREE, "a", "b")) == [f"a: {BOTH}", f"b: {BOTH}"]
    assert world.update(7.0, queue_entry(ONE_OF_THREE, "a")) == [f"g: {ONE}"]


def test_a_pod_that_joins_those_who_wait_is_told_what_they_were_told() -> None:
    world = PendingFixture(*TWO, group=gang("g", 3))
    world.update(1.0, queue_entry(ONE_OF_THREE, "a"))
    assert world.update(6.0, queue_entry(ONE_OF_THREE, "a")) == [f"a: {ONE}"]
    assert world.update(7.0, queue_entry(TWO_OF_THREE, "a", "b")) == [f"g: {BOTH}", f"b: {BOTH}"]


def test_pods_are_told_again_when_they_wait_for_something_else() -> None:
    world = PendingFixture(*TWO)
    missing = 'waiting for PodGroup "g" to appear'
    world.update(1.0, queue_entry(MissingGroup("g"), "a"))
    assert world.update(6.0, queue_entry(MissingGroup("g"), "a")) == [f"a: {missing}"]
    world.groups.replace(Listing([gang("g", 3)], 2))
    assert world.update(7.0, queue_entry(ONE_OF_THREE, "a")) == [f"g: {ONE}", f"a: {ONE}"]


def test_who_waits_anew_has_a_while_again() -> None:
    world = PendingFixture(*TWO, group=gang("g", 3))
    world.update(1.0, queue_entry(ONE_OF_THREE, "a"))
    assert world.update(2.0) == []
    assert world.update(6.0, queue_entry(ONE_OF_THREE, "a")) == [f"g: {ONE}"]
    assert world.update(11.0, queue_entry(ONE_OF_THREE, "a")) == [f"a: {ONE}"]


def test_a_group_that_was_tried_between_two_looks_is_told_again() -> None:
    world = PendingFixture(*TWO, group=gang("g", 3))
    world.update(1.0, queue_entry(ONE_OF_THREE, "a"))
    tried = replace(queue_entry(ONE_OF_THREE, "a"), attempts=1, timestamp=1.5)
    assert world.update(2.0, tried) == [f"g: {ONE}"]


def test_a_group_made_again_is_told_too() -> None:
    world = PendingFixture(*TWO, group=gang("g", 3))
    world.update(1.0, queue_entry(ONE_OF_THREE, "a"))
    world.groups.replace(Listing([], 2))
    namesake = ObjectMeta(name="g", namespace="default", uid="new")
    world.groups.replace(Listing([PodGroup(namesake, gang("g", 3).spec)], 3))
    assert world.update(2.0, queue_entry(ONE_OF_THREE, "a")) == [f"g: {ONE}"]


def test_the_pod_behind_the_gate_knows_already() -> None:
    world = PendingFixture(pod("a", "g"), pod("b", "g", gates=["quota"]), group=gang("g", 2))
    held = queue_entry(SchedulingGated(("b",), ("quota",)), "a", "b")
    why = "waiting for scheduling gates quota of b"
    assert world.update(1.0, held) == [f"g: {why}"]
    assert world.update(6.0, held) == [f"a: {why}"]


def test_a_pod_alone_is_not_mistaken_for_a_group_of_its_name() -> None:
    world = PendingFixture(pod("g"), group=gang("g", 3))
    alone = replace(queue_entry(SchedulingGated(("g",), ("quota",)), "g"), is_group=False)
    why = "waiting for scheduling gates quota of g"
    assert world.update(1.0, alone, queue_entry(ONE_OF_THREE)) == [f"g: {ONE}"]
    assert world.update(6.0, alone, queue_entry(ONE_OF_THREE)) == [f"g: {why}"]


def test_a_pod_made_again_under_its_name_is_told_too() -> None:
    world = PendingFixture(*TWO, group=gang("g", 3))
    world.update(1.0, queue_entry(TWO_OF_THREE, "a", "b"))
    world.update(6.0, queue_entry(TWO_OF_THREE, "a", "b"))
    world.pods.replace(Listing([], 2))
    world.pods.replace(Listing([pod_like(TWO[0], "a", uid="new"), TWO[1]], 3))
    assert world.update(7.0, queue_entry(TWO_OF_THREE, "a", "b")) == [f"a: {BOTH}"]


def test_a_pod_whose_gate_went_is_told_what_its_gang_still_waits_for() -> None:
    gated = [pod(name, "g", gates=["quota"]) for name in "ab"]
    world = PendingFixture(*gated, group=gang("g", 2))
    world.update(1.0, queue_entry(SchedulingGated(("a", "b"), ("quota",)), "a", "b"))
    assert world.update(6.0, queue_entry(SchedulingGated(("a", "b"), ("quota",)), "a", "b")) == []
    world.pods.replace(Listing([], 2))
    world.pods.replace(Listing([TWO[0], gated[1]], 3))
    why = "waiting for scheduling gates quota of b"
    assert world.update(7.0, queue_entry(SchedulingGated(("b",), ("quota",)), "a", "b")) == [
        f"g: {why}",
        f"a: {why}",
    ]


def test_a_tree_says_how_many_of_its_groups_are_there() -> None:
    waiting = replace(queue_entry(MissingGroups(2, 1), "a", name="t"), is_composite=True)
    text = "tree t: NotReadyForScheduling: waiting for 2 groups with all their members, 1 is there"
    assert PendingFixture(*TWO).update(0.0, waiting) == [text]


def test_a_group_of_groups_that_hangs_wrong_says_so() -> None:
    world = PendingFixture(*TWO)
    world.reporter.update_trees(
        [(key("t"), IncompleteGroupTree("it runs in a circle", is_invalid=True))]
    )
    world.reporter.update_trees([(key("gone"), IncompleteGroupTree("nobody is told"))])
    assert world.sink.take() == ["tree t: Invalid: it runs in a circle"]
