"""Validation of JobSets.

The Job templates are validated as Jobs (`job.py`). After creation a JobSet may change `suspend`,
`ttlSecondsAfterFinished` and `coordinator`; network, volume claims and the policies for success,
failure and startup may be set or removed but not changed. Its replicated jobs are immutable except
for gang sizes; while it is suspended, these fields of their pod templates may change:

    labels and annotations    nodeSelector    tolerations    schedulingGates
"""

from __future__ import annotations

from typing import Any

from phalanx.api.errors import Cause, Causes, forbidden, invalid, prefix_causes
from phalanx.api.formats import validate_dns_subdomain, validate_label_value, validate_service_name
from phalanx.api.validation.checks import (
    CREATED,
    IMMUTABLE,
    Check,
    all_of,
    each,
    if_present,
    mandatory,
    max_items,
    minimum,
    non_empty,
    one_of,
    optional,
    struct,
    unique_keys,
)
from phalanx.api.validation.job import JOB_TEMPLATE_SPEC, check_managed_by
from phalanx.api.validation.job_policies import is_indexed
from phalanx.api.validation.job_set_policies import (
    FAILURE_POLICY,
    JOB_SET_SCHEDULING,
    check_policy_targets,
    check_shared_claims,
    job_spec,
    job_spec_with_shared_claims,
    replicated_jobs,
    starts_in_order,
    without_gang_sizes,
)
from phalanx.api.validation.metadata import check_conditions
from phalanx.api.wire import Object

MAX_DEPENDENCIES = 5
MAX_PODS = 2**31 - 1
#: Stands for the suffix of generated pod names.
_POD_NAME_SUFFIX = "-abcde"
_MAX_LABEL_LENGTH = 63
_TOO_LONG = f"is too long, must be less than {_MAX_LABEL_LENGTH} characters"
_MUTABLE_POD_FIELDS = ("nodeSelector", "tolerations", "schedulingGates")
_NON_NEGATIVE = optional(minimum(0))

# ------------------------------------------------------------------------------- replicated jobs


def _dns_name_faults(name: str, too_long_message: str) -> list[str]:
    """Return the faults of a DNS name; one that is too long gives `too_long_message` instead."""
    faults = validate_service_name(name)
    return [too_long_message, *faults[1:]] if len(name) > _MAX_LABEL_LENGTH else faults


def _check_group_name(new: Any, old: Any) -> Causes:
    long = f".spec.replicatedJob[].groupName {_TOO_LONG}"
    return [invalid("", new, fault) for fault in _dns_name_faults(new, long)]


def _check_pod_count(new: Any, old: Any) -> Causes:
    replicas = new.get("replicas", 1)
    if replicas * job_spec(new).get("parallelism", 1) <= MAX_PODS:
        return ()
    detail = f"the product of replicas and parallelism must not exceed {MAX_PODS}"
    return [invalid("replicas", replicas, detail)]


_DEPENDENCY = struct(("name", non_empty), ("status", mandatory(one_of("Ready", "Complete"))))
_REPLICATED_JOB = all_of(
    struct(
        ("name", non_empty),
        ("groupName", optional(_check_group_name)),
        ("replicas", _NON_NEGATIVE),
        (
            "dependsOn",
            optional(max_items(MAX_DEPENDENCIES, all_of(unique_keys("name"), each(_DEPENDENCY)))),
        ),
    ),
    _check_pod_count,
)


def _check_job_templates(new: Any, old: Any) -> Causes:
    """Check the Job templates, with the volumes that the JobSet shares among its Jobs."""
    found: list[Cause] = []
    for at, job in enumerate(replicated_jobs(new)):
        spec = job_spec_with_shared_claims(job, new)
        place = f"replicatedJobs[{at}].template.spec"
        found += prefix_causes(place, JOB_TEMPLATE_SPEC(spec, CREATED))
    return found


def _check_dependencies(new: Any, old: Any) -> Causes:
    """Require that `dependsOn` names replicated jobs that are listed before."""
    found: list[Cause] = []
    names: set[str] = set()
    for at, job in enumerate(replicated_jobs(new)):
        place = f"replicatedJobs[{at}].dependsOn"
        if job.get("dependsOn") and not names:
            found.append(forbidden(place, "DependsOn can't be set for the first ReplicatedJob"))
        for nth, other in enumerate(job.get("dependsOn", ()) if names else ()):
            if other.get("name") not in names:
                detail = f"replicatedJob: {job.get('name')} cannot depend on replicatedJob: "
                detail += other.get("name", "")
                found.append(invalid(f"{place}[{nth}].name", other.get("name"), detail))
        names.add(job.get("name", ""))
    return found


def _check_one_startup_order(new: Any, old: Any) -> Causes:
    if not starts_in_order(new) or not any(job.get("dependsOn") for job in replicated_jobs(new)):
        return ()
    return [invalid("", "object", "StartupPolicy and DependsOn APIs are mutually exclusive")]


# ------------------------------------------------------------------------------------------ names


def _check_generated_names(new: Any, old: Any) -> Causes:
    """Check the lengths of the Job and pod names that are generated from the JobSet."""
    name = new["metadata"].get("name", "")
    found: list[Cause] = []
    for at, job in enumerate(replicated_jobs(new.get("spec", {}))):
        place, spec = f"spec.replicatedJobs[{at}].name", job_spec(job)
        made = f"{name}-{job.get('name', '')}-{max(job.get('replicas', 1) - 1, 0)}"
        faults = _generated_name_faults(made, "job")
        if not faults and is_indexed(spec) and "completions" in spec:
            last = max(spec["completions"] - 1, 0)
            faults = _generated_name_faults(f"{made}-{last}{_POD_NAME_SUFFIX}", "pod")
        found += [invalid(place, made, fault) for fault in faults]
    return found


def _generated_name_faults(name: str, what: str) -> list[str]:
    made = f"{what} names generated for this JobSet will exceed {_MAX_LABEL_LENGTH} characters"
    return _dns_name_faults(name, f"JobSet name is too long, {made}")


def _check_subdomain(new: Any, old: Any) -> Causes:
    """Check the subdomain, which is also the name of a Service."""
    faults = [
        *validate_dns_subdomain(new),
        *_dns_name_faults(new, f".spec.network.subdomain {_TOO_LONG}"),
    ]
    return [invalid("", new, fault) for fault in faults]


# ------------------------------------------------------------------------------------ coordinator


def _check_coordinator(new: Any, old: Any) -> Causes:
    """Require that the coordinator names an existing pod and that its endpoint is a label value."""
    wanted = new.get("spec", {}).get("coordinator")
    if wanted is None:
        return ()
    jobs = replicated_jobs(new["spec"])
    job = next((one for one in jobs if one.get("name") == wanted.get("replicatedJob")), None)
    found = _check_coordinator_pod(wanted, job) or _check_coordinator_endpoint(new, wanted)
    return prefix_causes("spec.coordinator", found)


def _check_coordinator_pod(wanted: Object, job: Object | None) -> list[Cause]:
    name, nth = wanted.get("replicatedJob"), wanted.get("jobIndex", 0)
    if job is None:
        return [invalid("replicatedJob", name, f"coordinator replicatedJob {name} does not exist")]
    spec, pod = job_spec(job), wanted.get("podIndex", 0)
    if not 0 <= nth < job.get("replicas", 1):
        detail = f"coordinator job index {nth} is invalid for replicatedJob {name}"
        return [invalid("jobIndex", nth, detail)]
    if not is_indexed(spec) or "completions" not in spec:
        detail = "job for coordinator pod must be indexed completion mode, and completions number"
        return [invalid("replicatedJob", name, f"{detail} must be set")]
    if not 0 <= pod < spec["completions"]:
        detail = f"coordinator pod index {pod} is invalid for replicatedJob {name} job index {nth}"
        return [invalid("podIndex", pod, detail)]
    return []


def _check_coordinator_endpoint(job_set: Object, wanted: Object) -> list[Cause]:
    """Require that the coordinator's endpoint is a valid label value."""
    name = job_set["metadata"].get("name", "")
    subdomain = job_set["spec"].get("network", {}).get("subdomain") or name
    host = f"{name}-{wanted.get('replicatedJob')}"
    host += f"-{wanted.get('jobIndex', 0)}-{wanted.get('podIndex', 0)}"
    value = f"{host}.{subdomain}"
    return [invalid("", value, fault) for fault in validate_label_value(value)]


# ----------------------------------------------------------------------------------------- updates

#: The fields of Indexed Jobs that may change while they run.
_ELASTIC_FIELDS = ("parallelism", "completions")


def _immutable_once_set(shown: str) -> Check:
    """Allow setting and clearing a field, but not changing it."""

    def check(new: Any, old: Any) -> Causes:
        if old is CREATED or old is None or new is None or new == old:
            return ()
        return [invalid("", shown, "Value is immutable")]

    return check


def _check_managed_by_immutable(new: Any, old: Any) -> Causes:
    return () if old is CREATED or new == old else [invalid("", new, IMMUTABLE)]


def _check_jobs_immutable(new: Any, old: Any) -> Causes:
    if old is CREATED or replicated_jobs(new) == replicated_jobs(old or {}):
        return ()
    loose = bool(new.get("suspend") or (old or {}).get("suspend"))
    after, before = (
        [_immutable_part(job, is_suspended=loose) for job in replicated_jobs(one)]
        for one in (new, old or {})
    )
    return () if after == before else [invalid("replicatedJobs", None, IMMUTABLE)]


def _immutable_part(job: Object, *, is_suspended: bool) -> Object:
    """Return a replicated job without the fields that may change."""
    template, spec = job.get("template", {}), dict(job_spec(job))
    if _is_indexed(job):
        for field in _ELASTIC_FIELDS:
            spec.pop(field, None)
    spec["scheduling"] = without_gang_sizes(spec.get("scheduling"))
    if is_suspended:
        spec["template"] = _without_mutable_fields(spec.get("template", {}))
    return {**job, "template": {**template, "spec": spec}}


def _is_indexed(job: Object) -> bool:
    return job_spec(job).get("completionMode") == "Indexed"


def _check_elastic_jobs(new: Any, old: Any) -> Causes:
    """Check changes of the number of pods of Indexed Jobs, which Jobs take over while they run."""
    if old is CREATED:
        return ()
    conditions = (old.get("status") or {}).get("conditions") or ()
    has_ended = any(
        one.get("type") in ("Completed", "Failed") and one.get("status") == "True"
        for one in conditions
    )
    before = {job.get("name"): job_spec(job) for job in replicated_jobs(old.get("spec") or {})}
    found: list[Cause] = []
    for at, job in enumerate(replicated_jobs(new.get("spec") or {})):
        spec, earlier = job_spec(job), before.get(job.get("name"))
        place = f"spec.replicatedJobs[{at}].template.spec"
        changed = [
            field
            for field in _ELASTIC_FIELDS
            if earlier is not None and spec.get(field) != earlier.get(field)
        ]
        if not changed or not _is_indexed(job):
            continue
        if has_ended:
            detail = (
                "Cannot mutate parallelism or completions when JobSet is in a terminal state "
                "(Completed or Failed)"
            )
            found.append(forbidden(place, detail))
            continue
        found += [
            invalid(f"{place}.{field}", spec[field], f"{field} must be >= 1")
            for field in changed
            if spec.get(field, 1) < 1
        ]
        counts = [spec.get(field) for field in _ELASTIC_FIELDS]
        if None not in counts and counts[0] != counts[1]:
            detail = "completions must be equal to parallelism for Elastic Indexed Jobs"
            found.append(invalid(f"{place}.completions", counts[1], detail))
    return found


def _without_mutable_fields(template: Object) -> Object:
    meta, spec = template.get("metadata", {}), template.get("spec", {})
    return {
        "metadata": {k: v for k, v in meta.items() if k not in ("labels", "annotations")},
        "spec": {k: v for k, v in spec.items() if k not in _MUTABLE_POD_FIELDS},
    }


# ----------------------------------------------------------------------------------------- JobSet

_SUCCESS_POLICY = struct(("operator", mandatory(one_of("All", "Any"))))
_STARTUP_POLICY = struct(("startupPolicyOrder", mandatory(one_of("AnyOrder", "InOrder"))))

_JOB_SET_SPEC = all_of(
    struct(
        ("replicatedJobs", optional(all_of(unique_keys("name"), each(_REPLICATED_JOB)))),
        (
            "network",
            all_of(
                struct(("subdomain", optional(_check_subdomain))), _immutable_once_set("object")
            ),
        ),
        ("successPolicy", all_of(if_present(_SUCCESS_POLICY), _immutable_once_set("object"))),
        ("failurePolicy", _immutable_once_set("object")),
        ("startupPolicy", all_of(if_present(_STARTUP_POLICY), _immutable_once_set("object"))),
        ("managedBy", all_of(if_present(check_managed_by), _check_managed_by_immutable)),
        ("ttlSecondsAfterFinished", _NON_NEGATIVE),
        ("volumeClaimPolicies", _immutable_once_set("array")),
    ),
    _check_job_templates,
    _check_dependencies,
    _check_one_startup_order,
    check_policy_targets,
    FAILURE_POLICY,
    JOB_SET_SCHEDULING,
    _check_jobs_immutable,
)

check_job_set: Check = all_of(
    struct(("spec", if_present(_JOB_SET_SPEC))),
    _check_generated_names,
    _check_coordinator,
    check_shared_claims,
    _check_elastic_jobs,
)

_REPLICATED_JOB_STATUS = struct(
    ("name", non_empty),
    *((name, _NON_NEGATIVE) for name in ("ready", "succeeded", "failed", "active", "suspended")),
)
_JOB_SET_STATUS = struct(
    ("conditions", check_conditions),
    ("restarts", _NON_NEGATIVE),
    ("restartsCountTowardsMax", _NON_NEGATIVE),
    ("previousInPlaceRestartAttempt", _NON_NEGATIVE),
    ("currentInPlaceRestartAttempt", _NON_NEGATIVE),
    ("replicatedJobsStatus", optional(all_of(unique_keys("name"), each(_REPLICATED_JOB_STATUS)))),
)
check_job_set_status: Check = struct(("status", if_present(_JOB_SET_STATUS)))
