"""One sync of a JobSet as a pure function: `plan_sync(state) -> JobSetPlan`.

    ended        delete the Jobs that still run; after the TTL delete the JobSet
    Jobs failed  apply the failure policy: the status is all that changes, the next sync acts on it
    succeeded    write the condition Completed
    otherwise    groups, Service and claims, Jobs, suspension, in this order; then the status

Jobs are created only once their groups exist: a pod cannot join a group later. Whatever a plan does
can be done again: names are fixed, deletions and patches are conditional on a uid, and the status
is written to the version of the JobSet that was read.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field

import msgspec
from msgspec.structs import replace

from phalanx.api.batch import SCHEDULING_FALLBACK, Job
from phalanx.api.core import Service
from phalanx.api.job_sets import (
    COMPLETED,
    FAILED,
    STARTUP_COMPLETED,
    STARTUP_IN_PROGRESS,
    SUSPENDED,
    JobSet,
    JobSetStatus,
    ReplicatedJobStatus,
)
from phalanx.api.kinds import Kind
from phalanx.api.meta import (
    Condition,
    OwnerReference,
    find_condition,
    parse_timestamp,
    timestamp,
)
from phalanx.api.wire import Object
from phalanx.builder.discovery import Fallback
from phalanx.builder.ensure_plan import ObjectOperation, ObservedObjects
from phalanx.builder.ownership import SCHEDULING_PARENTS
from phalanx.controllers.job_sets.child_jobs import (
    ChildJobs,
    classify_jobs,
    count_jobs,
    role_name,
)
from phalanx.controllers.job_sets.job_objects import (
    build_claim,
    build_job,
    build_service,
    claim_name,
    claim_templates,
    job_name,
    merge_for_resume,
)
from phalanx.controllers.job_sets.policies import (
    JobSetFailed,
    apply_failure_policy,
    has_succeeded,
    startable_roles,
)
from phalanx.controllers.job_sets.scheduling import (
    JobSetGroups,
    JobSetTree,
    plan_ended_groups,
    plan_groups,
)

NORMAL, WARNING = "Normal", "Warning"


@dataclass(frozen=True, slots=True)
class JobSetEvent:
    """An event about a JobSet."""

    reason: str
    message: str
    type: str = NORMAL


@dataclass(frozen=True, slots=True)
class JobSetState:
    """A JobSet and what belongs to it, as the caches show it.

    `claims` are the names of existing volume claims in its namespace, as far as it uses them.
    """

    job_set: JobSet
    jobs: Sequence[Job]
    observed: ObservedObjects
    now: float
    service: Service | None = None
    claims: Collection[str] = ()
    #: A kind of scheduling objects that the API server does not serve.
    missing_kind: Kind | None = None
    #: The controllers above its own, nearest first, if a link may name their Workload.
    ancestors: Sequence[OwnerReference] = ()
    #: The kinds whose controllers manage the scheduling of their children.
    parents: Collection[tuple[str, str]] = SCHEDULING_PARENTS
    #: The tree of the JobSet, if it was built before.
    tree: JobSetTree | None = None


@dataclass(slots=True)
class JobSetPlan:
    """The requests of a sync, in the order of the fields; then the status, then the events."""

    status: JobSetStatus
    jobs_to_delete: list[Job] = field(default_factory=list)
    group_operations: list[ObjectOperation] = field(default_factory=list)
    #: The Service and the volume claims.
    objects_to_create: list[Object] = field(default_factory=list)
    jobs_to_create: list[Object] = field(default_factory=list)
    #: Jobs to suspend or resume, each with its patch.
    jobs_to_patch: list[tuple[Job, Object]] = field(default_factory=list)
    events: list[JobSetEvent] = field(default_factory=list)
    deletes_job_set: bool = False
    requeue_after: float | None = None


def plan_sync(state: JobSetState) -> JobSetPlan:
    """Plan one sync of a JobSet."""
    job_set = state.job_set
    jobs = classify_jobs(job_set, state.jobs)
    counted = replace(job_set.status, replicated_jobs_status=count_jobs(job_set, jobs))
    plan = JobSetPlan(status=counted)
    if job_set.metadata.deletion_timestamp:
        plan.status = job_set.status
        return plan
    if job_set.end_condition is not None:
        _clean_up(plan, state, jobs)
        return plan
    plan.jobs_to_delete = [job for job in jobs.previous if not job.metadata.deletion_timestamp]
    if jobs.failed:
        _handle_failure(plan, replace(job_set, status=counted), jobs, now=state.now)
    elif has_succeeded(job_set, jobs):
        text = "jobset completed successfully"
        succeeded = Condition(COMPLETED, "True", "AllJobsCompleted", text)
        _end(plan, succeeded, state.now, event_type=NORMAL)
    else:
        _run(plan, state, jobs)
    if plan.status == counted and _has_no_counts(job_set, counted):
        plan.status = job_set.status
    return plan


def _has_no_counts(job_set: JobSet, counted: JobSetStatus) -> bool:
    """Whether there is nothing to report yet: the JobSet is new, and none of its Jobs is active."""
    zeros = tuple(ReplicatedJobStatus(role.name) for role in job_set.spec.replicated_jobs)
    return not job_set.status.replicated_jobs_status and counted.replicated_jobs_status == zeros


def _clean_up(plan: JobSetPlan, state: JobSetState, jobs: ChildJobs) -> None:
    """Delete the Jobs that still run, and the JobSet once its TTL has expired."""
    leftover = (*jobs.active, *jobs.previous)
    plan.jobs_to_delete = [job for job in leftover if not job.metadata.deletion_timestamp]
    plan.group_operations += plan_ended_groups(state.job_set, state.observed)
    ttl, end = state.job_set.spec.ttl_seconds_after_finished, state.job_set.end_condition
    if ttl is None or end is None or not end.last_transition_time:
        return
    remaining = parse_timestamp(end.last_transition_time) + ttl - state.now
    plan.deletes_job_set = remaining <= 0
    plan.requeue_after = remaining if remaining > 0 else None


def _handle_failure(plan: JobSetPlan, job_set: JobSet, jobs: ChildJobs, *, now: float) -> None:
    outcome = apply_failure_policy(job_set, jobs.failed)
    if isinstance(outcome, JobSetFailed):
        failed = Condition(FAILED, "True", outcome.reason, outcome.message)
        _end(plan, failed, now, event_type=WARNING)
        return
    plan.status = outcome.status
    plan.events.append(JobSetEvent(outcome.reason, outcome.message, WARNING))


def _end(plan: JobSetPlan, condition: Condition, now: float, *, event_type: str) -> None:
    _set_condition(plan, condition, now, event_type=event_type)
    plan.status = replace(plan.status, terminal_state=condition.type)


def _run(plan: JobSetPlan, state: JobSetState, jobs: ChildJobs) -> None:
    """Plan groups, Service, claims and Jobs, then their suspension."""
    if (missing := state.missing_kind) is not None:
        text = f"The API server does not serve {missing.api_version} {missing.name}"
        groups = JobSetGroups(fallback=Fallback("KindNotServed", text))
    else:
        groups = plan_groups(
            state.job_set,
            jobs,
            state.observed,
            tree=state.tree or JobSetTree.build(state.job_set),
            ancestors=state.ancestors,
            parents=state.parents,
        )
    plan.group_operations += groups.operations
    _set_fallback(plan, groups.fallback, state.now)
    if not groups.is_ready:
        return
    _plan_shared_objects(plan, state)
    job_set, is_suspended = state.job_set, state.job_set.spec.suspend
    started, is_in_progress = startable_roles(job_set, plan.status.replicated_jobs_status)
    if not _waits_for_previous(job_set, jobs):
        present = {job.metadata.name for job in state.jobs}
        # A suspended JobSet has its Jobs, except for those that depend on others.
        starts_all = is_suspended and job_set.spec.starts_in_order
        for role in job_set.spec.replicated_jobs if starts_all else started:
            for index in range(role.replicas):
                if job_name(job_set, role, index) not in present:
                    plan.jobs_to_create.append(
                        build_job(
                            job_set,
                            role,
                            index,
                            group=groups.name_for(role.name, index),
                            link=groups.links.get(role.name),
                        )
                    )
    plan.jobs_to_patch = list(_resize_jobs(job_set, jobs))
    if is_suspended:
        plan.jobs_to_patch += [
            (job, {"spec": {"suspend": True}}) for job in jobs.active if not job.spec.suspend
        ]
        text = "jobset is suspended"
        condition = Condition(SUSPENDED, "True", "SuspendedJobs", text)
        _set_condition(plan, condition, state.now)
        return
    roles = {role.name: role for role in started}
    for job in jobs.active:
        if job.spec.suspend and role_name(job) in roles:
            change = merge_for_resume(job.spec.template, roles[role_name(job)])
            plan.jobs_to_patch.append((job, change))
    _report_start(plan, state, is_in_progress=is_in_progress)


def _resize_jobs(job_set: JobSet, jobs: ChildJobs) -> Iterator[tuple[Job, Object]]:
    """Give Indexed Jobs the present number of pods of their template.

    Their gang has its new size before: the groups are planned first.
    """
    roles = {role.name: role.template.get("spec") or {} for role in job_set.spec.replicated_jobs}
    for job in jobs.active:
        spec, have = roles.get(role_name(job), {}), job.spec
        wanted = {name: spec[name] for name in ("parallelism", "completions") if name in spec}
        present = {"parallelism": have.parallelism, "completions": have.completions}
        if have.completion_mode == "Indexed" and wanted.items() - present.items():
            yield job, {"spec": wanted}


def _report_start(plan: JobSetPlan, state: JobSetState, *, is_in_progress: bool) -> None:
    if find_condition(plan.status.conditions, SUSPENDED):
        condition = Condition(SUSPENDED, "False", "ResumeJobs", "jobset is resumed")
        _set_condition(plan, condition, state.now)
    if not state.job_set.spec.starts_in_order:
        return
    if is_in_progress:
        text = "in order startup policy is in progress"
        condition = Condition(STARTUP_IN_PROGRESS, "True", f"InOrder{STARTUP_IN_PROGRESS}", text)
    else:
        text = "in order startup policy has completed"
        condition = Condition(STARTUP_COMPLETED, "True", f"InOrder{STARTUP_COMPLETED}", text)
    _set_condition(plan, condition, state.now, excludes=(STARTUP_IN_PROGRESS, STARTUP_COMPLETED))


def _waits_for_previous(job_set: JobSet, jobs: ChildJobs) -> bool:
    """Whether new Jobs wait until all Jobs of the attempt before are gone."""
    policy = job_set.spec.failure_policy
    is_blocking = policy is not None and policy.restart_strategy == "BlockingRecreate"
    return is_blocking and bool(jobs.previous)


def _plan_shared_objects(plan: JobSetPlan, state: JobSetState) -> None:
    job_set = state.job_set
    if job_set.spec.network.enable_dns_hostnames and state.service is None:
        plan.objects_to_create.append(build_service(job_set))
    plan.objects_to_create += [
        build_claim(job_set, template, retention)
        for template, retention in claim_templates(job_set)
        if claim_name(job_set, template) not in state.claims
    ]


def _set_fallback(plan: JobSetPlan, fallback: Fallback | None, now: float) -> None:
    """Say why pods are scheduled without a group; or no longer."""
    if fallback is not None:
        text = f"{fallback.message}; its pods are scheduled one by one"
        condition = Condition(SCHEDULING_FALLBACK, "True", fallback.reason, text)
        _set_condition(plan, condition, now, event_type=WARNING)
        return
    others = [one for one in plan.status.conditions if one.type != SCHEDULING_FALLBACK]
    plan.status = replace(plan.status, conditions=tuple(others))


def _set_condition(
    plan: JobSetPlan,
    new: Condition,
    now: float,
    *,
    event_type: str = NORMAL,
    excludes: Collection[str] = (),
) -> None:
    """Set a condition, and record an event if it has changed; those it excludes become False."""
    before = find_condition(plan.status.conditions, new.type)
    stamp = timestamp(now)
    if before and before.status == new.status:
        stamp = before.last_transition_time or stamp
    stamped = replace(new, last_transition_time=stamp)
    conditions = []
    for one in plan.status.conditions:
        if one.type == new.type:
            conditions.append(stamped)
        elif one.type in excludes and one.status == "True":
            conditions.append(replace(one, status="False", last_transition_time=timestamp(now)))
        else:
            conditions.append(one)
    if before is None:
        conditions.append(stamped)
    plan.status = replace(plan.status, conditions=tuple(conditions))
    if before is None or _identity(before) != _identity(new):
        plan.events.append(JobSetEvent(new.reason, new.message, event_type))


def _identity(condition: Condition) -> tuple[str, str, str]:
    return condition.status, condition.reason, condition.message


#: Lists of a replicated Job's status that are left out while they are empty.
_RESTART_COUNTS = ("jobRestarts", "jobRestartsCountTowardsMax")


def encode_status(status: JobSetStatus) -> Object:
    """Encode a status as it is stored."""
    conditions = [msgspec.to_builtins(one) for one in status.conditions]
    counts: list[Object] = [msgspec.to_builtins(one) for one in status.replicated_jobs_status]
    encoded: Object = {
        "conditions": [
            {name: value for name, value in one.items() if name != "observedGeneration" or value}
            for one in conditions
        ],
        "restarts": status.restarts,
        "restartsCountTowardsMax": status.restarts_count_towards_max,
        "replicatedJobsStatus": [
            {
                name: list(value) if name in _RESTART_COUNTS else value
                for name, value in one.items()
                if value or name not in _RESTART_COUNTS
            }
            for one in counts
        ],
    }
    if status.terminal_state:
        encoded["terminalState"] = status.terminal_state
    return encoded
