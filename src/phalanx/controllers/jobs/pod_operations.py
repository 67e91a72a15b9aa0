"""API requests for the pods of a Job: create, adopt, release, delete, remove finalizers.

`build_pod` fills in the pod template of a Job. `PodOperations` performs the parts of one sync. A
failed request is a return value there: the other requests of the sync are still made, and the
controller retries the Job afterwards. `OrphanPodReconciler` removes the tracking finalizer from
pods whose Job is gone; it confirms that with the API, because the cache may be stale.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import Any, TypeVar

from msgspec.structs import replace

from phalanx import logs
from phalanx.api.batch import Job
from phalanx.api.core import Pod
from phalanx.api.errors import ApiError, Conflict, NotFound
from phalanx.api.kinds import JOB, POD
from phalanx.api.meta import Key, timestamp
from phalanx.api.scheduling import DISRUPTION_TARGET
from phalanx.api.wire import STRATEGIC_PATCH, Object
from phalanx.client.cache import ObjectCache
from phalanx.client.client import Client
from phalanx.client.transports import Unreachable
from phalanx.controllers.jobs.job_pods import (
    COMPLETION_INDEX,
    TRACKING_FINALIZER,
    is_tracked,
    job_keys,
)
from phalanx.controllers.jobs.replicas import PodToCreate
from phalanx.controllers.jobs.sync import WARNING, JobEvent
from phalanx.controllers.pod_ownership import controller_reference
from phalanx.controllers.reconcile_loop import (
    Patch,
    StaleCacheError,
    is_namespace_terminating,
    perform,
)
from phalanx.controllers.write_tracker import TrackedWriter

LOG = logs.component("job-controller")
#: The longest `generateName` of an indexed pod: five random characters follow, 63 are allowed.
_MAX_NAME_PREFIX = 58
_INDEX_ENV = "JOB_COMPLETION_INDEX"
#: The reason of DisruptionTarget on the pods of a gang that is restarted.
RESTART_REASON = "GangRestart"


def build_pod(job: Job, new: PodToCreate, group: str) -> Object:
    """Build a pod of a Job; `group` is the name of its PodGroup, "" for none."""
    template, meta = job.spec.template, job.metadata
    template_meta, spec = template.get("metadata") or {}, dict(template.get("spec") or {})
    annotations = dict(template_meta.get("annotations") or {})
    labels = dict(template_meta.get("labels") or {})
    prefix = f"{meta.name}-"
    if new.index is not None:
        index = str(new.index)
        annotations |= {COMPLETION_INDEX: index, **dict(new.annotations)}
        labels[COMPLETION_INDEX] = index
        prefix = f"{meta.name}-{index}-"[:_MAX_NAME_PREFIX]
        for field in ("initContainers", "containers"):
            if spec.get(field):
                spec[field] = [_inject_index_env(container) for container in spec[field]]
        spec.setdefault("hostname", f"{meta.name}-{index}")
    if group and "schedulingGroup" not in spec:
        spec["schedulingGroup"] = {"podGroupName": group}
    return {
        "metadata": {
            "generateName": prefix,
            "namespace": meta.namespace,
            "labels": labels,
            "annotations": annotations,
            "finalizers": [*(template_meta.get("finalizers") or ()), TRACKING_FINALIZER],
            "ownerReferences": [controller_reference(JOB, job.metadata)],
        },
        "spec": spec,
    }


def _inject_index_env(container: dict[str, Any]) -> dict[str, Any]:
    env = container.get("env") or []
    if any(one.get("name") == _INDEX_ENV for one in env):
        return container
    source = {
        "fieldRef": {"apiVersion": "v1", "fieldPath": f"metadata.labels['{COMPLETION_INDEX}']"}
    }
    return {**container, "env": [*env, {"name": _INDEX_ENV, "valueFrom": source}]}


#: The most concurrent requests for one Job.
_MAX_CONCURRENT_REQUESTS = 32
#: The patch of the metadata that removes the tracking finalizer.
REMOVE_TRACKING_FINALIZER: Object = {"$deleteFromPrimitiveList/finalizers": [TRACKING_FINALIZER]}

#: A failed request, or a cache that is too old to make it.
OperationFailure = ApiError | Unreachable | StaleCacheError
S = TypeVar("S")
T = TypeVar("T")


class PodOperations:
    """Performs requests for the pods of one Job and records events about them."""

    def __init__(
        self, writer: TrackedWriter, job: Job, record_event: Callable[[JobEvent], None]
    ) -> None:
        self._writer, self._job, self._record_event = writer, job, record_event

    async def create(
        self, pods: Sequence[PodToCreate], group: str, *, first_batch: int
    ) -> tuple[int, list[OperationFailure]]:
        """Create pods in batches that double, so that a quota costs few requests.

        Stops after the batch with the first failure. Returns the number of pods created and the
        failures; the first failure is recorded as an event.
        """
        size, created = max(first_batch, 1), 0
        while created < len(pods):
            batch = pods[created : created + size]
            done, failures = await run_concurrently(partial(self._create, group), batch)
            created, size = created + len(done), 2 * size
            if failures:
                if not is_namespace_terminating(failures[0]):
                    text = f"Error creating: {failures[0]}"
                    self._record_event(JobEvent("FailedCreate", text, WARNING))
                return created, failures
        return created, []

    async def delete(self, pods: Iterable[Pod]) -> tuple[list[Pod], list[OperationFailure]]:
        """Delete pods, which keep their finalizer until they are counted; return the deleted."""
        return await run_concurrently(self._delete, pods)

    async def discard(self, pods: Iterable[Pod]) -> tuple[list[Pod], list[OperationFailure]]:
        """Remove the finalizer of pods and delete them, so that they are not counted."""
        return await run_concurrently(self._discard, pods)

    async def evict(
        self, pods: Iterable[Pod], message: str, now: float
    ) -> tuple[list[Pod], list[OperationFailure]]:
        """Mark pods as disrupted, then discard them."""
        condition = {
            "type": DISRUPTION_TARGET,
            "status": "True",
            "reason": RESTART_REASON,
            "message": message,
            "lastTransitionTime": timestamp(now),
        }
        return await run_concurrently(partial(self._evict, condition), pods)

    async def remove_finalizers(self, pods: Iterable[Pod]) -> list[OperationFailure]:
        """Remove the tracking finalizer of pods that the status counts."""
        remove = partial(self._patch_metadata, "Finalizer removed", REMOVE_TRACKING_FINALIZER)
        return (await run_concurrently(remove, pods))[1]

    async def adopt(self, pods: Iterable[Pod]) -> list[OperationFailure]:
        """Make the Job the controller of pods, and track them."""
        change: Object = {
            "ownerReferences": [controller_reference(JOB, self._job.metadata)],
            "finalizers": [TRACKING_FINALIZER],
        }
        adopt = partial(self._patch_metadata, "Pod adopted", change, exact=True)
        return (await run_concurrently(adopt, pods))[1]

    async def release(self, pods: Iterable[Pod]) -> list[OperationFailure]:
        """Remove the owner reference and the finalizer from pods that match no longer."""
        reference = {"$patch": "delete", "uid": self._job.metadata.uid}
        change: Object = {"ownerReferences": [reference], **REMOVE_TRACKING_FINALIZER}
        release = partial(self._patch_metadata, "Pod released", change, exact=True)
        return (await run_concurrently(release, pods))[1]

    async def _create(self, group: str, new: PodToCreate) -> None:
        created = await self._writer.create(POD, build_pod(self._job, new, group), brief=True)
        name = created["metadata"]["name"]
        self._record_event(JobEvent("SuccessfulCreate", f"Created pod: {name}"))
        self._log("Pod created", name)

    async def _delete(self, pod: Pod, version: str = "") -> Pod:
        """Delete a pod in the version of the cache, or in the later `version` that we wrote."""
        name = pod.metadata.name
        try:
            await self._writer.delete(
                POD, pod.metadata, version=version or pod.metadata.resource_version
            )
        except NotFound:
            return pod
        except Conflict:
            raise
        except ApiError as error:
            self._record_event(JobEvent("FailedDelete", f"Error deleting: {error}", WARNING))
            raise
        self._record_event(JobEvent("SuccessfulDelete", f"Deleted pod: {name}"))
        self._log("Pod deleted", name)
        return pod

    async def _evict(self, condition: Object, pod: Pod) -> Pod:
        change = {"status": {"conditions": [condition]}}
        try:
            patched = await self._writer.patch(
                POD,
                pod.metadata,
                change,
                content=STRATEGIC_PATCH,
                subresource="status",
                exact=True,
            )
        except NotFound:
            return pod
        version = str(patched["metadata"]["resourceVersion"])
        return await self._discard(
            replace(pod, metadata=replace(pod.metadata, resource_version=version))
        )

    async def _discard(self, pod: Pod) -> Pod:
        version = ""
        if is_tracked(pod):
            # Exact: a pod that has terminated meanwhile must be counted instead.
            version = await self._patch_metadata(
                "Finalizer removed", REMOVE_TRACKING_FINALIZER, pod, exact=True
            )
        return await self._delete(pod, version)

    async def _patch_metadata(
        self, action: str, change: Object, pod: Pod, *, exact: bool = False
    ) -> str:
        """Patch the metadata of a pod and return its new version; "" if the pod is gone."""
        try:
            patched = await self._writer.patch(
                POD, pod.metadata, {"metadata": change}, content=STRATEGIC_PATCH, exact=exact
            )
        except NotFound:
            return ""
        self._log(action, pod.metadata.name)
        return str(patched["metadata"]["resourceVersion"])

    def _log(self, action: str, pod: str) -> None:
        LOG.debug(action, kind=JOB.name, key=self._job.metadata.key, pod=pod)


async def run_concurrently(
    act: Callable[[S], Awaitable[T]], items: Iterable[S]
) -> tuple[list[T], list[OperationFailure]]:
    """Call `act` for every item, a limited number at a time; return results and failures."""
    semaphore, items = asyncio.Semaphore(_MAX_CONCURRENT_REQUESTS), tuple(items)
    if not items:
        return [], []

    async def act_on(item: S) -> T | OperationFailure:
        async with semaphore:
            try:
                return await act(item)
            except (ApiError, Unreachable) as failure:
                return failure

    done: list[T] = []
    failures: list[OperationFailure] = []
    for result in await asyncio.gather(*map(act_on, items)):
        if isinstance(result, ApiError | Unreachable | StaleCacheError):
            failures.append(result)
        else:
            done.append(result)
    return done, failures


class OrphanPodReconciler:
    """Removes the tracking finalizer of orphan pods, unless `will_be_adopted` by another Job."""

    def __init__(
        self, client: Client, pods: ObjectCache[Pod], will_be_adopted: Callable[[Pod], bool]
    ) -> None:
        self._client, self._pods, self._will_be_adopted = client, pods, will_be_adopted

    async def reconcile(self, key: Key) -> None:
        """Remove the finalizer of one pod if the API confirms that no Job counts it."""
        pod = self._pods.get(key)
        if pod is not None and is_tracked(pod) and await self._is_orphan(pod):
            change = {"metadata": {"uid": pod.metadata.uid, **REMOVE_TRACKING_FINALIZER}}
            await perform(self._client, Patch(POD, key, change, content=STRATEGIC_PATCH))

    async def _is_orphan(self, pod: Pod) -> bool:
        if pod.metadata.controller is None:
            return not self._will_be_adopted(pod)
        for key in job_keys(pod):
            try:
                job = await self._client.get(JOB, key, Job)
                return not pod.metadata.is_controlled_by(job.metadata.uid)
            except NotFound:
                return True
        return False
