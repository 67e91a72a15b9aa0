"""Creates ResourceClaims from templates for pods and PodGroups, and records their names.

    Pods, PodGroups, templates ─▶ queue of owners ─▶ claims ─▶ names in the status of the owner

The name of a claim follows from its owner, so that no claim is created twice. The server records it
in the status of a pod when the claim is created; the controller does so for a PodGroup, and for a
pod whose status lacks it, once the cache shows the claim. A claim that a pod shares with its
PodGroup is created once, for the group. Allocating devices is up to the scheduler, deallocating
them to `reservations`. The controller never deletes a claim. It is disabled on a foreign API
server, which has its own.

    Pod p, claim gpu of template t      action
    no claim, template t exists         create ResourceClaim p-gpu-…
    claim exists, status without it     patch status.resourceClaimStatuses
    no claim, template t is missing     event FailedResourceClaimCreation; wait for the template
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from phalanx.api.core import Pod, PodResourceClaim, PodResourceClaimStatus
from phalanx.api.errors import ApiError
from phalanx.api.kinds import POD, POD_GROUP, RESOURCE_CLAIM, RESOURCE_CLAIM_TEMPLATE, Kind
from phalanx.api.meta import Key, ObjectMeta, OwnerReference, Ref
from phalanx.api.other_kinds import POD_CLAIM_NAME, DeviceClaim, ResourceClaimTemplate
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
from phalanx.controllers.resource_claims.reservations import is_pod_finished, is_shared_with_group

#: The claims of a large gang are created at once: every request waits for its commit.
_WORKERS = 32
#: Seconds after which the name of a new claim is written, if the server has not done so.
_STATUS_DELAY_SECONDS = 1.0
_FAILED_REASON = "FailedResourceClaimCreation"


class ClaimOwner(NamedTuple):
    """A Pod or PodGroup that asks for claims of templates; `group` is the PodGroup of a Pod.

    `recorded` are the names in its `status.resourceClaimStatuses`, by entry.
    """

    kind: Kind
    meta: ObjectMeta
    claims: tuple[PodResourceClaim, ...]
    recorded: Mapping[str, str]
    group: PodGroup | None = None


class ResourceClaimController:
    """Creates the claims of Pods and PodGroups until cancelled; `record` receives the events.

    Without `groups` the API server does not serve PodGroups. With `share_claims` Pods use the
    claims of their PodGroup.
    """

    def __init__(
        self,
        client: Client,
        informers: Informers,
        record: Callable[[ObjectEvent], None] = lambda event: None,
        *,
        groups: bool = True,
        share_claims: bool = True,
    ) -> None:
        self._record, self._has_groups, self._shares_claims = record, groups, share_claims
        self._pods = informers.of(Pod).cache
        self._groups = informers.of(PodGroup).cache if groups else ObjectCache[PodGroup]()
        self._claims = informers.of(DeviceClaim).cache
        self._templates = informers.of(ResourceClaimTemplate).cache
        self._claims_by_owner = self._claims.index(
            lambda claim: [claim.owner.uid] if claim.owner else []
        )
        self._dependent_pods = self._pods.index(_dependency_refs)
        self._dependent_groups = self._groups.index(_dependency_refs)
        #: The templates for which each owner waits.
        self._missing_templates: dict[Ref, list[str]] = {}
        self._loop: ReconcileLoop[Ref] = ReconcileLoop(
            client, self.reconcile, _WORKERS, record=record, on_error=self._record_failure
        )
        self._pods.subscribe(self._on_pod_change)
        self._groups.subscribe(self._on_group_change)
        self._claims.subscribe(self._on_claim_change)
        self._templates.subscribe(self._on_template_change)

    async def run(self) -> None:
        """Create claims until cancelled."""
        await self._loop.run()

    def reconcile(self, ref: Ref) -> ReconcilePlan:
        """Plan: create the missing claims of an owner and record the existing ones."""
        owner = self._find_owner(ref)
        if owner is None:
            self._missing_templates.pop(ref, None)
            return ReconcilePlan()
        unshared = [one for one in owner.claims if not is_shared_with_group(one, owner.group)]
        existing = {one.name: self._existing_claim_name(owner, one) for one in unshared}
        missing = [one for one in unshared if not existing[one.name]]
        names = {**existing, **self._group_claim_names(owner)}
        return ReconcilePlan(
            [
                *self._missing_template_events(ref, owner, missing),
                *self._create_claims(owner, missing),
                *_status_patches(owner, names),
            ]
        )

    def _find_owner(self, ref: Ref) -> ClaimOwner | None:
        """The owner of claims, if it needs any. A Pod waits until its PodGroup is known."""
        if ref.kind == POD_GROUP.name:
            group = self._groups.get(ref.key)
            if group is None or group.metadata.deletion_timestamp or not self._shares_claims:
                return None
            recorded = _claim_names(group.status.resource_claim_statuses)
            return ClaimOwner(POD_GROUP, group.metadata, _template_claims(group), recorded=recorded)
        pod = self._pods.get(ref.key)
        if pod is None or pod.metadata.deletion_timestamp or is_pod_finished(pod):
            return None
        group = self._groups.get(pod.group) if pod.group else None
        if pod.group and group is None and self._has_groups:
            return None
        recorded = _claim_names(pod.status.resource_claim_statuses)
        return ClaimOwner(POD, pod.metadata, _template_claims(pod), recorded=recorded, group=group)

    def _existing_claim_name(self, owner: ClaimOwner, claim: PodResourceClaim) -> str:
        """The name of the claim that was created for an entry; "" if there is none."""
        uid, recorded = owner.meta.uid, owner.recorded.get(claim.name, "")
        names = sorted(
            one.metadata.name for one in self._claims_by_owner[uid] if one.is_for(uid, claim.name)
        )
        return recorded if recorded in names else next(iter(names), "")

    def _group_claim_names(self, owner: ClaimOwner) -> dict[str, str]:
        """The claims that a Pod shares with its PodGroup, as far as they exist."""
        if owner.group is None or not self._shares_claims:
            return {}
        names = _claim_names(owner.group.status.resource_claim_statuses)
        return {
            claim.name: names.get(claim.name, "")
            for claim in owner.claims
            if is_shared_with_group(claim, owner.group)
        }

    def _create_claims(
        self, owner: ClaimOwner, missing: Iterable[PodResourceClaim]
    ) -> list[Action]:
        actions: list[Action] = []
        for claim in missing:
            template = self._templates.get(_template_key(owner.meta, claim))
            if template is not None:
                name = self._free_claim_name(owner, claim)
                new = _build_claim(owner, claim, template, name=name)
                actions.append(Create(RESOURCE_CLAIM, new))
        return actions

    def _free_claim_name(self, owner: ClaimOwner, claim: PodResourceClaim) -> str:
        """The name for a new claim; with a suffix if another object has the name."""
        namespace = owner.meta.namespace
        name = claim_name(owner.meta.name, claim.name, owner.meta.uid)
        if Key(namespace, name) not in self._claims:
            return name
        return free_name(name, [key.name for key in self._claims if key.namespace == namespace])

    def _missing_template_events(
        self, ref: Ref, owner: ClaimOwner, missing: Iterable[PodResourceClaim]
    ) -> list[Action]:
        """One event for each template that is missing and was not at the last reconcile."""
        before = self._missing_templates.pop(ref, [])
        without_template = [
            one for one in missing if _template_key(owner.meta, one) not in self._templates
        ]
        if without_template:
            self._missing_templates[ref] = [
                one.resource_claim_template_name for one in without_template
            ]
        kind, actions = RESOURCE_CLAIM_TEMPLATE, list[Action]()
        for one in without_template:
            name = one.resource_claim_template_name
            if name not in before:
                text = f'resource claim template "{name}": {kind.singular}.{kind.group} "{name}"'
                event = _failure_event(owner.kind, owner.meta, one.name, error=f"{text} not found")
                actions.append(RecordEvent(event))
        return actions

    def _record_failure(self, ref: Ref, action: Action, error: ApiError) -> None:
        owner = self._find_owner(ref)
        if owner is not None and isinstance(action, Create):
            meta = action.obj["metadata"]
            text = f"create ResourceClaim {meta['name']}: {error}"
            claim = meta["annotations"][POD_CLAIM_NAME]
            self._record(_failure_event(owner.kind, owner.meta, claim, error=text))

    def _on_pod_change(self, old: Pod | None, new: Pod | None) -> None:
        pod = new or old
        if pod is None or not _template_claims(pod):
            return
        is_changed = old is None or new is None or _claim_state(old) != _claim_state(new)
        if is_changed and not (old is not None and new is not None and _is_recorded(new)):
            self._loop.queue.add(Ref(POD.name, *pod.metadata.key))

    def _on_group_change(self, old: PodGroup | None, new: PodGroup | None) -> None:
        group = new or old
        if group is not None and _template_claims(group):
            self._loop.queue.add(Ref(POD_GROUP.name, *group.metadata.key))
        if new is not None and (
            old is None or old.status.resource_claim_statuses != new.status.resource_claim_statuses
        ):
            self._enqueue_dependents(Ref(POD_GROUP.name, *new.metadata.key))

    def _on_claim_change(self, old: DeviceClaim | None, new: DeviceClaim | None) -> None:
        claim = new or old
        if claim is None or claim.owner is None:
            return
        if old is not None and new is not None and old.owner == new.owner:
            return
        if claim.owner.kind in (POD.name, POD_GROUP.name):
            ref = Ref(claim.owner.kind, claim.metadata.namespace, claim.owner.name)
            if new is not None and ref.kind == POD.name:
                # The server has named it in the status of the pod; its event is on the way.
                self._loop.queue.add_after(ref, _STATUS_DELAY_SECONDS)
            else:
                self._loop.queue.add(ref)

    def _on_template_change(
        self, old: ResourceClaimTemplate | None, new: ResourceClaimTemplate | None
    ) -> None:
        if new is not None:
            self._enqueue_dependents(Ref(RESOURCE_CLAIM_TEMPLATE.name, *new.metadata.key))

    def _enqueue_dependents(self, dependency: Ref) -> None:
        """Enqueue the Pods and PodGroups that need a PodGroup or a template."""
        for pod in self._dependent_pods[dependency]:
            self._loop.queue.add(Ref(POD.name, *pod.metadata.key))
        for group in self._dependent_groups[dependency]:
            self._loop.queue.add(Ref(POD_GROUP.name, *group.metadata.key))


def _template_claims(owner: Pod | PodGroup) -> tuple[PodResourceClaim, ...]:
    """The entries of `spec.resourceClaims` that name a template."""
    claims = owner.spec.resource_claims
    return tuple(one for one in claims if one.resource_claim_template_name) if claims else ()


def _claim_state(pod: Pod) -> object:
    """What decides about the claims of a pod; its spec does not change."""
    is_finished = bool(pod.metadata.deletion_timestamp) or is_pod_finished(pod)
    return pod.metadata.uid, is_finished, pod.status.resource_claim_statuses


def _is_recorded(pod: Pod) -> bool:
    """Whether every claim is named in the status. If one is deleted, its own event says so."""
    return len(pod.status.resource_claim_statuses) >= len(_template_claims(pod))


def _template_key(meta: ObjectMeta, claim: PodResourceClaim) -> Key:
    return Key(meta.namespace, claim.resource_claim_template_name)


def _dependency_refs(owner: Pod | PodGroup) -> Sequence[Ref]:
    """What must exist before the claims of an owner: the templates, and the PodGroup of a Pod."""
    meta, claims = owner.metadata, _template_claims(owner)
    if not claims:
        return ()
    refs = [Ref(RESOURCE_CLAIM_TEMPLATE.name, *_template_key(meta, claim)) for claim in claims]
    group = owner.group if isinstance(owner, Pod) else None
    return [*refs, Ref(POD_GROUP.name, *group)] if group else refs


def _claim_names(statuses: Iterable[PodResourceClaimStatus]) -> dict[str, str]:
    return {status.name: status.resource_claim_name for status in statuses}


def _build_claim(
    owner: ClaimOwner, claim: PodResourceClaim, template: ResourceClaimTemplate, *, name: str
) -> Object:
    meta, template_meta = owner.meta, template.spec.metadata
    reference = OwnerReference(
        owner.kind.api_version,
        owner.kind.name,
        meta.name,
        uid=meta.uid,
        controller=True,
    )
    fields = msgspec.to_builtins(reference).items()
    return {
        "metadata": {
            "name": name,
            "generateName": claim_prefix(meta.name, claim.name),
            "namespace": meta.namespace,
            "labels": dict(template_meta.labels),
            "annotations": {**template_meta.annotations, POD_CLAIM_NAME: claim.name},
            "ownerReferences": [{one: value for one, value in fields if value is not None}],
        },
        # A copy: the receiver of a request may change its object.
        "spec": msgspec.msgpack.decode(msgspec.msgpack.encode(template.spec.spec)),
    }


def _status_patches(owner: ClaimOwner, names: Mapping[str, str]) -> list[Action]:
    """The patch that records the names of claims, or nothing if they are recorded."""
    statuses = [
        {"name": entry, "resourceClaimName": name}
        for entry, name in names.items()
        if name and owner.recorded.get(entry) != name
    ]
    if not statuses:
        return []
    change = {
        "metadata": {"uid": owner.meta.uid},
        "status": {"resourceClaimStatuses": statuses},
    }
    return [
        Patch(owner.kind, owner.meta.key, change, subresource="status", content=STRATEGIC_PATCH)
    ]


def _failure_event(kind: Kind, owner: ObjectMeta, claim: str, *, error: str) -> ObjectEvent:
    message = f"{kind.name}ResourceClaim {claim}: {error}"
    return ObjectEvent(kind, owner, _FAILED_REASON, message=message, type="Warning")
