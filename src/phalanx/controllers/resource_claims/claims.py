"""Resource claims as their controllers read them: whose they are, who uses them. Partial, frozen.

A pod uses the claims that it names and those that are made for it of templates; where its group
asks for the very same, the group's is meant.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from msgspec import Struct

from phalanx.api.core import Pod, PodResourceClaim
from phalanx.api.kinds import POD, POD_GROUP, Kind
from phalanx.api.meta import Key, ObjectMeta, OwnerReference
from phalanx.api.scheduling import PodGroup

#: Which of its owner's claims one was made for.
POD_CLAIM_NAME = "resource.kubernetes.io/pod-claim-name"
#: Keeps a claim while devices are allocated to it.
PROTECTION_FINALIZER = "resource.kubernetes.io/delete-protection"


class ClaimConsumer(Struct, frozen=True, rename="camel", omit_defaults=True):
    """A pod or a group for which a claim is reserved."""

    resource: str = ""
    name: str = ""
    uid: str = ""
    api_group: str = ""

    @staticmethod
    def of(kind: Kind, meta: ObjectMeta) -> ClaimConsumer:
        """A pod or a group as a consumer."""
        return ClaimConsumer(kind.plural, meta.name, meta.uid, kind.group)

    @property
    def kind(self) -> Kind | None:
        """What it is; None if that is nothing we know of."""
        return _KINDS.get((self.api_group, self.resource))


_KINDS = {(kind.group, kind.plural): kind for kind in (POD, POD_GROUP)}


class ResourceClaimStatus(Struct, frozen=True, rename="camel"):
    """Whether devices are allocated to a claim, and for whom they are reserved."""

    allocation: dict[str, Any] | None = None
    reserved_for: tuple[ClaimConsumer, ...] = ()


class DeviceClaim(Struct, frozen=True):
    """A claim on devices."""

    metadata: ObjectMeta
    status: ResourceClaimStatus = ResourceClaimStatus()

    @property
    def owner(self) -> OwnerReference | None:
        """The pod or group that it was made for, if it was made for any."""
        owners = self.metadata.owner_references
        return next((one for one in owners if one.controller), None)

    def is_for(self, uid: str, claim: str) -> bool:
        """Whether it was made for one of the claims of an owner."""
        made_for = self.metadata.annotations.get(POD_CLAIM_NAME)
        return made_for == claim and self.owner is not None and self.owner.uid == uid


class ClaimTemplateMeta(Struct, frozen=True):
    """The labels and annotations of claims to be."""

    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}


class ClaimTemplateSpec(Struct, frozen=True):
    """Claims to be."""

    metadata: ClaimTemplateMeta = ClaimTemplateMeta()
    spec: dict[str, Any] = {}


class ResourceClaimTemplate(Struct, frozen=True):
    """What claims are made of."""

    metadata: ObjectMeta
    spec: ClaimTemplateSpec = ClaimTemplateSpec()


def is_pod_finished(pod: Pod) -> bool:
    """Whether no container of a pod runs or ever will."""
    return pod.is_terminal or bool(pod.metadata.deletion_timestamp and not pod.spec.node_name)


def claims_of_pod(pod: Pod) -> Iterator[tuple[PodResourceClaim, Key]]:
    """The claims that a pod asks for, each with the one that it has, as far as it has them."""
    if not pod.spec.resource_claims:
        return
    made = {one.name: one.resource_claim_name for one in pod.status.resource_claim_statuses}
    for claim in pod.spec.resource_claims:
        name = claim.resource_claim_name or made.get(claim.name)
        if name:
            yield claim, Key(pod.metadata.namespace, name)


def is_shared_with_group(claim: PodResourceClaim, group: PodGroup | None) -> bool:
    """Whether what a pod asks for is what its group asks for."""
    return group is not None and claim in group.spec.resource_claims
