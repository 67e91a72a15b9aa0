"""Allocates devices of one node to claims: a depth-first search in a fixed order, first fit.

Claims in the order of the pod, requests in the order of the claim, alternatives, then devices in
the order of the inventory, as in Kubernetes: the first combination that satisfies everything is
taken. Devices that are interchangeable are tried once. The search ends after a counted number of
steps; then nothing is known about the node.

    requests [2 of gpu, same numa node], devices gpu-0 (0), gpu-1 (1), gpu-2 (1)
    gpu-0 ─▶ gpu-1 differs, gpu-2 differs;  gpu-1 ─▶ gpu-2                found
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import msgspec

from phalanx.api.dynamic_resources import NEW_SHARE_ID, DeviceCapacity, DeviceConstraint
from phalanx.api.resources import canonical_quantity, exact_value
from phalanx.api.wire import Object
from phalanx.scheduler.devices.inventory import (
    Candidates,
    DeviceInventory,
    NodeReach,
    PoolKey,
    PublishedDevice,
)
from phalanx.scheduler.devices.requests import (
    MAX_DEVICES_PER_CLAIM,
    ClaimRequests,
    RequestAlternative,
)
from phalanx.scheduler.devices.selectors import AttributeValues
from phalanx.scheduler.devices.usage import ConsumedCapacity, DeviceUsage, DeviceUse

#: The number of devices that the search for one node tries.
MAX_STEPS = 20_000


class AllocationLimit(Exception):
    """The search has reached its limit: it is unknown whether the claims can be allocated."""


class DeviceChoice(NamedTuple):
    """A device for a request of a claim."""

    alternative: RequestAlternative
    device: PublishedDevice
    #: The consumed capacity, as numbers; None if the device is not shared.
    share: ConsumedCapacity | None = None

    @property
    def use(self) -> DeviceUse | None:
        """The use of the device; admin access uses none."""
        return None if self.alternative.is_admin else DeviceUse(self.device.id, self.share)


#: The devices of one claim, in the order of its requests.
ClaimChoices = tuple[DeviceChoice, ...]
#: Whether a node is among those that reach a device.
Reaches = Callable[[NodeReach], bool]


class NodeDevices:
    """The devices that one node reaches, by what is required of them."""

    __slots__ = ("_inventory", "_node", "_rank", "_reaches")

    def __init__(
        self,
        inventory: DeviceInventory,
        node: str,
        reaches: Reaches,
        *,
        rank: Callable[[NodeReach], int] | None = None,
    ) -> None:
        """`rank` puts devices with a low rank first; without one, the order of pools counts."""
        self._inventory, self._node, self._reaches, self._rank = inventory, node, reaches, rank

    def candidates(self, alternative: RequestAlternative) -> Candidates:
        """Return the devices that a request selects, in order."""
        requirement, inventory = alternative.requirement, self._inventory
        local = inventory.local_candidates(self._node, requirement)
        shared = inventory.shared_candidates(requirement)
        if not shared.devices and not shared.error:
            return local
        reached = [device for device in shared.devices if self._reaches(device.reach)]
        devices = sorted((*local.devices, *reached), key=lambda one: one.order)
        if (rank := self._rank) is not None:
            devices.sort(key=lambda one: rank(one.reach))
        return Candidates(
            tuple(devices),
            local.tainted + shared.tainted,
            local.error or shared.error,
            is_plain=local.is_plain and shared.is_plain,
        )

    def lacks_pools(self) -> bool:
        """Whether a pool that the node reaches cannot be used: not all devices are known."""
        return any(
            reach.node == self._node if reach.node else self._reaches(reach)
            for pool in self._inventory.unusable_pools()
            for reach in pool.reaches
        )


def allocate_claims(
    claims: Sequence[ClaimRequests],
    devices: NodeDevices,
    inventory: DeviceInventory,
    *,
    usage: DeviceUsage,
) -> list[ClaimChoices] | None:
    """Choose devices for claims; None if the node cannot serve all of them.

    Raises AllocationLimit if the search is too long.
    """
    if len(claims) == 1 and claims[0].is_countable:
        alternative = claims[0].requests[0][0]
        candidates = devices.candidates(alternative)
        if candidates.is_plain:
            return _take_first(alternative, candidates, usage)
    search = _AllocationSearch(claims, devices, inventory, usage=usage)
    return search.choices if search.place(0) else None


def _take_first(
    alternative: RequestAlternative, candidates: Candidates, usage: DeviceUsage
) -> list[ClaimChoices] | None:
    """Choose the first free devices: what the search does if devices are only counted."""
    left, chosen = alternative.number, []
    for device in candidates.devices:
        if not usage.is_used(device.id) and alternative.may_use(device):
            chosen.append(DeviceChoice(alternative, device))
            left -= 1
            if not left:
                return [tuple(chosen)]
    return None


class _AllocationSearch:
    def __init__(
        self,
        claims: Sequence[ClaimRequests],
        devices: NodeDevices,
        inventory: DeviceInventory,
        *,
        usage: DeviceUsage,
    ) -> None:
        self._requests = [
            (number, alternatives)
            for number, claim in enumerate(claims)
            for alternatives in claim.requests
        ]
        self._claims, self._devices, self._inventory = claims, devices, inventory
        self._usage = DeviceUsage(usage)
        self._steps = 0
        self._chosen: list[list[DeviceChoice]] = [[] for _ in claims]

    @property
    def choices(self) -> list[ClaimChoices]:
        """The devices of each claim."""
        return [tuple(chosen) for chosen in self._chosen]

    def place(self, number: int) -> bool:
        """Choose devices for all requests from this one on."""
        if number == len(self._requests):
            return True
        for alternative in self._requests[number][1]:
            candidates = self._devices.candidates(alternative)
            if candidates.error:
                continue
            if alternative.number:
                if self._choose(number, alternative, candidates, left=alternative.number):
                    return True
            elif not candidates.tainted and self._choose_all(
                number, alternative, candidates.devices
            ):
                return True
        return False

    def _choose(
        self,
        number: int,
        alternative: RequestAlternative,
        candidates: Candidates,
        *,
        left: int,
        begin: int = 0,
    ) -> bool:
        """Choose `left` more devices for a request, then those of the next requests."""
        if not left:
            return self.place(number + 1)
        failed: set[object] = set()
        devices = candidates.devices
        for at in range(begin, len(devices) - left + 1 if candidates.is_plain else len(devices)):
            device = devices[at]
            if failed and device.symmetry in failed:
                continue
            choice = self._take(number, alternative, device)
            if choice is None:
                continue
            # A shared device may serve a request several times, as in Kubernetes.
            begin = at if device.is_shareable and not alternative.is_admin else at + 1
            if self._choose(number, alternative, candidates, left=left - 1, begin=begin):
                return True
            self._release(number, choice)
            if (symmetry := device.symmetry) is not None:
                failed.add(symmetry)
        return False

    def _choose_all(
        self, number: int, alternative: RequestAlternative, devices: Sequence[PublishedDevice]
    ) -> bool:
        """Choose every device, if there is one and all can be had, then those of the next.

        Devices without the capacity that the request names are none of them.
        """
        if self._devices.lacks_pools():
            return False
        if alternative.capacity:
            devices = [
                device
                for device in devices
                if (
                    self._share(alternative, device) is not None
                    if device.is_shareable
                    else _has_capacity(alternative, device)
                )
            ]
        if not devices:
            return False
        taken: list[DeviceChoice] = []
        for device in devices:
            choice = self._take(number, alternative, device)
            if choice is None:
                break
            taken.append(choice)
        if len(taken) == len(devices) and self.place(number + 1):
            return True
        for choice in reversed(taken):
            self._release(number, choice)
        return False

    def _take(
        self, number: int, alternative: RequestAlternative, device: PublishedDevice
    ) -> DeviceChoice | None:
        """Take a device for a request, if it is free and fits."""
        self._steps += 1
        if self._steps > MAX_STEPS:
            raise AllocationLimit
        if not alternative.may_use(device):
            return None
        claim = self._requests[number][0]
        chosen, share = self._chosen[claim], None
        if alternative.is_admin:
            # It ignores other claims, but a claim has a device once.
            if any(one.device.id == device.id for one in chosen):
                return None
        else:
            if not device.is_shareable:
                if self._usage.is_used(device.id) or not _has_capacity(alternative, device):
                    return None
            else:
                share = self._share(alternative, device)
                if share is None:
                    return None
            if device.counters and not self._has_counters(device):
                return None
        if len(chosen) >= MAX_DEVICES_PER_CLAIM or not all(
            satisfies_constraint(constraint, [*chosen, DeviceChoice(alternative, device)])
            for constraint in self._claims[claim].constraints
        ):
            return None
        choice = DeviceChoice(alternative, device, share)
        if choice.use:
            self._usage.add([choice.use])
        chosen.append(choice)
        return choice

    def _release(self, number: int, choice: DeviceChoice) -> None:
        self._chosen[self._requests[number][0]].pop()
        if choice.use:
            self._usage.add([choice.use], -1)

    def _share(
        self, alternative: RequestAlternative, device: PublishedDevice
    ) -> ConsumedCapacity | None:
        """Return the share that a request takes of a device; None if too little is left."""
        share = share_of(alternative, device)
        if share is None:
            return None
        for name, amount in share.items():
            total = exact_value(device.device.capacity[name].value)
            if self._usage.consumed(device.id, name) + amount > total:
                return None
        return share

    def _has_counters(self, device: PublishedDevice) -> bool:
        """Whether the shared counters of the pool suffice for one more device."""
        if self._usage.is_shared(device.id):
            # Its counters are taken with its first share.
            return True
        pool = self._inventory.pool(PoolKey(device.id.driver, device.id.pool))
        left = dict(pool.counters) if pool else {}
        for used in pool.devices.values() if pool else ():
            if used.counters and (self._usage.is_used(used.id) or self._usage.is_shared(used.id)):
                for counter, amount in used.counters.items():
                    left[counter] = left.get(counter, Fraction(0)) - amount
        return all(left.get(counter, 0) >= amount for counter, amount in device.counters.items())


def satisfies_constraint(constraint: DeviceConstraint, choices: Iterable[DeviceChoice]) -> bool:
    """Whether the devices of a claim agree, or differ, in an attribute."""
    name = constraint.match_attribute or constraint.distinct_attribute
    known: list[AttributeValues] = []
    for choice in choices:
        alternative = choice.alternative
        if constraint.requests and not (
            alternative.name in constraint.requests or alternative.parent in constraint.requests
        ):
            continue
        kind = choice.device.kind
        values = kind.attribute(name) if kind else None
        if values is None:
            return False
        known.append(values)
    if constraint.match_attribute:
        return not known or bool(frozenset.intersection(*known))
    return len(frozenset().union(*known)) == sum(map(len, known))


def _has_capacity(alternative: RequestAlternative, device: PublishedDevice) -> bool:
    """Whether a device that is not shared has the capacity that a request names."""
    capacity = device.device.capacity
    return all(
        name in capacity and amount <= exact_value(capacity[name].value)
        for name, amount in alternative.capacity.items()
    )


def share_of(alternative: RequestAlternative, device: PublishedDevice) -> ConsumedCapacity | None:
    """Return what a request consumes of each capacity of a shared device; None: it cannot."""
    capacity, wanted = device.device.capacity, alternative.capacity
    if any(name not in capacity for name in wanted):
        return None
    share: dict[str, Fraction] = {}
    for name, entry in capacity.items():
        amount = _consumed_amount(entry, wanted.get(name))
        if amount is None:
            return None
        share[name] = amount
    return share


def _consumed_amount(capacity: DeviceCapacity, wanted: Fraction | None) -> Fraction | None:
    """Round a requested amount up to one that the policy of the capacity allows."""
    policy, total = capacity.request_policy, exact_value(capacity.value)
    if policy is None:
        return total if wanted is None else wanted
    if wanted is None:
        wanted = total if policy.default is None else exact_value(policy.default)
    if policy.valid_values:
        values = sorted(exact_value(one) for one in policy.valid_values)
        return next((one for one in values if one >= wanted), None)
    if (valid := policy.valid_range) is not None:
        least = exact_value(valid.min)
        amount = max(wanted, least)
        if valid.step is not None and (step := exact_value(valid.step)):
            amount = least + -((least - amount) // step) * step
        if valid.max is not None and amount > exact_value(valid.max):
            return None
        return amount
    return wanted


def format_share(share: Mapping[str, Fraction]) -> dict[str, str]:
    """Format consumed capacity as quantities."""
    return {name: format_quantity(amount) for name, amount in share.items()}


def format_quantity(amount: Fraction) -> str:
    """Format an amount as a quantity: in binary units if it is a multiple of 1024."""
    if amount.denominator == 1:
        whole = int(amount)
        return canonical_quantity(f"{whole // 1024}Ki" if whole and whole % 1024 == 0 else whole)
    return canonical_quantity(f"{amount * 10**9 // 1}n")


def build_allocation(claim: ClaimRequests, choices: ClaimChoices, node: str) -> Object:
    """Build the allocation of a claim, for a pod on a node, as the API has it."""
    results: list[Object] = []
    for alternative, device, share in choices:
        driver, pool, name = device.id
        result: Object = {"request": alternative.name, "driver": driver, "pool": pool}
        result["device"] = name
        if alternative.is_admin:
            result["adminAccess"] = True
        if alternative.requirement.tolerations:
            result["tolerations"] = _to_json(alternative.requirement.tolerations)
        if share is not None:
            result["consumedCapacity"] = format_share(share)
            result["shareID"] = NEW_SHARE_ID
        for field, conditions in (
            ("bindingConditions", device.device.binding_conditions),
            ("bindingFailureConditions", device.device.binding_failure_conditions),
        ):
            if conditions:
                result[field] = list(conditions)
        results.append(result)
    devices: Object = {"results": results}
    if config := _build_config(claim, choices):
        devices["config"] = config
    selector = _node_selector(choices, node)
    return {"devices": devices, "nodeSelector": selector} if selector else {"devices": devices}


def _build_config(claim: ClaimRequests, choices: ClaimChoices) -> list[Object]:
    """Return the configuration of classes, each once, and of the claim.

    An entry names the requests that it concerns; one that concerns all of them names none. What a
    claim says about alternatives that were not taken is left out.
    """
    if not claim.config and not any(choice.alternative.config for choice in choices):
        return []
    taken = {choice.alternative.parent: choice.alternative for choice in choices}
    found: list[Object] = []
    classes = dict.fromkeys(one.device_class for one in taken.values())
    for name in classes:
        named = [one for one in taken.values() if one.device_class == name]
        requests = {"requests": [one.name for one in named]} if len(named) < len(taken) else {}
        found += ({"source": "FromClass", "opaque": one, **requests} for one in named[0].config)
    for config in claim.config:
        entry: Object = {"source": "FromClaim", "opaque": config.opaque}
        concerned = [one for one in taken.values() if {one.name, one.parent} & set(config.requests)]
        if config.requests and len(concerned) < len(taken):
            entry["requests"] = list(config.requests)
        if concerned or not config.requests:
            found.append(entry)
    return found


def _to_json(value: object) -> Any:
    """Convert structs to what a client decodes from JSON: lists, not tuples."""
    return msgspec.json.decode(msgspec.json.encode(value))


def _node_selector(choices: ClaimChoices, node: str) -> Object | None:
    """The nodes that reach all devices: one node, those that all selectors match, or (None) all.

    A device that binds to its node is from then on reached from the node of the pod alone.
    """
    for choice in choices:
        if choice.device.reach.node or choice.device.device.binds_to_node:
            by_name = {"key": "metadata.name", "operator": "In", "values": [node]}
            return {"nodeSelectorTerms": [{"matchFields": [by_name]}]}
    term: Object = {}
    for reach in dict.fromkeys(choice.device.reach for choice in choices):
        for one in reach.selector.node_selector_terms[:1] if reach.selector else ():
            for field, requirements in (
                ("matchExpressions", one.match_expressions),
                ("matchFields", one.match_fields),
            ):
                for requirement in _to_json(requirements):
                    if requirement not in term.setdefault(field, []):
                        term[field].append(requirement)
    found = {field: requirements for field, requirements in term.items() if requirements}
    return {"nodeSelectorTerms": [found]} if found else None
