"""The states of workloads as users see them: one function for `queue`, `top`, `describe`, the page.

cluster ─▶ list_workloads, expected_starts, find_impossible ─▶ ListedWorkload: row, state, start

A waiting workload is `never` if it would not fit even if nothing else ran, `reserved` if nodes are
kept for it, and `preempted` until it runs again. One whose pods name a scheduler that is not
Phalanx has no position and no expected start: Phalanx does not decide about it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple

from phalanx.api.meta import POD_KIND, Ref
from phalanx.cli.scheduler_status import OTHER_SCHEDULER, OtherScheduler
from phalanx.scheduler.diagnosis.expected_starts import ExpectedStart, expected_starts
from phalanx.scheduler.diagnosis.queue_order import WorkloadRow, WorkloadState, list_workloads
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
    with_ranges: bool = False,
    others: Mapping[str, OtherScheduler] | None = None,
) -> list[ListedWorkload]:
    """List gangs, and pods that wait, each with its state.

    Of a part of the cluster neither positions nor starts are known. Ranges of the expected starts
    take a simulation of the queue ahead. `others` are the scheduler names that are not served.
    """
    waiting = (WorkloadState.WAITING, WorkloadState.HELD)
    listed = [
        row
        for row in list_workloads(cluster, include_all=with_ended)
        if row.kind != POD_KIND or row.state in waiting
    ]
    rows = [_name_preemptor(row, listed) for row in _mark_others(listed, others or {})]
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


def _name_preemptor(row: WorkloadRow, rows: Iterable[WorkloadRow]) -> WorkloadRow:
    """Name the group that has preempted a workload by its owner: `preempted by job/urgent at …`."""
    if not row.preempted:
        return row
    start, by, text = row.preempted.partition(" by ")
    for other in rows:
        if text.startswith(f"{other.ref} at "):
            named, space = other.display_name, other.ref.namespace
            where = "" if space == row.ref.namespace else f" in {space}"
            text = f"{named}{where}{text.removeprefix(str(other.ref))}"
    return replace(row, preempted=f"{start}{by}{text}")


def _user_state(
    row: WorkloadRow, expected: ExpectedStart | None, impossible: Collection[Ref]
) -> str:
    if row.state is WorkloadState.ENDED:
        return FAILED if row.reason == "Failed" or row.failed else COMPLETED
    if row.state is not WorkloadState.WAITING:
        return str(row.state.value)
    if row.ref in impossible:
        return NEVER
    if expected is not None and expected.is_reserved:
        return RESERVED
    return PREEMPTED if row.preempted else WAITING
