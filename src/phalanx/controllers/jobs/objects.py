"""Whose are the Workload and the PodGroup of a Job, and are they there?

A Workload is the Job's own if it refers to the Job and is controlled by it; it is its user's if it
refers to the Job and nobody controls it: then it is used as it is. The same holds for the group of
that Workload. Nothing is found by its name.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from phalanx.api.batch import Job
from phalanx.api.kinds import JOB
from phalanx.api.meta import Meta, OwnerReference
from phalanx.api.scheduling import PodGroup, Workload
from phalanx.api.wire import Object


@dataclass(frozen=True, slots=True)
class Found:
    """The one object there is, and whether it is the Job's own."""

    obj: Any
    is_ours: bool


@dataclass(frozen=True, slots=True)
class Missing:
    """There is none."""


@dataclass(frozen=True, slots=True)
class Unusable:
    """There are some, but which to use, or how, is not clear: the Job goes without."""

    reason: str
    message: str


Search = Found | Missing | Unusable


def find_workload(job: Job, candidates: Sequence[Workload]) -> Search:
    """The Workload of a root Job among those that refer to it."""
    usable = [one for one in candidates if _is_usable(one.metadata, job)]
    found = _only(usable, job, "Workloads")
    if isinstance(found, Found) and (number := found.obj.leaves) != 1:
        name = found.obj.metadata.name
        text = f"Workload {name} has {number} PodGroupTemplates, a Job needs exactly 1"
        return Unusable("MalformedWorkload", text)
    return found


def find_group(job: Job, candidates: Sequence[PodGroup]) -> Search:
    """The PodGroup of a Job among those of its Workload.

    One that is being deleted stays as long as it has members, so it is gone on with.
    """
    usable = [one for one in candidates if _is_theirs(one.metadata, job)]
    return _only(usable, job, "PodGroups")


def reference(job: Job) -> tuple[str, str, str]:
    """How a Workload refers to a Job."""
    return JOB.group, JOB.name, job.metadata.name


def parent(job: Job) -> OwnerReference | None:
    """Whoever controls a Job."""
    return next((one for one in job.metadata.owner_references if one.controller), None)


def as_object(job: Job) -> Object:
    """A Job as far as the builder reads it."""
    meta, spec = job.metadata, job.spec
    said = {"scheduling": spec.scheduling, "gangPolicy": spec.gang_policy}
    return {
        "apiVersion": JOB.api_version,
        "kind": JOB.name,
        "metadata": {
            "name": meta.name, "namespace": meta.namespace, "uid": meta.uid,
            "annotations": meta.annotations,
            "ownerReferences": [_owner(one) for one in meta.owner_references],
        },
        "spec": {
            "parallelism": spec.parallelism,
            "template": spec.template,
            **{name: block for name, block in said.items() if block is not None},
        },
    }  # fmt: skip


def _is_usable(meta: Meta, job: Job) -> bool:
    """Whether an object is the Job's own or its user's, and there to stay."""
    return not meta.deletion_timestamp and _is_theirs(meta, job)


def _is_theirs(meta: Meta, job: Job) -> bool:
    return _controller(meta) in (None, job.metadata.uid)


def _controller(meta: Meta) -> str | None:
    return next((one.uid for one in meta.owner_references if one.controller), None)


def _only(usable: Sequence[Workload | PodGroup], job: Job, what: str) -> Search:
    if not usable:
        return Missing()
    if len(usable) > 1:
        names = ", ".join(sorted(one.metadata.name for one in usable))
        text = f"{len(usable)} {what} refer to the Job, it uses none of them: {names}"
        return Unusable(f"Ambiguous{what.removesuffix('s')}", text)
    return Found(usable[0], _controller(usable[0].metadata) == job.metadata.uid)


def _owner(one: OwnerReference) -> Object:
    return {
        "apiVersion": one.api_version, "kind": one.kind, "name": one.name, "uid": one.uid,
        "controller": bool(one.controller),
    }  # fmt: skip
