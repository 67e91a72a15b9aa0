"""JobSets as their rules read them: the ways from a spec to its Jobs and their pods.

Rules of a JobSet's policies: whose success counts, and what a failed Job leads to.

Each looks at the whole spec of the JobSet, as it names sorts of Jobs in it.

Rules of `spec.scheduling` in a JobSet: how its Jobs are scheduled, all of them and each sort.

What the JobSet as a whole asks for stands at the root. What the Jobs of one name ask for stands in
their template, or in the root's list beside that name; in both places only if it is the same.

    scheduling:                                replicatedJobs:
      schedulingPolicy: {basic: {}}            - name: workers
      replicatedJobPolicies:                     template:
      - targetReplicatedJob: workers               spec:
        schedulingPolicy: {gang: {}}     or          scheduling:
                                                       schedulingPolicy: {gang: {}}

Where nothing is said, the whole is a gang of its groups, unless its Jobs start one after another,
and in a gang each entry of the list that names no policy is one too. All of it is said once; only
how many pods make a gang may change.

Rules of the volume claims that the Jobs of a JobSet share.

A claim is made of each template, called after the template and the JobSet. Whoever mounts a volume
of the template's name gets it; so somebody must, and nobody may have another volume of that name.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from phalanx.api.errors import Cause
from phalanx.api.field_errors import Causes, duplicate, forbidden, invalid, prefix_causes, too_long
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
from phalanx.api.validation.job_scheduling import (
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
    """The sorts of Jobs of a JobSet, given its spec."""
    jobs: list[Object] = spec.get("replicatedJobs", [])
    return jobs


def job_spec(replicated_job: Object) -> Object:
    """The spec that all Jobs of a sort have."""
    spec: Object = replicated_job.get("template", {}).get("spec", {})
    return spec


def pod_template(replicated_job: Object) -> Object:
    """What all pods of a sort of Jobs are made of."""
    template: Object = job_spec(replicated_job).get("template", {})
    return template


def starts_in_order(spec: Object) -> bool:
    """Whether the sorts of Jobs of a JobSet start as they are listed, given its spec."""
    order: str = spec.get("startupPolicy", {}).get("startupPolicyOrder", "")
    return order == "InOrder"


MAX_RULE_NAME = 128
#: Where Jobs are restarted one by one, this many of a sort are counted.
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
    """Targets that are no sort of Jobs."""
    names = {job.get("name") for job in replicated_jobs(spec)}
    detail = "invalid replicatedJob name '{}' does not appear in .spec.ReplicatedJobs"
    return [
        invalid(f"targetReplicatedJobs[{at}]", target, detail.format(target))
        for at, target in enumerate(targets)
        if target not in names
    ]


def check_policy_targets(new: Any, old: Any) -> Causes:
    """The sorts of Jobs that policies name are there, given the spec."""
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
    """Where pods are restarted in place, no Job ever fails or lets a pod go before its time."""
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


#: What a failed Job leads to, given the spec.
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
    """Whether some Jobs of a JobSet are only made when others run or have ended."""
    jobs = replicated_jobs(spec)
    return len(jobs) > 1 and (starts_in_order(spec) or any(job.get("dependsOn") for job in jobs))


def is_gang_scheduled(spec: Object) -> bool:
    """Whether the Jobs of a JobSet are placed all at once."""
    policy = (spec.get("scheduling") or {}).get("schedulingPolicy") or {}
    return "gang" in policy if policy else not has_sequential_startup(spec)


def without_gang_sizes(value: Any) -> Any:
    """A value without what may change of gangs in it."""
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
    """What the JobSet as a whole may ask for, given its spec."""
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
    """What is asked for by name: the name is known, its template says nothing else."""
    places = {job.get("name"): at for at, job in enumerate(replicated_jobs(new))}
    found: list[Cause] = []
    for at, policy in enumerate((new.get("scheduling") or {}).get("replicatedJobPolicies", ())):
        target, place = policy.get(_TARGET), f"scheduling.replicatedJobPolicies[{at}]"
        if target in places:
            found += _check_replicated_job_policy(new, places[target], policy, place)
        elif target:
            detail = "does not reference a valid replicatedJob name"
            found.append(invalid(f"{place}.{_TARGET}", target, detail))
    return found


def _check_replicated_job_policy(
    jobset: Object, at: int, policy: Object, place: str
) -> list[Cause]:
    job, template = replicated_jobs(jobset)[at], f"replicatedJobs[{at}].template.spec"
    spec = job_spec(job)
    asked = {key: value for key, value in policy.items() if key != _TARGET}
    meant = {**spec, "scheduling": asked}
    inherits = "schedulingPolicy" not in asked and is_gang_scheduled(jobset)
    is_told = inherits or has_gang_policy_only(meant)
    # Here a size is that of all Jobs of the name together.
    pods = job.get("replicas", 1) * spec.get("parallelism", 1)
    fit = check_scheduling_fits(asked, pods, has_policy_elsewhere=is_told)
    found = [
        *prefix_causes(place, fit),
        *prefix_causes(template, check_gang_policy_conflicts(meant, CREATED)),
    ]
    if spec.get("scheduling", asked) != asked:
        detail = f"must be absent or the same as in spec.{place}"
        found.append(invalid(f"{template}.scheduling", spec["scheduling"], detail))
    return found


def _check_no_scheduling_group(new: Any, old: Any) -> Causes:
    """Pods whose groups are made for them are in no other."""
    return [
        forbidden(
            f"replicatedJobs[{at}].template.spec.template.spec.schedulingGroup",
            "may not be set where spec.scheduling is",
        )
        for at, job in enumerate(replicated_jobs(new))
        if new.get("scheduling") is not None
        and "schedulingGroup" in pod_template(job).get("spec", {})
    ]


#: How the Jobs of a JobSet are scheduled, given its spec.
JOB_SET_SCHEDULING: Check = all_of(
    struct(("scheduling", all_of(_check_well_formed, _check_scheduling_immutable))),
    _check_job_set_policy,
    _check_replicated_job_policies,
    _check_no_scheduling_group,
)


MAX_VOLUME_CLAIM_POLICIES = MAX_VOLUME_CLAIM_TEMPLATES = 50
MAX_CLAIM_NAME = 63


def _claim_templates(spec: Object) -> Iterator[tuple[str, Object]]:
    """Every template and where it stands."""
    for nth, policy in enumerate(spec.get("volumeClaimPolicies", ())):
        for at, template in enumerate(policy.get("templates", ())):
            yield f"volumeClaimPolicies[{nth}].templates[{at}]", template


def job_spec_with_shared_claims(replicated_job: Object, spec: Object) -> Object:
    """The spec of Jobs of a JobSet, their pods having what they share."""
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
    """The names of claims differ, and fit where they are written as labels."""
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
    """The claims that a JobSet shares among its Jobs."""
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
