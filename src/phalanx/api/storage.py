"""PersistentVolumes, claims and storage classes as our components read them. Partial and frozen.

PersistentVolume, PersistentVolumeClaim, StorageClass               volume controllers, scheduler
CSIDriver, CSINode, CSIStorageCapacity, VolumeAttachment            scheduler
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from phalanx.api.core import NodeSelector, Pod
from phalanx.api.meta import Condition, Key, ObjectMeta, new_key
from phalanx.api.resources import exact_value
from phalanx.api.selectors import selector_matches

PVC_PROTECTION_FINALIZER = "kubernetes.io/pvc-protection"
PV_PROTECTION_FINALIZER = "kubernetes.io/pv-protection"
#: The binder has bound the claim; without it a volume name is only a request.
BIND_COMPLETED = "pv.kubernetes.io/bind-completed"
#: The binder has chosen this partner, not the user.
BOUND_BY_CONTROLLER = "pv.kubernetes.io/bound-by-controller"
#: The node for which the volume of a claim is provisioned, as the scheduler has decided.
SELECTED_NODE = "volume.kubernetes.io/selected-node"
#: When our scheduler has selected that node.
SELECTED_AT_ANNOTATION = "phalanx.dev/node-selected-at"
#: The provisioner that shall provision the volume of a claim, under its two names.
STORAGE_PROVISIONER = "volume.kubernetes.io/storage-provisioner"
BETA_STORAGE_PROVISIONER = "volume.beta.kubernetes.io/storage-provisioner"
#: The provisioner that has provisioned a volume.
PROVISIONED_BY = "pv.kubernetes.io/provisioned-by"
#: The class of a volume or claim, in place of `storageClassName`.
BETA_STORAGE_CLASS = "volume.beta.kubernetes.io/storage-class"
#: Either is "true" on the class of claims that name none.
DEFAULT_CLASS_ANNOTATIONS = (
    "storageclass.kubernetes.io/is-default-class",
    "storageclass.beta.kubernetes.io/is-default-class",
)
#: The provisioner of classes whose volumes are made by hand.
NO_PROVISIONER = "kubernetes.io/no-provisioner"
WAIT_FOR_FIRST_CONSUMER = "WaitForFirstConsumer"


def is_default_class(annotations: Mapping[str, str] | None) -> bool:
    """Whether the annotations of a StorageClass make it a default class."""
    found = annotations or {}
    return any(found.get(key) == "true" for key in DEFAULT_CLASS_ANNOTATIONS)


class ClaimReference(Struct, frozen=True, rename="camel"):
    """The claim that a volume is bound to, or reserved for; without a uid, any claim so named."""

    namespace: str = ""
    name: str = ""
    uid: str = ""

    @property
    def key(self) -> Key:
        """Namespace and name of the claim."""
        return Key(self.namespace, self.name)


class VolumeNodeAffinity(Struct, frozen=True):
    """The nodes from which a volume can be used."""

    required: NodeSelector | None = None


class CSIVolumeSource(Struct, frozen=True, rename="camel"):
    """The CSI driver of a volume, and the name that the driver knows it by."""

    driver: str = ""
    volume_handle: str = ""


class PersistentVolumeSpec(Struct, frozen=True, rename="camel"):
    """Size, class and claim of a volume; other sources than CSI stay in the API."""

    capacity: dict[str, str | int | float] = {}
    access_modes: tuple[str, ...] = ()
    claim_ref: ClaimReference | None = None
    persistent_volume_reclaim_policy: str = "Retain"
    storage_class_name: str = ""
    volume_mode: str = "Filesystem"
    volume_attributes_class_name: str = ""
    node_affinity: VolumeNodeAffinity | None = None
    csi: CSIVolumeSource | None = None


class PersistentVolumeStatus(Struct, frozen=True):
    """The phase of a volume: Pending, Available, Bound, Released or Failed."""

    phase: str = "Pending"


class PersistentVolume(Struct, frozen=True):
    """A PersistentVolume."""

    metadata: ObjectMeta
    spec: PersistentVolumeSpec = PersistentVolumeSpec()
    status: PersistentVolumeStatus = PersistentVolumeStatus()

    @property
    def storage_class(self) -> str:
        """The name of the volume's class; "" if it has none."""
        beta = self.metadata.annotations.get(BETA_STORAGE_CLASS)
        return self.spec.storage_class_name if beta is None else beta

    def is_reserved_for(self, claim: PersistentVolumeClaim) -> bool:
        """Whether the volume names a claim: this one, or any of its name."""
        reference, meta = self.spec.claim_ref, claim.metadata
        return (
            reference is not None and reference.key == meta.key and reference.uid in ("", meta.uid)
        )


class ClaimResources(Struct, frozen=True):
    """The storage that a claim requests."""

    requests: dict[str, str | int | float] = {}


class PersistentVolumeClaimSpec(Struct, frozen=True, rename="camel"):
    """What a claim asks for, and the volume that it names."""

    access_modes: tuple[str, ...] = ()
    selector: dict[str, Any] | None = None
    resources: ClaimResources = ClaimResources()
    volume_name: str = ""
    storage_class_name: str | None = None
    volume_mode: str = "Filesystem"
    volume_attributes_class_name: str = ""


class PersistentVolumeClaimStatus(Struct, frozen=True, rename="camel"):
    """The phase of a claim (Pending, Bound or Lost) and what it has got."""

    phase: str = "Pending"
    access_modes: tuple[str, ...] = ()
    capacity: dict[str, str | int | float] = {}
    conditions: tuple[Condition, ...] = ()


class PersistentVolumeClaim(Struct, frozen=True):
    """A PersistentVolumeClaim."""

    metadata: ObjectMeta
    spec: PersistentVolumeClaimSpec = PersistentVolumeClaimSpec()
    status: PersistentVolumeClaimStatus = PersistentVolumeClaimStatus()

    @property
    def storage_class(self) -> str:
        """The name of the claim's class; "" if it has none."""
        beta = self.metadata.annotations.get(BETA_STORAGE_CLASS)
        return (self.spec.storage_class_name or "") if beta is None else beta

    @property
    def requested_storage(self) -> str | int | float:
        """The requested size."""
        return self.spec.resources.requests.get("storage", "0")

    @property
    def is_bound(self) -> bool:
        """Whether the binder has bound the claim to the volume that it names."""
        return bool(self.spec.volume_name) and BIND_COMPLETED in self.metadata.annotations

    @property
    def selected_node(self) -> str:
        """The node for which a volume is to be provisioned; "" for none."""
        return self.metadata.annotations.get(SELECTED_NODE, "")


class TopologyLabel(Struct, frozen=True):
    """A label of nodes and the values that it may have."""

    key: str = ""
    values: tuple[str, ...] = ()


class AllowedTopology(Struct, frozen=True, rename="camel"):
    """Labels that a node must have, all of them."""

    match_label_expressions: tuple[TopologyLabel, ...] = ()


class StorageClass(Struct, frozen=True, rename="camel"):
    """A StorageClass."""

    metadata: ObjectMeta
    provisioner: str = ""
    reclaim_policy: str = "Delete"
    volume_binding_mode: str = "Immediate"
    parameters: dict[str, str] = {}
    mount_options: tuple[str, ...] = ()
    #: The nodes for which volumes can be provisioned: those that match one; empty: all.
    allowed_topologies: tuple[AllowedTopology, ...] = ()

    @property
    def waits_for_consumer(self) -> bool:
        """Whether claims of the class are bound when a pod that uses them is scheduled."""
        return self.volume_binding_mode == WAIT_FOR_FIRST_CONSUMER

    @property
    def can_provision(self) -> bool:
        """Whether a provisioner makes volumes of the class."""
        return self.provisioner not in ("", NO_PROVISIONER)


class CSIDriverSpec(Struct, frozen=True, rename="camel"):
    """What a driver asks of schedulers."""

    #: Whether the driver publishes CSIStorageCapacities, which then must suffice.
    storage_capacity: bool = False
    #: Whether pods with its volumes need a node whose CSINode lists the driver.
    prevent_pod_scheduling_if_missing: bool = False


class CSIDriver(Struct, frozen=True):
    """A CSIDriver."""

    metadata: ObjectMeta
    spec: CSIDriverSpec = CSIDriverSpec()


class AttachLimit(Struct, frozen=True):
    """How many volumes of a driver a node can attach; None: any number."""

    count: int | None = None


class CSINodeDriver(Struct, frozen=True):
    """A driver that is installed on a node."""

    name: str
    allocatable: AttachLimit | None = None


class CSINodeSpec(Struct, frozen=True):
    """The drivers of a node."""

    drivers: tuple[CSINodeDriver, ...] = ()


class CSINode(Struct, frozen=True):
    """A CSINode, which has the name of its Node."""

    metadata: ObjectMeta
    spec: CSINodeSpec = CSINodeSpec()


class CSIStorageCapacity(Struct, frozen=True, rename="camel"):
    """How much storage of a class can be provisioned for some nodes."""

    metadata: ObjectMeta
    storage_class_name: str = ""
    node_topology: dict[str, Any] | None = None
    capacity: str | int | float | None = None
    maximum_volume_size: str | int | float | None = None


class AttachedVolume(Struct, frozen=True, rename="camel"):
    """The volume of a VolumeAttachment."""

    persistent_volume_name: str = ""


class VolumeAttachmentSpec(Struct, frozen=True, rename="camel"):
    """The node that a volume is attached to, and by which driver."""

    attacher: str = ""
    node_name: str = ""
    source: AttachedVolume = AttachedVolume()


class VolumeAttachment(Struct, frozen=True):
    """A VolumeAttachment."""

    metadata: ObjectMeta
    spec: VolumeAttachmentSpec = VolumeAttachmentSpec()


def volume_claims_of(pod: Pod) -> Sequence[tuple[Key, bool]]:
    """Return the claims that a pod names, or that are created for it (True)."""
    if not pod.spec.volumes:
        return ()
    namespace, found = pod.metadata.namespace, list[tuple[Key, bool]]()
    for volume in pod.spec.volumes:
        if volume.persistent_volume_claim:
            name = str(volume.persistent_volume_claim.get("claimName", ""))
            found.append((new_key(Key, (namespace, name)), False))
        elif volume.ephemeral:
            found.append((Key(namespace, ephemeral_claim_name(pod, volume.name)), True))
    return found


def volume_keys_of(pod: Pod) -> tuple[Key, ...]:
    """Return the claims that a pod names or that are created for it, each once."""
    keys = [key for key, _ in volume_claims_of(pod)]
    return tuple(keys) if len(keys) < 2 else tuple(dict.fromkeys(keys))


def ephemeral_claim_name(pod: Pod, volume: str) -> str:
    """Return the name of the claim of a generic ephemeral volume."""
    return f"{pod.metadata.name}-{volume}"


def find_mismatch(claim: PersistentVolumeClaim, volume: PersistentVolume) -> str:
    """Return why a volume that nothing claims does not serve a claim; "" if it does."""
    wanted, offered = claim.spec, volume.spec
    if volume.storage_class != claim.storage_class:
        return "storageClassName does not match"
    if offered.volume_mode != wanted.volume_mode:
        return "incompatible volumeMode"
    if exact_value(offered.capacity.get("storage", "0")) < exact_value(claim.requested_storage):
        return "requested PV is too small"
    if not set(wanted.access_modes) <= set(offered.access_modes):
        return "incompatible accessMode"
    if offered.volume_attributes_class_name != wanted.volume_attributes_class_name:
        return "volumeAttributesClassName does not match"
    return ""


def is_suitable_reserved(claim: PersistentVolumeClaim, volume: PersistentVolume) -> bool:
    """Whether a volume has the size, mode and attributes class of a claim.

    A volume that names a claim is not bound to it otherwise, whatever else it has.
    """
    wanted, offered = claim.spec, volume.spec
    size = exact_value(offered.capacity.get("storage", "0"))
    return (
        size >= exact_value(claim.requested_storage)
        and offered.volume_mode == wanted.volume_mode
        and offered.volume_attributes_class_name == wanted.volume_attributes_class_name
    )


def find_volume(
    claim: PersistentVolumeClaim, volumes: Iterable[PersistentVolume]
) -> PersistentVolume | None:
    """Return the best volume for a claim: one that names it, else the smallest that fits.

    Volumes of equal size are taken in the order of their names.
    """
    known = sorted(volumes, key=lambda one: one.metadata.name)
    for volume in known:
        if not volume.is_reserved_for(claim) or volume.metadata.deletion_timestamp:
            continue
        has_modes = set(claim.spec.access_modes) <= set(volume.spec.access_modes)
        if has_modes and is_suitable_reserved(claim, volume):
            return volume
    fitting = [
        volume
        for volume in known
        if volume.spec.claim_ref is None
        and volume.status.phase == "Available"
        and not volume.metadata.deletion_timestamp
        and not find_mismatch(claim, volume)
        and (
            claim.spec.selector is None
            or selector_matches(claim.spec.selector, volume.metadata.labels)
        )
    ]
    return min(
        fitting, key=lambda one: exact_value(one.spec.capacity.get("storage", "0")), default=None
    )
