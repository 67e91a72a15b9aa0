"""Compares a replay with what was recorded: which jobs started at other times or on other nodes.

    recorded starts ─┐
    replayed starts ─┴─▶ differences in the order of time, each with its likely cause

The first difference matters: those after it mostly follow from it. A cause is the first row of a
table that applies: an imperfect recording, a scheduler whose policy is unknown, latency, another
order of the queue. It is a hint, not a proof.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from phalanx.api.meta import Ref
from phalanx.scheduler.policy import DEFAULT_BACKOFF
from phalanx.sim.recording.history import PodEnd, RecordedHistory, RecordedJob
from phalanx.sim.recording.replayed_jobs import ReplayedJob, ReplayTrace
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
    cause: str = ""

    def to_data(self) -> dict[str, Any]:
        """Return the difference for JSON."""
        return {
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
    tolerance: float

    @property
    def equal_jobs(self) -> int:
        """How many jobs started as recorded."""
        return self.jobs - len(self.differences)

    def to_data(self) -> dict[str, Any]:
        """Return the comparison for JSON."""
        return {
            "jobs": self.jobs,
            "equalJobs": self.equal_jobs,
            "toleranceSeconds": self.tolerance,
            "differences": [one.to_data() for one in self.differences],
        }


def compare_replay(
    jobs: Sequence[ReplayedJob],
    history: RecordedHistory,
    *,
    schedulers: Collection[str],
    tolerance: float,
    trace: ReplayTrace | None = None,
) -> ReplayComparison:
    """Compare every job. `schedulers` are the names whose policy the replay knows.

    With a `trace` the cause of the first difference names an attempt and an event that nearly
    coincide there.
    """
    compared = (_compare_job(job, history.recording.begin, tolerance) for job in jobs)
    found = [pair for pair in compared if pair is not None]
    found.sort(key=lambda pair: (pair[0].at, pair[0].ref))
    search = _CauseSearch(jobs, history, frozenset(schedulers))
    explained: list[JobDifference] = []
    for difference, job in found:
        cause = search.find(difference, job, explained[0] if explained else None)
        if not explained and trace is not None:
            cause += _describe_close_call(difference, history, trace)
        explained.append(_with_cause(difference, cause))
    return ReplayComparison(len(jobs), tuple(explained), tolerance)


def _with_cause(one: JobDifference, cause: str) -> JobDifference:
    return JobDifference(
        one.ref,
        one.at,
        one.recorded_start,
        one.replayed_start,
        recorded_nodes=one.recorded_nodes,
        replayed_nodes=one.replayed_nodes,
        sentence=one.sentence,
        gap=one.gap,
        cause=cause,
    )


def _compare_job(
    job: ReplayedJob, begin: float, tolerance: float
) -> tuple[JobDifference, ReplayedJob] | None:
    recorded = sorted(
        (round(run.bound - begin, 6), run.node)
        for run in job.recorded.runs
        if run.bound is not None
    )
    replayed = sorted(job.bindings)
    first = recorded[0][0] if recorded else None
    start = replayed[0].at if replayed else None
    here, there = Counter(node for _, node in recorded), Counter(node for _, node in replayed)
    sentence, at = "", min(one for one in (first, start, float("inf")) if one is not None)
    if first is None and start is not None:
        sentence = f"never started in the cluster; starts at {format_seconds(start)} in the replay"
    elif first is not None and start is None:
        sentence = f"started at {format_seconds(first)} in the cluster; never starts in the replay"
    elif first is not None and start is not None and abs(start - first) > tolerance:
        word = "earlier" if start < first else "later"
        sentence = f"starts {format_seconds(abs(start - first))} {word} in the replay"
    elif len(recorded) != len(replayed):
        sentence = f"{len(replayed)} instead of {len(recorded)} pods get a node in the replay"
        at = _first_gap(recorded, replayed, tolerance)
    elif (at_gap := _first_gap(recorded, replayed, tolerance)) < float("inf"):
        sentence = "some of its pods start at other times in the replay"
        at = at_gap
    elif here != there:
        sentence = (
            f"runs on {_describe_nodes(there - here)} instead of {_describe_nodes(here - there)}"
            " in the replay"
        )
    if not sentence:
        return None
    gaps = (b.at - a[0] for a, b in zip(recorded, replayed, strict=False))
    difference = JobDifference(
        job.recorded.ref,
        round(at, 6),
        first,
        start,
        recorded_nodes=here,
        replayed_nodes=there,
        sentence=sentence,
        gap=next((gap for gap in gaps if abs(gap) > tolerance), 0.0),
    )
    return difference, job


def _first_gap(
    recorded: Sequence[tuple[float, str]], replayed: Sequence[tuple[float, str]], tolerance: float
) -> float:
    """Return the time of the first pod that starts at another time; infinity if none does."""
    for one, other in zip(recorded, replayed, strict=False):
        if abs(one[0] - other[0]) > tolerance:
            return min(one[0], other[0])
    longer = recorded if len(recorded) > len(replayed) else replayed
    shorter = min(len(recorded), len(replayed))
    return longer[shorter][0] if len(longer) > shorter else float("inf")


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

    def find(self, one: JobDifference, job: ReplayedJob, first: JobDifference | None) -> str:
        """Return the cause; `first` is the first difference, if this is a later one."""
        rows: Iterable[Callable[[], str]] = (
            lambda: self._interruption(one),
            lambda: self._unknown_policy(job.recorded),
            lambda: self._claims(job.recorded),
            lambda: f"follows from the difference of {first.ref}" if first else "",
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
                    return f"the run time of {ref} is unknown: it was lost in the cluster"
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
        jobs = (
            f"{waiting[0].ref} and {len(waiting) - 1} more jobs" if waiting[1:] else waiting[0].ref
        )
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
                return (
                    f"{other.recorded.ref}, which is behind it, started before it in the cluster: "
                    "another order of the queue, or backfilling"
                )
        return ""


def _describe_close_call(one: JobDifference, history: RecordedHistory, trace: ReplayTrace) -> str:
    """Name an attempt at the time of a difference that nearly coincides with an event."""
    within = max(_MIN_CLOSE_SECONDS, 2 * history.binding_seconds)
    found = trace.find_close_call(one.at, within)
    if found is None:
        return ""
    gap = abs(found.event_at - found.at) * 1000
    side = "before" if found.at < found.event_at else "after"
    return (
        f"; at {format_seconds(found.at)} the replay attempts {found.ref} {gap:.1f} ms {side} "
        f"{found.event}: the recording does not show which of both the scheduler observed first"
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
    if one.gap == 0.0 and one.recorded_nodes != one.replayed_nodes:
        return "nodes of equal score, events in another order, or another score configuration"
    return ""
