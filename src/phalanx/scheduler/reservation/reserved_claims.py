"""ReservedClaims: the devices and attach slots that a reservation keeps beside resources.

A plan gives devices to the members with claims, those that pods free before the expected start
included. Each of these devices is kept as soon as it is free:

    node n1   gpu-0 free, gpu-1 until 09:20, gpu-2 free     a member needs two, expected start 09:20
    kept      gpu-0 now, gpu-1 when it is free              gpu-2 is open for others

The volumes that a node attaches for members count as attached, so that others leave them a slot.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence

import numpy as np
from msgspec import Struct

from phalanx.api.dynamic_resources import decode_allocation
from phalanx.scheduler.cluster.snapshot import IntArray, Snapshot
from phalanx.scheduler.decision import ClaimReservation
from phalanx.scheduler.devices.inventory import DeviceId
from phalanx.scheduler.devices.state import AssignedClaim
from phalanx.scheduler.devices.usage import DeviceUse, uses_of
from phalanx.scheduler.entity import Entity
from phalanx.scheduler.placement.group_placement import Assignment, to_assigned_pods
from phalanx.scheduler.plugins.claim_assignments import (
    claim_capacities,
    first_counted_request,
    free_device_counts,
)
from phalanx.scheduler.volumes.state import VolumeUser

#: More devices than a node has: the number of members comes first in a rank.
_MAX_DEVICES = 1 << 16


class ReservedClaims(Struct, frozen=True):
    """What the claims of reserved pods are planned to get."""

    devices: tuple[AssignedClaim, ...] = ()
    #: The reserved pods whose volumes compete with those of other pods.
    volume_users: tuple[VolumeUser, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.devices or self.volume_users)

    def device_uses(self) -> Iterator[DeviceUse]:
        """Yield the planned uses of devices."""
        for one in self.devices:
            yield from uses_of(decode_allocation(one.allocation))


def find_reserved_claims(assignments: Iterable[Assignment], names: Sequence[str]) -> ReservedClaims:
    """Return what the claims of planned members get."""
    planned = list(assignments)
    dynamic = [one for one in planned if one.member.shape.volumes.is_dynamic]
    return ReservedClaims(
        tuple(claim for one in planned for claim in one.claims),
        tuple(pod.volume_user for pod in to_assigned_pods(dynamic, names)),
    )


def take_reserved_claims(snapshot: Snapshot, reserved: Iterable[ReservedClaims]) -> None:
    """Let what is kept and free count as in use. The snapshot must be a fork."""
    users: list[VolumeUser] = []
    devices = snapshot.devices.fork()
    for one in reserved:
        users += one.volume_users
        for use in one.device_uses():
            if use.share is not None or not devices.usage.is_used(use.device):
                devices.usage.add([use])
    snapshot.devices = devices
    if users:
        snapshot.volumes = snapshot.volumes.fork(added=users)


def contests_claims(
    entity: Entity,
    nodes: Collection[str],
    snapshot: Snapshot,
    *,
    reserved: Iterable[ReservedClaims],
    claims: Iterable[ClaimReservation] | None,
) -> bool:
    """Whether an entity on these nodes may take devices or attach slots that are kept.

    `claims` has the devices that it gets; None if it is not known yet which ones.
    """
    has_devices = any(member.shape.claims for member in entity.members)
    has_volumes = any(member.shape.volumes.is_dynamic for member in entity.members)
    kept: set[DeviceId] = set()
    for one in reserved:
        if has_volumes and any(user.node in nodes for user in one.volume_users):
            return True
        kept.update(use.device for use in one.device_uses() if has_devices)
    if not kept:
        return False
    if claims is None:
        devices = map(snapshot.devices.inventory.find_device, kept)
        return any(
            device is not None and (not device.reach.node or device.reach.node in nodes)
            for device in devices
        )
    allocations = [decode_allocation(one.allocation) for one in claims if one.allocation]
    return any(use.device in kept for given in allocations for use in uses_of(given))


def missing_devices(snapshot: Snapshot, reserved: ReservedClaims) -> float:
    """Measure how many of the planned devices are in use: 1.0 is all of them."""
    uses = [use for use in reserved.device_uses() if use.share is None]
    used = sum(snapshot.devices.usage.is_used(use.device) for use in uses)
    return used / len(uses) if uses else 0.0


def rank_by_free_devices(entity: Entity, snapshot: Snapshot, capacity: IntArray) -> IntArray:
    """Rank nodes by how many members they hold now, by resources and devices.

    Of nodes that hold as many members, the one with more free devices has the higher rank.
    """
    demands = dict.fromkeys(member.shape.claims for member in entity.members)
    free: IntArray = np.zeros(len(snapshot), np.int64)
    for demand in demands:
        request = first_counted_request(snapshot, demand)
        if request is not None:
            capacity = np.minimum(capacity, claim_capacities(snapshot, demand))
            free = free + np.minimum(free_device_counts(snapshot, request.requirement), 256)
    return capacity * _MAX_DEVICES + free
