"""What a CustomResourceDefinition gets without saying it: names, a conversion, its status.

`default_definition` runs on every definition that is read. `establish` gives it the status that
follows from its spec and from the names that others have taken; the server calls it in the very
request that writes the definition, so that what it defines is served with the reply.

    NamesAccepted   True     no other definition of the group has one of its names
    Established     True     from then on it is served under the names that were accepted
    Terminating     True     it is being deleted, and its objects before it
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from phalanx.api.conform import Malformed, conform
from phalanx.api.validation.structural_schema import JSON_SCHEMA_PROPS, NESTED_SCHEMA_KEYS
from phalanx.api.wire import Object

CLEANUP_FINALIZER = "customresourcecleanup.apiextensions.k8s.io"
NAMES_ACCEPTED, ESTABLISHED, TERMINATING = "NamesAccepted", "Established", "Terminating"


@dataclass(frozen=True, slots=True)
class TakenNames:
    """Names that are taken in a group: of resources (short ones too) and of kinds."""

    resources: frozenset[str] = frozenset()
    kinds: frozenset[str] = frozenset()


def default_definition(obj: Object) -> None:
    """Add in place what nobody said."""
    spec = obj["spec"]
    names = spec.setdefault("names", {})
    if kind := names.get("kind"):
        names.setdefault("singular", kind.lower())
        names.setdefault("listKind", f"{kind}List")
    spec.setdefault("conversion", {"strategy": "None"})
    for version in spec.get("versions") or ():
        schema = (version.get("schema") or {}).get("openAPIV3Schema")
        if schema is not None:
            _conform_nested_schemas(schema)


def _conform_nested_schemas(schema: Object) -> None:
    """Conform what stands in open places too. What cannot be is left to the rules to tell of."""
    for key in NESTED_SCHEMA_KEYS:
        inner = schema.get(key)
        if isinstance(inner, dict):
            try:
                conform(JSON_SCHEMA_PROPS, inner)
            except Malformed:
                continue
            _conform_nested_schemas(inner)
    for one in schema.get("properties", {}).values():
        _conform_nested_schemas(one)
    for one in _combined_schemas(schema):
        _conform_nested_schemas(one)


def _combined_schemas(schema: Object) -> list[Object]:
    listed = [one for key in ("allOf", "anyOf", "oneOf") for one in schema.get(key, ())]
    return [*listed, schema["not"]] if "not" in schema else listed


# ------------------------------------------------------------------------------------------- status


def update_definition_status(obj: Object, taken: TakenNames, now: str) -> None:
    """Bring the status of a definition up to its spec."""
    status = obj.setdefault("status", {})
    stored = status.setdefault("storedVersions", [])
    for version in obj["spec"].get("versions") or ():
        if version.get("storage") and version.get("name") not in stored:
            stored.append(version.get("name", ""))
    if not stored:
        del status["storedVersions"]
    reason, message = _accept_names(obj["spec"].get("names", {}), status, taken)
    fits = not reason
    told = (reason, message) if reason else ("NoConflicts", "no conflicts found")
    set_condition(obj, NAMES_ACCEPTED, fits, *told, now)
    if find_condition(obj, ESTABLISHED).get("status") == "True":
        return
    told = ("InitialNamesAccepted", "the initial names have been accepted")
    if not fits:
        told = ("NotAccepted", "not all names are accepted")
    set_condition(obj, ESTABLISHED, fits, *told, now)


def _accept_names(wanted: Object, status: Object, taken: TakenNames) -> tuple[str, str]:
    """Take over each name that is free; the reason and the text of the last that is not."""
    had, trouble = status.get("acceptedNames", {}), ("", "")
    accepted = dict(had)
    for field, used, reason in (
        ("plural", taken.resources, "PluralConflict"),
        ("singular", taken.resources, "SingularConflict"),
        ("shortNames", taken.resources, "ShortNamesConflict"),
        ("kind", taken.kinds, "KindConflict"),
        ("listKind", taken.kinds, "ListKindConflict"),
    ):
        in_use = [
            n
            for n in _as_list(wanted.get(field))
            if n in used and n not in _as_list(had.get(field))
        ]
        if in_use:
            trouble = reason, ", ".join(f'"{name}" is already in use' for name in in_use)
        else:
            _copy_field(field, wanted, accepted)
    _copy_field("categories", wanted, accepted)
    status["acceptedNames"] = accepted
    return trouble


def _as_list(names: Any) -> list[str]:
    return names if isinstance(names, list) else [names] if names else []


def _copy_field(field: str, source: Object, target: Object) -> None:
    if field in source:
        target[field] = source[field]
    else:
        target.pop(field, None)


def find_condition(obj: Object, kind: str) -> Object:
    """A condition of a definition; empty if there is none."""
    conditions = obj.get("status", {}).get("conditions", ())
    return next((one for one in conditions if one.get("type") == kind), {})


def set_condition(
    obj: Object, kind: str, is_true: bool, reason: str, message: str, now: str
) -> None:
    """State a condition. The time is that of the last change from true to false or back."""
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
    """Note in a definition that is being deleted that its objects go before it."""
    finalizers = obj["metadata"].setdefault("finalizers", [])
    if CLEANUP_FINALIZER not in finalizers:
        finalizers.append(CLEANUP_FINALIZER)
    message = "CustomResource deletion is in progress"
    set_condition(obj, TERMINATING, True, "InstanceDeletionInProgress", message, now)
