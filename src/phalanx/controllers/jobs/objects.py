"""Whose are the Workload and the PodGroup of a Job, and are they there?

    refers to the Job and is          whose it is
    controlled by this very Job       the Job's own: made, kept up to date and made again by us
    controlled by nobody, unmarked    its user's: used as it is
    anything else                     nobody's here: a leftover, or another's

The same holds for the groups of that Workload. Nothing is found by its name. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from phalanx.api.batch import Job
from phalanx.api.kinds import JOB, WORKLOAD
from phalanx.api.meta import Meta, OwnerReference
from phalanx.api.rules.gangpolicy import is_gang_by_shape
from phalanx.api.scheduling import MANAGED_BY, PodGroup, Workload
from phalanx.api.wire import Object
from phalanx.controllers.jobs.claiming import controller
from phalanx.controllers.jobs.sync import WARNING, Remark

T = TypeVar("T", Workload, PodGroup)


@dataclass(frozen=True, slots=True)
class Found(Generic[T]):
    """The one object there is, and whether it is the Job's own."""

    obj: T
    is_ours: bool


@dataclass(frozen=True, slots=True)
class Missing:
    """There is none."""


@dataclass(frozen=True, slots=True)
class Unusable(Generic[T]):
    """There are some, but which to use, or how, is not clear: the Job goes without.

    `spare` is the Job's own beside the one of its user, if it is as simple as that.
    """

    why: Remark
    spare: T | None = None


Search = Found[T] | Missing | Unusable[T]


def find_workload(job: Job, candidates: Sequence[Workload]) -> Search[Workload]:
    """The Workload of a root Job among those that refer to it."""
    found = _only(candidates, job.metadata.uid, "Workloads")
    if isinstance(found, Found) and (number := found.obj.leaves) != 1:
        name = found.obj.metadata.name
        text = f"Workload {name} has {number} PodGroupTemplates, a Job needs exactly 1"
        return Unusable(fallback("MalformedWorkload", text))
    return found


def find_parent(owner: OwnerReference, candidates: Sequence[Workload]) -> Search[Workload]:
    """The Workload of whoever controls a Job, among those that refer to it."""
    return _only(candidates, owner.uid, "Workloads")


def find_group(job: Job, candidates: Sequence[PodGroup]) -> Search[PodGroup]:
    """The PodGroup of a Job among those of its Workload.

    One that is being deleted stays as long as it has members, so it is gone on with.
    """
    return _only(candidates, job.metadata.uid, "PodGroups", also_leaving=True)


def fallback(reason: str, message: str) -> Remark:
    """Why a Job goes without its objects."""
    return Remark(reason, f"{message}; its pods are scheduled one by one", WARNING)


def controls(job: Job, meta: Meta) -> bool:
    """Whether an object is controlled by this very Job."""
    found = controller(meta)
    return found is not None and found.uid == job.metadata.uid


def reference(job: Job) -> tuple[str, str, str]:
    """How a Workload refers to a Job."""
    return JOB.group, JOB.name, job.metadata.name


def as_object(job: Job, *, words: bool = True, infer: bool = False) -> Object:
    """A Job as far as the builder reads it.

    Without `words` its `gangPolicy` does not count; `infer` takes one that looks like a gang, and
    says nothing of it, for one.
    """
    meta, spec = job.metadata, job.spec
    said = {"scheduling": spec.scheduling, "gangPolicy": spec.gang_policy if words else None}
    shape = {
        "parallelism": spec.parallelism, "completions": spec.completions,
        "completionMode": spec.completion_mode, "template": spec.template,
        **{name: block for name, block in said.items() if block is not None},
    }  # fmt: skip
    if infer and is_gang_by_shape(shape):
        shape["scheduling"] = {**(spec.scheduling or {}), "schedulingPolicy": {"gang": {}}}
    return {
        "apiVersion": JOB.api_version,
        "kind": JOB.name,
        "metadata": {
            "name": meta.name, "namespace": meta.namespace, "uid": meta.uid,
            "annotations": meta.annotations,
            "ownerReferences": [_owner(one) for one in meta.owner_references],
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


def _only(
    candidates: Sequence[T], owner: str, what: str, *, also_leaving: bool = False
) -> Search[T]:
    """The one that is of an owner, by uid, or of its user."""
    usable = [
        one
        for one in candidates
        if _is_theirs(one.metadata, owner) and (also_leaving or not one.metadata.deletion_timestamp)
    ]
    if not usable:
        return Missing()
    if len(usable) == 1:
        return Found(usable[0], controller(usable[0].metadata) is not None)
    own = [one for one in usable if controller(one.metadata)]
    names = ", ".join(sorted(one.metadata.name for one in usable))
    text = f"{len(usable)} {what} are about the Job: {names}"
    spare = own[0] if len(own) == 1 and len(usable) == 2 else None
    return Unusable(fallback(f"Ambiguous{what.removesuffix('s')}", text), spare)


def _is_theirs(meta: Meta, owner: str) -> bool:
    found = controller(meta)
    return found.uid == owner if found else MANAGED_BY not in meta.annotations


def _owner(one: OwnerReference) -> Object:
    return {
        "apiVersion": one.api_version, "kind": one.kind, "name": one.name, "uid": one.uid,
        "controller": bool(one.controller),
    }  # fmt: skip
