"""Keeps claims and volumes that are in use, and says which claims no pod uses.

    object      its finalizer is removed once
    claim       it is being deleted and no pod with a node names it, not even an ended one
    volume      it is being deleted and its phase is not Bound

A claim that a pod owns (a generic ephemeral volume) is freed when that pod has ended. That no pod
uses a claim is confirmed with the API, because the cache may be stale. While a claim is bound and
not being deleted, its condition Unused says whether no pod that has not ended names it. Conditions
are written at a limited rate: they inform, and must not delay the binding of many claims and pods.
The controllers are disabled on a foreign API server, which has its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

from phalanx.api.core import Pod
from phalanx.api.kinds import PERSISTENT_VOLUME, PERSISTENT_VOLUME_CLAIM, POD, Kind
from phalanx.api.meta import Key, ObjectMeta, find_condition, timestamp
from phalanx.api.storage import (
    PV_PROTECTION_FINALIZER,
    PVC_PROTECTION_FINALIZER,
    PersistentVolume,
    PersistentVolumeClaim,
    volume_claims_of,
)
from phalanx.api.wire import STRATEGIC_PATCH, Object
from phalanx.client.client import Client
from phalanx.clock import Clock
from phalanx.controllers.reconcile_loop import (
    Action,
    Informers,
    Patch,
    ReconcileLoop,
    ReconcilePlan,
    treat_conflict_as_stale,
)

_WORKERS = 4
#: Status, reason and message of the condition Unused.
_USED = ("False", "PodUsingPVC", "At least one pod uses this claim")
_UNUSED = ("True", "NoPodsUsingPVC", "No pod uses this claim")


def claim_keys_of(pod: Pod) -> Sequence[Key]:
    """Return the claims that a pod names or that are created for it."""
    return [key for key, _ in volume_claims_of(pod)]


#: How many conditions are written at once, and how many per second after these.
_CONDITION_BURST, _CONDITION_RATE = 50, 100.0


class ClaimProtection:
    """Removes the finalizers of unused claims and writes the condition Unused."""

    def __init__(self, client: Client, informers: Informers, clock: Clock) -> None:
        self._client, self._clock = client, clock
        self._informers = (informers.of(PersistentVolumeClaim), informers.of(Pod))
        self._claims, self._pods = self._informers[0].cache, self._informers[1].cache
        self._pods_by_claim = self._pods.index(claim_keys_of)
        #: When the last condition is written at this rate, and the claims whose condition waits.
        self._last_slot = 0.0
        self._delayed: set[Key] = set()
        self._loop: ReconcileLoop[Key] = ReconcileLoop(
            client,
            self.reconcile,
            _WORKERS,
            confirm=self._confirm,
            on_error=treat_conflict_as_stale,
        )
        self._claims.subscribe(self._on_claim_change)
        self._pods.subscribe(self._on_pod_change)

    async def run(self) -> None:
        """Protect claims until cancelled."""
        for informer in self._informers:
            await informer.synced.wait()
        await self._loop.run()

    def reconcile(self, key: Key) -> ReconcilePlan:
        """Plan: release a claim that is deleted and unused, or update its condition."""
        self._delayed.discard(key)
        claim = self._claims.get(key)
        if claim is None:
            return ReconcilePlan()
        pods = self._pods_by_claim[key]
        if claim.metadata.deletion_timestamp:
            is_held = _is_held(claim, pods)
            finalizer, meta = PVC_PROTECTION_FINALIZER, claim.metadata
            return ReconcilePlan(
                () if is_held else _release(PERSISTENT_VOLUME_CLAIM, meta, finalizer)
            )
        return ReconcilePlan(self._plan_condition(claim, pods))

    def _plan_condition(
        self, claim: PersistentVolumeClaim, pods: Sequence[Pod]
    ) -> Sequence[Action]:
        if claim.status.phase != "Bound":
            return ()
        found = find_condition(claim.status.conditions, "Unused")
        is_used = any(not pod.is_terminal for pod in pods)
        status, reason, message = _USED if is_used else _UNUSED
        if found is not None and (found.status, found.reason) == (status, reason):
            return ()
        condition: Object = {
            "type": "Unused",
            "status": status,
            "reason": reason,
            "message": message,
            "lastTransitionTime": timestamp(self._clock.now()),
        }
        meta = claim.metadata
        change = {"metadata": {"uid": meta.uid}, "status": {"conditions": [condition]}}
        return [
            Patch(
                PERSISTENT_VOLUME_CLAIM,
                meta.key,
                change,
                subresource="status",
                content=STRATEGIC_PATCH,
            )
        ]

    async def _confirm(self, key: Key) -> bool:
        """Confirm with the API that no pod uses a claim that is to be released."""
        claim = self._claims.get(key)
        if claim is None or not claim.metadata.deletion_timestamp:
            return True
        if _is_held(claim, self._pods_by_claim[key]):
            return True
        pods = (await self._client.list(POD, Pod, namespace=key.namespace)).items
        return not _is_held(claim, [pod for pod in pods if key in claim_keys_of(pod)])

    def _on_claim_change(
        self, old: PersistentVolumeClaim | None, new: PersistentVolumeClaim | None
    ) -> None:
        if new is not None and new.metadata.deletion_timestamp:
            self._loop.queue.add(new.metadata.key)
        elif new is not None:
            self._delay_condition(new)

    def _on_pod_change(self, old: Pod | None, new: Pod | None) -> None:
        pod = new or old
        if pod is None or not pod.spec.volumes:
            return
        is_used_as_before = old and new and old.is_terminal == new.is_terminal
        for key in claim_keys_of(pod):
            claim = self._claims.get(key)
            if claim is None or claim.metadata.deletion_timestamp:
                self._loop.queue.add(key)
            elif not is_used_as_before:
                self._delay_condition(claim)

    def _delay_condition(self, claim: PersistentVolumeClaim) -> None:
        """Reconcile a claim, of which only the condition may change, as soon as the rate allows."""
        key = claim.metadata.key
        if key in self._delayed or not self._plan_condition(claim, self._pods_by_claim[key]):
            return
        now = asyncio.get_running_loop().time()
        self._last_slot = max(self._last_slot, now) + 1 / _CONDITION_RATE
        delay = self._last_slot - _CONDITION_BURST / _CONDITION_RATE - now
        if delay > 0:
            self._delayed.add(key)
            self._loop.queue.add_after(key, delay)
        else:
            self._loop.queue.add(key)


class VolumeProtection:
    """Removes the finalizers of deleted volumes that are not bound."""

    def __init__(self, client: Client, informers: Informers) -> None:
        self._volumes = informers.of(PersistentVolume).cache
        self._loop: ReconcileLoop[Key] = ReconcileLoop(
            client, self.reconcile, on_error=treat_conflict_as_stale
        )
        self._volumes.subscribe(self._on_change)

    async def run(self) -> None:
        """Protect volumes until cancelled."""
        await self._loop.run()

    def reconcile(self, key: Key) -> ReconcilePlan:
        """Plan: release a volume that is deleted and not bound."""
        volume = self._volumes.get(key)
        if volume is None or not volume.metadata.deletion_timestamp:
            return ReconcilePlan()
        if volume.status.phase == "Bound":
            return ReconcilePlan()
        return ReconcilePlan(_release(PERSISTENT_VOLUME, volume.metadata, PV_PROTECTION_FINALIZER))

    def _on_change(self, old: PersistentVolume | None, new: PersistentVolume | None) -> None:
        if new is not None and new.metadata.deletion_timestamp:
            self._loop.queue.add(new.metadata.key)


def _is_held(claim: PersistentVolumeClaim, pods: Iterable[Pod]) -> bool:
    """Whether a pod that names a claim keeps it from being removed."""
    return any(
        bool(pod.spec.node_name)
        and not (pod.is_terminal and claim.metadata.is_controlled_by(pod.metadata.uid))
        for pod in pods
    )


def _release(kind: Kind, meta: ObjectMeta, finalizer: str) -> list[Action]:
    if finalizer not in meta.finalizers:
        return []
    remaining = [name for name in meta.finalizers if name != finalizer]
    # Conditional on the version: the list of finalizers may have changed.
    change: Object = {
        "metadata": {
            "uid": meta.uid,
            "resourceVersion": meta.resource_version,
            "finalizers": remaining or None,
        }
    }
    return [Patch(kind, meta.key, change)]
