"""What a Job, JobSet or LeaderWorkerSet itself says about why it has no pods, or how it ended.

The diagnosis of the scheduler begins with pods. A Job that a quota refuses, whose Workload is
refused, or that has ended, has none that wait: its conditions and events say why.

    Job default/train has failed: BackoffLimitExceeded: Job has reached the specified backoff limit
      2 pods failed, exit code 42: train-0-x7f2k, train-1-9gqpl
      their output: kubectl logs train-0-x7f2k -n default
    Job default/train waits to retry: 1 pod failed: exit code 1; the Job creates a replacement
    Job default/train waits for a ResourceQuota: 4 pods are needed at once: exceeded quota: few, …
    Job default/train cannot create its Workload: Failed to create Workload for Job train: …
    JobSet default/train has failed: ReachedMaxRestarts: jobset failed due to reaching max number …
    JobSet default/train is managed by example.com/other (spec.managedBy), which creates its Jobs
    LeaderWorkerSet default/llm has no pods, because spec.replicas is 0
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from phalanx.api.batch import COMPLETE, FAILED, QUOTA_EXCEEDED, SCHEDULING_FALLBACK, SUSPENDED, Job
from phalanx.api.core import Pod
from phalanx.api.errors import Forbidden, NotFound
from phalanx.api.job_sets import COMPLETED, JOB_SET_CONTROLLER, JOB_SET_NAME, JobSet
from phalanx.api.kinds import EVENT, JOB, JOB_SET, LEADER_WORKER_SET, Kind
from phalanx.api.leader_worker_sets import LeaderWorkerSet
from phalanx.api.meta import Condition, Key, find_condition
from phalanx.api.scheduling import POD_GROUP_INITIALLY_SCHEDULED
from phalanx.api.wire import Object
from phalanx.cli.output import join_names, natural_key, pluralize
from phalanx.client.client import Client
from phalanx.scheduler.cluster.group_tree import Group
from phalanx.scheduler.diagnosis.diagnosis import RETRYING, describe_retry, will_retry


class JobFinding(NamedTuple):
    """A statement about a Job or a set: type of the condition or reason of the event, and text."""

    type: str
    reason: str
    text: str

    @property
    def data(self) -> dict[str, Any]:
        """The statement as data for JSON and YAML."""
        return {"type": self.type, "reason": self.reason, "message": self.text}


#: Conditions that explain why a Job has no pods that wait, and how a sentence about each begins.
_CONDITIONS = {
    COMPLETE: "has completed",
    FAILED: "has failed",
    SUSPENDED: "is suspended",
    QUOTA_EXCEEDED: "waits for a ResourceQuota",
    SCHEDULING_FALLBACK: "is not scheduled as a gang",
}
#: The same for JobSets and LeaderWorkerSets, final conditions first.
_SET_CONDITIONS = {
    COMPLETED: "has completed",
    FAILED: "has failed",
    SUSPENDED: "is suspended",
    SCHEDULING_FALLBACK: "is not scheduled as a gang",
}
_FINAL_CONDITIONS = (COMPLETE, FAILED)
#: Events that explain why a Job has no pods.
_EVENTS = {
    "FailedWorkloadCompilation": "cannot create its Workload",
    "FailedWorkloadCreate": "cannot create its Workload",
    "FailedPodGroupCreate": "cannot create its PodGroup",
    "FailedCreate": "cannot create its pods",
}


async def read_job_findings(
    client: Client, key: Key, *, has_pods: bool, pods: Iterable[Pod] = ()
) -> list[JobFinding]:
    """Read a Job, and its events if it has no live pods, and say what they explain.

    `pods` are all that were read: those of the Job that failed say whether it retries.
    """
    try:
        job = await client.get(JOB, key, Job)
    except (NotFound, Forbidden):
        return []
    events: Sequence[Object] = ()
    if not has_pods and not job.is_finished:
        try:
            events = (await client.list(EVENT, namespace=key.namespace)).items
        except Forbidden:
            events = ()
    failed = [] if has_pods else [pod for pod in pods if _has_failed(pod, JOB, key)]
    return find_job_findings(job, events, failed)


def find_job_findings(
    job: Job, events: Iterable[Object], failed: Sequence[Pod] = ()
) -> list[JobFinding]:
    """Say what the conditions and the events of a Job explain; the final condition alone.

    `failed` are its failed pods if it has no live ones.
    """
    name = f"Job {job.metadata.key}"
    findings = [
        JobFinding(
            kind,
            condition.reason,
            _sentence(name, text, condition.reason, message=condition.message),
        )
        for kind, text in _CONDITIONS.items()
        if (condition := job.true_condition(kind))
    ]
    if final := [finding for finding in findings if finding.type in _FINAL_CONDITIONS]:
        return final
    if will_retry(job, len(failed)):
        text = _sentence(name, "waits to retry", "", message=describe_retry(failed))
        findings.append(JobFinding(RETRYING, RETRYING, text))
    latest: dict[str, Object] = {}
    for event in sorted(events, key=lambda one: str(one.get("lastTimestamp") or "")):
        if event.get("involvedObject", {}).get("uid") == job.metadata.uid:
            latest[event.get("reason", "")] = event
    return findings + [
        JobFinding(
            reason, reason, _sentence(name, text, "", message=latest[reason].get("message", ""))
        )
        for reason, text in _EVENTS.items()
        if reason in latest and not findings
    ]


def describe_failed_pods(pods: Iterable[Pod], kind: Kind, key: Key) -> list[str]:
    """Say how the pods of a Job or JobSet failed, and how to read their output."""
    by_code: dict[int | None, list[str]] = {}
    for pod in sorted(pods, key=lambda one: natural_key(one.metadata.name)):
        if _has_failed(pod, kind, key):
            by_code.setdefault(pod.failed_exit_code, []).append(pod.metadata.name)
    lines = []
    for code, names in by_code.items():
        end = "" if code is None else f", exit code {code}"
        lines.append(f"  {pluralize(len(names), 'pod')} failed{end}: {join_names(names, 3)}")
    first = next(iter(by_code.values()), [])
    return [
        *lines,
        *(f"  their output: kubectl logs {name} -n {key.namespace}" for name in first[:1]),
    ]


def describe_unstarted(groups: Iterable[Group]) -> Iterator[str]:
    """Say of the gangs of a Job that has failed why they never got nodes."""
    for group in groups:
        condition = find_condition(group.status.conditions, POD_GROUP_INITIALLY_SCHEDULED)
        if condition is not None and condition.status == "False":
            yield f"  it never started: {condition.message}"
        elif condition is None:
            yield "  it never started: no scheduler has placed its pods"


def _has_failed(pod: Pod, kind: Kind, key: Key) -> bool:
    """Whether a pod belongs to a Job or JobSet and has failed."""
    owner, labels = pod.metadata.controller, pod.metadata.labels
    name = labels.get(JOB_SET_NAME) if kind is JOB_SET else owner.name if owner else ""
    return (pod.metadata.namespace, name) == key and pod.status.phase == "Failed"


async def read_set_findings(client: Client, kind: Kind, key: Key) -> list[JobFinding]:
    """Read a JobSet or LeaderWorkerSet and say why it has no pods, or how it ended."""
    try:
        if kind is JOB_SET:
            return find_job_set_findings(await client.get(JOB_SET, key, JobSet))
        return find_lws_findings(await client.get(LEADER_WORKER_SET, key, LeaderWorkerSet))
    except (NotFound, Forbidden):
        return []


def find_job_set_findings(job_set: JobSet) -> list[JobFinding]:
    """Say how a JobSet ended, that it is suspended, or that another controller manages it."""
    name, manager = f"JobSet {job_set.metadata.key}", job_set.spec.managed_by
    findings = _condition_findings(name, job_set.status.conditions, _SET_CONDITIONS)
    if job_set.end_condition:
        return findings[:1]
    if manager not in ("", JOB_SET_CONTROLLER):
        text = f"{name} is managed by {manager} (spec.managedBy), which creates its Jobs"
        findings.append(JobFinding("ManagedBy", manager, text))
    return findings


def find_lws_findings(lws: LeaderWorkerSet) -> list[JobFinding]:
    """Say that a LeaderWorkerSet has no replicas, or is not scheduled in gangs."""
    name = f"LeaderWorkerSet {lws.metadata.key}"
    findings = _condition_findings(name, lws.status.conditions, _SET_CONDITIONS)
    if lws.spec.replicas == 0:
        text = f"{name} has no pods, because spec.replicas is 0"
        findings.append(JobFinding("Replicas", "NoReplicas", text))
    return findings


def _condition_findings(
    name: str, conditions: tuple[Condition, ...], texts: Mapping[str, str]
) -> list[JobFinding]:
    return [
        JobFinding(kind, found.reason, _sentence(name, text, found.reason, message=found.message))
        for kind, text in texts.items()
        if (found := find_condition(conditions, kind)) and found.status == "True"
    ]


def _sentence(name: str, text: str, reason: str, *, message: str) -> str:
    shown = reason if reason not in ("", QUOTA_EXCEEDED) else ""
    return ": ".join(part for part in (f"{name} {text}", shown, message) if part)
