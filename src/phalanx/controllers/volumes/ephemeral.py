"""Creates the claims of generic ephemeral volumes; each is owned by its pod and goes with it.

    Pod p, volume scratch with a claim template      PersistentVolumeClaim p-scratch
    a claim of that name that another object owns    event FailedBinding on the pod

The controller is disabled on a foreign API server, which has its own.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import msgspec

from phalanx.api.core import Pod
from phalanx.api.kinds import PERSISTENT_VOLUME_CLAIM, POD
from phalanx.api.meta import Key, OwnerReference
from phalanx.api.storage import PersistentVolumeClaim, ephemeral_claim_name
from phalanx.api.wire import Object
from phalanx.client.client import Client
from phalanx.controllers.event_recorder import ObjectEvent
from phalanx.controllers.reconcile_loop import (
    Action,
    Create,
    Informers,
    ReconcileLoop,
    ReconcilePlan,
)
from phalanx.controllers.volumes.protection import claim_keys_of

_WORKERS = 4


class EphemeralVolumeController:
    """Creates the claims of pods until cancelled; `record` receives the events."""

    def __init__(
        self,
        client: Client,
        informers: Informers,
        record: Callable[[ObjectEvent], None] = lambda event: None,
    ) -> None:
        self._record = record
        self._informers = (informers.of(Pod), informers.of(PersistentVolumeClaim))
        self._pods, self._claims = self._informers[0].cache, self._informers[1].cache
        self._pods_by_claim = self._pods.index(claim_keys_of)
        #: The claims of other owners that a pod's event has named.
        self._reported: dict[Key, list[str]] = {}
        self._loop: ReconcileLoop[Key] = ReconcileLoop(client, self.reconcile, _WORKERS)
        self._pods.subscribe(self._on_pod_change)
        self._claims.subscribe(self._on_claim_change)

    async def run(self) -> None:
        """Create claims until cancelled."""
        for informer in self._informers:
            await informer.synced.wait()
        await self._loop.run()

    def reconcile(self, key: Key) -> ReconcilePlan:
        """Plan: create the missing claims of a pod; report those of other owners."""
        pod = self._pods.get(key)
        if pod is None or pod.metadata.deletion_timestamp or pod.is_terminal:
            self._reported.pop(key, None)
            return ReconcilePlan()
        actions, foreign = list[Action](), list[str]()
        for claim_key, template in _claim_templates(pod):
            claim = self._claims.get(claim_key)
            if claim is None:
                actions.append(
                    Create(PERSISTENT_VOLUME_CLAIM, _build_claim(pod, claim_key, template))
                )
            elif not any(one.uid == pod.metadata.uid for one in claim.metadata.owner_references):
                foreign.append(claim_key.name)
        for name in foreign:
            if name not in self._reported.get(key, ()):
                text = (
                    f"PVC {key.namespace}/{name} was not created for pod {key} (pod is not owner)"
                )
                self._record(
                    ObjectEvent(POD, pod.metadata, "FailedBinding", message=text, type="Warning")
                )
        self._reported[key] = foreign
        return ReconcilePlan(actions)

    def _on_pod_change(self, old: Pod | None, new: Pod | None) -> None:
        if new is not None and not new.spec.volumes:
            return
        pod = new or old
        if pod is not None and pod.spec.volumes and _claim_templates(pod):
            self._loop.queue.add(pod.metadata.key)

    def _on_claim_change(
        self, old: PersistentVolumeClaim | None, new: PersistentVolumeClaim | None
    ) -> None:
        if old is not None and new is None:
            for pod in self._pods_by_claim[old.metadata.key]:
                self._loop.queue.add(pod.metadata.key)


def _claim_templates(pod: Pod) -> list[tuple[Key, dict[str, Any]]]:
    """The claims of a pod's ephemeral volumes, each with its template."""
    found: list[tuple[Key, dict[str, Any]]] = []
    for volume in pod.spec.volumes:
        template = (volume.ephemeral or {}).get("volumeClaimTemplate")
        if isinstance(template, dict):
            name = ephemeral_claim_name(pod, volume.name)
            found.append((Key(pod.metadata.namespace, name), template))
    return found


def _build_claim(pod: Pod, key: Key, template: dict[str, Any]) -> Object:
    meta = template.get("metadata") or {}
    owner = OwnerReference(
        POD.api_version,
        POD.name,
        pod.metadata.name,
        uid=pod.metadata.uid,
        controller=True,
        block_owner_deletion=True,
    )
    return {
        "metadata": {
            "name": key.name,
            "namespace": key.namespace,
            "labels": dict(meta.get("labels") or {}),
            "annotations": dict(meta.get("annotations") or {}),
            "ownerReferences": [msgspec.to_builtins(owner)],
        },
        # A copy: the receiver of a request may change its object.
        "spec": deepcopy(template.get("spec") or {}),
    }
