"""The jobs and pods of a replay, and the pods that stand for them in the scheduler's cache."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import NamedTuple

from msgspec.structs import replace as but

from phalanx.api.core import Pod, PodStatus, Taint
from phalanx.api.meta import Ref, timestamp
from phalanx.scheduler.cluster.group_tree import Group
from phalanx.scheduler.cluster.node_constraints import tolerates
from phalanx.scheduler.policy import Profiles
from phalanx.sim.recording.history import (
    PodEnd,
    RecordedHistory,
    RecordedJob,
    RecordedPod,
    RecordedRun,
)
from phalanx.sim.simulation_setup import JobRecord

#: Seconds by which a start may differ from the recorded one because of latency.
_SAME_START = 1.0


class ReplayedBinding(NamedTuple):
    """A pod of a job got a node: when, in seconds of the simulation, and which one."""

    at: float
    node: str


class LivePod:
    """A recorded pod in the replay: its present incarnation, and how far its work has come.

    Incarnation 1 replaces incarnation 0, and so on. `progress` counts the runs that ended by
    themselves: a preempted pod of a chain of one run is incarnation 1 with progress 0.
    """

    __slots__ = (
        "amounts",
        "bound_at",
        "chain",
        "incarnation",
        "is_over",
        "job",
        "node",
        "own_runs",
        "pod",
        "progress",
    )

    def __init__(self, job: ReplayedJob, chain: RecordedPod, amounts: Sequence[int]) -> None:
        self.job, self.chain, self.amounts = job, chain, amounts
        self.own_runs = chain.own_runs
        #: How many of its own runs are done, and how many pods there have been before this one.
        self.progress = self.incarnation = 0
        self.pod: Pod | None = None
        self.node, self.bound_at, self.is_over = "", 0.0, False

    @property
    def recorded(self) -> RecordedRun | None:
        """The recorded run of the present incarnation; None if the recording has fewer."""
        runs, number = self.chain.runs, self.incarnation
        return runs[number] if number < len(runs) else None


@dataclass(slots=True)
class ReplayedJob:
    """A recorded job in the replay."""

    recorded: RecordedJob
    record: JobRecord
    bindings: list[ReplayedBinding] = field(default_factory=list)
    pods: list[LivePod] = field(default_factory=list)
    pending: int = 0
    bound: int = 0
    groups: dict[Ref, Group] = field(default_factory=dict)


def answer_to_all_names(profiles: Profiles, history: RecordedHistory) -> Profiles:
    """Return profiles for every scheduler name of the recording; the first is the default."""
    default = next(iter(profiles.policies.values()))
    pods = (chain.runs[0].pod for job in history.jobs for chain in job.pods)
    names = dict.fromkeys((*profiles.policies, *(pod.spec.scheduler_name for pod in pods)))
    policies = {name: profiles.policies.get(name, default) for name in names}
    return replace(profiles, policies=policies)


def put_on_node(pod: Pod, node: str, started_at: str | None) -> Pod:
    """Return a pod that runs on a node since a time."""
    status = PodStatus(phase="Running", start_time=started_at or pod.status.start_time)
    return Pod(pod.metadata, but(pod.spec, node_name=node), status)


def build_replacement(pod: Pod, incarnation: int, now: float) -> Pod:
    """Return the pod that a controller creates in place of one that was lost."""
    suffix, meta = f"-r{incarnation}", pod.metadata
    name, uid = meta.name + suffix, meta.uid + suffix
    return but(pod, metadata=but(meta, name=name, uid=uid, creation_timestamp=timestamp(now)))


def find_run_seconds(live: LivePod, recording_end: float) -> float | None:
    """Return how long a pod runs from its binding; None if the recording gives no hint.

    A pod that starts as it did in the cluster, apart from latency, ends when it did: otherwise the
    latencies of one job after the other would add up, and pods that ended together would not.

    A pod that had not ended, or was lost for good, runs as long as those of its job that
    succeeded, or as its job declares.
    """
    run = live.own_runs[live.progress]
    if run.outcome.is_own_end:
        if run.bound is None or run.ended is None or abs(live.bound_at - run.bound) > _SAME_START:
            return run.seconds
        return max(run.ended - live.bound_at, 0.0)
    typical = live.job.recorded.typical_seconds or live.job.record.job.estimate
    if typical is None or run.outcome is not PodEnd.OPEN or run.bound is None:
        return typical
    return max(typical, recording_end - run.bound)


def tolerated_until(pod: Pod, taints: Mapping[Taint, float], bound_at: float) -> float:
    """Return until when a pod may stay on a node whose NoExecute taints exist since some time."""
    until = inf
    for taint, since in taints.items():
        found = next((one for one in pod.spec.tolerations if tolerates(one, taint)), None)
        if found is None:
            return -inf
        if found.toleration_seconds is not None:
            until = min(until, max(since, bound_at) + max(found.toleration_seconds, 0))
    return until
