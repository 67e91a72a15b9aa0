"""What a Job itself says about why it has no pods, or how it ended, for `phalanx why job/NAME`.

The diagnosis of the scheduler begins with pods. A Job that a quota refuses, whose Workload is
refused, or that has ended, has none that wait: its conditions and events say why.

    Job default/train has failed: BackoffLimitExceeded: Job has reached the specified backoff limit
    Job default/train waits for a ResourceQuota: 4 pods are needed at once: exceeded quota: few, …
    Job default/train cannot create its Workload: Failed to create Workload for Job train: …
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from phalanx.api.batch import COMPLETE, FAILED, QUOTA_EXCEEDED, SCHEDULING_FALLBACK, SUSPENDED, Job
from phalanx.api.errors import Forbidden, NotFound
from phalanx.api.kinds import EVENT, JOB
from phalanx.api.meta import Key
from phalanx.api.wire import Object
from phalanx.client.client import Client


class JobFinding(NamedTuple):
    """One statement about a Job: the type of its condition or reason of its event, and a text."""

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
_FINAL_CONDITIONS = (COMPLETE, FAILED)
#: Events that explain why a Job has no pods.
_EVENTS = {
    "FailedWorkloadCompilation": "cannot create its Workload",
    "FailedWorkloadCreate": "cannot create its Workload",
    "FailedPodGroupCreate": "cannot create its PodGroup",
    "FailedCreate": "cannot create its pods",
}


async def read_job_findings(client: Client, key: Key, *, has_pods: bool) -> list[JobFinding]:
    """Read a Job, and its events if it has no pods, and say what they explain."""
    try:
        job = await client.get(JOB, key, Job)
    except NotFound:
        return []
    events: Sequence[Object] = ()
    if not has_pods and not job.is_finished:
        try:
            events = (await client.list(EVENT, namespace=key.namespace)).items
        except Forbidden:
            events = ()
    return find_job_findings(job, events)


def find_job_findings(job: Job, events: Iterable[Object]) -> list[JobFinding]:
    """Say what the conditions and the events of a Job explain; the final condition alone."""
    name = f"Job {job.metadata.key}"
    findings = [
        JobFinding(
            kind, condition.reason, _sentence(name, text, condition.reason, condition.message)
        )
        for kind, text in _CONDITIONS.items()
        if (condition := job.true_condition(kind))
    ]
    if final := [finding for finding in findings if finding.type in _FINAL_CONDITIONS]:
        return final
    latest: dict[str, Object] = {}
    for event in sorted(events, key=lambda one: str(one.get("lastTimestamp") or "")):
        if event.get("involvedObject", {}).get("uid") == job.metadata.uid:
            latest[event.get("reason", "")] = event
    return findings + [
        JobFinding(reason, reason, _sentence(name, text, "", latest[reason].get("message", "")))
        for reason, text in _EVENTS.items()
        if reason in latest and not findings
    ]


def _sentence(name: str, text: str, reason: str, message: str) -> str:
    shown = reason if reason not in ("", QUOTA_EXCEEDED) else ""
    return ": ".join(part for part in (f"{name} {text}", shown, message) if part)
