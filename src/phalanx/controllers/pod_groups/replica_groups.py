"""The replica group controller: creates PodGroups for pods that name a Workload template.

Pods of the old API form name a Workload, a template in it and a replica, but no group. They are
stored with the name of their future group and two annotations
(`api/conversion/workload_references.py`), from which this controller creates the group. The
Workload owns the group. A missing Workload or template is waited for.

`inherit_preemption_policy` completes a new PodGroup for all controllers that create groups: the
server computes its priority, but accepts a priority class that never preempts only from a group
with the same preemption policy.
"""

from __future__ import annotations

from contextlib import suppress

from phalanx import logs
from phalanx.api.conversion.workload_references import (
    TEMPLATE_ANNOTATION,
    WORKLOAD_ANNOTATION,
    is_replica_group,
)
from phalanx.api.core import Pod
from phalanx.api.errors import NotFound
from phalanx.api.kinds import POD, POD_GROUP, PRIORITY_CLASS, WORKLOAD
from phalanx.api.meta import Key
from phalanx.api.scheduling import PodGroup
from phalanx.api.wire import Object
from phalanx.builder.groups import new_pod_group
from phalanx.builder.ownership import owner_reference
from phalanx.client.client import Client
from phalanx.client.protocol import HasMetadata
from phalanx.client.work_queue import WorkQueue
from phalanx.controllers.pod_groups.protection import groups_of
from phalanx.controllers.reconcile_loop import (
    Create,
    Informers,
    new_work_queue,
    perform,
    run_workers,
)

LOG = logs.component("replica-group-controller")

_POLICY = "preemptionPolicy"


async def inherit_preemption_policy(client: Client, spec: Object) -> None:
    """Set the preemptionPolicy of a group spec to that of its priority class, if it has none."""
    if _POLICY not in spec and (policy := (await _priority_class(client, spec)).get(_POLICY)):
        spec[_POLICY] = policy


async def _priority_class(client: Client, spec: Object) -> Object:
    """Return the priority class of a group spec: by name, or the global default.

    Returns {} if there is none; the server rejects an unknown name.
    """
    if name := spec.get("priorityClassName"):
        with suppress(NotFound):
            return await client.get(PRIORITY_CLASS, Key("", name))
        return {}
    classes = (await client.list(PRIORITY_CLASS)).items
    defaults = [priority_class for priority_class in classes if priority_class.get("globalDefault")]
    return min(defaults, key=lambda priority_class: int(priority_class["value"]), default={})


class ReplicaGroups:
    """Creates the PodGroups that annotated pods wait for. Never changes or deletes one."""

    def __init__(self, client: Client, informers: Informers) -> None:
        self._client = client
        self._groups = informers.of(PodGroup).cache
        pods = informers.of(Pod).cache
        self._pods_by_group = pods.index(
            lambda pod: groups_of(pod) if _template_reference(pod) else ()
        )
        self._pods_by_workload = pods.index(
            lambda pod: (_workload_key(pod),) if _template_reference(pod) else ()
        )
        self._queue: WorkQueue[Key] = new_work_queue(client, "replica_groups")
        self._groups.subscribe(self._on_group_changed)
        pods.subscribe(self._on_pod_changed)
        informers.metadata_informer(WORKLOAD).cache.subscribe(self._on_workload_changed)

    async def run(self) -> None:
        """Create groups until cancelled."""
        await run_workers(self._queue, self._reconcile)

    async def _reconcile(self, key: Key) -> None:
        """Create a group that a live pod waits for, if its template exists."""
        pod = next((pod for pod in self._pods_by_group[key] if not pod.is_terminal), None)
        if pod is None or self._groups.get(key) is not None:
            return
        try:
            if not await self._is_active(pod):
                return
            workload = await self._client.get(WORKLOAD, _workload_key(pod))
            owners = [owner_reference(workload)]
            group = new_pod_group(
                workload, _template_reference(pod)[1], name=key.name, owners=owners
            )
        except NotFound:
            return
        if not workload["metadata"].get("deletionTimestamp"):
            await inherit_preemption_policy(self._client, group["spec"])
            LOG.debug("creating PodGroup", kind="PodGroup", key=key, workload=_workload_key(pod))
            await perform(self._client, Create(POD_GROUP, group))

    async def _is_active(self, pod: Pod) -> bool:
        """Whether a pod is still active according to the API; the cache may be stale."""
        found = await self._client.get(POD, pod.metadata.key, Pod)
        return found.metadata.uid == pod.metadata.uid and not found.is_terminal

    def _on_pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        for group in groups_of(new) if new is not None and _template_reference(new) else ():
            self._queue.add(group)

    def _on_group_changed(self, old: PodGroup | None, new: PodGroup | None) -> None:
        if new is None and old is not None:
            self._queue.add(old.metadata.key)

    def _on_workload_changed(self, old: HasMetadata | None, new: HasMetadata | None) -> None:
        for pod in self._pods_by_workload[new.metadata.key] if new is not None else ():
            if pod.group is not None:
                self._queue.add(pod.group)


def _template_reference(pod: Pod) -> tuple[str, ...]:
    """Return the Workload and template of a pod's replica group; () if it has none."""
    annotations = pod.metadata.annotations
    group = pod.group if annotations else None
    if group is None or not is_replica_group(group.name, annotations):
        return ()
    return annotations[WORKLOAD_ANNOTATION], annotations[TEMPLATE_ANNOTATION]


def _workload_key(pod: Pod) -> Key:
    return Key(pod.metadata.namespace, _template_reference(pod)[0])
