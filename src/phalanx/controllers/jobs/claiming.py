"""Claiming: which pods are a Job's. Its own that fit its selector, and those of nobody that do.

A pod whose labels were changed so that it fits no more is let go. Pure; the controller performs it.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import NamedTuple

from phalanx.api.batch import Job
from phalanx.api.core import Pod
from phalanx.api.kinds import JOB
from phalanx.api.labelselectors import requirements
from phalanx.api.meta import Key, Meta, OwnerReference
from phalanx.api.selectors import BadSelector, Requirement
from phalanx.controllers.jobs.roll import is_leaving

_JOB = JOB.name, JOB.api_version


class Claim(NamedTuple):
    """The pods of a Job, those that are to become its own, and those that cease to be."""

    own: list[Pod]
    adopt: list[Pod]
    disown: list[Pod]


def claim(job: Job, owned: Iterable[Pod], loose: Iterable[Pod]) -> Claim:
    """Sort pods that a Job controls, and pods that nobody does.

    A Job that is being deleted neither takes nor gives.
    """
    needs = _needs(job)
    fitting: list[Pod] = []
    others: list[Pod] = []
    for pod in owned:
        (fitting if _fits(needs, pod) else others).append(pod)
    if job.metadata.deletion_timestamp:
        return Claim(fitting, [], [])
    adopted = [pod for pod in loose if not is_leaving(pod) and _fits(needs, pod)]
    return Claim(fitting, adopted, others)


def wants(job: Job, pod: Pod) -> bool:
    """Whether a Job would adopt a pod."""
    return not job.ended and bool(claim(job, (), [pod]).adopt)


def controller(meta: Meta) -> OwnerReference | None:
    """Whoever controls an object."""
    for one in meta.owner_references:
        if one.controller:
            return one
    return None


def job_of(pod: Pod) -> OwnerReference | None:
    """The Job that controls a pod."""
    found = controller(pod.metadata)
    return found if found and (found.kind, found.api_version) == _JOB else None


def job_key(pod: Pod) -> list[Key]:
    """Where the Job is that controls a pod, if one does."""
    found = job_of(pod)
    return [Key(pod.metadata.namespace, found.name)] if found else []


def is_of(pod: Pod, job: Job) -> bool:
    """Whether a pod belongs to this very Job, not to an earlier one of the same name."""
    found = job_of(pod)
    return found is not None and found.uid == job.metadata.uid


def places(pod: Pod) -> list[Hashable]:
    """Where to look for a pod that nobody controls: in its namespace, and by each of its labels."""
    meta = pod.metadata
    if controller(meta) is not None:
        return []
    return [(meta.namespace,), *((meta.namespace, *label) for label in meta.labels.items())]


def place(job: Job) -> Hashable:
    """The place where all pods are that a Job may adopt: by one label, if it asks for any."""
    labels = (job.spec.selector or {}).get("matchLabels") or {}
    return (job.metadata.namespace, *min(labels.items(), default=()))


def _needs(job: Job) -> tuple[Requirement, ...] | None:
    """What labels a Job's pods have; None if that cannot be told."""
    try:
        return requirements(job.spec.selector) if job.spec.selector is not None else None
    except BadSelector:
        return None


def _fits(needs: tuple[Requirement, ...] | None, pod: Pod) -> bool:
    return needs is not None and all(need.matches(pod.metadata.labels) for need in needs)
