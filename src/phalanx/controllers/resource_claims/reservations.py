"""The use of resource claims: reserved for whoever runs with them, given back when nobody does.

    pods, groups, claims ─▶ queue of claims ─▶ reservations, devices given back, claims deleted

    for whom                                   what becomes of a reservation
    a pod that is there and not done           kept; made, if it was bound without a scheduler
    a pod that is done, gone, or another one   taken back
    a group that is there                      kept, until the group goes
    something that we do not know              kept

That somebody is gone is asked of the API before it is believed. On a foreign API server this loop
is off: it has one of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from phalanx.api.core import Pod
from phalanx.api.errors import NotFound
from phalanx.api.kinds import POD, POD_GROUP, RESOURCE_CLAIM, Kind
from phalanx.api.meta import Key
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
from phalanx.controllers.resource_claims.claims import (
    PROTECTION_FINALIZER,
    ClaimConsumer,
    DeviceClaim,
    claims_of_pod,
    is_pod_finished,
    is_shared_with_group,
)

#: One claim can be reserved for so many.
MAX_CONSUMERS = 256
_STRUCTS: Mapping[Kind, type[Pod] | type[PodGroup]] = {POD: Pod, POD_GROUP: PodGroup}
_WORKERS = 8


class ClaimReservationController:
    """Keeps reservations true, and deletes claims that were made for pods which are done.

    `groups`: whether there are any, and pods share their claims.
    """

    def __init__(self, client: Client, informers: Informers, *, groups: bool = True) -> None:
        self._client = client
        self._pods, self._groups = informers.of(POD, Pod).cache, ObjectCache[PodGroup]()
        self._consumers: dict[Kind, ObjectCache[Any]] = {POD: self._pods}
        if groups:
            self._groups = informers.of(POD_GROUP, PodGroup).cache
            self._consumers[POD_GROUP] = self._groups
        self._claims = informers.of(RESOURCE_CLAIM, DeviceClaim).cache
        self._pods_by_claim = self._pods.index(_claim_keys)
        self._claims_by_holder = self._claims.index(_holder_uids)
        self._loop: ReconcileLoop[Key] = ReconcileLoop(
            client, self.reconcile, _WORKERS, confirm=self._confirm_finished
        )
        self._claims.subscribe(self._claim_changed)
        self._pods.subscribe(self._consumer_changed)
        self._groups.subscribe(self._consumer_changed)

    async def run(self) -> None:
        """Reserve and give back until cancelled."""
        await self._loop.run()

    def reconcile(self, key: Key) -> ReconcilePlan:
        """Have a claim reserved for those who need it, and let go of what nobody needs."""
        claim = self._claims.get(key)
        if claim is None:
            return ReconcilePlan()
        leaving = self._finished_consumers(claim)
        wanted = [one for one in claim.status.reserved_for if one not in leaving]
        wanted += self._unreserved_consumers(claim, room=MAX_CONSUMERS - len(wanted))
        if tuple(wanted) != claim.status.reserved_for:
            return ReconcilePlan([_reservation_patch(claim, wanted)])
        if not wanted and claim.metadata.deletion_timestamp:
            return ReconcilePlan(_release_patches(claim))
        if not wanted and self._is_owner_finished(claim):
            return ReconcilePlan([Delete(RESOURCE_CLAIM, key, claim.metadata.uid)])
        return ReconcilePlan()

    async def _confirm_finished(self, key: Key) -> bool:
        """Whether those are gone indeed who seem to be."""
        claim = self._claims.get(key)
        for consumer in self._finished_consumers(claim) if claim is not None else ():
            if await self._still_needs_claim(consumer, key.namespace):
                return False
        return True

    async def _still_needs_claim(self, consumer: ClaimConsumer, namespace: str) -> bool:
        """Whether somebody needs a claim, as the API has it."""
        assert consumer.kind is not None
        struct = _STRUCTS[consumer.kind]
        try:
            found = await self._client.get(consumer.kind, Key(namespace, consumer.name), struct)
        except NotFound:
            return False
        return _needs_claim(consumer, found)

    def _finished_consumers(self, claim: DeviceClaim) -> list[ClaimConsumer]:
        """Those who need a claim no longer, as far as we can see."""
        known = [one for one in claim.status.reserved_for if one.kind in self._consumers]
        return [one for one in known if not _needs_claim(one, self._cached_consumer(one, claim))]

    def _cached_consumer(
        self, consumer: ClaimConsumer, claim: DeviceClaim
    ) -> Pod | PodGroup | None:
        cache = self._consumers[consumer.kind] if consumer.kind else {}
        found: Pod | PodGroup | None = cache.get(Key(claim.metadata.namespace, consumer.name))
        return found

    def _unreserved_consumers(self, claim: DeviceClaim, room: int) -> list[ClaimConsumer]:
        """Those who run with the devices of a claim, though nobody has reserved it for them."""
        if claim.status.allocation is None or claim.metadata.deletion_timestamp:
            return []
        pods = [
            p
            for p in self._pods_by_claim[claim.metadata.key]
            if p.spec.node_name and not is_pod_finished(p)
        ]
        found = dict.fromkeys(self._consumer_for(pod, claim) for pod in pods)
        return [one for one in found if one not in claim.status.reserved_for][:room]

    def _consumer_for(self, pod: Pod, claim: DeviceClaim) -> ClaimConsumer:
        """For whom a claim that a pod uses is reserved: the pod, or the group that shares it."""
        group = self._groups.get(pod.group) if pod.group else None
        asked = [one for one, key in claims_of_pod(pod) if key == claim.metadata.key]
        if group is not None and any(is_shared_with_group(one, group) for one in asked):
            return ClaimConsumer.of(POD_GROUP, group.metadata)
        return ClaimConsumer.of(POD, pod.metadata)

    def _is_owner_finished(self, claim: DeviceClaim) -> bool:
        """Whether a claim was made for a pod that is done; one that is gone takes it along."""
        owner = claim.owner
        if owner is None or (owner.api_version, owner.kind) != (POD.api_version, POD.name):
            return False
        pod = self._pods.get(Key(claim.metadata.namespace, owner.name))
        return pod is not None and (pod.metadata.uid != owner.uid or is_pod_finished(pod))

    def _claim_changed(self, old: DeviceClaim | None, new: DeviceClaim | None) -> None:
        if new is not None:
            self._loop.queue.add(new.metadata.key)

    def _consumer_changed(self, old: Pod | PodGroup | None, new: Pod | PodGroup | None) -> None:
        for found in (old, new) if self._claims else ():
            if isinstance(found, Pod):
                for _, key in claims_of_pod(found):
                    self._loop.queue.add(key)
            for claim in self._claims_by_holder[found.metadata.uid] if found is not None else ():
                self._loop.queue.add(claim.metadata.key)


def _claim_keys(pod: Pod) -> Sequence[Key]:
    return [key for _, key in claims_of_pod(pod)] if pod.spec.resource_claims else ()


def _holder_uids(claim: DeviceClaim) -> list[str]:
    """The uids of all whose fate concerns a claim."""
    uids = [consumer.uid for consumer in claim.status.reserved_for]
    return [*uids, claim.owner.uid] if claim.owner else uids


def _needs_claim(consumer: ClaimConsumer, found: Pod | PodGroup | None) -> bool:
    if found is None or found.metadata.uid != consumer.uid:
        return False
    return not (isinstance(found, Pod) and is_pod_finished(found))


def _reservation_patch(claim: DeviceClaim, wanted: list[ClaimConsumer]) -> Patch:
    """Reserve a claim for these; when the last one leaves, its devices are given back."""
    status: Object = {"reservedFor": msgspec.to_builtins(wanted) or None}
    if not wanted and PROTECTION_FINALIZER in claim.metadata.finalizers:
        status["allocation"] = None
    return _claim_patch(claim, {"status": status}, "status")


def _release_patches(claim: DeviceClaim) -> list[Action]:
    """Let a claim go that nobody uses: first its devices, then itself."""
    finalizers = claim.metadata.finalizers
    if PROTECTION_FINALIZER not in finalizers:
        return []
    if claim.status.allocation is not None:
        return [_claim_patch(claim, {"status": {"allocation": None}}, "status")]
    kept = [name for name in finalizers if name != PROTECTION_FINALIZER]
    return [_claim_patch(claim, {"metadata": {"finalizers": kept or None}})]


def _claim_patch(claim: DeviceClaim, change: Object, subresource: str = "") -> Patch:
    meta = claim.metadata
    # With its version: what somebody does with the claim meanwhile must not be undone.
    known = {"uid": meta.uid, "resourceVersion": meta.resource_version}
    change = {**change, "metadata": {**known, **change.get("metadata", {})}}
    return Patch(RESOURCE_CLAIM, meta.key, change, subresource)
