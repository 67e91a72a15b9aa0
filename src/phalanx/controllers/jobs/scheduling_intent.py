"""Whose are the Workload and the PodGroup of a Job, and are they there?

    refers to the Job and is          whose it is
    controlled by this very Job       the Job's own: made, kept up to date and made again by us
    controlled by nobody, unmarked    its user's: used as it is
    anything else                     nobody's here: a leftover, or another's

The same holds for the groups of that Workload. Nothing is found by its name. Pure.

Standing: where the pods of a Job belong, and that it is still so.

Most looks at a Job are about its pods, while its Workload and its PodGroup are those of the last
look. What `arranging.py` has found in order once is kept beside what it was read from, and holds
as long as the caches show the very same. Pure.

What Jobs ask for in the way of scheduling, read once for each version of what they say.

Most looks at a Job are about its pods; what it wants of them has not changed since the last one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Generic, NamedTuple, Protocol, TypeVar

from phalanx.api.batch import Job
from phalanx.api.core import SchedulingGroup
from phalanx.api.kinds import JOB, WORKLOAD
from phalanx.api.meta import Key, ObjectMeta, OwnerReference
from phalanx.api.scheduling import (
    MANAGED_BY_ANNOTATION,
    MEMBERS_TO_RUN_ANNOTATION,
    PodGroup,
    Workload,
)
from phalanx.api.validation.job_scheduling import is_inferred_gang
from phalanx.api.wire import Object
from phalanx.builder import jobs as building
from phalanx.builder.ownership import Management
from phalanx.controllers.jobs.completion import JobSnapshot
from phalanx.controllers.jobs.job_pods import controller_of
from phalanx.controllers.jobs.replicas import count_desired_pods
from phalanx.controllers.jobs.sync import WARNING, JobEvent

T = TypeVar("T", Workload, PodGroup)


@dataclass(frozen=True, slots=True)
class ObjectFound(Generic[T]):
    """The one object there is, and whether it is the Job's own."""

    obj: T
    is_owned: bool


@dataclass(frozen=True, slots=True)
class ObjectMissing:
    """There is none."""


@dataclass(frozen=True, slots=True)
class ObjectUnusable(Generic[T]):
    """There are some, but which to use, or how, is not clear: the Job goes without.

    `spare` is the Job's own beside the one of its user, if it is as simple as that.
    """

    event: JobEvent
    redundant: T | None = None


LookupResult = ObjectFound[T] | ObjectMissing | ObjectUnusable[T]


def find_workload(job: Job, candidates: Sequence[Workload]) -> LookupResult[Workload]:
    """The Workload of a root Job among those that refer to it."""
    found = _select_single(candidates, job.metadata.uid, "Workloads")
    if isinstance(found, ObjectFound) and (number := found.obj.pod_group_template_count) != 1:
        name = found.obj.metadata.name
        text = f"Workload {name} has {number} PodGroupTemplates, a Job needs exactly 1"
        return ObjectUnusable(fallback_event("MalformedWorkload", text))
    return found


def find_parent_workload(
    owner: OwnerReference, candidates: Sequence[Workload]
) -> LookupResult[Workload]:
    """The Workload of whoever controls a Job, among those that refer to it."""
    return _select_single(candidates, owner.uid, "Workloads")


def find_pod_group(job: Job, candidates: Sequence[PodGroup]) -> LookupResult[PodGroup]:
    """The PodGroup of a Job among those of its Workload.

    One that is being deleted stays as long as it has members, so it is gone on with.
    """
    return _select_single(candidates, job.metadata.uid, "PodGroups", include_terminating=True)


def fallback_event(reason: str, message: str) -> JobEvent:
    """Why a Job goes without its objects."""
    return JobEvent(reason, f"{message}; its pods are scheduled one by one", WARNING)


def is_controlled_by_job(job: Job, meta: ObjectMeta) -> bool:
    """Whether an object is controlled by this very Job."""
    found = controller_of(meta)
    return found is not None and found.uid == job.metadata.uid


def workload_target(job: Job) -> tuple[str, str, str]:
    """How a Workload refers to a Job."""
    return JOB.group, JOB.name, job.metadata.name


def job_object(job: Job, *, use_gang_policy: bool = True, infer_gang: bool = False) -> Object:
    """A Job as far as the builder reads it.

    Without `words` its `gangPolicy` does not count; `infer` takes one that looks like a gang, and
    says nothing of it, for one.
    """
    meta, spec = job.metadata, job.spec
    said = {
        "scheduling": spec.scheduling,
        "gangPolicy": spec.gang_policy if use_gang_policy else None,
    }
    shape = {
        "parallelism": spec.parallelism, "completions": spec.completions,
        "completionMode": spec.completion_mode, "template": spec.template,
        **{name: block for name, block in said.items() if block is not None},
    }  # fmt: skip
    if infer_gang and is_inferred_gang(shape):
        shape["scheduling"] = {**(spec.scheduling or {}), "schedulingPolicy": {"gang": {}}}
    return {
        "apiVersion": JOB.api_version,
        "kind": JOB.name,
        "metadata": {
            "name": meta.name, "namespace": meta.namespace, "uid": meta.uid,
            "annotations": meta.annotations,
            "ownerReferences": [_owner_object(one) for one in meta.owner_references],
        },
        "spec": shape,
    }  # fmt: skip


def workload_object(workload: Workload) -> Object:
    """A Workload as far as groups are made of it."""
    meta, spec = workload.metadata, workload.spec
    return {
        "apiVersion": WORKLOAD.api_version,
        "kind": WORKLOAD.name,
        "metadata": {"name": meta.name, "namespace": meta.namespace, "uid": meta.uid},
        "spec": {
            "podGroupTemplates": list(spec.pod_group_templates or ()),
            "compositePodGroupTemplates": list(spec.composite_pod_group_templates or ()),
        },
    }


def _select_single(
    candidates: Sequence[T], owner: str, what: str, *, include_terminating: bool = False
) -> LookupResult[T]:
    """The one that is of an owner, by uid, or of its user."""
    usable = [
        one
        for one in candidates
        if _is_usable(one.metadata, owner)
        and (include_terminating or not one.metadata.deletion_timestamp)
    ]
    if not usable:
        return ObjectMissing()
    if len(usable) == 1:
        return ObjectFound(usable[0], controller_of(usable[0].metadata) is not None)
    own = [one for one in usable if controller_of(one.metadata)]
    names = ", ".join(sorted(one.metadata.name for one in usable))
    text = f"{len(usable)} {what} are about the Job: {names}"
    spare = own[0] if len(own) == 1 and len(usable) == 2 else None
    return ObjectUnusable(fallback_event(f"Ambiguous{what.removesuffix('s')}", text), spare)


def _is_usable(meta: ObjectMeta, owner: str) -> bool:
    found = controller_of(meta)
    return found.uid == owner if found else MANAGED_BY_ANNOTATION not in meta.annotations


def _owner_object(one: OwnerReference) -> Object:
    return {
        "apiVersion": one.api_version, "kind": one.kind, "name": one.name, "uid": one.uid,
        "controller": bool(one.controller),
    }  # fmt: skip


@dataclass(frozen=True, slots=True)
class GroupMembership:
    """The group that the pods of a Job belong to ("": none), and whether that is a gang.

    `fallback` says why there is none, if there should be one.
    """

    group: str = ""
    is_gang: bool = False
    fallback: JobEvent | None = None


NO_GROUP = GroupMembership()


class SchedulingObjectLister(Protocol):
    """Where Workloads and PodGroups are found."""

    def workloads(self, namespace: str, about: tuple[str, str, str]) -> Sequence[Workload]:
        """Those that are about an object, by its group, kind and name."""
        ...

    def groups(self, workload: Workload) -> Sequence[PodGroup]:
        """Those that are made of a Workload."""
        ...

    @property
    def is_queue_long(self) -> bool:
        """Whether many Jobs wait, so that no more is done about one than must be now."""
        ...

    async def wait_until_cached(self, workload: Workload) -> None:
        """Return when a Workload that was just made is seen; raises Behind if it is not."""
        ...


class SchedulingObjects(NamedTuple):
    """All that whoever looks for the group of a Job, given its Workload, has to choose from."""

    workloads: Sequence[Workload]
    groups: Sequence[PodGroup]

    @classmethod
    def from_lister(cls, lister: SchedulingObjectLister, workload: Workload) -> SchedulingObjects:
        """Those that are there now."""
        about, namespace = workload.controller_identity, workload.metadata.namespace
        return cls(lister.workloads(namespace, about) if about else (), lister.groups(workload))


@dataclass(frozen=True, slots=True)
class VerifiedScheduling:
    """That a Job has its objects and they are as it asks for.

    `size` is how many members its gang needs, if the Job is to say how many will still run.
    """

    membership: GroupMembership
    workload: Workload
    group: PodGroup
    objects: SchedulingObjects
    size: int | None

    def is_current(self, lister: SchedulingObjectLister, snapshot: JobSnapshot) -> bool:
        """Whether it is still so."""
        if SchedulingObjects.from_lister(lister, self.workload) != self.objects:
            return False
        said = self.group.metadata.annotations.get(MEMBERS_TO_RUN_ANNOTATION)
        return self.size is None or said == members_to_run(
            snapshot, self.membership.group, self.size
        )


def members_to_run(snapshot: JobSnapshot, group: str, size: int) -> str | None:
    """How many members of a gang will still run, where that is fewer than it needs."""
    own = SchedulingGroup(group)
    active = [pod.spec.scheduling_group for pod in snapshot.job_pods.active]
    members = count_desired_pods(snapshot) - len(active) + active.count(own)
    return str(members) if 0 < members < size else None


class SchedulingIntent:
    """What one Job asks for, as the builder reads it; and where it stands, if it has that."""

    def __init__(self, job: Object, *, include_basic: bool) -> None:
        self.job = job
        self.verified: VerifiedScheduling | None = None
        self._include_basic = include_basic

    @cached_property
    def management(self) -> Management:
        """What of its objects is to be made."""
        return building.management(self.job, basic=self._include_basic)

    @cached_property
    def size(self) -> int | None:
        """How many pods it needs to begin; None if it is no gang."""
        return building.gang_size(self.job)


class SchedulingIntents:
    """What all Jobs ask for, each as it was last seen. The options are those of `Settings`."""

    def __init__(self, *, include_basic: bool, use_gang_policy: bool, infer_gang: bool) -> None:
        self._include_basic, self._use_gang_policy, self._infer_gang = (
            include_basic,
            use_gang_policy,
            infer_gang,
        )
        self._cache: dict[Key, tuple[object, SchedulingIntent]] = {}

    def get(self, job: Job) -> SchedulingIntent:
        """What a Job asks for."""
        said, known = _intent_version(job), self._cache.get(job.metadata.key)
        if known is not None and known[0] == said:
            return known[1]
        wish = SchedulingIntent(
            job_object(job, use_gang_policy=self._use_gang_policy, infer_gang=self._infer_gang),
            include_basic=self._include_basic,
        )
        self._cache[job.metadata.key] = said, wish
        return wish

    def forget(self, job: Key) -> None:
        """A Job is gone."""
        self._cache.pop(job, None)


def _intent_version(job: Job) -> object:
    """All that a wish depends on: the spec, which has a generation, owners and annotations."""
    meta = job.metadata
    return meta.uid, meta.generation, meta.annotations, meta.owner_references
