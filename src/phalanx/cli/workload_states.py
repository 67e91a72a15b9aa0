"""The states of workloads as users see them: one function for `queue`, `top`, `describe`, the page.

cluster ─▶ list_workloads, expected_starts, find_impossible ─▶ ListedWorkload: row, state, start

A waiting workload is `never` if it would not fit even if nothing else ran, `reserved` if nodes are
kept for it, and `preempted` until it runs again. One whose pods name a scheduler that is not
Phalanx has no position and no expected start: Phalanx does not decide about it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from typing import NamedTuple

from phalanx.api.batch import FAILED as JOB_FAILED
from phalanx.api.kinds import COMPOSITE_POD_GROUP, POD_GROUP
from phalanx.api.meta import POD_KIND, Ref
from phalanx.cli.cluster_queries import GANG_WORD
from phalanx.cli.scheduler_status import OTHER_SCHEDULER, OtherScheduler
from phalanx.scheduler.cluster.group_tree import Group, group_ref
from phalanx.scheduler.diagnosis.expected_starts import ExpectedStart, expected_starts
from phalanx.scheduler.diagnosis.queue_order import (
    WorkloadRow,
    WorkloadState,
    list_workloads,
    owner_of,
)
from phalanx.scheduler.diagnosis.start_forecast import add_ranges
from phalanx.scheduler.diagnosis.what_if import find_impossible
from phalanx.scheduler.queue.scheduler_state import ClusterObjects

#: The states that users see; those of a waiting gang in the order in which they are tried.
RUNNING, WAITING, HELD = "running", "waiting", "held"
NEVER, RESERVED, PREEMPTED = "never", "reserved", "preempted"
COMPLETED, FAILED = "completed", "failed"
STATES = (RUNNING, WAITING, RESERVED, PREEMPTED, NEVER, HELD, COMPLETED, FAILED)
#: The colours of states; those of other states are yellow.
_COLOURS = {RUNNING: "green", NEVER: "red", FAILED: "red", COMPLETED: "blue"}
_OTHER_COLOUR = "yellow"
#: A group in a message: `PodGroup default/train`, or `podgroup/train` in its own namespace.
_GROUP_KINDS = {kind.name.lower(): kind.name for kind in (POD_GROUP, COMPOSITE_POD_GROUP)}
_GROUP_NAME = re.compile(
    rf"\b(?P<kind>{'|'.join(_GROUP_KINDS)})"
    r"(?: (?P<space>[a-z0-9-]+))?/(?P<name>[a-z0-9.-]*[a-z0-9])",
    re.IGNORECASE,
)
#: The name of a group that a controller creates (`builder/names.py`): `train-5c9f7b-train-pgt-0-…`.
_HASH = "[bcdfghjklmnpqrstvwxz2456789]{8,10}"
_CREATED_NAME = re.compile(rf"(?P<owner>[a-z0-9.-]+)-{_HASH}-[a-z0-9.-]+-pgt-\d+-{_HASH}")


class ListedWorkload(NamedTuple):
    """A workload with its state for users and its expected start."""

    row: WorkloadRow
    state: str
    expected: ExpectedStart | None

    @property
    def colour(self) -> str:
        """The colour of its line."""
        return _COLOURS.get(self.state, _OTHER_COLOUR)


def assess_workloads(
    cluster: ClusterObjects,
    now: float,
    *,
    is_whole: bool = True,
    with_ended: bool = False,
    with_pods: bool = False,
    with_ranges: bool = False,
    others: Mapping[str, OtherScheduler] | None = None,
) -> list[ListedWorkload]:
    """List gangs, and pods without a gang that wait (or all, `with_pods`), each with its state.

    Of a part of the cluster neither positions nor starts are known. Ranges of the expected starts
    take a simulation of the queue ahead. `others` are the scheduler names that are not served.
    """
    waiting = (WorkloadState.WAITING, WorkloadState.HELD)
    listed = [
        row
        for row in list_workloads(cluster, include_all=with_ended)
        if row.kind != POD_KIND or row.state in waiting or with_pods
    ]
    owners = GroupOwners(cluster.groups)
    rows = [
        replace(row, preempted=owners.name_in(row.preempted, row.ref.namespace))
        if row.preempted
        else row
        for row in _mark_others(listed, others or {})
    ]
    starts: Mapping[Ref, ExpectedStart] = {}
    impossible: Collection[Ref] = ()
    if is_whole:
        planned = expected_starts(cluster, now=now)
        starts = add_ranges(planned, cluster, now=now) if with_ranges else planned
        decided = {row.ref for row in rows if row.position}
        starts = {ref: start for ref, start in starts.items() if ref in decided}
        unplanned = [row.ref for row in rows if row.position and row.ref not in starts]
        impossible = find_impossible(unplanned, cluster, now=now)
    else:
        rows = [replace(row, position=0) for row in rows]
    return [
        ListedWorkload(row, _user_state(row, starts.get(row.ref), impossible), starts.get(row.ref))
        for row in rows
    ]


def waiting_schedulers(cluster: ClusterObjects) -> set[str]:
    """Return the scheduler names of the pods that wait for a node."""
    return {
        pod.spec.scheduler_name
        for pod in cluster.pods
        if not pod.occupied_node and not pod.is_terminal
    }


def _mark_others(
    rows: Iterable[WorkloadRow], others: Mapping[str, OtherScheduler]
) -> Iterator[WorkloadRow]:
    """Yield the rows; those of other schedulers say so, and have no position in the queue."""
    skipped = 0
    for row in rows:
        other = others.get(row.scheduler)
        if row.state is WorkloadState.WAITING and other is not None:
            skipped += 1
            yield replace(row, position=0, reason=OTHER_SCHEDULER, message=other.message)
        else:
            yield replace(row, position=row.position - skipped) if row.position else row


class GroupOwners:
    """Names the groups in messages of the scheduler by their owners: `preempted by job/urgent`."""

    def __init__(self, groups: Iterable[Group]) -> None:
        self._groups = groups

    @cached_property
    def _owners(self) -> dict[Ref, str]:
        return {group_ref(group): owner_of(group) for group in self._groups}

    def name_in(self, text: str, namespace: str) -> str:
        """Return a message for a reader of a namespace; groups of others are named with theirs."""

        def name_owner(found: re.Match[str]) -> str:
            kind, space, name = found["kind"].lower(), found["space"] or namespace, found["name"]
            owner = self._owners.get(Ref(_GROUP_KINDS[kind], space, name))
            if owner is None and (created := _CREATED_NAME.fullmatch(name)):
                # The group is gone, or may not be read: a gang has the name of its owner too.
                owner = f"{GANG_WORD}/{created['owner']}"
            if not owner:
                return found[0]
            owner_kind, _, owner_name = owner.partition("/")
            where = "" if space == namespace else f" in {space}"
            return f"{owner_kind.lower()}/{owner_name}{where}"

        return _GROUP_NAME.sub(name_owner, text)


def _user_state(
    row: WorkloadRow, expected: ExpectedStart | None, impossible: Collection[Ref]
) -> str:
    if row.state is WorkloadState.ENDED:
        # How the owner ended decides: pods that failed may have been replaced.
        has_failed = row.reason == JOB_FAILED if row.reason else row.failed > 0
        return FAILED if has_failed else COMPLETED
    if row.state is not WorkloadState.WAITING:
        return str(row.state.value)
    if row.ref in impossible:
        return NEVER
    if expected is not None and expected.is_reserved:
        return RESERVED
    return PREEMPTED if row.preempted else WAITING
