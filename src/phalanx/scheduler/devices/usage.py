"""DeviceUsage: which devices are in use, and how much of the capacity of shared ones.

A usage may be based on another one, to which it adds and from which it takes away: hypothetical
allocations of a scheduling cycle never change the usage that they start from.

    base      gpu-0 in use
    on top    gpu-0 freed (its pod would be evicted), gpu-1 in use (a member would be placed)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from fractions import Fraction
from typing import NamedTuple

from phalanx.api.dynamic_resources import Allocation
from phalanx.api.resources import exact_value
from phalanx.scheduler.devices.inventory import DeviceId

_CHANGES_LIMIT = 65_536
_NOTHING = Fraction(0)

#: The amounts that a share takes of each capacity.
ConsumedCapacity = Mapping[str, Fraction]


class DeviceUse(NamedTuple):
    """The use of one device: alone, or (with `share`) of part of its capacity."""

    device: DeviceId
    share: ConsumedCapacity | None = None


class DeviceUsage:
    """The devices in use, on top of another usage."""

    __slots__ = ("_base", "_counts", "_share_counts", "_shares", "changed_devices", "generation")

    def __init__(self, base: DeviceUsage | None = None) -> None:
        self._base = base
        #: How often a device is used alone, relative to the base.
        self._counts: dict[DeviceId, int] = {}
        #: The consumed capacity of shared devices, relative to the base.
        self._shares: dict[DeviceId, dict[str, Fraction]] = {}
        #: How many shares of a device are in use, relative to the base.
        self._share_counts: dict[DeviceId, int] = {}
        #: The devices whose use changed, in order: what was derived from the usage is patched.
        self.changed_devices: list[DeviceId] = []
        #: Changes when that list starts anew.
        self.generation = 0

    def copy(self) -> DeviceUsage:
        """Copy the usage; both have the same base."""
        copied = DeviceUsage(self._base)
        copied._counts = dict(self._counts)
        copied._share_counts = dict(self._share_counts)
        copied._shares = {device: dict(share) for device, share in self._shares.items()}
        return copied

    def is_used(self, device: DeviceId) -> bool:
        """Whether a device is used alone."""
        count, usage = self._counts.get(device, 0), self._base
        while usage is not None:
            count, usage = count + usage._counts.get(device, 0), usage._base
        return count > 0

    def is_shared(self, device: DeviceId) -> bool:
        """Whether some claim has a share of a device."""
        count, usage = self._share_counts.get(device, 0), self._base
        while usage is not None:
            count, usage = count + usage._share_counts.get(device, 0), usage._base
        return count > 0

    def as_dict(self) -> dict[DeviceId, object]:
        """Return the use of every device, without the base."""
        shares = {device: share for device, share in self._shares.items() if share}
        return {**self._counts, **shares}

    def used_devices(self) -> Iterator[DeviceId]:
        """Yield the devices that are used alone, here or in the base."""
        yield from self._counts
        if self._base is not None:
            yield from self._base.used_devices()

    def consumed(self, device: DeviceId, capacity: str) -> Fraction:
        """How much of a capacity of a shared device is consumed."""
        total = _NOTHING
        usage: DeviceUsage | None = self
        while usage is not None:
            share = usage._shares.get(device)
            if share is not None and (amount := share.get(capacity)):
                # Additions of fractions are slow, and mostly there is one amount.
                total = total + amount if total else amount
            usage = usage._base
        return total

    def add(self, uses: Iterable[DeviceUse], sign: int = 1) -> None:
        """Count uses of devices, or (`sign` -1) take them back."""
        if len(self.changed_devices) >= _CHANGES_LIMIT:
            self.changed_devices.clear()
            self.generation += 1
        for device, share in uses:
            self.changed_devices.append(device)
            if share is None:
                self._counts[device] = self._counts.get(device, 0) + sign
                if not self._counts[device]:
                    del self._counts[device]
                continue
            self._share_counts[device] = self._share_counts.get(device, 0) + sign
            consumed = self._shares.setdefault(device, {})
            for name, amount in share.items():
                consumed[name] = consumed.get(name, Fraction(0)) + sign * amount
                if not consumed[name]:
                    del consumed[name]


def uses_of(allocation: Allocation) -> list[DeviceUse]:
    """Return the uses of devices by an allocation. Admin access uses none."""
    return [
        DeviceUse(
            DeviceId(result.driver, result.pool, result.device),
            {name: exact_value(amount) for name, amount in result.consumed_capacity.items()}
            if result.share_id or result.consumed_capacity
            else None,
        )
        for result in allocation.devices.results
        if not result.admin_access
    ]
