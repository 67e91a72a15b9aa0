"""JobSets as their rules read them: the ways from a spec to its Jobs and their pods."""

from __future__ import annotations

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
