"""VolumeDemand: what the claims of a pod require of its node. Part of the pod's shape.

A demand names a claim only where other pods matter to it, so that the members of a gang, each with
a claim of its own, are of one shape:

    claims   data-train-0, data-train-1            both bound, no node affinity
    demand   (nothing)                             the same for both

    claims   scratch-0, scratch-1                  both 10Gi of class local, not bound
    demand   a volume of 10Gi of class local       the same for both

The bound claims restrict nodes like a node selector, which costs nothing after the first pod of a
shape. Everything else depends on what other pods use and is asked for one node at a time.
"""

from __future__ import annotations

from fractions import Fraction
from typing import NamedTuple

from phalanx.api.core import NodeSelector
from phalanx.api.meta import Key
from phalanx.api.selectors import LabelRequirement

NO_CLAIM_FOUND = 'persistentvolumeclaim "{}" not found'
CLAIM_DELETED = 'persistentvolumeclaim "{}" is being deleted'
CLAIM_LOST = 'persistentvolumeclaim "{}" bound to non-existent persistentvolume "{}"'
EPHEMERAL_MISSING = (
    'waiting for ephemeral volume controller to create the persistentvolumeclaim "{}"'
)
EPHEMERAL_FOREIGN = "PVC {} was not created for pod {} (pod is not owner)"
UNBOUND_IMMEDIATE = "pod has unbound immediate PersistentVolumeClaims"


class UnboundClaim(NamedTuple):
    """A claim that is bound with the pod: to a volume that exists, or to one to be provisioned."""

    storage_class: str
    size: Fraction
    access_modes: tuple[str, ...] = ()
    volume_mode: str = "Filesystem"
    attributes_class: str = ""
    selector: tuple[LabelRequirement, ...] | None = None
    #: The claim, if other members use it too or if a volume is reserved for it.
    key: Key | None = None
    #: The node for which a volume is being provisioned; "" for none.
    selected_node: str = ""


class AttachedDisk(NamedTuple):
    """A volume that its driver attaches to the node of the pod; "" is one that no other pod has."""

    driver: str
    handle: str = ""


class ZoneRequirement(NamedTuple):
    """A zone or region label of a volume: the node must have one of the values."""

    key: str
    values: frozenset[str]


class VolumeDemand(NamedTuple):
    """What the claims of a pod require of its node."""

    #: Why no node takes the pod; "" if one may.
    problem: str = ""
    #: The nodes from which the volumes of bound claims can be used, and their zones.
    affinities: tuple[NodeSelector, ...] = ()
    zones: tuple[ZoneRequirement, ...] = ()
    #: Whether a bound claim names a volume that does not exist.
    lacks_volume: bool = False
    #: The smallest first.
    unbound: tuple[UnboundClaim, ...] = ()
    #: ReadWriteOncePod claims that another pod uses, or another member.
    exclusive: tuple[Key, ...] = ()
    #: The volumes of drivers that limit how many a node attaches.
    attached: tuple[AttachedDisk, ...] = ()

    def __bool__(self) -> bool:
        return self != NO_VOLUMES

    @property
    def is_dynamic(self) -> bool:
        """Whether a node may take the pod now and not later, or only after other pods left."""
        return bool(self.unbound or self.exclusive or self.attached)

    @property
    def has_shared(self) -> bool:
        """Whether some unbound claim is used by other members too."""
        return any(one.key is not None for one in self.unbound)


NO_VOLUMES = VolumeDemand()


class AssignedVolume(NamedTuple):
    """A claim and the volume that it gets; "": one that is provisioned for the node."""

    claim: Key
    volume: str
    node: str
