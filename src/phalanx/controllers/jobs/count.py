"""Count: what the status says of ended pods, and whose finalizer may go.

A uid is written down before the finalizer goes; once that is gone, the uid turns into a number.

    pod ends          uncounted: [u]         written, the finalizer goes next
    finalizer gone    failed: 1              the uid goes, the number comes

Of an indexed Job the successes are indexes, which cannot be counted twice and need no uid.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from phalanx.api.core import Pod
from phalanx.controllers.jobs.ending import Ending, Situation
from phalanx.controllers.jobs.indexset import Indexes
from phalanx.controllers.jobs.roll import FAILED, SUCCEEDED, Roll, index_of, is_leaving

#: Uids that wait in a status at most.
MOST_UNCOUNTED = 500
#: A pod that is in no count: because it is there already, or because it is not to be.
_UNCOUNTED = ""


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


def count(situation: Situation, end: Ending | None) -> Count:
    """Take in every pod that has ended."""
    roll, tally = situation.roll, _Tally(situation.roll)
    for pod in roll.tracked:
        if _may_go(situation, pod, end):
            tally.take(pod, _result(situation, pod, end))
    return Count(
        tally.total, roll.job.status.failed + tally.settled[FAILED],
        tuple(tally.waiting[SUCCEEDED]), tuple(tally.waiting[FAILED]), frozenset(tally.completed),
        situation.failures.given_up, tuple(tally.release),
    )  # fmt: skip


class _Tally:
    """Who waits to be counted; as many new ones are taken in as there is room for."""

    def __init__(self, roll: Roll) -> None:
        self._roll = roll
        before = roll.job.status.uncounted_terminated_pods
        tracked = {pod.metadata.uid for pod in roll.tracked}
        self.waiting = {
            SUCCEEDED: _still(before.succeeded, tracked), FAILED: _still(before.failed, tracked),
        }  # fmt: skip
        self.settled = {
            SUCCEEDED: len(before.succeeded) - len(self.waiting[SUCCEEDED]),
            FAILED: len(before.failed) - len(self.waiting[FAILED]),
        }
        self.completed = set(roll.succeeded_before)
        self.release: list[Pod] = []

    def take(self, pod: Pod, result: str) -> None:
        """Let a pod go, and write down what became of it if that is to be counted."""
        if result != _UNCOUNTED:
            if not self._has_room():
                return
            if self._roll.job.spec.is_indexed and result == SUCCEEDED:
                self.completed.add(index_of(pod))
            else:
                self.waiting[result].append(pod.metadata.uid)
        self.release.append(pod)

    @property
    def total(self) -> int:
        """How many have succeeded; fewer than before only where a Job may shrink."""
        spec, before = self._roll.job.spec, self._roll.job.status.succeeded
        if not spec.is_indexed:
            return before + self.settled[SUCCEEDED]
        found = len(self.completed)
        return found if spec.completions == spec.parallelism else max(found, before)

    def _has_room(self) -> bool:
        fresh = len(self.completed) - len(self._roll.succeeded_before)
        return sum(map(len, self.waiting.values())) + fresh < MOST_UNCOUNTED


def _still(uids: Iterable[str], tracked: set[str]) -> list[str]:
    """Those whose finalizer has yet to go."""
    return [uid for uid in uids if uid in tracked]


def _may_go(situation: Situation, pod: Pod, end: Ending | None) -> bool:
    """Whether a pod is done with: it has ended, or the Job has no use for it any more."""
    roll = situation.roll
    if roll.job.metadata.deletion_timestamp or end is not None:
        return pod.ended or is_leaving(pod)
    if pod.status.phase == SUCCEEDED:
        return True
    return roll.has_failed(pod) and not situation.failures.is_needed(pod)


def _result(situation: Situation, pod: Pod, end: Ending | None) -> str:
    """As what a pod that may go is to be counted."""
    roll = situation.roll
    if not (roll.belongs(pod) and roll.is_new(pod)):
        return _UNCOUNTED
    if pod.status.phase == SUCCEEDED:
        return SUCCEEDED
    is_spared = end is not None and end.is_success and is_leaving(pod)
    return _UNCOUNTED if is_spared or situation.failures.is_ignored(pod) else FAILED
