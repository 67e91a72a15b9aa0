"""Keeps the reservations of ResourceClaims, deallocates unused claims and deletes finished ones.

    Pods, PodGroups, claims ─▶ queue of claims ─▶ reservedFor, allocation, deletion

    consumer in status.reservedFor              its reservation
    a Pod that exists and has not finished      kept; added for a bound Pod that has none
    a Pod that finished, is gone or replaced    removed
    a PodGroup that exists                      kept until the PodGroup is gone
    an unknown kind                             kept

That a consumer is gone is confirmed with the API, because the cache may be stale. The controller is
disabled on a foreign API server, which has its own.

A pod uses the claims that it names, and the claims that are created for it from templates. If the
PodGroup of the pod has the same entry in `spec.resourceClaims`, the pod uses the group's claim.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from phalanx.api.core import Pod, PodResourceClaim
from phalanx.api.errors import NotFound
from phalanx.api.kinds import POD, POD_GROUP, RESOURCE_CLAIM, Kind
from phalanx.api.meta import Key
from phalanx.api.other_kinds import ClaimConsumer, DeviceClaim
from phalanx.api.scheduling import PodGroup
from phalanx.api.wire import Object
from phalanx.client.cache import ObjectCache
from phalanx.client.client import Client
from phalanx.controllers.reconcile_loop import (
    Action,
    Delete,
    Informers,
    Patch,
    ReconcileLoop,
    ReconcilePlan,
)

#: Keeps a claim while devices are allocated to it.
PROTECTION_FINALIZER = "resource.kubernetes.io/delete-protection"


def is_pod_finished(pod: Pod) -> bool:
    """Whether no container of a pod runs or will run."""
    return pod.is_terminal or bool(pod.metadata.deletion_timestamp and not pod.spec.node_name)


def claims_of_pod(pod: Pod) -> Iterator[tuple[PodResourceClaim, Key]]:
    """Yield the entries of `spec.resourceClaims` that have a claim, each with its claim's key."""
    if not pod.spec.resource_claims:
        return
    created = {one.name: one.resource_claim_name for one in pod.status.resource_claim_statuses}
    for claim in pod.spec.resource_claims:
        name = claim.resource_claim_name or created.get(claim.name)
        if name:
            yield claim, Key(pod.metadata.namespace, name)


def is_shared_with_group(claim: PodResourceClaim, group: PodGroup | None) -> bool:
    """Whether the PodGroup of a pod has the same entry in its `spec.resourceClaims`."""
    return group is not None and claim in group.spec.resource_claims


#: The most consumers for which a claim can be reserved.
MAX_CONSUMERS = 256
_STRUCTS: Mapping[Kind, type[Pod] | type[PodGroup]] = {POD: Pod, POD_GROUP: PodGroup}
_WORKERS = 8


class ClaimReservationController:
    """Updates reservations, and deletes claims that were created for finished Pods.

    Without `groups` the API server does not serve PodGroups, and Pods share no claims.
    """

    def __init__(self, client: Client, informers: Informers, *, groups: bool = True) -> None:
        self._client = client
        self._pods, self._groups = informers.of(Pod).cache, ObjectCache[PodGroup]()
        self._consumers: dict[Kind, ObjectCache[Any]] = {POD: self._pods}
        if groups:
            self._groups = informers.of(PodGroup).cache
            self._consumers[POD_GROUP] = self._groups
        self._claims = informers.of(DeviceClaim).cache
        self._pods_by_claim = self._pods.index(_claim_keys)
        self._claims_by_holder = self._claims.index(_holder_uids)
        #: The versions of claims that got the finalizer: a scheduler is about to allocate them.
        self._announced: dict[Key, str] = {}
        self._loop: ReconcileLoop[Key] = ReconcileLoop(
            client, self.reconcile, _WORKERS, confirm=self._confirm_finished
        )
        self._claims.subscribe(self._on_claim_change)
        self._pods.subscribe(self._on_consumer_change)
        self._groups.subscribe(self._on_consumer_change)

    async def run(self) -> None:
        """Update reservations until cancelled."""
        await self._loop.run()

    def reconcile(self, key: Key) -> ReconcilePlan:
        """Plan: update the reservations of a claim; without any, deallocate or delete it."""
        claim = self._claims.get(key)
        if claim is None:
            return ReconcilePlan()
        finished = self._finished_consumers(claim)
        consumers = [one for one in claim.status.reserved_for if one not in finished]
        consumers += self._unreserved_consumers(claim)[: MAX_CONSUMERS - len(consumers)]
        if tuple(consumers) != claim.status.reserved_for:
            return ReconcilePlan([_reservation_patch(claim, consumers)])
        if not consumers and claim.metadata.deletion_timestamp:
            return ReconcilePlan(_release_patches(claim))
        if not consumers and self._is_owner_finished(claim):
            return ReconcilePlan([Delete(RESOURCE_CLAIM, key, claim.metadata.uid)])
        # Without the finalizer the scheduler's next write would fail, and it would begin again.
        is_announced = self._announced.get(key) == claim.metadata.resource_version
        if not consumers and claim.status.allocation is None and not is_announced:
            return ReconcilePlan(_release_patches(claim))
        return ReconcilePlan()

    async def _confirm_finished(self, key: Key) -> bool:
        """Confirm with the API that the consumers to remove do not need the claim."""
        claim = self._claims.get(key)
        for consumer in self._finished_consumers(claim) if claim is not None else ():
            assert consumer.kind is not None
            struct = _STRUCTS[consumer.kind]
            try:
                found = await self._client.get(
                    consumer.kind, Key(key.namespace, consumer.name), struct
                )
            except NotFound:
                continue
            if _needs_claim(consumer, found):
                return False
        return True

    def _finished_consumers(self, claim: DeviceClaim) -> list[ClaimConsumer]:
        """The consumers of known kinds that need a claim no longer, by the caches."""
        namespace = claim.metadata.namespace
        return [
            one
            for one in claim.status.reserved_for
            if one.kind in self._consumers
            and not _needs_claim(one, self._consumers[one.kind].get(Key(namespace, one.name)))
        ]

    def _unreserved_consumers(self, claim: DeviceClaim) -> list[ClaimConsumer]:
        """The consumers with bound Pods for which an allocated claim is not reserved."""
        if claim.status.allocation is None or claim.metadata.deletion_timestamp:
            return []
        pods = [
            pod
            for pod in self._pods_by_claim[claim.metadata.key]
            if pod.spec.node_name and not is_pod_finished(pod)
        ]
        consumers = dict.fromkeys(self._consumer_for(pod, claim) for pod in pods)
        return [one for one in consumers if one not in claim.status.reserved_for]

    def _consumer_for(self, pod: Pod, claim: DeviceClaim) -> ClaimConsumer:
        """The consumer for which a claim is reserved: the Pod, or the PodGroup that shares it."""
        group = self._groups.get(pod.group) if pod.group else None
        entries = [entry for entry, key in claims_of_pod(pod) if key == claim.metadata.key]
        if group is not None and any(is_shared_with_group(entry, group) for entry in entries):
            return ClaimConsumer.of(POD_GROUP, group.metadata)
        return ClaimConsumer.of(POD, pod.metadata)

    def _is_owner_finished(self, claim: DeviceClaim) -> bool:
        """Whether a claim was created for a Pod that has finished or was replaced.

        If the Pod is gone, the garbage collector deletes the claim.
        """
        owner = claim.owner
        if owner is None or (owner.api_version, owner.kind) != (POD.api_version, POD.name):
            return False
        pod = self._pods.get(Key(claim.metadata.namespace, owner.name))
        return pod is not None and (pod.metadata.uid != owner.uid or is_pod_finished(pod))

    def _on_claim_change(self, old: DeviceClaim | None, new: DeviceClaim | None) -> None:
        if new is None:
            assert old is not None
            self._announced.pop(old.metadata.key, None)
            return
        names = old.metadata.finalizers if old is not None else ()
        if PROTECTION_FINALIZER in new.metadata.finalizers and PROTECTION_FINALIZER not in names:
            self._announced[new.metadata.key] = new.metadata.resource_version
        self._loop.queue.add(new.metadata.key)

    def _on_consumer_change(self, old: Pod | PodGroup | None, new: Pod | PodGroup | None) -> None:
        if not self._claims:
            return
        if isinstance(old, Pod) and isinstance(new, Pod) and _need(old) == _need(new):
            return
        for found in (old, new):
            if isinstance(found, Pod):
                for _, key in claims_of_pod(found):
                    self._loop.queue.add(key)
            for claim in self._claims_by_holder[found.metadata.uid] if found is not None else ():
                self._loop.queue.add(claim.metadata.key)


def _need(pod: Pod) -> object:
    """What decides about the reservations of a pod; its spec does not change otherwise."""
    statuses = pod.status.resource_claim_statuses if pod.spec.node_name else ()
    return pod.metadata.uid, pod.spec.node_name, is_pod_finished(pod), statuses


def _claim_keys(pod: Pod) -> Sequence[Key]:
    return [key for _, key in claims_of_pod(pod)] if pod.spec.resource_claims else ()


def _holder_uids(claim: DeviceClaim) -> list[str]:
    """The uids of the consumers and the owner of a claim."""
    uids = [consumer.uid for consumer in claim.status.reserved_for]
    return [*uids, claim.owner.uid] if claim.owner else uids


def _needs_claim(consumer: ClaimConsumer, found: Pod | PodGroup | None) -> bool:
    if found is None or found.metadata.uid != consumer.uid:
        return False
    return not (isinstance(found, Pod) and is_pod_finished(found))


def _reservation_patch(claim: DeviceClaim, consumers: list[ClaimConsumer]) -> Patch:
    """Patch the reservations; removing the last one deallocates the devices."""
    status: Object = {"reservedFor": msgspec.to_builtins(consumers) or None}
    if not consumers and PROTECTION_FINALIZER in claim.metadata.finalizers:
        status |= {"allocation": None, "devices": None}
    return _claim_patch(claim, {"status": status}, subresource="status")


def _release_patches(claim: DeviceClaim) -> list[Action]:
    """Deallocate a claim that nothing uses; at the next reconcile remove its finalizer."""
    finalizers = claim.metadata.finalizers
    if PROTECTION_FINALIZER not in finalizers:
        return []
    if claim.status.allocation is not None:
        change = {"status": {"allocation": None, "devices": None}}
        return [_claim_patch(claim, change, subresource="status")]
    remaining = [name for name in finalizers if name != PROTECTION_FINALIZER]
    return [_claim_patch(claim, {"metadata": {"finalizers": remaining or None}})]


def _claim_patch(claim: DeviceClaim, change: Object, *, subresource: str = "") -> Patch:
    meta = claim.metadata
    # Conditional on the version: a concurrent allocation or reservation must not be overwritten.
    preconditions = {"uid": meta.uid, "resourceVersion": meta.resource_version}
    change = {**change, "metadata": {**preconditions, **change.get("metadata", {})}}
    return Patch(RESOURCE_CLAIM, meta.key, change, subresource=subresource)
