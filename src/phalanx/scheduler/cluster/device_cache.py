"""DeviceCache: observed claims, slices, classes and taint rules, and assumed allocations.

The part of the scheduler cache for devices. As there, changes are collected and reach the
`DeviceState` of the snapshot only when the next snapshot is requested. `claim_problem` reads the
latest objects: the queue holds pods back whose claims are not there yet.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from phalanx.api.core import Pod
from phalanx.api.dynamic_resources import (
    EXTENDED_RESOURCE_CLAIM,
    DeviceClass,
    DeviceTaintRule,
    ResourceSlice,
    decode_allocation,
    extended_claim_prefix,
)
from phalanx.api.meta import POD_GROUP_KIND, Key
from phalanx.api.other_kinds import DeviceClaim
from phalanx.scheduler.cluster.cache_entries import AssumedClaims
from phalanx.scheduler.cluster.cluster_delta import ClusterDelta
from phalanx.scheduler.decision import Binding, ClaimReservation, ClusterEvent
from phalanx.scheduler.devices.state import DeviceState, build_claim_info, claims_of_pod
from phalanx.scheduler.devices.usage import DeviceUsage, uses_of

#: It may concern every entity with claims.
DEVICES_CHANGED = ClusterDelta(ClusterEvent.DEVICES_CHANGED)
DeviceObject = ResourceSlice | DeviceClass | DeviceTaintRule


class DeviceCache:
    """The devices and claims of the cluster as the scheduler knows them."""

    def __init__(self) -> None:
        self.state = DeviceState()
        self._claims: dict[Key, DeviceClaim] = {}
        self._objects: dict[tuple[type[Any], str], DeviceObject] = {}
        self._slices_by_node: dict[str, dict[str, ResourceSlice]] = {}
        self._assumed: AssumedClaims[ClaimReservation] = AssumedClaims()
        #: Changes that are not in the state yet.
        self._changed_objects: dict[tuple[type[Any], str], None] = {}
        self._changed_claims: dict[Key, None] = {}
        self._changed_assumptions: dict[Key, ClaimReservation | None] = {}
        #: How often what a cycle reads has changed.
        self.version = 0
        self.changes = (self._changed_objects, self._changed_claims, self._changed_assumptions)

    def update_object(
        self, kind: type[DeviceObject], name: str, new: DeviceObject | None
    ) -> ClusterDelta | None:
        """Add, replace or (None) remove a slice, class or rule. Returns the change, if any."""
        key, old = (kind, name), self._objects.get((kind, name))
        if (old.spec if old else None) == (new.spec if new else None):
            return None
        if new is None:
            del self._objects[key]
        else:
            self._objects[key] = new
        self._changed_objects[key] = None
        if isinstance(old, ResourceSlice) and old.spec.node_name:
            del self._slices_by_node[old.spec.node_name][name]
        if isinstance(new, ResourceSlice) and new.spec.node_name:
            self._slices_by_node.setdefault(new.spec.node_name, {})[name] = new
        return DEVICES_CHANGED

    def update_claim(self, key: Key, new: DeviceClaim | None) -> ClusterDelta | None:
        """Add, replace or (None) remove a claim. Returns a change if devices are freed."""
        old = self._claims.get(key)
        is_replaced = bool(old and new and old.metadata.uid != new.metadata.uid)
        if new is None or new.status.allocation is not None or is_replaced:
            self._end_assumption(key)
        if new is None:
            self._claims.pop(key, None)
        else:
            self._claims[key] = new
            is_extended = EXTENDED_RESOURCE_CLAIM in new.metadata.annotations
            if is_extended and new.owner is not None and new.status.allocation is not None:
                # It replaces what was assumed before it had a name. A foreign server shows the
                # claim without its devices first.
                self._end_assumption(Key(key.namespace, extended_claim_prefix(new.owner.name)))
        self._changed_claims[key] = None
        was_allocated = old is not None and old.status.allocation is not None
        is_allocated = new is not None and new.status.allocation is not None and not is_replaced
        return DEVICES_CHANGED if was_allocated and not is_allocated else None

    def assume(self, reservations: Iterable[ClaimReservation]) -> None:
        """Count allocations before the API shows them."""
        for one in reservations:
            claim = self._claims.get(one.claim)
            if one.allocation is None:
                continue
            is_current = claim is not None and claim.metadata.uid == one.uid
            if one.spec is not None or (
                claim is not None and is_current and claim.status.allocation is None
            ):
                self._assumed.add(one.pod_uid, one.claim, one)
                self._changed_assumptions[one.claim] = one

    def forget(self, bindings: Iterable[Binding]) -> tuple[ClusterDelta, ...]:
        """Take back the allocations of bindings that failed."""
        keys = [key for one in bindings for key in self._assumed.end_pod(one.uid)]
        self._changed_assumptions.update(dict.fromkeys(keys))
        return (DEVICES_CHANGED,) if keys else ()

    def drop_pod(self, uid: str) -> None:
        """A pod is gone: nothing is assumed for it any more."""
        self._changed_assumptions.update(dict.fromkeys(self._assumed.end_pod(uid)))

    def _end_assumption(self, key: Key) -> None:
        self._assumed.end_claim(key)
        self._changed_assumptions[key] = None

    @property
    def has_assumed(self) -> bool:
        """Whether allocations are assumed for any pod."""
        return bool(self._assumed)

    def assumed_claims(self) -> list[ClaimReservation]:
        """Return the assumed allocations that the API does not show yet, sorted by claim."""
        return [one for _, one in self._assumed.items()]

    def apply_changes(self) -> None:
        """Bring the state up to date."""
        inventory = self.state.inventory
        for kind, name in self._changed_objects:
            found: Any = self._objects.get((kind, name))
            if kind is ResourceSlice:
                inventory.update_slice(name, found)
            elif kind is DeviceClass:
                inventory.update_class(name, found)
            else:
                inventory.update_rule(name, found)
        for key in self._changed_claims:
            claim = self._claims.get(key)
            self.state.update_claim(key, build_claim_info(claim) if claim else None)
        for key, assumed in self._changed_assumptions.items():
            self.state.forget(key)
            if assumed is not None and assumed.allocation is not None:
                info = self.state.claims.get(key)
                is_unallocated = info is not None and info.allocation is None
                if is_unallocated or assumed.spec is not None:
                    self.state.assume(key, decode_allocation(assumed.allocation))
        self.version += 1
        for changed in self.changes:
            changed.clear()

    def check(self) -> Iterator[str]:
        """Yield a message for every device whose use differs from the claims."""
        self.apply_changes()
        fresh = DeviceUsage()
        for info in self.state.claims.values():
            if info.allocation is not None:
                fresh.add(uses_of(info.allocation))
        for key, allocation in self.state.assumed.items():
            fresh.add(uses_of(allocation))
            claim = self._claims.get(key)
            if claim is not None and claim.status.allocation is not None:
                yield f"claim {key} is assumed, although its allocation was observed"
            elif key not in self._assumed:
                yield f"claim {key} is assumed for no pod"
        if fresh.as_dict() != self.state.usage.as_dict():
            yield "the devices in use differ from the allocations of claims"

    def local_slices(self, node: str) -> list[ResourceSlice]:
        """Return the ResourceSlices of one node."""
        return list(self._slices_by_node.get(node, {}).values())

    def claim_problem(self, pod: Pod) -> str:
        """Say why the claims of a pod cannot be allocated yet; "" if they can."""
        for entry, key in claims_of_pod(pod):
            claim = self._claims.get(key) if key else None
            if key is None:
                return f'the claim for "{entry.name}" has not been created yet'
            if claim is None:
                return f'resourceclaim "{key.name}" not found'
            if claim.metadata.deletion_timestamp:
                return f'resourceclaim "{key.name}" is being deleted'
            if entry.resource_claim_template_name and not _is_created_for(claim, pod):
                return f'resourceclaim "{key.name}" was not created for pod {pod.metadata.name}'
        return ""


def _is_created_for(claim: DeviceClaim, pod: Pod) -> bool:
    """Whether a claim was created for a pod or for its PodGroup."""
    owner = claim.owner
    if owner is None:
        return False
    if owner.kind == POD_GROUP_KIND:
        return pod.group is not None and owner.name == pod.group.name
    return owner.uid == pod.metadata.uid
