"""What a schema asks of values: from an openAPIV3Schema to one function that gives causes.

A check takes a value, what stood there before and where that is. Made once per schema, part by
part in the order of `_PARTS`; each part looks only at values that it is about, so that a value of
a wrong type is told of once. What has not changed is not checked again: a schema that became
stricter does not make an object that nobody touches unchangeable.

Checks never change what they look at. Texts are those that clients of the API know.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import orjson

from phalanx.api.causes import Causes, duplicate, invalid, required, too_many
from phalanx.api.errors import Cause
from phalanx.api.rules.checks import CREATED, again
from phalanx.api.rules.valuechecks import (
    Check,
    Part,
    enum_check,
    identity,
    mistyped,
    number_check,
    refused,
    rows,
    text_check,
)
from phalanx.api.wire import Object

INT_OR_STRING = "x-kubernetes-int-or-string"
EMBEDDED = "x-kubernetes-embedded-resource"
LIST_TYPE, LIST_KEYS = "x-kubernetes-list-type", "x-kubernetes-list-map-keys"
RULES = "x-kubernetes-validations"

_TYPES: dict[type, str] = {
    str: "string", bool: "boolean", int: "integer", float: "number", list: "array", dict: "object",
    type(None): "null",
}  # fmt: skip
_CLASSES = {"string": str, "boolean": bool, "integer": int, "array": list, "object": dict}


def compiled(schema: Object) -> Check:
    """The check of a schema."""
    parts = [part for make in _PARTS if (part := make(schema))]
    if len(parts) == 1:
        return parts[0]

    def check(value: Any, old: Any, path: str) -> Causes:
        found: list[Cause] = []
        for part in parts:
            if causes := part(value, old, path):
                found += causes
        return found

    return check


# --------------------------------------------------------------------------------------------- type


def plain_type(schema: Object) -> type | None:
    """The type that suffices: a value of it needs no check at all."""
    kind = _CLASSES.get(schema.get("type", ""))
    told = {"type", "default", "description", "title", "nullable", "example", "externalDocs"}
    asks = any(key not in told for key in schema)
    return kind if kind in (str, bool, int) and not asks else None


def _typed(schema: Object) -> Check | None:
    wanted = ["integer", "string"] if schema.get(INT_OR_STRING) else [schema.get("type", "")]
    if not any(wanted):
        return None
    classes = tuple(_CLASSES[name] for name in wanted if name in _CLASSES)
    name, nullable = ",".join(wanted), schema.get("nullable", False)

    def check(value: Any, old: Any, path: str) -> Causes:
        if value.__class__ in classes:
            return ()
        if value is None and nullable:
            return ()
        found = _type(value)
        if found in wanted or (found == "integer" and name == "number"):
            return ()
        return mistyped(path, found, name)

    return check


def _type(value: Any) -> str:
    """What JSON calls it; a number without fraction is an integer however it is written."""
    if value.__class__ is float and value.is_integer():
        return "integer"
    return _TYPES[value.__class__]


# ----------------------------------------------------------------------------------- combinations


def _some(schema: Object) -> Check | None:
    checks = [compiled(one) for one in schema.get("anyOf", ())]

    def check(value: Any, old: Any, path: str) -> Causes:
        best: Causes | None = None
        for inner in checks:
            causes = inner(value, CREATED, path)
            if not causes:
                return ()
            best = _fewer(best, causes)
        return [_combined(path, "must validate at least one schema (anyOf)"), *(best or ())]

    return check if checks else None


def _exactly_one(schema: Object) -> Check | None:
    checks = [compiled(one) for one in schema.get("oneOf", ())]

    def check(value: Any, old: Any, path: str) -> Causes:
        results = [inner(value, CREATED, path) for inner in checks]
        valid = sum(not causes for causes in results)
        if valid == 1:
            return ()
        only = "must validate one and only one schema (oneOf)."
        if valid:
            return [_combined(path, f"{only} Found {valid} valid alternatives")]
        return [_combined(path, f"{only} Found none valid"), *min(results, key=len)]

    return check if checks else None


def _all(schema: Object) -> Check | None:
    checks = [compiled(one) for one in schema.get("allOf", ())]

    def check(value: Any, old: Any, path: str) -> Causes:
        results = [inner(value, CREATED, path) for inner in checks]
        if not any(results):
            return ()
        found = [cause for causes in results for cause in causes]
        none = ". None validated" if all(results) else ""
        return [*found, _combined(path, f"must validate all the schemas (allOf){none}")]

    return check if checks else None


def _none(schema: Object) -> Check | None:
    if "not" not in schema:
        return None
    inner = compiled(schema["not"])

    def check(value: Any, old: Any, path: str) -> Causes:
        if inner(value, CREATED, path):
            return ()
        return [_combined(path, "must not validate the schema (not)")]

    return check


def _combined(path: str, ask: str) -> Cause:
    """Told of no field in particular, as clients know it."""
    return invalid("<nil>", "", f'"{path}" {ask}')


def _fewer(best: Causes | None, causes: Causes) -> Causes:
    return causes if best is None or len(causes) < len(best) else best


# -------------------------------------------------------------------------------------------- lists


def _list(schema: Object) -> Check | None:
    item = compiled(schema["items"]) if isinstance(schema.get("items"), dict) else None
    plain = plain_type(schema.get("items") or {})
    makers = (("minItems", _min_items), ("maxItems", _max_items), (LIST_TYPE, _distinct))
    parts = rows(schema, makers)

    def check(value: Any, old: Any, path: str) -> Causes:
        if value.__class__ is not list:
            return ()
        found: list[Cause] = []
        for at, inner in enumerate(value if item else ()):
            if inner.__class__ is not plain and item:
                found += item(inner, CREATED, f"{path}[{at}]")
        for part in parts:
            found += part(value, path)
        return found

    return check if item or parts else None


def _min_items(limit: int, schema: Object) -> Part:
    def part(value: Any, path: str) -> Causes:
        if len(value) >= limit:
            return ()
        return refused(path, len(value), f"should have at least {limit} items")

    return part


def _max_items(limit: int, schema: Object) -> Part:
    return lambda value, path: [too_many(path, len(value), limit)] if len(value) > limit else ()


def _distinct(kind: str, schema: Object) -> Part | None:
    """Items of a set differ, items of a map differ in their keys."""
    keys = schema.get(LIST_KEYS, ())
    return {"set": _distinct_items, "map": lambda v, p: _distinct_keys(keys, v, p)}.get(kind)


def _distinct_items(value: Any, path: str) -> Causes:
    return [duplicate(f"{path}[{at}]", value[at]) for at in again(map(identity, value))]


def _distinct_keys(keys: Sequence[str], value: Any, path: str) -> Causes:
    found = [{key: item[key] for key in keys if key in item} for item in value if _is_map(item)]
    if len(found) < len(value):
        return ()  # told of by the type of the items
    return [duplicate(f"{path}[{at}]", found[at]) for at in again(map(identity, found))]


def _is_map(value: Any) -> bool:
    return value.__class__ is dict


# ------------------------------------------------------------------------------------------ objects


def _object(schema: Object) -> Check | None:
    fields = {name: compiled(one) for name, one in sorted(schema.get("properties", {}).items())}
    plain = {name: plain_type(one) for name, one in schema.get("properties", {}).items()}
    more = schema.get("additionalProperties")
    values = compiled(more) if isinstance(more, dict) else None
    needed = [
        *schema.get("required", ()),
        *(("apiVersion", "kind") if schema.get(EMBEDDED) else ()),
    ]
    sizes = rows(schema, (("minProperties", _min_size), ("maxProperties", _max_size)))
    if not (fields or values or needed or sizes):
        return None

    def check(value: Any, old: Any, path: str) -> Causes:
        if value.__class__ is not dict:
            return ()
        for part in sizes:
            if causes := part(value, path):
                return causes
        found: list[Cause] = []
        for name, inner in value.items():
            if inner.__class__ is plain.get(name):
                continue
            test = fields.get(name, values)
            if test is not None and not _is_same(inner, old, name):
                before = old.get(name, CREATED) if old.__class__ is dict else CREATED
                found += test(inner, before, f"{path}.{name}" if path else name)
        found.sort(key=lambda cause: cause.field)
        for name in needed:
            if name not in value:
                found.append(required(f"{path}.{name}" if path else name))
        return found

    return check


def _is_same(value: Any, old: Any, name: str) -> bool:
    """Whether a field is as it was. Equality alone would take true for 1."""
    if old.__class__ is not dict or name not in old or old[name] != value:
        return False
    return bool(orjson.dumps(old[name]) == orjson.dumps(value))


def _min_size(limit: int, schema: Object) -> Part:
    def part(value: Any, path: str) -> Causes:
        if len(value) >= limit:
            return ()
        return refused(path, len(value), f"should have at least {limit} properties")

    return part


def _max_size(limit: int, schema: Object) -> Part:
    return _max_items(limit, schema)


_PARTS: tuple[Callable[[Object], Check | None], ...] = (
    _typed, _some, _exactly_one, _all, _none, text_check, number_check, _list, enum_check, _object,
)  # fmt: skip
