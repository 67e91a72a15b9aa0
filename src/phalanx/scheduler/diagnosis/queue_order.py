"""Lists the workloads that run and wait, in queue order, from the objects of the API.

`phalanx queue` and `phalanx top` print the rows. The order is that of a scheduling queue that has
observed every object at its creation time: gangs whose binding has begun, then higher priority,
then longer wait. Reasons are read from the conditions that the scheduler wrote.

`recorded_diagnosis` reads them for `phalanx why` where the reader sees a part of the cluster only.
A diagnosis decides again, which needs all nodes and all pods; without them the conditions say the
last reason of the scheduler, and no cures.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum

from phalanx.api.batch import COMPLETE, FAILED, SUSPENDED, Job
from phalanx.api.core import Pod
from phalanx.api.job_sets import JOB_INDEX, REPLICATED_JOB_NAME
from phalanx.api.kinds import JOB
from phalanx.api.leader_worker_sets import GROUP_INDEX_LABEL, SUBGROUP_INDEX_LABEL
from phalanx.api.meta import (
    POD_KIND,
    Condition,
    Key,
    ObjectMeta,
    Ref,
    find_condition,
    parse_timestamp,
    pod_group_ref,
    pod_ref,
)
from phalanx.api.scheduling import (
    COMPOSITE_INITIALLY_SCHEDULED,
    FINISHED_ANNOTATION,
    POD_GROUP_INITIALLY_SCHEDULED,
    USER_LABEL,
    CompositePodGroup,
    PodGroup,
)
from phalanx.scheduler.cluster.group_tree import (
    Group,
    GroupTreeProblem,
    GroupTrees,
    group_ref,
    parent_ref,
)
from phalanx.scheduler.diagnosis.diagnosis import (
    NOT_READY,
    RETRYING,
    Diagnosis,
    NotAttempted,
    describe_preemption,
    describe_retry,
    prepare_attempt,
    will_retry,
)
from phalanx.scheduler.explain import PodMessage, describe_unready
from phalanx.scheduler.queue.queue_listing import QueuedEntityInfo
from phalanx.scheduler.queue.scheduler_state import ClusterObjects, creation_time, load_state

#: The reason of a workload that no scheduler has attempted yet.
NOT_TRIED_YET = "NotTriedYet"
_POD_SCHEDULED = "PodScheduled"
#: Labels that tell the groups of one LeaderWorkerSet or JobSet apart, where all members agree.
_PART_LABELS = (GROUP_INDEX_LABEL, SUBGROUP_INDEX_LABEL, REPLICATED_JOB_NAME, JOB_INDEX)


class WorkloadState(Enum):
    """The state of a workload."""

    RUNNING = "running"
    WAITING = "waiting"
    HELD = "held"
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class WorkloadRow:
    """A gang, a tree of groups, or a pod without a group; the pods of an ended one may be gone."""

    ref: Ref
    state: WorkloadState
    #: Its position in the queue, from 1; 0 if it is not queued.
    position: int
    priority: int
    #: Since when it waits or runs.
    since: float
    placed: int
    pending: int
    #: How many have ended. A pod that its Job has replaced is no member of a gang any more.
    ended: int
    needed: int
    reason: str
    message: str
    nodes: tuple[str, ...]
    scheduler: str
    #: How many pods with a node are running, and how many of the ended have not succeeded.
    started: int
    failed: int
    #: The controller that owns it, such as `Job/train`; "" for none.
    owner: str = ""
    #: Which entity has preempted it, and when; "" if none did since it was last placed.
    preempted: str = ""
    #: How often it was preempted.
    preemptions: int = 0
    #: When it was created, when its present pods began to run, and when the last of them ended.
    created: float = 0.0
    started_at: float | None = None
    ended_at: float | None = None
    #: The user that its label names; "" for none.
    user: str = ""
    #: Which one it is of several with the same owner, such as the index of a replica.
    part: str = ""
    #: Why it waits in one sentence, if that was found out; otherwise the message says it.
    summary: str = ""

    @property
    def members(self) -> int:
        """The number of its pods, including those that have ended."""
        return self.placed + self.pending + self.ended

    @property
    def title(self) -> str:
        """The name for users: its owner, or else its own name."""
        return self.owner or self.ref.name

    @property
    def argument(self) -> str:
        """How commands name it: `job/train`, or `podgroup/train` without an owner."""
        return name_entity(self.ref, self.owner)

    @property
    def display_name(self) -> str:
        """The name in tables: `job/train`, or `leaderworkerset/llm[0]` of several."""
        return name_entity(self.ref, self.owner, self.part)

    @property
    def display_title(self) -> str:
        """The title in reports: `Job/train`, or `LeaderWorkerSet/llm[0]` of several."""
        return f"{self.title}[{self.part}]" if self.part else self.title

    @property
    def has_run(self) -> bool:
        """Whether as many members as it needs are running or have succeeded."""
        return self.started + self.ended - self.failed >= self.needed

    @property
    def kind(self) -> str:
        """The name of the kind."""
        return self.ref.kind


@dataclass(slots=True)
class _EntityPods:
    """The pods of one entity."""

    placed: list[Pod] = field(default_factory=list)
    pending: list[Pod] = field(default_factory=list)
    ended: list[Pod] = field(default_factory=list)

    def __iter__(self) -> Iterator[Pod]:
        """All of them, the live ones first."""
        yield from (*self.placed, *self.pending, *self.ended)

    @property
    def any_pod(self) -> Pod | None:
        """One of them, a live one if there is one; None without pods."""
        return next(iter(self), None)


def list_workloads(cluster: ClusterObjects, *, include_all: bool = False) -> list[WorkloadRow]:
    """List running workloads, the oldest first, then waiting ones in queue order.

    `include_all` adds ended workloads, before all others, and running pods without a group.
    """
    group_trees = _build_group_tree(cluster.groups)
    pods_by_entity = _pods_by_entity(cluster.pods, group_trees)
    if include_all:
        # A Job that exceeds its deadline deletes its pods; its group says how it ended.
        finished = [one for one in cluster.groups if _is_finished(one) and not parent_ref(one)]
        for group in finished:
            pods_by_entity.setdefault(group_ref(group), _EntityPods())
    # A Job that has ended may still have pods without a node, which are being deleted.
    queued = [
        info
        for info in load_state(cluster).queue.list_entities()
        if not _is_finished(group_trees.get(info.ref) if info.is_group else None)
    ]
    waiting = {info.ref for info in queued}
    settled = [
        _build_settled_row(ref, pods, group_trees)
        for ref, pods in pods_by_entity.items()
        if ref not in waiting
        and (ref.kind != POD_KIND or include_all)
        and (pods.any_pod or _is_finished(group_trees.get(ref)))
    ]
    rows = _with_jobs(
        [*settled, *_waiting_rows(queued, pods_by_entity, group_trees)],
        cluster.jobs,
        pods_by_entity,
    )
    ended = [row for row in rows if row.state is WorkloadState.ENDED and include_all]
    running = [row for row in rows if row.state is WorkloadState.RUNNING]
    others = [row for row in rows if row.state in (WorkloadState.WAITING, WorkloadState.HELD)]
    # Those that wait are in the order of the queue; those that are held have no place in it.
    others.sort(key=lambda row: row.state is WorkloadState.HELD)
    listed = [*sorted(ended, key=_age_key), *sorted(running, key=_age_key), *others]
    parts = find_parts({row.ref: row.owner for row in listed}, pods_by_entity)
    return [replace(row, part=parts[row.ref]) if row.ref in parts else row for row in listed]


def _with_jobs(
    rows: Sequence[WorkloadRow], jobs: Iterable[Job], pods_by_entity: dict[Ref, _EntityPods]
) -> list[WorkloadRow]:
    """Return the rows, with what their Jobs say: user, end, retries, and how many members."""
    jobs_by_owner = {
        (job.metadata.namespace, f"{JOB.name}/{job.metadata.name}"): job for job in jobs
    }
    groups = Counter((row.ref.namespace, row.owner) for row in rows if row.kind != POD_KIND)
    found = []
    for row in rows:
        if job := jobs_by_owner.get((row.ref.namespace, row.owner)):
            if user := job.metadata.labels.get(USER_LABEL, ""):
                row = replace(row, user=row.user or user)
            if row.state is WorkloadState.ENDED and row.ended_at is None:
                row = replace(row, ended_at=job.end_time)
            # What the Job says is about its only group.
            if row.kind != POD_KIND and groups[row.ref.namespace, row.owner] == 1:
                row = _with_job_state(row, job, pods_by_entity[row.ref].ended)
        found.append(row)
    return found


def _with_job_state(row: WorkloadRow, job: Job, ended: Sequence[Pod]) -> WorkloadRow:
    """Return the row of a Job's gang: the Job says how it ended, and which failures it retries.

    Pods that failed and were replaced are attempts, not members.
    """
    spec, succeeded = job.spec, row.ended - row.failed
    live = row.placed + row.pending
    if row.state is WorkloadState.ENDED and job.is_finished:
        kind = FAILED if job.true_condition(FAILED) else COMPLETE
        condition = job.true_condition(kind)
        reason = condition.reason if condition and kind == FAILED else ""
        end = f"{kind}: {reason}" if reason else kind
        members = spec.completions if spec.completions is not None else spec.parallelism
        succeeded = job.status.succeeded
        # A Job that is complete needs no more members than have succeeded.
        count = max(members - live, succeeded) if kind == FAILED else succeeded
        return replace(
            row,
            reason=row.reason or kind,
            message=row.message or f"its Job has ended: {end}",
            ended=count,
            failed=count - succeeded,
        )
    members = spec.parallelism
    if spec.completions is not None:
        members = min(spec.completions, succeeded + spec.parallelism)
    failed = min(max(members - live - succeeded, 0), row.failed)
    counted = replace(row, ended=succeeded + failed, failed=failed)
    if row.state is WorkloadState.ENDED and job.spec.suspend:
        return replace(
            counted, state=WorkloadState.HELD, reason=SUSPENDED, message="its Job is suspended"
        )
    if row.state is WorkloadState.ENDED and will_retry(job, row.failed, succeeded):
        message = describe_retry([pod for pod in ended if pod.status.phase == "Failed"])
        return replace(
            counted, state=WorkloadState.HELD, reason=RETRYING, message=message, ended_at=None
        )
    return counted


def name_entity(ref: Ref, owner: str, part: str = "") -> str:
    """Name an entity as tables do: `job/train`, `podgroup/train` or `leaderworkerset/llm[0]`."""
    kind, _, name = (owner or f"{ref.kind}/{ref.name}").partition("/")
    return f"{kind.lower()}/{name}[{part}]" if part else f"{kind.lower()}/{name}"


def find_parts(owners: Mapping[Ref, str], pods: Mapping[Ref, Iterable[Pod]]) -> dict[Ref, str]:
    """Return which part of its owner each entity is; those that have an owner alone are left out.

    The groups of earlier attempts have ended and may be the same part as a later one.
    """
    siblings: dict[tuple[str, str], list[Ref]] = {}
    for ref, owner in owners.items():
        if owner:
            siblings.setdefault((ref.namespace, owner), []).append(ref)
    return {
        ref: _find_part(ref, owner, pods[ref]) or str(place)
        for (_, owner), refs in siblings.items()
        if len(refs) > 1
        for place, ref in enumerate(sorted(refs))
    }


def _find_part(ref: Ref, owner: str, pods: Iterable[Pod]) -> str:
    """Return what the labels of the pods of a group say, or the suffix of the name of a pod."""
    if ref.kind == POD_KIND:
        return ref.name.removeprefix(f"{owner.partition('/')[2]}-")
    labels = [pod.metadata.labels for pod in pods]
    values = [{one.get(label, "") for one in labels} for label in _PART_LABELS]
    return "-".join(found.pop() for found in values if len(found) == 1 and "" not in found)


def _age_key(row: WorkloadRow) -> tuple[float, bool, Key, str]:
    ref = row.ref
    return row.since, ref.kind != POD_KIND, ref.key, ref.kind


def _build_group_tree(groups: Iterable[Group]) -> GroupTrees:
    group_trees = GroupTrees()
    for group in groups:
        group_trees.update(group_ref(group), group)
    return group_trees


def _pods_by_entity(pods: Iterable[Pod], group_tree: GroupTrees) -> dict[Ref, _EntityPods]:
    found: dict[Ref, _EntityPods] = {}
    for pod in pods:
        entity_pods = found.setdefault(entity_of_pod(pod, group_tree), _EntityPods())
        if pod.is_terminal:
            entity_pods.ended.append(pod)
        elif pod.occupied_node:
            entity_pods.placed.append(pod)
        elif not pod.metadata.deletion_timestamp:
            entity_pods.pending.append(pod)
    return found


def entity_of_pod(pod: Pod, group_tree: GroupTrees) -> Ref:
    """Return the entity that schedules a pod: itself, its group, or the tree of its group."""
    if pod.group is None:
        return pod_ref(pod.metadata.key)
    ref = pod_group_ref(pod.group)
    root = group_tree.root(ref)
    return ref if isinstance(root, GroupTreeProblem) else root


def pods_with_entities(cluster: ClusterObjects) -> list[tuple[Ref, Pod]]:
    """Return all pods, each with the entity that schedules it."""
    group_trees = _build_group_tree(cluster.groups)
    return [(entity_of_pod(pod, group_trees), pod) for pod in cluster.pods]


def _build_settled_row(ref: Ref, pods: _EntityPods, group_tree: GroupTrees) -> WorkloadRow:
    group = group_tree.get(ref)
    any_pod = pods.any_pod
    condition = _find_scheduled_condition(group)
    since = creation_time(_metadata_of(group, any_pod))
    placed_at = None
    if condition is not None and condition.status == "True" and condition.last_transition_time:
        since = placed_at = parse_timestamp(condition.last_transition_time)
    is_over = _is_finished(group) or not pods.placed
    state = WorkloadState.ENDED if is_over else WorkloadState.RUNNING
    row = _build_row(ref, state, position=0, since=since, pods=pods, group_tree=group_tree)
    # If its pods are gone, the group says when it was placed.
    return row if any_pod else replace(row, started_at=placed_at)


def _waiting_rows(
    infos: Iterable[QueuedEntityInfo],
    pods_by_entity: dict[Ref, _EntityPods],
    group_tree: GroupTrees,
) -> Iterator[WorkloadRow]:
    position = 0
    for info in infos:
        state = WorkloadState.HELD if info.unready else WorkloadState.WAITING
        position += state is WorkloadState.WAITING
        pods = pods_by_entity[info.ref]
        # Terminating members do not count towards the quorum of the next attempt.
        live = replace(pods, placed=[p for p in pods.placed if not p.metadata.deletion_timestamp])
        names = dict.fromkeys(pod_group_ref(pod.group) for pod in pods.pending if pod.group)
        groups = (group_tree.get(name) for name in names)
        yield _build_row(
            info.ref,
            state,
            position=position if state is WorkloadState.WAITING else 0,
            since=info.timestamp,
            pods=live,
            group_tree=group_tree,
            info=info,
            preempted=describe_preemption(group for group in groups if group),
        )


def _build_row(
    ref: Ref,
    state: WorkloadState,
    *,
    position: int,
    since: float,
    pods: _EntityPods,
    group_tree: GroupTrees,
    info: QueuedEntityInfo | None = None,
    preempted: str = "",
) -> WorkloadRow:
    group = group_tree.get(ref)
    if info:
        reason, message = _waiting_reason(info, pods, group)
    else:
        # How its Job ended; empty while the Job goes on.
        end = group.metadata.annotations.get(FINISHED_ANNOTATION, "") if group else ""
        reason, message = end.partition(":")[0], f"its Job has ended: {end}" if end else ""
    any_pod = pods.any_pod
    run_pods = [*pods.placed, *pods.ended]
    starts = [pod.status.start_time for pod in run_pods if pod.status.start_time]
    names = dict.fromkeys(
        pod_group_ref(one.group) for one in [*run_pods, *pods.pending] if one.group
    )
    pod_groups = [one for name in names if isinstance(one := group_tree.get(name), PodGroup)]
    ends = [pod.finish_time for pod in pods.ended if pod.finish_time is not None]
    return WorkloadRow(
        ref,
        state,
        position,
        priority=group.spec.priority if group else any_pod.spec.priority if any_pod else 0,
        since=since,
        placed=len(pods.placed),
        pending=len(pods.pending),
        ended=len(pods.ended),
        needed=group.quorum if group else 1,
        reason=reason,
        message=message,
        nodes=tuple(sorted({pod.occupied_node for pod in pods.placed})),
        scheduler=any_pod.spec.scheduler_name if any_pod else "",
        started=sum(pod.status.phase == "Running" for pod in pods.placed),
        failed=sum(pod.status.phase == "Failed" for pod in pods.ended),
        owner=_owner_in(_metadata_of(group, any_pod)),
        preempted=preempted,
        preemptions=max((one.status.preemptions for one in pod_groups), default=0),
        created=creation_time(_metadata_of(group, any_pod)),
        started_at=min(map(parse_timestamp, starts), default=None),
        ended_at=max(ends, default=None) if state is WorkloadState.ENDED else None,
        user=_find_user(group, any_pod),
    )


def _metadata_of(group: Group | None, pod: Pod | None) -> ObjectMeta:
    """Return the metadata of a group, or else of the pod that has none."""
    found = group or pod
    if found is None:
        raise ValueError("a workload has a group or a pod")
    return found.metadata


def _find_user(group: Group | None, pod: Pod | None) -> str:
    """Return the user that the label of a group, or else of its pod, names."""
    labels = (pod.metadata.labels if pod else {}) | (group.metadata.labels if group else {})
    return labels.get(USER_LABEL, "")


def _waiting_reason(
    info: QueuedEntityInfo, pods: _EntityPods, group: Group | None
) -> tuple[str, str]:
    """Why a workload is not placed: a reason and a message."""
    if info.unready is not None:
        return NOT_READY, describe_unready(info.unready)
    condition = _find_scheduled_condition(group) if group else None
    if condition is None or condition.status == "True":
        # Members that are created after their group was placed have conditions of their own.
        conditions = (find_condition(pod.status.conditions, _POD_SCHEDULED) for pod in pods.pending)
        condition = next(
            (item for item in conditions if item is not None and item.status == "False"), None
        )
    if condition is None:
        return NOT_TRIED_YET, "no scheduler has attempted it yet"
    return condition.reason, condition.message


def _is_finished(group: Group | None) -> bool:
    return isinstance(group, PodGroup) and group.is_finished


def _find_scheduled_condition(group: Group | None) -> Condition | None:
    """The condition that says whether a group was placed."""
    if group is None:
        return None
    kind = (
        COMPOSITE_INITIALLY_SCHEDULED
        if isinstance(group, CompositePodGroup)
        else POD_GROUP_INITIALLY_SCHEDULED
    )
    return find_condition(group.status.conditions, kind)


def owner_of(obj: Group | Pod) -> str:
    """Return the controller of a group or pod, such as `Job/train`; "" for none."""
    return _owner_in(obj.metadata)


def _owner_in(metadata: ObjectMeta) -> str:
    controller = metadata.controller
    return f"{controller.kind}/{controller.name}" if controller else ""


def recorded_diagnosis(subject: Ref, cluster: ClusterObjects) -> Diagnosis:
    """Return why a pod or group is pending according to its conditions."""
    attempt = prepare_attempt(subject, cluster)
    if isinstance(attempt, NotAttempted):
        return Diagnosis(
            attempt.state, attempt.message, bound=attempt.bound, pending=attempt.pending
        )
    root = attempt.entity.ref
    (row,) = [one for one in list_workloads(cluster) if one.ref == root]
    messages = tuple(
        PodMessage(pod.metadata.key, pod.metadata.uid, found.reason, found.message)
        for pod in attempt.pods
        if not pod.occupied_node
        and (found := find_condition(pod.status.conditions, _POD_SCHEDULED))
        and found.status == "False"
    )
    # Kubernetes' sentence about the minimum says less than why nodes refuse a member.
    refusal = next((one.message for one in messages if one.message.startswith("0/")), "")
    is_group = subject.kind != POD_KIND and root == subject
    return Diagnosis(
        row.reason,
        row.message,
        bound=sum(bool(pod.occupied_node) for pod in attempt.pods),
        pending=sum(not pod.occupied_node for pod in attempt.pods),
        pods=messages,
        tree=root.key if root != subject else None,
        preempted=row.preempted,
        summary=f"too few members found a node: {refusal}" if is_group and refusal else "",
    )
