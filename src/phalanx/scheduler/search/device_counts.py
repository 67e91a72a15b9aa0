"""Counts of devices as resources of a placement problem.

A request for devices takes at least so many of those that it selects. For every set of different
requirements, the members on a node cannot take more than the node reaches of the devices that one
of them selects. Where devices are interchangeable and belong to one node, this is exact. Otherwise
it is an upper bound: a problem without a solution has no placement.

    requirements   a: any GPU, b: GPU of 80Gi      devices of n1: 2 of 40Gi, 1 of 80Gi
    rows of n1     a <= 3, b <= 1, a and b together <= 3

Devices that several nodes reach are counted in each of them, and once in a total over all nodes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import NamedTuple

import numpy as np

from phalanx.scheduler.cluster.snapshot import IntArray, Snapshot
from phalanx.scheduler.devices.inventory import DeviceRequirement, PublishedDevice
from phalanx.scheduler.devices.requests import RequestAlternative
from phalanx.scheduler.devices.state import ClaimDemand, DemandedClaim
from phalanx.scheduler.plugins.claim_assignments import (
    UNLIMITED,
    free_device_counts,
    lists_resource,
    nodes_of_reach,
)

#: With more different requirements, or on more nodes, each requirement is counted alone.
MAX_COMBINED, MAX_COMBINED_NODES = 4, 1024

#: Requirements that are counted together.
RequirementSet = tuple[DeviceRequirement, ...]


class ResourceTotal(NamedTuple):
    """What the members of each kind take of something that all nodes share, and its amount."""

    requests: IntArray
    amount: int


class DeviceCounts(NamedTuple):
    """Requests per kind and row, what each node has of each row, and totals over all nodes."""

    requests: IntArray
    free: IntArray
    totals: tuple[ResourceTotal, ...]


def count_devices(
    snapshot: Snapshot, demands: Sequence[ClaimDemand], nodes: IntArray, *, needs_all: bool
) -> DeviceCounts:
    """Count devices for kinds with these demands on some nodes of a snapshot.

    `needs_all`: every member must be placed, so that claims of several members take devices too.
    """
    sets = list(_requirement_sets(snapshot, demands, len(nodes)))
    requests = np.zeros((len(demands), len(sets)), np.int64)
    free = np.zeros((len(nodes), len(sets)), np.int64)
    totals: list[ResourceTotal] = []
    for row, chosen in enumerate(sets):
        # Each pod takes at least so many devices for the claims that are its own.
        requests[:, row] = [
            sum(
                _least_of_claim(snapshot, claim, chosen)
                for claim in demand.unallocated
                if claim.shared_key is None
            )
            for demand in demands
        ]
        free[:, row] = _free_devices(snapshot, chosen)[nodes]
        for demand in demands:
            for claim in demand.unallocated:
                if claim.resources and _least_of_claim(snapshot, claim, chosen):
                    # A node that has the resource itself serves it without devices.
                    has_own = [lists_resource(snapshot, one)[nodes] for one in claim.resources]
                    free[np.any(has_own, axis=0), row] = UNLIMITED
        total = _total_devices(snapshot, chosen, nodes)
        if total is not None and not (free[:, row] >= UNLIMITED).any():
            shared = _devices_of_shared_claims(snapshot, demands, chosen) if needs_all else 0
            totals.append(ResourceTotal(requests[:, row], total - shared))
    return DeviceCounts(requests, free, tuple(totals))


def _requirement_sets(
    snapshot: Snapshot, demands: Sequence[ClaimDemand], nodes: int
) -> Iterator[RequirementSet]:
    found: dict[DeviceRequirement, None] = {}
    for alternatives in _requests(snapshot, demands):
        if not any(one.is_admin for one in alternatives):
            found |= {one.requirement: None for one in alternatives}
    yield from ((one,) for one in found)
    if len(found) <= MAX_COMBINED and nodes <= MAX_COMBINED_NODES:
        for size in range(2, len(found) + 1):
            yield from combinations(found, size)


def _requests(
    snapshot: Snapshot, demands: Sequence[ClaimDemand]
) -> Iterator[tuple[RequestAlternative, ...]]:
    for demand in dict.fromkeys(demands):
        for claim in demand.unallocated:
            yield from snapshot.devices.requests.get(claim.spec).requests


def _least_of_claim(snapshot: Snapshot, claim: DemandedClaim, chosen: RequirementSet) -> int:
    """Count the devices that a claim takes at least of some requirements."""
    return sum(
        min(
            # All devices are at least one.
            max(one.number, 1) if one.requirement in chosen and not one.is_admin else 0
            for one in alternatives
        )
        for alternatives in snapshot.devices.requests.get(claim.spec).requests
        if alternatives
    )


def _devices_of_shared_claims(
    snapshot: Snapshot, demands: Sequence[ClaimDemand], chosen: RequirementSet
) -> int:
    """Count the devices that claims of several members take at least, each claim once."""
    shared = {
        claim.shared_key: claim
        for demand in demands
        for claim in demand.unallocated
        if claim.shared_key is not None
    }
    return sum(_least_of_claim(snapshot, claim, chosen) for claim in shared.values())


def _free_devices(snapshot: Snapshot, chosen: RequirementSet) -> IntArray:
    """Count the free devices that each node reaches and one of the requirements selects."""
    if len(chosen) == 1:
        return free_device_counts(snapshot, chosen[0])
    counts = np.zeros(len(snapshot), np.int64)
    inventory = snapshot.devices.inventory
    for name in inventory.local_nodes():
        if (i := snapshot.index.get(name)) is not None:
            local = [inventory.local_candidates(name, one).devices for one in chosen]
            counts[i] = sum(_count_free(snapshot, one) for one in _distinct(local))
    for device in _distinct([inventory.shared_candidates(one).devices for one in chosen]):
        counts[nodes_of_reach(snapshot, device.reach)] += _count_free(snapshot, device)
    return counts


def _total_devices(snapshot: Snapshot, chosen: RequirementSet, nodes: IntArray) -> int | None:
    """Count the free devices that some node reaches, each once; None if each has one node only."""
    inventory, inside = snapshot.devices.inventory, np.zeros(len(snapshot), bool)
    inside[nodes] = True
    shared = list(_distinct([inventory.shared_candidates(one).devices for one in chosen]))
    if not shared:
        return None
    total = sum(
        _count_free(snapshot, one)
        for one in shared
        if (nodes_of_reach(snapshot, one.reach) & inside).any()
    )
    for i in nodes.tolist():
        name = snapshot.names[i]
        local = [inventory.local_candidates(name, one).devices for one in chosen]
        total += sum(_count_free(snapshot, one) for one in _distinct(local))
    return total


def _distinct(candidates: Sequence[Sequence[PublishedDevice]]) -> Iterator[PublishedDevice]:
    yield from {device.id: device for devices in candidates for device in devices}.values()


def _count_free(snapshot: Snapshot, device: PublishedDevice) -> int:
    if device.is_shareable:
        return UNLIMITED
    return not snapshot.devices.usage.is_used(device.id)
