"""Asks the ResourceQuotas of a namespace whether they admit the missing pods of a gang.

Before pods are created: a quota that admits only a part would leave a gang that cannot start. Usage
is computed from the template, without the defaults of the server. So the answer may admit what the
server refuses, and never refuses what the server admits; `replicas` plans after a refusal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from phalanx.api.batch import QUOTA_EXCEEDED, Job
from phalanx.api.errors import Forbidden
from phalanx.api.kinds import POD, RESOURCE_QUOTA
from phalanx.api.meta import Key
from phalanx.api.other_kinds import ResourceQuota
from phalanx.api.quota_usage import describe_excess, usage_in_quota
from phalanx.api.wire import Object
from phalanx.client.cache import ObjectCache
from phalanx.client.client import Client
from phalanx.controllers.jobs.completion import JobSnapshot
from phalanx.controllers.jobs.pod_operations import OperationFailure, build_pod
from phalanx.controllers.jobs.replicas import PodToCreate, count_desired_pods

#: Seconds after which a refused Job is synced again even if no quota changes.
RETRY_SECONDS = 60.0


def is_quota_refusal(failure: OperationFailure) -> bool:
    """Whether the server refused to create a pod because of a ResourceQuota."""
    return isinstance(failure, Forbidden) and "exceeded quota" in str(failure)


class QuotaEstimator:
    """Says whether the quotas of a namespace admit some pods of a Job.

    `on_change` is called with each refused Job of a namespace in which a quota has changed.
    """

    def __init__(
        self,
        client: Client,
        quotas: ObjectCache[ResourceQuota],
        jobs: ObjectCache[Job],
        *,
        on_change: Callable[[Key], object],
    ) -> None:
        self._client, self._on_change = client, on_change
        self._quotas = quotas.index(lambda quota: [quota.metadata.namespace])
        self._refused_jobs = jobs.index(
            lambda job: [job.metadata.namespace] if job.true_condition(QUOTA_EXCEEDED) else []
        )
        quotas.subscribe(self._on_quota_change)

    def concerns(self, job: Job) -> bool:
        """Whether a Job is, or was, under a quota."""
        is_refused = job.true_condition(QUOTA_EXCEEDED) is not None
        return is_refused or bool(self._quotas[job.metadata.namespace])

    async def find_excess(self, snapshot: JobSnapshot) -> str:
        """Say which quota does not admit the missing pods of a gang; "" if all of them do.

        Only the pods up to the size of the gang must be admitted. A refusal that the Job does not
        show yet is confirmed with the API, because the cache may be stale.
        """
        job, active = snapshot.job_pods.job, len(snapshot.job_pods.active)
        desired = count_desired_pods(snapshot)
        minimum = desired if snapshot.gang_size is None else min(snapshot.gang_size, desired)
        namespace, missing = job.metadata.namespace, max(minimum - active, 1)
        excess = _describe_excess(job, self._quotas[namespace], missing)
        if excess and job.true_condition(QUOTA_EXCEEDED) is None:
            current = await self._client.list(RESOURCE_QUOTA, ResourceQuota, namespace=namespace)
            excess = _describe_excess(job, current.items, missing)
        return excess

    def _on_quota_change(self, old: ResourceQuota | None, new: ResourceQuota | None) -> None:
        quota = new or old
        for job in self._refused_jobs[quota.metadata.namespace] if quota else ():
            self._on_change(job.metadata.key)


def _describe_excess(job: Job, quotas: Iterable[ResourceQuota], count: int) -> str:
    pod: Object | None = None
    for quota in quotas:
        pod = pod or build_pod(job, PodToCreate(), "")
        obj = {
            "metadata": {"name": quota.metadata.name},
            "spec": quota.spec,
            "status": quota.status,
        }
        usage = usage_in_quota(obj, POD, pod)
        all_usage = {name: amount * count for name, amount in usage.items()}
        if excess := describe_excess(obj, all_usage):
            needed = "1 pod is" if count == 1 else f"{count} pods are"
            return f"{needed} needed at once: {excess}"
    return ""
