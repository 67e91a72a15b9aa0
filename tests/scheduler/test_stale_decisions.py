"""What is decided about an entity may not be wanted any more when the cycle has ended."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from phalanx.api.scheduling import PodGroup
from phalanx.scheduler.configuration.profiles import DEFAULT_PROFILES
from phalanx.scheduler.decision import Placed
from phalanx.scheduler.entity import Entity
from phalanx.scheduler.queue.decision_log import NodeObserved, PodGroupObserved, PodObserved
from phalanx.scheduler.queue.queued_entity import QueueState
from phalanx.scheduler.queue.scheduler_state import SchedulerState
from tests.scheduler.builders import basic, gang, key, node, pod


def uid(group: PodGroup, other: str) -> PodGroup:
    """The same under its name, made again."""
    return replace(group, metadata=replace(group.metadata, uid=other))


def observe_group(state: SchedulerState, group: PodGroup | None) -> None:
    state.observe(PodGroupObserved(1.0, key("g"), group))


def build_state(members: int = 3, quorum: int = 3) -> SchedulerState:
    """A gang that fits, as the only thing there is."""
    desk = SchedulerState(DEFAULT_PROFILES)
    desk.observe(NodeObserved(0.0, "n", node("n", cpu="8")))
    observe_group(desk, uid(gang("g", quorum), "first"))
    for n in range(members):
        desk.observe(PodObserved(0.0, key(f"p{n}"), pod(f"p{n}", "g", cpu="1")))
    return desk


def begin_cycle(state: SchedulerState) -> tuple[Entity, Placed]:
    entity = state.pop(1.0)
    assert entity is not None
    placed = state.decide(entity)
    assert isinstance(placed, Placed)
    return entity, placed


Change = Callable[[SchedulerState], None]

CHANGES: dict[str, Change] = {
    "needs more": lambda desk: observe_group(desk, uid(gang("g", 4), "first")),
    "is gone": lambda desk: observe_group(desk, None),
    "was made again": lambda desk: observe_group(desk, uid(gang("g", 3), "second")),
    "was made again as another": lambda desk: observe_group(desk, uid(basic("g"), "second")),
    "lost a member": lambda desk: desk.observe(PodObserved(1.0, key("p1"), None)),
    "has another member of that name": lambda desk: desk.observe(
        PodObserved(1.0, key("p1"), pod("p1", "g", uid="namesake", cpu="1"))
    ),
    "has a member that somebody bound": lambda desk: desk.observe(
        PodObserved(1.0, key("p1"), pod("p1", "g", on="n", cpu="1"))
    ),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_nothing_is_bound_for_a_group_that_meanwhile(change: Change) -> None:
    desk = build_state()
    entity, placed = begin_cycle(desk)
    change(desk)
    assert not desk.commit(entity, placed, 2.0)
    assert desk.cache.assumed_pods() == []


def test_a_group_that_was_overtaken_is_tried_anew_at_once_and_in_its_old_turn() -> None:
    desk = build_state()
    desk.observe(PodObserved(0.5, key("later"), pod("later", cpu="1")))
    entity, placed = begin_cycle(desk)
    observe_group(desk, uid(gang("g", 2), "first"))
    assert not desk.commit(entity, placed, 2.0)
    again, placed = begin_cycle(desk)
    assert (again.key, again.quorum, again.timestamp) == (key("g"), 2, entity.timestamp)
    assert desk.commit(again, placed, 2.0)


def test_a_group_made_again_with_a_policy_that_does_not_fit_waits_by_its_new_terms() -> None:
    desk = build_state()
    entity, placed = begin_cycle(desk)
    observe_group(desk, uid(gang("g", 5), "second"))
    assert not desk.commit(entity, placed, 2.0)
    assert desk.pop(2.0) is None
    assert [place.state for place in desk.queue.held_back_entities()] == [QueueState.INCOMPLETE]


def test_members_that_come_meanwhile_do_not_spoil_what_was_placed() -> None:
    desk = build_state()
    entity, placed = begin_cycle(desk)
    desk.observe(PodObserved(1.0, key("p3"), pod("p3", "g", cpu="1")))
    assert desk.commit(entity, placed, 2.0)
    late = desk.pop(2.0)
    assert late is not None
    assert [member.pod.metadata.name for member in late.members] == ["p3"]


def test_a_new_status_of_the_group_does_not_spoil_what_was_placed() -> None:
    desk = build_state()
    entity, placed = begin_cycle(desk)
    group = uid(gang("g", 3), "first")
    observe_group(desk, replace(group, metadata=replace(group.metadata, resource_version="9")))
    assert desk.commit(entity, placed, 2.0)


def test_a_pod_alone_that_was_bound_meanwhile_is_not_bound_again() -> None:
    desk = SchedulerState(DEFAULT_PROFILES)
    desk.observe(NodeObserved(0.0, "n", node("n")))
    desk.observe(PodObserved(0.0, key("p"), pod("p")))
    entity, placed = begin_cycle(desk)
    desk.observe(PodObserved(1.0, key("p"), pod("p", on="n")))
    assert not desk.commit(entity, placed, 2.0)
    assert desk.pop(2.0) is None
