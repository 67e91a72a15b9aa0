"""Runs Deployments: informers, the work queue, and which Deployment a change concerns.

    Deployments, ReplicaSets, Pods ─▶ queue of Deployments ─▶ sync ─▶ ReplicaSets, status

A ReplicaSet belongs to a Deployment if the Deployment controls it; one without a controller that
the selector matches is adopted. Names of ReplicaSets follow from the template, and patches are
conditional on the version: repeating a plan on stale caches does no harm. The controller is
disabled on a foreign API server, which has its own.
"""

from __future__ import annotations

from collections.abc import Callable

from phalanx.api.apps import Deployment, ReplicaSet
from phalanx.api.core import Pod
from phalanx.api.errors import ApiError, NotFound
from phalanx.api.kinds import DEPLOYMENT, REPLICA_SET
from phalanx.api.meta import Key
from phalanx.api.selectors import selector_matches
from phalanx.client.client import Client
from phalanx.clock import Clock
from phalanx.controllers.deployments.sync import DeploymentState, plan_sync
from phalanx.controllers.event_recorder import ObjectEvent
from phalanx.controllers.pod_ownership import (
    controlling_uids,
    namespaces,
    orphan_namespaces,
    owner_key,
    plan_adoption,
)
from phalanx.controllers.reconcile_loop import (
    Action,
    Create,
    Informers,
    ReconcileLoop,
    ReconcilePlan,
    treat_conflict_as_stale,
)

_WORKERS = 8


class DeploymentController:
    """Creates and scales the ReplicaSets of Deployments until cancelled."""

    def __init__(
        self,
        client: Client,
        informers: Informers,
        clock: Clock,
        *,
        record: Callable[[ObjectEvent], None] = lambda event: None,
    ) -> None:
        self._client, self._clock, self._record = client, clock, record
        self._informers = (informers.of(Deployment), informers.of(ReplicaSet), informers.of(Pod))
        self._deployments = self._informers[0].cache
        self._sets, self._pods = self._informers[1].cache, self._informers[2].cache
        self._sets_by_owner = self._sets.index(controlling_uids)
        self._sets_by_namespace = self._sets.index(namespaces)
        self._orphan_sets = self._sets.index(orphan_namespaces)
        self._pods_by_owner = self._pods.index(controlling_uids)
        self._deployments_by_namespace = self._deployments.index(namespaces)
        self._loop: ReconcileLoop[Key] = ReconcileLoop(
            client,
            self.reconcile,
            _WORKERS,
            record=record,
            on_error=self._record_failure,
            confirm=self._exists,
        )
        self._deployments.subscribe(self._on_deployment_change)
        self._sets.subscribe(self._on_set_change)
        self._pods.subscribe(self._on_pod_change)

    async def run(self) -> None:
        """Run Deployments until cancelled."""
        for informer in self._informers:
            await informer.synced.wait()
        await self._loop.run()

    def reconcile(self, key: Key) -> ReconcilePlan:
        """Plan: adopt and release ReplicaSets; if there are none to adopt or release, sync."""
        deployment = self._deployments.get(key)
        if deployment is None:
            return ReconcilePlan()
        meta, owned = deployment.metadata, self._sets_by_owner[deployment.metadata.uid]
        claims = list(
            plan_adoption(
                DEPLOYMENT,
                meta,
                deployment.spec.selector,
                child=REPLICA_SET,
                owned=owned,
                orphans=self._orphan_sets[meta.namespace],
            )
        )
        if claims:
            return ReconcilePlan(claims)
        own_uids = {one.metadata.uid for one in owned}
        others = {
            one.metadata.name
            for one in self._sets_by_namespace[meta.namespace]
            if one.metadata.uid not in own_uids
        }
        return plan_sync(
            DeploymentState(
                deployment,
                owned,
                [pod for uid in own_uids for pod in self._pods_by_owner[uid]],
                other_names=others,
                now=self._clock.now(),
            )
        )

    async def _exists(self, key: Key) -> bool:
        """Confirm with the API before ReplicaSets are adopted: a deleted owner must not."""
        deployment = self._deployments.get(key)
        if deployment is None or not self._orphan_sets[key.namespace]:
            return deployment is not None
        try:
            live = await self._client.get(DEPLOYMENT, key, Deployment)
        except NotFound:
            return False
        meta = deployment.metadata
        return live.metadata.uid == meta.uid and (
            live.metadata.deletion_timestamp == meta.deletion_timestamp
        )

    def _record_failure(self, key: Key, action: Action, error: ApiError) -> None:
        """Record the event of a ReplicaSet that the server refused."""
        treat_conflict_as_stale(key, action, error)
        deployment = self._deployments.get(key)
        if deployment is not None and isinstance(action, Create):
            name = action.obj["metadata"]["name"]
            message = f'Failed to create new replica set "{name}": {error}'
            self._record(
                ObjectEvent(
                    DEPLOYMENT,
                    deployment.metadata,
                    "ReplicaSetCreateError",
                    message=message,
                    type="Warning",
                )
            )

    def _on_deployment_change(self, old: Deployment | None, new: Deployment | None) -> None:
        if new is not None:
            self._loop.queue.add(new.metadata.key)

    def _on_set_change(self, old: ReplicaSet | None, new: ReplicaSet | None) -> None:
        for one in (old, new):
            if one is None:
                continue
            if one.metadata.controller is not None:
                if key := owner_key(one.metadata, DEPLOYMENT):
                    self._loop.queue.add(key)
                continue
            for deployment in self._deployments_by_namespace[one.metadata.namespace]:
                if selector_matches(deployment.spec.selector, one.metadata.labels):
                    self._loop.queue.add(deployment.metadata.key)

    def _on_pod_change(self, old: Pod | None, new: Pod | None) -> None:
        """Enqueue the Deployment of a pod that is gone: Recreate waits for that."""
        if old is None or not self._deployments or (new is not None and not new.is_terminal):
            return
        key = owner_key(old.metadata, REPLICA_SET)
        replica_set = self._sets.get(key) if key else None
        if replica_set is not None and (owner := owner_key(replica_set.metadata, DEPLOYMENT)):
            self._loop.queue.add(owner)
