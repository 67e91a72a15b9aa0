"""PodGroup protection: a group that is being deleted stays while a live pod refers to it.

What keeps it is a finalizer that groups are given when they are made. One that is first seen
without it comes from a time, or a server, that did not give it, and gets it here; whoever takes it
off later wants the group to go, and is left to it.
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
    """The group that a pod belongs to, if any: by this loops share one index."""
    group = pod.group
    return (group,) if group else ()


class PodGroupProtection:
    """Sees to the finalizer: off a group that nobody needs any more, on one that never had it."""

    def __init__(self, client: Client, informers: Informers) -> None:
        self._groups = informers.of(POD_GROUP, PodGroup).cache
        pods = informers.of(POD, Pod).cache
        self._members = pods.index(groups_of)
        self._client = client
        self._queue: WorkQueue[Key] = new_work_queue(client, "podgroup_protection")
        self._groups.subscribe(self._on_group_changed)
        pods.subscribe(self._on_pod_changed)

    async def run(self) -> None:
        """Protect until cancelled."""
        await run_workers(self._queue, self._reconcile_confirmed)

    async def _reconcile_confirmed(self, key: Key) -> None:
        """Do what is due, but let no group go on the word of a view that may be late."""
        plan, group = self.reconcile(key), self._groups.get(key)
        is_to_go = group is not None and _is_terminating(group)
        if plan.actions and is_to_go and await self._has_members(key):
            return
        for action in plan.actions:
            await perform(self._client, action)

    async def _has_members(self, key: Key) -> bool:
        """Whether a live pod refers to a group, as the API itself sees it now."""
        pods = await self._client.list(POD, Pod, namespace=key.namespace)
        return any(pod.group == key and not pod.is_terminal for pod in pods.items)

    def reconcile(self, key: Key) -> ReconcilePlan:
        """Let go of a group that is being deleted and has no live member; hold a bare one."""
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
    # With its version: a finalizer that somebody adds meanwhile must not be lost.
    change = {"finalizers": list(finalizers), "resourceVersion": meta.resource_version}
    return ReconcilePlan([Patch(POD_GROUP, meta.key, {"metadata": change})])


def _lacks_finalizer(group: PodGroup) -> bool:
    meta = group.metadata
    return not meta.deletion_timestamp and POD_GROUP_PROTECTION_FINALIZER not in meta.finalizers


def _is_terminating(group: PodGroup) -> bool:
    meta = group.metadata
    return bool(meta.deletion_timestamp) and POD_GROUP_PROTECTION_FINALIZER in meta.finalizers
