"""ClaimRequests: the requests of a claim, ready for allocation.

Classes are resolved and selectors joined. A claim spec is identified by its encoded form, so that
claims from one template share their requests, and so that pods with equal claims are of one shape.

    requests  [[gpu], [nic/fast, nic/slow]]     alternatives of each request, the best first
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from fractions import Fraction
from typing import NamedTuple

import msgspec

from phalanx.api.dynamic_resources import (
    ALL_DEVICES,
    DeviceConfiguration,
    DeviceConstraint,
    DeviceSelector,
    DeviceSubRequest,
    ExactDeviceRequest,
    ResourceClaimSpec,
)
from phalanx.api.resources import exact_value
from phalanx.api.wire import Object
from phalanx.scheduler.devices.inventory import (
    DeviceInventory,
    DeviceRequirement,
    PublishedDevice,
)

#: The most devices that one claim may have, as in Kubernetes.
MAX_DEVICES_PER_CLAIM = 32
_CACHE_LIMIT = 4096
_CAPACITY_COMPARISON = re.compile(
    r'device\.capacity\["[^"]*"\]\.(?P<name>\w+)'
    r'\.compareTo\(quantity\("(?P<value>[^"]+)"\)\)\s*(?P<sign>>=|>|==)\s*0'
)
_ATTRIBUTE_COMPARISON = re.compile(
    r'device\.attributes\["[^"]*"\]\.(?P<name>\w+)\s*==\s*"?(?P<value>[^"]+?)"?'
)
_SIGNS = {">=": "≥", ">": ">", "==": "="}
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(ResourceClaimSpec).decode


def encode_spec(spec: ResourceClaimSpec) -> bytes:
    """Encode the spec of a claim; equal specs have equal encodings."""
    return _encode(spec)


class RequestAlternative(NamedTuple):
    """A request, or one alternative of it: which devices, and how many (0: all)."""

    #: As in the allocation: `gpu`, or `gpu/large` for an alternative.
    name: str
    requirement: DeviceRequirement
    number: int
    device_class: str = ""
    is_admin: bool = False
    #: The amounts that it takes of the capacity of each device.
    capacity: Mapping[str, Fraction] = {}
    config: tuple[Object, ...] = ()
    #: Whether the claim is created with the binding, so that nothing can be awaited before it.
    is_bound_at_once: bool = False

    @property
    def parent(self) -> str:
        """The name of the request."""
        return self.name.partition("/")[0]

    def may_use(self, device: PublishedDevice) -> bool:
        """Whether the binding can wait for the conditions of a device."""
        return not (self.is_bound_at_once and device.device.binding_conditions)


class ClaimRequests(NamedTuple):
    """The requests of a claim. `problem` says why it cannot be allocated at all; "" if it can."""

    requests: tuple[tuple[RequestAlternative, ...], ...]
    constraints: tuple[DeviceConstraint, ...] = ()
    config: tuple[DeviceConfiguration, ...] = ()
    problem: str = ""

    @property
    def is_countable(self) -> bool:
        """Whether only the number of free devices matters: one exact request, no constraints."""
        if len(self.requests) != 1 or len(self.requests[0]) != 1 or self.constraints:
            return False
        (alternative,) = self.requests[0]
        return alternative.number > 0 and not alternative.is_admin and not alternative.capacity


class ClaimRequestsCache:
    """The requests of each encoded spec, until a class changes."""

    def __init__(self, inventory: DeviceInventory) -> None:
        self._inventory, self._revision = inventory, inventory.revision
        self._requests: dict[bytes, ClaimRequests] = {}

    def get(self, encoded_spec: bytes) -> ClaimRequests:
        """Return the requests of a spec."""
        if self._revision != self._inventory.revision or len(self._requests) >= _CACHE_LIMIT:
            self._requests.clear()
            self._revision = self._inventory.revision
        found = self._requests.get(encoded_spec)
        if found is None:
            found = build_requests(_decode(encoded_spec), self._inventory)
            self._requests[encoded_spec] = found
        return found


def build_requests(spec: ResourceClaimSpec, inventory: DeviceInventory) -> ClaimRequests:
    """Resolve the classes of a claim's requests."""
    found, least = [], 0
    for request in spec.devices.requests:
        named: list[tuple[str, ExactDeviceRequest | DeviceSubRequest]]
        if request.exactly is not None:
            named = [(request.name, request.exactly)]
        else:
            named = [(f"{request.name}/{one.name}", one) for one in request.first_available]
        alternatives = []
        for name, one in named:
            device_class = inventory.classes.get(one.device_class_name)
            if device_class is None:
                problem = f"request {name}: device class {one.device_class_name} does not exist"
                return ClaimRequests((), problem=problem)
            expressions = _expressions(device_class.spec.selectors) + _expressions(one.selectors)
            wanted = one.capacity.requests if one.capacity else {}
            alternatives.append(
                RequestAlternative(
                    name,
                    DeviceRequirement(expressions, one.tolerations),
                    0 if one.allocation_mode == ALL_DEVICES else one.count,
                    device_class=one.device_class_name,
                    is_admin=isinstance(one, ExactDeviceRequest) and bool(one.admin_access),
                    capacity={key: exact_value(amount) for key, amount in wanted.items()},
                    config=tuple(c.opaque for c in device_class.spec.config if c.opaque),
                )
            )
        found.append(tuple(alternatives))
        least += min((one.number for one in alternatives), default=0)
    if least > MAX_DEVICES_PER_CLAIM:
        problem = f"{least} devices exceed the limit of {MAX_DEVICES_PER_CLAIM} for a claim"
        return ClaimRequests((), problem=problem)
    return ClaimRequests(tuple(found), spec.devices.constraints, spec.devices.config)


def describe_claim(claim: ClaimRequests, inventory: DeviceInventory) -> str:
    """Say what a claim requests, by the best alternative of each request.

    "2 devices of class gpu with memory ≥ 80Gi"
    """
    texts = []
    for alternatives in claim.requests:
        for one in alternatives[:1]:
            number = {0: "all devices", 1: "a device"}.get(one.number, f"{one.number} devices")
            device_class = inventory.classes.get(one.device_class)
            of_class = len(_expressions(device_class.spec.selectors)) if device_class else 0
            own = one.requirement.expressions[of_class:]
            required = f" with {', '.join(map(_describe_expression, own))}" if own else ""
            texts.append(f"{number} of class {one.device_class}{required}")
    return " and ".join(texts)


def _describe_expression(expression: str) -> str:
    """Shorten the usual comparisons of a capacity or an attribute; others stay as they are."""
    expression = expression.strip()
    if found := _CAPACITY_COMPARISON.fullmatch(expression):
        return f"{found['name']} {_SIGNS[found['sign']]} {found['value']}"
    if found := _ATTRIBUTE_COMPARISON.fullmatch(expression):
        return f"{found['name']} {found['value']}"
    return expression


def _expressions(selectors: tuple[DeviceSelector, ...]) -> tuple[str, ...]:
    return tuple(one.cel.expression for one in selectors if one.cel)
