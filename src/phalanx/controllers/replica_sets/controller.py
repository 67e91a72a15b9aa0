"""Runs ReplicaSets or ReplicationControllers: informers, work queue and one sync.

    ReplicaSets, Pods ─▶ queue of ReplicaSets ─▶ adopt, release ─▶ create or delete pods ─▶ status

A ReplicaSet is synced only once the caches show the writes of its last sync: pods have generated
names, so that a pod that the cache does not show would be created again. Both kinds differ in
their structs only; `ReplicaSetController` runs one of them. It is disabled on a foreign API server,
which has its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

from phalanx.api.apps import ReplicaSet, ReplicationController
from phalanx.api.core import Pod
from phalanx.api.errors import Conflict, NotFound
from phalanx.api.kinds import POD
from phalanx.api.meta import Key
from phalanx.api.scheme import kind_of
from phalanx.api.selectors import selector_matches
from phalanx.client.cache import ObjectCache
from phalanx.client.client import Client
from phalanx.client.work_queue import WorkQueue
from phalanx.clock import Clock
from phalanx.controllers.event_recorder import ObjectEvent
from phalanx.controllers.pod_control import PodControl
from phalanx.controllers.pod_ownership import (
    build_template_pod,
    controlling_uids,
    is_active,
    namespaces,
    orphan_namespaces,
    owner_key,
    plan_adoption,
)
from phalanx.controllers.reconcile_loop import (
    Informers,
    StaleCacheError,
    new_work_queue,
    perform,
    run_workers,
)
from phalanx.controllers.replica_sets.replicas import (
    ReplicaFailure,
    ReplicaOwner,
    ReplicaState,
    build_status_change,
    next_availability,
    plan_replicas,
)
from phalanx.controllers.write_tracker import TrackedWriter, WriteTracker

_WORKERS = 8


class ReplicaSetController:
    """Keeps the desired number of pods of each ReplicaSet, or ReplicationController."""

    def __init__(
        self,
        client: Client,
        informers: Informers,
        clock: Clock,
        *,
        struct: type[ReplicaSet] | type[ReplicationController] = ReplicaSet,
        record: Callable[[ObjectEvent], None] = lambda event: None,
    ) -> None:
        self._client, self._clock, self._record = client, clock, record
        self._kind = kind_of(struct)
        self._informers = (informers.of(struct), informers.of(Pod))
        self._owners: ObjectCache[ReplicaOwner] = self._informers[0].cache
        self._pods = self._informers[1].cache
        self._pods_by_owner = self._pods.index(controlling_uids)
        self._orphans = self._pods.index(orphan_namespaces)
        self._owners_by_namespace = self._owners.index(namespaces)
        self._owners_by_controller = self._owners.index(controlling_uids)
        self._tracker = WriteTracker(client, {self._kind: self._owners, POD: self._pods}, clock)
        self._queue: WorkQueue[Key] = new_work_queue(client, self._kind.singular)
        self._owners.subscribe(self._on_owner_change)
        self._pods.subscribe(self._on_pod_change)

    async def run(self) -> None:
        """Run until cancelled."""
        # A pod that the cache does not show yet would be created again.
        for informer in self._informers:
            await informer.synced.wait()
        await run_workers(self._queue, self.reconcile, _WORKERS)

    async def reconcile(self, key: Key) -> float | None:
        """Sync one ReplicaSet; return after how many seconds to sync again."""
        owner = self._owners.get(key)
        if owner is None:
            return None
        if not self._tracker.has_caught_up(key):
            raise StaleCacheError(f"the caches do not show the last writes for {key} yet")
        writer = self._tracker.writer_for(key)
        if await self._claim_pods(owner):
            raise StaleCacheError("pods were adopted or released")
        return await self._sync(owner, writer)

    async def _claim_pods(self, owner: ReplicaOwner) -> bool:
        """Adopt and release pods; return whether there were any."""
        meta = owner.metadata
        changes = list(
            plan_adoption(
                self._kind,
                meta,
                owner.selector,
                child=POD,
                owned=self._pods_by_owner[meta.uid],
                orphans=[pod for pod in self._orphans[meta.namespace] if is_active(pod)],
            )
        )
        if changes:
            # Confirmed with the API: a deleted owner must not adopt the pods that it orphaned.
            live = await self._client.get(self._kind, meta.key, type(owner))
            if live.metadata.uid != meta.uid or live.metadata.deletion_timestamp:
                raise StaleCacheError(f"{self._kind.name} {meta.key} was deleted")
        for change in changes:
            try:
                await perform(self._client, change)
            except Conflict as error:
                raise StaleCacheError(str(error)) from error
        return bool(changes)

    async def _sync(self, owner: ReplicaOwner, writer: TrackedWriter) -> float | None:
        meta, pods = owner.metadata, self._pods_by_owner[owner.metadata.uid]
        state = ReplicaState(owner, pods, self._count_siblings(owner), now=self._clock.now())
        plan = plan_replicas(state)
        control = PodControl(writer, self._kind, meta, record=self._record)
        template = owner.spec.template
        failures = await control.create(
            [build_template_pod(self._kind, meta, template) for _ in range(plan.creations)]
        )
        failures += await control.delete(plan.deletions)
        failure = None
        if failures:
            reason = "FailedCreate" if plan.creations else "FailedDelete"
            failure = ReplicaFailure(reason, str(failures[0]))
        change = build_status_change(state, failure, is_complete=not meta.deletion_timestamp)
        if change:
            try:
                await writer.patch(
                    self._kind, meta, {"status": change}, subresource="status", exact=True
                )
            except (Conflict, NotFound) as error:
                raise StaleCacheError(str(error)) from error
        if failures:
            raise failures[0]
        return next_availability(state)

    def _count_siblings(self, owner: ReplicaOwner) -> Counter[str]:
        """Count the active pods on each node of all ReplicaSets with the same controller."""
        controller = owner.metadata.controller
        owners: Iterable[ReplicaOwner] = (
            self._owners_by_controller[controller.uid] if controller else (owner,)
        )
        return Counter(
            pod.spec.node_name
            for one in owners
            for pod in self._pods_by_owner[one.metadata.uid]
            if pod.spec.node_name and is_active(pod)
        )

    def _on_owner_change(self, old: ReplicaOwner | None, new: ReplicaOwner | None) -> None:
        if new is not None:
            self._queue.add(new.metadata.key)

    def _on_pod_change(self, old: Pod | None, new: Pod | None) -> None:
        if not self._owners:
            return
        for pod in (old, new):
            if pod is not None and (key := owner_key(pod.metadata, self._kind)):
                self._queue.add(key)
        if new is None or new.metadata.controller is not None:
            return
        for owner in self._owners_by_namespace[new.metadata.namespace]:
            if selector_matches(owner.selector, new.metadata.labels):
                self._queue.add(owner.metadata.key)
