"""ResourceClaim and ResourceClaimTemplate as their controllers read them. Partial and frozen."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from phalanx.api.kinds import POD, POD_GROUP, Kind
from phalanx.api.meta import ObjectMeta, OwnerReference

#: The annotation of a ResourceClaim that names the entry of its owner's `resourceClaims`.
POD_CLAIM_NAME = "resource.kubernetes.io/pod-claim-name"


class ClaimConsumer(Struct, frozen=True, rename="camel", omit_defaults=True):
    """A Pod or PodGroup in `status.reservedFor` of a ResourceClaim."""

    resource: str = ""
    name: str = ""
    uid: str = ""
    api_group: str = ""

    @staticmethod
    def of(kind: Kind, meta: ObjectMeta) -> ClaimConsumer:
        """Return the consumer entry of a Pod or PodGroup."""
        return ClaimConsumer(kind.plural, meta.name, meta.uid, kind.group)

    @property
    def kind(self) -> Kind | None:
        """The kind of the consumer; None if it is neither Pod nor PodGroup."""
        return _KINDS.get((self.api_group, self.resource))


_KINDS = {(kind.group, kind.plural): kind for kind in (POD, POD_GROUP)}


class ResourceClaimStatus(Struct, frozen=True, rename="camel"):
    """The allocation of devices to a claim, and the consumers that it is reserved for."""

    allocation: dict[str, Any] | None = None
    reserved_for: tuple[ClaimConsumer, ...] = ()


class DeviceClaim(Struct, frozen=True):
    """A ResourceClaim."""

    metadata: ObjectMeta
    status: ResourceClaimStatus = ResourceClaimStatus()

    @property
    def owner(self) -> OwnerReference | None:
        """The controller that the claim was created for, if any."""
        owners = self.metadata.owner_references
        return next((one for one in owners if one.controller), None)

    def is_for(self, uid: str, claim: str) -> bool:
        """Whether the claim was created for an entry of an owner's `resourceClaims`."""
        made_for = self.metadata.annotations.get(POD_CLAIM_NAME)
        return made_for == claim and self.owner is not None and self.owner.uid == uid


class ClaimTemplateMeta(Struct, frozen=True):
    """The labels and annotations of claims from a template."""

    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}


class ClaimTemplateSpec(Struct, frozen=True):
    """Metadata and spec of claims from a template."""

    metadata: ClaimTemplateMeta = ClaimTemplateMeta()
    spec: dict[str, Any] = {}


class ResourceClaimTemplate(Struct, frozen=True):
    """A ResourceClaimTemplate."""

    metadata: ObjectMeta
    spec: ClaimTemplateSpec = ClaimTemplateSpec()
