"""A rolling update of groups: the replicas and the partition of the StatefulSet of the leaders.

A group is updated by replacing its leader; its workers go with it. Groups are updated from the
highest index down, a step at a time: the partition is lowered by as many groups as may be
unavailable. With `maxSurge` the update first adds groups, and removes them while the last old
groups are replaced:

    replicas 4, maxSurge 2, maxUnavailable 1        replicas  partition
    a new template                                  6         4
    groups 4 and 5 start                            6         3     1 of the first 4 is down
    groups 4 and 5 are ready                        6         1     3 = 1 + the surge
    groups 1 to 5 are ready                         4         0     the last group needs no surge

The numbers are computed from what is there, so that a restarted controller continues an update. The
partition never rises during an update. At rest it is 0, or that of the user.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from phalanx.api.formats import resolve_int_or_percent
from phalanx.api.leader_worker_sets import LwsRollingUpdate


class GroupState(NamedTuple):
    """Whether a group is ready, and whether all of it has the newest template."""

    is_ready: bool = False
    is_updated: bool = False

    @property
    def is_done(self) -> bool:
        """Whether the group needs no update and no waiting."""
        return self.is_ready and self.is_updated


class LeaderSetState(NamedTuple):
    """The StatefulSet of the leaders: its size, and the replicas that it was last made for."""

    replicas: int
    partition: int
    wanted_replicas: int
    #: Whether it has the newest template.
    is_current: bool


class RolloutStep(NamedTuple):
    """The partition and the replicas that the StatefulSet of the leaders gets."""

    partition: int
    replicas: int


def plan_rollout(
    wanted: int,
    config: LwsRollingUpdate,
    leaders: LeaderSetState | None,
    *,
    groups: Sequence[GroupState],
) -> RolloutStep:
    """Return the next step; `groups` are those of the StatefulSet, in the order of their index."""
    step = _plan_step(wanted, config, leaders, groups=groups)
    return step._replace(partition=max(step.partition, config.partition))


def _plan_step(
    wanted: int,
    config: LwsRollingUpdate,
    leaders: LeaderSetState | None,
    *,
    groups: Sequence[GroupState],
) -> RolloutStep:
    if leaders is None:
        return RolloutStep(0, wanted)
    surge = min(resolve_int_or_percent(config.max_surge, wanted, round_up=True), wanted)
    unavailable = resolve_int_or_percent(config.max_unavailable, wanted, round_up=False)
    if not leaders.is_current:
        replicas = wanted + _needed_surge(surge, wanted, unavailable)
        return RolloutStep(min(wanted, leaders.replicas), replicas)
    if leaders.partition == 0 and leaders.replicas == wanted:
        return RolloutStep(0, wanted)
    unfinished = sum(not _state(groups, index).is_done for index in range(wanted))
    replicas = wanted + _needed_surge(surge, unfinished, unavailable)
    if leaders.wanted_replicas != wanted:
        # Scaling comes first; new groups have the newest template from the start.
        return RolloutStep(min(leaders.partition, wanted + surge), replicas)
    # Groups of the surge that are already removed are no longer there to stand in.
    present_surge = surge - (wanted + surge - leaders.replicas)
    return RolloutStep(_next_partition(leaders, groups, unavailable + present_surge), replicas)


def _needed_surge(surge: int, unfinished: int, unavailable: int) -> int:
    """The groups beyond the wanted ones: as many as there are old ones to replace.

    The last old group needs none if a group may be unavailable.
    """
    if unfinished > surge:
        return surge
    return max(unfinished - min(unavailable, 1), 0)


def _next_partition(leaders: LeaderSetState, groups: Sequence[GroupState], step: int) -> int:
    """Lower the partition by a step below the finished groups at the end.

    Unready groups below the step use up a part of it. But a group that is unready already can be
    updated at once: otherwise an update could never repair a set whose groups are all unready.
    """
    total = leaders.replicas
    finished = 0
    while finished < total and _state(groups, total - 1 - finished).is_done:
        finished += 1
    lowest = max(total - finished - step, 0)
    partition = lowest + sum(not _state(groups, index).is_ready for index in range(lowest))
    for index in range(min(partition, total - 1), lowest - 1, -1):
        group = _state(groups, index)
        if group.is_ready and not group.is_updated:
            break
        partition = index
    return min(partition, leaders.partition)


def _state(groups: Sequence[GroupState], index: int) -> GroupState:
    return groups[index] if index < len(groups) else GroupState()
