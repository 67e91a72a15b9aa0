"""Rules of the volume claims that the Jobs of a JobSet share.

A claim is made of each template, called after the template and the JobSet. Whoever mounts a volume
of the template's name gets it; so somebody must, and nobody may have another volume of that name.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from phalanx.api.causes import Causes, duplicate, forbidden, invalid, under
from phalanx.api.errors import Cause
from phalanx.api.rules.checks import CREATED, again, at_most, each, every, given, one_of, struct
from phalanx.api.rules.claimtemplate import CLAIM_TEMPLATE, claim_name, mounted, with_claims
from phalanx.api.rules.jobsets import job_spec, pod_template, replicated_jobs
from phalanx.api.wire import Object

MAX_POLICIES = MAX_TEMPLATES = 50
MAX_CLAIM_NAME = 63


def _templates(spec: Object) -> Iterator[tuple[str, Object]]:
    """Every template and where it stands."""
    for nth, policy in enumerate(spec.get("volumeClaimPolicies", ())):
        for at, template in enumerate(policy.get("templates", ())):
            yield f"volumeClaimPolicies[{nth}].templates[{at}]", template


def with_shared_claims(replicated_job: Object, spec: Object) -> Object:
    """The spec of Jobs of a JobSet, their pods having what they share."""
    names = [claim_name(template) for _, template in _templates(spec)]
    jobs = job_spec(replicated_job)
    return {**jobs, "template": with_claims(pod_template(replicated_job), names)} if names else jobs


def _nowhere(new: Any, old: Any) -> Causes:
    if not (new.get("metadata") or {}).get("namespace"):
        return ()
    return [forbidden("metadata.namespace", "a claim is made in the namespace of its JobSet")]


_POLICY = struct(
    ("templates", given(at_most(MAX_TEMPLATES, each(every(_nowhere, CLAIM_TEMPLATE))))),
    ("retentionPolicy", given(struct(("whenDeleted", given(one_of("Delete", "Retain")))))),
)
_POLICIES = given(at_most(MAX_POLICIES, each(_POLICY)))


def _names(name: str, spec: Object) -> list[Cause]:
    """The names of claims differ, and fit where they are written as labels."""
    places, names = [], []
    for place, template in _templates(spec):
        places.append(f"{place}.metadata.name")
        names.append(claim_name(template))
    twice = [duplicate(places[at], names[at]) for at in again(names) if names[at]]
    long = [
        invalid(place, claim, "VolumeClaimPolicies template name is too long")
        for place, claim in zip(places, names, strict=True)
        if len(f"{claim}-{name}") > MAX_CLAIM_NAME
    ]
    return [*twice, *long]


def _uses(spec: Object) -> list[Cause]:
    pods = [pod_template(job) for job in replicated_jobs(spec)]
    known = {name for pod in pods for name in mounted(pod)}
    detail = "replicatedJob containers don't have a matching volumeMount: {} from"
    names = [claim_name(template) for _, template in _templates(spec)]
    unused = [
        invalid("replicatedJobs", None, f"{detail.format(name)} VolumeClaimPolicies")
        for name in names
        if name and name not in known
    ]
    taken = frozenset(names)
    return [*unused, *(cause for at, pod in enumerate(pods) for cause in _taken(at, pod, taken))]


def _taken(at: int, pod: Object, names: frozenset[str]) -> list[Cause]:
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
    found = under("volumeClaimPolicies", _POLICIES(spec["volumeClaimPolicies"], CREATED))
    name = new["metadata"].get("name", "")
    return under("spec", [*found, *_names(name, spec), *_uses(spec)])
