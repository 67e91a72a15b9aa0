"""Selects devices by the CEL expressions of DeviceClasses and requests.

An expression sees one variable, `device`, with `driver`, `attributes`, `capacity` and
`allowMultipleAllocations`. Attributes and capacities are grouped by domain; a name without a domain
belongs to the domain of the driver:

    device.attributes["gpu.example.com"].model == "h100"
    device.capacity["gpu.example.com"].memory.compareTo(quantity("40Gi")) >= 0

Devices with equal drivers, attributes and capacities share one `DeviceKind`, for which every
expression is evaluated once.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import msgspec

from phalanx.api.cel.evaluator import CostBudget
from phalanx.api.cel.kubernetes_library import parse_quantity, parse_semver
from phalanx.api.cel.values import CostLimitExceeded, DefaultMap, EvaluationError
from phalanx.api.device_selectors import compile_device_selector
from phalanx.api.dynamic_resources import Device

#: The cost up to which an expression is evaluated for one device.
MAX_SELECTOR_COST = 1_000_000
_COMPILED_LIMIT, _KINDS_LIMIT = 1024, 65_536

#: The values of an attribute: one, or those of a list.
AttributeValues = frozenset[tuple[str, object]]


class SelectorError(Exception):
    """An expression that cannot be compiled, or has no result for some device."""


class DeviceKind:
    """What selectors and constraints read of devices; there is one object for each value."""

    __slots__ = ("_attributes", "_results", "_variables")

    def __init__(self, driver: str, device: Device) -> None:
        attributes, capacity = DefaultMap(), DefaultMap()
        for name, value in device.attributes.items():
            domain, identifier = split_name(name, driver)
            attributes.setdefault(domain, {})[identifier] = _attribute_value(value)
        for name, entry in device.capacity.items():
            domain, identifier = split_name(name, driver)
            capacity.setdefault(domain, {})[identifier] = parse_quantity(str(entry.value))
        self._attributes = attributes
        self._variables = {
            "device": {
                "driver": driver,
                "attributes": attributes,
                "capacity": capacity,
                "allowMultipleAllocations": bool(device.allow_multiple_allocations),
            }
        }
        self._results: dict[str, bool | SelectorError] = {}

    def matches(self, expression: str) -> bool:
        """Whether an expression selects these devices. Raises SelectorError."""
        result = self._results.get(expression)
        if result is None:
            if len(self._results) >= _COMPILED_LIMIT:
                self._results.clear()
            result = self._results[expression] = self._evaluate(expression)
        if isinstance(result, SelectorError):
            raise result
        return result

    def _evaluate(self, expression: str) -> bool | SelectorError:
        compiled = compile_device_selector(expression)
        if isinstance(compiled, str):
            return SelectorError(compiled)
        try:
            result = compiled.evaluate(self._variables, CostBudget(MAX_SELECTOR_COST))
        except (EvaluationError, CostLimitExceeded) as error:
            return SelectorError(f"runtime error: {error}")
        return result if isinstance(result, bool) else SelectorError("the result is not a bool")

    def attribute(self, qualified_name: str) -> AttributeValues | None:
        """The values of an attribute; None if the devices lack it."""
        domain, identifier = split_name(qualified_name, "")
        value = self._attributes.get(domain, {}).get(identifier)
        if value is None:
            return None
        values = value if isinstance(value, list) else [value]
        return frozenset((type(one).__name__, one) for one in values)


def split_name(name: str, driver: str) -> tuple[str, str]:
    """Split the name of an attribute or capacity into domain and identifier."""
    domain, _, identifier = name.rpartition("/")
    return domain or driver, identifier


def _attribute_value(attribute: Mapping[str, Any]) -> object:
    """Convert an attribute to the value that expressions read."""
    for kind, value in attribute.items():
        if value is not None:
            if kind == "version":
                return parse_semver(value)
            return [parse_semver(one) for one in value] if kind == "versions" else value
    return None


@lru_cache(maxsize=_KINDS_LIMIT)
def _intern_kind(driver: str, encoded: bytes) -> DeviceKind | None:
    try:
        return DeviceKind(driver, msgspec.msgpack.decode(encoded, type=Device))
    except EvaluationError:
        # The API server validates quantities and versions; nothing selects such a device.
        return None


def device_kind(driver: str, device: Device) -> DeviceKind | None:
    """Return the kind of a device; None if a version or quantity of it is malformed."""
    read = Device(
        attributes=device.attributes,
        capacity=device.capacity,
        allow_multiple_allocations=device.allow_multiple_allocations,
    )
    return _intern_kind(driver, msgspec.msgpack.encode(read))
