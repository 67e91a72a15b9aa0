"""DeviceState: claims, their allocations and the devices in use, as one scheduling cycle sees them.

The cache owns one state and changes it between two cycles. A cycle forks it: the victims of a
preemption free their devices, and members that are placed take theirs.

`ClaimDemand` is what the claims of a pod require of a node. It is part of the pod's shape and names
no claims, so that the members of a gang, each with a claim of its own, are of one shape:

    claims   train-0-gpu-x, train-1-gpu-y                   from one template
    demand   one device of class gpu                        the same for both

A claim that several members use is part of the demand by its key: it is allocated once, and then
restricts the nodes of all of them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import NamedTuple

from phalanx.api.core import NodeSelector, Pod, PodResourceClaim
from phalanx.api.dynamic_resources import Allocation, decode_allocation
from phalanx.api.kinds import POD, POD_GROUP
from phalanx.api.meta import Key, new_key
from phalanx.api.other_kinds import ClaimConsumer, DeviceClaim
from phalanx.api.scheduling import PodGroup
from phalanx.api.wire import Object
from phalanx.scheduler.devices.inventory import DeviceInventory
from phalanx.scheduler.devices.requests import ClaimRequestsCache, encode_spec
from phalanx.scheduler.devices.usage import DeviceUsage, uses_of

#: The most consumers for which a claim can be reserved.
MAX_CONSUMERS = 256
IN_USE = "resourceclaim in use"


class DemandedClaim(NamedTuple):
    """An unallocated claim: its encoded spec, and its key if other members use it too."""

    spec: bytes
    shared_key: Key | None = None
    #: If it is created with the binding: the extended resource of the pod of each request.
    resources: tuple[str, ...] = ()

    @property
    def is_extended(self) -> bool:
        """Whether it is created with the binding, for extended resources of the pod."""
        return bool(self.resources)


class ClaimDemand(NamedTuple):
    """What the claims of a pod require of its node."""

    #: In the order of the pod.
    unallocated: tuple[DemandedClaim, ...] = ()
    #: The nodes on which its allocated claims can be used.
    node_selectors: tuple[NodeSelector, ...] = ()
    #: Why no node takes the pod; "" if one may.
    problem: str = ""

    def __bool__(self) -> bool:
        return bool(self.unallocated or self.node_selectors or self.problem)

    @property
    def has_shared(self) -> bool:
        """Whether some unallocated claim is used by other members too."""
        return any(one.shared_key is not None for one in self.unallocated)


NO_DEMAND = ClaimDemand()


class ClaimUse(NamedTuple):
    """The use of a claim by a pod: its key, its uid, and what it is to be reserved for."""

    claim: Key
    uid: str
    consumer: ClaimConsumer
    #: Whether it has an allocation already.
    is_allocated: bool


class AssignedClaim(NamedTuple):
    """A claim and the allocation, as the API has it, that a placement gives it."""

    claim: Key
    allocation: Object


class ClaimInfo(NamedTuple):
    """A claim as the scheduler reads it."""

    claim: DeviceClaim
    spec: bytes
    allocation: Allocation | None


def build_claim_info(claim: DeviceClaim) -> ClaimInfo:
    """Decode what the scheduler reads of a claim."""
    allocation = claim.status.allocation
    decoded = None if allocation is None else decode_allocation(allocation)
    return ClaimInfo(claim, encode_spec(claim.spec), decoded)


def claims_of_pod(pod: Pod) -> Iterator[tuple[PodResourceClaim, Key | None]]:
    """Yield the claims of a pod; the key is None until the claim was created from its template."""
    namespace, created = pod.metadata.namespace, pod.status.resource_claim_statuses
    for entry in pod.spec.resource_claims:
        name = entry.resource_claim_name
        for one in created if not name else ():
            if one.name == entry.name:
                name = one.resource_claim_name
        yield entry, new_key(Key, (namespace, name)) if name else None


def claim_keys_of(pod: Pod) -> tuple[Key, ...]:
    """Return the claims of a pod that were created, in order, each once."""
    keys = [key for _, key in claims_of_pod(pod) if key is not None]
    return tuple(keys) if len(keys) < 2 else tuple(dict.fromkeys(keys))


def claim_consumer(pod: Pod, entry: PodResourceClaim, group: PodGroup | None) -> ClaimConsumer:
    """Return what a claim is reserved for: the pod, or the PodGroup that has the same entry."""
    if group is not None and entry in group.spec.resource_claims:
        return ClaimConsumer.of(POD_GROUP, group.metadata)
    return ClaimConsumer.of(POD, pod.metadata)


class DeviceState:
    """The claims and devices of a cluster at one moment."""

    def __init__(self, inventory: DeviceInventory | None = None) -> None:
        self.inventory = inventory or DeviceInventory()
        self.requests = ClaimRequestsCache(self.inventory)
        self.claims: dict[Key, ClaimInfo] = {}
        #: The claims that are reserved for the consumer with a uid.
        self._reserved: dict[str, dict[Key, None]] = {}
        self.usage = DeviceUsage()
        #: Allocations that the API does not show: assumed ones, or those of a fork.
        self._assumed: dict[Key, Allocation] = {}
        self._origin: DeviceState | None = None

    def fork(
        self,
        freed_uids: Collection[str] = (),
        added: Iterable[AssignedClaim] = (),
        removed: Iterable[AssignedClaim] = (),
    ) -> DeviceState:
        """Copy the state, without claims that only consumers with these uids use, and with others.

        `removed` were added to an earlier copy. The claim of a PodGroup stays allocated while the
        PodGroup exists.
        """
        forked = DeviceState(self.inventory)
        forked.requests, forked.claims = self.requests, self.claims
        forked._reserved = self._reserved
        forked.usage, forked._origin = DeviceUsage(self.usage), self
        for key in self._claims_freed_by(freed_uids) if freed_uids else ():
            if (allocation := self.allocation_of(key)) is not None:
                forked.usage.add(uses_of(allocation), -1)
        for _, given in removed:
            forked.usage.add(uses_of(decode_allocation(given)), -1)
        for key, given in added:
            if forked.allocation_of(key) is None:
                forked.assume(key, decode_allocation(given))
        return forked

    def _claims_freed_by(self, uids: Collection[str]) -> Iterator[Key]:
        keys = dict.fromkeys(key for uid in uids for key in self._reserved.get(uid, ()))
        for key in keys:
            if all(one.uid in uids for one in self.claims[key].claim.status.reserved_for):
                yield key

    def is_consumer(self, uid: str) -> bool:
        """Whether a claim is reserved for the pod with a uid, named by it or not.

        The claim for extended resources is no entry of the pod's `resourceClaims`.
        """
        return uid in self._reserved

    def pod_consumers(self) -> set[str]:
        """Return the uids of the pods that claims are reserved for."""
        return {
            one.uid
            for uid, keys in self._reserved.items()
            for key in keys
            for one in self.claims[key].claim.status.reserved_for
            if one.uid == uid and one.kind is POD
        }

    def allocation_of(self, key: Key) -> Allocation | None:
        """Return the allocation of a claim, observed or assumed."""
        assumed = self._assumed.get(key)
        if assumed is not None:
            return assumed
        if self._origin is not None:
            return self._origin.allocation_of(key)
        info = self.claims.get(key)
        return info.allocation if info else None

    @property
    def assumed(self) -> Mapping[Key, Allocation]:
        """The allocations that the API does not show."""
        return self._assumed

    def assume(self, key: Key, allocation: Allocation) -> None:
        """Count an allocation that the API does not show yet."""
        self._assumed[key] = allocation
        self.usage.add(uses_of(allocation))

    def forget(self, key: Key) -> None:
        """Take an assumed allocation back."""
        if (allocation := self._assumed.pop(key, None)) is not None:
            self.usage.add(uses_of(allocation), -1)

    def update_claim(self, key: Key, new: ClaimInfo | None) -> None:
        """Add, replace or (None) remove a claim. Only the cache calls this."""
        old = self.claims.get(key)
        if new is None or new.allocation is not None or (old and _uid(old) != _uid(new)):
            self.forget(key)
        for info, sign in ((old, -1), (new, 1)):
            if info is not None and info.allocation is not None:
                self.usage.add(uses_of(info.allocation), sign)
            for consumer in info.claim.status.reserved_for if info else ():
                keys = self._reserved.setdefault(consumer.uid, {})
                if sign > 0:
                    keys[key] = None
                else:
                    keys.pop(key, None)
                    if not keys:
                        del self._reserved[consumer.uid]
        if new is None:
            self.claims.pop(key, None)
        else:
            self.claims[key] = new

    def unallocated_claims(self, keys: Iterable[Key]) -> list[Key]:
        """Return the claims that exist and have no allocation, in order."""
        return [key for key in keys if key in self.claims and self.allocation_of(key) is None]

    def uses_of_pod(self, pod: Pod, group: PodGroup | None) -> list[ClaimUse]:
        """Return the claims of a pod that exist, in order, each once."""
        found: dict[Key, ClaimUse] = {}
        for entry, key in claims_of_pod(pod):
            info = self.claims.get(key) if key else None
            if key is not None and info is not None and key not in found:
                found[key] = ClaimUse(
                    key,
                    info.claim.metadata.uid,
                    claim_consumer(pod, entry, group),
                    is_allocated=self.allocation_of(key) is not None,
                )
        return list(found.values())

    def demand_of(
        self, pod: Pod, group: PodGroup | None, shared_keys: Collection[Key]
    ) -> ClaimDemand:
        """Return what the claims of a pod require; `shared_keys` are used by other members too."""
        unallocated: dict[Key, DemandedClaim] = {}
        selectors: list[NodeSelector] = []
        for entry, key in claims_of_pod(pod):
            info = self.claims.get(key) if key else None
            if key is None or info is None:
                name = key.name if key else entry.name
                return ClaimDemand(problem=f'resourceclaim "{name}" not found')
            allocation = self.allocation_of(key)
            if allocation is None:
                if problem := self.requests.get(info.spec).problem:
                    return ClaimDemand(problem=problem)
                unallocated[key] = DemandedClaim(info.spec, key if key in shared_keys else None)
                continue
            consumers = info.claim.status.reserved_for
            is_full = len(consumers) >= MAX_CONSUMERS
            if is_full and claim_consumer(pod, entry, group) not in consumers:
                return ClaimDemand(problem=IN_USE)
            if allocation.node_selector is not None:
                selectors.append(allocation.node_selector)
        return ClaimDemand(tuple(unallocated.values()), tuple(selectors))


def _uid(info: ClaimInfo) -> str:
    return info.claim.metadata.uid
