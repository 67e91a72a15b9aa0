"""The pod and the claims of one ordinal of a StatefulSet, as they are created.

    StatefulSet web, ordinal 2, claim template data      Pod web-2, PersistentVolumeClaim data-web-2

A claim is kept when its pod goes. The retention policy decides about its owner: the StatefulSet
(whenDeleted: Delete), the pod that is scaled away (whenScaled: Delete), or none (Retain). The
garbage collector deletes a claim whose owner is gone.
"""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy

import msgspec

from phalanx.api.apps import POD_INDEX_LABEL, POD_NAME_LABEL, REVISION_LABEL, StatefulSet
from phalanx.api.core import Pod
from phalanx.api.kinds import PERSISTENT_VOLUME_CLAIM, POD
from phalanx.api.meta import OwnerReference
from phalanx.api.storage import PersistentVolumeClaim
from phalanx.api.wire import Object
from phalanx.controllers.reconcile_loop import Action, Patch
from phalanx.controllers.stateful_sets.revisions import controller_reference


def pod_name(stateful_set: StatefulSet, ordinal: int) -> str:
    """Return the name of the pod of an ordinal."""
    return f"{stateful_set.metadata.name}-{ordinal}"


def find_ordinal(name: str) -> tuple[str, int] | None:
    """Return the StatefulSet's name and the ordinal in the name of a pod; None if it has none."""
    parent, _, number = name.rpartition("-")
    if not parent or not number.isdecimal() or not number.isascii() or len(number) > 9:
        return None
    return (parent, int(number)) if str(int(number)) == number else None


def claim_names(stateful_set: StatefulSet, ordinal: int) -> Iterator[tuple[str, Object]]:
    """Yield the name of each claim of an ordinal, with its template."""
    for template in stateful_set.spec.volume_claim_templates:
        name = template["metadata"].get("name", "")
        yield f"{name}-{pod_name(stateful_set, ordinal)}", template


def build_pod(
    stateful_set: StatefulSet, template: Object, ordinal: int, *, revision: str
) -> Object:
    """Build the pod of an ordinal from the template of a revision."""
    # A copy: the receiver of a request may change its object.
    meta, spec = deepcopy(template.get("metadata") or {}), deepcopy(template.get("spec") or {})
    name = pod_name(stateful_set, ordinal)
    labels = {
        **(meta.get("labels") or {}),
        REVISION_LABEL: revision,
        POD_NAME_LABEL: name,
        POD_INDEX_LABEL: str(ordinal),
    }
    spec["hostname"] = name
    if stateful_set.spec.service_name:
        spec["subdomain"] = stateful_set.spec.service_name
    claimed = {
        one["metadata"].get("name", ""): {"claimName": claim}
        for claim, one in claim_names(stateful_set, ordinal)
    }
    others = [volume for volume in spec.get("volumes") or () if volume.get("name") not in claimed]
    volumes = [{"name": name, "persistentVolumeClaim": one} for name, one in claimed.items()]
    if volumes or others:
        spec["volumes"] = [*volumes, *others]
    return {
        "metadata": {
            "name": name,
            "namespace": stateful_set.metadata.namespace,
            "labels": labels,
            "annotations": meta.get("annotations") or {},
            "finalizers": meta.get("finalizers") or [],
            "ownerReferences": [controller_reference(stateful_set)],
        },
        "spec": spec,
    }


def build_claim(stateful_set: StatefulSet, name: str, template: Object) -> Object:
    """Build a claim of an ordinal from its template."""
    meta, selector = template["metadata"], stateful_set.spec.selector or {}
    policy = stateful_set.spec.persistent_volume_claim_retention_policy
    owners = [controller_reference(stateful_set)] if policy.when_deleted == "Delete" else []
    return {
        "metadata": {
            "name": name,
            "namespace": stateful_set.metadata.namespace,
            "labels": {**(meta.get("labels") or {}), **(selector.get("matchLabels") or {})},
            "annotations": dict(meta.get("annotations") or {}),
            "ownerReferences": owners,
        },
        "spec": deepcopy(template.get("spec") or {}),
    }


def plan_claim_owner(
    stateful_set: StatefulSet, pod: Pod, claim: PersistentVolumeClaim, *, is_condemned: bool
) -> list[Action]:
    """Plan: make the StatefulSet, the pod or neither the owner of a claim, by its policy."""
    meta, policy = claim.metadata, stateful_set.spec.persistent_volume_claim_retention_policy
    ours = (stateful_set.metadata.uid, pod.metadata.uid)
    others = [
        one for one in meta.owner_references if one.uid not in ours and not _is_former(one, pod)
    ]
    wanted: list[Object] = [msgspec.to_builtins(one) for one in others]
    if not any(one.controller for one in others):
        if is_condemned and policy.when_scaled == "Delete":
            wanted.append(_pod_reference(pod))
        elif policy.when_deleted == "Delete":
            wanted.append(controller_reference(stateful_set))
    if wanted == [msgspec.to_builtins(one) for one in meta.owner_references]:
        return []
    # Conditional on the version: another writer may change the list too.
    change = {
        "metadata": {
            "uid": meta.uid,
            "resourceVersion": meta.resource_version,
            "ownerReferences": wanted,
        }
    }
    return [Patch(PERSISTENT_VOLUME_CLAIM, meta.key, change)]


def _is_former(owner: OwnerReference, pod: Pod) -> bool:
    """Whether an owner is a former pod of the same name."""
    return (owner.kind, owner.name) == (POD.name, pod.metadata.name)


def _pod_reference(pod: Pod) -> Object:
    built: Object = msgspec.to_builtins(
        OwnerReference(
            POD.api_version,
            POD.name,
            pod.metadata.name,
            uid=pod.metadata.uid,
            controller=True,
            block_owner_deletion=True,
        )
    )
    return built
