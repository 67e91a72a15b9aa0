"""Which waiting entities are reported, when, and how often."""

from __future__ import annotations

from dataclasses import replace

from phalanx.api.core import Pod
from phalanx.api.meta import COMPOSITE_POD_GROUP_KIND, POD_GROUP_KIND, POD_KIND, ObjectMeta, Ref
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
from phalanx.scheduler.queue.queue_listing import QueuedEntityInfo
from phalanx.scheduler.queue.queued_entity import QueueState
from tests.scheduler.builders import composite, gang, key, pod, pod_like


class RecordingSink:
    """Collects reports."""

    def __init__(self) -> None:
        self.reports: list[str] = []

    def report_pod(self, about: ObjectMeta, update: ConditionUpdate) -> None:
        self._add(about, update)

    def report_group(self, about: ObjectMeta, update: ConditionUpdate) -> None:
        self._add(about, update)

    def report_composite(self, about: ObjectMeta, update: ConditionUpdate) -> None:
        self.reports.append(f"tree {about.name}: {update.reason}: {update.message}")

    def take(self) -> list[str]:
        """Return and clear the collected reports."""
        heard, self.reports = self.reports, []
        return heard

    def _add(self, about: ObjectMeta, update: ConditionUpdate) -> None:
        assert (update.status, update.reason, update.is_pending) == ("False", NOT_READY, True)
        self.reports.append(f"{about.name}: {update.message}")


class PendingFixture:
    """Pods, a group, and a reporter of waiting entities."""

    def __init__(self, *pods: Pod, group: PodGroup | None = None) -> None:
        self.groups: ObjectCache[PodGroup] = ObjectCache()
        self.groups.replace(Listing([group] if group else [], 1))
        self.pods: ObjectCache[Pod] = ObjectCache()
        self.pods.replace(Listing(list(pods), 1))
        self.sink, self.events = RecordingSink(), list[str]()
        trees: ObjectCache[CompositePodGroup] = ObjectCache()
        trees.replace(Listing([composite("t", 2)], 1))
        self.reporter = PendingStatusReporter(
            self.pods,
            self.groups,
            trees,
            status_writer=self.sink,
            composite_writer=self.sink,
            record=self._record,
        )

    def update(self, now: float, *places: QueuedEntityInfo) -> list[str]:
        """Update, and return the new reports."""
        self.reporter.update(places, now)
        return self.sink.take()

    def _record(self, one: Pod, reason: str, message: str) -> None:
        assert reason == NOT_READY
        self.events.append(f"{one.metadata.name}: {message}")


def queue_entry(
    unready: UnreadyReason, *pods: str, name: str = "g", kind: str = POD_GROUP_KIND
) -> QueuedEntityInfo:
    state = QueueState.GATED if isinstance(unready, SchedulingGated) else QueueState.INCOMPLETE
    keys = tuple(key(one) for one in pods)
    return QueuedEntityInfo(Ref(kind, *key(name)), state, 0, keys, 0, 0.0, None, unready, None)


TWO = (pod("a", "g"), pod("b", "g"))
ONE_OF_THREE, TWO_OF_THREE = MissingMembers(3, 1), MissingMembers(3, 2)
ONE, BOTH = "waiting for 3 members, 1 is there", "waiting for 3 members, 2 are there"


def test_a_group_is_reported_after_a_moment_and_again_only_when_its_message_changes() -> None:
    fixture = PendingFixture(*TWO, group=gang("g", 3))
    assert fixture.update(1.0, queue_entry(ONE_OF_THREE, "a")) == []
    assert fixture.update(2.0, queue_entry(ONE_OF_THREE, "a")) == [f"g: {ONE}"]
    assert fixture.update(3.0, queue_entry(ONE_OF_THREE, "a")) == []
    assert fixture.update(4.0, queue_entry(TWO_OF_THREE, "a", "b")) == [f"g: {BOTH}"]


def test_a_group_that_is_complete_after_a_moment_is_not_reported() -> None:
    fixture = PendingFixture(*TWO, group=gang("g", 3))
    assert fixture.update(1.0, queue_entry(TWO_OF_THREE, "a", "b")) == []
    assert fixture.update(2.0) == []


def test_pods_are_reported_once_after_a_delay_with_an_event() -> None:
    fixture = PendingFixture(*TWO, group=gang("g", 3))
    fixture.update(1.0, queue_entry(TWO_OF_THREE, "a", "b"))
    assert fixture.update(2.0, queue_entry(TWO_OF_THREE, "a", "b")) == [f"g: {BOTH}"]
    assert fixture.update(5.9, queue_entry(TWO_OF_THREE, "a", "b")) == []
    assert fixture.update(6.0, queue_entry(TWO_OF_THREE, "a", "b")) == [f"a: {BOTH}", f"b: {BOTH}"]
    assert fixture.update(7.0, queue_entry(TWO_OF_THREE, "a", "b")) == []
    assert fixture.events == [f"a: {BOTH}", f"b: {BOTH}"]


def test_a_changed_message_neither_delays_nor_repeats_the_reports_of_pods() -> None:
    fixture = PendingFixture(*TWO, group=gang("g", 3))
    fixture.update(1.0, queue_entry(ONE_OF_THREE, "a"))
    fixture.update(5.0, queue_entry(TWO_OF_THREE, "a", "b"))
    assert fixture.update(6.0, queue_entry(TWO_OF_THREE, "a", "b")) == [f"a: {BOTH}", f"b: {BOTH}"]
    assert fixture.update(7.0, queue_entry(ONE_OF_THREE, "a")) == [f"g: {ONE}"]


def test_a_pod_that_joins_a_waiting_group_is_reported() -> None:
    fixture = PendingFixture(*TWO, group=gang("g", 3))
    fixture.update(1.0, queue_entry(ONE_OF_THREE, "a"))
    assert fixture.update(6.0, queue_entry(ONE_OF_THREE, "a")) == [f"g: {ONE}", f"a: {ONE}"]
    assert fixture.update(7.0, queue_entry(TWO_OF_THREE, "a", "b")) == [f"g: {BOTH}", f"b: {BOTH}"]


def test_pods_are_reported_again_when_the_cause_changes() -> None:
    fixture = PendingFixture(*TWO)
    missing = 'waiting for PodGroup "g" to appear'
    fixture.update(1.0, queue_entry(MissingGroup("g"), "a"))
    assert fixture.update(6.0, queue_entry(MissingGroup("g"), "a")) == [f"a: {missing}"]
    fixture.groups.replace(Listing([gang("g", 3)], 2))
    assert fixture.update(7.0, queue_entry(ONE_OF_THREE, "a")) == [f"g: {ONE}", f"a: {ONE}"]


def test_a_new_wait_has_a_new_delay() -> None:
    fixture = PendingFixture(*TWO, group=gang("g", 3))
    fixture.update(1.0, queue_entry(ONE_OF_THREE, "a"))
    assert fixture.update(2.0) == []
    assert fixture.update(6.0, queue_entry(ONE_OF_THREE, "a")) == []
    assert fixture.update(7.0, queue_entry(ONE_OF_THREE, "a")) == [f"g: {ONE}"]
    assert fixture.update(11.0, queue_entry(ONE_OF_THREE, "a")) == [f"a: {ONE}"]


def test_a_group_tried_between_two_updates_is_reported_again() -> None:
    fixture = PendingFixture(*TWO, group=gang("g", 3))
    fixture.update(1.0, queue_entry(ONE_OF_THREE, "a"))
    assert fixture.update(2.0, queue_entry(ONE_OF_THREE, "a")) == [f"g: {ONE}"]
    tried = replace(queue_entry(ONE_OF_THREE, "a"), attempts=1, timestamp=2.5)
    assert fixture.update(3.0, tried) == []
    assert fixture.update(4.0, tried) == [f"g: {ONE}"]


def test_a_recreated_group_is_reported() -> None:
    fixture = PendingFixture(*TWO, group=gang("g", 3))
    fixture.update(1.0, queue_entry(ONE_OF_THREE, "a"))
    assert fixture.update(2.0, queue_entry(ONE_OF_THREE, "a")) == [f"g: {ONE}"]
    fixture.groups.replace(Listing([], 2))
    recreated = ObjectMeta(name="g", namespace="default", uid="new")
    fixture.groups.replace(Listing([PodGroup(recreated, gang("g", 3).spec)], 3))
    assert fixture.update(3.0, queue_entry(ONE_OF_THREE, "a")) == [f"g: {ONE}"]


def test_a_gated_pod_is_not_reported() -> None:
    fixture = PendingFixture(pod("a", "g"), pod("b", "g", gates=["quota"]), group=gang("g", 2))
    held = queue_entry(SchedulingGated(("b",), ("quota",)), "a", "b")
    why = "waiting for scheduling gates quota of b"
    assert fixture.update(1.0, held) == []
    assert fixture.update(2.0, held) == [f"g: {why}"]
    assert fixture.update(6.0, held) == [f"a: {why}"]


def test_a_pod_alone_is_not_mistaken_for_a_group_of_its_name() -> None:
    fixture = PendingFixture(pod("g"), group=gang("g", 3))
    alone = queue_entry(SchedulingGated(("g",), ("quota",)), "g", kind=POD_KIND)
    why = "waiting for scheduling gates quota of g"
    fixture.update(1.0, alone, queue_entry(ONE_OF_THREE))
    assert fixture.update(2.0, alone, queue_entry(ONE_OF_THREE)) == [f"g: {ONE}"]
    assert fixture.update(6.0, alone, queue_entry(ONE_OF_THREE)) == [f"g: {why}"]


def test_a_recreated_pod_is_reported() -> None:
    fixture = PendingFixture(*TWO, group=gang("g", 3))
    fixture.update(1.0, queue_entry(TWO_OF_THREE, "a", "b"))
    fixture.update(6.0, queue_entry(TWO_OF_THREE, "a", "b"))
    fixture.pods.replace(Listing([], 2))
    fixture.pods.replace(Listing([pod_like(TWO[0], "a", uid="new"), TWO[1]], 3))
    assert fixture.update(7.0, queue_entry(TWO_OF_THREE, "a", "b")) == [f"a: {BOTH}"]


def test_a_pod_without_its_gate_is_reported_with_the_cause_of_its_gang() -> None:
    gated = [pod(name, "g", gates=["quota"]) for name in "ab"]
    fixture = PendingFixture(*gated, group=gang("g", 2))
    for now in (1.0, 2.0):
        fixture.update(now, queue_entry(SchedulingGated(("a", "b"), ("quota",)), "a", "b"))
    assert fixture.update(6.0, queue_entry(SchedulingGated(("a", "b"), ("quota",)), "a", "b")) == []
    fixture.pods.replace(Listing([], 2))
    fixture.pods.replace(Listing([TWO[0], gated[1]], 3))
    why = "waiting for scheduling gates quota of b"
    assert fixture.update(7.0, queue_entry(SchedulingGated(("b",), ("quota",)), "a", "b")) == [
        f"g: {why}",
        f"a: {why}",
    ]


def test_a_tree_is_reported_with_its_number_of_groups() -> None:
    waiting = queue_entry(MissingGroups(2, 1), "a", name="t", kind=COMPOSITE_POD_GROUP_KIND)
    text = "tree t: NotReadyForScheduling: waiting for 2 groups with all their members, 1 is there"
    assert PendingFixture(*TWO).update(0.0, waiting) == [text]


def test_a_composite_group_of_an_invalid_tree_is_reported() -> None:
    fixture = PendingFixture(*TWO)
    fixture.reporter.update_trees(
        [(key("t"), IncompleteGroupTree("it runs in a circle", is_invalid=True))]
    )
    fixture.reporter.update_trees([(key("gone"), IncompleteGroupTree("not reported"))])
    assert fixture.sink.take() == ["tree t: Invalid: it runs in a circle"]
