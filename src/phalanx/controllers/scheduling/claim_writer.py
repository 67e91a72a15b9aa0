"""ClaimWriter: allocates and reserves claims one by one, before the pods that use them are bound.

Used by `binder.PodBinder` on foreign API servers, as PreBind in Kubernetes: first the finalizer,
then allocation and reservation in one update of the status. Every write is conditional on the
version of the claim, so that two schedulers never allocate it twice. If a claim cannot be written,
those that were written for the same attempt are released again.

`IdleClaimReleaser` deallocates claims that keep refused pods off nodes and that no pod uses.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from copy import deepcopy

import msgspec

from phalanx import logs
from phalanx.api.dynamic_resources import (
    CLAIM_FINALIZER,
    EXTENDED_RESOURCE_CLAIM,
    NEW_SHARE_ID,
)
from phalanx.api.errors import ApiError, Conflict
from phalanx.api.kinds import POD, RESOURCE_CLAIM
from phalanx.api.meta import Key
from phalanx.api.other_kinds import DeviceClaim
from phalanx.api.wire import Object
from phalanx.client.client import Client
from phalanx.client.transports import Unreachable
from phalanx.randomness import Random
from phalanx.scheduler.decision import ClaimReservation

LOG = logs.component("scheduler")

#: Attempts to write a claim while other clients change it at the same time, and the seconds before
#: the second one, which double: until then the other write can be read.
_MAX_WRITE_ATTEMPTS, _FIRST_PAUSE_SECONDS = 5, 0.01


class IdleClaimReleaser:
    """Takes allocations back that keep pods off nodes and that no pod uses.

    Every write is conditional on the version of the claim: if a pod uses it meanwhile, it stays.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        #: By key: the claims to release; each once, however often pods are refused for it.
        self._waiting: dict[Key, DeviceClaim] = {}
        self._wakeup = asyncio.Event()

    def submit(self, claim: DeviceClaim) -> None:
        """Take the allocation of a claim back soon."""
        self._waiting[claim.metadata.key] = claim
        self._wakeup.set()

    async def run(self) -> None:
        """Release claims until cancelled."""
        while True:
            await self._wakeup.wait()
            self._wakeup.clear()
            waiting, self._waiting = self._waiting, {}
            for key, claim in waiting.items():
                try:
                    await self._release(claim)
                except (ApiError, Unreachable) as error:
                    LOG.warning(
                        "idle claim not released", kind="ResourceClaim", key=key, reason=error
                    )

    async def _release(self, claim: DeviceClaim) -> None:
        meta = claim.metadata
        change = {
            "metadata": {"uid": meta.uid, "resourceVersion": meta.resource_version},
            "status": {"allocation": None, "devices": None, "reservedFor": None},
        }
        await self._client.patch(RESOURCE_CLAIM, meta.key, change, subresource="status")
        LOG.info("deallocation of ResourceClaim completed", kind="ResourceClaim", key=meta.key)


class ClaimWriter:
    """Writes the claims of placed pods."""

    def __init__(self, client: Client, random: Random) -> None:
        self._client, self._random = client, random
        #: The claims that were created for extended resources, by pod uid.
        self._created: dict[str, Key] = {}

    async def reserve(self, reservations: Iterable[ClaimReservation]) -> None:
        """Allocate and reserve claims: all of them, or none. Raises ApiError, Unreachable."""
        written: list[ClaimReservation] = []
        try:
            for one in reservations:
                await self._reserve_one(one, written)
        except (ApiError, Unreachable):
            await self.release(written)
            raise

    async def settle(
        self, reservations: Iterable[ClaimReservation], failed: set[str], *, keeps_groups: bool
    ) -> None:
        """End an attempt: release the claims of pods, by uid, that could not be bound.

        With `keeps_groups` some member of the group has a node and uses the claims of the group.
        """
        done = list(reservations)
        unused = [one for one in done if one.pod_uid in failed]
        await self.release(unused, keeps_groups=keeps_groups)
        for one in done:
            self._created.pop(one.pod_uid, None)

    async def release(
        self, reservations: Iterable[ClaimReservation], *, keeps_groups: bool = False
    ) -> None:
        """Take reservations back, and allocations that were made for them.

        What cannot be released now is released when the pod ends.
        """
        for one in reservations:
            if keeps_groups and one.consumer.kind is not POD:
                continue
            try:
                await self._release_one(one)
            except (ApiError, Unreachable) as error:
                LOG.warning("claim not released", kind="ResourceClaim", key=one.claim, reason=error)

    async def _create(self, one: ClaimReservation) -> None:
        """Create the claim for the extended resources of a pod, and name it in the pod's status."""
        owner = {
            "apiVersion": POD.api_version,
            "kind": POD.name,
            "name": one.consumer.name,
            "uid": one.consumer.uid,
            "controller": True,
        }
        meta = {
            "generateName": one.claim.name,
            "namespace": one.claim.namespace,
            "annotations": {EXTENDED_RESOURCE_CLAIM: "true"},
            "ownerReferences": [owner],
            "finalizers": [CLAIM_FINALIZER],
        }
        answer = await self._client.create(RESOURCE_CLAIM, {"metadata": meta, "spec": one.spec})
        claim = msgspec.convert(answer, DeviceClaim)
        self._created[one.pod_uid] = claim.metadata.key
        status: Object = {"reservedFor": msgspec.to_builtins([one.consumer])}
        if one.allocation is not None:
            status["allocation"] = self._with_share_ids(one.allocation)
        await self._patch(claim, {"status": status}, subresource="status")
        named = {
            "resourceClaimName": claim.metadata.name,
            "requestMappings": list(one.request_mappings),
        }
        pod = Key(one.claim.namespace, one.consumer.name)
        change = {
            "metadata": {"uid": one.consumer.uid},
            "status": {"extendedResourceClaimStatus": named},
        }
        await self._client.patch(POD, pod, change, subresource="status")

    async def _reserve_one(self, one: ClaimReservation, written: list[ClaimReservation]) -> None:
        """Allocate and reserve a claim; adds it to `written` before something is written."""
        if one.spec is not None:
            written.append(one)
            await self._create(one)
            return
        for attempt in range(_MAX_WRITE_ATTEMPTS):
            if attempt:
                await asyncio.sleep(_FIRST_PAUSE_SECONDS * 2 ** (attempt - 1))
            claim = await self._get(one.claim)
            _check_claim(claim, one)
            try:
                if CLAIM_FINALIZER not in claim.metadata.finalizers:
                    names = [*claim.metadata.finalizers, CLAIM_FINALIZER]
                    claim = await self._patch(claim, {"metadata": {"finalizers": names}})
                status: Object = {}
                if one.allocation is not None:
                    status["allocation"] = self._with_share_ids(one.allocation)
                consumers = claim.status.reserved_for
                if one.consumer not in consumers:
                    status["reservedFor"] = msgspec.to_builtins([*consumers, one.consumer])
                if status:
                    written.append(one)
                    await self._patch(claim, {"status": status}, subresource="status")
            except Conflict:
                continue
            return
        raise Conflict(f"claim {one.claim} changed during each of {_MAX_WRITE_ATTEMPTS} attempts")

    async def _release_one(self, one: ClaimReservation) -> None:
        key = self._created.pop(one.pod_uid, None) if one.spec is not None else one.claim
        if key is None:
            return
        claim = await self._get(key)
        consumers = [other for other in claim.status.reserved_for if other != one.consumer]
        is_same = one.spec is not None or claim.metadata.uid == one.uid
        if not is_same or one.consumer not in claim.status.reserved_for:
            return
        status: Object = {"reservedFor": msgspec.to_builtins(consumers) or None}
        if not consumers and one.allocation is not None:
            status |= {"allocation": None, "devices": None}
        await self._patch(claim, {"status": status}, subresource="status")

    async def _get(self, key: Key) -> DeviceClaim:
        return await self._client.get(RESOURCE_CLAIM, key, DeviceClaim)

    async def _patch(
        self, claim: DeviceClaim, change: Object, *, subresource: str = ""
    ) -> DeviceClaim:
        meta = claim.metadata
        preconditions = {"uid": meta.uid, "resourceVersion": meta.resource_version}
        change = {**change, "metadata": {**preconditions, **change.get("metadata", {})}}
        answer = await self._client.patch(RESOURCE_CLAIM, meta.key, change, subresource=subresource)
        return msgspec.convert(answer, DeviceClaim)

    def _with_share_ids(self, allocation: Object) -> Object:
        copied = deepcopy(allocation)
        for result in copied["devices"]["results"]:
            if result.get("shareID") == NEW_SHARE_ID:
                result["shareID"] = self._random.uid()
        return copied


def _check_claim(claim: DeviceClaim, one: ClaimReservation) -> None:
    """Raise Conflict if a claim is not as the decision assumed."""
    if claim.metadata.uid != one.uid or claim.metadata.deletion_timestamp:
        raise Conflict(f"claim {one.claim} was deleted")
    is_allocated = claim.status.allocation is not None
    if one.allocation is not None and is_allocated:
        raise Conflict(f"claim {one.claim} got allocated elsewhere in the meantime")
    if one.allocation is None and not is_allocated:
        raise Conflict(f"claim {one.claim} has no allocation any more")
