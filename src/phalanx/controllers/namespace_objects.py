"""Controllers of the objects that every namespace has.

    ServiceAccountController    the ServiceAccount `default`; an existing one is never changed
    RootCAPublisher             the ConfigMap `kube-root-ca.crt`; changed data is restored

An object is created again if it is deleted. A namespace that is being deleted gets none. Both
controllers are disabled on a foreign API server, which has its own. The ConfigMap holds the
certificate of the authority that signs the API server's certificate, so that clients inside the
cluster can verify the server; the publisher is disabled where no certificate is known.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from msgspec import Struct

from phalanx.api.core import Namespace, ServiceAccount
from phalanx.api.kinds import CONFIG_MAP, SERVICE_ACCOUNT
from phalanx.api.meta import Key, ObjectMeta
from phalanx.client.client import Client
from phalanx.client.protocol import HasMetadata
from phalanx.controllers.reconcile_loop import (
    Create,
    Informers,
    Patch,
    ReconcileLoop,
    ReconcilePlan,
)

DEFAULT_ACCOUNT = "default"
ROOT_CA_CONFIG_MAP = "kube-root-ca.crt"
_DATA_KEY = "ca.crt"
_ANNOTATIONS = {
    "kubernetes.io/description": "Certificate authority of the API server, for clients that reach "
    "it inside the cluster, such as at kubernetes.default.svc."
}


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


class RootCAConfigMap(Struct, frozen=True, rename="camel"):
    """A ConfigMap with its data."""

    metadata: ObjectMeta
    data: dict[str, str] = {}
    binary_data: dict[str, str] = {}


class RootCAPublisher:
    """Writes the ConfigMaps until cancelled. `load_ca` returns the certificate as PEM text."""

    def __init__(
        self, client: Client, informers: Informers, load_ca: Callable[[], Awaitable[str]]
    ) -> None:
        self._load_ca, self._data = load_ca, dict[str, str]()
        self._namespaces = informers.of(Namespace).cache
        # An informer of its own: the shared one has no data, and other ConfigMaps may be large.
        self._informer = informers.new_informer(
            CONFIG_MAP, RootCAConfigMap, field_selector=f"metadata.name={ROOT_CA_CONFIG_MAP}"
        )
        self._loop: ReconcileLoop[str] = ReconcileLoop(client, self.reconcile)
        self._namespaces.subscribe(self._on_namespace_change)
        self._informer.cache.subscribe(self._on_config_map_change)

    async def run(self) -> None:
        """Publish the certificate until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._informer.run())
            await self._informer.synced.wait()
            self._data = {_DATA_KEY: await self._load_ca()}
            await self._loop.run()

    def reconcile(self, namespace: str) -> ReconcilePlan:
        """Plan: create or restore the ConfigMap of a namespace that is not being deleted."""
        found = self._namespaces.get(Key("", namespace))
        if found is None or found.metadata.deletion_timestamp:
            return ReconcilePlan()
        key = Key(namespace, ROOT_CA_CONFIG_MAP)
        existing = self._informer.cache.get(key)
        if existing is None:
            meta = {"name": key.name, "namespace": namespace, "annotations": _ANNOTATIONS}
            return ReconcilePlan([Create(CONFIG_MAP, {"metadata": meta, "data": self._data})])
        if existing.data == self._data and not existing.binary_data:
            return ReconcilePlan()
        data = {**dict.fromkeys(existing.data), **self._data}
        return ReconcilePlan([Patch(CONFIG_MAP, key, {"data": data, "binaryData": None})])

    def _on_namespace_change(self, old: HasMetadata | None, new: HasMetadata | None) -> None:
        if new is not None:
            self._loop.queue.add(new.metadata.name)

    def _on_config_map_change(self, old: HasMetadata | None, new: HasMetadata | None) -> None:
        changed = new or old
        if changed is not None:
            self._loop.queue.add(changed.metadata.namespace)
