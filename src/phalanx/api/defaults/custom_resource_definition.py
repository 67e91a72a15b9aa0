"""Defaults and status of CustomResourceDefinitions: names, conversion, conditions.

`default_definition` runs on every definition that is written. `update_definition_status` derives
the status from the spec and from the names of other definitions; the server calls it in the request
that writes the definition, so the new kind is served as soon as the reply is sent.

    NamesAccepted   True     no other definition of the group has one of its names
    Established     True     the kind is served under the accepted names
    Terminating     True     the definition and its objects are being deleted
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from phalanx.api.wire import Object

CLEANUP_FINALIZER = "customresourcecleanup.apiextensions.k8s.io"
NAMES_ACCEPTED, ESTABLISHED, TERMINATING = "NamesAccepted", "Established", "Terminating"


@dataclass(frozen=True, slots=True)
class TakenNames:
    """Names in use in one group: of resources (with short names) and of kinds."""

    resources: frozenset[str] = frozenset()
    kinds: frozenset[str] = frozenset()


def default_definition(obj: Object) -> None:
    """Apply the defaults of a definition in place."""
    spec = obj["spec"]
    names = spec.setdefault("names", {})
    if kind := names.get("kind"):
        names.setdefault("singular", kind.lower())
        names.setdefault("listKind", f"{kind}List")
    conversion = spec.setdefault("conversion", {"strategy": "None"})
    webhook = conversion.get("webhook") or {}
    if service := (webhook.get("clientConfig") or {}).get("service"):
        service.setdefault("port", 443)


# ------------------------------------------------------------------------------------------- status


def update_definition_status(obj: Object, taken: TakenNames, now: str) -> None:
    """Derive the status of a definition from its spec and from the names that others use."""
    status = obj.setdefault("status", {})
    stored = status.setdefault("storedVersions", [])
    for version in obj["spec"].get("versions") or ():
        if version.get("storage") and version.get("name") not in stored:
            stored.append(version.get("name", ""))
    if not stored:
        del status["storedVersions"]
    reason, message = _accept_names(obj["spec"].get("names", {}), status, taken)
    is_accepted = not reason
    if is_accepted:
        reason, message = "NoConflicts", "no conflicts found"
    set_condition(obj, NAMES_ACCEPTED, is_accepted, reason=reason, message=message, now=now)
    if find_condition(obj, ESTABLISHED).get("status") == "True":
        return
    reason, message = "NotAccepted", "not all names are accepted"
    if is_accepted:
        reason, message = "InitialNamesAccepted", "the initial names have been accepted"
    set_condition(obj, ESTABLISHED, is_accepted, reason=reason, message=message, now=now)


def _accept_names(names: Object, status: Object, taken: TakenNames) -> tuple[str, str]:
    """Accept each name that is free; return reason and message of the last one that is not."""
    old_names, conflict = status.get("acceptedNames", {}), ("", "")
    accepted = dict(old_names)
    for field, used, reason in (
        ("plural", taken.resources, "PluralConflict"),
        ("singular", taken.resources, "SingularConflict"),
        ("shortNames", taken.resources, "ShortNamesConflict"),
        ("kind", taken.kinds, "KindConflict"),
        ("listKind", taken.kinds, "ListKindConflict"),
    ):
        in_use = [
            n
            for n in _as_list(names.get(field))
            if n in used and n not in _as_list(old_names.get(field))
        ]
        if in_use:
            conflict = reason, ", ".join(f'"{name}" is already in use' for name in in_use)
        else:
            _copy_field(field, names, accepted)
    _copy_field("categories", names, accepted)
    status["acceptedNames"] = accepted
    return conflict


def _as_list(names: Any) -> list[str]:
    return names if isinstance(names, list) else [names] if names else []


def _copy_field(field: str, source: Object, target: Object) -> None:
    if field in source:
        target[field] = source[field]
    else:
        target.pop(field, None)


def find_condition(obj: Object, kind: str) -> Object:
    """Return a condition of a definition; empty if there is none."""
    conditions = obj.get("status", {}).get("conditions", ())
    return next((one for one in conditions if one.get("type") == kind), {})


def set_condition(
    obj: Object, kind: str, is_true: bool, *, reason: str, message: str, now: str
) -> None:
    """Set a condition; its transition time changes only with its status."""
    new = {"type": kind, "status": str(is_true), "reason": reason, "message": message}
    old = find_condition(obj, kind)
    same = old.get("status") == new["status"]
    new["lastTransitionTime"] = old.get("lastTransitionTime", now) if same else now
    conditions = obj.setdefault("status", {}).setdefault("conditions", [])
    if old:
        conditions[conditions.index(old)] = new
    else:
        conditions.append(new)


def mark_terminating(obj: Object, now: str) -> None:
    """Set condition and finalizer of a definition whose objects are being deleted."""
    finalizers = obj["metadata"].setdefault("finalizers", [])
    if CLEANUP_FINALIZER not in finalizers:
        finalizers.append(CLEANUP_FINALIZER)
    message = "CustomResource deletion is in progress"
    reason = "InstanceDeletionInProgress"
    set_condition(obj, TERMINATING, is_true=True, reason=reason, message=message, now=now)
