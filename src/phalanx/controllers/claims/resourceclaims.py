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

from phalanx.api.core import ClaimStatus, Pod, PodClaim
from phalanx.api.errors import ApiError
from phalanx.api.kinds import POD, POD_GROUP, RESOURCE_CLAIM, RESOURCE_CLAIM_TEMPLATE, Kind
from phalanx.api.meta import Key, Meta, OwnerReference
from phalanx.api.scheduling import PodGroup
from phalanx.api.wire import STRATEGIC_PATCH, Object
from phalanx.builder.names import claim_name, claim_prefix, free_name
from phalanx.client.cache import Cache
from phalanx.client.client import Client
from phalanx.controllers.actions import Action, Create, Patch, Plan, Record
from phalanx.controllers.claims.claims import CLAIM_NAME, Claim, ClaimTemplate, is_done, is_shared
from phalanx.controllers.loop import Informers, Loop
from phalanx.controllers.recorder import Note

_WORKERS = 8
_FAILED = "FailedResourceClaimCreation"


class Item(NamedTuple):
    """An object of some kind, by name."""

    kind: Kind
    key: Key


class Asker(NamedTuple):
    """A pod or a group that asks for claims of templates; `group` is the one that the pod is of."""

    kind: Kind
    meta: Meta
    asked: tuple[PodClaim, ...]
    noted: Mapping[str, str]
    group: PodGroup | None = None


class ResourceClaims:
    """Makes claims and notes them. Never deletes one.

    `groups`: whether there are any; `shares`: whether pods share the claims of theirs.
    """

    def __init__(
        self, client: Client, informers: Informers,
        record: Callable[[Note], None] = lambda note: None, *,
        groups: bool = True, shares: bool = True,
    ) -> None:  # fmt: skip
        self._record, self._has_groups, self._shares = record, groups, shares
        self._pods = informers.of(POD, Pod).cache
        self._groups = informers.of(POD_GROUP, PodGroup).cache if groups else Cache[PodGroup]()
        self._claims = informers.of(RESOURCE_CLAIM, Claim).cache
        self._templates = informers.of(RESOURCE_CLAIM_TEMPLATE, ClaimTemplate).cache
        self._owned = self._claims.index(lambda claim: [claim.owner.uid] if claim.owner else [])
        self._linked = self._pods.index(_links), self._groups.index(_links)
        #: The templates that each waits for.
        self._awaited: dict[Item, list[str]] = {}
        self._loop: Loop[Item] = Loop(
            client, self.reconcile, _WORKERS, record=record, refused=self._refused
        )
        self._pods.subscribe(self._pod_changed)
        self._groups.subscribe(self._group_changed)
        self._claims.subscribe(self._claim_changed)
        self._templates.subscribe(self._template_changed)

    async def run(self) -> None:
        """Make claims until cancelled."""
        await self._loop.run()

    def reconcile(self, owner: Item) -> Plan:
        """Make what is missing, and note what is there."""
        asker = self._pod(owner.key) if owner.kind is POD else self._group(owner.key)
        if asker is None:
            self._awaited.pop(owner, None)
            return Plan()
        own = [claim for claim in asker.asked if not is_shared(claim, asker.group)]
        found = {claim.name: self._made_for(asker, claim) for claim in own}
        missing = [claim for claim in own if not found[claim.name]]
        names = {**found, **self._shared_by(asker)}
        return Plan(
            [
                *self._waits(owner, asker, missing),
                *self._make(asker, missing),
                *_notes(asker, names),
            ]
        )

    def _pod(self, key: Key) -> Asker | None:
        """A pod that will need claims, once it is known which of them its group shares."""
        pod = self._pods.get(key)
        if pod is None or pod.metadata.deletion_timestamp or is_done(pod):
            return None
        group = self._groups.get(pod.group) if pod.group else None
        if pod.group and group is None and self._has_groups:
            return None
        noted = _names(pod.status.resource_claim_statuses)
        return Asker(POD, pod.metadata, _asked(pod), noted, group)

    def _group(self, key: Key) -> Asker | None:
        group = self._groups.get(key)
        if group is None or group.metadata.deletion_timestamp or not self._shares:
            return None
        noted = _names(group.status.resource_claim_statuses)
        return Asker(POD_GROUP, group.metadata, _asked(group), noted)

    def _made_for(self, asker: Asker, claim: PodClaim) -> str:
        """The name of the claim that was made for one; "" if none was."""
        uid, noted = asker.meta.uid, asker.noted.get(claim.name, "")
        made = sorted(c.metadata.name for c in self._owned[uid] if c.is_for(uid, claim.name))
        return noted if noted in made else next(iter(made), "")

    def _shared_by(self, asker: Asker) -> dict[str, str]:
        """The claims that a pod has from its group, as far as they are made."""
        if asker.group is None or not self._shares:
            return {}
        names = _names(asker.group.status.resource_claim_statuses)
        shared = [claim.name for claim in asker.asked if is_shared(claim, asker.group)]
        return {name: names.get(name, "") for name in shared}

    def _make(self, asker: Asker, missing: Iterable[PodClaim]) -> list[Action]:
        actions: list[Action] = []
        for claim in missing:
            template = self._templates.get(_template(asker.meta, claim))
            if template is not None:
                name = self._free(asker, claim)
                actions.append(Create(RESOURCE_CLAIM, _claim(asker, claim, template, name)))
        return actions

    def _free(self, asker: Asker, claim: PodClaim) -> str:
        """The name for a claim; another one if a stranger has it."""
        space, wanted = (
            asker.meta.namespace,
            claim_name(asker.meta.name, claim.name, asker.meta.uid),
        )
        if Key(space, wanted) not in self._claims:
            return wanted
        return free_name(wanted, [key.name for key in self._claims if key.namespace == space])

    def _waits(self, owner: Item, asker: Asker, missing: Iterable[PodClaim]) -> list[Action]:
        """Tell of the templates that are not there, of each once."""
        before = self._awaited.pop(owner, [])
        lost = [one for one in missing if _template(asker.meta, one) not in self._templates]
        if lost:
            self._awaited[owner] = [one.resource_claim_template_name for one in lost]
        new = [one for one in lost if one.resource_claim_template_name not in before]
        return [Record(_note(asker.kind, asker.meta, one.name, _not_found(one))) for one in new]

    def _refused(self, owner: Item, action: Action, error: ApiError) -> None:
        asker = self._pod(owner.key) if owner.kind is POD else self._group(owner.key)
        if asker is not None and isinstance(action, Create):
            meta = action.obj["metadata"]
            text = f"create ResourceClaim {meta['name']}: {error}"
            claim = meta["annotations"][CLAIM_NAME]
            self._record(_note(asker.kind, asker.meta, claim, text))

    def _pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        pod = new or old
        if pod is not None and _asked(pod):
            self._loop.queue.add(Item(POD, pod.metadata.key))

    def _group_changed(self, old: PodGroup | None, new: PodGroup | None) -> None:
        group = new or old
        if group is not None and _asked(group):
            self._loop.queue.add(Item(POD_GROUP, group.metadata.key))
        if new is not None:
            self._look_at(Item(POD_GROUP, new.metadata.key))

    def _claim_changed(self, old: Claim | None, new: Claim | None) -> None:
        claim = new or old
        if claim is None or claim.owner is None:
            return
        for kind in (POD, POD_GROUP):
            if claim.owner.kind == kind.name:
                key = Key(claim.metadata.namespace, claim.owner.name)
                self._loop.queue.add(Item(kind, key))

    def _template_changed(self, old: ClaimTemplate | None, new: ClaimTemplate | None) -> None:
        if new is not None:
            self._look_at(Item(RESOURCE_CLAIM_TEMPLATE, new.metadata.key))

    def _look_at(self, needed: Item) -> None:
        """Look at all who need a group or a template."""
        pods, groups = self._linked
        for pod in pods[needed]:
            self._loop.queue.add(Item(POD, pod.metadata.key))
        for group in groups[needed]:
            self._loop.queue.add(Item(POD_GROUP, group.metadata.key))


def _asked(owner: Pod | PodGroup) -> tuple[PodClaim, ...]:
    """The claims of templates that somebody asks for."""
    claims = owner.spec.resource_claims
    return tuple(c for c in claims if c.resource_claim_template_name) if claims else ()


def _template(meta: Meta, claim: PodClaim) -> Key:
    return Key(meta.namespace, claim.resource_claim_template_name)


def _links(owner: Pod | PodGroup) -> Sequence[Item]:
    """What somebody who asks for claims needs: the templates, and a pod its group."""
    meta, asked = owner.metadata, _asked(owner)
    if not asked:
        return ()
    links = [Item(RESOURCE_CLAIM_TEMPLATE, _template(meta, claim)) for claim in asked]
    group = owner.group if isinstance(owner, Pod) else None
    return [*links, Item(POD_GROUP, group)] if group else links


def _names(statuses: Iterable[ClaimStatus]) -> dict[str, str]:
    return {status.name: status.resource_claim_name for status in statuses}


def _claim(asker: Asker, claim: PodClaim, template: ClaimTemplate, name: str) -> Object:
    """A claim as its template says, and whose it is."""
    meta, given = asker.meta, template.spec.metadata
    kind = asker.kind
    owner = OwnerReference(kind.api_version, kind.name, meta.name, meta.uid, True, True)
    return {
        "metadata": {
            "name": name,
            "generateName": claim_prefix(meta.name, claim.name),
            "namespace": meta.namespace,
            "labels": dict(given.labels),
            "annotations": {**given.annotations, CLAIM_NAME: claim.name},
            "ownerReferences": [msgspec.to_builtins(owner)],
        },
        # A copy: whoever takes in what is sent may change it.
        "spec": deepcopy(template.spec.spec),
    }


def _notes(asker: Asker, names: Mapping[str, str]) -> list[Action]:
    """The patch by which an owner notes its claims, unless it has noted them."""
    new = {name: made for name, made in names.items() if made and asker.noted.get(name) != made}
    if not new:
        return []
    statuses = [{"name": name, "resourceClaimName": made} for name, made in new.items()]
    change = {"metadata": {"uid": asker.meta.uid}, "status": {"resourceClaimStatuses": statuses}}
    return [Patch(asker.kind, asker.meta.key, change, "status", STRATEGIC_PATCH)]


def _not_found(claim: PodClaim) -> str:
    name, kind = claim.resource_claim_template_name, RESOURCE_CLAIM_TEMPLATE
    return f'resource claim template "{name}": {kind.singular}.{kind.group} "{name}" not found'


def _note(kind: Kind, about: Meta, claim: str, what: str) -> Note:
    return Note(kind, about, _FAILED, f"{kind.name}ResourceClaim {claim}: {what}", "Warning")
