"""RecordedWorkload: a recording as a workload, for the commands that read traces."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from phalanx.api.batch import JobRunTime
from phalanx.api.core import Node
from phalanx.api.resources import pod_requests
from phalanx.scheduler.queue.decision_log import JobObserved
from phalanx.sim.recording.history import (
    PodEnd,
    RecordedHistory,
    RecordedJob,
    RecordedPod,
    build_history,
    declared_run_time,
)
from phalanx.sim.recording.recording_format import read_recording
from phalanx.sim.workloads.workload import InvalidTrace, TraceFile, TraceJob, TraceWorkload


@dataclass(frozen=True, slots=True)
class RecordedWorkload(TraceWorkload):
    """The jobs of a recording. Times count from its beginning; earlier submissions are negative.

    Jobs that ran when the recording began are simulated and not reported: their waits are unknown.
    """

    #: The recorded jobs in the order of `jobs`, and everything else that was recorded.
    recorded: tuple[RecordedJob, ...] = ()
    #: None only in an empty value.
    recorded_history: RecordedHistory | None = None

    @property
    def history(self) -> RecordedHistory:
        """Everything that was recorded."""
        assert self.recorded_history is not None
        return self.recorded_history


def read_recorded_workload(trace: TraceFile) -> RecordedWorkload:
    """Read a recording as a workload. Raises InvalidTrace."""
    return build_recorded_workload(build_history(read_recording(trace)), trace)


def build_recorded_workload(history: RecordedHistory, trace: TraceFile) -> RecordedWorkload:
    """Return the jobs of a history that the report is about."""
    begin = history.recording.begin
    recorded = tuple(job for job in history.jobs if not job.was_running)
    if not recorded:
        raise InvalidTrace(f"{trace.name}: no job was submitted while the recording ran")
    run_times = {
        one.job.uid: one.job
        for one in history.others
        if isinstance(one, JobObserved) and one.job is not None
    }
    nodes: dict[str, Node] = {}
    for change in history.nodes:
        if change.node is not None:
            nodes.setdefault(change.name, change.node)
    return RecordedWorkload(
        tuple(_to_trace_job(job, begin, run_times) for job in recorded),
        tuple(nodes.values()),
        dict(sorted(trace.skipped.items())),
        tuple(_describe_limits(history, recorded)),
        recorded=recorded,
        recorded_history=history,
    )


def _to_trace_job(job: RecordedJob, begin: float, run_times: dict[str, JobRunTime]) -> TraceJob:
    first, submitted = job.pods[0].runs[0].pod, job.submitted
    longest = max(chain.runs[0].arrived - submitted + _seconds_of_work(chain) for chain in job.pods)
    priorities = [life.first.spec.priority for life in job.groups] or [first.spec.priority]
    return TraceJob(
        round(submitted - begin, 6),
        round(longest, 6),
        {
            name: f"{amount}m" if name == "cpu" else str(amount)
            for name, amount in sorted(pod_requests(first).items())
            if name != "pods"
        },
        len(job.pods),
        estimate=declared_run_time(job, run_times),
        priority=priorities[0],
        owner=first.metadata.namespace,
    )


def _seconds_of_work(chain: RecordedPod) -> float:
    """Return how long the runs of a pod take if each starts at once."""
    return sum(
        (run.seconds or 0.0) + (chain.delay_before(run) if number else 0.0)
        for number, run in enumerate(chain.own_runs)
        if run.outcome.is_own_end
    )


def _describe_limits(history: RecordedHistory, recorded: tuple[RecordedJob, ...]) -> Iterator[str]:
    """Say what a reader of the report must know about the recording."""
    recording = history.recording
    if recording.header.namespace:
        yield f"only namespace {recording.header.namespace} was recorded"
    if forbidden := [one.resource for one in recording.unseen if one.reason == "forbidden"]:
        yield f"the recorder was not allowed to read {', '.join(forbidden)}"
    if recording.interruptions:
        yield f"the recorder lost the server {len(recording.interruptions)} times"
    if not recording.is_complete:
        yield "the recorder was not stopped in order: the recording ends with its last line"
    running = len(history.jobs) - len(recorded)
    if running:
        yield f"{running} jobs ran when the recording began: they are simulated, not reported"
    unknown = sum(
        any(chain.own_runs[-1].outcome not in _KNOWN_ENDS for chain in job.pods) for job in recorded
    )
    if unknown:
        yield f"{unknown} jobs had not ended, or were lost: their run times are estimates"
    if history.claims:
        yield f"{history.claims} pods use devices or volumes, which are not simulated"


_KNOWN_ENDS = frozenset(outcome for outcome in PodEnd if outcome.is_own_end)
