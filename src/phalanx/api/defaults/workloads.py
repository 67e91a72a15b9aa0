"""Defaults of Jobs and CronJobs, and the labels by which a new Job knows its pods.

The template of Jobs in a CronJob gets none of a Job's own defaults, as the Job made from it gets
them anyway.

Defaults of JobSets. The Jobs that one is made of get theirs where they stand.

Defaults of LeaderWorkerSets, beyond those that their schema tells.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

from phalanx.api.defaults.pod import default_pod_spec
from phalanx.api.wire import Object

#: The labels that a Job gives its pods, each under an old and a new key.
NAME_LABELS = ("job-name", "batch.kubernetes.io/job-name")
UID_LABELS = ("controller-uid", "batch.kubernetes.io/controller-uid")
#: The one that it selects them by.
SELECTOR_LABEL = UID_LABELS[1]

_JOB_DEFAULTS: Mapping[str, Any] = {
    "parallelism": 1,
    "completionMode": "NonIndexed",
    "suspend": False,
    "manualSelector": False,
}
_CRON_JOB_DEFAULTS: Mapping[str, Any] = {
    "concurrencyPolicy": "Allow",
    "suspend": False,
    "successfulJobsHistoryLimit": 3,
    "failedJobsHistoryLimit": 1,
}
_BACKOFF_LIMIT = 6
#: Where each index has a limit of its own, there is none for all of them.
_UNLIMITED_BACKOFF = 2**31 - 1


def default_job(job: Object) -> None:
    """Defaults of a Job."""
    default_job_spec(job["spec"])
    _copy_template_labels(job)


def default_job_spec(spec: Object) -> None:
    """Defaults of the spec of a Job."""
    if "completions" not in spec and "parallelism" not in spec:
        spec["completions"] = 1
    spec.setdefault(
        "backoffLimit", _UNLIMITED_BACKOFF if "backoffLimitPerIndex" in spec else _BACKOFF_LIMIT
    )
    replaced = "Failed" if "podFailurePolicy" in spec else "TerminatingOrFailed"
    spec.setdefault("podReplacementPolicy", replaced)
    for key, default in _JOB_DEFAULTS.items():
        spec.setdefault(key, default)
    _default_job_template(spec)


def default_cron_job(cron_job: Object) -> None:
    """Defaults of a CronJob."""
    spec = cron_job["spec"]
    for key, default in _CRON_JOB_DEFAULTS.items():
        spec.setdefault(key, default)
    _default_job_template(spec["jobTemplate"]["spec"])


def default_pod_template(pod_template: Object) -> None:
    """Defaults of a PodTemplate."""
    default_pod_spec(pod_template["template"]["spec"])


def prepare_job_for_create(job: Object, now: str) -> None:
    """A new Job has done nothing yet, and labels its pods unless it selects them by hand."""
    job["status"] = {}
    if not job["spec"].get("manualSelector"):
        _generate_selector(job)
    _copy_template_labels(job)


def _default_job_template(spec: Object) -> None:
    """What is the same in a Job and in a template of Jobs."""
    default_pod_spec(spec["template"]["spec"])
    for rule in spec.get("podFailurePolicy", {}).get("rules", ()):
        for pattern in rule.get("onPodConditions", ()):
            pattern["status"] = pattern.get("status") or "True"


def _copy_template_labels(job: Object) -> None:
    """A Job without labels has those of its pods.

    It is the very same map, so that the labels which a new Job adds for its pods are its own too.
    """
    labels = job["spec"]["template"]["metadata"].get("labels")
    if labels and not job["metadata"].get("labels"):
        job["metadata"]["labels"] = labels


def _generate_selector(job: Object) -> None:
    """Labels that somebody else has set are left alone here; the rules refuse them."""
    meta, spec = job["metadata"], job["spec"]
    labels = spec["template"]["metadata"].setdefault("labels", {})
    for key in NAME_LABELS:
        labels.setdefault(key, meta.get("name", ""))
    for key in UID_LABELS:
        labels.setdefault(key, meta.get("uid", ""))
    selected = spec.setdefault("selector", {}).setdefault("matchLabels", {})
    selected.setdefault(SELECTOR_LABEL, meta.get("uid", ""))


_JOB_SET_DEFAULTS: Mapping[str, Any] = {
    "successPolicy": {"operator": "All"},
    "startupPolicy": {"startupPolicyOrder": "AnyOrder"},
    "network": {},
}
_NETWORK_DEFAULTS: Mapping[str, Any] = {
    "enableDNSHostnames": True,
    "publishNotReadyAddresses": True,
}


def default_job_set(job_set: Object) -> None:
    """Defaults of a JobSet."""
    spec = job_set["spec"]
    for key, default in _JOB_SET_DEFAULTS.items():
        spec.setdefault(key, deepcopy(default))
    for key, default in _NETWORK_DEFAULTS.items():
        spec["network"].setdefault(key, default)
    for replicated in spec.get("replicatedJobs", ()):
        _default_replicated_job_spec(replicated["template"]["spec"])
    for at, rule in enumerate(spec.get("failurePolicy", {}).get("rules", ())):
        rule["name"] = rule["name"] or f"failurePolicyRule{at}"
    for policy in spec.get("volumeClaimPolicies", ()):
        policy.setdefault("retentionPolicy", {"whenDeleted": "Delete"})
        for claim in policy.get("templates", ()):
            claim["spec"].setdefault("volumeMode", "Filesystem")


def _default_replicated_job_spec(spec: Object) -> None:
    """The pods of a JobSet have an index to be known by, and are tried again where they are."""
    spec.setdefault("completionMode", "Indexed")
    spec["template"]["spec"].setdefault("restartPolicy", "OnFailure")
    default_job_spec(spec)


_TEMPLATES = ("leaderTemplate", "workerTemplate")
_ROLLING_UPDATE_DEFAULTS: Mapping[str, Any] = {"maxUnavailable": 1, "maxSurge": 0, "partition": 0}
#: Old names of what a group does when one of its pods fails.
_RENAMED_RESTART_POLICIES = {"Default": "None"}


def default_leader_worker_set(leader_worker_set: Object) -> None:
    """Defaults of a LeaderWorkerSet."""
    spec = leader_worker_set["spec"]
    group = spec["leaderWorkerTemplate"]
    group["restartPolicy"] = _RENAMED_RESTART_POLICIES.get(
        group["restartPolicy"], group["restartPolicy"]
    )
    for name in _TEMPLATES:
        if name in group:
            default_pod_spec(group[name]["spec"])
    for claim in group.get("volumeClaimTemplates", ()):
        claim["spec"].setdefault("volumeMode", "Filesystem")
    if spec["rolloutStrategy"]["type"] == "RollingUpdate":
        spec["rolloutStrategy"].setdefault(
            "rollingUpdateConfiguration", dict(_ROLLING_UPDATE_DEFAULTS)
        )
    spec.setdefault("networkConfig", {"subdomainPolicy": "Shared"})
