"""The history of a StatefulSet's pod template, as ControllerRevisions.

Each template has a revision; its name follows from the template, so that a restarted controller
finds it again. Going back to an earlier template gives its revision the highest number.

    templates so far    template now    revisions                action
    A                   A               A=1                      -
    A                   B               A=1, B=2                 create B
    A, B                A               B=2, A=3                 renumber A
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

import msgspec

from phalanx.api.apps import REVISION_HASH_LABEL, ControllerRevision, StatefulSet
from phalanx.api.kinds import CONTROLLER_REVISION, STATEFUL_SET
from phalanx.api.meta import ObjectMeta, OwnerReference
from phalanx.api.wire import Object, compact_json
from phalanx.builder.names import revision_name
from phalanx.controllers.reconcile_loop import Action, Create, Delete, Patch

#: Makes a strategic merge patch with the data replace the template, for `kubectl rollout undo`.
_REPLACE_DIRECTIVE = {"$patch": "replace"}
#: Collisions of names after which a StatefulSet waits for the next change.
_MAX_COLLISIONS = 100


class RevisionPlan(NamedTuple):
    """The revisions of existing and of updated pods, and what to do to the history."""

    current: ControllerRevision
    update: ControllerRevision
    collision_count: int
    actions: list[Action]


def controller_reference(stateful_set: StatefulSet) -> Object:
    """Return the owner reference of what a StatefulSet controls."""
    meta = stateful_set.metadata
    reference = OwnerReference(
        STATEFUL_SET.api_version,
        STATEFUL_SET.name,
        meta.name,
        uid=meta.uid,
        controller=True,
        block_owner_deletion=True,
    )
    built: Object = msgspec.to_builtins(reference)
    return built


def plan_revisions(
    stateful_set: StatefulSet,
    history: Sequence[ControllerRevision],
    is_taken: Callable[[str], bool],
) -> RevisionPlan:
    """Choose the revisions of a StatefulSet; `is_taken` says whether a name is another object's."""
    history = sorted(history, key=lambda one: (one.revision, one.metadata.name))
    data = _revision_data(stateful_set.spec.template)
    number = history[-1].revision + 1 if history else 1
    collisions, actions = stateful_set.status.collision_count, list[Action]()
    update = next((one for one in reversed(history) if one.data == data), None)
    if update is None:
        name = revision_name(stateful_set.metadata.name, _hash_input(data, collisions))
        last = collisions + _MAX_COLLISIONS
        while is_taken(name) and collisions < last:
            collisions += 1
            name = revision_name(stateful_set.metadata.name, _hash_input(data, collisions))
        update = ControllerRevision(ObjectMeta(name=name), data, number)
        actions.append(Create(CONTROLLER_REVISION, _build_revision(stateful_set, update)))
    elif update is not history[-1]:
        change = {"metadata": {"uid": update.metadata.uid}, "revision": number}
        actions.append(Patch(CONTROLLER_REVISION, update.metadata.key, change))
    named = stateful_set.status.current_revision
    current = next((one for one in history if one.metadata.name == named), update)
    return RevisionPlan(current, update, collisions, actions)


def plan_history_limit(
    history: Sequence[ControllerRevision], used_names: Collection[str], limit: int
) -> list[Action]:
    """Plan: delete the oldest revisions that no pod uses beyond the history limit."""
    unused = [one for one in history if one.metadata.name not in used_names]
    unused.sort(key=lambda one: (one.revision, one.metadata.name))
    return [
        Delete(CONTROLLER_REVISION, one.metadata.key, one.metadata.uid)
        for one in unused[: max(len(unused) - limit, 0)]
    ]


def revision_template(revision: ControllerRevision) -> Object:
    """Return the pod template of a revision."""
    template: dict[str, Any] = revision.data.get("spec", {}).get("template", {})
    return {key: value for key, value in template.items() if key not in _REPLACE_DIRECTIVE}


def _revision_data(template: Object) -> Object:
    return {"spec": {"template": {**template, **_REPLACE_DIRECTIVE}}}


def _hash_input(data: Object, collisions: int) -> str:
    return f"{compact_json(data).decode()}{collisions or ''}"


def _build_revision(stateful_set: StatefulSet, revision: ControllerRevision) -> Object:
    labels = (stateful_set.spec.template.get("metadata") or {}).get("labels") or {}
    name = revision.metadata.name
    return {
        "metadata": {
            "name": name,
            "namespace": stateful_set.metadata.namespace,
            "labels": {**labels, REVISION_HASH_LABEL: name.rpartition("-")[2]},
            "ownerReferences": [controller_reference(stateful_set)],
        },
        "data": revision.data,
        "revision": revision.revision,
    }
