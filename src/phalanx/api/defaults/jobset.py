"""Defaults of JobSets. The Jobs that one is made of get theirs where they stand."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

from phalanx.api.defaults.job import default_job_spec
from phalanx.api.wire import Object

_JOB_SET: Mapping[str, Any] = {
    "successPolicy": {"operator": "All"},
    "startupPolicy": {"startupPolicyOrder": "AnyOrder"},
    "network": {},
}
_NETWORK: Mapping[str, Any] = {"enableDNSHostnames": True, "publishNotReadyAddresses": True}


def default_job_set(job_set: Object) -> None:
    """Defaults of a JobSet."""
    spec = job_set["spec"]
    for key, default in _JOB_SET.items():
        spec.setdefault(key, deepcopy(default))
    for key, default in _NETWORK.items():
        spec["network"].setdefault(key, default)
    for replicated in spec.get("replicatedJobs", ()):
        _default_job_spec(replicated["template"]["spec"])
    for at, rule in enumerate(spec.get("failurePolicy", {}).get("rules", ())):
        rule["name"] = rule["name"] or f"failurePolicyRule{at}"
    for policy in spec.get("volumeClaimPolicies", ()):
        policy.setdefault("retentionPolicy", {"whenDeleted": "Delete"})
        for claim in policy.get("templates", ()):
            claim["spec"].setdefault("volumeMode", "Filesystem")


def _default_job_spec(spec: Object) -> None:
    """The pods of a JobSet have an index to be known by, and are tried again where they are."""
    spec.setdefault("completionMode", "Indexed")
    spec["template"]["spec"].setdefault("restartPolicy", "OnFailure")
    default_job_spec(spec)
