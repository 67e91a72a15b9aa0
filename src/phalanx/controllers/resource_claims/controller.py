"""Resource claims of templates: made for the pods and groups that ask for them, and noted there.

    pods, groups, templates ─▶ queue of owners ─▶ claims ─▶ their names in the owner's status

The name of a claim follows from its owner, so that none is made twice; it is noted once the claim
is seen. What a pod and its group both ask for is made once, for the group. Allocating devices is
the scheduler's, giving them back is `claimuse`'s. On a foreign API server this loop is off: it has
one of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from typing import NamedTuple

import msgspec

from phalanx.api.core import Pod, PodResourceClaim, PodResourceClaimStatus
from phalanx.api.errors import ApiError
from phalanx.api.kinds import POD, POD_GROUP, RESOURCE_CLAIM, RESOURCE_CLAIM_TEMPLATE, Kind
from phalanx.api.meta import Key, ObjectMeta, OwnerReference
from phalanx.api.scheduling import PodGroup
from phalanx.api.wire import STRATEGIC_PATCH, Object
from phalanx.builder.names import claim_name, claim_prefix, free_name
from phalanx.client.cache import ObjectCache
from phalanx.client.client import Client
from phalanx.controllers.event_recorder import ObjectEvent
from phalanx.controllers.reconcile_loop import (
    Action,
    Create,
    Informers,
    Patch,
    ReconcileLoop,
    ReconcilePlan,
    RecordEvent,
)
from phalanx.controllers.resource_claims.claims import (
    POD_CLAIM_NAME,
    DeviceClaim,
    ResourceClaimTemplate,
    is_pod_finished,
    is_shared_with_group,
)

_WORKERS = 8
_FAILED_REASON = "FailedResourceClaimCreation"


class KindKey(NamedTuple):
    """An object of some kind, by name."""

    kind: Kind
    key: Key


class ClaimOwner(NamedTuple):
    """A pod or a group that asks for claims of templates; `group` is the one that the pod is of."""

    kind: Kind
    meta: ObjectMeta
    claims: tuple[PodResourceClaim, ...]
    recorded: Mapping[str, str]
    group: PodGroup | None = None


class ResourceClaimController:
    """Makes claims and notes them. Never deletes one.

    `groups`: whether there are any; `shares`: whether pods share the claims of theirs.
    """

    def __init__(
        self, client: Client, informers: Informers,
        record: Callable[[ObjectEvent], None] = lambda note: None, *,
        groups: bool = True, share_claims: bool = True,
    ) -> None:  # fmt: skip
        self._record, self._has_groups, self._shares_claims = record, groups, share_claims
        self._pods = informers.of(POD, Pod).cache
        self._groups = (
            informers.of(POD_GROUP, PodGroup).cache if groups else ObjectCache[PodGroup]()
        )
        self._claims = informers.of(RESOURCE_CLAIM, DeviceClaim).cache
        self._templates = informers.of(RESOURCE_CLAIM_TEMPLATE, ResourceClaimTemplate).cache
        self._claims_by_owner = self._claims.index(
            lambda claim: [claim.owner.uid] if claim.owner else []
        )
        self._dependents = self._pods.index(_dependency_keys), self._groups.index(_dependency_keys)
        #: The templates that each waits for.
        self._missing_templates: dict[KindKey, list[str]] = {}
        self._loop: ReconcileLoop[KindKey] = ReconcileLoop(
            client, self.reconcile, _WORKERS, record=record, on_error=self._record_failure
        )
        self._pods.subscribe(self._pod_changed)
        self._groups.subscribe(self._group_changed)
        self._claims.subscribe(self._claim_changed)
        self._templates.subscribe(self._template_changed)

    async def run(self) -> None:
        """Make claims until cancelled."""
        await self._loop.run()

    def reconcile(self, owner: KindKey) -> ReconcilePlan:
        """Make what is missing, and note what is there."""
        asker = self._pod_owner(owner.key) if owner.kind is POD else self._group_owner(owner.key)
        if asker is None:
            self._missing_templates.pop(owner, None)
            return ReconcilePlan()
        own = [claim for claim in asker.claims if not is_shared_with_group(claim, asker.group)]
        found = {claim.name: self._existing_claim_name(asker, claim) for claim in own}
        missing = [claim for claim in own if not found[claim.name]]
        names = {**found, **self._group_claim_names(asker)}
        return ReconcilePlan(
            [
                *self._missing_template_events(owner, asker, missing),
                *self._create_claims(asker, missing),
                *_status_patches(asker, names),
            ]
        )

    def _pod_owner(self, key: Key) -> ClaimOwner | None:
        """A pod that will need claims, once it is known which of them its group shares."""
        pod = self._pods.get(key)
        if pod is None or pod.metadata.deletion_timestamp or is_pod_finished(pod):
            return None
        group = self._groups.get(pod.group) if pod.group else None
        if pod.group and group is None and self._has_groups:
            return None
        noted = _claim_names(pod.status.resource_claim_statuses)
        return ClaimOwner(POD, pod.metadata, _template_claims(pod), noted, group)

    def _group_owner(self, key: Key) -> ClaimOwner | None:
        group = self._groups.get(key)
        if group is None or group.metadata.deletion_timestamp or not self._shares_claims:
            return None
        noted = _claim_names(group.status.resource_claim_statuses)
        return ClaimOwner(POD_GROUP, group.metadata, _template_claims(group), noted)

    def _existing_claim_name(self, claim_owner: ClaimOwner, claim: PodResourceClaim) -> str:
        """The name of the claim that was made for one; "" if none was."""
        uid, noted = claim_owner.meta.uid, claim_owner.recorded.get(claim.name, "")
        made = sorted(
            c.metadata.name for c in self._claims_by_owner[uid] if c.is_for(uid, claim.name)
        )
        return noted if noted in made else next(iter(made), "")

    def _group_claim_names(self, claim_owner: ClaimOwner) -> dict[str, str]:
        """The claims that a pod has from its group, as far as they are made."""
        if claim_owner.group is None or not self._shares_claims:
            return {}
        names = _claim_names(claim_owner.group.status.resource_claim_statuses)
        shared = [
            claim.name
            for claim in claim_owner.claims
            if is_shared_with_group(claim, claim_owner.group)
        ]
        return {name: names.get(name, "") for name in shared}

    def _create_claims(
        self, claim_owner: ClaimOwner, missing: Iterable[PodResourceClaim]
    ) -> list[Action]:
        actions: list[Action] = []
        for claim in missing:
            template = self._templates.get(_template_key(claim_owner.meta, claim))
            if template is not None:
                name = self._free_claim_name(claim_owner, claim)
                actions.append(
                    Create(RESOURCE_CLAIM, _build_claim(claim_owner, claim, template, name))
                )
        return actions

    def _free_claim_name(self, claim_owner: ClaimOwner, claim: PodResourceClaim) -> str:
        """The name for a claim; another one if a stranger has it."""
        space, wanted = (
            claim_owner.meta.namespace,
            claim_name(claim_owner.meta.name, claim.name, claim_owner.meta.uid),
        )
        if Key(space, wanted) not in self._claims:
            return wanted
        return free_name(wanted, [key.name for key in self._claims if key.namespace == space])

    def _missing_template_events(
        self, owner: KindKey, claim_owner: ClaimOwner, missing: Iterable[PodResourceClaim]
    ) -> list[Action]:
        """Tell of the templates that are not there, of each once."""
        before = self._missing_templates.pop(owner, [])
        lost = [
            one for one in missing if _template_key(claim_owner.meta, one) not in self._templates
        ]
        if lost:
            self._missing_templates[owner] = [one.resource_claim_template_name for one in lost]
        new = [one for one in lost if one.resource_claim_template_name not in before]
        return [
            RecordEvent(
                _failure_event(
                    claim_owner.kind, claim_owner.meta, one.name, _template_not_found(one)
                )
            )
            for one in new
        ]

    def _record_failure(self, owner: KindKey, action: Action, error: ApiError) -> None:
        asker = self._pod_owner(owner.key) if owner.kind is POD else self._group_owner(owner.key)
        if asker is not None and isinstance(action, Create):
            meta = action.obj["metadata"]
            text = f"create ResourceClaim {meta['name']}: {error}"
            claim = meta["annotations"][POD_CLAIM_NAME]
            self._record(_failure_event(asker.kind, asker.meta, claim, text))

    def _pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        pod = new or old
        if pod is not None and _template_claims(pod):
            self._loop.queue.add(KindKey(POD, pod.metadata.key))

    def _group_changed(self, old: PodGroup | None, new: PodGroup | None) -> None:
        group = new or old
        if group is not None and _template_claims(group):
            self._loop.queue.add(KindKey(POD_GROUP, group.metadata.key))
        if new is not None:
            self._enqueue_dependents(KindKey(POD_GROUP, new.metadata.key))

    def _claim_changed(self, old: DeviceClaim | None, new: DeviceClaim | None) -> None:
        claim = new or old
        if claim is None or claim.owner is None:
            return
        for kind in (POD, POD_GROUP):
            if claim.owner.kind == kind.name:
                key = Key(claim.metadata.namespace, claim.owner.name)
                self._loop.queue.add(KindKey(kind, key))

    def _template_changed(
        self, old: ResourceClaimTemplate | None, new: ResourceClaimTemplate | None
    ) -> None:
        if new is not None:
            self._enqueue_dependents(KindKey(RESOURCE_CLAIM_TEMPLATE, new.metadata.key))

    def _enqueue_dependents(self, needed: KindKey) -> None:
        """Look at all who need a group or a template."""
        pods, groups = self._dependents
        for pod in pods[needed]:
            self._loop.queue.add(KindKey(POD, pod.metadata.key))
        for group in groups[needed]:
            self._loop.queue.add(KindKey(POD_GROUP, group.metadata.key))


def _template_claims(owner: Pod | PodGroup) -> tuple[PodResourceClaim, ...]:
    """The claims of templates that somebody asks for."""
    claims = owner.spec.resource_claims
    return tuple(c for c in claims if c.resource_claim_template_name) if claims else ()


def _template_key(meta: ObjectMeta, claim: PodResourceClaim) -> Key:
    return Key(meta.namespace, claim.resource_claim_template_name)


def _dependency_keys(owner: Pod | PodGroup) -> Sequence[KindKey]:
    """What somebody who asks for claims needs: the templates, and a pod its group."""
    meta, asked = owner.metadata, _template_claims(owner)
    if not asked:
        return ()
    links = [KindKey(RESOURCE_CLAIM_TEMPLATE, _template_key(meta, claim)) for claim in asked]
    group = owner.group if isinstance(owner, Pod) else None
    return [*links, KindKey(POD_GROUP, group)] if group else links


def _claim_names(statuses: Iterable[PodResourceClaimStatus]) -> dict[str, str]:
    return {status.name: status.resource_claim_name for status in statuses}


def _build_claim(
    claim_owner: ClaimOwner, claim: PodResourceClaim, template: ResourceClaimTemplate, name: str
) -> Object:
    """A claim as its template says, and whose it is."""
    meta, given = claim_owner.meta, template.spec.metadata
    kind = claim_owner.kind
    owner = OwnerReference(kind.api_version, kind.name, meta.name, meta.uid, True, True)
    return {
        "metadata": {
            "name": name,
            "generateName": claim_prefix(meta.name, claim.name),
            "namespace": meta.namespace,
            "labels": dict(given.labels),
            "annotations": {**given.annotations, POD_CLAIM_NAME: claim.name},
            "ownerReferences": [msgspec.to_builtins(owner)],
        },
        # A copy: whoever takes in what is sent may change it.
        "spec": deepcopy(template.spec.spec),
    }


def _status_patches(claim_owner: ClaimOwner, names: Mapping[str, str]) -> list[Action]:
    """The patch by which an owner notes its claims, unless it has noted them."""
    new = {
        name: made
        for name, made in names.items()
        if made and claim_owner.recorded.get(name) != made
    }
    if not new:
        return []
    statuses = [{"name": name, "resourceClaimName": made} for name, made in new.items()]
    change = {
        "metadata": {"uid": claim_owner.meta.uid},
        "status": {"resourceClaimStatuses": statuses},
    }
    return [Patch(claim_owner.kind, claim_owner.meta.key, change, "status", STRATEGIC_PATCH)]


def _template_not_found(claim: PodResourceClaim) -> str:
    name, kind = claim.resource_claim_template_name, RESOURCE_CLAIM_TEMPLATE
    return f'resource claim template "{name}": {kind.singular}.{kind.group} "{name}" not found'


def _failure_event(kind: Kind, about: ObjectMeta, claim: str, what: str) -> ObjectEvent:
    return ObjectEvent(
        kind, about, _FAILED_REASON, f"{kind.name}ResourceClaim {claim}: {what}", "Warning"
    )
