"""Objects that a workload controls: owner references, adoption, release, pods of a template.

A pod belongs to a workload if the workload is its controller. A pod without a controller that the
selector matches is adopted; a pod that the selector no longer matches is released and keeps
running. A workload that is being deleted does neither.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from copy import deepcopy
from typing import Any

import msgspec

from phalanx.api.core import Pod
from phalanx.api.kinds import Kind
from phalanx.api.meta import (
    Key,
    ObjectMeta,
    find_condition,
    parse_timestamp,
)
from phalanx.api.selectors import selector_matches
from phalanx.api.wire import Object
from phalanx.client.protocol import HasMetadata
from phalanx.controllers.reconcile_loop import Patch


def controlling_uids(obj: HasMetadata) -> list[str]:
    """Return the uid of the controller of an object, if it has one; for indexes."""
    owner = obj.metadata.controller
    return [owner.uid] if owner else []


def namespaces(obj: HasMetadata) -> list[str]:
    """Return the namespace of an object; for indexes."""
    return [obj.metadata.namespace]


def orphan_namespaces(obj: HasMetadata) -> list[str]:
    """Return the namespace of an object without a controller; for indexes."""
    return [] if obj.metadata.controller else [obj.metadata.namespace]


def controller_reference(kind: Kind, meta: ObjectMeta) -> Object:
    """Build the owner reference by which an object controls another one."""
    return {
        "apiVersion": kind.api_version,
        "kind": kind.name,
        "name": meta.name,
        "uid": meta.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }


def plan_adoption(
    kind: Kind,
    owner: ObjectMeta,
    selector: dict[str, Any] | None,
    *,
    child: Kind,
    owned: Iterable[HasMetadata],
    orphans: Iterable[HasMetadata],
) -> Iterator[Patch]:
    """Plan: adopt matching orphans and release children that no longer match."""
    if owner.deletion_timestamp:
        return
    for one in owned:
        if not selector_matches(selector, one.metadata.labels):
            yield _owner_patch(child, one.metadata, _other_owners(one.metadata, owner.uid))
    for one in orphans:
        meta = one.metadata
        if not meta.deletion_timestamp and selector_matches(selector, meta.labels):
            owners = [*_other_owners(meta, owner.uid), controller_reference(kind, owner)]
            yield _owner_patch(child, meta, owners)


def _other_owners(meta: ObjectMeta, uid: str) -> list[Object]:
    return [msgspec.to_builtins(one) for one in meta.owner_references if one.uid != uid]


def _owner_patch(kind: Kind, meta: ObjectMeta, owners: list[Object]) -> Patch:
    # Conditional on the version: another controller may adopt the object at the same time.
    change = {
        "metadata": {
            "uid": meta.uid,
            "resourceVersion": meta.resource_version,
            "ownerReferences": owners,
        }
    }
    return Patch(kind, meta.key, change)


def build_template_pod(kind: Kind, owner: ObjectMeta, template: Object) -> Object:
    """Build a pod with a generated name from a pod template."""
    # A copy: the receiver of a request may change its object.
    template = deepcopy(template)
    meta = template.get("metadata") or {}
    return {
        "metadata": {
            "generateName": f"{owner.name}-",
            "namespace": owner.namespace,
            "labels": meta.get("labels") or {},
            "annotations": meta.get("annotations") or {},
            "finalizers": meta.get("finalizers") or [],
            "ownerReferences": [controller_reference(kind, owner)],
        },
        "spec": template.get("spec") or {},
    }


def is_active(pod: Pod) -> bool:
    """Whether a pod counts as a replica: it has not ended and is not being deleted."""
    return not pod.is_terminal and not pod.metadata.deletion_timestamp


def is_terminating(pod: Pod) -> bool:
    """Whether a pod is being deleted and has not ended."""
    return bool(pod.metadata.deletion_timestamp) and not pod.is_terminal


def seconds_until_available(pod: Pod, min_ready_seconds: int, now: float) -> float | None:
    """Return when a pod becomes available: 0 if it is, None if it is not ready."""
    ready = find_condition(pod.status.conditions, "Ready")
    if ready is None or ready.status != "True":
        return None
    if not min_ready_seconds:
        return 0.0
    since = parse_timestamp(ready.last_transition_time) if ready.last_transition_time else now
    return max(since + min_ready_seconds - now, 0.0)


def owner_key(meta: ObjectMeta, kind: Kind) -> Key | None:
    """Return the object of a kind that controls another object, if one does."""
    owner = meta.controller
    if owner is None or owner.kind != kind.name or owner.api_version != kind.api_version:
        return None
    return Key(meta.namespace, owner.name)
