"""VolumeState: volumes, claims and their users, as one scheduling cycle sees them.

The cache owns one state and changes it between two cycles. A cycle forks it: the victims of a
preemption free ReadWriteOncePod claims and attach slots, and members that are placed take volumes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from fractions import Fraction
from typing import Any, NamedTuple

from phalanx.api.core import NodeSelector, Pod
from phalanx.api.meta import Key
from phalanx.api.resources import exact_value
from phalanx.api.selectors import selector_requirements
from phalanx.api.storage import (
    CSIDriver,
    CSINode,
    CSIStorageCapacity,
    PersistentVolume,
    PersistentVolumeClaim,
    StorageClass,
    VolumeAttachment,
    is_suitable_reserved,
    volume_claims_of,
    volume_keys_of,
)
from phalanx.scheduler.volumes.demand import (
    CLAIM_DELETED,
    CLAIM_LOST,
    EPHEMERAL_FOREIGN,
    EPHEMERAL_MISSING,
    NO_CLAIM_FOUND,
    UNBOUND_IMMEDIATE,
    AssignedVolume,
    AttachedDisk,
    UnboundClaim,
    VolumeDemand,
    ZoneRequirement,
)

VolumeObject = (
    PersistentVolume
    | PersistentVolumeClaim
    | StorageClass
    | CSINode
    | CSIDriver
    | CSIStorageCapacity
    | VolumeAttachment
)

ONCE_POD = "ReadWriteOncePod"
#: The labels of volumes that nodes must match, each under its two names.
ZONE_LABELS = {
    "topology.kubernetes.io/zone": "failure-domain.beta.kubernetes.io/zone",
    "topology.kubernetes.io/region": "failure-domain.beta.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone": "topology.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region": "topology.kubernetes.io/region",
}
#: Between several zones in the label of one volume.
_ZONE_SEPARATOR = "__"


class VolumeInfo(NamedTuple):
    """A volume as the scheduler reads it."""

    volume: PersistentVolume
    size: Fraction
    affinity: NodeSelector | None
    zones: tuple[ZoneRequirement, ...]

    @property
    def name(self) -> str:
        """The name of the volume."""
        return self.volume.metadata.name


class VolumeUser(NamedTuple):
    """A pod on a node, and the claims that it uses."""

    pod: Key
    node: str
    claims: tuple[Key, ...]
    #: What a placement gives its claims, if the API does not show it.
    volumes: tuple[AssignedVolume, ...] = ()


def build_volume_info(volume: PersistentVolume) -> VolumeInfo:
    """Read what the scheduler needs of a volume."""
    affinity, labels = volume.spec.node_affinity, volume.metadata.labels
    zones = [
        ZoneRequirement(key, frozenset(labels[key].split(_ZONE_SEPARATOR)))
        for key in ZONE_LABELS
        if key in labels
    ]
    return VolumeInfo(
        volume,
        exact_value(volume.spec.capacity.get("storage", "0")),
        affinity.required if affinity else None,
        tuple(zones),
    )


class VolumeState:
    """The volumes and claims of a cluster at one moment."""

    def __init__(self) -> None:
        self.volumes: dict[str, VolumeInfo] = {}
        self.claims: dict[Key, PersistentVolumeClaim] = {}
        self.classes: dict[str, StorageClass] = {}
        self.drivers: dict[str, CSIDriver] = {}
        self.csi_nodes: dict[str, CSINode] = {}
        #: By storage class and key.
        self.capacities: dict[str, dict[Key, CSIStorageCapacity]] = {}
        self._attachments: dict[str, dict[str, VolumeAttachment]] = {}
        #: The volumes that no claim is bound to, by class.
        self._unbound_volumes: dict[str, dict[str, VolumeInfo]] = {}
        #: The volumes that name a claim which is not bound to them yet.
        self._reserved: dict[Key, dict[str, None]] = {}
        #: The pods on nodes that use claims: by claim, and by node.
        self._users: dict[Key, dict[Key, str]] = {}
        self._users_by_node: dict[str, dict[Key, tuple[Key, ...]]] = {}
        #: How many nodes limit a driver, or must have it.
        self._limited_drivers: Counter[str] = Counter()
        #: What the API does not show: assumed by the cache, or by a fork.
        self._assumed: dict[Key, AssignedVolume] = {}
        self._taken: Counter[str] = Counter()
        self._origin: VolumeState | None = None
        self._removed_pods: frozenset[Key] = frozenset()
        #: Changes with classes, drivers and capacities; and the volumes that changed, in order.
        self.revision = 0
        self.changed_volumes: list[str] = []

    def fork(
        self, removed: Collection[VolumeUser] = (), added: Iterable[VolumeUser] = ()
    ) -> VolumeState:
        """Copy the state, without some pods and with others."""
        forked = VolumeState.__new__(VolumeState)
        forked.__dict__.update(self.__dict__)
        forked._origin = self
        forked._users, forked._users_by_node = {}, {}
        forked._removed_pods = frozenset(user.pod for user in removed)
        forked._assumed, forked._taken = dict(self._assumed), Counter(self._taken)
        forked.changed_volumes = []
        for user in added:
            forked.add_user(user)
            for one in user.volumes:
                if one.claim not in forked._assumed:
                    forked.assume(one)
        return forked

    # ---- users of claims -------------------------------------------------------------------------

    def add_user(self, user: VolumeUser) -> None:
        """Count the claims of a pod on a node."""
        self._users_by_node.setdefault(user.node, {})[user.pod] = user.claims
        for claim in user.claims:
            self._users.setdefault(claim, {})[user.pod] = user.node

    def remove_user(self, user: VolumeUser) -> None:
        """Take the claims of a pod back."""
        pods = self._users_by_node[user.node]
        del pods[user.pod]
        if not pods:
            del self._users_by_node[user.node]
        for claim in user.claims:
            self._users[claim].pop(user.pod, None)
            if not self._users[claim]:
                del self._users[claim]

    def users_of(self, claim: Key) -> list[Key]:
        """Return the pods on nodes that use a claim."""
        found = list(self._users.get(claim, ()))
        if self._origin is not None:
            known = self._origin.users_of(claim)
            found += [pod for pod in known if pod not in self._removed_pods]
        return found

    def has_users(self, claim: Key) -> bool:
        """Whether a pod on a node uses a claim."""
        if claim in self._users:
            return True
        return self._origin is not None and bool(self.users_of(claim))

    def _claims_on(self, node: str) -> Iterator[tuple[Key, tuple[Key, ...]]]:
        yield from self._users_by_node.get(node, {}).items()
        if self._origin is not None:
            for pod, claims in self._origin._claims_on(node):
                if pod not in self._removed_pods:
                    yield pod, claims

    def disks_on(self, node: str) -> dict[str, set[str]]:
        """Return the handles of the volumes that are attached to a node, by driver.

        VolumeAttachments that no pod explains count too. Those of pods that a fork has removed do
        not: they are detached when the pods are gone.
        """
        found: dict[str, set[str]] = {}
        for _, claims in self._claims_on(node):
            for disk in filter(None, map(self.disk_of, claims)):
                found.setdefault(disk.driver, set()).add(disk.handle)
        for disk in self._unexplained_disks(node):
            found.setdefault(disk.driver, set()).add(disk.handle)
        return found

    def _unexplained_disks(self, node: str) -> Iterator[AttachedDisk]:
        if self._origin is not None:
            yield from self._origin._unexplained_disks(node)
            return
        if not (attachments := self._attachments.get(node)):
            return
        claims = (key for _, keys in self._claims_on(node) for key in keys)
        known = {disk for disk in map(self.disk_of, claims) if disk is not None}
        for one in attachments.values():
            info = self.volumes.get(one.spec.source.persistent_volume_name)
            source = info.volume.spec.csi if info else None
            if source and AttachedDisk(source.driver, source.volume_handle) not in known:
                yield AttachedDisk(source.driver, source.volume_handle)

    def disk_of(self, key: Key) -> AttachedDisk | None:
        """Return what a node attaches for a claim; None if no driver does."""
        claim = self.claims.get(key)
        if claim is None:
            return None
        info = self.volumes.get(self.volume_of(claim))
        if info is not None:
            source = info.volume.spec.csi
            return AttachedDisk(source.driver, source.volume_handle) if source else None
        found = self.classes.get(claim.storage_class)
        return AttachedDisk(found.provisioner, str(key)) if found else None

    def attach_limit(self, node: str, driver: str) -> int | None:
        """Return how many volumes of a driver a node attaches; None: any number."""
        found = self.csi_nodes.get(node)
        for one in found.spec.drivers if found else ():
            if one.name == driver:
                return one.allocatable.count if one.allocatable else None
        return None

    def lacks_driver(self, node: str, driver: str) -> bool:
        """Whether a node does not have a driver that pods with its volumes need."""
        known = self.drivers.get(driver)
        if known is None or not known.spec.prevent_pod_scheduling_if_missing:
            return False
        found = self.csi_nodes.get(node)
        return found is None or all(one.name != driver for one in found.spec.drivers)

    # ---- claims and volumes ----------------------------------------------------------------------

    def assume(self, one: AssignedVolume) -> None:
        """Count a volume as taken, or a node as selected, before the API shows it."""
        self.forget(one.claim)
        self._assumed[one.claim] = one
        if one.volume:
            self._taken[one.volume] += 1
            self.changed_volumes.append(one.volume)

    def forget(self, claim: Key) -> None:
        """Take an assumption back."""
        one = self._assumed.pop(claim, None)
        if one is not None and one.volume:
            self._taken[one.volume] -= 1
            self.changed_volumes.append(one.volume)

    @property
    def assumed(self) -> Mapping[Key, AssignedVolume]:
        """What the API does not show yet, by claim."""
        return self._assumed

    def volume_of(self, claim: PersistentVolumeClaim) -> str:
        """Return the volume that a claim is bound to, or assumed to be; "" for none."""
        if claim.is_bound:
            return claim.spec.volume_name
        assumed = self._assumed.get(claim.metadata.key)
        return assumed.volume if assumed else ""

    def selected_node(self, claim: PersistentVolumeClaim) -> str:
        """Return the node for which the volume of a claim is provisioned; "" for none."""
        assumed = self._assumed.get(claim.metadata.key)
        if assumed is not None and not assumed.volume:
            return assumed.node
        return claim.selected_node

    def find_reserved(self, key: Key) -> VolumeInfo | None:
        """Return the volume that names a claim which is not bound yet, and suits it."""
        claim = self.claims.get(key)
        for name in self._reserved.get(key, ()) if claim else ():
            info = self.volumes[name]
            volume = info.volume
            assert claim is not None
            if (
                volume.is_reserved_for(claim)
                and not volume.metadata.deletion_timestamp
                and volume.storage_class == claim.storage_class
                and is_suitable_reserved(claim, volume)
            ):
                return info
        return None

    def find_candidates(self, claim: UnboundClaim) -> Iterator[VolumeInfo]:
        """Yield the free volumes that fit a claim, whatever the node."""
        for name in self._unbound_volumes.get(claim.storage_class, {}):
            if (info := self.find_candidate(claim, name)) is not None:
                yield info

    def find_candidate(self, claim: UnboundClaim, name: str) -> VolumeInfo | None:
        """Return a volume if it is free and fits a claim, whatever the node."""
        info = self.volumes.get(name)
        if info is None:
            return None
        volume, spec, meta = info.volume, info.volume.spec, info.volume.metadata
        is_candidate = (
            info.size >= claim.size
            and volume.storage_class == claim.storage_class
            and spec.claim_ref is None
            and volume.status.phase == "Available"
            and not meta.deletion_timestamp
            and not self._taken[name]
            and spec.volume_mode == claim.volume_mode
            and spec.volume_attributes_class_name == claim.attributes_class
            and set(claim.access_modes) <= set(spec.access_modes)
            and all(need.matches(meta.labels) for need in claim.selector or ())
        )
        return info if is_candidate else None

    def demand_of(self, pod: Pod, shared_keys: Collection[Key]) -> VolumeDemand:
        """Return what the claims of a pod require; `shared_keys` are used by other members too."""
        if problem := self.find_problem(pod):
            return VolumeDemand(problem=problem)
        affinities, zones, lacks_volume = list[NodeSelector](), list[ZoneRequirement](), False
        exclusive, attached = list[Key](), list[AttachedDisk]()
        keys = volume_keys_of(pod)
        for key in keys:
            claim = self.claims[key]
            if name := self.volume_of(claim):
                info = self.volumes.get(name)
                lacks_volume |= info is None
                if info is not None:
                    affinities += [info.affinity] if info.affinity else []
                    zones += info.zones
            is_shared = key in shared_keys or self.has_users(key)
            if is_shared and ONCE_POD in claim.spec.access_modes:
                exclusive.append(key)
            disk = self.disk_of(key) if self._limited_drivers else None
            if disk is not None and self._limited_drivers[disk.driver] > 0:
                is_known = is_shared or self._is_attached(self.volume_of(claim))
                attached.append(disk if is_known else AttachedDisk(disk.driver))
        return VolumeDemand(
            affinities=tuple(affinities),
            zones=tuple(dict.fromkeys(zones)),
            lacks_volume=lacks_volume,
            unbound=tuple(one for _, one in self.unbound_claims(keys, shared_keys)),
            exclusive=tuple(exclusive),
            attached=tuple(attached),
        )

    def unbound_claims(
        self, keys: Iterable[Key], shared_keys: Collection[Key] = ()
    ) -> list[tuple[Key, UnboundClaim]]:
        """Return the claims of a pod that are bound with it, the smallest first."""
        found: dict[Key, UnboundClaim] = {}
        for key in keys:
            claim = self.claims.get(key)
            if claim is None or self.volume_of(claim):
                continue
            wanted = claim.spec
            is_named = key in shared_keys or key in self._reserved
            found[key] = UnboundClaim(
                claim.storage_class,
                exact_value(claim.requested_storage),
                wanted.access_modes,
                wanted.volume_mode,
                wanted.volume_attributes_class_name,
                None if wanted.selector is None else selector_requirements(wanted.selector),
                key=key if is_named else None,
                selected_node=self.selected_node(claim),
            )
        return sorted(found.items(), key=lambda item: item[1].size)

    def _is_attached(self, volume: str) -> bool:
        return any(
            one.spec.source.persistent_volume_name == volume
            for attachments in self._attachments.values()
            for one in attachments.values()
        )

    def find_problem(self, pod: Pod) -> str:
        """Say why the claims of a pod cannot be used on any node; "" if they may be."""
        is_waiting = False
        for key, is_ephemeral in volume_claims_of(pod):
            claim = self.claims.get(key)
            if claim is None:
                text = EPHEMERAL_MISSING if is_ephemeral else NO_CLAIM_FOUND
                return text.format(key.name)
            meta = claim.metadata
            if is_ephemeral and pod.metadata.uid not in [o.uid for o in meta.owner_references]:
                return EPHEMERAL_FOREIGN.format(key, pod.metadata.key)
            if meta.deletion_timestamp:
                return CLAIM_DELETED.format(key.name)
            if claim.status.phase == "Lost":
                return CLAIM_LOST.format(key.name, claim.spec.volume_name)
            if not self.volume_of(claim):
                found = self.classes.get(claim.storage_class)
                waits = found is not None and found.waits_for_consumer
                is_waiting |= bool(claim.spec.volume_name) or not waits
        return UNBOUND_IMMEDIATE if is_waiting else ""

    # ---- updates; only the cache calls these -----------------------------------------------------

    def update(self, kind: type[Any], key: Key, new: VolumeObject | None) -> None:
        """Add, replace or (None) remove an object."""
        if kind is PersistentVolume:
            assert new is None or isinstance(new, PersistentVolume)
            self._update_volume(key.name, new)
        elif kind is CSINode:
            assert new is None or isinstance(new, CSINode)
            self._count_limits(self.csi_nodes.get(key.name), -1)
            _set(self.csi_nodes, key.name, new)
            self._count_limits(new, 1)
        elif kind is CSIStorageCapacity:
            assert new is None or isinstance(new, CSIStorageCapacity)
            for known in self.capacities.values():
                known.pop(key, None)
            if new is not None:
                self.capacities.setdefault(new.storage_class_name, {})[key] = new
        elif kind is VolumeAttachment:
            assert new is None or isinstance(new, VolumeAttachment)
            for attachments in self._attachments.values():
                attachments.pop(key.name, None)
            if new is not None:
                self._attachments.setdefault(new.spec.node_name, {})[key.name] = new
        elif kind is PersistentVolumeClaim:
            assert new is None or isinstance(new, PersistentVolumeClaim)
            old = self.claims.get(key)
            is_replaced = bool(old and new and old.metadata.uid != new.metadata.uid)
            if new is None or new.is_bound or is_replaced:
                self.forget(key)
            _set(self.claims, key, new)
        elif kind is CSIDriver:
            assert new is None or isinstance(new, CSIDriver)
            for driver, sign in ((self.drivers.get(key.name), -1), (new, 1)):
                if driver is not None and driver.spec.prevent_pod_scheduling_if_missing:
                    self._limited_drivers[key.name] += sign
            _set(self.drivers, key.name, new)
        else:
            assert new is None or isinstance(new, StorageClass)
            _set(self.classes, key.name, new)
        if kind in (StorageClass, CSIDriver, CSIStorageCapacity):
            self.revision += 1

    def _update_volume(self, name: str, new: PersistentVolume | None) -> None:
        self.changed_volumes.append(name)
        if (old := self.volumes.pop(name, None)) is not None:
            self._unbound_volumes.get(old.volume.storage_class, {}).pop(name, None)
            if (reference := old.volume.spec.claim_ref) is not None:
                names = self._reserved.get(reference.key, {})
                names.pop(name, None)
                if not names:
                    self._reserved.pop(reference.key, None)
        if new is None:
            return
        info = self.volumes[name] = build_volume_info(new)
        reference = new.spec.claim_ref
        if reference is None:
            self._unbound_volumes.setdefault(new.storage_class, {})[name] = info
        elif new.status.phase != "Released":
            self._reserved.setdefault(reference.key, {})[name] = None

    def _count_limits(self, node: CSINode | None, sign: int) -> None:
        for driver in node.spec.drivers if node else ():
            if driver.allocatable is not None and driver.allocatable.count is not None:
                self._limited_drivers[driver.name] += sign


def _set(values: dict[Any, Any], key: Any, value: Any) -> None:
    if value is None:
        values.pop(key, None)
    else:
        values[key] = value
