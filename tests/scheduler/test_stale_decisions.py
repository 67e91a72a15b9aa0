"""A decision may be stale when the cycle ends, and is then discarded."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from phalanx.api.scheduling import PodGroup
from phalanx.scheduler.decision import Placed
from phalanx.scheduler.entity import Entity
from phalanx.scheduler.policy import DEFAULT_PROFILES
from phalanx.scheduler.queue.decision_log import NodeObserved, PodGroupObserved, PodObserved
from phalanx.scheduler.queue.queued_entity import QueueState
from phalanx.scheduler.queue.scheduler_state import SchedulerState
from tests.scheduler.builders import basic, gang, key, node, pod


def with_uid(group: PodGroup, other: str) -> PodGroup:
    """A copy of a group with another uid, as if it was recreated."""
    return replace(group, metadata=replace(group.metadata, uid=other))


def observe_group(state: SchedulerState, group: PodGroup | None) -> None:
    state.observe(PodGroupObserved(1.0, key("g"), group))


def build_state(members: int = 3, quorum: int = 3) -> SchedulerState:
    """A scheduler state with one gang that fits."""
    state = SchedulerState(DEFAULT_PROFILES)
    state.observe(NodeObserved(0.0, "n", node("n", cpu="8")))
    observe_group(state, with_uid(gang("g", quorum), "first"))
    for n in range(members):
        state.observe(PodObserved(0.0, key(f"p{n}"), pod(f"p{n}", "g", cpu="1")))
    return state


def begin_cycle(state: SchedulerState) -> tuple[Entity, Placed]:
    entity = state.pop(1.0)
    assert entity is not None
    placed = state.decide(entity)
    assert isinstance(placed, Placed)
    return entity, placed


Change = Callable[[SchedulerState], None]

CHANGES: dict[str, Change] = {
    "needs more": lambda state: observe_group(state, with_uid(gang("g", 4), "first")),
    "is gone": lambda state: observe_group(state, None),
    "was recreated": lambda state: observe_group(state, with_uid(gang("g", 3), "second")),
    "was recreated with another policy": lambda state: observe_group(
        state, with_uid(basic("g"), "second")
    ),
    "lost a member": lambda state: state.observe(PodObserved(1.0, key("p1"), None)),
    "has a recreated member": lambda state: state.observe(
        PodObserved(1.0, key("p1"), pod("p1", "g", uid="recreated", cpu="1"))
    ),
    "has a manually bound member": lambda state: state.observe(
        PodObserved(1.0, key("p1"), pod("p1", "g", on="n", cpu="1"))
    ),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_decision_is_stale_if_the_group_meanwhile(change: Change) -> None:
    state = build_state()
    entity, placed = begin_cycle(state)
    change(state)
    assert not state.commit(entity, placed, 2.0)
    assert state.cache.assumed_pods() == []


def test_a_decision_is_stale_if_a_node_was_deleted_meanwhile() -> None:
    state = build_state()
    entity, placed = begin_cycle(state)
    state.observe(NodeObserved(1.0, "n", None))
    state.observe(NodeObserved(1.0, "other", node("other", cpu="8")))
    assert not state.commit(entity, placed, 2.0)
    again, placed = begin_cycle(state)
    assert {node for _, _, node in placed.bindings} == {"other"}
    assert state.commit(again, placed, 2.0)


def test_an_entity_with_a_stale_decision_is_tried_again_at_once_in_its_old_order() -> None:
    state = build_state()
    state.observe(PodObserved(0.5, key("later"), pod("later", cpu="1")))
    entity, placed = begin_cycle(state)
    observe_group(state, with_uid(gang("g", 2), "first"))
    assert not state.commit(entity, placed, 2.0)
    again, placed = begin_cycle(state)
    assert (again.key, again.quorum, again.timestamp) == (key("g"), 2, entity.timestamp)
    assert state.commit(again, placed, 2.0)


def test_a_recreated_group_waits_by_its_new_policy() -> None:
    state = build_state()
    entity, placed = begin_cycle(state)
    observe_group(state, with_uid(gang("g", 5), "second"))
    assert not state.commit(entity, placed, 2.0)
    assert state.pop(2.0) is None
    assert [place.state for place in state.queue.list_held_back()] == [QueueState.INCOMPLETE]


def test_new_members_do_not_invalidate_a_decision() -> None:
    state = build_state()
    entity, placed = begin_cycle(state)
    state.observe(PodObserved(1.0, key("p3"), pod("p3", "g", cpu="1")))
    assert state.commit(entity, placed, 2.0)
    late = state.pop(2.0)
    assert late is not None
    assert [member.pod.metadata.name for member in late.members] == ["p3"]


def test_a_new_group_status_does_not_invalidate_a_decision() -> None:
    state = build_state()
    entity, placed = begin_cycle(state)
    group = with_uid(gang("g", 3), "first")
    observe_group(state, replace(group, metadata=replace(group.metadata, resource_version="9")))
    assert state.commit(entity, placed, 2.0)


def test_a_pod_bound_during_the_cycle_is_not_bound_again() -> None:
    state = SchedulerState(DEFAULT_PROFILES)
    state.observe(NodeObserved(0.0, "n", node("n")))
    state.observe(PodObserved(0.0, key("p"), pod("p")))
    entity, placed = begin_cycle(state)
    state.observe(PodObserved(1.0, key("p"), pod("p", on="n")))
    assert not state.commit(entity, placed, 2.0)
    assert state.pop(2.0) is None
