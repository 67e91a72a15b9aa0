"""Staffing: which pods to make and which to delete, so that as many run as should."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from phalanx.api.core import Pod
from phalanx.api.meta import condition, seconds
from phalanx.controllers.jobs.ending import Situation
from phalanx.controllers.jobs.failures import IGNORE, failed_indexes, judge
from phalanx.controllers.jobs.roll import (
    FAILURES,
    IGNORED_FAILURES,
    SUCCEEDED,
    Roll,
    failures_before,
    finished_at,
    index_of,
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
    roll = situation.roll
    surplus = _strays(roll) if roll.job.spec.is_indexed else []
    rest = [pod for pod in roll.active if pod not in surplus]
    wanted = _wanted(situation)
    if len(rest) > wanted:
        surplus += sorted(rest, key=_worth)[: len(rest) - wanted]
    if surplus:
        return Staffing(delete=tuple(surplus[:MOST_AT_ONCE]))
    leaving = len(roll.terminating) if roll.job.spec.replaces_ended_only else 0
    missing = min(wanted - len(rest) - leaving, MOST_AT_ONCE)
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
    return _wanted(situation)


def _wanted(situation: Situation) -> int:
    roll, spec = situation.roll, situation.roll.job.spec
    if spec.completions is None:
        return len(roll.active) if situation.succeeded else spec.parallelism
    left = roll.completions - situation.succeeded
    if spec.backoff_limit_per_index is not None:
        left -= len(failed_indexes(roll))
    return max(min(spec.parallelism, left), 0)


def _strays(roll: Roll) -> list[Pod]:
    """Active pods whose index is none, too high, done, given up, or another pod's already."""
    seen: set[int] = set()
    strays = []
    over = roll.succeeded_indexes | failed_indexes(roll)
    for pod in sorted(roll.active, key=_worth, reverse=True):
        index = index_of(pod)
        if not roll.belongs(pod) or index in seen or index in over:
            strays.append(pod)
        seen.add(index)
    return strays


def _worth(pod: Pod) -> tuple[bool, bool, bool, str, str]:
    """Which pods to keep: those with a node, that run, that are ready, that are older."""
    ready = condition(pod.status.conditions, "Ready")
    return (
        bool(pod.spec.node_name), pod.status.phase == "Running",
        ready is not None and ready.status == "True",
        _inverted(pod.metadata.creation_timestamp), pod.metadata.name,
    )  # fmt: skip


def _inverted(moment: str) -> str:
    """A text that sorts the earlier moment last."""
    return f"{10**10 - (seconds(moment) if moment else 0):.0f}"


def _orders(situation: Situation, missing: int) -> Iterator[Order]:
    if not situation.roll.job.spec.is_indexed:
        yield from (Order() for _ in range(missing))
        return
    for index in _free(situation.roll):
        if missing == 0:
            return
        missing -= 1
        yield Order(index)


def _free(roll: Roll) -> Iterator[int]:
    """The lowest indexes that are neither done nor given up nor taken."""
    busy = roll.active + (roll.terminating if roll.job.spec.replaces_ended_only else [])
    taken = {index_of(pod) for pod in busy} | roll.succeeded_indexes | failed_indexes(roll)
    return (index for index in range(roll.completions) if index not in taken)


def _by_index(situation: Situation, missing: int) -> Staffing:
    """Each index waits for itself after a failure."""
    make: list[Order] = []
    soonest: float | None = None
    for index in _free(situation.roll):
        if len(make) == missing:
            break
        order, pause = _next_of(situation, index)
        if pause <= 0:
            make.append(order)
        else:
            soonest = pause if soonest is None else min(soonest, pause)
    return Staffing(make=tuple(make), again=soonest)


def _next_of(situation: Situation, index: int) -> tuple[Order, float]:
    """The next pod of an index, and in how many seconds it is due."""
    roll = situation.roll
    failed = [pod for pod in roll.tracked if index_of(pod) == index and roll.has_failed(pod)]
    if not failed:
        return Order(index, ((FAILURES, "0"),)), 0.0
    last = max(failed, key=lambda pod: (failures_before(pod), pod.metadata.creation_timestamp))
    times, ignored = failures_before(last), failures_before(last, IGNORED_FAILURES)
    if judge(roll, last).action == IGNORE:
        ignored += 1
    else:
        times += 1
    marks = [(FAILURES, str(times))]
    if ignored:
        marks.append((IGNORED_FAILURES, str(ignored)))
    due = finished_at(last, situation.now) + _growing(times + ignored)
    return Order(index, tuple(marks)), due - situation.now


def _pause(situation: Situation) -> float:
    """Seconds to wait after the failures since the last success."""
    now, roll = situation.now, situation.roll
    ended = sorted(
        ((finished_at(pod, now), pod) for pod in roll.pods if pod.ended or roll.has_failed(pod)),
        key=lambda item: (item[0], item[1].metadata.name),
    )
    times, last = 0, 0.0
    for moment, pod in ended:
        times, last = (0, 0.0) if pod.status.phase == SUCCEEDED else (times + 1, moment)
    return last + _growing(times) - now if times else 0.0


def _growing(times: int) -> float:
    return min(FIRST_PAUSE * 2.0 ** min(times - 1, 20), LONGEST_PAUSE) if times else 0.0
