"""PodGroups for gang Jobs that another controller runs.

Where a server has no `managedBy`, or a Job leaves it out, the cluster's own Job controller creates
the pods. The annotations of the pod template ask for a gang (`api/workload_sources.py`), and every
pod that has them belongs to the group of its Job's name: the scheduler waits until the group
exists. This controller creates it, and follows the Job:

    parallelism or min-count changes      minCount of the group
    fewer pods are left to run            the annotation with the members to run
    the Job is deleted                    the garbage collector deletes the group with its owner
"""

from __future__ import annotations

from collections.abc import Callable

from phalanx.api.batch import OWN_JOB_CONTROLLER, Job
from phalanx.api.kinds import JOB, POD_GROUP
from phalanx.api.meta import Key
from phalanx.api.scheduling import MEMBERS_TO_RUN_ANNOTATION, PodGroup
from phalanx.api.wire import Object
from phalanx.api.workload_sources import (
    GANG,
    POLICY_ANNOTATION,
    job_annotations,
    read_scheduling_annotations,
)
from phalanx.client.client import Client
from phalanx.controllers.event_recorder import ObjectEvent
from phalanx.controllers.pod_ownership import controller_reference
from phalanx.controllers.reconcile_loop import (
    Create,
    Informers,
    Patch,
    ReconcileLoop,
    ReconcilePlan,
    RecordEvent,
)


class JobGroups:
    """Creates and updates the PodGroups of gang Jobs of other controllers."""

    def __init__(
        self, client: Client, informers: Informers, record: Callable[[ObjectEvent], None]
    ) -> None:
        self._jobs, self._groups = informers.of(Job).cache, informers.of(PodGroup).cache
        self._loop: ReconcileLoop[Key] = ReconcileLoop(client, self.reconcile, record=record)
        self._jobs.subscribe(self._on_change)
        self._groups.subscribe(self._on_change)

    async def run(self) -> None:
        """Follow Jobs until cancelled."""
        await self._loop.run()

    def reconcile(self, key: Key) -> ReconcilePlan:
        """Create or update the PodGroup of a Job."""
        job, group = self._jobs.get(key), self._groups.get(key)
        if job is None or not _needs_group(job):
            return ReconcilePlan()
        wanted = _build_group(job)
        if group is None:
            return ReconcilePlan([Create(POD_GROUP, wanted, owner_uid=job.metadata.uid)])
        if not group.metadata.is_controlled_by(job.metadata.uid):
            message = f"PodGroup {key.name} belongs to something else; rename the Job"
            event = ObjectEvent(JOB, job.metadata, "FailedPodGroupCreate", message, type="Warning")
            return ReconcilePlan([RecordEvent(event)])
        change: Object = {}
        size = wanted["spec"]["schedulingPolicy"]["gang"]["minCount"]
        if size != group.min_count:
            change["spec"] = {"schedulingPolicy": {"gang": {"minCount": size}}}
        left = _members_to_run(job, size)
        if left != group.metadata.annotations.get(MEMBERS_TO_RUN_ANNOTATION):
            change["metadata"] = {"annotations": {MEMBERS_TO_RUN_ANNOTATION: left}}
        return ReconcilePlan([Patch(POD_GROUP, key, change)] if change else [])

    def _on_change(self, old: Job | PodGroup | None, new: Job | PodGroup | None) -> None:
        changed = new or old
        if changed is not None and changed.metadata.key in self._jobs:
            self._loop.queue.add(changed.metadata.key)


def _needs_group(job: Job) -> bool:
    """Whether the pods of a Job name a group that no other controller creates."""
    template = job.spec.template
    annotations = (template.get("metadata") or {}).get("annotations") or {}
    if job.spec.managed_by == OWN_JOB_CONTROLLER or job.is_finished:
        return False
    names_another = "schedulingGroup" in (template.get("spec") or {})
    return annotations.get(POLICY_ANNOTATION) == GANG and not names_another


def _build_group(job: Job) -> Object:
    """Build the PodGroup of a Job; `minCount` is at most the number of pods that run at once."""
    meta, scheduling = job.metadata, read_scheduling_annotations(job_annotations(job)) or {}
    at_once = min(job.spec.parallelism, job.spec.completions or job.spec.parallelism)
    count = scheduling["schedulingPolicy"]["gang"].get("minCount", at_once)
    spec: Object = {"schedulingPolicy": {"gang": {"minCount": max(min(count, at_once), 1)}}}
    if "schedulingConstraints" in scheduling:
        spec["schedulingConstraints"] = scheduling["schedulingConstraints"]
    owner = controller_reference(JOB, meta)
    return {
        "apiVersion": POD_GROUP.api_version,
        "kind": POD_GROUP.name,
        "metadata": {"name": meta.name, "namespace": meta.namespace, "ownerReferences": [owner]},
        "spec": spec,
    }


def _members_to_run(job: Job, size: int) -> str | None:
    """Return how many members are left to run if they are fewer than `minCount`."""
    if job.spec.completions is None:
        return None
    left = job.spec.completions - job.status.succeeded
    return str(left) if 0 < left < size else None
