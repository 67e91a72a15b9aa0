"""ResourceClaims, ResourceSlices, DeviceClasses and DeviceTaintRules as our components read them.

The kinds of dynamic resource allocation (`resource.k8s.io`). Partial and frozen. Quantities stay as
they are written; `scheduler/devices/` computes with them.

    ResourceSlice     the devices that a driver publishes, for one node or for several
    DeviceClass       which devices a class contains, and an extended resource that it serves
    ResourceClaim     the devices that pods request, and those that are allocated to them
    DeviceTaintRule   a taint for devices, added by an administrator
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct, field

from phalanx.api.core import NodeSelector
from phalanx.api.meta import Condition, ObjectMeta

Quantity = str | int | float

EXACT_COUNT, ALL_DEVICES = "ExactCount", "All"
#: The prefix of the extended resource that every DeviceClass serves by its name.
CLASS_RESOURCE_PREFIX = "deviceclass.resource.kubernetes.io/"
#: Keeps a claim while devices are allocated to it.
CLAIM_FINALIZER = "resource.kubernetes.io/delete-protection"
#: In the allocation of a GroupBinding: the server gives the share of a device its id.
NEW_SHARE_ID = "00000000-0000-0000-0000-000000000000"
#: The annotation of claims that the scheduler creates for extended resources.
EXTENDED_RESOURCE_CLAIM = "resource.kubernetes.io/extended-resource-claim"


def extended_claim_prefix(pod: str) -> str:
    """Return the prefix of the name of the claim for a pod's extended resources."""
    return f"{pod}-extended-resources-"


class CelSelector(Struct, frozen=True):
    """An expression over the variable `device`."""

    expression: str = ""


class DeviceSelector(Struct, frozen=True):
    """Selects devices by an expression."""

    cel: CelSelector | None = None


class DeviceToleration(Struct, frozen=True, rename="camel", omit_defaults=True):
    """A toleration of device taints."""

    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""
    toleration_seconds: int | None = None


class CapacityRequirements(Struct, frozen=True):
    """The amounts that a request takes of the capacity of each device."""

    requests: dict[str, Quantity] = {}


class ExactDeviceRequest(Struct, frozen=True, rename="camel"):
    """A request for devices of one class."""

    device_class_name: str = ""
    selectors: tuple[DeviceSelector, ...] = ()
    allocation_mode: str = EXACT_COUNT
    count: int = 1
    admin_access: bool | None = None
    tolerations: tuple[DeviceToleration, ...] = ()
    capacity: CapacityRequirements | None = None


class DeviceSubRequest(Struct, frozen=True, rename="camel"):
    """One alternative of a request."""

    name: str = ""
    device_class_name: str = ""
    selectors: tuple[DeviceSelector, ...] = ()
    allocation_mode: str = EXACT_COUNT
    count: int = 1
    tolerations: tuple[DeviceToleration, ...] = ()
    capacity: CapacityRequirements | None = None


class DeviceRequest(Struct, frozen=True, rename="camel"):
    """A request for devices: exactly one kind, or the first available of several."""

    name: str = ""
    exactly: ExactDeviceRequest | None = None
    first_available: tuple[DeviceSubRequest, ...] = ()


class DeviceConstraint(Struct, frozen=True, rename="camel"):
    """An attribute in which the devices of some requests (none: of all) agree, or all differ."""

    requests: tuple[str, ...] = ()
    match_attribute: str = ""
    distinct_attribute: str = ""


class DeviceConfiguration(Struct, frozen=True):
    """Configuration for a driver; only copied."""

    requests: tuple[str, ...] = ()
    opaque: dict[str, Any] | None = None


class DeviceClassConfiguration(Struct, frozen=True):
    """Configuration of a class for a driver; only copied."""

    opaque: dict[str, Any] | None = None


class DeviceRequests(Struct, frozen=True):
    """The requests of a claim, their constraints and their configuration."""

    requests: tuple[DeviceRequest, ...] = ()
    constraints: tuple[DeviceConstraint, ...] = ()
    config: tuple[DeviceConfiguration, ...] = ()


class ResourceClaimSpec(Struct, frozen=True):
    """The spec of a ResourceClaim."""

    devices: DeviceRequests = DeviceRequests()


class AllocatedDevice(Struct, frozen=True, rename="camel"):
    """One device that is allocated to a request of a claim."""

    request: str = ""
    driver: str = ""
    pool: str = ""
    device: str = ""
    admin_access: bool | None = None
    tolerations: tuple[DeviceToleration, ...] = ()
    consumed_capacity: dict[str, Quantity] = {}
    share_id: str = field(default="", name="shareID")
    binding_conditions: tuple[str, ...] = ()
    binding_failure_conditions: tuple[str, ...] = ()


class AllocatedDevices(Struct, frozen=True):
    """The devices that are allocated to a claim."""

    results: tuple[AllocatedDevice, ...] = ()


class Allocation(Struct, frozen=True, rename="camel"):
    """The allocation of a claim, and the nodes on which it can be used (None: all)."""

    devices: AllocatedDevices = AllocatedDevices()
    node_selector: NodeSelector | None = None


def decode_allocation(value: dict[str, Any]) -> Allocation:
    """Decode the allocation of a claim."""
    return msgspec.convert(value, Allocation)


class ResourcePool(Struct, frozen=True, rename="camel"):
    """The pool that a slice belongs to."""

    name: str = ""
    generation: int = 0
    resource_slice_count: int = 0


class CapacityRange(Struct, frozen=True):
    """The amounts that a request may take of a capacity: from `min` to `max` in steps."""

    min: Quantity = 0
    max: Quantity | None = None
    step: Quantity | None = None


class CapacityRequestPolicy(Struct, frozen=True, rename="camel"):
    """How requests take amounts of a capacity."""

    default: Quantity | None = None
    valid_range: CapacityRange | None = None
    valid_values: tuple[Quantity, ...] = ()


class DeviceCapacity(Struct, frozen=True, rename="camel"):
    """One capacity of a device."""

    value: Quantity = 0
    request_policy: CapacityRequestPolicy | None = None


class DeviceTaint(Struct, frozen=True, rename="camel"):
    """A taint of a device."""

    key: str = ""
    value: str = ""
    effect: str = ""
    time_added: str | None = None


class DeviceCounter(Struct, frozen=True):
    """The amount of a counter."""

    value: Quantity = 0


class CounterSet(Struct, frozen=True):
    """Counters that the devices of a pool share."""

    name: str = ""
    counters: dict[str, DeviceCounter] = {}


class CounterConsumption(Struct, frozen=True, rename="camel"):
    """What a device takes of a counter set while it is allocated."""

    counter_set: str = ""
    counters: dict[str, DeviceCounter] = {}


class Device(Struct, frozen=True, rename="camel"):
    """A device. Each attribute is a map of one entry, its type and its value."""

    name: str = ""
    attributes: dict[str, dict[str, Any]] = {}
    capacity: dict[str, DeviceCapacity] = {}
    taints: tuple[DeviceTaint, ...] = ()
    allow_multiple_allocations: bool | None = None
    consumes_counters: tuple[CounterConsumption, ...] = ()
    #: Conditions that the driver sets when the device can be used, or cannot, by a bound pod.
    binding_conditions: tuple[str, ...] = ()
    binding_failure_conditions: tuple[str, ...] = ()
    binds_to_node: bool | None = None
    node_name: str = ""
    node_selector: NodeSelector | None = None
    all_nodes: bool | None = None


class ResourceSliceSpec(Struct, frozen=True, rename="camel"):
    """The devices of a slice, and the nodes that reach them."""

    driver: str = ""
    pool: ResourcePool = ResourcePool()
    devices: tuple[Device, ...] = ()
    shared_counters: tuple[CounterSet, ...] = ()
    node_name: str = ""
    node_selector: NodeSelector | None = None
    all_nodes: bool | None = None
    per_device_node_selection: bool | None = None


class ResourceSlice(Struct, frozen=True):
    """A ResourceSlice."""

    metadata: ObjectMeta
    spec: ResourceSliceSpec = ResourceSliceSpec()


class DeviceClassSpec(Struct, frozen=True, rename="camel"):
    """The spec of a DeviceClass."""

    selectors: tuple[DeviceSelector, ...] = ()
    config: tuple[DeviceClassConfiguration, ...] = ()
    extended_resource_name: str = ""


class DeviceClass(Struct, frozen=True):
    """A DeviceClass."""

    metadata: ObjectMeta
    spec: DeviceClassSpec = DeviceClassSpec()


class DeviceTaintSelector(Struct, frozen=True):
    """The devices that a rule taints; a field that is not set selects all."""

    driver: str | None = None
    pool: str | None = None
    device: str | None = None


class DeviceTaintRuleSpec(Struct, frozen=True, rename="camel"):
    """The spec of a DeviceTaintRule."""

    device_selector: DeviceTaintSelector | None = None
    taint: DeviceTaint = DeviceTaint()


class DeviceTaintRuleStatus(Struct, frozen=True):
    """The status of a DeviceTaintRule."""

    conditions: tuple[Condition, ...] = ()


class DeviceTaintRule(Struct, frozen=True):
    """A DeviceTaintRule."""

    metadata: ObjectMeta
    spec: DeviceTaintRuleSpec = DeviceTaintRuleSpec()
    status: DeviceTaintRuleStatus = DeviceTaintRuleStatus()
