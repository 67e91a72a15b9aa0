"""DeviceInventory: the devices that drivers publish, by pool and by the nodes that reach them.

A pool is all ResourceSlices of one driver and pool name. Only the slices of its highest generation
count, and only once all of them are there. Devices are kept in the order in which they are
allocated: pools by driver and name, slices by name, devices as listed.

    slice of node n1     gpu-0, gpu-1          local devices of n1
    slice with selector  switch-0              shared: every node that matches reaches it

`DeviceRequirement` says what one request requires of a device: class, selectors, tolerations. What
it selects is computed once for each device kind. Nothing here knows which devices are in use.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from fractions import Fraction
from functools import cached_property, lru_cache
from typing import NamedTuple, TypeVar

import msgspec

from phalanx.api.core import NodeSelector
from phalanx.api.dynamic_resources import (
    CLASS_RESOURCE_PREFIX,
    Device,
    DeviceClass,
    DeviceTaint,
    DeviceTaintRule,
    DeviceToleration,
    ResourceSlice,
)
from phalanx.api.resources import exact_value
from phalanx.scheduler.devices.selectors import DeviceKind, SelectorError, device_kind

_T = TypeVar("_T")

_MODELS_LIMIT = 4096
_encode = msgspec.msgpack.Encoder().encode
_decode_devices = msgspec.msgpack.Decoder(tuple[Device, ...]).decode

#: Effects that keep a device from requests without a toleration.
_HARD_EFFECTS = ("NoSchedule", "NoExecute")


class PoolKey(NamedTuple):
    """A pool: its driver and its name. Pools are tried in this order."""

    driver: str
    pool: str


#: Pools are tried in the order of this value.
PoolOrder = tuple[bool, str, str]


class DeviceId(NamedTuple):
    """A device: its driver, its pool and its name."""

    driver: str
    pool: str
    device: str

    def __str__(self) -> str:
        return "/".join(self)


class NodeReach(NamedTuple):
    """The nodes that reach a device: one, those that a selector matches, or all (neither)."""

    node: str = ""
    selector: NodeSelector | None = None


class DeviceModel(NamedTuple):
    """What a slice says about one of its devices."""

    device: Device
    #: None: malformed, so that nothing selects it.
    kind: DeviceKind | None
    #: What it takes of the shared counters of its pool, by set and name.
    counters: Mapping[tuple[str, str], Fraction]


class PublishedDevice:
    """A device of a complete pool."""

    __slots__ = ("counters", "device", "id", "kind", "order", "reach", "taints")

    def __init__(
        self,
        device_id: DeviceId,
        model: DeviceModel,
        reach: NodeReach,
        *,
        taints: tuple[DeviceTaint, ...],
        order: PoolOrder,
    ) -> None:
        self.id, self.reach, self.taints, self.order = device_id, reach, taints, order
        self.device, self.kind, self.counters = model

    @property
    def is_shareable(self) -> bool:
        """Whether several claims may have the device at the same time."""
        return bool(self.device.allow_multiple_allocations)

    @property
    def symmetry(self) -> object:
        """Equal for devices that are interchangeable while they are free; None: for no other."""
        device = self.device
        if self.is_shareable or self.counters:
            return None
        conditions = device.binding_conditions, device.binding_failure_conditions
        return self.kind, self.reach, self.taints, conditions, device.binds_to_node


class DevicePool:
    """The current slices of one pool."""

    def __init__(
        self, key: PoolKey, slices: Iterable[ResourceSlice], rules: Iterable[DeviceTaintRule] = ()
    ) -> None:
        found = sorted(slices, key=lambda one: one.metadata.name)
        newest = max(one.spec.pool.generation for one in found)
        self._slices = [one for one in found if one.spec.pool.generation == newest]
        #: Whether all slices are there, and no more: the driver may be replacing them.
        self.is_complete = len(self._slices) == self._slices[0].spec.pool.resource_slice_count
        names = [device.name for one in self._slices for device in one.spec.devices]
        #: Whether all devices are known. Two of one name are a fault of the driver.
        self.is_usable = self.is_complete and len(set(names)) == len(names)
        self._key = key
        self._rules = [rule for rule in rules if selects_pool(rule, key)]

    @cached_property
    def devices(self) -> dict[str, PublishedDevice]:
        """The devices that may be allocated, with the taints that rules add to them."""
        found: dict[str, PublishedDevice] = {}
        for one in self._slices if self.is_usable else ():
            for model in model_slice(one).devices:
                device = model.device
                rules = (r for r in self._rules if selects_device(r, device.name))
                found[device.name] = PublishedDevice(
                    DeviceId(*self._key, device.name),
                    model,
                    _reach(one, device),
                    taints=device.taints + tuple(rule.spec.taint for rule in rules),
                    order=self.order,
                )
        return found

    @cached_property
    def order(self) -> PoolOrder:
        """When the pool is tried: pools with binding conditions come last."""
        has_conditions = any(
            device.binding_conditions for one in self._slices for device in one.spec.devices
        )
        return has_conditions, *self._key

    def count_plain(self, requirement: DeviceRequirement) -> int | None:
        """Count the devices that a requirement selects; None if they must be looked at singly."""
        if self._rules or not self.node:
            return None
        total = 0
        for one in self._models:
            count = one.count_plain(requirement.expressions)
            if count is None:
                return None
            total += count
        return total

    @cached_property
    def _models(self) -> list[SliceModel]:
        return [model_slice(one) for one in self._slices]

    @cached_property
    def node(self) -> str:
        """The node that alone reaches all devices; "" if there is no such node."""
        names = {one.spec.node_name for one in self._slices}
        has_own = any(one.spec.per_device_node_selection for one in self._slices)
        return "" if has_own or len(names) > 1 else names.pop()

    @cached_property
    def reaches(self) -> list[NodeReach]:
        """The nodes that reach some device of the pool, also if the pool cannot be used yet."""
        if self.node:
            return [NodeReach(self.node)]
        found = [_reach(one, device) for one in self._slices for device in one.spec.devices]
        return list(dict.fromkeys(found))

    @cached_property
    def counters(self) -> Mapping[tuple[str, str], Fraction]:
        """The shared counters of the pool, by set and name."""
        return {
            (counters.name, name): exact_value(counter.value)
            for one in self._slices
            for counters in one.spec.shared_counters
            for name, counter in counters.counters.items()
        }


class SliceModel:
    """The devices of equal slices: nodes of one sort publish the same."""

    def __init__(self, devices: tuple[DeviceModel, ...]) -> None:
        self.devices = devices
        self._counts: dict[tuple[str, ...], int | None] = {}

    def count_plain(self, expressions: tuple[str, ...]) -> int | None:
        """Count the devices that expressions select, if all are used alone and have no taints."""
        if expressions not in self._counts:
            self._counts[expressions] = self._count(expressions)
        return self._counts[expressions]

    def _count(self, expressions: tuple[str, ...]) -> int | None:
        count = 0
        for device, kind, counters in self.devices:
            if device.allow_multiple_allocations or counters or device.taints:
                return None
            try:
                is_selected = kind is not None and all(kind.matches(one) for one in expressions)
            except SelectorError:
                return 0
            count += is_selected
        return count


@lru_cache(maxsize=_MODELS_LIMIT)
def _decode_models(driver: str, encoded: bytes) -> SliceModel:
    models = tuple(
        DeviceModel(
            device,
            device_kind(driver, device),
            {
                (taken.counter_set, name): exact_value(counter.value)
                for taken in device.consumes_counters
                for name, counter in taken.counters.items()
            },
        )
        for device in _decode_devices(encoded)
    )
    return SliceModel(models)


def model_slice(slice_: ResourceSlice) -> SliceModel:
    """Return what a slice says about its devices."""
    return _decode_models(slice_.spec.driver, _encode(slice_.spec.devices))


def _reach(slice_: ResourceSlice, device: Device) -> NodeReach:
    spec = device if slice_.spec.per_device_node_selection else slice_.spec
    return NodeReach(spec.node_name, None if spec.node_name else spec.node_selector)


def selects_pool(rule: DeviceTaintRule, key: PoolKey) -> bool:
    """Whether a rule may taint devices of a pool. A rule without a selector taints none."""
    selector = rule.spec.device_selector
    return (
        selector is not None
        and selector.driver in (None, key.driver)
        and selector.pool in (None, key.pool)
    )


def selects_device(rule: DeviceTaintRule, name: str) -> bool:
    """Whether a rule that selects the pool taints a device of it."""
    selector = rule.spec.device_selector
    return selector is not None and selector.device in (None, name)


class DeviceRequirement(NamedTuple):
    """What a request requires of a device: expressions that hold, and taints that it tolerates."""

    expressions: tuple[str, ...]
    tolerations: tuple[DeviceToleration, ...] = ()

    def selects(self, device: PublishedDevice) -> bool:
        """Whether all expressions hold for a device. Raises SelectorError."""
        kind = device.kind
        return kind is not None and all(kind.matches(one) for one in self.expressions)

    def tolerates(self, device: PublishedDevice) -> bool:
        """Whether the taints of a device do not keep the request away."""
        return not device.taints or all(
            taint.effect not in _HARD_EFFECTS
            or any(tolerates_taint(toleration, taint) for toleration in self.tolerations)
            for taint in device.taints
        )


def tolerates_taint(toleration: DeviceToleration, taint: DeviceTaint) -> bool:
    """Whether a toleration matches a taint; without an effect it matches every effect."""
    if toleration.effect and toleration.effect != taint.effect:
        return False
    if toleration.operator == "Exists":
        return toleration.key in ("", taint.key)
    return toleration.key == taint.key and toleration.value == taint.value


class Candidates(NamedTuple):
    """The devices that a requirement selects among some, in order.

    `tainted` counts devices that are selected and have taints that keep the request away. `error`
    says why a selector has no result for some device.
    """

    devices: tuple[PublishedDevice, ...]
    tainted: int = 0
    error: str = ""
    #: Whether every device is used by one claim alone, and uses no shared counters.
    is_plain: bool = True


def select_devices(
    requirement: DeviceRequirement, devices: Iterable[PublishedDevice]
) -> Candidates:
    """Select devices in order."""
    chosen, tainted = [], 0
    for device in devices:
        try:
            is_selected = requirement.selects(device)
        except SelectorError as error:
            return Candidates((), 0, f"device {device.id}: {error}")
        if is_selected and requirement.tolerates(device):
            chosen.append(device)
        elif is_selected:
            tainted += 1
    is_plain = not any(device.is_shareable or device.counters for device in chosen)
    return Candidates(tuple(chosen), tainted, is_plain=is_plain)


class DeviceInventory:
    """All ResourceSlices, DeviceClasses and DeviceTaintRules, indexed for allocation."""

    def __init__(self) -> None:
        self._slices: dict[str, ResourceSlice] = {}
        self._slices_by_pool: dict[PoolKey, dict[str, ResourceSlice]] = {}
        self._rules: dict[str, DeviceTaintRule] = {}
        self.classes: dict[str, DeviceClass] = {}
        #: Changes whenever an object changes: what was derived before is outdated.
        self.revision = 0
        self._pools: dict[PoolKey, DevicePool] = {}
        #: The pools with devices of each node, and those with devices that several nodes reach.
        self._local: dict[str, dict[PoolKey, None]] = {}
        self._shared: dict[PoolKey, None] = {}
        self._outdated_pools: dict[PoolKey, None] = {}
        self._pools_with_counters: set[PoolKey] = set()
        self._candidates: dict[tuple[str, DeviceRequirement], Candidates] = {}

    def __bool__(self) -> bool:
        return bool(self._slices or self.classes)

    def update_slice(self, name: str, new: ResourceSlice | None) -> bool:
        """Add, replace or (None) remove a slice. Whether something changed that is read here."""
        old = self._slices.get(name)
        if (old.spec if old else None) == (new.spec if new else None):
            return False
        if old is not None:
            key = PoolKey(old.spec.driver, old.spec.pool.name)
            del self._slices_by_pool[key][name]
            self._outdated_pools[key] = None
        if new is not None:
            key = PoolKey(new.spec.driver, new.spec.pool.name)
            self._slices_by_pool.setdefault(key, {})[name] = new
            self._outdated_pools[key] = None
        _set_or_remove(self._slices, name, new)
        self.revision += 1
        return True

    def update_class(self, name: str, new: DeviceClass | None) -> bool:
        """Add, replace or (None) remove a class. Whether something changed that is read here."""
        old = self.classes.get(name)
        _set_or_remove(self.classes, name, new)
        self.revision += 1
        return (old.spec if old else None) != (new.spec if new else None)

    def update_rule(self, name: str, new: DeviceTaintRule | None) -> bool:
        """Add, replace or (None) remove a taint rule. Whether something changed that is read."""
        old = self._rules.get(name)
        if (old.spec if old else None) == (new.spec if new else None):
            return False
        _set_or_remove(self._rules, name, new)
        self._outdated_pools.update(dict.fromkeys(self._pools))
        self.revision += 1
        return True

    def class_of_resource(self, resource: str) -> str:
        """Return the class that serves an extended resource; "" if none does.

        Of several classes with one `extendedResourceName` the latest counts, then the lower name.
        """
        if resource.startswith(CLASS_RESOURCE_PREFIX):
            name = resource.removeprefix(CLASS_RESOURCE_PREFIX)
            return name if name in self.classes else ""
        serving = [
            (one.metadata.creation_timestamp, name)
            for name, one in sorted(self.classes.items(), reverse=True)
            if one.spec.extended_resource_name == resource
        ]
        return max(serving, key=lambda found: found[0])[1] if serving else ""

    def pool(self, key: PoolKey) -> DevicePool | None:
        """Return a pool."""
        self._update_pools()
        return self._pools.get(key)

    def find_device(self, device_id: DeviceId) -> PublishedDevice | None:
        """Return a device that is published now."""
        pool = self.pool(PoolKey(device_id.driver, device_id.pool))
        return pool.devices.get(device_id.device) if pool else None

    @property
    def has_counters(self) -> bool:
        """Whether some pool has shared counters."""
        self._update_pools()
        return bool(self._pools_with_counters)

    def local_nodes(self) -> Iterable[str]:
        """The nodes that have devices of their own."""
        self._update_pools()
        return self._local

    def shared_devices(self) -> Iterator[PublishedDevice]:
        """The devices that several nodes reach, in order."""
        self._update_pools()
        for pool in sorted((self._pools[key] for key in self._shared), key=_pool_order):
            yield from (one for one in pool.devices.values() if not one.reach.node)

    def unusable_pools(self) -> Iterator[DevicePool]:
        """The pools that cannot be used: slices are missing, or two devices have one name."""
        self._update_pools()
        return (pool for pool in self._pools.values() if not pool.is_usable)

    def local_candidates(self, node: str, requirement: DeviceRequirement) -> Candidates:
        """Return the devices of one node that a requirement selects."""
        self._update_pools()
        found = self._candidates.get((node, requirement))
        if found is None:
            pools = [self._pools[key] for key in self._local.get(node, ())]
            devices = (
                device
                for pool in sorted(pools, key=_pool_order)
                for device in pool.devices.values()
                if device.reach.node == node
            )
            found = self._candidates[node, requirement] = select_devices(requirement, devices)
        return found

    def count_local(self, node: str, requirement: DeviceRequirement) -> int | None:
        """Count the devices of a node that a requirement selects, used or not.

        None if they must be looked at singly.
        """
        self._update_pools()
        total = 0
        for key in self._local.get(node, ()):
            count = self._pools[key].count_plain(requirement)
            if count is None:
                return None
            total += count
        return total

    def shared_candidates(self, requirement: DeviceRequirement) -> Candidates:
        """Return the devices of several nodes that a requirement selects."""
        self._update_pools()
        found = self._candidates.get(("", requirement))
        if found is None:
            found = select_devices(requirement, self.shared_devices())
            self._candidates["", requirement] = found
        return found

    def _update_pools(self) -> None:
        """Build the pools again whose slices or rules changed."""
        if not self._outdated_pools:
            return
        rules = [rule for _, rule in sorted(self._rules.items())]
        for key in self._outdated_pools:
            old = self._pools.pop(key, None)
            self._pools_with_counters.discard(key)
            for reach in old.reaches if old else ():
                pools = self._local.get(reach.node, {}) if reach.node else self._shared
                pools.pop(key, None)
            if slices := self._slices_by_pool.get(key):
                pool = self._pools[key] = DevicePool(key, slices.values(), rules)
                if pool.counters:
                    self._pools_with_counters.add(key)
                for reach in pool.reaches if pool.is_usable else ():
                    pools = self._local.setdefault(reach.node, {}) if reach.node else self._shared
                    pools[key] = None
        self._outdated_pools.clear()
        self._candidates.clear()


def _pool_order(pool: DevicePool) -> PoolOrder:
    return pool.order


def _set_or_remove(values: dict[str, _T], name: str, value: _T | None) -> None:
    if value is None:
        values.pop(name, None)
    else:
        values[name] = value
