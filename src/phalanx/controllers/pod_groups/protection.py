"""PodGroup protection: a deleted PodGroup stays while a live pod refers to it.

Admission adds a finalizer to every new group; this controller removes it once the group is deleted
and has no live member. A group that is first seen without the finalizer was created before, or by a
server without that admission, and gets it here. A finalizer that a user removes later is not added
again.
"""

from __future__ import annotations

from collections.abc import Sequence

from phalanx.api.core import Pod
from phalanx.api.kinds import POD, POD_GROUP
from phalanx.api.meta import Key
from phalanx.api.scheduling import POD_GROUP_PROTECTION_FINALIZER, PodGroup
from phalanx.client.client import Client
from phalanx.client.work_queue import WorkQueue
from phalanx.controllers.reconcile_loop import (
    Informers,
    Patch,
    ReconcilePlan,
    new_work_queue,
    perform,
    run_workers,
)


def groups_of(pod: Pod) -> Sequence[Key]:
    """Return the group of a pod: the index function that controllers share."""
    group = pod.group
    return (group,) if group else ()


class PodGroupProtection:
    """Adds and removes the protection finalizer of PodGroups."""

    def __init__(self, client: Client, informers: Informers) -> None:
        self._groups = informers.of(PodGroup).cache
        pods = informers.of(Pod).cache
        self._members = pods.index(groups_of)
        self._client = client
        self._queue: WorkQueue[Key] = new_work_queue(client, "podgroup_protection")
        self._groups.subscribe(self._on_group_changed)
        pods.subscribe(self._on_pod_changed)

    async def run(self) -> None:
        """Reconcile groups until cancelled."""
        await run_workers(self._queue, self._reconcile_confirmed)

    async def _reconcile_confirmed(self, key: Key) -> None:
        """Reconcile a group; the API itself must confirm that a deleted group has no members."""
        plan, group = self.reconcile(key), self._groups.get(key)
        is_terminating = group is not None and _is_terminating(group)
        if plan.actions and is_terminating and await self._has_members(key):
            return
        for action in plan.actions:
            await perform(self._client, action)

    async def _has_members(self, key: Key) -> bool:
        """Whether a live pod refers to a group, according to the API instead of the cache."""
        pods = await self._client.list(POD, Pod, namespace=key.namespace)
        return any(pod.group == key and not pod.is_terminal for pod in pods.items)

    def reconcile(self, key: Key) -> ReconcilePlan:
        """Remove the finalizer of a deleted group without live members; add a missing one."""
        group = self._groups.get(key)
        if group is None:
            return ReconcilePlan()
        finalizers = group.metadata.finalizers
        if _lacks_finalizer(group):
            return _set_finalizers(group, [*finalizers, POD_GROUP_PROTECTION_FINALIZER])
        if not _is_terminating(group) or any(not pod.is_terminal for pod in self._members[key]):
            return ReconcilePlan()
        return _set_finalizers(
            group, [name for name in finalizers if name != POD_GROUP_PROTECTION_FINALIZER]
        )

    def _on_group_changed(self, old: PodGroup | None, new: PodGroup | None) -> None:
        if new is not None and (_is_terminating(new) or (old is None and _lacks_finalizer(new))):
            self._queue.add(new.metadata.key)

    def _on_pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        for pod in (old, new):
            if pod is not None and pod.group is not None:
                group = self._groups.get(pod.group)
                if group is not None and _is_terminating(group):
                    self._queue.add(pod.group)


def _set_finalizers(group: PodGroup, finalizers: Sequence[str]) -> ReconcilePlan:
    meta = group.metadata
    # With the resourceVersion: the patch must not drop a finalizer that another client adds.
    change = {"finalizers": list(finalizers), "resourceVersion": meta.resource_version}
    return ReconcilePlan([Patch(POD_GROUP, meta.key, {"metadata": change})])


def _lacks_finalizer(group: PodGroup) -> bool:
    meta = group.metadata
    return not meta.deletion_timestamp and POD_GROUP_PROTECTION_FINALIZER not in meta.finalizers


def _is_terminating(group: PodGroup) -> bool:
    meta = group.metadata
    return bool(meta.deletion_timestamp) and POD_GROUP_PROTECTION_FINALIZER in meta.finalizers
