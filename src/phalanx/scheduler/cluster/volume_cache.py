"""VolumeCache: observed volumes and claims, the pods that use them, and assumed bindings.

The part of the scheduler cache for volumes. As there, changes are collected and reach the
`VolumeState` of the snapshot only when the next snapshot is requested.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from msgspec.structs import replace

from phalanx.api.meta import Key
from phalanx.api.storage import (
    CSIDriver,
    CSINode,
    PersistentVolume,
    PersistentVolumeClaim,
    VolumeAttachment,
)
from phalanx.scheduler.cluster.cache_entries import AssumedClaims
from phalanx.scheduler.cluster.cluster_delta import ClusterDelta
from phalanx.scheduler.decision import Binding, ClusterEvent, VolumeAssignment
from phalanx.scheduler.volumes.demand import AssignedVolume
from phalanx.scheduler.volumes.state import VolumeObject, VolumeState, VolumeUser

#: It may concern every entity with claims.
VOLUMES_CHANGED = ClusterDelta(ClusterEvent.VOLUMES_CHANGED)


class VolumeCache:
    """The volumes and claims of the cluster as the scheduler knows them."""

    def __init__(self) -> None:
        self.state = VolumeState()
        self._objects: dict[tuple[type[Any], Key], VolumeObject] = {}
        #: The pods on nodes that use claims, as the state knows them.
        self._users: dict[Key, VolumeUser] = {}
        self._assumed: AssumedClaims[VolumeAssignment] = AssumedClaims()
        #: Changes that are not in the state yet.
        self._changed_objects: dict[tuple[type[Any], Key], None] = {}
        self._changed_users: dict[Key, VolumeUser | None] = {}
        self._changed_assumptions: dict[Key, VolumeAssignment | None] = {}
        self.changes = (self._changed_objects, self._changed_users, self._changed_assumptions)
        #: How often what a cycle reads has changed.
        self.version = 0

    def update_object(
        self, kind: type[VolumeObject], key: Key, new: VolumeObject | None
    ) -> ClusterDelta | None:
        """Add, replace or (None) remove an object. Returns a change if it may help any pod."""
        old = self._objects.get((kind, key))
        if new is None:
            self._objects.pop((kind, key), None)
        else:
            self._objects[kind, key] = new
        self._changed_objects[kind, key] = None
        if kind is PersistentVolumeClaim or not _may_help(kind, old, new):
            return None
        return VOLUMES_CHANGED

    def update_claim(self, key: Key, new: PersistentVolumeClaim | None) -> bool:
        """Add, replace or (None) remove a claim. Whether the pods that use it may fit now."""
        old = self.find_claim(key)
        self.update_object(PersistentVolumeClaim, key, new)
        is_replaced = bool(old and new and old.metadata.uid != new.metadata.uid)
        if new is None or new.is_bound or is_replaced:
            self._assumed.end_claim(key)
            self._changed_assumptions[key] = None
        return old is None or new is None or _scheduling_fields(old) != _scheduling_fields(new)

    def find_claim(self, key: Key) -> PersistentVolumeClaim | None:
        """Return a claim as it was observed last."""
        found = self._objects.get((PersistentVolumeClaim, key))
        return found if isinstance(found, PersistentVolumeClaim) else None

    def update_user(self, key: Key, user: VolumeUser | None) -> None:
        """Count the claims of a pod on a node, or (None) not any more."""
        self._changed_users[key] = user

    def assume(self, volumes: Iterable[VolumeAssignment]) -> None:
        """Count volumes as taken, and nodes as selected, before the API shows it."""
        for one in volumes:
            claim = self.find_claim(one.claim)
            if claim is not None and claim.metadata.uid == one.uid and not claim.is_bound:
                self._assumed.add(one.pod_uid, one.claim, one)
                self._changed_assumptions[one.claim] = one

    def forget(self, bindings: Iterable[Binding]) -> tuple[ClusterDelta, ...]:
        """Take back what was assumed for bindings that failed."""
        keys = [key for one in bindings for key in self._assumed.end_pod(one.uid)]
        self._changed_assumptions.update(dict.fromkeys(keys))
        return (VOLUMES_CHANGED,) if keys else ()

    def drop_pod(self, uid: str) -> None:
        """A pod is gone: nothing is assumed for it any more."""
        self._changed_assumptions.update(dict.fromkeys(self._assumed.end_pod(uid)))

    @property
    def has_assumed(self) -> bool:
        """Whether anything is assumed for a pod."""
        return bool(self._assumed)

    def assumed_volumes(self) -> list[VolumeAssignment]:
        """Return the assumptions that the API does not show yet, sorted by claim."""
        return [one for _, one in self._assumed.items()]

    def apply_changes(self) -> None:
        """Bring the state up to date."""
        state = self.state
        for kind, key in self._changed_objects:
            state.update(kind, key, self._objects.get((kind, key)))
        for pod, user in self._changed_users.items():
            if (old := self._users.pop(pod, None)) is not None:
                state.remove_user(old)
            if user is not None:
                self._users[pod] = user
                state.add_user(user)
        for key, assumed in self._changed_assumptions.items():
            state.forget(key)
            claim = state.claims.get(key)
            if assumed is not None and claim is not None and not claim.is_bound:
                state.assume(AssignedVolume(key, assumed.volume, assumed.node))
        self.version += 1
        for changed in self.changes:
            changed.clear()

    def check(self) -> Iterator[str]:
        """Yield a message for every assumption and user that should not be there."""
        self.apply_changes()
        for key, one in self.state.assumed.items():
            claim = self.find_claim(key)
            if claim is None or claim.is_bound:
                yield f"claim {key} is assumed to get {one}, although it is gone or bound"
            elif key not in self._assumed:
                yield f"claim {key} is assumed to get {one} for no pod"
        fresh = VolumeState()
        for user in self._users.values():
            fresh.add_user(user)
        for user in self._users.values():
            for claim_key in user.claims:
                if sorted(fresh.users_of(claim_key)) != sorted(self.state.users_of(claim_key)):
                    yield f"the users of claim {claim_key} are counted wrong"


#: Objects that only restrict pods; other ones help by coming or by a change.
_RESTRICTIONS = (CSINode, CSIDriver, VolumeAttachment)


def _may_help(kind: type[VolumeObject], old: VolumeObject | None, new: VolumeObject | None) -> bool:
    """Whether a change of an object other than a claim may let a node take a pod."""
    if kind is PersistentVolume:
        return _offers_more(old, new)
    if new is None:
        return kind in _RESTRICTIONS
    if old is None:
        # The CSINode of a new node may list a driver that pods need.
        return kind is not VolumeAttachment
    return replace(old, metadata=new.metadata) != new


def _offers_more(old: VolumeObject | None, new: VolumeObject | None) -> bool:
    """Whether a changed volume may serve a claim that it did not serve before."""
    if isinstance(old, PersistentVolume) and new is None:
        # A claim that it was reserved for may get another one.
        return old.spec.claim_ref is not None and old.status.phase != "Bound"
    if not isinstance(new, PersistentVolume):
        return False
    if not isinstance(old, PersistentVolume):
        return True
    is_freed = old.status.phase != new.status.phase and new.status.phase == "Available"
    reference, before = new.spec.claim_ref, old.spec
    if before.claim_ref is None and reference is not None and reference.uid:
        # It is taken, not reserved for a claim that has none.
        before = replace(before, claim_ref=reference)
    return is_freed or old.metadata.labels != new.metadata.labels or before != new.spec


def _scheduling_fields(claim: PersistentVolumeClaim) -> tuple[object, ...]:
    meta = claim.metadata
    return (
        meta.uid,
        meta.annotations,
        meta.deletion_timestamp,
        meta.owner_references,
        claim.spec,
        claim.status.phase,
    )
