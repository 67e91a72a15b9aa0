"""Compares a replay with what was recorded: which jobs started at other times or on other nodes.

    recorded starts ─┐
    replayed starts ─┴─▶ differences in the order of time, each with its likely cause

The first difference matters: those after it mostly follow from it. A cause is the first row of a
table that applies: an imperfect recording, a scheduler whose policy is unknown, latency, another
order of the queue. It is a hint, not a proof.

Two deviations are no differences. A start shortly before a user deleted the pod, or shortly before
the recording ended, may have come too late in the cluster. And a job that starts in time on other
nodes of equal score is counted apart: which of them is first may depend on milliseconds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any

from phalanx.api.meta import Ref
from phalanx.scheduler.cluster.group_tree import Group
from phalanx.scheduler.diagnosis.queue_order import find_parts, name_entity, owner_of
from phalanx.scheduler.policy import DEFAULT_BACKOFF
from phalanx.sim.recording.history import PodEnd, RecordedHistory, RecordedJob
from phalanx.sim.recording.replayed_jobs import (
    NodeChoice,
    ReplayedJob,
    ReplayTrace,
)
from phalanx.sim.reports.text import format_seconds

#: An attempt and an event that are nearer to each other may be observed in another order.
_MIN_CLOSE_SECONDS = 0.02
#: More failures than this do not make a back-off longer.
_MANY_FAILURES = 100


@dataclass(frozen=True, slots=True)
class JobDifference:
    """A job that a replay treats otherwise. Times are seconds since the recording began."""

    ref: Ref
    #: When the two first differ.
    at: float
    recorded_start: float | None
    replayed_start: float | None
    recorded_nodes: Counter[str]
    replayed_nodes: Counter[str]
    sentence: str
    #: Seconds between the recorded and the replayed start that differ first; 0 if only nodes do.
    gap: float = 0.0
    #: How the other nodes compare with the recorded ones; None if starts differ too.
    choice: NodeChoice | None = None
    #: Its name for users, such as `job/train`.
    name: str = ""
    cause: str = ""

    def to_data(self) -> dict[str, Any]:
        """Return the difference for JSON."""
        return {
            "workload": self.name,
            "kind": self.ref.kind,
            "namespace": self.ref.namespace,
            "name": self.ref.name,
            "atSeconds": self.at,
            "recordedStartSeconds": self.recorded_start,
            "replayedStartSeconds": self.replayed_start,
            "recordedNodes": dict(sorted(self.recorded_nodes.items())),
            "replayedNodes": dict(sorted(self.replayed_nodes.items())),
            "difference": self.sentence,
            "likelyCause": self.cause,
        }


@dataclass(frozen=True, slots=True)
class ReplayComparison:
    """The outcome of a check."""

    jobs: int
    #: In the order of time; the first one is where the replay diverges.
    differences: tuple[JobDifference, ...]
    #: The jobs that start in time on other nodes of equal score.
    other_nodes: tuple[JobDifference, ...]
    tolerance: float

    @property
    def equal_jobs(self) -> int:
        """How many jobs started as recorded."""
        return self.jobs - len(self.differences) - len(self.other_nodes)

    def to_data(self) -> dict[str, Any]:
        """Return the comparison for JSON."""
        return {
            "jobs": self.jobs,
            "equalJobs": self.equal_jobs,
            "toleranceSeconds": self.tolerance,
            "differences": [one.to_data() for one in self.differences],
            "otherNodes": [one.to_data() for one in self.other_nodes],
        }


def compare_replay(
    jobs: Sequence[ReplayedJob],
    history: RecordedHistory,
    *,
    schedulers: Collection[str],
    tolerance: float,
    trace: ReplayTrace | None = None,
    exact_nodes: bool = False,
) -> ReplayComparison:
    """Compare every job. `schedulers` are the names whose policy the replay knows.

    With a `trace` the cause of the first difference names an attempt and an event that nearly
    coincide there. With `exact_nodes` other nodes of equal score are differences too.
    """
    compared = (_compare_job(job, history, tolerance) for job in jobs)
    found = [pair for pair in compared if pair is not None]
    found.sort(key=lambda pair: (pair[0].at, pair[0].ref))
    search = _CauseSearch(jobs, history, frozenset(schedulers))
    explained: list[JobDifference] = []
    other_nodes: list[JobDifference] = []
    for unnamed, job in found:
        difference = replace(unnamed, name=search.names[unnamed.ref])
        # What runs on other nodes leaves other ones free: later the loads differ.
        worst = NodeChoice.ALIKE if other_nodes else NodeChoice.EQUAL
        is_tie = difference.choice is not None and difference.choice <= worst
        if is_tie and not explained and not exact_nodes:
            other_nodes.append(replace(difference, cause="nodes of equal score"))
            continue
        cause = search.find(difference, job, explained[0] if explained else None)
        if not explained and trace is not None:
            cause += search.describe_close_call(difference, trace)
        explained.append(replace(difference, cause=cause))
    return ReplayComparison(len(jobs), tuple(explained), tuple(other_nodes), tolerance)


def name_jobs(jobs: Iterable[RecordedJob]) -> dict[Ref, str]:
    """Name jobs as `phalanx queue` does: `job/train`; with the namespace if there are several."""
    owners: dict[Ref, str] = {}
    pods = {job.ref: [run.pod for run in job.runs] for job in jobs}
    for job in jobs:
        root: Group | None = next((life.first for life in job.groups if life.ref == job.ref), None)
        owners[job.ref] = owner_of(root if root is not None else pods[job.ref][0])
    parts = find_parts(owners, pods)
    is_alone = len({ref.namespace for ref in owners}) == 1
    return {
        ref: name_entity(ref, owner, parts.get(ref, ""))
        + ("" if is_alone else f" in {ref.namespace}")
        for ref, owner in owners.items()
    }


def _compare_job(
    job: ReplayedJob, history: RecordedHistory, tolerance: float
) -> tuple[JobDifference, ReplayedJob] | None:
    here = Counter(run.node for run in job.recorded.runs if run.bound is not None)
    there = Counter(one.node for one in job.bindings)
    recorded, replayed = _leave_out_late_starts(job, history, tolerance)
    first, start = next(iter(recorded), None), next(iter(replayed), None)
    sentence, at = "", min(one for one in (first, start, inf) if one is not None)
    gap_at = _first_gap(recorded, replayed, tolerance)
    if first is None and start is not None:
        sentence = (
            f"never started in the cluster{_describe_end(job, history)}; starts at "
            f"{format_seconds(start)} in the replay"
        )
    elif first is not None and start is None:
        sentence = f"started at {format_seconds(first)} in the cluster; never starts in the replay"
    elif first is not None and start is not None and abs(start - first) > tolerance:
        word = "earlier" if start < first else "later"
        sentence = f"starts {format_seconds(abs(start - first))} {word} in the replay"
    elif len(recorded) != len(replayed):
        sentence = f"{len(replayed)} instead of {len(recorded)} pods get a node in the replay"
        at = gap_at
    elif gap_at < inf:
        sentence = "some of its pods start at other times in the replay"
        at = gap_at
    elif here - there and there - here:
        sentence = (
            f"runs on {_describe_nodes(there - here)} instead of {_describe_nodes(here - there)}"
            " in the replay"
        )
    if not sentence:
        return None
    gaps = (other - one for one, other in zip(recorded, replayed, strict=False))
    difference = JobDifference(
        job.recorded.ref,
        round(at, 6),
        first,
        start,
        recorded_nodes=here,
        replayed_nodes=there,
        sentence=sentence,
        gap=next((gap for gap in gaps if abs(gap) > tolerance), 0.0),
        choice=max(one.choice for one in job.bindings) if gap_at == inf else None,
    )
    return difference, job


def _leave_out_late_starts(
    job: ReplayedJob, history: RecordedHistory, tolerance: float
) -> tuple[list[float], list[float]]:
    """Return the recorded and the replayed starts without those that one of the two lacks in time.

    A replayed start is left out if the cluster had no time for it: a user deleted the pod, or the
    recording ended, within the tolerance. So is a recorded one that the end of the replay cut off.
    """
    begin, end = history.recording.begin, history.recording.end
    runs = list(job.recorded.runs)
    recorded = sorted(round(run.bound - begin, 6) for run in runs if run.bound is not None)
    replayed = sorted(one.at for one in job.bindings)
    unbound = (end if run.ended is None else run.ended for run in runs if run.bound is None)
    limits = sorted((limit - begin - tolerance for limit in unbound), reverse=True)
    while len(replayed) > len(recorded) and limits and replayed[-1] >= limits[-1]:
        del replayed[-1], limits[-1]
    while len(recorded) > len(replayed) and recorded[-1] >= end - begin - tolerance:
        del recorded[-1]
    return recorded, replayed


def _first_gap(recorded: Sequence[float], replayed: Sequence[float], tolerance: float) -> float:
    """Return the time of the first pod that starts at another time; infinity if none does."""
    for one, other in zip(recorded, replayed, strict=False):
        if abs(one - other) > tolerance:
            return min(one, other)
    longer = recorded if len(recorded) > len(replayed) else replayed
    shorter = min(len(recorded), len(replayed))
    return longer[shorter] if len(longer) > shorter else inf


def _describe_end(job: ReplayedJob, history: RecordedHistory) -> str:
    """Say until when a job could have started in the cluster: its deletion, or the last line."""
    begin, ends = history.recording.begin, [run.ended for run in job.recorded.runs]
    known = [end for end in ends if end is not None]
    if len(known) == len(ends):
        return f", where it was deleted at {format_seconds(max(known) - begin)}"
    return f" until the recording ended at {format_seconds(history.recording.end - begin)}"


def _describe_nodes(nodes: Counter[str]) -> str:
    names = sorted(nodes)
    shown = ", ".join(names[:3])
    return f"{shown} and {len(names) - 3} more" if len(names) > 3 else shown


class _CauseSearch:
    """Finds the likely cause of a difference: the first row that applies."""

    def __init__(
        self, jobs: Sequence[ReplayedJob], history: RecordedHistory, schedulers: frozenset[str]
    ) -> None:
        self._jobs, self._history, self._schedulers = jobs, history, schedulers
        self._begin = history.recording.begin
        self.names = name_jobs(history.jobs)

    def find(self, one: JobDifference, job: ReplayedJob, first: JobDifference | None) -> str:
        """Return the cause; `first` is the first difference, if this is a later one."""
        rows: Iterable[Callable[[], str]] = (
            lambda: self._interruption(one),
            lambda: self._unknown_policy(job.recorded),
            lambda: self._claims(job.recorded),
            lambda: f"follows from the difference of {first.name}" if first else "",
            self._missing_rights,
            lambda: self._unknown_run_time(one),
            self._unknown_refusals,
            lambda: _hold(one),
            lambda: _ties(one),
            lambda: self._queue_order(one, job),
            lambda: _back_off(one, len(job.pods)),
        )
        for row in rows:
            if sentence := row():
                return sentence
        return "another policy or version of the scheduler; name its configuration with --config"

    def _interruption(self, one: JobDifference) -> str:
        for gap in self._history.recording.interruptions:
            if gap.at - self._begin <= one.at:
                at = format_seconds(gap.at - self._begin)
                return f"the recorder lost the watch of {gap.resource} at {at}: times may be late"
        return ""

    def _unknown_policy(self, job: RecordedJob) -> str:
        for run in job.runs:
            if (name := run.pod.spec.scheduler_name) not in self._schedulers:
                return (
                    f"its pods name the scheduler {name}, whose policy is not known here: "
                    "leave it out with --scheduler, or name a configuration with --config"
                )
        return ""

    def _claims(self, job: RecordedJob) -> str:
        uses_claims = any(run.uses_claims for run in job.runs)
        return "it uses devices or volumes, which are not simulated" if uses_claims else ""

    def _missing_rights(self) -> str:
        recording = self._history.recording
        if space := recording.header.namespace:
            return f"only namespace {space} was recorded: pods of others used nodes too"
        forbidden = [one.resource for one in recording.unseen if one.reason == "forbidden"]
        return f"the recorder was not allowed to read {', '.join(forbidden)}" if forbidden else ""

    def _unknown_run_time(self, one: JobDifference) -> str:
        """Find a job that ended in the cluster for a reason that the replay does not repeat."""
        for job in self._jobs:
            start, ref = job.record.first_start, job.recorded.ref
            if start is None or start >= one.at or not job.bound or ref == one.ref:
                continue
            for chain in job.recorded.pods:
                last = chain.runs[-1]
                is_lost = last.outcome in (PodEnd.PREEMPTED, PodEnd.NODE_LOST)
                if is_lost and last.ended is not None and last.ended - self._begin < one.at:
                    return (
                        f"the run time of {self.names[ref]} is unknown: it was lost in the cluster"
                    )
        return ""

    def _unknown_refusals(self) -> str:
        """Find jobs that waited before the recording began."""
        waiting = [
            job
            for job in self._history.jobs
            if job.submitted <= self._begin and not job.was_running
        ]
        if not waiting:
            return ""
        jobs = self.names[waiting[0].ref]
        if waiting[1:]:
            jobs += f" and {len(waiting) - 1} more jobs"
        return (
            f"{jobs} waited when the recording began: how often they had been refused, and so when "
            "they are attempted next, is not recorded; record from before the first job"
        )

    def _queue_order(self, one: JobDifference, job: ReplayedJob) -> str:
        """Find a job behind this one that started before it in only one of the two."""
        submitted, priority = job.recorded.submitted, job.record.job.priority
        for other in self._jobs:
            is_behind = (other.record.job.priority, -other.recorded.submitted) < (
                priority,
                -submitted,
            )
            started = other.recorded.started
            if other is job or not is_behind or started is None:
                continue
            here = one.recorded_start is None or started - self._begin < one.recorded_start
            replayed = other.record.first_start
            there = replayed is not None and (
                one.replayed_start is None or replayed < one.replayed_start
            )
            if here and not there and started >= submitted:
                name = self.names[other.recorded.ref]
                return (
                    f"{name}, which is behind it, started before it in the cluster: "
                    "another order of the queue, or backfilling"
                )
        return ""

    def describe_close_call(self, one: JobDifference, trace: ReplayTrace) -> str:
        """Name an attempt at the time of a difference that nearly coincides with an event."""
        within = max(_MIN_CLOSE_SECONDS, 2 * self._history.binding_seconds)
        found = trace.find_close_call(one.at, within)
        if found is None:
            return ""
        gap, name = abs(found.event_at - found.at) * 1000, self.names.get(found.ref, found.ref)
        side = "before" if found.at < found.event_at else "after"
        return (
            f"; at {format_seconds(found.at)} the replay attempts {name} "
            f"{gap:.1f} ms {side} {found.event}: the recording does not show which of both the "
            "scheduler observed first"
        )


def _hold(one: JobDifference) -> str:
    if one.recorded_start is None:
        return (
            "the cluster held it by something that is not recorded: a quota, an admission "
            "controller, or a scheduler that did not run"
        )
    return ""


def _back_off(one: JobDifference, pods: int) -> str:
    """Explain a difference that a single attempt more or less can make."""
    if one.recorded_start is None or one.replayed_start is None:
        return ""
    limit = DEFAULT_BACKOFF.delay_after(_MANY_FAILURES, pods)
    if abs(one.gap) > limit:
        return ""
    return (
        f"back-off or latency: an attempt more or less moves the next one by up to "
        f"{format_seconds(limit)}"
    )


def _ties(one: JobDifference) -> str:
    if one.choice is not None:
        return "nodes of equal score, events in another order, or another score configuration"
    return ""
