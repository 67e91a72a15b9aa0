"""Staffing: which pods to make and which to delete, so that as many run as should."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from phalanx.api.core import Pod
from phalanx.api.meta import seconds
from phalanx.controllers.jobs.ending import Situation
from phalanx.controllers.jobs.roll import (
    FAILURES,
    IGNORED_FAILURES,
    SUCCEEDED,
    Roll,
    attempts_before,
    failures_before,
    finished_at,
    index_of,
    is_leaving,
    is_ready,
    is_tracked,
)

#: Pods that one sync makes or deletes at most.
MOST_AT_ONCE = 500
#: Seconds to wait after a failure, doubled with each, up to the longest.
FIRST_PAUSE, LONGEST_PAUSE = 10.0, 600.0


@dataclass(frozen=True, slots=True)
class Order:
    """A pod to be made: its index, if it has one, and how often that has failed."""

    index: int | None = None
    marks: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Staffing:
    """Pods to delete, or pods to make; and in how many seconds to look again."""

    delete: tuple[Pod, ...] = ()
    make: tuple[Order, ...] = ()
    again: float | None = None


def staffing(situation: Situation) -> Staffing:
    """What to do about the number of pods of a Job that goes on."""
    roll, wanted = situation.roll, wanted_still(situation)
    if surplus := _surplus(situation, wanted):
        return Staffing(delete=tuple(surplus[:MOST_AT_ONCE]))
    leaving = len(roll.terminating) if roll.job.spec.replaces_ended_only else 0
    missing = min(wanted - len(roll.active) - leaving, MOST_AT_ONCE)
    if missing <= 0:
        return Staffing()
    if roll.job.spec.backoff_limit_per_index is not None:
        return _by_index(situation, missing)
    pause = _pause(situation)
    if pause > 0:
        return Staffing(again=pause)
    return Staffing(make=tuple(_orders(situation, missing)))


def wanted_still(situation: Situation) -> int:
    """How many pods a Job will still run at a time."""
    roll, spec = situation.roll, situation.roll.job.spec
    if spec.completions is None:
        return len(roll.active) if situation.succeeded else spec.parallelism
    left = roll.completions - situation.succeeded
    if spec.backoff_limit_per_index is not None:
        left -= len(situation.failures.given_up)
    return max(min(spec.parallelism, left), 0)


def _surplus(situation: Situation, wanted: int) -> list[Pod]:
    """The pods that are not wanted: strays first, then the least worth keeping."""
    roll = situation.roll
    strays = _strays(situation) if roll.job.spec.is_indexed else []
    too_many = len(roll.active) - len(strays) - wanted
    if too_many <= 0:
        return strays
    gone = {pod.metadata.uid for pod in strays}
    rest = [pod for pod in roll.active if pod.metadata.uid not in gone]
    return strays + sorted(rest, key=_worth)[:too_many]


def _strays(situation: Situation) -> list[Pod]:
    """Pods whose index is none, too high, done, given up, or another pod's already.

    And those that would make it forgotten how often their index has failed.
    """
    roll = situation.roll
    seen: set[int] = set()
    strays = []
    over = roll.succeeded_indexes | situation.failures.given_up
    for pod in sorted(roll.active, key=_knowledge, reverse=True):
        index = index_of(pod)
        is_wrong = not roll.belongs(pod) or situation.failures.is_unaware(pod)
        if is_wrong or index in seen or index in over:
            strays.append(pod)
        seen.add(index)
    return strays


def _knowledge(pod: Pod) -> tuple[int, tuple[bool, bool, bool, float, str]]:
    """Which pod of an index to keep: the one that knows of more that came before it."""
    return attempts_before(pod), _worth(pod)


def _worth(pod: Pod) -> tuple[bool, bool, bool, float, str]:
    """Which pods to keep: those with a node, that run, that are ready, that are older."""
    return (
        bool(pod.spec.node_name), pod.status.phase == "Running", is_ready(pod),
        -seconds(pod.metadata.creation_timestamp), pod.metadata.name,
    )  # fmt: skip


def _orders(situation: Situation, missing: int) -> Iterator[Order]:
    if not situation.roll.job.spec.is_indexed:
        yield from (Order() for _ in range(missing))
        return
    yield from (Order(index) for index in islice(_free(situation), missing))


def _free(situation: Situation) -> Iterator[int]:
    """The lowest indexes that are neither done nor given up nor taken."""
    roll = situation.roll
    busy = roll.active + (roll.terminating if roll.job.spec.replaces_ended_only else [])
    over = roll.succeeded_indexes | situation.failures.given_up
    taken = {index_of(pod) for pod in busy} | over
    return (index for index in range(roll.completions) if index not in taken)


def _by_index(situation: Situation, missing: int) -> Staffing:
    """Each index waits for itself after a failure."""
    failed = situation.failures.last_failed
    make: list[Order] = []
    soonest: float | None = None
    for index in _free(situation):
        if len(make) == missing:
            break
        order, pause = _next_of(situation, index, failed.get(index))
        if pause <= 0:
            make.append(order)
        else:
            soonest = pause if soonest is None else min(soonest, pause)
    return Staffing(make=tuple(make), again=soonest)


def _next_of(situation: Situation, index: int, last: Pod | None) -> tuple[Order, float]:
    """The next pod of an index after the last one, and in how many seconds it is due."""
    if last is None:
        return Order(index, ((FAILURES, "0"),)), 0.0
    is_ignored = situation.failures.is_ignored(last)
    times = failures_before(last) + (not is_ignored)
    ignored = failures_before(last, IGNORED_FAILURES) + is_ignored
    marks = [(FAILURES, str(times))]
    if ignored:
        marks.append((IGNORED_FAILURES, str(ignored)))
    due = min(finished_at(last), situation.now) + _growing(times + ignored)
    return Order(index, tuple(marks)), due - situation.now


def _pause(situation: Situation) -> float:
    """Seconds to wait after the failures since the last success."""
    now, roll = situation.now, situation.roll
    over = [pod for pod in roll.pods if _has_a_result(roll, pod)]
    times, last = 0, 0.0
    for moment, _, is_success in sorted(map(_end, over)):
        times, last = (0, 0.0) if is_success else (times + 1, moment)
    return min(last, now) + _growing(times) - now if times else 0.0


def _has_a_result(roll: Roll, pod: Pod) -> bool:
    """Whether a pod is over by itself; one that was dismissed is let go first, then told to go."""
    return (pod.ended or roll.has_failed(pod)) and (is_tracked(pod) or not is_leaving(pod))


def _end(pod: Pod) -> tuple[float, str, bool]:
    return finished_at(pod), pod.metadata.name, pod.status.phase == SUCCEEDED


def _growing(times: int) -> float:
    return min(FIRST_PAUSE * 2.0 ** min(times - 1, 20), LONGEST_PAUSE) if times else 0.0
