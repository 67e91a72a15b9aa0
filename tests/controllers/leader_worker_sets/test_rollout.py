"""Steps of a rolling update: a pure function of the StatefulSet of the leaders and the groups."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.api.leader_worker_sets import LwsRollingUpdate
from phalanx.controllers.leader_worker_sets.rollout import (
    GroupState,
    LeaderSetState,
    RolloutStep,
    plan_rollout,
)

OLD, NEW = GroupState(is_ready=True), GroupState(is_ready=True, is_updated=True)
STARTING, BROKEN = GroupState(is_updated=True), GroupState()
ONE = LwsRollingUpdate()
SURGE = LwsRollingUpdate(max_surge=2)


def leaders(
    replicas: int, partition: int, wanted: int | None = None, *, is_current: bool = True
) -> LeaderSetState:
    return LeaderSetState(replicas, partition, replicas if wanted is None else wanted, is_current)


@pytest.mark.parametrize(
    ("wanted", "config", "state", "groups", "expected"),
    [
        (3, ONE, None, [], (0, 3)),
        (3, LwsRollingUpdate(partition=2), None, [], (2, 3)),
        (3, ONE, leaders(3, 0), [OLD, OLD, OLD], (0, 3)),
        (3, ONE, leaders(3, 0, is_current=False), [OLD, OLD, OLD], (3, 3)),
        (3, ONE, leaders(3, 3), [OLD, OLD, OLD], (2, 3)),
        (3, ONE, leaders(3, 2), [OLD, OLD, STARTING], (2, 3)),
        (3, ONE, leaders(3, 2), [OLD, OLD, NEW], (1, 3)),
        (3, ONE, leaders(3, 1), [OLD, NEW, NEW], (0, 3)),
        # Unready groups use up the step; those at the end may be updated at once.
        (3, ONE, leaders(3, 3), [BROKEN, OLD, OLD], (3, 3)),
        (3, ONE, leaders(3, 3), [BROKEN, BROKEN, BROKEN], (2, 3)),
        (4, SURGE, leaders(4, 0, is_current=False), [OLD] * 4, (4, 6)),
        (4, SURGE, leaders(6, 4, 4), [OLD] * 4 + [STARTING] * 2, (3, 6)),
        (4, SURGE, leaders(6, 3, 4), [OLD] * 3 + [STARTING] + [NEW] * 2, (1, 6)),
        (4, SURGE, leaders(6, 3, 4), [OLD] * 3 + [NEW] * 3, (0, 6)),
        (4, SURGE, leaders(6, 0, 4), [STARTING, STARTING, NEW, NEW, NEW, NEW], (0, 5)),
        (4, SURGE, leaders(5, 0, 4), [STARTING, NEW, NEW, NEW, NEW], (0, 4)),
        # The replicas change during an update.
        (6, ONE, leaders(4, 2), [OLD, OLD, NEW, NEW], (2, 6)),
        (1, ONE, leaders(4, 2), [OLD, OLD, NEW, NEW], (1, 1)),
        (3, LwsRollingUpdate(partition=2), leaders(3, 2), [OLD, OLD, NEW], (2, 3)),
    ],
)
def test_the_next_step_of_an_update(
    wanted: int,
    config: LwsRollingUpdate,
    state: LeaderSetState | None,
    groups: list[GroupState],
    expected: tuple[int, int],
) -> None:
    assert plan_rollout(wanted, config, state, groups=groups) == RolloutStep(*expected)


@given(
    wanted=st.integers(1, 6),
    unavailable=st.integers(0, 3),
    surge=st.integers(0, 3),
    data=st.data(),
)
def test_an_update_ends_and_never_takes_down_more_groups_than_allowed(
    wanted: int, unavailable: int, surge: int, data: st.DataObject
) -> None:
    config = LwsRollingUpdate(max_unavailable=unavailable or int(not surge), max_surge=surge)
    groups = [OLD] * wanted
    state = leaders(wanted, 0, is_current=False)
    for _ in range(200):
        step = plan_rollout(wanted, config, state, groups=groups)
        state = leaders(step.replicas, step.partition, wanted)
        groups = (groups + [STARTING] * step.replicas)[: step.replicas]
        groups = [
            STARTING if index >= step.partition and not one.is_updated else one
            for index, one in enumerate(groups)
        ]
        ready = sum(one.is_ready for one in groups)
        assert ready >= wanted - int(config.max_unavailable)
        if groups == [NEW] * wanted and step == (0, wanted):
            return
        starting = [index for index, one in enumerate(groups) if one == STARTING]
        if starting:
            groups[data.draw(st.sampled_from(starting))] = NEW
    raise AssertionError(f"the update did not end: {state} {groups}")
