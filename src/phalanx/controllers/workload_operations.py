"""Performs the operations of an `EnsurePlan` (`phalanx.builder.ensure`) with a client.

A controller with a reconcile loop turns operations into actions (`to_actions`) and plans again when
its caches show the effect. A program without caches calls `ensure_objects`, which observes what it
has created and plans again until the plan is ready. The module also has the indexes by which the
controllers find Workloads, groups, and the objects that are linked to the Workload of a parent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby

from phalanx.api.errors import ApiError, Forbidden, NotFound
from phalanx.api.kinds import COMPOSITE_POD_GROUP, KINDS, POD_GROUP
from phalanx.api.meta import Key, OwnerReference, PartialObjectMetadata
from phalanx.api.scheduling import Workload
from phalanx.api.wire import Object
from phalanx.builder.ensure_plan import (
    CreateObject,
    DeleteObject,
    EnsurePlan,
    Group,
    ObjectOperation,
    ObservedObjects,
    PatchObject,
)
from phalanx.builder.ownership import GROUP_TEMPLATE
from phalanx.client.client import Client
from phalanx.client.discovery import discover_resources
from phalanx.client.protocol import HasMetadata
from phalanx.controllers.pod_groups import inherit_preemption_policy
from phalanx.controllers.reconcile_loop import Action, Create, Delete, Patch, perform

#: Controllers above each other that are looked up, at most.
MAX_ANCESTORS = 8
#: PodGroups that are created at the same time.
_MAX_PARALLEL_GROUPS = 50


def to_action(operation: ObjectOperation, owner_uid: str) -> Action:
    """Return the action of a reconcile loop that performs an operation."""
    match operation:
        case CreateObject(kind, obj):
            return Create(kind, obj, owner_uid=owner_uid)
        case PatchObject(kind, meta, change, content):
            conditional = {**change, "metadata": {**change.get("metadata", {}), "uid": meta.uid}}
            return Patch(kind, meta.key, conditional, content=content)
        case DeleteObject(kind, meta):
            return Delete(kind, meta.key, meta.uid)


def to_actions(operations: Iterable[ObjectOperation], owner_uid: str) -> list[Action]:
    """Return the actions of a reconcile loop that perform operations, in order."""
    return [to_action(one, owner_uid) for one in operations]


async def perform_operations(
    client: Client,
    operations: Sequence[ObjectOperation],
    owner_uid: str,
    *,
    on_error: Callable[[ObjectOperation, ApiError], None] = lambda operation, error: None,
) -> None:
    """Perform operations in order, up to the first that fails.

    A new group inherits the preemption policy of its priority class. PodGroups that follow each
    other do not depend on each other, and several are created at the same time. `on_error` is
    called with an operation that fails; its error is raised.
    """
    created = [one for one in operations if isinstance(one, CreateObject)]
    groups = [one.obj["spec"] for one in created if one.kind in (POD_GROUP, COMPOSITE_POD_GROUP)]
    await inherit_preemption_policy(client, *groups)

    async def perform_one(operation: ObjectOperation) -> None:
        try:
            await perform(client, to_action(operation, owner_uid))
        except ApiError as error:
            on_error(operation, error)
            raise

    for are_together, found in groupby(operations, _creates_pod_group):
        size, run = _MAX_PARALLEL_GROUPS if are_together else 1, list(found)
        for begin in range(0, len(run), size):
            batch = map(perform_one, run[begin : begin + size])
            for result in await asyncio.gather(*batch, return_exceptions=True):
                if isinstance(result, BaseException):
                    raise result


def _creates_pod_group(operation: ObjectOperation) -> bool:
    return isinstance(operation, CreateObject) and operation.kind is POD_GROUP


async def find_ancestors(
    client: Client, namespace: str, owner: OwnerReference
) -> list[OwnerReference]:
    """Return the controllers above `owner`, nearest first.

    Ends at an object without a controller, and at one that is gone or may not be read. A link to
    the CompositePodGroup of a parent needs no such rights.
    """
    kinds = {(kind.api_version, kind.name): kind for kind in KINDS}
    ancestors: list[OwnerReference] = []
    current: OwnerReference | None = owner
    while current is not None and len(ancestors) < MAX_ANCESTORS:
        if (current.api_version, current.kind) not in kinds:
            found = (await discover_resources(client)).resources
            kinds |= {(api, one.kind.name): one.kind for one in found for api in one.api_versions}
        kind = kinds.get((current.api_version, current.kind))
        if kind is None:
            break
        key = Key(namespace if kind.namespaced else "", current.name)
        try:
            meta = (await client.get(kind, key, PartialObjectMetadata)).metadata
        except (NotFound, Forbidden):
            break
        current = meta.controller if meta.uid == current.uid else None
        if current is not None:
            ancestors.append(current)
    return ancestors


#: Namespace, and group, kind and name of the object to which a Workload refers.
TargetKey = tuple[str, str, str, str]


def target_of(namespace: str, owner: OwnerReference) -> TargetKey:
    """Return the target of the Workload of an owner."""
    return namespace, owner.api_version.rpartition("/")[0], owner.kind, owner.name


def target_keys(workload: Workload) -> list[TargetKey]:
    """Return the object to which a Workload refers, if it names one; for indexes."""
    target = workload.controller_identity
    return [(workload.metadata.namespace, *target)] if target else []


def workload_keys(group: Group) -> list[Key]:
    """Return the Workload to which a group refers, if it names one; for indexes."""
    ref = group.spec.workload_ref
    return [Key(group.metadata.namespace, ref.workload_name)] if ref else []


def linked_parent_keys(obj: HasMetadata) -> list[TargetKey]:
    """Return the controller of an object that is linked to the controller's Workload."""
    owner = obj.metadata.controller
    if owner is None or GROUP_TEMPLATE not in obj.metadata.annotations:
        return []
    return [target_of(obj.metadata.namespace, owner)]


class AncestorIndex:
    """Objects by the controllers above their own, whose Workload they may use."""

    def __init__(self) -> None:
        self._below: dict[TargetKey, set[Key]] = {}
        self._above: dict[Key, list[TargetKey]] = {}

    def remember(self, key: Key, above: Iterable[TargetKey]) -> None:
        """Replace the controllers above the controller of an object; none forgets it."""
        for target in self._above.pop(key, ()):
            self._below[target].discard(key)
            if not self._below[target]:
                del self._below[target]
        if targets := list(above):
            self._above[key] = targets
        for target in targets:
            self._below.setdefault(target, set()).add(key)

    def keys_below(self, target: TargetKey) -> list[Key]:
        """Return the objects below a controller, in order."""
        return sorted(self._below.get(target, ()))


async def ensure_objects(
    client: Client,
    owner: Object,
    observed: ObservedObjects,
    *,
    plan: Callable[[ObservedObjects], EnsurePlan],
) -> EnsurePlan:
    """Perform the operations of a plan, and plan again with what was created, until it is ready.

    Returns the last plan. It is not ready if objects must be deleted first: call again once they
    are gone.
    """
    uid, current = owner["metadata"]["uid"], plan(observed)
    while current.operations:
        creates = [one for one in current.operations if isinstance(one, CreateObject)]
        await perform_operations(client, current.operations, uid)
        for one in creates:
            meta = one.obj["metadata"]
            created = await client.get(one.kind, Key(meta["namespace"], meta["name"]))
            observed = observed.with_created(created)
        if not creates:
            break
        current = plan(observed)
    return current
