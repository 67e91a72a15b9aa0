"""Explains why a pod or group is pending: the decision, its messages, the capacity and the cures.

    ClusterObjects ─▶ load_state ─▶ prepare_attempt ─▶ decide ─▶ Diagnosis
                                    NotAttempted                 messages, evidence, cures

`prepare_attempt` builds the entity exactly as the queue would pass it to the next cycle, whatever
is ahead of it in the queue. `diagnose` runs the cycle once and collects:

    messages   the texts that the scheduler would write into conditions
    evidence   how many members fit on each sort of node or in each topology domain, and what
               limits them (`capacity_evidence.py`)
    cures      the smallest changes that let the entity be placed (`cures.py`)

Nothing is placed, evicted or written.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from phalanx.api.batch import FAILURE_TARGET, Job
from phalanx.api.core import Pod
from phalanx.api.kinds import JOB
from phalanx.api.meta import POD_KIND, Key, Ref, find_condition, pod_group_ref, pod_ref
from phalanx.api.scheduling import FINISHED_ANNOTATION, PREEMPTED, PodGroup
from phalanx.scheduler.cluster.group_tree import Group, GroupTreeProblem, GroupTrees, group_ref
from phalanx.scheduler.cycle import decide
from phalanx.scheduler.decision import Decision, Impossible, Placed, Waiting
from phalanx.scheduler.diagnosis.capacity_evidence import (
    CapacityEvidence,
    collect_evidence,
    describe_volume_claims,
    is_being_provisioned,
    summarize_refusal,
)
from phalanx.scheduler.diagnosis.cures import VerifiedCures, find_cures
from phalanx.scheduler.diagnosis.expected_starts import restore_written_reservations
from phalanx.scheduler.diagnosis.experiment import Experiment, KnownCluster
from phalanx.scheduler.entity import Entity
from phalanx.scheduler.explain import (
    Cure,
    GroupMessage,
    PodMessage,
    describe_unready,
    explain,
    rank_cures,
)
from phalanx.scheduler.policy import DEFAULT_PROFILES, Profiles, SchedulerPolicy
from phalanx.scheduler.queue.scheduler_state import ClusterObjects, load_state
from phalanx.scheduler.reservation.reservation import ReservationHolds
from phalanx.scheduler.search.solver import SolverFunction, no_solver

#: States of a Diagnosis, in addition to the reasons of a decision.
PLACED = "Placed"
FITS = "Fits"
PROVISIONING = "Provisioning"
NOT_READY = "NotReady"
EMPTY = "Empty"
FINISHED = "Finished"
FAILED = "Failed"
RETRYING = "Retrying"


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Why a pod or group is pending, and what would let it be placed."""

    #: PLACED, FITS, PROVISIONING, NOT_READY, EMPTY, FINISHED, FAILED, RETRYING, or a reason of the
    #: decision
    state: str
    #: What the scheduler would write into conditions.
    message: str
    #: How many of its pods have a node, and how many wait for one.
    bound: int
    pending: int
    pods: tuple[PodMessage, ...] = ()
    cures: tuple[Cure, ...] = ()
    #: The CompositePodGroup at the root, if the subject is decided as a part of it.
    tree: Key | None = None
    #: The message for each group of that tree.
    groups: tuple[GroupMessage, ...] = ()
    evidence: CapacityEvidence | None = None
    #: Which entity has preempted it, and when; "" if none did since it was last placed.
    preempted: str = ""
    #: Which nodes its volume claims allow, or what they wait for, a sentence each.
    claims: tuple[str, ...] = ()
    #: How many decisions were made to find cures, and whether the limit ended the search.
    decisions: int = 0
    is_cut_short: bool = False
    #: How many members of a group fit and what the nodes lack; "" if the message says enough.
    summary: str = ""


def describe_preemption(groups: Iterable[Group]) -> str:
    """Say which entity has preempted the first of some groups that wait for that, and when."""
    for group in groups:
        condition = find_condition(group.status.conditions, PREEMPTED)
        if condition is not None and condition.status == "True":
            text = condition.message[:1].lower() + condition.message[1:]
            return f"{text} at {condition.last_transition_time}"
    return ""


@dataclass(frozen=True, slots=True)
class NotAttempted:
    """No cycle runs for the subject: it is placed, has no pods, or is not ready."""

    #: PLACED, EMPTY, FINISHED, FAILED, RETRYING or NOT_READY.
    state: str
    message: str
    bound: int
    pending: int


class Attempt(NamedTuple):
    """The input of the next scheduling cycle of a subject."""

    subject: Ref
    #: The subject itself, or the tree of groups that it is scheduled with.
    entity: Entity
    known: KnownCluster
    policy: SchedulerPolicy
    solver: SolverFunction
    #: The live pods of the subject.
    pods: tuple[Pod, ...]
    #: What reservations keep from the entity.
    holds: ReservationHolds | None = None

    def decide(self) -> Decision:
        """Run the scheduling cycle."""
        snapshot = self.known.cache.snapshot()
        return decide(self.entity, snapshot, self.policy, solver=self.solver, holds=self.holds)


def prepare_attempt(
    subject: Ref,
    cluster: ClusterObjects,
    profiles: Profiles = DEFAULT_PROFILES,
    *,
    solver: SolverFunction = no_solver,
    now: float = 0.0,
) -> Attempt | NotAttempted:
    """Build the input of the next cycle of a pod or group, or say why no cycle would run.

    A group of a tree is scheduled with the whole tree.
    """
    state = load_state(cluster, profiles)
    group_trees = state.cache.snapshot().group_trees
    pods = tuple(pod for pod in cluster.pods if _belongs_to(pod, subject, group_trees))
    pending = sum(not pod.occupied_node for pod in pods)
    # Terminating members of an entity that waits do not count towards its quorum.
    bound = sum(
        bool(pod.occupied_node and not (pending and pod.metadata.deletion_timestamp))
        for pod in pods
    )
    group = group_trees.get(subject) if subject.kind != POD_KIND else None
    if isinstance(group, PodGroup) and group.is_finished:
        end = group.metadata.annotations[FINISHED_ANNOTATION]
        outcome = FAILED if end.startswith(FAILED) else FINISHED
        return NotAttempted(outcome, f"its Job has ended: {end}", bound=bound, pending=0)
    root = subject if subject.kind == POD_KIND else group_trees.root(subject)
    if isinstance(root, GroupTreeProblem):
        return NotAttempted(NOT_READY, root.message, bound=bound, pending=pending)
    queued = next((info for info in state.queue.list_entities() if info.ref == root), None)
    if queued is None or not pending:
        if bound:
            return NotAttempted(PLACED, "every member has a node", bound=bound, pending=0)
        if ended := [
            pod for pod in cluster.pods if _belongs_to(pod, subject, group_trees, is_ended=True)
        ]:
            job = None if group is None else find_job_of(group, cluster.jobs)
            return _describe_ended(subject, ended, job)
        return NotAttempted(EMPTY, "no pod waits for a node", bound=0, pending=0)
    if queued.unready is not None:
        message = describe_unready(queued.unready)
        return NotAttempted(NOT_READY, message, bound=bound, pending=pending)
    restore_written_reservations(state, cluster, now)
    while (entity := state.pop(now)) is not None and entity.ref != root:
        pass
    if entity is None:
        raise LookupError(f"{root} is listed as ready, but the queue never returns it")
    known = KnownCluster(
        state.cache,
        {node.metadata.name: node for node in cluster.nodes},
        {pod.metadata.key: pod for pod in cluster.pods if not pod.is_terminal},
    )
    holds = state.reservations.holds_for(entity, state.cache.snapshot(), now)
    policy = state.profiles.policy(entity)
    return Attempt(subject, entity, known, policy=policy, solver=solver, pods=pods, holds=holds)


def find_job_of(group: Group, jobs: Iterable[Job]) -> Job | None:
    """Return the Job that owns a group; None if another object does, or if it is not known."""
    owner = group.metadata.controller
    if owner is None or owner.kind != JOB.name:
        return None
    key = Key(group.metadata.namespace, owner.name)
    return next((job for job in jobs if job.metadata.key == key), None)


def will_retry(job: Job, failed: int, succeeded: int = 0) -> bool:
    """Whether a Job with this many failed and succeeded pods creates others for the failed.

    It does until it has the condition Failed, which the Job controller announces (FailureTarget)
    when the back-off limit is exceeded. That is foreseen, because the controller may be late.
    """
    is_over = job.is_finished or job.true_condition(FAILURE_TARGET) is not None
    is_stopped = job.spec.suspend or not job.spec.parallelism or job.metadata.deletion_timestamp
    # A Job without completions is done with its first success.
    needed = 1 if job.spec.completions is None else job.spec.completions
    is_done = max(succeeded, job.status.succeeded) >= needed
    if not failed or is_over or is_stopped or is_done:
        return False
    return max(failed, job.status.failed) <= job.spec.backoff_limit


def _describe_ended(subject: Ref, pods: Sequence[Pod], job: Job | None) -> NotAttempted:
    """Say how the pods of a subject ended, none of which is left, and whether its Job retries."""
    failed = [pod for pod in pods if pod.status.phase == "Failed"]
    state = FAILED if failed else FINISHED
    if subject.kind == POD_KIND:
        message = _describe_failure(pods[0]) or f"its phase is {pods[0].status.phase}"
    elif job is not None and will_retry(job, len(failed), len(pods) - len(failed)):
        state, message = RETRYING, describe_retry(failed)
    elif failed:
        reason = next(filter(None, map(_describe_failure, failed)), "")
        message = f"{len(failed)} of {len(pods)} members failed" + (f": {reason}" if reason else "")
    else:
        message = f"{len(pods)} of {len(pods)} members succeeded"
    return NotAttempted(state, message, bound=0, pending=0)


def describe_retry(failed: Sequence[Pod]) -> str:
    """Say which pods a Job replaces: `1 pod failed: exit code 1; the Job creates a replacement`."""
    reason = next(filter(None, map(_describe_failure, failed)), "")
    is_one, end = len(failed) == 1, f": {reason}" if reason else ""
    count, noun = ("1 pod", "a replacement") if is_one else (f"{len(failed)} pods", "replacements")
    return f"{count} failed{end}; the Job creates {noun}"


def _describe_failure(pod: Pod) -> str:
    """Return what the kubelet says about a failed pod, or the exit code; "" for neither."""
    status, code = pod.status, pod.failed_exit_code
    text = ": ".join(part for part in (status.reason, status.message) if part)
    return text or (f"exit code {code}" if code is not None else "")


def _belongs_to(pod: Pod, subject: Ref, group_trees: GroupTrees, *, is_ended: bool = False) -> bool:
    """Whether a live pod, or one that has ended, is the subject or a member of it."""
    is_leaving = bool(pod.metadata.deletion_timestamp) and not pod.occupied_node
    if pod.is_terminal != is_ended or (is_leaving and not is_ended):
        return False
    if subject.kind == POD_KIND or pod.group is None:
        return subject == pod_ref(pod.metadata.key)
    return _is_within(pod_group_ref(pod.group), subject, group_trees)


def _is_within(group: Ref, subject: Ref, group_trees: GroupTrees) -> bool:
    """Whether a group is the subject, or below it."""
    return group == subject or subject in map(group_ref, group_trees.ancestry(group))


def _describe_preemption_of(subject: Ref, cluster: ClusterObjects) -> str:
    members = GroupTrees()
    for group in cluster.groups:
        members.update(group_ref(group), group)
    return describe_preemption(
        group for group in cluster.groups if _is_within(group_ref(group), subject, members)
    )


def summarize_pending(
    subject: Ref,
    cluster: ClusterObjects,
    profiles: Profiles = DEFAULT_PROFILES,
    *,
    now: float = 0.0,
) -> str:
    """Return the sentence with which `diagnose` begins about a group; "" if it fits or is placed.

    Takes one decision: cures are not looked for.
    """
    attempt = prepare_attempt(subject, cluster, profiles, now=now)
    if isinstance(attempt, NotAttempted) or subject.kind == POD_KIND:
        return ""
    decision = attempt.decide()
    is_held = isinstance(decision, Waiting) and bool(decision.held_by)
    if isinstance(decision, Placed | Impossible) or is_held:
        return ""
    evidence = collect_evidence(attempt.entity, attempt.known.cache.snapshot(), attempt.policy)
    bound = sum(bool(pod.occupied_node) for pod in attempt.pods)
    return summarize_refusal(decision, evidence, bound=bound)


def diagnose(
    subject: Ref,
    cluster: ClusterObjects,
    profiles: Profiles = DEFAULT_PROFILES,
    *,
    solver: SolverFunction = no_solver,
    now: float = 0.0,
) -> Diagnosis:
    """Explain why a pod, a group or a tree of groups has no node, and what would give it one."""
    attempt = prepare_attempt(subject, cluster, profiles, solver=solver, now=now)
    preempted = _describe_preemption_of(subject, cluster)
    if isinstance(attempt, NotAttempted):
        found = Diagnosis(attempt.state, attempt.message, attempt.bound, attempt.pending)
        return replace(found, preempted=preempted if attempt.pending else "")
    entity, decision = attempt.entity, attempt.decide()
    explanation = explain(decision)
    pending = {pod.metadata.key for pod in attempt.pods if not pod.occupied_node}
    state, message = explanation.reason, explanation.message
    summary, evidence, cures = "", None, VerifiedCures()
    bound = len(attempt.pods) - len(pending)
    tree = entity.key if entity.is_composite and entity.ref != subject else None
    waiting_pods = [pod for pod in attempt.pods if not pod.occupied_node]
    volumes = attempt.known.cache.snapshot().volumes
    claims = describe_volume_claims(waiting_pods, volumes, now)
    if isinstance(decision, Placed) and is_being_provisioned(waiting_pods, volumes):
        state, message = PROVISIONING, "; ".join(one for one in claims if "waiting for" in one)
    elif isinstance(decision, Placed):
        count = len(decision.bindings)
        state = FITS
        message = f"{count} of {len(entity.members)} pending members would be placed now"
    else:
        messages = [item.message for item in explanation.groups if item.ref == subject]
        message = messages[0] if messages else message
        # An entity that a reservation holds lacks no capacity.
        is_held = isinstance(decision, Waiting) and bool(decision.held_by)
        if not isinstance(decision, Impossible) and not is_held:
            evidence = collect_evidence(entity, attempt.known.cache.snapshot(), attempt.policy)
            if subject.kind != POD_KIND and not tree:
                summary = summarize_refusal(decision, evidence, bound=bound)
        if isinstance(decision, Waiting) and not is_held:
            cures = find_cures(
                Experiment(entity, decision, attempt.known, policy=attempt.policy, solver=solver)
            )
    return Diagnosis(
        state,
        message,
        bound=bound,
        pending=len(pending),
        pods=tuple(item for item in explanation.pods if item.pod in pending),
        cures=tuple(rank_cures(decision, cures.found)),
        tree=tree,
        groups=explanation.groups,
        evidence=evidence,
        preempted=preempted,
        claims=claims,
        decisions=cures.decisions,
        is_cut_short=cures.is_cut_short,
        summary=summary,
    )
