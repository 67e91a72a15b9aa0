"""The volume binder: binds claims to volumes, starts provisioning and releases volumes.

    claims, volumes, classes, pods ─▶ queue of claims and volumes ─▶ plans of `binding` ─▶ writes

A change of a volume wakes the claims of its class that wait, and the claim that it names. The
controller is disabled on a foreign API server, which has its own.
"""

from __future__ import annotations

from collections.abc import Callable

from phalanx.api.core import Pod
from phalanx.api.errors import NotFound
from phalanx.api.kinds import PERSISTENT_VOLUME, PERSISTENT_VOLUME_CLAIM, STORAGE_CLASS, Kind
from phalanx.api.meta import Key, ObjectMeta, Ref
from phalanx.api.storage import (
    BIND_COMPLETED,
    PersistentVolume,
    PersistentVolumeClaim,
    StorageClass,
    is_default_class,
)
from phalanx.client.client import Client
from phalanx.controllers.event_recorder import ObjectEvent
from phalanx.controllers.reconcile_loop import (
    Informers,
    ReconcileLoop,
    ReconcilePlan,
    treat_conflict_as_stale,
)
from phalanx.controllers.volumes.binding import (
    BindingNotice,
    BindingPlan,
    ClaimState,
    plan_claim,
    plan_volume,
)
from phalanx.controllers.volumes.protection import claim_keys_of

_WORKERS = 8
#: The resync period of the volume binder in Kubernetes.
_RESYNC_SECONDS = 15.0
_CLAIM, _VOLUME = PERSISTENT_VOLUME_CLAIM.name, PERSISTENT_VOLUME.name


class VolumeBinder:
    """Binds claims and volumes until cancelled; `record` receives the events."""

    def __init__(
        self,
        client: Client,
        informers: Informers,
        record: Callable[[ObjectEvent], None] = lambda event: None,
    ) -> None:
        self._client, self._record = client, record
        self._informers = (
            informers.of(PersistentVolumeClaim),
            informers.of(PersistentVolume),
            informers.of(StorageClass),
            informers.of(Pod),
        )
        self._claims, self._volumes = self._informers[0].cache, self._informers[1].cache
        self._classes, self._pods = self._informers[2].cache, self._informers[3].cache
        #: Volumes without a claim and claims that are not bound yet, by their class.
        self._free_volumes = self._volumes.index(
            lambda volume: [] if volume.spec.claim_ref else [volume.storage_class]
        )
        self._unbound_claims = self._claims.index(
            lambda claim: (
                [] if BIND_COMPLETED in claim.metadata.annotations else [claim.storage_class]
            )
        )
        self._volumes_by_claim = self._volumes.index(
            lambda volume: [volume.spec.claim_ref.key] if volume.spec.claim_ref else []
        )
        self._claims_by_volume = self._claims.index(lambda claim: [claim.spec.volume_name])
        self._pods_by_claim = self._pods.index(claim_keys_of)
        #: The last event about each claim and volume.
        self._notices: dict[Ref, BindingNotice] = {}
        self._loop: ReconcileLoop[Ref] = ReconcileLoop(
            client,
            self.reconcile,
            _WORKERS,
            confirm=self._confirm,
            on_error=treat_conflict_as_stale,
        )
        self._claims.subscribe(self._on_claim_change)
        self._volumes.subscribe(self._on_volume_change)
        self._classes.subscribe(self._on_class_change)
        self._pods.subscribe(self._on_pod_change)

    async def run(self) -> None:
        """Bind claims and volumes until cancelled."""
        # A volume that the cache does not show yet would seem lost.
        for informer in self._informers:
            await informer.synced.wait()
        await self._loop.run()

    def reconcile(self, ref: Ref) -> ReconcilePlan:
        """Plan: the next writes about a claim or a volume."""
        obj = self._find(ref)
        if obj is None:
            self._notices.pop(ref, None)
            return ReconcilePlan()
        plan = self._plan(obj)
        if plan.notice is None:
            self._notices.pop(ref, None)
        elif self._notices.get(ref) != plan.notice:
            self._notices[ref] = plan.notice
            kind = PERSISTENT_VOLUME_CLAIM if ref.kind == _CLAIM else PERSISTENT_VOLUME
            self._record(_event(kind, obj.metadata, plan.notice))
        return ReconcilePlan(plan.actions)

    def _find(self, ref: Ref) -> PersistentVolumeClaim | PersistentVolume | None:
        return self._claims.get(ref.key) if ref.kind == _CLAIM else self._volumes.get(ref.key)

    def _plan(self, obj: PersistentVolumeClaim | PersistentVolume) -> BindingPlan:
        if isinstance(obj, PersistentVolume):
            reference = obj.spec.claim_ref
            return plan_volume(obj, self._claims.get(reference.key) if reference else None)
        meta, name = obj.metadata, obj.storage_class
        candidates: list[PersistentVolume] = []
        if BIND_COMPLETED not in meta.annotations:
            candidates = [*self._volumes_by_claim[meta.key], *self._free_volumes[name]]
        pods = self._pods_by_claim[meta.key]
        return plan_claim(
            ClaimState(
                obj,
                self._volumes.get(Key("", obj.spec.volume_name)),
                candidates,
                storage_class=self._classes.get(Key("", name)),
                default_class=self._default_class(),
                has_unscheduled_pod=any(not pod.spec.node_name for pod in pods),
            )
        )

    def _default_class(self) -> str:
        """The newest default class, then the first by name; "" if there is none."""
        metas = [one.metadata for one in self._classes.values()]
        defaults = [meta for meta in metas if is_default_class(meta.annotations)]
        defaults.sort(key=lambda meta: meta.name)
        newest = max(defaults, key=lambda meta: meta.creation_timestamp, default=None)
        return newest.name if newest else ""

    async def _confirm(self, ref: Ref) -> bool:
        """Confirm with the API that the partner of a claim or volume, or its class, is gone."""
        obj = self._find(ref)
        if obj is None or not self._plan(obj).needs_confirmation:
            return True
        try:
            if isinstance(obj, PersistentVolume):
                reference = obj.spec.claim_ref
                assert reference is not None
                claim = await self._client.get(
                    PERSISTENT_VOLUME_CLAIM, reference.key, PersistentVolumeClaim
                )
                return claim.metadata.uid != reference.uid
            if BIND_COMPLETED not in obj.metadata.annotations:
                await self._client.get(STORAGE_CLASS, Key("", obj.storage_class))
                return False
            if not obj.spec.volume_name:
                return True
            key = Key("", obj.spec.volume_name)
            volume = await self._client.get(PERSISTENT_VOLUME, key, PersistentVolume)
            return volume.spec.claim_ref is not None and not volume.is_reserved_for(obj)
        except NotFound:
            return True

    def _on_claim_change(
        self, old: PersistentVolumeClaim | None, new: PersistentVolumeClaim | None
    ) -> None:
        claim = new or old
        if claim is None or (old and new and _binding_fields(old) == _binding_fields(new)):
            return
        key = claim.metadata.key
        self._loop.queue.add(Ref(_CLAIM, *key))
        for volume in self._volumes_by_claim[key]:
            self._loop.queue.add(Ref(_VOLUME, *volume.metadata.key))

    def _on_volume_change(self, old: PersistentVolume | None, new: PersistentVolume | None) -> None:
        volume = new or old
        if volume is None:
            return
        self._loop.queue.add(Ref(_VOLUME, *volume.metadata.key))
        claims = [*self._claims_by_volume[volume.metadata.name]]
        if new is not None and new.spec.claim_ref is None:
            claims += self._unbound_claims[new.storage_class]
        for version in (old, new):
            if version is not None and version.spec.claim_ref is not None:
                self._loop.queue.add(Ref(_CLAIM, *version.spec.claim_ref.key))
        for claim in claims:
            self._loop.queue.add(Ref(_CLAIM, *claim.metadata.key))

    def _on_class_change(self, old: StorageClass | None, new: StorageClass | None) -> None:
        if new is not None:
            for claim in (*self._unbound_claims[new.metadata.name], *self._unbound_claims[""]):
                self._loop.queue.add(Ref(_CLAIM, *claim.metadata.key))

    def _on_pod_change(self, old: Pod | None, new: Pod | None) -> None:
        if new is not None and (old is not None or not new.spec.volumes):
            return
        for pod in filter(None, (old, new)):
            for key in claim_keys_of(pod):
                # A pod changes only what the event about a waiting claim says. In Kubernetes the
                # next resync does that; a pod that is placed before then gets no such event.
                claim = self._claims.get(key)
                if claim is None or not claim.is_bound:
                    self._loop.queue.add_after(Ref(_CLAIM, *key), _RESYNC_SECONDS)


def _binding_fields(claim: PersistentVolumeClaim) -> tuple[object, ...]:
    """What the plans of a claim and its volume read: not the conditions, which change with pods."""
    meta, status = claim.metadata, claim.status
    is_deleted = bool(meta.deletion_timestamp)
    return meta.uid, meta.annotations, is_deleted, claim.spec, status.phase, status.capacity


def _event(kind: Kind, meta: ObjectMeta, notice: BindingNotice) -> ObjectEvent:
    return ObjectEvent(kind, meta, notice.reason, message=notice.message, type=notice.type)
