"""Count: what the status says of ended pods, and whose finalizer may go.

A uid is written down before the finalizer goes; once that is gone, the uid turns into a number.

    pod ends          uncounted: [u]         written, the finalizer goes next
    finalizer gone    failed: 1              the uid goes, the number comes
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from phalanx.api.core import Pod
from phalanx.controllers.jobs.ending import Ending
from phalanx.controllers.jobs.failures import FAIL_INDEX, IGNORE, failed_indexes, judge
from phalanx.controllers.jobs.indexset import Indexes
from phalanx.controllers.jobs.roll import SUCCEEDED, Roll, failures_before, index_of, is_leaving

#: Uids that wait in a status at most.
MOST_UNCOUNTED = 500


@dataclass(frozen=True, slots=True)
class Count:
    """The numbers of a status, and the pods that may go once it is written."""

    succeeded: int
    failed: int
    waiting_succeeded: tuple[str, ...]
    waiting_failed: tuple[str, ...]
    completed: Indexes
    given_up: Indexes
    release: tuple[Pod, ...]

    @property
    def is_settled(self) -> bool:
        """Whether every pod that has ended is in the numbers."""
        return not (self.waiting_succeeded or self.waiting_failed or self.release)


def count(roll: Roll, end: Ending | None) -> Count:
    """Take in every pod that has ended."""
    status, indexed = roll.job.status, roll.job.spec.is_indexed
    tracked = {pod.metadata.uid for pod in roll.tracked}
    before = status.uncounted_terminated_pods
    succeeded, done = _settled(before.succeeded, tracked)
    failed, broken = _settled(before.failed, tracked)
    completed = set(roll.succeeded_before)
    release: list[Pod] = []
    for pod in roll.tracked:
        if len(succeeded) + len(failed) + len(completed - roll.succeeded_before) >= MOST_UNCOUNTED:
            break
        if not _may_go(roll, pod, end):
            continue
        release.append(pod)
        if pod.status.phase == SUCCEEDED:
            if indexed and roll.belongs(pod):
                completed.add(index_of(pod))
            elif not indexed and roll.is_new(pod):
                succeeded.append(pod.metadata.uid)
        elif _counts_as_failed(roll, pod, end):
            failed.append(pod.metadata.uid)
    total = len(completed) if indexed else status.succeeded + done
    return Count(
        total, status.failed + broken, tuple(succeeded), tuple(failed), frozenset(completed),
        failed_indexes(roll), tuple(release),
    )  # fmt: skip


def _settled(uids: Iterable[str], tracked: set[str]) -> tuple[list[str], int]:
    """Those that still wait for their finalizer to go, and how many are done with that."""
    waiting = [uid for uid in uids if uid in tracked]
    return waiting, len(tuple(uids)) - len(waiting)


def _may_go(roll: Roll, pod: Pod, end: Ending | None) -> bool:
    """Whether a pod is done with: it has ended, or the Job has no use for it any more."""
    if roll.job.metadata.deletion_timestamp or end is not None:
        return pod.ended or is_leaving(pod)
    if pod.status.phase == SUCCEEDED:
        return True
    return roll.has_failed(pod) and not _is_still_needed(roll, pod)


def _counts_as_failed(roll: Roll, pod: Pod, end: Ending | None) -> bool:
    """Whether a pod is to be added to the failed ones: not if it is there, ignored, or spared."""
    if not (roll.is_new(pod) and roll.belongs(pod)):
        return False
    if end is not None and end.is_success and not pod.ended:
        return False
    return not roll.has_failed(pod) or judge(roll, pod).action != IGNORE


def _is_still_needed(roll: Roll, pod: Pod) -> bool:
    """Whether the next pod of the index must still read from this one how often it has failed."""
    if roll.job.spec.backoff_limit_per_index is None:
        return False
    index = index_of(pod)
    if index in failed_indexes(roll) or index in roll.succeeded_indexes:
        return False
    if judge(roll, pod).action == FAIL_INDEX:
        return False
    others = [one for one in roll.pods if index_of(one) == index and one is not pod]
    return not any(_is_later(one, pod) for one in others)


def _is_later(one: Pod, other: Pod) -> bool:
    """Whether one pod of an index came after another."""
    return _order(one) > _order(other)


def _order(pod: Pod) -> tuple[int, str, str]:
    return failures_before(pod), pod.metadata.creation_timestamp, pod.metadata.name
