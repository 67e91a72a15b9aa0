"""What a Job asks of its scheduling, and whether its Workload and PodGroup provide it.

Two parts, both pure. `phalanx.builder.ensure` plans the objects from an intent, `workload_objects`
performs the plan.

- `SchedulingIntents`: what each Job asks for, computed once per version of the Job. Most syncs are
  about its pods.
- `VerifiedScheduling`: that Workload and PodGroup were right at an earlier sync. It holds while the
  caches show the same objects.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, Protocol

from phalanx.api.batch import Job
from phalanx.api.core import SchedulingGroup
from phalanx.api.kinds import JOB
from phalanx.api.meta import Key, OwnerReference
from phalanx.api.scheduling import (
    MEMBERS_TO_RUN_ANNOTATION,
    PodGroup,
    Workload,
)
from phalanx.api.validation.job_policies import is_inferred_gang
from phalanx.api.wire import Object
from phalanx.builder import jobs as job_builder
from phalanx.builder.builder import WorkloadBuilder
from phalanx.builder.ensure import encode_members_to_run
from phalanx.builder.ownership import SCHEDULING_PARENTS, Management
from phalanx.controllers.jobs.completion import JobSnapshot
from phalanx.controllers.jobs.replicas import count_desired_pods
from phalanx.controllers.jobs.sync import WARNING, JobEvent


def fallback_event(reason: str, message: str) -> JobEvent:
    """Build the event for a Job whose pods are scheduled without a PodGroup."""
    return JobEvent(reason, f"{message}; its pods are scheduled one by one", WARNING)


def workload_target(job: Job) -> tuple[str, str, str]:
    """Return the `controllerRef` of a Job's Workload: group, kind and name."""
    return JOB.group, JOB.name, job.metadata.name


def job_object(job: Job, *, use_gang_policy: bool = True, infer_gang: bool = False) -> Object:
    """Encode the fields of a Job that the builder reads.

    Without `use_gang_policy` the field `gangPolicy` is left out. With `infer_gang` a Job that has
    the shape of a gang, and no policy, is encoded as a gang.
    """
    meta, spec = job.metadata, job.spec
    optional = {
        "scheduling": spec.scheduling,
        "gangPolicy": spec.gang_policy if use_gang_policy else None,
    }
    encoded = {
        "parallelism": spec.parallelism,
        "completions": spec.completions,
        "completionMode": spec.completion_mode,
        "template": spec.template,
        **{name: value for name, value in optional.items() if value is not None},
    }
    if infer_gang and is_inferred_gang(encoded):
        encoded["scheduling"] = {**(spec.scheduling or {}), "schedulingPolicy": {"gang": {}}}
    return {
        "apiVersion": JOB.api_version,
        "kind": JOB.name,
        "metadata": {
            "name": meta.name,
            "namespace": meta.namespace,
            "uid": meta.uid,
            "annotations": meta.annotations,
            "ownerReferences": [_owner_object(owner) for owner in meta.owner_references],
        },
        "spec": encoded,
    }


def _owner_object(owner: OwnerReference) -> Object:
    return {
        "apiVersion": owner.api_version,
        "kind": owner.kind,
        "name": owner.name,
        "uid": owner.uid,
        "controller": bool(owner.controller),
    }


@dataclass(frozen=True, slots=True)
class GroupMembership:
    """The PodGroup that new pods of a Job join ("" for none), and whether it is a gang.

    `fallback` is why there is none although the Job should have one.
    """

    group: str = ""
    is_gang: bool = False
    fallback: JobEvent | None = None


NO_GROUP = GroupMembership()


class SchedulingObjectLister(Protocol):
    """Lists Workloads and PodGroups from the caches."""

    def workloads(self, namespace: str, target: tuple[str, str, str]) -> Sequence[Workload]:
        """List the Workloads whose `controllerRef` is this group, kind and name."""
        ...

    def workload(self, key: Key) -> Workload | None:
        """Return a Workload by its key."""
        ...

    def groups(self, workload: Workload) -> Sequence[PodGroup]:
        """List the PodGroups of a Workload."""
        ...

    @property
    def is_queue_long(self) -> bool:
        """Whether many Jobs wait: then one sync makes no more than the first missing object."""
        ...

    def remember_ancestors(self, job: Key, above: Sequence[tuple[str, str, str, str]]) -> None:
        """Sync a Job again when the Workload of a controller far above it changes."""
        ...

    async def wait_until_cached(self, workload: Workload) -> None:
        """Wait until the cache has a new Workload; raise StaleCacheError after a timeout."""
        ...


class SchedulingObjects(NamedTuple):
    """The candidates for the Workload and the PodGroup of a Job."""

    workloads: Sequence[Workload]
    groups: Sequence[PodGroup]

    @classmethod
    def from_lister(cls, lister: SchedulingObjectLister, workload: Workload) -> SchedulingObjects:
        """List the candidates of the Job to which a Workload refers."""
        target, namespace = workload.controller_identity, workload.metadata.namespace
        return cls(lister.workloads(namespace, target) if target else (), lister.groups(workload))


@dataclass(frozen=True, slots=True)
class VerifiedScheduling:
    """The Workload and PodGroup of a Job, as an earlier sync verified them.

    `size` is the `minCount` of the Job's own gang; None if no members-to-run annotation is due.
    """

    membership: GroupMembership
    workload: Workload
    group: PodGroup
    objects: SchedulingObjects
    size: int | None

    def is_current(self, lister: SchedulingObjectLister, snapshot: JobSnapshot) -> bool:
        """Whether the caches show the same objects and the annotation is still right."""
        if SchedulingObjects.from_lister(lister, self.workload) != self.objects:
            return False
        if self.size is None:
            return True
        members = count_members_to_run(snapshot, self.membership.group)
        annotated = self.group.metadata.annotations.get(MEMBERS_TO_RUN_ANNOTATION)
        return annotated == encode_members_to_run(members, self.size)


def count_members_to_run(snapshot: JobSnapshot, group: str) -> int:
    """Count the members of a PodGroup of a Job that run or are still to run."""
    member = SchedulingGroup(group)
    active = [pod.spec.scheduling_group for pod in snapshot.job_pods.active]
    return count_desired_pods(snapshot) - len(active) + active.count(member)


class SchedulingIntent:
    """What one Job asks for, as the builder reads it; `verified` once its objects are right."""

    def __init__(
        self,
        job: Object,
        *,
        include_basic: bool,
        parents: Collection[tuple[str, str]] = SCHEDULING_PARENTS,
    ) -> None:
        self.job, self._parents = job, parents
        self.verified: VerifiedScheduling | None = None
        self._include_basic = include_basic

    @cached_property
    def management(self) -> Management:
        """Which scheduling objects the controller manages for the Job."""
        return job_builder.decide_job_management(
            self.job, basic=self._include_basic, parents=self._parents
        )

    @cached_property
    def builder(self) -> WorkloadBuilder:
        """The builder of the Workload of the Job."""
        return job_builder.new_builder(self.job)

    @cached_property
    def size(self) -> int | None:
        """The `minCount` that the Job asks for; None if it is not a gang."""
        return job_builder.gang_size(self.job)


class SchedulingIntents:
    """The intents of all Jobs. The options are those of `JobSchedulingOptions`."""

    def __init__(
        self,
        *,
        include_basic: bool,
        use_gang_policy: bool,
        infer_gang: bool,
        parents: Collection[tuple[str, str]] = SCHEDULING_PARENTS,
    ) -> None:
        self._include_basic, self._use_gang_policy = include_basic, use_gang_policy
        self._infer_gang, self._parents = infer_gang, parents
        self._cache: dict[Key, tuple[object, SchedulingIntent]] = {}

    def get(self, job: Job) -> SchedulingIntent:
        """Return the intent of a Job; computed again only if the Job has changed."""
        meta = job.metadata
        # All that an intent depends on; the generation stands for the spec.
        version = meta.uid, meta.generation, meta.annotations, meta.owner_references
        cached = self._cache.get(meta.key)
        if cached is not None and cached[0] == version:
            return cached[1]
        intent = SchedulingIntent(
            job_object(job, use_gang_policy=self._use_gang_policy, infer_gang=self._infer_gang),
            include_basic=self._include_basic,
            parents=self._parents,
        )
        self._cache[meta.key] = version, intent
        return intent

    def forget(self, job: Key) -> None:
        """Drop the intent of a deleted Job."""
        self._cache.pop(job, None)
