"""Service accounts: every namespace that stays has the one called `default`.

Made again when it is deleted; whatever somebody has made of it is left alone. On a foreign API
server this loop is off: it has one of its own.
"""

from __future__ import annotations

from phalanx.api.kinds import NAMESPACE, SERVICE_ACCOUNT
from phalanx.api.meta import Key
from phalanx.client.client import Client
from phalanx.client.protocol import HasMetadata
from phalanx.controllers.reconcile_loop import (
    Create,
    Informers,
    PartialObjectMetadata,
    ReconcileLoop,
    ReconcilePlan,
)

DEFAULT_ACCOUNT = "default"


class ServiceAccountController:
    """Makes what is missing. Never changes or deletes anything."""

    def __init__(self, client: Client, informers: Informers) -> None:
        self._namespaces = informers.of(NAMESPACE, PartialObjectMetadata).cache
        informer = informers.of(SERVICE_ACCOUNT, PartialObjectMetadata)
        self._synced, self._accounts = informer.synced, informer.cache
        self._loop: ReconcileLoop[str] = ReconcileLoop(client, self.reconcile)
        self._namespaces.subscribe(self._namespace_changed)
        self._accounts.subscribe(self._account_changed)

    async def run(self) -> None:
        """Make accounts until cancelled."""
        await self._synced.wait()
        await self._loop.run()

    def reconcile(self, namespace: str) -> ReconcilePlan:
        """Make the account of a namespace that stays and has none."""
        found = self._namespaces.get(Key("", namespace))
        if found is None or found.metadata.deletion_timestamp:
            return ReconcilePlan()
        if Key(namespace, DEFAULT_ACCOUNT) in self._accounts:
            return ReconcilePlan()
        meta = {"name": DEFAULT_ACCOUNT, "namespace": namespace}
        return ReconcilePlan([Create(SERVICE_ACCOUNT, {"metadata": meta})])

    def _namespace_changed(self, old: HasMetadata | None, new: HasMetadata | None) -> None:
        if new is not None:
            self._loop.queue.add(new.metadata.name)

    def _account_changed(self, old: HasMetadata | None, new: HasMetadata | None) -> None:
        if new is None and old is not None and old.metadata.name == DEFAULT_ACCOUNT:
            self._loop.queue.add(old.metadata.namespace)
