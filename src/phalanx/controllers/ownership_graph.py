"""The ownership graph: which objects have a reference to which owner, over all kinds.

Stands between the caches that `resource_monitors.py` fills and `garbage_collector.py`, which acts.
Does no I/O. A reference is stored by the uid of the owner alone, so that a dependent whose owner is
of a kind that is not served yet is found as soon as it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import Enum
from typing import NamedTuple

from phalanx.api.kinds import NAMESPACE, Kind
from phalanx.api.meta import Key, ObjectMeta, OwnerReference
from phalanx.client.cache import ObjectCache
from phalanx.client.protocol import HasMetadata

#: The propagation policy that each finalizer stands for.
POLICY_BY_FINALIZER = {"orphan": "Orphan", "foregroundDeletion": "Foreground"}
ORPHAN, FOREGROUND = POLICY_BY_FINALIZER

OwnerReferences = tuple[OwnerReference, ...]


class ObjectKey(NamedTuple):
    """An object by kind and key."""

    kind: Kind
    key: Key

    def __str__(self) -> str:
        return f"{self.kind.name} {self.key}"


class OwnerKey(NamedTuple):
    """An owner by key and uid: a later object of the same name is another owner."""

    object_key: ObjectKey
    uid: str


class OwnerState(Enum):
    """The state of an owner, as far as its dependents are concerned."""

    PRESENT = "present"
    UNCACHED = "present by a read of the API, but not in a cache yet"
    ORPHANING = "deleted once its dependents have removed their references"
    FOREGROUND = "deleted once its dependents are deleted"
    ABSENT = "absent"

    @property
    def is_waiting(self) -> bool:
        """Whether the deletion of the owner waits for its dependents."""
        return self in (OwnerState.ORPHANING, OwnerState.FOREGROUND)


def deletion_state(meta: ObjectMeta) -> OwnerState:
    """Return the state of an owner that exists, by its deletion timestamp and finalizers."""
    if meta.deletion_timestamp and ORPHAN in meta.finalizers:
        return OwnerState.ORPHANING
    if meta.deletion_timestamp and FOREGROUND in meta.finalizers:
        return OwnerState.FOREGROUND
    return OwnerState.PRESENT


class OwnershipGraph:
    """The dependents of every owner, as the caches show them.

    Pod p with an owner reference to Job j: `dependents(j)` yields p, `resolve_owners(p)` is [j].
    `caches` has the cache of every watched kind; `kinds` maps apiVersion and kind of a reference to
    a kind. Both may change later.
    """

    def __init__(
        self,
        caches: Mapping[Kind, ObjectCache[HasMetadata]],
        kinds: Mapping[tuple[str, str], Kind],
    ) -> None:
        self._caches, self._kinds = caches, kinds
        #: Dependents by the uid of their owner.
        self._dependents: dict[str, dict[ObjectKey, None]] = {}
        #: Owners that are known to be absent, by uid, as long as there are references to them.
        self._absent: dict[str, set[OwnerKey]] = {}

    def update(self, item: ObjectKey, old: OwnerReferences, new: OwnerReferences) -> None:
        """Replace the owner references of an object; an object that is not there has none."""
        before, after = {owner.uid for owner in old}, {owner.uid for owner in new}
        for uid in before - after:
            dependents = self._dependents.get(uid, {})
            dependents.pop(item, None)
            if not dependents:
                self._dependents.pop(uid, None)
                self._absent.pop(uid, None)
        for uid in after - before:
            self._dependents.setdefault(uid, {})[item] = None

    def mark_absent(self, owner: OwnerKey) -> None:
        """Remember that an owner is absent: no object ever gets its uid again."""
        if owner.uid in self._dependents:
            self._absent.setdefault(owner.uid, set()).add(owner)

    def is_absent(self, owner: OwnerKey) -> bool:
        """Whether an owner is known to be absent."""
        return owner in self._absent.get(owner.uid, ())

    def cached_meta(self, owner: OwnerKey) -> ObjectMeta | None:
        """Return the metadata of an owner from the cache; None if it is not there."""
        cache = self._caches.get(owner.object_key.kind)
        found = None if cache is None else cache.get(owner.object_key.key)
        return found.metadata if found and found.metadata.uid == owner.uid else None

    def owner_kind(self, reference: OwnerReference) -> Kind | None:
        """Return the kind of a reference; None if no such kind was ever served."""
        return self._kinds.get((reference.api_version, reference.kind))

    def resolve_owner(self, reference: OwnerReference, namespace: str) -> OwnerKey | None:
        """Resolve an owner reference of an object in `namespace` ("": cluster-scoped).

        Any served version of the kind resolves. None if the kind is unknown, or if a cluster-scoped
        object names a namespaced owner.
        """
        kind = self.owner_kind(reference)
        if kind is None or (kind.namespaced and not namespace):
            return None
        owner_namespace = namespace if kind.namespaced else ""
        return OwnerKey(ObjectKey(kind, Key(owner_namespace, reference.name)), reference.uid)

    def resolve_owners(self, meta: ObjectMeta) -> list[OwnerKey]:
        """Resolve all owner references of an object, without those that cannot be resolved."""
        owners = [
            self.resolve_owner(reference, meta.namespace) for reference in meta.owner_references
        ]
        return [owner for owner in owners if owner is not None]

    def dependents(self, owner: OwnerKey) -> Iterator[tuple[ObjectKey, ObjectMeta]]:
        """Yield the objects that have a reference to an owner."""
        for dependent in tuple(self._dependents.get(owner.uid, ())):
            meta = self._caches[dependent.kind][dependent.key].metadata
            # Another name, kind or namespace with the same uid is not a reference to this owner.
            if owner in self.resolve_owners(meta):
                yield dependent, meta

    def is_blocked(self, owner: OwnerKey) -> bool:
        """Whether a dependent blocks the foreground deletion of an owner.

        Owners in foreground deletion that block each other in a cycle would wait for ever: an owner
        that is blocked by nothing but such a cycle of its own is not blocked.
        """
        reached: set[OwnerKey] = set()
        remaining = [owner]
        while remaining:
            for blocker, meta in self._blockers(remaining.pop()):
                if deletion_state(meta) is not OwnerState.FOREGROUND:
                    return True
                if blocker not in reached:
                    reached.add(blocker)
                    remaining.append(blocker)
        return bool(reached) and owner not in reached

    def _blockers(self, owner: OwnerKey) -> Iterator[tuple[OwnerKey, ObjectMeta]]:
        for dependent, meta in self.dependents(owner):
            if any(o.uid == owner.uid and o.block_owner_deletion for o in meta.owner_references):
                yield OwnerKey(dependent, meta.uid), meta

    def is_in_other_namespace(self, owner: OwnerKey) -> bool:
        """Whether an owner that is absent from its namespace is in another one."""
        kind, name = owner.object_key.kind, owner.object_key.key.name
        return kind.namespaced and any(
            self.cached_meta(OwnerKey(ObjectKey(kind, Key(namespace.name, name)), owner.uid))
            is not None
            for namespace in self._caches.get(NAMESPACE, ())
        )
