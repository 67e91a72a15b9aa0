"""A rolling update of groups: the replicas and the partition of the StatefulSet of the leaders.

A group is updated by replacing its leader; its workers go with it. Groups are updated from the
highest index down, a step at a time: the partition is lowered by as many groups as may be
unavailable. With `maxSurge` the update first adds groups, and removes them while the last old
groups are replaced:

    replicas 4, maxSurge 2, maxUnavailable 1        replicas  partition
    a new template                                  6         4
    groups 5, 4 ready                               6         1     3 = 1 + the surge
    groups 3, 2 and 1 ready                         4         0     the last group needs no surge
    group 0 ready                                   4         0

The numbers are computed from what is there, so that a restarted controller continues an update. The
partition never rises during an update. At rest it is 0, or that of the user.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

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
    groups: Sequence[GroupState],
) -> RolloutStep:
    """Return the next step; `groups` are those of the StatefulSet, in the order of their index."""
    step = _plan_step(wanted, config, leaders, groups)
    return step._replace(partition=max(step.partition, config.partition))


def _plan_step(
    wanted: int,
    config: LwsRollingUpdate,
    leaders: LeaderSetState | None,
    groups: Sequence[GroupState],
) -> RolloutStep:
    if leaders is None:
        return RolloutStep(0, wanted)
    surge = min(resolve_share(config.max_surge, wanted, round_up=True), wanted)
    if not leaders.is_current:
        return RolloutStep(min(wanted, leaders.replicas), _surge_replicas(wanted, surge, wanted))
    if leaders.partition == 0 and leaders.replicas == wanted:
        return RolloutStep(0, wanted)
    unfinished = sum(not _state(groups, index).is_done for index in range(wanted))
    replicas = _surge_replicas(wanted, surge, unfinished)
    if leaders.wanted_replicas != wanted:
        # Scaling comes first; new groups have the newest template from the start.
        return RolloutStep(min(leaders.partition, wanted + surge), replicas)
    # Groups of the surge that are already removed are no longer there to stand in.
    present_surge = surge - (wanted + surge - leaders.replicas)
    step = resolve_share(config.max_unavailable, wanted, round_up=False) + present_surge
    return RolloutStep(_next_partition(leaders, groups, step), replicas)


def _surge_replicas(wanted: int, surge: int, unfinished: int) -> int:
    """The number of groups: as many more as there are old ones to replace after the next one."""
    if unfinished > surge:
        return wanted + surge
    return wanted + max(unfinished - 1, 0)


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


def resolve_share(share: int | str, total: int, *, round_up: bool) -> int:
    """Return a number, or a percentage of a total."""
    if isinstance(share, int):
        return share
    # The API allows any number of leading zeros, `int` limits the number of digits.
    percent = int(share.rstrip("%").lstrip("0") or 0)
    return (percent * total + (99 if round_up else 0)) // 100
