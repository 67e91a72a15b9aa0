"""The jobs and pods of a replay, and the pods that stand for them in the scheduler's cache."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from math import inf, nextafter
from typing import NamedTuple

from msgspec.structs import replace as but

from phalanx.api.core import (
    ContainerState,
    ContainerStateTerminated,
    ContainerStatus,
    Node,
    Pod,
    PodStatus,
    Taint,
)
from phalanx.api.meta import Key, Ref, timestamp
from phalanx.api.resources import pod_requests
from phalanx.api.scheduling import MEMBERS_TO_RUN_ANNOTATION, PodGroup
from phalanx.scheduler.cluster.group_tree import Group
from phalanx.scheduler.cluster.node_constraints import tolerates
from phalanx.scheduler.cluster.peer_constraints import HOSTNAME
from phalanx.scheduler.cluster.snapshot import Snapshot
from phalanx.scheduler.decision import Binding
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


class NodeChoice(IntEnum):
    """How the nodes of a decision compare with those that the cluster chose for these pods."""

    #: The same nodes, or nodes of equal kinds and loads, which have equal scores.
    EQUAL = 0
    #: Nodes of equal kinds with other loads.
    ALIKE = 1
    OTHER = 2


class ReplayedBinding(NamedTuple):
    """A pod of a job got a node: when, in seconds of the simulation, and which one."""

    at: float
    node: str
    choice: NodeChoice


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

    def termination_seconds(self, history: RecordedHistory) -> float:
        """Return how long a victim terminates: as recorded, or as usual in the recording."""
        run = self.recorded
        if run is not None and run.terminating is not None and run.ended is not None:
            return max(run.ended - run.terminating, 0.0)
        return history.termination_seconds


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


class CloseCall(NamedTuple):
    """An attempt and an event that nearly coincide; a cluster may observe them in another order."""

    ref: Ref
    at: float
    event: str
    event_at: float


@dataclass(slots=True)
class ReplayTrace:
    """The attempts and the recorded events of a replay, in the order of their times."""

    attempts: list[tuple[float, Ref]] = field(default_factory=list)
    events: list[tuple[float, str]] = field(default_factory=list)

    def find_close_call(self, at: float, within: float) -> CloseCall | None:
        """Return an attempt at about a time, and the event that is nearest to it but not its cause.

        An event of the same instant is no close call: both are observed in its order.
        """
        times = [time for time, _ in self.events]
        first = bisect_left(self.attempts, at - within, key=lambda one: one[0])
        found: list[CloseCall] = []
        for time, ref in self.attempts[first:]:
            if time > at + within:
                break
            before, after = bisect_left(times, time) - 1, bisect_right(times, time)
            near = [i for i in (before, after) if 0 <= i < len(times)]
            found += [CloseCall(ref, time, self.events[i][1], times[i]) for i in near]
        calls = [one for one in found if abs(one.event_at - one.at) <= within]
        return min(calls, key=lambda one: abs(one.event_at - one.at), default=None)


def answer_to_all_names(profiles: Profiles, history: RecordedHistory) -> Profiles:
    """Return profiles for every scheduler name of the recording; the first is the default."""
    default = next(iter(profiles.policies.values()))
    pods = (chain.runs[0].pod for job in history.jobs for chain in job.pods)
    names = dict.fromkeys((*profiles.policies, *(pod.spec.scheduler_name for pod in pods)))
    policies = {name: profiles.policies.get(name, default) for name in names}
    return replace(profiles, policies=policies)


def put_on_node(pod: Pod, node: str, started_at: str | None = None) -> Pod:
    """Return a pod that is bound to a node, and runs there since a time if that is given."""
    status = PodStatus(phase="Running", start_time=started_at) if started_at else PodStatus()
    return Pod(pod.metadata, but(pod.spec, node_name=node), status)


def mark_succeeded(pod: Pod, now: float) -> Pod:
    """Return a pod that succeeds; as in the API its run time counts in whole seconds."""
    ended = ContainerState(ContainerStateTerminated(finished_at=timestamp(now)))
    status = but(pod.status, phase="Succeeded", container_statuses=(ContainerStatus(state=ended),))
    return but(pod, status=status)


class ObservedTimes(NamedTuple):
    """When the scheduler observes the binding of a pod that it has placed, and its start.

    `started_at` is the `status.startTime` that it observes then.
    """

    bound: float
    started: float
    started_at: str


def find_observed_times(live: LivePod, history: RecordedHistory) -> ObservedTimes:
    """Return when the binding and the start of a pod are observed: as recorded, or as usual.

    Both count as changes of the cluster: an entity whose back-off ends after one of them is
    attempted again, and one whose back-off ends before is not.
    """
    now, run = live.bound_at, live.recorded
    if run is not None and run.bound is not None and abs(now - run.bound) <= _SAME_START:
        bound = max(now, run.bound)
        usual = run.bound + history.starting_seconds
        started = max(bound, usual if run.started is None else run.started)
        return ObservedTimes(bound, started, run.started_at or timestamp(started))
    bound = now + history.binding_seconds
    started = bound + history.starting_seconds
    return ObservedTimes(bound, started, timestamp(started))


def build_replacement(pod: Pod, incarnation: int, now: float) -> Pod:
    """Return the pod that a controller creates in place of one that was lost."""
    suffix, meta = f"-r{incarnation}", pod.metadata
    name, uid = meta.name + suffix, meta.uid + suffix
    return but(pod, metadata=but(meta, name=name, uid=uid, creation_timestamp=timestamp(now)))


def reduce_members(live: LivePod) -> list[tuple[Ref, PodGroup]]:
    """Return the gangs of a pod that is over, with the number of members that are still to run."""
    key, found = live.chain.runs[0].pod.group, list[tuple[Ref, PodGroup]]()
    members = [one for one in live.job.pods if one.chain.runs[0].pod.group == key]
    left = sum(not one.is_over for one in members)
    for ref, group in live.job.groups.items():
        if not isinstance(group, PodGroup) or ref.key != key or not group.is_gang:
            continue
        meta = group.metadata
        if meta.controller is None or not 0 < left < group.min_count:
            continue
        annotations = {**meta.annotations, MEMBERS_TO_RUN_ANNOTATION: str(left)}
        found.append((ref, but(group, metadata=but(meta, annotations=annotations))))
    return found


def find_run_end(live: LivePod, recording_end: float) -> float | None:
    """Return when the run of a bound pod ends; None if the recording gives no hint.

    A pod that starts as it did in the cluster, apart from latency, ends when it did: otherwise the
    latencies of one job after the other would add up, and pods that ended together would not.

    A pod that had not ended, or was lost for good, runs as long as those of its job that
    succeeded, or as its job declares; one that had not ended ran at least to the last line.
    """
    run, now = live.own_runs[live.progress], live.bound_at
    is_same_start = run.bound is not None and abs(now - run.bound) <= _SAME_START
    if run.outcome.is_own_end:
        if run.bound is None or run.ended is None or run.seconds is None:
            return None
        return max(run.ended, now) if is_same_start else now + run.seconds
    typical = live.job.recorded.typical_seconds or live.job.record.job.estimate
    if typical is None:
        return None
    if run.outcome is not PodEnd.OPEN or run.bound is None:
        return now + typical
    if is_same_start:
        return max(run.bound + typical, nextafter(recording_end, inf))
    return now + max(typical, recording_end - run.bound)


def find_loss(live: LivePod, node: str, now: float) -> float | None:
    """Return when a pod is lost whose node was deleted; None if it ends by itself.

    Pod garbage collection deletes the pods of a deleted node forty seconds later, and a kubelet
    that still runs ends them before: a pod that ran there in the recording too ends as it did.
    """
    run = live.recorded
    if run is None or run.node != node or run.bound is None:
        return now
    if abs(live.bound_at - run.bound) > _SAME_START and not run.was_bound:
        return now
    if run.outcome is PodEnd.NODE_LOST and run.ended is not None:
        return max(run.ended, now)
    return None


def compare_nodes(
    bindings: Sequence[Binding],
    pods: Mapping[Key, LivePod],
    *,
    nodes: Mapping[str, Node],
    snapshot: Snapshot,
) -> NodeChoice:
    """Compare the nodes of a decision with the recorded ones, in the cluster before the decision.

    The choice is equal if exchanging equal nodes turns one into the other: two pods on node-1 and
    one on node-2 for two on node-4 and one on node-2, if node-1 and node-4 are of one kind and have
    one load.
    """
    runs = [pods[one.pod].recorded for one in bindings]
    chosen = Counter(one.node for one in bindings)
    recorded = Counter(run.node for run in runs if run is not None)
    if chosen == recorded:
        return NodeChoice.EQUAL
    if not recorded.keys() <= nodes.keys() & snapshot.index.keys():
        return NodeChoice.OTHER

    def describe(found: Counter[str], *, with_load: bool) -> Counter[Hashable]:
        described = Counter[Hashable]()
        for name, count in found.items():
            node, node_class = nodes[name], snapshot.node_class(snapshot.index[name])
            labels = frozenset((k, v) for k, v in node.metadata.labels.items() if k != HOSTNAME)
            kind = (labels, node.spec, node.status.images, node_class.allocatable)
            described[kind, node_class if with_load else None, count] += 1
        return described

    for choice, with_load in ((NodeChoice.EQUAL, True), (NodeChoice.ALIKE, False)):
        if describe(chosen, with_load=with_load) == describe(recorded, with_load=with_load):
            return choice
    return NodeChoice.OTHER


def build_job(recorded: RecordedJob, record: JobRecord, resources: Sequence[str]) -> ReplayedJob:
    """Build the job of a replay, with the amounts of each of its pods."""
    job = ReplayedJob(recorded, record)
    for chain in recorded.pods:
        requests = pod_requests(chain.runs[0].pod)
        job.pods.append(LivePod(job, chain, [requests.get(name, 0) for name in resources]))
    return job


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
