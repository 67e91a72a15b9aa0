"""The pods of a Job: its template, filled in.

Hands: does to the pods of one Job what a look at it has found due.

A refusal is a value here: whatever else is due is done all the same, and the Job is looked at again
afterwards.

Orphans: pods that wait to be counted, and no Job is there to do it. They are let go.

A Job counts as gone only when the API itself says so: the cache may be late. A pod that another Job
will adopt is left to that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import Any, TypeVar

from phalanx.api.batch import Job
from phalanx.api.core import Pod
from phalanx.api.errors import ApiError, Conflict, NotFound
from phalanx.api.kinds import JOB, POD
from phalanx.api.meta import Key
from phalanx.api.wire import STRATEGIC_PATCH, Object
from phalanx.client.cache import ObjectCache
from phalanx.client.client import Client
from phalanx.client.transports import Unreachable
from phalanx.controllers.jobs.job_pods import (
    COMPLETION_INDEX,
    TRACKING_FINALIZER,
    controller_of,
    is_controlled_by,
    is_tracked,
    job_keys,
)
from phalanx.controllers.jobs.replicas import PodToCreate
from phalanx.controllers.jobs.sync import WARNING, JobEvent
from phalanx.controllers.jobs.write_tracker import TrackedWriter
from phalanx.controllers.reconcile_loop import Patch, StaleCacheError, perform

_MAX_NAME_PREFIX = 58
_INDEX_ENV = "JOB_COMPLETION_INDEX"


def build_pod(job: Job, new: PodToCreate, group: str) -> Object:
    """A pod of a Job, of an index if it is ordered so, in a group if there is one."""
    template, meta = job.spec.template, job.metadata
    outer, spec = template.get("metadata") or {}, dict(template.get("spec") or {})
    annotations, labels = dict(outer.get("annotations") or {}), dict(outer.get("labels") or {})
    prefix = f"{meta.name}-"
    if new.index is not None:
        number = str(new.index)
        annotations |= {COMPLETION_INDEX: number, **dict(new.annotations)}
        labels[COMPLETION_INDEX] = number
        prefix = f"{meta.name}-{number}-"[:_MAX_NAME_PREFIX]
        spec |= _with_index_env(spec)
        spec.setdefault("hostname", f"{meta.name}-{number}")
    if group and "schedulingGroup" not in spec:
        spec["schedulingGroup"] = {"podGroupName": group}
    return {
        "metadata": {
            "generateName": prefix, "namespace": meta.namespace, "labels": labels,
            "annotations": annotations,
            "finalizers": [*(outer.get("finalizers") or ()), TRACKING_FINALIZER],
            "ownerReferences": [job_owner_reference(job)],
        },
        "spec": spec,
    }  # fmt: skip


def job_owner_reference(job: Job) -> Object:
    """The Job as the controller of what it makes."""
    return {
        "apiVersion": JOB.api_version, "kind": JOB.name, "name": job.metadata.name,
        "uid": job.metadata.uid, "controller": True, "blockOwnerDeletion": True,
    }  # fmt: skip


def _with_index_env(spec: Object) -> Object:
    """The containers, each told the index of its pod."""
    return {
        kind: [_inject_index_env(container) for container in spec[kind]]
        for kind in ("initContainers", "containers")
        if spec.get(kind)
    }


def _inject_index_env(container: dict[str, Any]) -> dict[str, Any]:
    env = container.get("env") or []
    if any(one.get("name") == _INDEX_ENV for one in env):
        return container
    source = {
        "fieldRef": {"apiVersion": "v1", "fieldPath": f"metadata.labels['{COMPLETION_INDEX}']"}
    }
    return {**container, "env": [*env, {"name": _INDEX_ENV, "valueFrom": source}]}


#: Requests of one Job under way at a time.
_MAX_CONCURRENT_REQUESTS = 32
#: What takes our finalizer off a pod.
REMOVE_TRACKING_FINALIZER: Object = {"$deleteFromPrimitiveList/finalizers": [TRACKING_FINALIZER]}

#: Why something could not be done now.
OperationFailure = ApiError | Unreachable | StaleCacheError
S = TypeVar("S")
T = TypeVar("T")


class PodOperations:
    """Makes, adopts, deletes and lets go of the pods of one Job; `tell` hears of it."""

    def __init__(
        self, writer: TrackedWriter, job: Job, record_event: Callable[[JobEvent], None]
    ) -> None:
        self._writer, self._job, self._record_event = writer, job, record_event

    async def create(
        self, pods: Sequence[PodToCreate], group: str, *, at_once: bool
    ) -> tuple[int, list[OperationFailure]]:
        """Make pods: all at once, or in batches that grow, so that a bad one costs little.

        How many were made. After a failure no more are tried, and of several the first is told.
        """
        size, made = len(pods) if at_once else 1, 0
        while made < len(pods):
            batch = pods[made : made + size]
            done, failures = await run_concurrently(partial(self._create, group), batch)
            made, size = made + len(done), 2 * size
            if failures:
                if not is_namespace_terminating(failures[0]):
                    text = f"Error creating: {failures[0]}"
                    self._record_event(JobEvent("FailedCreate", text, WARNING))
                return made, failures
        return made, []

    async def delete(self, pods: Iterable[Pod]) -> tuple[list[Pod], list[OperationFailure]]:
        """Delete pods that are to be counted first; those that are going now."""
        return await run_concurrently(self._delete, pods)

    async def discard(self, pods: Iterable[Pod]) -> tuple[list[Pod], list[OperationFailure]]:
        """Delete pods that are to be counted as nothing; those that are going now."""
        return await run_concurrently(self._discard, pods)

    async def remove_finalizers(self, pods: Iterable[Pod]) -> list[OperationFailure]:
        """Take our finalizer off pods."""
        return (await run_concurrently(self._remove_finalizer, pods))[1]

    async def adopt(self, pods: Iterable[Pod]) -> list[OperationFailure]:
        """Make pods of nobody the Job's own."""
        change: Object = {
            "ownerReferences": [job_owner_reference(self._job)],
            "finalizers": [TRACKING_FINALIZER],
        }
        return (await run_concurrently(partial(self._patch_metadata, change, exact=True), pods))[1]

    async def disown(self, pods: Iterable[Pod]) -> list[OperationFailure]:
        """Give pods up, and do not hold them any longer."""
        reference = {"$patch": "delete", "uid": self._job.metadata.uid}
        change: Object = {"ownerReferences": [reference], **REMOVE_TRACKING_FINALIZER}
        return (await run_concurrently(partial(self._patch_metadata, change, exact=True), pods))[1]

    async def _create(self, group: str, new: PodToCreate) -> None:
        made = await self._writer.create(POD, build_pod(self._job, new, group))
        self._record_event(JobEvent("SuccessfulCreate", f"Created pod: {made['metadata']['name']}"))

    async def _delete(self, pod: Pod, version: str = "") -> Pod:
        """Delete a pod as it was seen, or in a later version that is our own."""
        try:
            seen = version or pod.metadata.resource_version
            await self._writer.delete(POD, pod.metadata, version=seen)
        except NotFound:
            return pod
        except Conflict:
            raise
        except ApiError as error:
            self._record_event(JobEvent("FailedDelete", f"Error deleting: {error}", WARNING))
            raise
        self._record_event(JobEvent("SuccessfulDelete", f"Deleted pod: {pod.metadata.name}"))
        return pod

    async def _discard(self, pod: Pod) -> Pod:
        # As it was seen: one that has ended since is to be counted instead.
        version = (
            await self._patch_metadata(REMOVE_TRACKING_FINALIZER, pod, exact=True)
            if is_tracked(pod)
            else ""
        )
        return await self._delete(pod, version)

    async def _remove_finalizer(self, pod: Pod) -> None:
        await self._patch_metadata(REMOVE_TRACKING_FINALIZER, pod)

    async def _patch_metadata(self, change: Object, pod: Pod, *, exact: bool = False) -> str:
        """Change the metadata of a pod, if it is still there; the version that it has then."""
        patch, content = {"metadata": change}, STRATEGIC_PATCH
        try:
            changed = await self._writer.patch(
                POD, pod.metadata, patch, content=content, exact=exact
            )
        except NotFound:
            return ""
        return str(changed["metadata"]["resourceVersion"])


async def run_concurrently(
    act: Callable[[S], Awaitable[T]], items: Iterable[S]
) -> tuple[list[T], list[OperationFailure]]:
    """Do the same to several, some of them at a time: what came of it, and what was refused."""
    gate, items = asyncio.Semaphore(_MAX_CONCURRENT_REQUESTS), tuple(items)
    if not items:
        return [], []

    async def one(item: S) -> T | OperationFailure:
        async with gate:
            try:
                return await act(item)
            except (ApiError, Unreachable) as failure:
                return failure

    done: list[T] = []
    failures: list[OperationFailure] = []
    for result in await asyncio.gather(*map(one, items)):
        if isinstance(result, ApiError | Unreachable | StaleCacheError):
            failures.append(result)
        else:
            done.append(result)
    return done, failures


def is_namespace_terminating(failure: OperationFailure) -> bool:
    """Whether it is no use trying again: the namespace is on its way out."""
    causes = failure.causes if isinstance(failure, ApiError) else ()
    return any(cause.reason == "NamespaceTerminating" for cause in causes)


class OrphanPodReleaser:
    """Lets pods go. `has_suitor` says whether a Job will adopt a pod of nobody."""

    def __init__(
        self, client: Client, pods: ObjectCache[Pod], will_be_adopted: Callable[[Pod], bool]
    ) -> None:
        self._client, self._pods, self._will_be_adopted = client, pods, will_be_adopted

    async def release(self, key: Key) -> None:
        """Let one pod go, if it is held and has nobody."""
        pod = self._pods.get(key)
        if pod is not None and is_tracked(pod) and await self._is_orphaned(pod):
            change = {"metadata": {"uid": pod.metadata.uid, **REMOVE_TRACKING_FINALIZER}}
            await perform(self._client, Patch(POD, key, change, content=STRATEGIC_PATCH))

    async def _is_orphaned(self, pod: Pod) -> bool:
        if controller_of(pod.metadata) is None:
            return not self._will_be_adopted(pod)
        for key in job_keys(pod):
            try:
                return not is_controlled_by(pod, await self._client.get(JOB, key, Job))
            except NotFound:
                return True
        return False
