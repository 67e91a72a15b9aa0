"""Rules of `spec.scheduling` in a JobSet: how its Jobs are scheduled, all of them and each sort.

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
"""

from __future__ import annotations

from typing import Any

from phalanx.api.causes import Causes, forbidden, invalid, under
from phalanx.api.errors import Cause
from phalanx.api.rules.checks import (
    CREATED,
    IMMUTABLE,
    Check,
    distinct,
    each,
    every,
    given,
    present,
    struct,
    there,
)
from phalanx.api.rules.gangpolicy import check_agreement, is_left_to_word
from phalanx.api.rules.group import CONSTRAINTS, DISRUPTION_MODE
from phalanx.api.rules.jobscheduling import BLOCKS, check_fit, check_single, sized_policy
from phalanx.api.rules.jobsets import job_spec, pod_template, replicated_jobs, starts_in_order
from phalanx.api.wire import Object

_TARGET = "targetReplicatedJob"
_SIZE = "minCount"

_POLICY = every(struct((_TARGET, there)), BLOCKS)
_BLOCKS = struct(
    ("schedulingPolicy", present(sized_policy("minGroupCount"))),
    ("schedulingConstraints", given(CONSTRAINTS)),
    ("disruptionMode", present(DISRUPTION_MODE)),
    ("replicatedJobPolicies", given(every(distinct(_TARGET), each(_POLICY)))),
)


def is_sequenced(spec: Object) -> bool:
    """Whether some Jobs of a JobSet are only made when others run or have ended."""
    jobs = replicated_jobs(spec)
    return len(jobs) > 1 and (starts_in_order(spec) or any(job.get("dependsOn") for job in jobs))


def is_whole(spec: Object) -> bool:
    """Whether the Jobs of a JobSet are placed all at once."""
    policy = (spec.get("scheduling") or {}).get("schedulingPolicy") or {}
    return "gang" in policy if policy else not is_sequenced(spec)


def without_sizes(value: Any) -> Any:
    """A value without what may change of gangs in it."""
    if isinstance(value, dict):
        return {key: without_sizes(inner) for key, inner in value.items() if key != _SIZE}
    return [without_sizes(item) for item in value] if isinstance(value, list) else value


def _stays(new: Any, old: Any) -> Causes:
    if old is CREATED or without_sizes(new) == without_sizes(old):
        return ()
    return [invalid("", None, IMMUTABLE)]


def _well_formed(new: Any, old: Any) -> Causes:
    return () if new is None else _BLOCKS(new, CREATED)


def _whole(new: Any, old: Any) -> Causes:
    """What the JobSet as a whole may ask for, given its spec."""
    scheduling = new.get("scheduling") or {}
    policy = scheduling.get("schedulingPolicy") or {}
    if "gang" not in policy:
        return under("scheduling", check_single(scheduling)) if "basic" in policy else ()
    found: list[Cause] = []
    if is_sequenced(new):
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


def _listed(new: Any, old: Any) -> Causes:
    """What is asked for by name: the name is known, its template says nothing else."""
    places = {job.get("name"): at for at, job in enumerate(replicated_jobs(new))}
    found: list[Cause] = []
    for at, policy in enumerate((new.get("scheduling") or {}).get("replicatedJobPolicies", ())):
        target, place = policy.get(_TARGET), f"scheduling.replicatedJobPolicies[{at}]"
        if target in places:
            found += _agreed(new, places[target], policy, place)
        elif target:
            detail = "does not reference a valid replicatedJob name"
            found.append(invalid(f"{place}.{_TARGET}", target, detail))
    return found


def _agreed(jobset: Object, at: int, policy: Object, place: str) -> list[Cause]:
    job, template = replicated_jobs(jobset)[at], f"replicatedJobs[{at}].template.spec"
    spec = job_spec(job)
    asked = {key: value for key, value in policy.items() if key != _TARGET}
    meant = {**spec, "scheduling": asked}
    inherits = "schedulingPolicy" not in asked and is_whole(jobset)
    is_told = inherits or is_left_to_word(meant)
    # Here a size is that of all Jobs of the name together.
    pods = job.get("replicas", 1) * spec.get("parallelism", 1)
    fit = check_fit(asked, pods, is_told=is_told)
    found = [*under(place, fit), *under(template, check_agreement(meant, CREATED))]
    if spec.get("scheduling", asked) != asked:
        detail = f"must be absent or the same as in spec.{place}"
        found.append(invalid(f"{template}.scheduling", spec["scheduling"], detail))
    return found


def _no_other_groups(new: Any, old: Any) -> Causes:
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
SCHEDULING: Check = every(
    struct(("scheduling", every(_well_formed, _stays))),
    _whole,
    _listed,
    _no_other_groups,
)
