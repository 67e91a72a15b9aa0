"""Defaults of workloads (Jobs, Deployments, …), and the labels of a Job's pods.

The Job template of a CronJob gets none of a Job's own defaults: the Job that is created from it
gets them. The Jobs inside a JobSet are defaulted in place.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

from phalanx.api.defaults.pod import default_pod_spec
from phalanx.api.formats import validate_label_value
from phalanx.api.wire import Object

#: The labels that a Job sets on its pods, each under its old and its new key.
NAME_LABELS = ("job-name", "batch.kubernetes.io/job-name")
UID_LABELS = ("controller-uid", "batch.kubernetes.io/controller-uid")
#: The label that the generated selector uses.
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
#: The back-off limit of a Job with a limit per index: none.
_UNLIMITED_BACKOFF = 2**31 - 1


def default_job(job: Object) -> None:
    """Apply the defaults of a Job."""
    default_job_spec(job["spec"])
    _copy_template_labels(job)


def default_job_spec(spec: Object) -> None:
    """Apply the defaults of a Job's spec."""
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
    """Apply the defaults of a CronJob."""
    spec = cron_job["spec"]
    for key, default in _CRON_JOB_DEFAULTS.items():
        spec.setdefault(key, default)
    _default_job_template(spec["jobTemplate"]["spec"])


def default_pod_template(pod_template: Object) -> None:
    """Apply the defaults of a PodTemplate."""
    default_pod_spec(pod_template["template"]["spec"])


def prepare_job_for_create(job: Object, now: str) -> None:
    """Clear the status of a new Job; generate its selector unless `manualSelector` is set."""
    job["status"] = {}
    if not job["spec"].get("manualSelector"):
        _generate_selector(job)
    # Kubernetes copies generated labels after the validation: of a name that is no label value,
    # only the template has a cause.
    if not validate_label_value(job["metadata"].get("name", "")):
        _copy_template_labels(job)


def _default_job_template(spec: Object) -> None:
    """Apply the defaults that a Job and a Job template share."""
    default_pod_spec(spec["template"]["spec"])
    for rule in spec.get("podFailurePolicy", {}).get("rules", ()):
        for pattern in rule.get("onPodConditions", ()):
            pattern["status"] = pattern.get("status") or "True"


def _copy_template_labels(job: Object) -> None:
    """Give a Job without labels those of its pod template.

    Both share one map, so labels that are generated for the pods are the Job's labels too.
    """
    labels = job["spec"]["template"]["metadata"].get("labels")
    if labels and not job["metadata"].get("labels"):
        job["metadata"]["labels"] = labels


def _generate_selector(job: Object) -> None:
    """Generate selector and labels; labels that the user set are left to validation."""
    meta, spec = job["metadata"], job["spec"]
    labels = spec["template"]["metadata"].setdefault("labels", {})
    for key in NAME_LABELS:
        labels.setdefault(key, meta.get("name", ""))
    for key in UID_LABELS:
        labels.setdefault(key, meta.get("uid", ""))
    selected = spec.setdefault("selector", {}).setdefault("matchLabels", {})
    selected.setdefault(SELECTOR_LABEL, meta.get("uid", ""))


_STATEFUL_SET_DEFAULTS: Mapping[str, Any] = {
    "podManagementPolicy": "OrderedReady",
    "replicas": 1,
    "revisionHistoryLimit": 10,
}
_RETENTION_FIELDS = ("whenDeleted", "whenScaled")


def default_stateful_set(stateful_set: Object) -> None:
    """Apply the defaults of a StatefulSet; its claim templates become whole claims."""
    spec = stateful_set["spec"]
    for key, default in _STATEFUL_SET_DEFAULTS.items():
        spec.setdefault(key, default)
    strategy = spec["updateStrategy"]
    if strategy.setdefault("type", "RollingUpdate") == "RollingUpdate":
        rolling = strategy.setdefault("rollingUpdate", {})
        rolling.setdefault("partition", 0)
        rolling.setdefault("maxUnavailable", 1)
    retention = spec.setdefault("persistentVolumeClaimRetentionPolicy", {})
    for field in _RETENTION_FIELDS:
        retention.setdefault(field, "Retain")
    default_pod_spec(spec["template"]["spec"])
    for claim in spec.get("volumeClaimTemplates", ()):
        claim |= {"apiVersion": "v1", "kind": "PersistentVolumeClaim"}
        claim["spec"].setdefault("volumeMode", "Filesystem")
        claim["status"].setdefault("phase", "Pending")


def prepare_stateful_set_for_create(stateful_set: Object, now: str) -> None:
    """Reset the status of a new StatefulSet."""
    stateful_set["status"] = {"replicas": 0, "availableReplicas": 0}


_DEPLOYMENT_DEFAULTS: Mapping[str, Any] = {
    "replicas": 1,
    "revisionHistoryLimit": 10,
    "progressDeadlineSeconds": 600,
}
_DEPLOYMENT_SHARE = "25%"


def default_deployment(deployment: Object) -> None:
    """Apply the defaults of a Deployment."""
    spec = deployment["spec"]
    for key, default in _DEPLOYMENT_DEFAULTS.items():
        spec.setdefault(key, default)
    strategy = spec["strategy"]
    if not strategy.get("type"):
        strategy["type"] = "RollingUpdate"
    if strategy["type"] == "RollingUpdate":
        rolling = strategy.setdefault("rollingUpdate", {})
        for field in ("maxUnavailable", "maxSurge"):
            rolling.setdefault(field, _DEPLOYMENT_SHARE)
    default_pod_spec(spec["template"]["spec"])


def default_replica_set(replica_set: Object) -> None:
    """Apply the defaults of a ReplicaSet."""
    spec = replica_set["spec"]
    spec.setdefault("replicas", 1)
    default_pod_spec(spec.setdefault("template", {}).setdefault("spec", {}))


def default_replication_controller(controller: Object) -> None:
    """Apply the defaults of a ReplicationController; labels and selector follow the template."""
    spec = controller["spec"]
    spec.setdefault("replicas", 1)
    if not spec.get("minReadySeconds"):
        spec.pop("minReadySeconds", None)  # The schema's default; Kubernetes does not return it.
    if "template" not in spec:
        return
    labels = (spec["template"].get("metadata") or {}).get("labels")
    if labels:
        if not spec.get("selector"):
            spec["selector"] = dict(labels)
        if not controller["metadata"].get("labels"):
            controller["metadata"]["labels"] = dict(labels)
    default_pod_spec(spec["template"].setdefault("spec", {}))


def default_daemon_set(daemon_set: Object) -> None:
    """Apply the defaults of a DaemonSet."""
    spec = daemon_set["spec"]
    spec.setdefault("revisionHistoryLimit", 10)
    strategy = spec["updateStrategy"]
    if not strategy.get("type"):
        strategy["type"] = "RollingUpdate"
    if strategy["type"] == "RollingUpdate":
        rolling = strategy.setdefault("rollingUpdate", {})
        rolling.setdefault("maxUnavailable", 1)
        rolling.setdefault("maxSurge", 0)
    default_pod_spec(spec["template"]["spec"])


def prepare_replicas_for_create(obj: Object, now: str) -> None:
    """Reset the status of a new ReplicaSet or ReplicationController."""
    obj["status"] = {"replicas": 0}


#: The annotation of a DaemonSet that counts the changes of its template.
TEMPLATE_GENERATION = "deprecated.daemonset.template.generation"
_DAEMON_SET_COUNTS = (
    "currentNumberScheduled", "desiredNumberScheduled", "numberMisscheduled", "numberReady",
)  # fmt: skip


def prepare_daemon_set_for_create(daemon_set: Object, now: str) -> None:
    """Reset the status of a new DaemonSet and begin to count the changes of its template."""
    daemon_set["status"] = dict.fromkeys(_DAEMON_SET_COUNTS, 0)
    daemon_set["metadata"].setdefault("annotations", {})[TEMPLATE_GENERATION] = "1"


def count_template_change(new: Object, old: Object, now: str) -> None:
    """Count a change of a DaemonSet's template; clients cannot set the count."""
    text = (old["metadata"].get("annotations") or {}).get(TEMPLATE_GENERATION, "")
    number = int(text) if text.isdecimal() else 1
    number += new["spec"].get("template") != old["spec"].get("template")
    new["metadata"].setdefault("annotations", {})[TEMPLATE_GENERATION] = str(number)


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
    """Apply the defaults of a JobSet."""
    spec = job_set["spec"]
    for key, default in _JOB_SET_DEFAULTS.items():
        spec.setdefault(key, deepcopy(default))
    for key, default in _NETWORK_DEFAULTS.items():
        spec["network"].setdefault(key, default)
    for replicated in spec.get("replicatedJobs", ()):
        job_spec = replicated["template"]["spec"]
        job_spec.setdefault("completionMode", "Indexed")
        job_spec["template"]["spec"].setdefault("restartPolicy", "OnFailure")
        default_job_spec(job_spec)
    for at, rule in enumerate(spec.get("failurePolicy", {}).get("rules", ())):
        rule["name"] = rule["name"] or f"failurePolicyRule{at}"
    for policy in spec.get("volumeClaimPolicies", ()):
        policy.setdefault("retentionPolicy", {"whenDeleted": "Delete"})
        for claim in policy.get("templates", ()):
            claim["spec"].setdefault("volumeMode", "Filesystem")


_TEMPLATES = ("leaderTemplate", "workerTemplate")
_ROLLING_UPDATE_DEFAULTS: Mapping[str, Any] = {"maxUnavailable": 1, "maxSurge": 0, "partition": 0}
#: Deprecated restart policies and their present names.
_RENAMED_RESTART_POLICIES = {"Default": "None"}


def default_leader_worker_set(leader_worker_set: Object) -> None:
    """Apply the defaults of a LeaderWorkerSet."""
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
