"""The history of a StatefulSet's or DaemonSet's pod template, as ControllerRevisions.

Each template has a revision; its name follows from the template, so that a restarted controller
finds it again. Going back to an earlier template gives its revision the highest number.

    templates so far    template now    revisions                action
    A                   A               A=1                      -
    A                   B               A=1, B=2                 create B
    A, B                A               B=2, A=3                 renumber A
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from phalanx.api.apps import REVISION_HASH_LABEL, ControllerRevision, StatefulSet
from phalanx.api.kinds import CONTROLLER_REVISION, STATEFUL_SET, Kind
from phalanx.api.meta import ObjectMeta
from phalanx.api.wire import Object, compact_json
from phalanx.builder.names import revision_name
from phalanx.controllers import pod_ownership
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


@dataclass(frozen=True, slots=True)
class RevisionOwner:
    """What a history belongs to; `hash_label` is the label of a revision with its hash.

    `current_name` names the revision of the pods that are not updated yet, if there is one.
    """

    kind: Kind
    metadata: ObjectMeta
    template: Object
    collision_count: int
    hash_label: str
    current_name: str = ""


def controller_reference(stateful_set: StatefulSet) -> Object:
    """Return the owner reference of what a StatefulSet controls."""
    return pod_ownership.controller_reference(STATEFUL_SET, stateful_set.metadata)


def plan_revisions(
    stateful_set: StatefulSet,
    history: Sequence[ControllerRevision],
    is_taken: Callable[[str], bool],
) -> RevisionPlan:
    """Choose the revisions of a StatefulSet; `is_taken` says whether a name is another object's."""
    owner = RevisionOwner(
        STATEFUL_SET,
        stateful_set.metadata,
        stateful_set.spec.template,
        collision_count=stateful_set.status.collision_count,
        hash_label=REVISION_HASH_LABEL,
        current_name=stateful_set.status.current_revision,
    )
    return plan_owner_revisions(owner, history, is_taken)


def plan_owner_revisions(
    owner: RevisionOwner,
    history: Sequence[ControllerRevision],
    is_taken: Callable[[str], bool],
) -> RevisionPlan:
    """Choose the revisions of an owner; `is_taken` says whether a name is another object's."""
    history = sorted(history, key=lambda one: (one.revision, one.metadata.name))
    data = _revision_data(owner.template)
    number = history[-1].revision + 1 if history else 1
    collisions, actions = owner.collision_count, list[Action]()
    update = next((one for one in reversed(history) if one.data == data), None)
    if update is None:
        name = revision_name(owner.metadata.name, _hash_input(data, collisions))
        last = collisions + _MAX_COLLISIONS
        while is_taken(name) and collisions < last:
            collisions += 1
            name = revision_name(owner.metadata.name, _hash_input(data, collisions))
        labels = (owner.template.get("metadata") or {}).get("labels") or {}
        labels = {**labels, owner.hash_label: name.rpartition("-")[2]}
        update = ControllerRevision(ObjectMeta(name=name, labels=labels), data, number)
        actions.append(Create(CONTROLLER_REVISION, _build_revision(owner, update)))
    elif update is not history[-1]:
        change = {"metadata": {"uid": update.metadata.uid}, "revision": number}
        actions.append(Patch(CONTROLLER_REVISION, update.metadata.key, change))
    named = owner.current_name
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


def _build_revision(owner: RevisionOwner, revision: ControllerRevision) -> Object:
    return {
        "metadata": {
            "name": revision.metadata.name,
            "namespace": owner.metadata.namespace,
            "labels": revision.metadata.labels,
            "ownerReferences": [pod_ownership.controller_reference(owner.kind, owner.metadata)],
        },
        "data": revision.data,
        "revision": revision.revision,
    }
