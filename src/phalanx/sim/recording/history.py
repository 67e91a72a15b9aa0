"""RecordedHistory: what a recording says about jobs, pods, run times and nodes. Pure.

    observations ─▶ runs of pods ─▶ chains of replaced pods ─▶ jobs ─▶ TraceWorkload

A job is a tree of groups, a group, or a pod without a group. Its pods are chains: when a controller
replaces a pod that was lost, the new pod continues the chain. A run that ended by itself (it
succeeded, failed, or was deleted by a user) is part of the job and is repeated in every replay,
however early or late it starts. A run that ended because the scheduler preempted the pod, or a node
was lost, is not: in a replay the pod may not be preempted at all.

    chain of train-0:   run of 40 s, preempted    run of 600 s, succeeded
    in a replay:        one run of 600 s; again from the beginning after every preemption

Pods that the scheduler did not place (DaemonSet pods, static pods) occupy their recorded nodes at
the recorded times. Pods that run at the beginning occupy their nodes too, but can be preempted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import pairwise
from statistics import median

from msgspec.structs import replace

from phalanx.api.batch import JobRunTime, parse_run_time
from phalanx.api.core import Pod, PodStatus
from phalanx.api.meta import (
    COMPOSITE_POD_GROUP_KIND,
    POD_GROUP_KIND,
    Key,
    Ref,
    find_condition,
    parse_timestamp,
    pod_ref,
)
from phalanx.api.scheduling import (
    DISRUPTION_TARGET,
    FINISHED_ANNOTATION,
    MEMBERS_TO_RUN_ANNOTATION,
)
from phalanx.scheduler.cluster.group_tree import Group
from phalanx.scheduler.queue.decision_log import (
    CompositePodGroupObserved,
    DisruptionBudgetObserved,
    JobObserved,
    NamespaceObserved,
    NodeObserved,
    Observation,
    PodGroupObserved,
    PodObserved,
    ServiceObserved,
)
from phalanx.sim.recording.recording_format import Recording

#: The label by which a Job numbers its pods.
COMPLETION_INDEX_LABEL = "batch.kubernetes.io/job-completion-index"
#: No binding takes longer: a job that started later after its arrival has waited.
_MAX_BINDING_SECONDS = 1.0
_PREEMPTION_REASON = "PreemptionByScheduler"
#: The reasons of evictions because a node was lost or tainted.
_NODE_REASONS = frozenset({"DeletionByTaintManager", "DeletionByPodGC", "TerminationByKubelet"})
#: Annotations of groups that the controllers write while members end; a replay writes its own.
_PROGRESS_ANNOTATIONS = frozenset({FINISHED_ANNOTATION, MEMBERS_TO_RUN_ANNOTATION})


class PodEnd(Enum):
    """How the run of a pod ended."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    DELETED = "deleted"
    PREEMPTED = "preempted"
    NODE_LOST = "lost its node"
    #: It had not ended when the recording did.
    OPEN = "open"

    @property
    def is_own_end(self) -> bool:
        """Whether the pod would have ended so under any scheduler."""
        return self in (PodEnd.SUCCEEDED, PodEnd.FAILED, PodEnd.DELETED)


@dataclass(slots=True)
class RecordedRun:
    """One pod of the recording, from its arrival to its end. Times are seconds since the epoch."""

    #: The pod as it arrived, without a node and without a status.
    pod: Pod
    arrived: float
    bound: float | None = None
    node: str = ""
    #: When its deletion was requested, and when it no longer occupied its node.
    terminating: float | None = None
    ended: float | None = None
    #: Its place among all ends of the recording: pods end together in an order of their own.
    end_order: int = 0
    outcome: PodEnd = PodEnd.OPEN
    #: Later versions: gates removed, labels changed, resized.
    updates: list[tuple[float, Pod]] = field(default_factory=list)
    #: Whether it had a node when it was first seen.
    was_bound: bool = False
    #: Whether it needs devices or volumes, which a replay leaves out.
    uses_claims: bool = False
    #: Its `status.startTime`, and when that was observed.
    started_at: str | None = None
    started: float | None = None
    last_status: PodStatus = field(default_factory=PodStatus)

    @property
    def seconds(self) -> float | None:
        """How long it occupied its node; None if it never had one, or has not ended."""
        if self.bound is None or self.ended is None:
            return None
        return max(self.ended - self.bound, 0.0)


@dataclass(slots=True)
class RecordedPod:
    """A chain of runs in which each replaces the one before it."""

    runs: list[RecordedRun]

    @property
    def is_replaced(self) -> bool:
        """Whether a controller replaces the pod when it is lost."""
        return self.runs[0].pod.metadata.controller is not None

    @property
    def own_runs(self) -> list[RecordedRun]:
        """Return the runs that every replay repeats; the last one may be open."""
        kept = [run for run in self.runs if run.outcome.is_own_end]
        last = self.runs[-1]
        if not last.outcome.is_own_end and (not kept or self.is_replaced):
            # Lost for good, or still there: how long it would have run is unknown.
            kept.append(last)
        return kept

    def delay_before(self, run: RecordedRun) -> float:
        """Return the seconds from the end of the run before to the arrival of a run."""
        for before, after in pairwise(self.runs):
            if after is run and before.ended is not None:
                return max(after.arrived - before.ended, 0.0)
        return 0.0


@dataclass(slots=True)
class GroupLife:
    """A PodGroup or CompositePodGroup from its creation to its deletion, with all versions."""

    ref: Ref
    created: float
    versions: list[tuple[float, Group]]
    deleted: float | None = None

    @property
    def first(self) -> Group:
        """The group as it was created."""
        return self.versions[0][1]


@dataclass(slots=True)
class RecordedJob:
    """Pods that are scheduled together: a tree, a group, or one pod."""

    ref: Ref
    groups: list[GroupLife]
    pods: list[RecordedPod] = field(default_factory=list)

    def is_open_at(self, at: float) -> bool:
        """Whether a pod of it existed at a time and ended later."""
        return any(run.arrived < at and (run.ended is None or run.ended > at) for run in self.runs)

    @property
    def runs(self) -> Iterator[RecordedRun]:
        """All runs of all pods."""
        return (run for pod in self.pods for run in pod.runs)

    @property
    def submitted(self) -> float:
        """When its first pod arrived."""
        return min(run.arrived for run in self.runs)

    @property
    def started(self) -> float | None:
        """When its first pod got a node; None if it never did."""
        return min((run.bound for run in self.runs if run.bound is not None), default=None)

    @property
    def typical_seconds(self) -> float | None:
        """The median run time of its pods that succeeded; None if none did."""
        found = [
            run.seconds
            for run in self.runs
            if run.outcome is PodEnd.SUCCEEDED and run.seconds is not None
        ]
        return median(found) if found else None

    @property
    def was_running(self) -> bool:
        """Whether a pod had a node when the recording began."""
        return any(run.was_bound for run in self.runs)


@dataclass(frozen=True, slots=True)
class RecordedHistory:
    """Everything that a replay needs."""

    recording: Recording
    jobs: tuple[RecordedJob, ...]
    #: Pods that no simulated scheduler places.
    fixed: tuple[RecordedRun, ...]
    #: The changes of nodes in the order of time; those up to the beginning are its state.
    nodes: tuple[NodeObserved, ...]
    #: Namespaces, Services, budgets and Jobs, in the order of time.
    others: tuple[Observation, ...]
    #: The usual seconds from the request of a deletion until the pod was gone, and from then on
    #: until its controller has created another one.
    termination_seconds: float = 0.0
    replacement_seconds: float = 0.0
    #: The usual seconds from a decision until its binding is observed, and from then on until the
    #: start of the pod is observed.
    binding_seconds: float = 0.0
    starting_seconds: float = 0.0
    #: How many pods use devices or volumes.
    claims: int = 0


def build_history(
    recording: Recording, is_simulated: Callable[[Pod], bool] = lambda pod: True
) -> RecordedHistory:
    """Read the observations of a recording. Pods that are not simulated keep their nodes."""
    reader = _HistoryReader(recording)
    runs = list(reader.read())
    fixed = [run for run in runs if not is_placed_by_scheduler(run) or not is_simulated(run.pod)]
    fixed_ids = set(map(id, fixed))
    simulated = [run for run in runs if id(run) not in fixed_ids]
    jobs = _build_jobs(simulated, reader.groups)
    pauses = [
        run.ended - run.terminating
        for run in runs
        if run.ended is not None and run.terminating is not None and run.outcome is PodEnd.PREEMPTED
    ]
    delays = [
        chain.delay_before(after)
        for job in jobs
        for chain in job.pods
        for before, after in pairwise(chain.runs)
        if before.outcome is PodEnd.PREEMPTED
    ]
    starts = [
        run.started - run.bound
        for run in simulated
        if run.started is not None and run.bound is not None and not run.was_bound
    ]
    return RecordedHistory(
        recording,
        tuple(sorted(jobs, key=lambda job: job.submitted)),
        tuple(fixed),
        tuple(reader.nodes),
        tuple(reader.others),
        termination_seconds=max(median(pauses), 0.0) if pauses else 0.0,
        replacement_seconds=median(delays) if delays else 0.0,
        binding_seconds=_find_binding_seconds(jobs),
        starting_seconds=median(starts) if starts else 0.0,
        claims=sum(run.uses_claims for run in runs),
    )


def _find_binding_seconds(jobs: Sequence[RecordedJob]) -> float:
    """Return how long a binding takes: from the last arrival of the fastest job to its binding.

    The API does not show decisions; a job that waits for nodes takes longer.
    """
    waits = [
        job.started - max(run.arrived for run in job.runs if run.arrived <= job.started)
        for job in jobs
        if job.started is not None and not job.was_running
    ]
    fastest = min(waits, default=0.0)
    return fastest if fastest <= _MAX_BINDING_SECONDS else 0.0


def is_placed_by_scheduler(run: RecordedRun) -> bool:
    """Whether a scheduler chose the node: not for DaemonSet pods and pods created with a node."""
    if run.pod.is_daemon or any(one.kind == "Node" for one in run.pod.metadata.owner_references):
        return False
    return not run.was_bound or run.pod.spec.node_name == ""


class _HistoryReader:
    """Follows pods, groups and nodes through the observations."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._runs: dict[Key, RecordedRun] = {}
        self._alive: dict[Ref, GroupLife] = {}
        self._lost_nodes: set[str] = set()
        self._ends = 0
        self.groups: dict[Ref, list[GroupLife]] = {}
        self.nodes: list[NodeObserved] = []
        self.others: list[Observation] = []

    def read(self) -> Iterator[RecordedRun]:
        """Yield the run of every pod in the order of arrival."""
        for one in self._recording.observations:
            match one:
                case PodObserved():
                    if (run := self._read_pod(one)) is not None:
                        yield run
                case PodGroupObserved():
                    self._read_group(Ref(POD_GROUP_KIND, *one.key), one.group, one.at)
                case CompositePodGroupObserved():
                    self._read_group(Ref(COMPOSITE_POD_GROUP_KIND, *one.key), one.group, one.at)
                case NodeObserved():
                    self.nodes.append(one)
                    if one.node is None:
                        self._lost_nodes.add(one.name)
                    else:
                        self._lost_nodes.discard(one.name)
                case (
                    NamespaceObserved()
                    | ServiceObserved()
                    | DisruptionBudgetObserved()
                    | JobObserved()
                ):
                    self.others.append(one)
                case _:
                    # Devices and volumes are not simulated.
                    pass

    def _read_pod(self, one: PodObserved) -> RecordedRun | None:
        """Follow a pod; returns the run of a pod that is new."""
        run, pod = self._runs.get(one.key), one.pod
        is_new = pod is not None and (run is None or run.pod.metadata.uid != pod.metadata.uid)
        if run is not None and (pod is None or is_new):
            self._end(run, one.at)
            del self._runs[one.key]
        if pod is None or (is_new and pod.is_terminal):
            return None
        if is_new:
            run = self._begin_run(pod, one.at)
            self._runs[one.key] = run
        assert run is not None
        self._follow(run, pod, one.at)
        return run if is_new else None

    def _begin_run(self, pod: Pod, at: float) -> RecordedRun:
        is_initial = at <= self._recording.begin
        was_bound = bool(pod.spec.node_name)
        arrived = at
        if is_initial and pod.metadata.creation_timestamp:
            arrived = min(parse_timestamp(pod.metadata.creation_timestamp), at)
        template = _as_arrived(pod)
        if was_bound and not is_initial:
            # Created with a node: no scheduler has placed it.
            template = replace(template, spec=replace(template.spec, node_name=pod.spec.node_name))
        return RecordedRun(template, arrived, was_bound=was_bound, uses_claims=_uses_claims(pod))

    def _follow(self, run: RecordedRun, pod: Pod, at: float) -> None:
        run.last_status = pod.status
        if run.bound is None and pod.spec.node_name:
            run.bound, run.node = at, pod.spec.node_name
            if run.was_bound and pod.status.start_time:
                run.bound = min(parse_timestamp(pod.status.start_time), at)
        if pod.status.start_time:
            run.started_at = pod.status.start_time
            run.started = at if run.started is None else run.started
        if pod.metadata.deletion_timestamp and run.terminating is None:
            run.terminating = at
        if pod.is_terminal and run.ended is None:
            self._end(run, at)
        template = _as_arrived(pod)
        known = run.updates[-1][1] if run.updates else run.pod
        if run.ended is None and _differs(template, known):
            run.updates.append((at, template))

    def _end(self, run: RecordedRun, at: float) -> None:
        if run.ended is not None:
            return
        run.ended, status = at, run.last_status
        self._ends += 1
        run.end_order = self._ends
        target = find_condition(status.conditions, DISRUPTION_TARGET)
        reason = target.reason if target and target.status == "True" else ""
        if status.phase == "Succeeded":
            run.outcome = PodEnd.SUCCEEDED
        elif reason == _PREEMPTION_REASON:
            run.outcome = PodEnd.PREEMPTED
        elif reason in _NODE_REASONS or run.node in self._lost_nodes:
            run.outcome = PodEnd.NODE_LOST
        elif status.phase == "Failed":
            run.outcome = PodEnd.FAILED
        else:
            run.outcome = PodEnd.DELETED

    def _read_group(self, ref: Ref, group: Group | None, at: float) -> None:
        life = self._alive.get(ref)
        if life is not None and (group is None or group.metadata.uid != life.first.metadata.uid):
            life.deleted = at
            del self._alive[ref]
            life = None
        if group is None:
            return
        meta = group.metadata
        annotations = meta.annotations
        if meta.controller is not None:
            annotations = {k: v for k, v in annotations.items() if k not in _PROGRESS_ANNOTATIONS}
        group = replace(group, metadata=replace(meta, annotations=annotations))
        if life is None:
            created = at
            if at <= self._recording.begin and meta.creation_timestamp:
                created = min(parse_timestamp(meta.creation_timestamp), at)
            life = GroupLife(ref, created, [(created, group)])
            self._alive[ref] = life
            self.groups.setdefault(ref, []).append(life)
        elif (group.spec, annotations) != (
            life.versions[-1][1].spec,
            life.versions[-1][1].metadata.annotations,
        ):
            life.versions.append((at, group))


def _as_arrived(pod: Pod) -> Pod:
    """Return a pod without what the scheduler and the kubelet have written to it.

    Claims for devices and volumes are left out: a replay does not simulate them.
    """
    metadata = replace(pod.metadata, deletion_timestamp="", deletion_grace_period_seconds=0)
    spec = replace(pod.spec, node_name="", resource_claims=(), volumes=())
    return Pod(metadata, spec, PodStatus())


def _uses_claims(pod: Pod) -> bool:
    """Whether a pod needs devices or volumes that a replay does not simulate."""
    return bool(pod.spec.resource_claims) or any(
        one.persistent_volume_claim is not None or one.ephemeral is not None
        for one in pod.spec.volumes
    )


def _differs(one: Pod, other: Pod) -> bool:
    """Whether a pod has changed in what the scheduler reads."""
    spec = replace(other.spec, node_name="")
    return (one.spec, one.metadata.labels) != (spec, other.metadata.labels)


# ---- jobs --------------------------------------------------------------------------------------


def _build_jobs(
    runs: Sequence[RecordedRun], groups: dict[Ref, list[GroupLife]]
) -> list[RecordedJob]:
    """Assign every run to a job and to a chain of it."""
    jobs: dict[object, RecordedJob] = {}
    chains = _Chains()
    for run in runs:
        path = _group_path(run, groups)
        place = (path[0].ref, path[0].created) if path else None
        chain = chains.find(run, place)
        if chain is not None:
            chain.runs.append(run)
            continue
        identity = (path[-1].ref, path[-1].created) if path else (run.pod.metadata.key, run.arrived)
        job = jobs.get(identity)
        if job is None:
            ref = path[-1].ref if path else pod_ref(run.pod.metadata.key)
            job = jobs[identity] = RecordedJob(ref, [])
        for life in path:
            if not any(life is known for known in job.groups):
                job.groups.append(life)
        chain = RecordedPod([run])
        job.pods.append(chain)
        chains.add(chain, place)
    _attach_other_lives(jobs, groups)
    for job in jobs.values():
        # Parents first, as they are created.
        job.groups.sort(key=lambda life: (life.created, life.ref.kind))
    return list(jobs.values())


def _attach_other_lives(
    jobs: dict[object, RecordedJob], groups: dict[Ref, list[GroupLife]]
) -> None:
    """Give groups that were created again without new pods to the job that has their pods."""
    owners = {id(life): job for job in jobs.values() for life in job.groups}
    for lives in groups.values():
        for before, life in pairwise(lives):
            if id(life) not in owners and (job := owners.get(id(before))) is not None:
                owners[id(life)] = job
                job.groups.append(life)


def _group_path(run: RecordedRun, groups: dict[Ref, list[GroupLife]]) -> list[GroupLife]:
    """Return the group of a pod, its parent and so on; empty without a recorded group."""
    path: list[GroupLife] = []
    key = run.pod.group
    ref = Ref(POD_GROUP_KIND, *key) if key is not None else None
    while ref is not None and len(path) < 8:
        lives = groups.get(ref, ())
        found = next(
            (one for one in lives if one.deleted is None or one.deleted > run.arrived), None
        )
        if found is None:
            break
        path.append(found)
        parent = found.first.spec.parent_composite_pod_group_name
        ref = Ref(COMPOSITE_POD_GROUP_KIND, ref.namespace, parent) if parent else None
    return path


class _Chains:
    """The chains by the controller and the group of their pods."""

    def __init__(self) -> None:
        self._chains: dict[object, list[RecordedPod]] = {}

    def add(self, chain: RecordedPod, place: object) -> None:
        """Add a chain; only pods of controllers are replaced."""
        if (owner := _owner_uid(chain.runs[0])) is not None:
            self._chains.setdefault((owner, place), []).append(chain)

    def find(self, run: RecordedRun, place: object) -> RecordedPod | None:
        """Return the chain whose last pod a new one replaces."""
        owner = _owner_uid(run)
        candidates = [
            chain
            for chain in self._chains.get((owner, place), ())
            if (last := chain.runs[-1]).outcome is not PodEnd.SUCCEEDED
            and last.outcome is not PodEnd.OPEN
            and (last.terminating or last.ended or run.arrived) <= run.arrived
        ]
        index = run.pod.metadata.labels.get(COMPLETION_INDEX_LABEL)
        for chain in candidates:
            meta = chain.runs[-1].pod.metadata
            if meta.name == run.pod.metadata.name:
                return chain
            if index is not None and meta.labels.get(COMPLETION_INDEX_LABEL) == index:
                return chain
        return candidates[0] if candidates and index is None else None


def _owner_uid(run: RecordedRun) -> str | None:
    controller = run.pod.metadata.controller
    return controller.uid if controller else None


def declared_run_time(job: RecordedJob, jobs: dict[str, JobRunTime]) -> float | None:
    """Return the longest run time that the pods of a job declare; None if one declares none."""
    longest = 0.0
    for chain in job.pods:
        pod = chain.runs[0].pod
        owner = jobs.get(_owner_uid(chain.runs[0]) or "")
        texts = [pod.metadata, *(life.first.metadata for life in job.groups)]
        declared = [
            pod.spec.active_deadline_seconds,
            owner.active_deadline_seconds if owner else None,
            *(parse_run_time(meta.annotations) for meta in texts),
            owner.expected_run_time if owner else None,
        ]
        first = next((one for one in declared if one is not None), None)
        if first is None:
            return None
        longest = max(longest, float(first))
    return longest
