"""Resource claims as their controllers read them: whose they are, who uses them. Partial, frozen.

A pod uses the claims that it names and those that are made for it of templates; where its group
asks for the very same, the group's is meant.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from msgspec import Struct

from phalanx.api.core import Pod, PodClaim
from phalanx.api.kinds import POD, POD_GROUP, Kind
from phalanx.api.meta import Key, Meta, OwnerReference
from phalanx.api.scheduling import PodGroup

#: Which of its owner's claims one was made for.
CLAIM_NAME = "resource.kubernetes.io/pod-claim-name"
#: Keeps a claim while devices are allocated to it.
PROTECTION_FINALIZER = "resource.kubernetes.io/delete-protection"


class Consumer(Struct, frozen=True, rename="camel", omit_defaults=True):
    """A pod or a group for which a claim is reserved."""

    resource: str = ""
    name: str = ""
    uid: str = ""
    api_group: str = ""

    @staticmethod
    def of(kind: Kind, meta: Meta) -> Consumer:
        """A pod or a group as a consumer."""
        return Consumer(kind.plural, meta.name, meta.uid, kind.group)

    @property
    def kind(self) -> Kind | None:
        """What it is; None if that is nothing we know of."""
        return _KINDS.get((self.api_group, self.resource))


_KINDS = {(kind.group, kind.plural): kind for kind in (POD, POD_GROUP)}


class ClaimState(Struct, frozen=True, rename="camel"):
    """Whether devices are allocated to a claim, and for whom they are reserved."""

    allocation: dict[str, Any] | None = None
    reserved_for: tuple[Consumer, ...] = ()


class Claim(Struct, frozen=True):
    """A claim on devices."""

    metadata: Meta
    status: ClaimState = ClaimState()

    @property
    def owner(self) -> OwnerReference | None:
        """The pod or group that it was made for, if it was made for any."""
        owners = self.metadata.owner_references
        return next((one for one in owners if one.controller), None)

    def is_for(self, uid: str, claim: str) -> bool:
        """Whether it was made for one of the claims of an owner."""
        made_for = self.metadata.annotations.get(CLAIM_NAME)
        return made_for == claim and self.owner is not None and self.owner.uid == uid


class TemplateMeta(Struct, frozen=True):
    """The labels and annotations of claims to be."""

    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}


class TemplateSpec(Struct, frozen=True):
    """Claims to be."""

    metadata: TemplateMeta = TemplateMeta()
    spec: dict[str, Any] = {}


class ClaimTemplate(Struct, frozen=True):
    """What claims are made of."""

    metadata: Meta
    spec: TemplateSpec = TemplateSpec()


def is_done(pod: Pod) -> bool:
    """Whether no container of a pod runs or ever will."""
    return pod.ended or bool(pod.metadata.deletion_timestamp and not pod.spec.node_name)


def used_by(pod: Pod) -> Iterator[tuple[PodClaim, Key]]:
    """The claims that a pod asks for, each with the one that it has, as far as it has them."""
    if not pod.spec.resource_claims:
        return
    made = {one.name: one.resource_claim_name for one in pod.status.resource_claim_statuses}
    for claim in pod.spec.resource_claims:
        name = claim.resource_claim_name or made.get(claim.name)
        if name:
            yield claim, Key(pod.metadata.namespace, name)


def is_shared(claim: PodClaim, group: PodGroup | None) -> bool:
    """Whether what a pod asks for is what its group asks for."""
    return group is not None and claim in group.spec.resource_claims
