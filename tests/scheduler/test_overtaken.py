"""What is decided about an entity may not be wanted any more when the cycle has ended."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from phalanx.api.scheduling import PodGroup
from phalanx.scheduler.decision import Placed
from phalanx.scheduler.entity import Entity
from phalanx.scheduler.queueing.desk import Desk
from phalanx.scheduler.queueing.entry import State
from phalanx.scheduler.queueing.record import GroupSeen, NodeSeen, PodSeen
from phalanx.scheduler.settings.profiles import DEFAULT_PROFILES
from tests.scheduler.builders import basic, gang, key, node, pod


def uid(group: PodGroup, other: str) -> PodGroup:
    """The same under its name, made again."""
    return replace(group, metadata=replace(group.metadata, uid=other))


def see(desk: Desk, group: PodGroup | None) -> None:
    desk.feed(GroupSeen(1.0, key("g"), group))


def a_desk(members: int = 3, quorum: int = 3) -> Desk:
    """A gang that fits, as the only thing there is."""
    desk = Desk(DEFAULT_PROFILES)
    desk.feed(NodeSeen(0.0, "n", node("n", cpu="8")))
    see(desk, uid(gang("g", quorum), "first"))
    for n in range(members):
        desk.feed(PodSeen(0.0, key(f"p{n}"), pod(f"p{n}", "g", cpu="1")))
    return desk


def begun(desk: Desk) -> tuple[Entity, Placed]:
    entity = desk.take(1.0)
    assert entity is not None
    placed = desk.decide(entity)
    assert isinstance(placed, Placed)
    return entity, placed


Change = Callable[[Desk], None]

CHANGES: dict[str, Change] = {
    "needs more": lambda desk: see(desk, uid(gang("g", 4), "first")),
    "is gone": lambda desk: see(desk, None),
    "was made again": lambda desk: see(desk, uid(gang("g", 3), "second")),
    "was made again as another": lambda desk: see(desk, uid(basic("g"), "second")),
    "lost a member": lambda desk: desk.feed(PodSeen(1.0, key("p1"), None)),
    "has another member of that name": lambda desk: desk.feed(
        PodSeen(1.0, key("p1"), pod("p1", "g", uid="namesake", cpu="1"))
    ),
    "has a member that somebody bound": lambda desk: desk.feed(
        PodSeen(1.0, key("p1"), pod("p1", "g", on="n", cpu="1"))
    ),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_nothing_is_bound_for_a_group_that_meanwhile(change: Change) -> None:
    desk = a_desk()
    entity, placed = begun(desk)
    change(desk)
    assert not desk.settle(entity, placed, 2.0)
    assert desk.cache.assumed() == []


def test_a_group_that_was_overtaken_is_tried_anew_at_once_and_in_its_old_turn() -> None:
    desk = a_desk()
    desk.feed(PodSeen(0.5, key("later"), pod("later", cpu="1")))
    entity, placed = begun(desk)
    see(desk, uid(gang("g", 2), "first"))
    assert not desk.settle(entity, placed, 2.0)
    again, placed = begun(desk)
    assert (again.key, again.quorum, again.timestamp) == (key("g"), 2, entity.timestamp)
    assert desk.settle(again, placed, 2.0)


def test_a_group_made_again_with_a_policy_that_does_not_fit_waits_by_its_new_terms() -> None:
    desk = a_desk()
    entity, placed = begun(desk)
    see(desk, uid(gang("g", 5), "second"))
    assert not desk.settle(entity, placed, 2.0)
    assert desk.take(2.0) is None
    assert [place.state for place in desk.queue.waiting()] == [State.INCOMPLETE]


def test_members_that_come_meanwhile_do_not_spoil_what_was_placed() -> None:
    desk = a_desk()
    entity, placed = begun(desk)
    desk.feed(PodSeen(1.0, key("p3"), pod("p3", "g", cpu="1")))
    assert desk.settle(entity, placed, 2.0)
    late = desk.take(2.0)
    assert late is not None
    assert [member.pod.metadata.name for member in late.members] == ["p3"]


def test_a_new_status_of_the_group_does_not_spoil_what_was_placed() -> None:
    desk = a_desk()
    entity, placed = begun(desk)
    group = uid(gang("g", 3), "first")
    see(desk, replace(group, metadata=replace(group.metadata, resource_version="9")))
    assert desk.settle(entity, placed, 2.0)


def test_a_pod_alone_that_was_bound_meanwhile_is_not_bound_again() -> None:
    desk = Desk(DEFAULT_PROFILES)
    desk.feed(NodeSeen(0.0, "n", node("n")))
    desk.feed(PodSeen(0.0, key("p"), pod("p")))
    entity, placed = begun(desk)
    desk.feed(PodSeen(1.0, key("p"), pod("p", on="n")))
    assert not desk.settle(entity, placed, 2.0)
    assert desk.take(2.0) is None
