"""Validation of a JobSet's policies: success, failure, scheduling, shared volume claims.

Scheduling of the whole JobSet is in `spec.scheduling`. Scheduling of the Jobs of one replicated job
is in their template or in the list `replicatedJobPolicies`; if it is in both, both must be equal.

    scheduling:                                replicatedJobs:
      schedulingPolicy: {basic: {}}            - name: workers
      replicatedJobPolicies:                     template:
      - targetReplicatedJob: workers               spec:
        schedulingPolicy: {gang: {}}     or          scheduling:
                                                       schedulingPolicy: {gang: {}}

Without a policy the JobSet is a gang of its groups, unless some Jobs start only after others (a
startup order or `dependsOn`); inside a gang, list entries without a policy are gangs too.
Everything but `minCount` is immutable.

One volume claim is created per claim template, named after the template and the JobSet. A pod that
mounts a volume of the template's name gets the claim; at least one container must mount it, and no
pod template may define another volume of that name.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from phalanx.api.errors import Cause, Causes, duplicate, forbidden, invalid, prefix_causes, too_long
from phalanx.api.formats import validate_condition_reason
from phalanx.api.regex import BadPattern, compile_pattern
from phalanx.api.validation.checks import (
    CREATED,
    IMMUTABLE,
    Check,
    all_of,
    each,
    find_duplicate_values,
    if_present,
    mandatory,
    max_items,
    minimum,
    non_empty,
    one_of,
    optional,
    struct,
    unique_field,
    unique_keys,
)
from phalanx.api.validation.job_policies import (
    SCHEDULING_FIELDS,
    check_basic_disruption_mode,
    check_gang_policy_conflicts,
    check_scheduling_fits,
    has_gang_policy_only,
    policy_with_optional_count,
)
from phalanx.api.validation.pod_group import DISRUPTION_MODE, SCHEDULING_CONSTRAINTS
from phalanx.api.validation.pod_template import (
    VOLUME_CLAIM_TEMPLATE,
    add_claim_volumes,
    claim_template_name,
    mounted_volume_names,
)
from phalanx.api.wire import Object


def replicated_jobs(spec: Object) -> list[Object]:
    """Return the replicated jobs of a JobSet's spec."""
    jobs: list[Object] = spec.get("replicatedJobs", [])
    return jobs


def job_spec(replicated_job: Object) -> Object:
    """Return the Job spec of a replicated job."""
    spec: Object = replicated_job.get("template", {}).get("spec", {})
    return spec


def pod_template(replicated_job: Object) -> Object:
    """Return the pod template of a replicated job."""
    template: Object = job_spec(replicated_job).get("template", {})
    return template


def starts_in_order(spec: Object) -> bool:
    """Whether the startup policy is InOrder."""
    order: str = spec.get("startupPolicy", {}).get("startupPolicyOrder", "")
    return order == "InOrder"


MAX_RULE_NAME = 128
#: Restarting single Jobs is limited to replicated jobs of this size.
MAX_RESTARTABLE_JOBS = 1024
MAX_BACKOFF_LIMIT = 2**31 - 1

_RESTART_JOB_ACTIONS = ("RestartJob", "RestartJobAndIgnoreMaxRestarts")
_FAILURE_ACTIONS = (
    "FailJobSet",
    "RestartJobSet",
    "RestartJobSetAndIgnoreMaxRestarts",
    *_RESTART_JOB_ACTIONS,
)
_RESTART_STRATEGIES = ("Recreate", "BlockingRecreate", "InPlaceRestart")
_FAILURE_REASONS = (
    "BackoffLimitExceeded", "DeadlineExceeded", "FailedIndexes", "MaxFailedIndexesExceeded",
    "PodFailurePolicy",
)  # fmt: skip


def _check_targets_exist(spec: Object, targets: list[str]) -> list[Cause]:
    """Refuse targets that name no replicated job."""
    names = {job.get("name") for job in replicated_jobs(spec)}
    detail = "invalid replicatedJob name '{}' does not appear in .spec.ReplicatedJobs"
    return [
        invalid(f"targetReplicatedJobs[{at}]", target, detail.format(target))
        for at, target in enumerate(targets)
        if target not in names
    ]


def check_policy_targets(new: Any, old: Any) -> Causes:
    """Require that policies name existing replicated jobs."""
    rules = new.get("failurePolicy", {}).get("rules", ())
    places = [("successPolicy", new.get("successPolicy", {}))]
    places += [(f"failurePolicy.rules[{at}]", rule) for at, rule in enumerate(rules)]
    return [
        cause
        for place, policy in places
        for cause in prefix_causes(
            place, _check_targets_exist(new, policy.get("targetReplicatedJobs", []))
        )
    ]


# ---------------------------------------------------------------------------------------- failure


def _check_rule_name(new: Any, old: Any) -> Causes:
    if len(new) > MAX_RULE_NAME:
        return [too_long("", MAX_RULE_NAME)]
    detail = (
        "a failure policy rule name must start with an alphabetic character, optionally followed "
        "by a string of alphanumeric characters or '_,:', and must end with an alphanumeric "
        "character or '_'"
    )
    return [invalid("", new, detail)] if validate_condition_reason(new) else ()


def _check_pattern(new: Any, old: Any) -> Causes:
    try:
        compile_pattern(new)
    except BadPattern as error:
        return [invalid("", new, f"must be a valid regular expression: {error}")]
    return ()


_FAILURE_RULE = struct(
    ("name", mandatory(_check_rule_name)),
    ("action", mandatory(one_of(*_FAILURE_ACTIONS))),
    ("onJobFailureReasons", optional(each(one_of(*_FAILURE_REASONS)))),
    ("onJobFailureMessagePatterns", optional(each(_check_pattern))),
)
_FAILURE_POLICY_FIELDS = struct(
    ("maxRestarts", optional(minimum(0))),
    ("restartStrategy", optional(one_of(*_RESTART_STRATEGIES))),
    ("rules", optional(all_of(each(_FAILURE_RULE), unique_field("name")))),
)


def _check_failure_policy(new: Any, old: Any) -> Causes:
    policy = new.get("failurePolicy")
    return (
        ()
        if policy is None
        else prefix_causes("failurePolicy", _FAILURE_POLICY_FIELDS(policy, CREATED))
    )


def _check_restartable_job_count(new: Any, old: Any) -> Causes:
    rules = new.get("failurePolicy", {}).get("rules", ())
    if not any(rule.get("action") in _RESTART_JOB_ACTIONS for rule in rules):
        return ()
    detail = (
        f"must be less than or equal to {MAX_RESTARTABLE_JOBS} where a failure policy restarts Jobs"
    )
    return [
        invalid(f"replicatedJobs[{at}].replicas", job["replicas"], f"{detail} one by one")
        for at, job in enumerate(replicated_jobs(new))
        if job.get("replicas", 1) > MAX_RESTARTABLE_JOBS
    ]


def _check_in_place_restart(new: Any, old: Any) -> Causes:
    """Require settings of Jobs that in-place restarts depend on."""
    if new.get("failurePolicy", {}).get("restartStrategy") != "InPlaceRestart":
        return ()
    found: list[Cause] = []
    for at, job in enumerate(replicated_jobs(new)):
        found += prefix_causes(
            f"replicatedJobs[{at}].template.spec", _check_in_place_restart_job(job_spec(job))
        )
    return found


def _check_in_place_restart_job(spec: Object) -> list[Cause]:
    wanted = (
        ("backoffLimit", MAX_BACKOFF_LIMIT),
        ("podReplacementPolicy", "Failed"),
        ("completions", spec.get("parallelism")),
    )
    when = "when in-place restart is enabled"
    return [
        invalid(field, spec.get(field), f"must be set to {value} {when}")
        for field, value in wanted
        if spec.get(field) != value
    ]


#: The failure policy, given the spec.
FAILURE_POLICY: Check = all_of(
    _check_failure_policy, _check_restartable_job_count, _check_in_place_restart
)


_TARGET = "targetReplicatedJob"
_GANG_SIZE = "minCount"

_REPLICATED_JOB_POLICY = all_of(struct((_TARGET, non_empty)), SCHEDULING_FIELDS)
_JOB_SET_SCHEDULING_FIELDS = struct(
    ("schedulingPolicy", if_present(policy_with_optional_count("minGroupCount"))),
    ("schedulingConstraints", optional(SCHEDULING_CONSTRAINTS)),
    ("disruptionMode", if_present(DISRUPTION_MODE)),
    ("replicatedJobPolicies", optional(all_of(unique_keys(_TARGET), each(_REPLICATED_JOB_POLICY)))),
)


def has_sequential_startup(spec: Object) -> bool:
    """Whether some Jobs are created only after others are ready or complete."""
    jobs = replicated_jobs(spec)
    return len(jobs) > 1 and (starts_in_order(spec) or any(job.get("dependsOn") for job in jobs))


def is_gang_scheduled(spec: Object) -> bool:
    """Whether the Jobs of a JobSet are scheduled as one gang."""
    policy = (spec.get("scheduling") or {}).get("schedulingPolicy") or {}
    return "gang" in policy if policy else not has_sequential_startup(spec)


def without_gang_sizes(value: Any) -> Any:
    """Return a value without `minCount`, the only field that may change."""
    if isinstance(value, dict):
        return {key: without_gang_sizes(inner) for key, inner in value.items() if key != _GANG_SIZE}
    return [without_gang_sizes(item) for item in value] if isinstance(value, list) else value


def _check_scheduling_immutable(new: Any, old: Any) -> Causes:
    if old is CREATED or without_gang_sizes(new) == without_gang_sizes(old):
        return ()
    return [invalid("", None, IMMUTABLE)]


def _check_well_formed(new: Any, old: Any) -> Causes:
    return () if new is None else _JOB_SET_SCHEDULING_FIELDS(new, CREATED)


def _check_job_set_policy(new: Any, old: Any) -> Causes:
    """Check the scheduling of the whole JobSet against its spec."""
    scheduling = new.get("scheduling") or {}
    policy = scheduling.get("schedulingPolicy") or {}
    if "gang" not in policy:
        return (
            prefix_causes("scheduling", check_basic_disruption_mode(scheduling))
            if "basic" in policy
            else ()
        )
    found: list[Cause] = []
    if has_sequential_startup(new):
        detail = (
            "Jobs that start one after another cannot be placed all at once; use gangs of "
            "replicated jobs instead"
        )
        found.append(forbidden("scheduling.schedulingPolicy.gang", detail))
    groups = len(replicated_jobs(new))
    size = policy["gang"].get("minGroupCount", 0)
    if size > groups:
        detail = f"must not be greater than the number of replicated jobs ({groups})"
        found.append(invalid("scheduling.schedulingPolicy.gang.minGroupCount", size, detail))
    return found


def _check_replicated_job_policies(new: Any, old: Any) -> Causes:
    """Check policies by name: the replicated job exists and its template does not contradict."""
    places = {job.get("name"): at for at, job in enumerate(replicated_jobs(new))}
    found: list[Cause] = []
    for at, policy in enumerate((new.get("scheduling") or {}).get("replicatedJobPolicies", ())):
        target, place = policy.get(_TARGET), f"scheduling.replicatedJobPolicies[{at}]"
        if target in places:
            found += _check_replicated_job_policy(new, places[target], policy, place=place)
        elif target:
            detail = "does not reference a valid replicatedJob name"
            found.append(invalid(f"{place}.{_TARGET}", target, detail))
    return found


def _check_replicated_job_policy(
    jobset: Object, at: int, policy: Object, *, place: str
) -> list[Cause]:
    job, template = replicated_jobs(jobset)[at], f"replicatedJobs[{at}].template.spec"
    spec = job_spec(job)
    scheduling = {key: value for key, value in policy.items() if key != _TARGET}
    effective_spec = {**spec, "scheduling": scheduling}
    inherits = "schedulingPolicy" not in scheduling and is_gang_scheduled(jobset)
    has_policy_elsewhere = inherits or has_gang_policy_only(effective_spec)
    # A size in the list counts the pods of all Jobs of the replicated job.
    pods = job.get("replicas", 1) * spec.get("parallelism", 1)
    fit = check_scheduling_fits(scheduling, pods, has_policy_elsewhere=has_policy_elsewhere)
    found = [
        *prefix_causes(place, fit),
        *prefix_causes(template, check_gang_policy_conflicts(effective_spec, CREATED)),
    ]
    if spec.get("scheduling", scheduling) != scheduling:
        detail = f"must be absent or the same as in spec.{place}"
        found.append(invalid(f"{template}.scheduling", spec["scheduling"], detail))
    return found


def _check_no_scheduling_group(new: Any, old: Any) -> Causes:
    """Refuse `schedulingGroup` in pods whose groups are created for them."""
    return [
        forbidden(
            f"replicatedJobs[{at}].template.spec.template.spec.schedulingGroup",
            "may not be set where spec.scheduling is",
        )
        for at, job in enumerate(replicated_jobs(new))
        if new.get("scheduling") is not None
        and "schedulingGroup" in pod_template(job).get("spec", {})
    ]


#: The scheduling of a JobSet, given its spec.
JOB_SET_SCHEDULING: Check = all_of(
    struct(("scheduling", all_of(_check_well_formed, _check_scheduling_immutable))),
    _check_job_set_policy,
    _check_replicated_job_policies,
    _check_no_scheduling_group,
)


MAX_VOLUME_CLAIM_POLICIES = MAX_VOLUME_CLAIM_TEMPLATES = 50
MAX_CLAIM_NAME = 63


def _claim_templates(spec: Object) -> Iterator[tuple[str, Object]]:
    """Yield every claim template with its path."""
    for nth, policy in enumerate(spec.get("volumeClaimPolicies", ())):
        for at, template in enumerate(policy.get("templates", ())):
            yield f"volumeClaimPolicies[{nth}].templates[{at}]", template


def job_spec_with_shared_claims(replicated_job: Object, spec: Object) -> Object:
    """Return a Job spec whose pods have the shared volumes."""
    names = [claim_template_name(template) for _, template in _claim_templates(spec)]
    jobs = job_spec(replicated_job)
    return (
        {**jobs, "template": add_claim_volumes(pod_template(replicated_job), names)}
        if names
        else jobs
    )


def _check_no_namespace(new: Any, old: Any) -> Causes:
    if not (new.get("metadata") or {}).get("namespace"):
        return ()
    return [forbidden("metadata.namespace", "a claim is made in the namespace of its JobSet")]


_VOLUME_CLAIM_POLICY = struct(
    (
        "templates",
        optional(
            max_items(
                MAX_VOLUME_CLAIM_TEMPLATES, each(all_of(_check_no_namespace, VOLUME_CLAIM_TEMPLATE))
            )
        ),
    ),
    ("retentionPolicy", optional(struct(("whenDeleted", optional(one_of("Delete", "Retain")))))),
)
_VOLUME_CLAIM_POLICIES = optional(max_items(MAX_VOLUME_CLAIM_POLICIES, each(_VOLUME_CLAIM_POLICY)))


def _check_claim_names(name: str, spec: Object) -> list[Cause]:
    """Require unique claim names that fit 63 characters together with the name of the JobSet."""
    places, names = [], []
    for place, template in _claim_templates(spec):
        places.append(f"{place}.metadata.name")
        names.append(claim_template_name(template))
    twice = [duplicate(places[at], names[at]) for at in find_duplicate_values(names) if names[at]]
    long = [
        invalid(place, claim, "VolumeClaimPolicies template name is too long")
        for place, claim in zip(places, names, strict=True)
        if len(f"{claim}-{name}") > MAX_CLAIM_NAME
    ]
    return [*twice, *long]


def _check_claims_mounted(spec: Object) -> list[Cause]:
    pods = [pod_template(job) for job in replicated_jobs(spec)]
    known = {name for pod in pods for name in mounted_volume_names(pod)}
    detail = "replicatedJob containers don't have a matching volumeMount: {} from"
    names = [claim_template_name(template) for _, template in _claim_templates(spec)]
    unused = [
        invalid("replicatedJobs", None, f"{detail.format(name)} VolumeClaimPolicies")
        for name in names
        if name and name not in known
    ]
    taken = frozenset(names)
    return [
        *unused,
        *(
            cause
            for at, pod in enumerate(pods)
            for cause in _check_volume_name_conflicts(at, pod, taken)
        ),
    ]


def _check_volume_name_conflicts(at: int, pod: Object, names: frozenset[str]) -> list[Cause]:
    place = f"replicatedJobs[{at}].template.spec.template.spec.volumes"
    detail = "volume name conflicts with VolumeClaimPolicy template name: {}"
    return [
        invalid(f"{place}[{nth}].name", volume["name"], detail.format(volume["name"]))
        for nth, volume in enumerate(pod.get("spec", {}).get("volumes", ()))
        if volume.get("name") in names
    ]


def check_shared_claims(new: Any, old: Any) -> Causes:
    """Check the shared volume claims of a JobSet."""
    spec = new.get("spec", {})
    if "volumeClaimPolicies" not in spec:
        return ()
    found = prefix_causes(
        "volumeClaimPolicies", _VOLUME_CLAIM_POLICIES(spec["volumeClaimPolicies"], CREATED)
    )
    name = new["metadata"].get("name", "")
    return prefix_causes(
        "spec", [*found, *_check_claim_names(name, spec), *_check_claims_mounted(spec)]
    )
