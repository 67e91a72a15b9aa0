"""Rules of JobSets: Jobs of several sorts that are made, judged and restarted together.

The Jobs and their pods keep the rules of Jobs and pods (`job.py`). Once there, a JobSet may be
suspended and resumed, and may change how long it lasts when it has ended. Its Jobs stay as they
are, but for the sizes of gangs; while it is suspended their pods may change in where they go:

    labels and annotations    nodeSelector    tolerations    schedulingGates
"""

from __future__ import annotations

from typing import Any

from phalanx.api.causes import Causes, forbidden, invalid, under
from phalanx.api.errors import Cause
from phalanx.api.fields import dns_subdomain_faults, label_value_faults, service_name_faults
from phalanx.api.rules.checks import (
    CREATED,
    IMMUTABLE,
    Check,
    at_least,
    at_most,
    distinct,
    each,
    every,
    given,
    needed,
    one_of,
    present,
    struct,
    there,
)
from phalanx.api.rules.job import JOB_TEMPLATE_SPEC, check_manager
from phalanx.api.rules.jobpolicy import is_indexed
from phalanx.api.rules.jobsetpolicy import FAILURE_POLICY, check_targets
from phalanx.api.rules.jobsets import job_spec, replicated_jobs, starts_in_order
from phalanx.api.rules.jobsetscheduling import SCHEDULING, without_sizes
from phalanx.api.rules.jobsetvolume import check_shared_claims, with_shared_claims
from phalanx.api.rules.meta import check_conditions
from phalanx.api.wire import Object

MAX_DEPENDENCIES = 5
MAX_PODS = 2**31 - 1
#: What a pod's name gets when it is made.
_SUFFIX = "-abcde"
_MAX_LABEL = 63
_TOO_LONG = f"is too long, must be less than {_MAX_LABEL} characters"
_PLACEMENT = ("nodeSelector", "tolerations", "schedulingGates")
_NATURAL = given(at_least(0))

# ------------------------------------------------------------------------------- replicated jobs


def _faults(name: str, long: str) -> list[str]:
    """What is wrong with a name, and `long` if it is too long."""
    faults = service_name_faults(name)
    return [long, *faults[1:]] if len(name) > _MAX_LABEL else faults


def _group_name(new: Any, old: Any) -> Causes:
    long = f".spec.replicatedJob[].groupName {_TOO_LONG}"
    return [invalid("", new, fault) for fault in _faults(new, long)]


def _pods(new: Any, old: Any) -> Causes:
    replicas = new.get("replicas", 1)
    if replicas * job_spec(new).get("parallelism", 1) <= MAX_PODS:
        return ()
    detail = f"the product of replicas and parallelism must not exceed {MAX_PODS}"
    return [invalid("replicas", replicas, detail)]


_DEPENDENCY = struct(("name", there), ("status", needed(one_of("Ready", "Complete"))))
_JOB = every(
    struct(
        ("name", there),
        ("groupName", given(_group_name)),
        ("replicas", _NATURAL),
        ("dependsOn", given(at_most(MAX_DEPENDENCIES, every(distinct("name"), each(_DEPENDENCY))))),
    ),
    _pods,
)


def _templates(new: Any, old: Any) -> Causes:
    """What the Jobs are made of, with the volumes that the JobSet shares among them."""
    found: list[Cause] = []
    for at, job in enumerate(replicated_jobs(new)):
        spec = with_shared_claims(job, new)
        place = f"replicatedJobs[{at}].template.spec"
        found += under(place, JOB_TEMPLATE_SPEC(spec, CREATED))
    return found


def _dependencies(new: Any, old: Any) -> Causes:
    """A sort of Jobs waits only for those that are listed before it."""
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


def _one_order(new: Any, old: Any) -> Causes:
    if not starts_in_order(new) or not any(job.get("dependsOn") for job in replicated_jobs(new)):
        return ()
    return [invalid("", "object", "StartupPolicy and DependsOn APIs are mutually exclusive")]


# ------------------------------------------------------------------------------------------ names


def _generated_names(new: Any, old: Any) -> Causes:
    """Jobs and pods are called after the JobSet, their sort and their numbers."""
    name = new["metadata"].get("name", "")
    found: list[Cause] = []
    for at, job in enumerate(replicated_jobs(new.get("spec", {}))):
        place, spec = f"spec.replicatedJobs[{at}].name", job_spec(job)
        made = f"{name}-{job.get('name', '')}-{max(job.get('replicas', 1) - 1, 0)}"
        faults = _name_faults(made, "job")
        if not faults and is_indexed(spec) and "completions" in spec:
            last = max(spec["completions"] - 1, 0)
            faults = _name_faults(f"{made}-{last}{_SUFFIX}", "pod")
        found += [invalid(place, made, fault) for fault in faults]
    return found


def _name_faults(name: str, what: str) -> list[str]:
    made = f"{what} names generated for this JobSet will exceed {_MAX_LABEL} characters"
    return _faults(name, f"JobSet name is too long, {made}")


def _subdomain(new: Any, old: Any) -> Causes:
    """It is the name of a service, too."""
    faults = [*dns_subdomain_faults(new), *_faults(new, f".spec.network.subdomain {_TOO_LONG}")]
    return [invalid("", new, fault) for fault in faults]


# ------------------------------------------------------------------------------------ coordinator


def _coordinator(new: Any, old: Any) -> Causes:
    """The pod that leads the others is one that there will be."""
    wanted = new.get("spec", {}).get("coordinator")
    if wanted is None:
        return ()
    jobs = replicated_jobs(new["spec"])
    job = next((one for one in jobs if one.get("name") == wanted.get("replicatedJob")), None)
    found = _leader(wanted, job) or _endpoint(new, wanted)
    return under("spec.coordinator", found)


def _leader(wanted: Object, job: Object | None) -> list[Cause]:
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


def _endpoint(job_set: Object, wanted: Object) -> list[Cause]:
    """Where the pod is found is written on every pod as a label."""
    name = job_set["metadata"].get("name", "")
    subdomain = job_set["spec"].get("network", {}).get("subdomain") or name
    host = f"{name}-{wanted.get('replicatedJob')}"
    host += f"-{wanted.get('jobIndex', 0)}-{wanted.get('podIndex', 0)}"
    value = f"{host}.{subdomain}"
    return [invalid("", value, fault) for fault in label_value_faults(value)]


# ---------------------------------------------------------------------------------------- changes


def _kept(shown: str) -> Check:
    """It may come and go, but never become another."""

    def check(new: Any, old: Any) -> Causes:
        if old is CREATED or old is None or new is None or new == old:
            return ()
        return [invalid("", shown, "Value is immutable")]

    return check


def _manager_stays(new: Any, old: Any) -> Causes:
    return () if old is CREATED or new == old else [invalid("", new, IMMUTABLE)]


def _jobs_stay(new: Any, old: Any) -> Causes:
    if old is CREATED or replicated_jobs(new) == replicated_jobs(old or {}):
        return ()
    loose = bool(new.get("suspend") or (old or {}).get("suspend"))
    after, before = (
        [_fixed(job, loose=loose) for job in replicated_jobs(one)] for one in (new, old or {})
    )
    return () if after == before else [invalid("replicatedJobs", None, IMMUTABLE)]


def _fixed(job: Object, *, loose: bool) -> Object:
    """A replicated job without what may change."""
    template, spec = job.get("template", {}), dict(job_spec(job))
    spec["scheduling"] = without_sizes(spec.get("scheduling"))
    if loose:
        spec["template"] = _without_placement(spec.get("template", {}))
    return {**job, "template": {**template, "spec": spec}}


def _without_placement(template: Object) -> Object:
    meta, spec = template.get("metadata", {}), template.get("spec", {})
    return {
        "metadata": {k: v for k, v in meta.items() if k not in ("labels", "annotations")},
        "spec": {k: v for k, v in spec.items() if k not in _PLACEMENT},
    }


# ----------------------------------------------------------------------------------------- JobSet

_SUCCESS_POLICY = struct(("operator", needed(one_of("All", "Any"))))
_STARTUP_POLICY = struct(("startupPolicyOrder", needed(one_of("AnyOrder", "InOrder"))))

_SPEC = every(
    struct(
        ("replicatedJobs", given(every(distinct("name"), each(_JOB)))),
        ("network", every(struct(("subdomain", given(_subdomain))), _kept("object"))),
        ("successPolicy", every(present(_SUCCESS_POLICY), _kept("object"))),
        ("failurePolicy", _kept("object")),
        ("startupPolicy", every(present(_STARTUP_POLICY), _kept("object"))),
        ("managedBy", every(present(check_manager), _manager_stays)),
        ("ttlSecondsAfterFinished", _NATURAL),
        ("volumeClaimPolicies", _kept("array")),
    ),
    _templates,
    _dependencies,
    _one_order,
    check_targets,
    FAILURE_POLICY,
    SCHEDULING,
    _jobs_stay,
)

JOB_SET: Check = every(
    struct(("spec", present(_SPEC))), _generated_names, _coordinator, check_shared_claims
)

_JOB_STATUS = struct(
    ("name", there),
    *((name, _NATURAL) for name in ("ready", "succeeded", "failed", "active", "suspended")),
)
_STATUS = struct(
    ("conditions", check_conditions),
    ("restarts", _NATURAL),
    ("restartsCountTowardsMax", _NATURAL),
    ("previousInPlaceRestartAttempt", _NATURAL),
    ("currentInPlaceRestartAttempt", _NATURAL),
    ("replicatedJobsStatus", given(every(distinct("name"), each(_JOB_STATUS)))),
)
JOB_SET_STATUS: Check = struct(("status", present(_STATUS)))
