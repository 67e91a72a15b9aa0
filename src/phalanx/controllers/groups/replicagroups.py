"""Groups of pods that name a Workload, a template in it and a replica, but no group.

Pods of that old form are stored with the name that their group will have and with two marks, from
which this loop makes the group (`api/podlinks.py`). It belongs to the Workload and goes with it. A
Workload or template that is not there yet is waited for.
"""

from __future__ import annotations

from phalanx.api.core import Pod
from phalanx.api.errors import NotFound
from phalanx.api.kinds import POD, POD_GROUP, WORKLOAD
from phalanx.api.meta import Key
from phalanx.api.podlinks import TEMPLATE_MARK, WORKLOAD_MARK, is_replica_group
from phalanx.api.scheduling import PodGroup
from phalanx.builder.groups import new_pod_group
from phalanx.builder.owners import owner_reference
from phalanx.client.answers import Resource
from phalanx.client.client import Client
from phalanx.client.workqueue import WorkQueue
from phalanx.controllers.actions import Create, perform
from phalanx.controllers.groups.grouppriority import take_policy
from phalanx.controllers.groups.podgroups import groups_of
from phalanx.controllers.loop import Informers, observed_queue, work


class ReplicaGroups:
    """Makes the PodGroups that marked pods wait for. Never changes or deletes one."""

    def __init__(self, client: Client, informers: Informers) -> None:
        self._client = client
        self._groups = informers.of(POD_GROUP, PodGroup).cache
        pods = informers.of(POD, Pod).cache
        self._of_group = pods.index(lambda pod: groups_of(pod) if _marks(pod) else ())
        self._of_workload = pods.index(lambda pod: (_workload(pod),) if _marks(pod) else ())
        self._queue: WorkQueue[Key] = observed_queue(client, "replica_groups")
        self._groups.subscribe(self._group_changed)
        pods.subscribe(self._pod_changed)
        informers.any(WORKLOAD).cache.subscribe(self._workload_changed)

    async def run(self) -> None:
        """Make groups until cancelled."""
        await work(self._queue, self._settle)

    async def _settle(self, key: Key) -> None:
        """Make a group that a live pod waits for; without its template, wait for news of it."""
        pod = next((pod for pod in self._of_group[key] if not pod.ended), None)
        if pod is None or self._groups.get(key) is not None:
            return
        try:
            if not await self._waits(pod):
                return
            workload = await self._client.get(WORKLOAD, _workload(pod))
            owners = [owner_reference(workload)]
            group = new_pod_group(workload, _marks(pod)[1], name=key.name, owners=owners)
        except NotFound:
            return
        if not workload["metadata"].get("deletionTimestamp"):
            await take_policy(self._client, group["spec"])
            await perform(self._client, Create(POD_GROUP, group))

    async def _waits(self, pod: Pod) -> bool:
        """Whether a pod is to run still, as the API has it: the view may be late."""
        found = await self._client.get(POD, pod.metadata.key, Pod)
        return found.metadata.uid == pod.metadata.uid and not found.ended

    def _pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        for group in groups_of(new) if new is not None and _marks(new) else ():
            self._queue.add(group)

    def _group_changed(self, old: PodGroup | None, new: PodGroup | None) -> None:
        if new is None and old is not None:
            self._queue.add(old.metadata.key)

    def _workload_changed(self, old: Resource | None, new: Resource | None) -> None:
        for pod in self._of_workload[new.metadata.key] if new is not None else ():
            if pod.group is not None:
                self._queue.add(pod.group)


def _marks(pod: Pod) -> tuple[str, ...]:
    """The Workload and the template that a pod's group is made of; nothing if it is another's."""
    said = pod.metadata.annotations
    group = pod.group if said else None
    if group is None or not is_replica_group(group.name, said):
        return ()
    return said[WORKLOAD_MARK], said[TEMPLATE_MARK]


def _workload(pod: Pod) -> Key:
    return Key(pod.metadata.namespace, _marks(pod)[0])
