"""The ReplicaSet of a template: its name, labels, annotations, revision and size.

    Deployment web, template T    ReplicaSet web-<hash of T>, label pod-template-hash: <hash of T>

The name follows from the template, so that a restarted controller finds it again. The annotations
record the revision, and the size of the Deployment at the last scaling: a later change of the size
is shared by the ReplicaSets in proportion.
"""

from __future__ import annotations

from copy import deepcopy
from typing import Any

from phalanx.api.apps import POD_TEMPLATE_HASH, Deployment, ReplicaSet
from phalanx.api.formats import resolve_int_or_percent
from phalanx.api.kinds import DEPLOYMENT, REPLICA_SET
from phalanx.api.meta import LAST_APPLIED_ANNOTATION
from phalanx.api.wire import Object, compact_json
from phalanx.builder.names import hash_text, replica_set_name
from phalanx.controllers.pod_ownership import controller_reference
from phalanx.controllers.reconcile_loop import Patch

REVISION = "deployment.kubernetes.io/revision"
REVISION_HISTORY = "deployment.kubernetes.io/revision-history"
DESIRED_REPLICAS = "deployment.kubernetes.io/desired-replicas"
MAX_REPLICAS = "deployment.kubernetes.io/max-replicas"
#: Annotations of a Deployment that its ReplicaSets do not copy.
_NOT_COPIED = frozenset(
    {
        LAST_APPLIED_ANNOTATION,
        REVISION,
        REVISION_HISTORY,
        DESIRED_REPLICAS,
        MAX_REPLICAS,
        "deprecated.deployment.rollback.to",
    }
)


def max_surge(deployment: Deployment) -> int:
    """Return how many pods there may be above the desired number."""
    spec = deployment.spec
    if spec.strategy.type != "RollingUpdate":
        return 0
    surge = spec.strategy.rolling_update.max_surge
    return resolve_int_or_percent(surge, spec.replicas, round_up=True)


def max_unavailable(deployment: Deployment) -> int:
    """Return how many of the desired pods may be unavailable; one if nothing else could move."""
    spec = deployment.spec
    if spec.strategy.type != "RollingUpdate" or not spec.replicas:
        return 0
    share = spec.strategy.rolling_update.max_unavailable
    found = resolve_int_or_percent(share, spec.replicas, round_up=False)
    if not found and not max_surge(deployment):
        found = 1
    return min(found, spec.replicas)


def revision_of(replica_set: ReplicaSet) -> int:
    """Return the revision of a ReplicaSet; 0 if it has none."""
    text = replica_set.metadata.annotations.get(REVISION, "")
    return int(text) if text.isdecimal() and text.isascii() and len(text) < 19 else 0


def has_template(replica_set: ReplicaSet, template: Object) -> bool:
    """Whether a ReplicaSet is of a template, apart from the label with its hash."""
    return _without_hash(replica_set.spec.template) == _without_hash(template)


def _without_hash(template: Object) -> Object:
    meta: dict[str, Any] = template.get("metadata") or {}
    labels = {
        key: value for key, value in (meta.get("labels") or {}).items() if key != POD_TEMPLATE_HASH
    }
    others = {key: value for key, value in meta.items() if key != "labels" and value}
    return {**template, "metadata": {**others, "labels": labels}}


def template_hash(deployment: Deployment, collisions: int) -> str:
    """Return the hash of a Deployment's template."""
    return hash_text(f"{compact_json(deployment.spec.template).decode()}{collisions or ''}")


def new_replica_set(deployment: Deployment, size: int, revision: int, *, collisions: int) -> Object:
    """Build the ReplicaSet of a Deployment's template."""
    meta, spec = deployment.metadata, deployment.spec
    suffix = template_hash(deployment, collisions)
    template: dict[str, Any] = deepcopy(spec.template)
    labels = {**((template.get("metadata") or {}).get("labels") or {}), POD_TEMPLATE_HASH: suffix}
    template["metadata"] = {**(template.get("metadata") or {}), "labels": labels}
    selector: dict[str, Any] = deepcopy(spec.selector or {})
    selector["matchLabels"] = {**(selector.get("matchLabels") or {}), POD_TEMPLATE_HASH: suffix}
    return {
        "metadata": {
            "name": replica_set_name(meta.name, suffix),
            "namespace": meta.namespace,
            "labels": labels,
            "annotations": {
                **copied_annotations(deployment),
                REVISION: str(revision),
                **size_annotations(deployment),
            },
            "ownerReferences": [controller_reference(DEPLOYMENT, meta)],
        },
        "spec": {
            "replicas": size,
            **({"minReadySeconds": spec.min_ready_seconds} if spec.min_ready_seconds else {}),
            "selector": selector,
            "template": template,
        },
    }


def copied_annotations(deployment: Deployment) -> dict[str, str]:
    """Return the annotations that the new ReplicaSet copies from its Deployment."""
    annotations = deployment.metadata.annotations
    return {key: value for key, value in annotations.items() if key not in _NOT_COPIED}


def size_annotations(deployment: Deployment) -> dict[str, str]:
    """Return the annotations with the size of a Deployment."""
    replicas = deployment.spec.replicas
    limit = replicas + max_surge(deployment)
    return {DESIRED_REPLICAS: str(replicas), MAX_REPLICAS: str(limit)}


def plan_renewal(deployment: Deployment, replica_set: ReplicaSet, revision: int) -> list[Patch]:
    """Plan: bring annotations, revision and minReadySeconds of the new ReplicaSet up to date."""
    old = replica_set.metadata.annotations
    new = copied_annotations(deployment)
    if revision_of(replica_set) < revision:
        new[REVISION] = str(revision)
        if REVISION in old:
            history = [part for part in old.get(REVISION_HISTORY, "").split(",") if part]
            new[REVISION_HISTORY] = ",".join([*history, old[REVISION]])
    changed = {key: value for key, value in new.items() if old.get(key) != value}
    seconds = deployment.spec.min_ready_seconds
    change: Object = {"metadata": {"annotations": changed}} if changed else {}
    if seconds != replica_set.spec.min_ready_seconds:
        change["spec"] = {"minReadySeconds": seconds}
    return [_exact_patch(replica_set, change)] if change else []


def plan_size(deployment: Deployment, replica_set: ReplicaSet, size: int) -> list[Patch]:
    """Plan: set the size of a ReplicaSet and the annotations with that of its Deployment."""
    wanted, old = size_annotations(deployment), replica_set.metadata.annotations
    if size == replica_set.spec.replicas and wanted.items() <= old.items():
        return []
    change: Object = {"metadata": {"annotations": wanted}, "spec": {"replicas": size}}
    return [_exact_patch(replica_set, change)]


def _exact_patch(replica_set: ReplicaSet, change: Object) -> Patch:
    # Conditional on the version: the size is computed from what the cache shows.
    meta = replica_set.metadata
    exact = {"uid": meta.uid, "resourceVersion": meta.resource_version}
    return Patch(
        REPLICA_SET, meta.key, {**change, "metadata": {**change.get("metadata", {}), **exact}}
    )


def share_sizes(deployment: Deployment, replica_sets: list[ReplicaSet]) -> dict[str, int]:
    """Return the new sizes, by uid, of active ReplicaSets that share a change of the Deployment.

    Each gets its proportion, the largest first (of equal ones the newest when growing, the oldest
    when shrinking); the largest gets what rounding leaves over.
    """
    total = sum(one.spec.replicas for one in replica_sets)
    allowed = deployment.spec.replicas + max_surge(deployment) if deployment.spec.replicas else 0
    to_add, added = allowed - total, 0
    by_age = sorted(replica_sets, key=creation_order, reverse=to_add > 0)
    ordered = sorted(by_age, key=lambda one: -one.spec.replicas)
    sizes: dict[str, int] = {}
    for one in ordered:
        share = _proportion(deployment, one, to_add, added=added) if to_add else 0
        sizes[one.metadata.uid] = one.spec.replicas + share
        added += share
    if ordered and to_add:
        first = ordered[0].metadata.uid
        sizes[first] = max(sizes[first] + to_add - added, 0)
    return sizes


def _proportion(deployment: Deployment, one: ReplicaSet, to_add: int, *, added: int) -> int:
    if not one.spec.replicas or to_add == added:
        return 0
    left, replicas = to_add - added, one.spec.replicas
    if not deployment.spec.replicas:
        fraction = -replicas
    else:
        text = one.metadata.annotations.get(MAX_REPLICAS, "")
        before = int(text) if text.isdecimal() else 0
        before = before or deployment.status.replicas
        if not before:
            return 0
        limit = deployment.spec.replicas + max_surge(deployment)
        # Rounded half up: a multiple of 1 / (2 * before), so that no float is needed.
        fraction = (2 * replicas * limit + before) // (2 * before) - replicas
    return min(fraction, left) if to_add > 0 else max(fraction, left)


def creation_order(replica_set: ReplicaSet) -> tuple[str, str]:
    """Sort key: the oldest first, then by name."""
    return replica_set.metadata.creation_timestamp, replica_set.metadata.name
