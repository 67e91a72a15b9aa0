"""Devices of simulated nodes: what they are, as options describe them, and their ResourceSlices.

    gpu.example.com=8:memory=80Gi,model=h100

are eight devices gpu-0 … gpu-7 of the driver gpu.example.com on each node. A quantity with a unit
is a capacity; other values are attributes: whole numbers, true or false, and strings.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from phalanx.api.formats import validate_dns_subdomain
from phalanx.api.validation.dynamic_resources import check_identifier
from phalanx.api.wire import Object

#: The most devices that one ResourceSlice may have, as in Kubernetes.
MAX_DEVICES = 128
#: The most characters of a driver, and of the value of an attribute, as in Kubernetes.
MAX_DRIVER_LENGTH, MAX_VALUE_LENGTH = 63, 64
EXAMPLE = "gpu.example.com=8:memory=80Gi,model=h100"
_QUANTITY_WITH_UNIT = re.compile(r"\d+(\.\d+)?(Ki|Mi|Gi|Ti|Pi|Ei|[numkMGTPE])")


class BadDevices(ValueError):
    """The text does not describe devices."""


@dataclass(frozen=True, slots=True)
class SimulatedDevices:
    """Equal devices of one driver on each node."""

    driver: str
    count: int
    attributes: Mapping[str, Object] = field(default_factory=dict)
    capacity: Mapping[str, Object] = field(default_factory=dict)

    def resource_slice(self, node: str, uid: str) -> Object:
        """Return the ResourceSlice that publishes the devices of a node."""
        name = self.driver.partition(".")[0]
        devices = [
            {
                "name": f"{name}-{number}",
                "attributes": dict(self.attributes),
                "capacity": dict(self.capacity),
            }
            for number in range(self.count)
        ]
        owner = {"apiVersion": "v1", "kind": "Node", "name": node, "uid": uid, "controller": True}
        return {
            "metadata": {"name": f"{node}-{self.driver}", "ownerReferences": [owner]},
            "spec": {
                "driver": self.driver,
                "nodeName": node,
                "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
                "devices": devices,
            },
        }


def parse_devices(text: str) -> SimulatedDevices:
    """Parse `gpu.example.com=8:memory=80Gi,model=h100`. Raises BadDevices."""
    head, _, described = text.partition(":")
    driver, _, count = head.partition("=")
    if faults := list(validate_dns_subdomain(driver)):
        raise BadDevices(f'invalid driver "{driver}": {faults[0]}')
    if len(driver) > MAX_DRIVER_LENGTH:
        limit = f"must have at most {MAX_DRIVER_LENGTH} characters"
        raise BadDevices(f'invalid driver "{driver}": {limit}')
    if not count.isdecimal() or not 1 <= int(count) <= MAX_DEVICES:
        raise BadDevices(f'"{text}": a number from 1 to {MAX_DEVICES} follows {driver}=')
    pairs = [pair.partition("=") for pair in described.split(",") if pair]
    values = {name.strip(): value for name, _, value in pairs}
    if len(values) < len(pairs):
        names = [name.strip() for name, _, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise BadDevices(f'"{text}": attribute "{twice}" is given twice')
    return build_devices(driver, int(count), values)


def build_devices(driver: str, count: int, values: Mapping[str, str]) -> SimulatedDevices:
    """Build devices from the values of their attributes and capacities. Raises BadDevices."""
    attributes: dict[str, Object] = {}
    capacity: dict[str, Object] = {}
    for name, value in values.items():
        if causes := check_identifier(name.rpartition("/")[2]):
            raise BadDevices(f'invalid attribute "{name}": {causes[0].message}')
        if len(value) > MAX_VALUE_LENGTH:
            limit = f"must have at most {MAX_VALUE_LENGTH} characters"
            raise BadDevices(f'the value of "{name}" {limit}')
        if not value:
            raise BadDevices(f'attribute "{name}" has no value; an example is {EXAMPLE}')
        if _QUANTITY_WITH_UNIT.fullmatch(value):
            capacity[name] = {"value": value}
        elif value in ("true", "false"):
            attributes[name] = {"bool": value == "true"}
        elif re.fullmatch(r"-?\d{1,18}", value):
            attributes[name] = {"int": int(value)}
        else:
            attributes[name] = {"string": value}
    return SimulatedDevices(driver, count, attributes, capacity)
