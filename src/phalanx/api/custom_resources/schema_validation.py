"""Validation of values by an openAPIV3Schema, compiled to one function that returns causes.

A check takes a value, the old value and the path. It is compiled once per schema from the builders
in `_CHECK_BUILDERS`, in their order; each part handles only values of its own type, so a wrong type
is reported once. Unchanged values are not checked again (ratcheting): a schema that became stricter
does not block updates of other fields.

Checks never change values. Messages are those of Kubernetes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import orjson

from phalanx.api.errors import (
    MAX_CAUSES,
    Cause,
    Causes,
    duplicate,
    invalid,
    required,
    too_many,
)
from phalanx.api.validation.checks import CREATED, find_duplicate_values
from phalanx.api.validation.schema_values import (
    KeywordCheck,
    SchemaCheck,
    compile_enum_check,
    compile_keywords,
    compile_number_check,
    compile_string_check,
    invalid_value,
    json_identity,
    wrong_type,
)
from phalanx.api.wire import Object

INT_OR_STRING = "x-kubernetes-int-or-string"
EMBEDDED_RESOURCE = "x-kubernetes-embedded-resource"
LIST_TYPE, LIST_KEYS = "x-kubernetes-list-type", "x-kubernetes-list-map-keys"
VALIDATIONS = "x-kubernetes-validations"

_JSON_TYPES: dict[type, str] = {
    str: "string", bool: "boolean", int: "integer", float: "number", list: "array", dict: "object",
    type(None): "null",
}  # fmt: skip
_PYTHON_TYPES = {"string": str, "boolean": bool, "integer": int, "array": list, "object": dict}


def compile_schema(schema: Object) -> SchemaCheck:
    """Return the check of a schema."""
    parts = [part for make in _CHECK_BUILDERS if (part := make(schema))]
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
    """Return the Python type whose values need no further check, if there is one."""
    kind = _PYTHON_TYPES.get(schema.get("type", ""))
    unchecked = {"type", "default", "description", "title", "nullable", "example", "externalDocs"}
    has_checks = any(key not in unchecked for key in schema)
    return kind if kind in (str, bool, int) and not has_checks else None


def _type_check(schema: Object) -> SchemaCheck | None:
    wanted = ["integer", "string"] if schema.get(INT_OR_STRING) else [schema.get("type", "")]
    if not any(wanted):
        return None
    classes = tuple(_PYTHON_TYPES[name] for name in wanted if name in _PYTHON_TYPES)
    name, nullable = ",".join(wanted), schema.get("nullable", False)

    def check(value: Any, old: Any, path: str) -> Causes:
        if value.__class__ in classes:
            return ()
        if value is None and nullable:
            return ()
        # A number without fraction is an integer however it is written.
        is_integer = value.__class__ is float and value.is_integer()
        found = "integer" if is_integer else _JSON_TYPES[value.__class__]
        if found in wanted or (found == "integer" and name == "number"):
            return ()
        return wrong_type(path, found, name)

    return check


# ----------------------------------------------------------------------------------- combinations


def _any_of_check(schema: Object) -> SchemaCheck | None:
    checks = [compile_schema(one) for one in schema.get("anyOf", ())]

    def check(value: Any, old: Any, path: str) -> Causes:
        best: Causes | None = None
        for inner in checks:
            causes = inner(value, CREATED, path)
            if not causes:
                return ()
            if best is None or len(causes) < len(best):
                best = causes
        return [
            _combination_error(path, "must validate at least one schema (anyOf)"),
            *(best or ()),
        ]

    return check if checks else None


def _one_of_check(schema: Object) -> SchemaCheck | None:
    checks = [compile_schema(one) for one in schema.get("oneOf", ())]

    def check(value: Any, old: Any, path: str) -> Causes:
        results = [inner(value, CREATED, path) for inner in checks]
        valid = sum(not causes for causes in results)
        if valid == 1:
            return ()
        only = "must validate one and only one schema (oneOf)."
        if valid:
            return [_combination_error(path, f"{only} Found {valid} valid alternatives")]
        return [_combination_error(path, f"{only} Found none valid"), *min(results, key=len)]

    return check if checks else None


def _all_of_check(schema: Object) -> SchemaCheck | None:
    checks = [compile_schema(one) for one in schema.get("allOf", ())]

    def check(value: Any, old: Any, path: str) -> Causes:
        results = [inner(value, CREATED, path) for inner in checks]
        if not any(results):
            return ()
        found = [cause for causes in results for cause in causes]
        none = ". None validated" if all(results) else ""
        return [*found, _combination_error(path, f"must validate all the schemas (allOf){none}")]

    return check if checks else None


def _not_check(schema: Object) -> SchemaCheck | None:
    if "not" not in schema:
        return None
    inner = compile_schema(schema["not"])

    def check(value: Any, old: Any, path: str) -> Causes:
        if inner(value, CREATED, path):
            return ()
        return [_combination_error(path, "must not validate the schema (not)")]

    return check


def _combination_error(path: str, message: str) -> Cause:
    """Return the error of a combination, which Kubernetes reports without a field."""
    return invalid("<nil>", "", f'"{path}" {message}')


# -------------------------------------------------------------------------------------------- lists


def _list_check(schema: Object) -> SchemaCheck | None:
    item = compile_schema(schema["items"]) if isinstance(schema.get("items"), dict) else None
    plain = plain_type(schema.get("items") or {})
    makers = (("minItems", _min_items), ("maxItems", _max_items), (LIST_TYPE, _unique_items))
    parts = compile_keywords(schema, makers)

    def check(value: Any, old: Any, path: str) -> Causes:
        if value.__class__ is not list:
            return ()
        found: list[Cause] = []
        for at, inner in enumerate(value if item else ()):
            if inner.__class__ is not plain and item:
                found += item(inner, CREATED, f"{path}[{at}]")
                if len(found) >= MAX_CAUSES:
                    break
        for part in parts:
            found += part(value, path)
        return found

    return check if item or parts else None


def _min_items(limit: int, schema: Object) -> KeywordCheck:
    def part(value: Any, path: str) -> Causes:
        if len(value) >= limit:
            return ()
        return invalid_value(path, len(value), f"should have at least {limit} items")

    return part


def _max_items(limit: int, schema: Object) -> KeywordCheck:
    return lambda value, path: [too_many(path, len(value), limit)] if len(value) > limit else ()


def _unique_items(kind: str, schema: Object) -> KeywordCheck | None:
    """Return the check that items of a set, or keys of map items, are unique."""
    keys = schema.get(LIST_KEYS, ())
    return {"set": _check_unique_items, "map": lambda v, p: _check_unique_keys(keys, v, p)}.get(
        kind
    )


def _check_unique_items(value: Any, path: str) -> Causes:
    return [
        duplicate(f"{path}[{at}]", value[at])
        for at in find_duplicate_values(map(json_identity, value))
    ]


def _check_unique_keys(keys: Sequence[str], value: Any, path: str) -> Causes:
    found = [
        {key: item[key] for key in keys if key in item} for item in value if isinstance(item, dict)
    ]
    if len(found) < len(value):
        return ()  # the type check of the items reports it
    return [
        duplicate(f"{path}[{at}]", found[at])
        for at in find_duplicate_values(map(json_identity, found))
    ]


# ------------------------------------------------------------------------------------------ objects


def _object_check(schema: Object) -> SchemaCheck | None:
    fields = {
        name: compile_schema(one) for name, one in sorted(schema.get("properties", {}).items())
    }
    plain = {name: plain_type(one) for name, one in schema.get("properties", {}).items()}
    more = schema.get("additionalProperties")
    values = compile_schema(more) if isinstance(more, dict) else None
    needed = [
        *schema.get("required", ()),
        *(("apiVersion", "kind") if schema.get(EMBEDDED_RESOURCE) else ()),
    ]
    sizes = compile_keywords(
        schema, (("minProperties", _min_properties), ("maxProperties", _max_items))
    )
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
            if test is not None and not _is_unchanged(inner, old, name):
                before = old.get(name, CREATED) if old.__class__ is dict else CREATED
                found += test(inner, before, f"{path}.{name}" if path else name)
                if len(found) >= MAX_CAUSES:
                    break
        found.sort(key=lambda cause: cause.field)
        for name in needed:
            if name not in value:
                found.append(required(f"{path}.{name}" if path else name))
        return found

    return check


def _is_unchanged(value: Any, old: Any, name: str) -> bool:
    """Whether a field is unchanged. Equality alone would accept true for 1."""
    if old.__class__ is not dict or name not in old or old[name] != value:
        return False
    return bool(orjson.dumps(old[name]) == orjson.dumps(value))


def _min_properties(limit: int, schema: Object) -> KeywordCheck:
    def part(value: Any, path: str) -> Causes:
        if len(value) >= limit:
            return ()
        return invalid_value(path, len(value), f"should have at least {limit} properties")

    return part


_CHECK_BUILDERS: tuple[Callable[[Object], SchemaCheck | None], ...] = (
    _type_check,
    _any_of_check,
    _one_of_check,
    _all_of_check,
    _not_check,
    compile_string_check,
    compile_number_check,
    _list_check,
    compile_enum_check,
    _object_check,
)
