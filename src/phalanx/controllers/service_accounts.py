"""The service account controller: every namespace has a ServiceAccount `default`.

The account is created again if it is deleted, and an existing account is never changed. A namespace
that is being deleted gets none. The controller is disabled on a foreign API server, which has its
own.
"""

from __future__ import annotations

from phalanx.api.core import Namespace, ServiceAccount
from phalanx.api.kinds import SERVICE_ACCOUNT
from phalanx.api.meta import Key
from phalanx.client.client import Client
from phalanx.client.protocol import HasMetadata
from phalanx.controllers.reconcile_loop import Create, Informers, ReconcileLoop, ReconcilePlan

DEFAULT_ACCOUNT = "default"


class ServiceAccountController:
    """Creates missing accounts until cancelled; never changes or deletes an object."""

    def __init__(self, client: Client, informers: Informers) -> None:
        self._namespaces = informers.of(Namespace).cache
        informer = informers.of(ServiceAccount)
        self._synced, self._accounts = informer.synced, informer.cache
        self._loop: ReconcileLoop[str] = ReconcileLoop(client, self.reconcile)
        self._namespaces.subscribe(self._on_namespace_change)
        self._accounts.subscribe(self._on_account_change)

    async def run(self) -> None:
        """Create accounts until cancelled."""
        await self._synced.wait()
        await self._loop.run()

    def reconcile(self, namespace: str) -> ReconcilePlan:
        """Plan: create the account of a namespace that has none and is not being deleted."""
        found = self._namespaces.get(Key("", namespace))
        if found is None or found.metadata.deletion_timestamp:
            return ReconcilePlan()
        if Key(namespace, DEFAULT_ACCOUNT) in self._accounts:
            return ReconcilePlan()
        meta = {"name": DEFAULT_ACCOUNT, "namespace": namespace}
        return ReconcilePlan([Create(SERVICE_ACCOUNT, {"metadata": meta})])

    def _on_namespace_change(self, old: HasMetadata | None, new: HasMetadata | None) -> None:
        if new is not None:
            self._loop.queue.add(new.metadata.name)

    def _on_account_change(self, old: HasMetadata | None, new: HasMetadata | None) -> None:
        if new is None and old is not None and old.metadata.name == DEFAULT_ACCOUNT:
            self._loop.queue.add(old.metadata.namespace)
