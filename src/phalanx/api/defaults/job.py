"""Defaults of Jobs and CronJobs, and the labels by which a new Job knows its pods.

The template of Jobs in a CronJob gets none of a Job's own defaults, as the Job made from it gets
them anyway.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from phalanx.api.defaults.pod import default_pod_spec
from phalanx.api.wire import Object

#: The labels that a Job gives its pods, each under an old and a new key.
NAME_LABELS = ("job-name", "batch.kubernetes.io/job-name")
UID_LABELS = ("controller-uid", "batch.kubernetes.io/controller-uid")
#: The one that it selects them by.
SELECTED_LABEL = UID_LABELS[1]

_JOB: Mapping[str, Any] = {
    "parallelism": 1,
    "completionMode": "NonIndexed",
    "suspend": False,
    "manualSelector": False,
}
_CRON_JOB: Mapping[str, Any] = {
    "concurrencyPolicy": "Allow",
    "suspend": False,
    "successfulJobsHistoryLimit": 3,
    "failedJobsHistoryLimit": 1,
}
_BACKOFF = 6
#: Where each index has a limit of its own, there is none for all of them.
_NO_BACKOFF = 2**31 - 1


def default_job(job: Object) -> None:
    """Defaults of a Job."""
    default_job_spec(job["spec"])
    _label_like_template(job)


def default_job_spec(spec: Object) -> None:
    """Defaults of the spec of a Job."""
    if "completions" not in spec and "parallelism" not in spec:
        spec["completions"] = 1
    spec.setdefault("backoffLimit", _NO_BACKOFF if "backoffLimitPerIndex" in spec else _BACKOFF)
    replaced = "Failed" if "podFailurePolicy" in spec else "TerminatingOrFailed"
    spec.setdefault("podReplacementPolicy", replaced)
    for key, default in _JOB.items():
        spec.setdefault(key, default)
    _default_templates(spec)


def default_cron_job(cron_job: Object) -> None:
    """Defaults of a CronJob."""
    spec = cron_job["spec"]
    for key, default in _CRON_JOB.items():
        spec.setdefault(key, default)
    _default_templates(spec["jobTemplate"]["spec"])


def default_pod_template(pod_template: Object) -> None:
    """Defaults of a PodTemplate."""
    default_pod_spec(pod_template["template"]["spec"])


def begin_job(job: Object, now: str) -> None:
    """A new Job has done nothing yet, and labels its pods unless it selects them by hand."""
    job["status"] = {}
    if not job["spec"].get("manualSelector"):
        _select_own_pods(job)
    _label_like_template(job)


def _default_templates(spec: Object) -> None:
    """What is the same in a Job and in a template of Jobs."""
    default_pod_spec(spec["template"]["spec"])
    for rule in spec.get("podFailurePolicy", {}).get("rules", ()):
        for pattern in rule.get("onPodConditions", ()):
            pattern["status"] = pattern.get("status") or "True"


def _label_like_template(job: Object) -> None:
    """A Job without labels has those of its pods.

    It is the very same map, so that the labels which a new Job adds for its pods are its own too.
    """
    labels = job["spec"]["template"]["metadata"].get("labels")
    if labels and not job["metadata"].get("labels"):
        job["metadata"]["labels"] = labels


def _select_own_pods(job: Object) -> None:
    """Labels that somebody else has set are left alone here; the rules refuse them."""
    meta, spec = job["metadata"], job["spec"]
    labels = spec["template"]["metadata"].setdefault("labels", {})
    for key in NAME_LABELS:
        labels.setdefault(key, meta.get("name", ""))
    for key in UID_LABELS:
        labels.setdefault(key, meta.get("uid", ""))
    selected = spec.setdefault("selector", {}).setdefault("matchLabels", {})
    selected.setdefault(SELECTED_LABEL, meta.get("uid", ""))
