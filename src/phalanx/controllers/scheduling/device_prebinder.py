"""DevicePreBinder: waits until drivers have prepared the devices of placed pods.

A device with binding conditions is attached to its node, or set up, after it was allocated. Its
driver reports that in the status of the claim. So the claims of such devices are allocated and
reserved before the pods are bound, as PreBind in Kubernetes does for every claim:

    conditions of the device in status.devices       outcome
    all binding conditions are True                  ready
    a binding failure condition is True              the placement is void
    none of this within the timeout                  the placement is void

When a placement is void, the claims are released again, so that the next attempt may choose other
devices. A scheduler that starts while devices are being prepared goes on to wait for them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from phalanx.api.dynamic_resources import AllocatedDevice, decode_allocation
from phalanx.api.errors import ApiError, Conflict, Timeout
from phalanx.api.meta import Key
from phalanx.api.other_kinds import DeviceClaim
from phalanx.api.wire import Object
from phalanx.client.cache import ObjectCache
from phalanx.client.transports import Unreachable
from phalanx.controllers.scheduling.claim_writer import ClaimWriter
from phalanx.scheduler.decision import ClaimReservation


class DevicePreBinder:
    """Allocates claims whose devices must be prepared before their pods are bound."""

    def __init__(self, writer: ClaimWriter, claims: ObjectCache[DeviceClaim]) -> None:
        self._writer, self._claims = writer, claims
        #: The claims that have changed since the attempts that wait looked at them.
        self._waiting: dict[asyncio.Event, set[Key]] = {}
        claims.subscribe(self._on_change)

    def is_needed(self, reservations: Iterable[ClaimReservation]) -> bool:
        """Whether some device is not prepared yet."""
        return any(self._has_conditions(one) for one in reservations)

    async def bind(
        self,
        reservations: Sequence[ClaimReservation],
        seconds: float,
        *,
        keeps_groups: bool = False,
    ) -> tuple[ClaimReservation, ...]:
        """Allocate claims and wait for their devices; return what is left to be written.

        `keeps_groups` as in `ClaimWriter.settle`. Raises ApiError, Unreachable.
        """
        first, others = list[ClaimReservation](), list[ClaimReservation]()
        for one in reservations:
            (first if self._has_conditions(one) else others).append(one)
        if not first:
            return tuple(reservations)
        await self._writer.reserve(first)
        try:
            await self._wait_until_prepared(first, seconds)
        except (ApiError, Unreachable):
            await self.release(first, keeps_groups=keeps_groups)
            raise
        return (*(replace(one, allocation=None) for one in first), *others)

    async def release(
        self, reservations: Iterable[ClaimReservation], *, keeps_groups: bool = False
    ) -> None:
        """Take back what `bind` has written: the pods could not be bound."""
        # As if the reservation had allocated the claim: then the devices are freed with it.
        written = [
            replace(one, allocation=self._allocation_of(one))
            for one in reservations
            if self._has_conditions(one)
        ]
        await self._writer.release(written, keeps_groups=keeps_groups)

    def _has_conditions(self, one: ClaimReservation) -> bool:
        allocation = self._allocation_of(one)
        return allocation is not None and any(
            result.get("bindingConditions") for result in allocation["devices"].get("results", ())
        )

    def _allocation_of(self, one: ClaimReservation) -> Object | None:
        """Return the allocation of a claim: that of the decision, or the one that it has."""
        claim = self._claims.get(one.claim)
        if one.allocation is not None or claim is None or claim.metadata.uid != one.uid:
            return one.allocation
        return claim.status.allocation

    async def _wait_until_prepared(
        self, reservations: Iterable[ClaimReservation], seconds: float
    ) -> None:
        left = {one.claim: one for one in reservations}
        changed = asyncio.Event()
        self._waiting[changed] = set(left)
        try:
            async with asyncio.timeout(seconds):
                while left:
                    changed.clear()
                    keys, self._waiting[changed] = self._waiting[changed], set()
                    for key in [key for key in left if key in keys]:
                        if self._is_prepared(left[key]):
                            del left[key]
                    if left:
                        await changed.wait()
        except TimeoutError:
            names = ", ".join(sorted(key.name for key in left))
            message = f"devices of claim {names} were not prepared within {seconds:g} s"
            raise Timeout(message) from None
        finally:
            del self._waiting[changed]

    def _is_prepared(self, one: ClaimReservation) -> bool:
        """Whether all devices of a claim are prepared. Raises Conflict if one cannot be."""
        claim = self._claims.get(one.claim)
        if claim is None or claim.metadata.uid != one.uid or claim.metadata.deletion_timestamp:
            raise Conflict(f"claim {one.claim} was deleted")
        if claim.status.allocation is None:
            return False  # The cache does not show the write of this attempt yet.
        results = decode_allocation(claim.status.allocation).devices.results
        # Of all devices: one that has failed ends the attempt, whatever the others are waiting for.
        prepared = [_is_device_prepared(claim, result) for result in results]
        return all(prepared)

    def _on_change(self, old: DeviceClaim | None, new: DeviceClaim | None) -> None:
        found = new or old
        assert found is not None
        for changed, keys in self._waiting.items():
            keys.add(found.metadata.key)
            changed.set()


def _is_device_prepared(claim: DeviceClaim, result: AllocatedDevice) -> bool:
    """Whether all binding conditions of a device are True. Raises Conflict if it has failed."""
    wanted = (result.driver, result.pool, result.device, result.share_id)
    true_types = {
        condition.type
        for status in claim.status.devices
        if (status.driver, status.pool, status.device, status.share_id) == wanted
        for condition in status.conditions
        if condition.status == "True"
    }
    for failure in result.binding_failure_conditions:
        if failure in true_types:
            name = "/".join(wanted[:3])
            raise Conflict(f"device {name} of claim {claim.metadata.name} has failed: {failure}")
    return true_types.issuperset(result.binding_conditions)
