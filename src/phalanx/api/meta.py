"""Metadata that every object has: Key, Ref, ObjectMeta, owner references, conditions, timestamps.

The structs decode only the fields that our components read; they are never written back.
"""

from __future__ import annotations

from datetime import UTC, datetime
from functools import lru_cache
from itertools import repeat
from typing import NamedTuple

from msgspec import Struct, field
from msgspec.structs import force_setattr

from phalanx.api.wire import Object

#: The annotation in which kubectl keeps the whole manifest, secrets included.
LAST_APPLIED_ANNOTATION = "kubectl.kubernetes.io/last-applied-configuration"


class Key(NamedTuple):
    """An object of a known kind: its namespace ("" for cluster-scoped kinds) and its name."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}" if self.namespace else self.name


#: `new_key(Key, (namespace, name))` is `Key(namespace, name)` in half the time, for hot paths.
new_key = tuple.__new__


class Ref(NamedTuple):
    """One object by kind, namespace ("" for none) and name. Sorts by kind, then by key.

    A Key is enough where the kind is known. A Ref also tells a Pod, a PodGroup and a
    CompositePodGroup of the same name apart: `str(Ref("PodGroup", "default", "train"))` is
    `PodGroup default/train`.
    """

    kind: str
    namespace: str
    name: str

    @property
    def key(self) -> Key:
        """Namespace and name."""
        return new_key(Key, self[1:])

    def __str__(self) -> str:
        return f"{self.kind} {self.key}"


POD_KIND = "Pod"
POD_GROUP_KIND = "PodGroup"
COMPOSITE_POD_GROUP_KIND = "CompositePodGroup"


def pod_ref(key: Key) -> Ref:
    """Refer to a Pod."""
    return new_key(Ref, (POD_KIND, *key))


def pod_group_ref(key: Key) -> Ref:
    """Refer to a PodGroup."""
    return new_key(Ref, (POD_GROUP_KIND, *key))


def composite_pod_group_ref(key: Key) -> Ref:
    """Refer to a CompositePodGroup."""
    return new_key(Ref, (COMPOSITE_POD_GROUP_KIND, *key))


class OwnerReference(Struct, frozen=True, rename="camel"):
    """One entry of `ownerReferences`."""

    api_version: str = ""
    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool | None = None
    block_owner_deletion: bool | None = None


#: Returns one empty dict for all objects, which never change theirs; `{}` would be one for each.
_no_entries = repeat(dict[str, str]()).__next__


class ObjectMeta(Struct, frozen=True, rename="camel", gc=False):
    """The part of metadata that our components read."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    creation_timestamp: str = ""
    deletion_timestamp: str = ""
    deletion_grace_period_seconds: int = 0
    labels: dict[str, str] = field(default_factory=_no_entries)
    annotations: dict[str, str] = field(default_factory=_no_entries)
    owner_references: tuple[OwnerReference, ...] = ()
    finalizers: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        # No component reads it, and it must not get into decision logs.
        if LAST_APPLIED_ANNOTATION in self.annotations:
            others = {k: v for k, v in self.annotations.items() if k != LAST_APPLIED_ANNOTATION}
            force_setattr(self, "annotations", others)

    @property
    def key(self) -> Key:
        """Namespace and name."""
        return new_key(Key, (self.namespace, self.name))

    @property
    def controller(self) -> OwnerReference | None:
        """The owner reference with `controller: true`, if there is one."""
        for owner in self.owner_references:
            if owner.controller:
                return owner
        return None

    def is_controlled_by(self, uid: str) -> bool:
        """Whether the owner with this uid controls the object."""
        controller = self.controller
        return controller is not None and controller.uid == uid


def controller_of(obj: Object) -> Object | None:
    """Return the owner reference with `controller: true` of an object, if there is one."""
    owners = (obj.get("metadata") or {}).get("ownerReferences") or ()
    return next((owner for owner in owners if owner.get("controller")), None)


class PartialObjectMetadata(Struct, frozen=True):
    """An object of any kind, decoded to its metadata."""

    metadata: ObjectMeta


class Condition(Struct, frozen=True, rename="camel"):
    """One condition of an object."""

    type: str
    status: str = "Unknown"
    reason: str = ""
    message: str = ""
    last_transition_time: str | None = None
    observed_generation: int = 0


def find_condition(conditions: tuple[Condition, ...], kind: str) -> Condition | None:
    """Return the condition of a type, if there is one."""
    return next((c for c in conditions if c.type == kind), None)


def timestamp(now: float) -> str:
    """Format a time in the API form: whole seconds, UTC."""
    return _format_second(int(now))


@lru_cache(maxsize=64)
def _format_second(epoch_second: int) -> str:
    return datetime.fromtimestamp(epoch_second, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def micro_timestamp(now: float) -> str:
    """Format a time with microseconds, as Leases and events.k8s.io Events have it."""
    return datetime.fromtimestamp(now, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def parse_timestamp(text: str) -> float:
    """Parse a timestamp of either form to seconds since the epoch."""
    return datetime.fromisoformat(text).timestamp()
