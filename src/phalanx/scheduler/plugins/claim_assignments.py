"""ClaimAssignments: the devices that a simulation gives to the members that it places.

One object per simulation, like `PeerCounts`. The members of a gang take devices one after the
other, so that no two count on the same one. A claim that several members use is allocated with the
first of them; the others must then be on nodes that reach its devices.

`free_device_counts` and `claim_capacities` are the same as arrays over all nodes: an upper bound of
how many pods the devices of each node serve, which is exact if devices are interchangeable.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from phalanx.api.core import NodeSelector
from phalanx.api.dynamic_resources import decode_allocation, extended_claim_prefix
from phalanx.api.meta import Key
from phalanx.api.wire import Object
from phalanx.scheduler.cluster.node_constraints import nodes_matching_any, terms_of
from phalanx.scheduler.cluster.pod_index import AssignedPod
from phalanx.scheduler.cluster.snapshot import BoolArray, IntArray, Snapshot, SnapshotCache
from phalanx.scheduler.devices.allocator import (
    AllocationLimit,
    ClaimChoices,
    NodeDevices,
    allocate_claims,
    build_allocation,
)
from phalanx.scheduler.devices.inventory import DeviceRequirement, NodeReach, PublishedDevice
from phalanx.scheduler.devices.requests import ClaimRequests, RequestAlternative
from phalanx.scheduler.devices.state import (
    AssignedClaim,
    ClaimDemand,
    DemandedClaim,
    claim_keys_of,
)
from phalanx.scheduler.devices.usage import DeviceUsage
from phalanx.scheduler.entity import Member

#: More pods than any node takes.
UNLIMITED = 1 << 40
#: The allocatable amount of a resource on nodes where devices serve it. No pod requests as much,
#: and no node has exactly that.
SERVED_BY_DEVICES = (1 << 45) + 1
_SELECTORS_LIMIT = 1024

AssignedClaims = tuple[AssignedClaim, ...]


class _SharedAllocation(NamedTuple):
    allocation: Object
    node_selector: NodeSelector | None


#: By node selector: the nodes that it matches, and the epoch of the snapshot.
_SELECTED_NODES: SnapshotCache[dict[NodeSelector, tuple[int, BoolArray]]] = SnapshotCache(dict)


def nodes_of_selector(snapshot: Snapshot, selector: NodeSelector) -> BoolArray:
    """Return the nodes that a node selector matches."""
    cached = _SELECTED_NODES.of(snapshot)
    found = cached.get(selector)
    if found is None or found[0] != snapshot.epoch:
        if len(cached) >= _SELECTORS_LIMIT:
            cached.clear()
        found = cached[selector] = (
            snapshot.epoch,
            nodes_matching_any(snapshot, terms_of(selector)),
        )
    return found[1]


def lists_resource(snapshot: Snapshot, resource: str) -> BoolArray:
    """Return the nodes that have a resource themselves."""
    column = snapshot.columns.get(resource)
    if column is None:
        return np.zeros(len(snapshot), bool)
    amounts = snapshot.allocatable[:, column]
    found: BoolArray = (amounts > 0) & (amounts != SERVED_BY_DEVICES)
    return found


class ClaimAssignments:
    """The devices in use in one simulation.

    With `prefers_reach`, claims that several members use get devices that more nodes reach before
    others, so that the members have more nodes to choose from.
    """

    def __init__(self, snapshot: Snapshot, *, prefers_reach: bool = False) -> None:
        self._snapshot, self._state = snapshot, snapshot.devices
        self._prefers_reach = prefers_reach
        self._usage = DeviceUsage(snapshot.devices.usage)
        self._shared: dict[Key, _SharedAllocation] = {}
        #: The allocations of the members that were assigned and not collected yet, in order.
        self._assigned: list[list[tuple[DemandedClaim, Object]]] = []
        #: How many shared claims were allocated.
        self.shared_count = 0
        #: Whether some search ended at its limit: it is unknown whether a node fits.
        self.is_undecided = False

    def fork(self) -> ClaimAssignments:
        """Copy the present state."""
        forked = ClaimAssignments(self._snapshot, prefers_reach=self._prefers_reach)
        forked._usage, forked._shared = self._usage.copy(), dict(self._shared)
        return forked

    def try_assign(self, demand: ClaimDemand, i: int) -> bool:
        """Take devices of a node for one more pod; whether the node can serve it."""
        choices = self.choose(demand, i)
        if choices is None:
            return False
        assigned = []
        for claim, chosen in choices:
            requests = self._state.requests.get(claim.spec)
            allocation = build_allocation(requests, chosen, self._snapshot.names[i])
            self._usage.add([choice.use for choice in chosen if choice.use])
            if claim.shared_key is not None:
                selector = decode_allocation(allocation).node_selector
                self._shared[claim.shared_key] = _SharedAllocation(allocation, selector)
                self.shared_count += 1
            assigned.append((claim, allocation))
        self._assigned.append(assigned)
        return True

    def hold(self, pod: AssignedPod, i: int) -> AssignedClaims:
        """Take devices of a node for a nominated pod, if the node can serve it."""
        keys = self._state.unallocated_claims(pod.claim_keys)
        demanded = tuple(DemandedClaim(self._state.claims[key].spec) for key in keys)
        if not keys or not self.try_assign(ClaimDemand(demanded), i):
            return ()
        given = self._assigned.pop()
        return tuple(AssignedClaim(key, one) for key, (_, one) in zip(keys, given, strict=True))

    def collect(self, members: Iterable[Member]) -> Iterator[tuple[Member, AssignedClaims]]:
        """Yield the claims of the members that were assigned since the last call, in order."""
        found, self._assigned = self._assigned, []
        for member, allocations in zip(members, found, strict=False):
            if not allocations:
                yield member, ()
                continue
            meta = member.pod.metadata
            shared = {one.shared_key for one in member.shape.claims.unallocated}
            unallocated = self._state.unallocated_claims(claim_keys_of(member.pod))
            own = iter([key for key in unallocated if key not in shared])
            claims = []
            for claim, allocation in allocations:
                key = claim.shared_key
                if claim.is_extended:
                    key = Key(meta.namespace, extended_claim_prefix(meta.name))
                claims.append(AssignedClaim(key or next(own), allocation))
            yield member, tuple(claims)

    def choose(
        self, demand: ClaimDemand, i: int
    ) -> list[tuple[DemandedClaim, ClaimChoices]] | None:
        """Choose devices of a node for a demand; None if the node cannot serve it."""
        if not self.is_reachable(demand, i):
            return None
        # A shared claim may have been allocated since the beginning of the cycle.
        claims = [
            one
            for one in demand.unallocated
            if (key := one.shared_key) is None
            or not (key in self._shared or self._state.allocation_of(key) is not None)
        ]
        requests = [self._requests_on(one, i) for one in claims]
        if claims and claims[-1].resources and not requests[-1].requests:
            # The claim for extended resources comes last; the node has all of them.
            claims, requests = claims[:-1], requests[:-1]
        if not claims:
            return []
        try:
            found = allocate_claims(
                requests,
                self._node_devices(i, ranked=self._prefers_reach and demand.has_shared),
                self._state.inventory,
                usage=self._usage,
            )
        except AllocationLimit:
            self.is_undecided = True
            return None
        return None if found is None else list(zip(claims, found, strict=True))

    def _requests_on(self, claim: DemandedClaim, i: int) -> ClaimRequests:
        """Return the requests of a claim, without those for resources that a node itself has."""
        found = self._state.requests.get(claim.spec)
        if not claim.resources:
            return found
        columns, allocatable = self._snapshot.columns, self._snapshot.node_class(i).allocatable
        needed = []
        for request, name in zip(found.requests, claim.resources, strict=True):
            amount = allocatable[columns[name]] if name in columns else 0
            if amount in (0, SERVED_BY_DEVICES):
                needed.append(tuple(one._replace(is_bound_at_once=True) for one in request))
        return found._replace(requests=tuple(needed))

    def is_reachable(self, demand: ClaimDemand, i: int) -> bool:
        """Whether a node reaches the devices of all allocated claims."""
        if demand.problem:
            return False
        for required in demand.node_selectors:
            if not nodes_of_selector(self._snapshot, required)[i]:
                return False
        for one in demand.unallocated:
            if one.shared_key is not None:
                key = one.shared_key
                found = self._shared.get(key) or self._state.allocation_of(key)
                selector = found.node_selector if found else None
                if selector is not None and not nodes_of_selector(self._snapshot, selector)[i]:
                    return False
        return True

    def selector_error(self, demand: ClaimDemand, i: int) -> str:
        """Return why a selector has no result for a device of a node; "" if all have."""
        devices = self._node_devices(i)
        for requests in (self._state.requests.get(one.spec) for one in demand.unallocated):
            for alternatives in requests.requests:
                for alternative in alternatives:
                    if error := devices.candidates(alternative).error:
                        return f"request {alternative.name}: {error}"
        return ""

    def _node_devices(self, i: int, *, ranked: bool = False) -> NodeDevices:
        snapshot = self._snapshot
        return NodeDevices(
            self._state.inventory,
            snapshot.names[i],
            lambda reach: _reaches(snapshot, reach, i),
            rank=(lambda reach: -int(nodes_of_reach(snapshot, reach).sum())) if ranked else None,
        )


def nodes_of_reach(snapshot: Snapshot, reach: NodeReach) -> BoolArray:
    """Return the nodes that reach a device."""
    if reach.node:
        mask = np.zeros(len(snapshot), bool)
        if reach.node in snapshot.index:
            mask[snapshot.index[reach.node]] = True
        return mask
    if reach.selector is None:
        return np.ones(len(snapshot), bool)
    return nodes_of_selector(snapshot, reach.selector)


def _reaches(snapshot: Snapshot, reach: NodeReach, i: int) -> bool:
    if reach.node:
        return reach.node == snapshot.names[i]
    return reach.selector is None or bool(nodes_of_selector(snapshot, reach.selector)[i])


class _FreeCounts:
    """The free devices of each node that a requirement selects."""

    __slots__ = ("counts", "position", "stamp", "usage")

    def __init__(
        self, counts: IntArray, usage: DeviceUsage, stamp: tuple[int, ...], *, position: int
    ) -> None:
        self.counts, self.usage, self.stamp, self.position = counts, usage, stamp, position


_FREE_COUNTS: SnapshotCache[dict[DeviceRequirement, _FreeCounts]] = SnapshotCache(dict)
_COUNTS_LIMIT = 256


def free_device_counts(snapshot: Snapshot, requirement: DeviceRequirement) -> IntArray:
    """Count the free devices of each node that a requirement selects; shareable: UNLIMITED.

    Kept with the snapshot and patched from the devices whose use changed. The result must not be
    modified.
    """
    origin, state = snapshot.origin, snapshot.devices
    if origin is not None and origin.devices is state:
        return free_device_counts(origin, requirement)
    cached, usage = _FREE_COUNTS.of(snapshot), state.usage
    stamp = (snapshot.epoch, state.inventory.revision, usage.generation)
    found = cached.get(requirement)
    if found is None or found.usage is not usage or found.stamp != stamp:
        if len(cached) >= _COUNTS_LIMIT:
            cached.clear()
        if origin is not None:
            counts = free_device_counts(origin, requirement).copy()
            found = _FreeCounts(counts, usage, stamp, position=0)
        else:
            counts = _count_free_devices(snapshot, requirement)
            found = _FreeCounts(counts, usage, stamp, position=len(usage.changed_devices))
        cached[requirement] = found
    if found.position < len(usage.changed_devices):
        changed = dict.fromkeys(usage.changed_devices[found.position :])
        if state.inventory.shared_candidates(requirement).devices:
            found.counts = _count_free_devices(snapshot, requirement)
        else:
            devices = map(state.inventory.find_device, changed)
            for name in dict.fromkeys(one.reach.node for one in devices if one is not None):
                if (i := snapshot.index.get(name)) is not None:
                    found.counts[i] = _count_local_devices(snapshot, requirement, i)
        found.position = len(usage.changed_devices)
    return found.counts


def _count_free_devices(snapshot: Snapshot, requirement: DeviceRequirement) -> IntArray:
    counts = np.zeros(len(snapshot), np.int64)
    inventory, usage = snapshot.devices.inventory, snapshot.devices.usage
    used_nodes = {
        device.reach.node
        for device in map(inventory.find_device, usage.used_devices())
        if device is not None
    }
    for name in inventory.local_nodes():
        if (i := snapshot.index.get(name)) is not None:
            count = None if name in used_nodes else inventory.count_local(name, requirement)
            if count is None:
                count = _count_local_devices(snapshot, requirement, i)
            counts[i] = count
    for device in inventory.shared_candidates(requirement).devices:
        reach = device.reach
        mask = (
            slice(None) if reach.selector is None else nodes_of_selector(snapshot, reach.selector)
        )
        counts[mask] += _count_device(device, usage)
    return counts


def _count_local_devices(snapshot: Snapshot, requirement: DeviceRequirement, i: int) -> int:
    state = snapshot.devices
    candidates = state.inventory.local_candidates(snapshot.names[i], requirement)
    return sum(_count_device(device, state.usage) for device in candidates.devices)


def _count_device(device: PublishedDevice, usage: DeviceUsage) -> int:
    if device.is_shareable:
        return UNLIMITED
    return not usage.is_used(device.id)


def claim_capacities(snapshot: Snapshot, demand: ClaimDemand) -> IntArray:
    """Return how many pods with a demand the devices of each node serve, at most.

    Never too low. Exact for claims that are countable, if no other claim selects the same devices.
    """
    most = np.full(len(snapshot), 0 if demand.problem else UNLIMITED, np.int64)
    for selector in demand.node_selectors:
        most[~nodes_of_selector(snapshot, selector)] = 0
    for claim in demand.unallocated:
        for alternatives in snapshot.devices.requests.get(claim.spec).requests:
            served = np.zeros(len(snapshot), np.int64)
            for one in alternatives:
                if one.is_admin:
                    served[:] = UNLIMITED
                    break
                free = free_device_counts(snapshot, one.requirement)
                pods = free // one.number if one.number else np.minimum(free, 1)
                served = np.maximum(served, pods)
            if claim.shared_key is not None:
                served = np.where(served > 0, UNLIMITED, 0)
            for resource in claim.resources:
                served[lists_resource(snapshot, resource)] = UNLIMITED
            most = np.minimum(most, served)
    return most


def first_counted_request(snapshot: Snapshot, demand: ClaimDemand) -> RequestAlternative | None:
    """Return the first request of a demand that takes devices on every node; None if none does."""
    for claim in demand.unallocated:
        if any(lists_resource(snapshot, resource).any() for resource in claim.resources):
            continue
        for alternatives in snapshot.devices.requests.get(claim.spec).requests:
            if alternatives and not alternatives[0].is_admin:
                return alternatives[0]
    return None


def is_demand_countable(snapshot: Snapshot, demand: ClaimDemand) -> bool:
    """Whether only the numbers of free devices matter: equal pods are then placed optimally."""
    if len(demand.unallocated) > 1 or demand.has_shared:
        return False
    for claim in demand.unallocated:
        requests = snapshot.devices.requests.get(claim.spec)
        is_mixed = any(lists_resource(snapshot, resource).any() for resource in claim.resources)
        if is_mixed or not requests.is_countable:
            return False
        inventory, requirement = snapshot.devices.inventory, requests.requests[0][0].requirement
        if inventory.has_counters or inventory.shared_candidates(requirement).devices:
            return False
    return True
