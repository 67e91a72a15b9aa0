"""Who is told what it waits for, when, and how often."""

from __future__ import annotations

from dataclasses import replace

from phalanx.api.core import Pod
from phalanx.api.meta import Meta
from phalanx.api.scheduling import CompositePodGroup, PodGroup
from phalanx.client.answers import Listing
from phalanx.client.cache import Cache
from phalanx.controllers.shell.reporter import Verdict
from phalanx.controllers.shell.waits import NOT_READY, Waits
from phalanx.scheduler.decision import (
    Gated,
    Misplaced,
    MissingGroup,
    MissingGroups,
    MissingMembers,
    Unready,
)
from phalanx.scheduler.queueing.entry import State
from phalanx.scheduler.queueing.place import Place
from tests.scheduler.builders import composite, gang, key, pod, pod_like


class Reports:
    """Hears what is to be said, and says it to nobody."""

    def __init__(self) -> None:
        self.heard: list[str] = []

    def pod(self, about: Meta, verdict: Verdict) -> None:
        self._hear(about, verdict)

    def group(self, about: Meta, verdict: Verdict) -> None:
        self._hear(about, verdict)

    def composite(self, about: Meta, verdict: Verdict) -> None:
        self.heard.append(f"tree {about.name}: {verdict.reason}: {verdict.message}")

    def taken(self) -> list[str]:
        """What was heard since the last time."""
        heard, self.heard = self.heard, []
        return heard

    def _hear(self, about: Meta, verdict: Verdict) -> None:
        assert (verdict.status, verdict.reason, verdict.waiting) == ("False", NOT_READY, True)
        self.heard.append(f"{about.name}: {verdict.message}")


class World:
    """Some pods, a group, and those who wait among them."""

    def __init__(self, *pods: Pod, group: PodGroup | None = None) -> None:
        self.groups: Cache[PodGroup] = Cache()
        self.groups.replace(Listing([group] if group else [], 1))
        self.pods: Cache[Pod] = Cache()
        self.pods.replace(Listing(list(pods), 1))
        self.reports, self.events = Reports(), list[str]()
        trees: Cache[CompositePodGroup] = Cache()
        trees.replace(Listing([composite("t", 2)], 1))
        self.waits = Waits(self.pods, self.groups, trees, self.reports, self.reports, self._record)

    def look(self, now: float, *places: Place) -> list[str]:
        """Who is told what."""
        self.waits.look(places, now)
        return self.reports.taken()

    def _record(self, one: Pod, reason: str, message: str) -> None:
        assert reason == NOT_READY
        self.events.append(f"{one.metadata.name}: {message}")


def place(unready: Unready, *pods: str, name: str = "g", is_group: bool = True) -> Place:
    state = State.GATED if isinstance(unready, Gated) else State.INCOMPLETE
    keys = tuple(key(one) for one in pods)
    return Place(key(name), is_group, state, 0, keys, 0, 0.0, None, unready, None)


TWO = (pod("a", "g"), pod("b", "g"))
ONE_OF_THREE, TWO_OF_THREE = MissingMembers(3, 1), MissingMembers(3, 2)
ONE, BOTH = "waiting for 3 members, 1 is there", "waiting for 3 members, 2 are there"


def test_a_group_is_told_at_once_and_again_only_when_the_numbers_change() -> None:
    world = World(*TWO, group=gang("g", 3))
    assert world.look(1.0, place(ONE_OF_THREE, "a")) == [f"g: {ONE}"]
    assert world.look(2.0, place(ONE_OF_THREE, "a")) == []
    assert world.look(3.0, place(TWO_OF_THREE, "a", "b")) == [f"g: {BOTH}"]


def test_pods_are_told_after_a_while_once_each_and_an_event_says_so_too() -> None:
    world = World(*TWO, group=gang("g", 3))
    world.look(1.0, place(TWO_OF_THREE, "a", "b"))
    assert world.look(5.9, place(TWO_OF_THREE, "a", "b")) == []
    assert world.look(6.0, place(TWO_OF_THREE, "a", "b")) == [f"a: {BOTH}", f"b: {BOTH}"]
    assert world.look(7.0, place(TWO_OF_THREE, "a", "b")) == []
    assert world.events == [f"a: {BOTH}", f"b: {BOTH}"]


def test_numbers_that_change_neither_delay_nor_repeat_what_pods_are_told() -> None:
    world = World(*TWO, group=gang("g", 3))
    world.look(1.0, place(ONE_OF_THREE, "a"))
    world.look(5.0, place(TWO_OF_THREE, "a", "b"))
    assert world.look(6.0, place(TWO_OF_THREE, "a", "b")) == [f"a: {BOTH}", f"b: {BOTH}"]
    assert world.look(7.0, place(ONE_OF_THREE, "a")) == [f"g: {ONE}"]


def test_a_pod_that_joins_those_who_wait_is_told_what_they_were_told() -> None:
    world = World(*TWO, group=gang("g", 3))
    world.look(1.0, place(ONE_OF_THREE, "a"))
    assert world.look(6.0, place(ONE_OF_THREE, "a")) == [f"a: {ONE}"]
    assert world.look(7.0, place(TWO_OF_THREE, "a", "b")) == [f"g: {BOTH}", f"b: {BOTH}"]


def test_pods_are_told_again_when_they_wait_for_something_else() -> None:
    world = World(*TWO)
    missing = 'waiting for PodGroup "g" to appear'
    world.look(1.0, place(MissingGroup("g"), "a"))
    assert world.look(6.0, place(MissingGroup("g"), "a")) == [f"a: {missing}"]
    world.groups.replace(Listing([gang("g", 3)], 2))
    assert world.look(7.0, place(ONE_OF_THREE, "a")) == [f"g: {ONE}", f"a: {ONE}"]


def test_who_waits_anew_has_a_while_again() -> None:
    world = World(*TWO, group=gang("g", 3))
    world.look(1.0, place(ONE_OF_THREE, "a"))
    assert world.look(2.0) == []
    assert world.look(6.0, place(ONE_OF_THREE, "a")) == [f"g: {ONE}"]
    assert world.look(11.0, place(ONE_OF_THREE, "a")) == [f"a: {ONE}"]


def test_a_group_that_was_tried_between_two_looks_is_told_again() -> None:
    world = World(*TWO, group=gang("g", 3))
    world.look(1.0, place(ONE_OF_THREE, "a"))
    tried = replace(place(ONE_OF_THREE, "a"), attempts=1, timestamp=1.5)
    assert world.look(2.0, tried) == [f"g: {ONE}"]


def test_a_group_made_again_is_told_too() -> None:
    world = World(*TWO, group=gang("g", 3))
    world.look(1.0, place(ONE_OF_THREE, "a"))
    world.groups.replace(Listing([], 2))
    namesake = Meta(name="g", namespace="default", uid="new")
    world.groups.replace(Listing([PodGroup(namesake, gang("g", 3).spec)], 3))
    assert world.look(2.0, place(ONE_OF_THREE, "a")) == [f"g: {ONE}"]


def test_the_pod_behind_the_gate_knows_already() -> None:
    world = World(pod("a", "g"), pod("b", "g", gates=["quota"]), group=gang("g", 2))
    held = place(Gated(("b",), ("quota",)), "a", "b")
    why = "waiting for scheduling gates quota of b"
    assert world.look(1.0, held) == [f"g: {why}"]
    assert world.look(6.0, held) == [f"a: {why}"]


def test_a_pod_alone_is_not_mistaken_for_a_group_of_its_name() -> None:
    world = World(pod("g"), group=gang("g", 3))
    alone = replace(place(Gated(("g",), ("quota",)), "g"), is_group=False)
    why = "waiting for scheduling gates quota of g"
    assert world.look(1.0, alone, place(ONE_OF_THREE)) == [f"g: {ONE}"]
    assert world.look(6.0, alone, place(ONE_OF_THREE)) == [f"g: {why}"]


def test_a_pod_made_again_under_its_name_is_told_too() -> None:
    world = World(*TWO, group=gang("g", 3))
    world.look(1.0, place(TWO_OF_THREE, "a", "b"))
    world.look(6.0, place(TWO_OF_THREE, "a", "b"))
    world.pods.replace(Listing([], 2))
    world.pods.replace(Listing([pod_like(TWO[0], "a", uid="new"), TWO[1]], 3))
    assert world.look(7.0, place(TWO_OF_THREE, "a", "b")) == [f"a: {BOTH}"]


def test_a_pod_whose_gate_went_is_told_what_its_gang_still_waits_for() -> None:
    gated = [pod(name, "g", gates=["quota"]) for name in "ab"]
    world = World(*gated, group=gang("g", 2))
    world.look(1.0, place(Gated(("a", "b"), ("quota",)), "a", "b"))
    assert world.look(6.0, place(Gated(("a", "b"), ("quota",)), "a", "b")) == []
    world.pods.replace(Listing([], 2))
    world.pods.replace(Listing([TWO[0], gated[1]], 3))
    why = "waiting for scheduling gates quota of b"
    assert world.look(7.0, place(Gated(("b",), ("quota",)), "a", "b")) == [f"g: {why}", f"a: {why}"]


def test_a_tree_says_how_many_of_its_groups_are_there() -> None:
    waiting = replace(place(MissingGroups(2, 1), "a", name="t"), is_composite=True)
    text = "tree t: NotReadyForScheduling: waiting for 2 groups with all their members, 1 is there"
    assert World(*TWO).look(0.0, waiting) == [text]


def test_a_group_of_groups_that_hangs_wrong_says_so() -> None:
    world = World(*TWO)
    world.waits.look_at_trees([(key("t"), Misplaced("it runs in a circle", invalid=True))])
    world.waits.look_at_trees([(key("gone"), Misplaced("nobody is told"))])
    assert world.reports.taken() == ["tree t: Invalid: it runs in a circle"]
