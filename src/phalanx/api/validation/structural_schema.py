"""Validation of the schemas of custom resources: they must be structural.

Fields, items and their types are declared outside of combinators (allOf, anyOf, oneOf, not), which
only restrict values. So the type of every field is known, and pruning, defaulting and field
management need no alternatives. Called by `custom_resource_definition.py`.

A schema is a tree; each check looks at one schema, its path and its level (root, field, item).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from typing import Any

from phalanx.api.custom_resources.schema_validation import (
    EMBEDDED_RESOURCE,
    INT_OR_STRING,
    LIST_KEYS,
    LIST_TYPE,
    VALIDATIONS,
    compile_schema,
)
from phalanx.api.custom_resources.structural_schema import (
    MAP_TYPE,
    PRESERVE_UNKNOWN_FIELDS,
    compile_pruner,
    compile_rules,
    has_rules,
)
from phalanx.api.errors import Cause, Causes, duplicate, forbidden, invalid, required, unsupported
from phalanx.api.normalization import Malformed
from phalanx.api.regex import BadPattern, compile_pattern
from phalanx.api.validation.checks import CREATED, find_duplicate_values
from phalanx.api.wire import Object

#: Fields that are untyped in the definition of JSONSchemaProps and hold nested schemas.
NESTED_SCHEMA_KEYS = ("items", "additionalProperties", "additionalItems")
_COMBINATORS = ("allOf", "anyOf", "oneOf")
_TYPES = ("array", "boolean", "integer", "number", "object", "string")
_SCALARS = ("boolean", "integer", "number", "string")
_INT_OR_STRING_TYPES = [{"type": "integer"}, {"type": "string"}]

_UNSUPPORTED = (
    "$ref", "additionalItems", "definitions", "dependencies", "id", "patternProperties",
)  # fmt: skip
_MISSING_TYPE_MESSAGES = {
    "root": "must not be empty at the root",
    "item": "must not be empty for specified array items",
    "field": "must not be empty for specified object fields",
}
#: Keywords that are forbidden inside combinators.
_FORBIDDEN_IN_COMBINATORS = {
    "type": "must be empty to be structural",
    "additionalProperties": "must be undefined to be structural",
    "default": "must be undefined to be structural",
    "title": "must be empty to be structural",
    "description": "must be empty to be structural",
    "nullable": "must be false to be structural",
    "externalDocs": "must be undefined to be structural",
    PRESERVE_UNKNOWN_FIELDS: "must be false to be structural",
    EMBEDDED_RESOURCE: "must be false to be structural",
    INT_OR_STRING: "must be false to be structural",
    LIST_KEYS: "must be empty to be structural",
    LIST_TYPE: "must be undefined to be structural",
    MAP_TYPE: "must be undefined to be structural",
    VALIDATIONS: "must be empty to be structural",
}

_SchemaRule = Callable[[Object, str, str], Causes]


def check_schema(schema: Object, path: str) -> Causes:
    """Return the causes of a schema."""
    if misfits := list(_check_shapes(schema, path)):
        return misfits
    found = [
        cause
        for one, place, level in _walk_schemas(schema, path, "root")
        for rule in _SCHEMA_RULES
        for cause in rule(one, place, level)
    ]
    # CEL rules can be checked only against a valid schema, defaults only against a structural one:
    # an unknown list type leaves the structure clear.
    if any(not cause.field.endswith((LIST_TYPE, MAP_TYPE)) for cause in found):
        return found
    rules = () if found else _check_cel_rules(schema, path)
    if rules:
        return rules
    defaults = [c for s, p, _ in _walk_schemas(schema, path, "root") for c in _check_default(s, p)]
    return [*found, *defaults]


def has_default(schema: Object) -> bool:
    """Whether a schema, or the schema of a field or item in it, has a default."""
    return any("default" in one for one, _, _ in _walk_schemas(schema, "", "root"))


def _walk_schemas(schema: Object, path: str, level: str) -> Iterator[tuple[Object, str, str]]:
    """Yield a schema and the schemas of its fields and items, without combinators."""
    yield schema, path, level
    for name, one in schema.get("properties", {}).items():
        yield from _walk_schemas(one, f"{path}.properties[{name}]", "field")
    for key, below in (("items", "item"), ("additionalProperties", "field")):
        if isinstance(schema.get(key), dict):
            yield from _walk_schemas(schema[key], f"{path}.{key}", below)


def _check_shapes(schema: Object, path: str) -> Iterator[Cause]:
    """Refuse nested schemas of a wrong JSON type."""
    for place, inner in _nested_schemas(schema, path):
        if isinstance(inner, bool) and not place.endswith("items"):
            continue
        if isinstance(inner, list) and inner:
            yield forbidden(place, "items must be a schema object and not an array")
            continue
        if place.endswith(".items") and not isinstance(inner, dict):
            # Kubernetes reads anything but an object and a list as absent.
            yield required(place, "must be specified")
            continue
        yield from _check_shapes(inner, place)


def _nested_schemas(schema: Object, path: str) -> Iterator[tuple[str, Any]]:
    """Yield every nested schema with its path."""
    for key in NESTED_SCHEMA_KEYS:
        if key in schema:
            yield f"{path}.{key}", schema[key]
    for name, one in schema.get("properties", {}).items():
        yield from _nested_schemas(one, f"{path}.properties[{name}]")
    for place, one in _combined_schemas(schema, path):
        yield from _nested_schemas(one, place)


def _combined_schemas(schema: Object, path: str) -> Iterator[tuple[str, Object]]:
    for key in _COMBINATORS:
        for at, one in enumerate(schema.get(key, ())):
            yield f"{path}.{key}[{at}]", one
    if "not" in schema:
        yield f"{path}.not", schema["not"]


# ---------------------------------------------------------------------------------- single schemas


def _check_supported(schema: Object, path: str, level: str) -> Causes:
    """Refuse keywords that Kubernetes does not support."""
    found = [forbidden(f"{path}.{key}", f"{key} is not supported") for key in _UNSUPPORTED
             if key in schema]  # fmt: skip
    if schema.get("uniqueItems"):
        why = "uniqueItems cannot be set to true since the runtime complexity becomes quadratic"
        found.append(forbidden(f"{path}.uniqueItems", why))
    if "pattern" in schema:
        found += _check_pattern(schema["pattern"], f"{path}.pattern")
    if schema.get(PRESERVE_UNKNOWN_FIELDS) is False:
        found.append(
            invalid(f"{path}.{PRESERVE_UNKNOWN_FIELDS}", False, "must be true or undefined")
        )
    return found


def _check_pattern(text: str, path: str) -> Causes:
    try:
        compile_pattern(text)
    except BadPattern as error:
        return [invalid(path, text, f"must be a valid regular expression, but isn't: {error}")]
    return ()


def _check_type(schema: Object, path: str, level: str) -> Causes:
    kind, place = schema.get("type", ""), f"{path}.type"
    embedded = "must be object if x-kubernetes-embedded-resource is true"
    if kind == "null":
        return [forbidden(place, "type cannot be set to null, use nullable as an alternative")]
    if kind and kind not in _TYPES:
        root = [invalid(place, kind, "must be object at the root")] if level == "root" else []
        return [*root, unsupported(place, kind, _TYPES)]
    if schema.get(EMBEDDED_RESOURCE) and kind != "object":
        return [invalid(place, kind, embedded) if kind else required(place, embedded)]
    if level == "root" and kind and kind != "object":
        return [invalid(place, kind, "must be object at the root")]
    if not kind and not schema.get(INT_OR_STRING) and not schema.get(PRESERVE_UNKNOWN_FIELDS):
        return [required(place, _MISSING_TYPE_MESSAGES[level])]
    return ()


def _check_items_and_properties(schema: Object, path: str, level: str) -> Causes:
    found: list[Cause] = []
    more, place = schema.get("additionalProperties"), f"{path}.additionalProperties"
    if schema.get("type") == "array" and "items" not in schema:
        found.append(required(f"{path}.items", "must be specified"))
    if more is None:
        return found
    if more is False:
        found.append(forbidden(place, "additionalProperties cannot be set to false"))
    if schema.get("properties") and more is not True:
        detail = "additionalProperties and properties are mutual exclusive"
        found.append(forbidden(place, detail))
    if level == "root":
        found.append(forbidden(place, "must not be used at the root"))
    if schema.get(EMBEDDED_RESOURCE):
        detail = "must not be used if x-kubernetes-embedded-resource is set"
        found.append(forbidden(place, detail))
    return found


def _check_extensions(schema: Object, path: str, level: str) -> Causes:
    """Check `x-kubernetes-*` extensions that exclude or require each other."""
    found: list[Cause] = []
    if schema.get(INT_OR_STRING):
        found += [
            invalid(f"{path}.{key}", True, f"must be false if {INT_OR_STRING} is true")
            for key in (PRESERVE_UNKNOWN_FIELDS, EMBEDDED_RESOURCE)
            if schema.get(key)
        ]
    if (
        schema.get(EMBEDDED_RESOURCE)
        and not schema.get(PRESERVE_UNKNOWN_FIELDS)
        and not schema.get("properties")
    ):
        detail = (
            f"must not be empty if {EMBEDDED_RESOURCE} is true without {PRESERVE_UNKNOWN_FIELDS}"
        )
        found.append(required(f"{path}.properties", detail))
    for key, known, kind in (
        (MAP_TYPE, ("atomic", "granular"), "object"),
        (LIST_TYPE, ("atomic", "map", "set"), "array"),
    ):
        if key in schema and schema[key] not in known:
            found.append(unsupported(f"{path}.{key}", schema[key], known))
        if key in schema and schema.get("type") != kind:
            detail, place = f"must be {kind} if {key} is specified", f"{path}.type"
            given = schema.get("type", "")
            found.append(invalid(place, given, detail) if given else required(place, detail))
    return found


def _check_metadata(schema: Object, path: str, level: str) -> Causes:
    """Check the types of apiVersion, kind and metadata.

    At the root, the schema of metadata may restrict only name and generateName.
    """
    if level != "root" and not schema.get(EMBEDDED_RESOURCE):
        return ()
    fields = schema.get("properties", {})
    wanted = (("apiVersion", "string"), ("kind", "string"), ("metadata", "object"))
    found = [
        invalid(f"{path}.properties[{name}].type", fields[name].get("type", ""), f"must be {kind}")
        for name, kind in wanted
        if name in fields and fields[name].get("type") != kind
    ]
    meta = fields.get("metadata", {})
    other_keywords = [key for key in meta if key not in ("type", "properties")]
    known = all(name in ("name", "generateName") for name in meta.get("properties", {}))
    if level == "root" and (other_keywords or not known):
        detail = (
            "must not specify anything other than name and generateName, but metadata is "
            "implicitly specified"
        )
        found.append(forbidden(f"{path}.properties[metadata]", detail))
    return found


# -------------------------------------------------------------------------------------------- lists


def _check_list(schema: Object, path: str, level: str) -> Causes:
    kind, keys = schema.get(LIST_TYPE), schema.get(LIST_KEYS, [])
    place = f"{path}.{LIST_KEYS}"
    if keys and kind != "map":
        detail = f"must be map if {LIST_KEYS} is non-empty"
        where = f"{path}.{LIST_TYPE}"
        return [invalid(where, kind, detail) if kind else required(where, detail)]
    items = schema.get("items")
    if not isinstance(items, dict):
        return ()
    if kind == "set":
        return _check_set_items(items, f"{path}.items")
    if kind != "map":
        return ()
    if not keys:
        return [required(place, f"must not be empty if {LIST_TYPE} is map")]
    twice = [duplicate(f"{place}[{at}]", keys[at]) for at in find_duplicate_values(keys)]
    return [*twice, *_check_map_items(items, keys, path)]


def _check_set_items(items: Object, path: str) -> Causes:
    found: list[Cause] = []
    if items.get("nullable"):
        detail = f"cannot be nullable when {LIST_TYPE} is set"
        found.append(forbidden(f"{path}.nullable", detail))
    atomic = {"object": (MAP_TYPE, ""), "array": (LIST_TYPE, "atomic")}
    key, usual = atomic.get(items.get("type", ""), ("", ""))
    if key and items.get(key, usual) != "atomic":
        detail = f"must be atomic as item of a list with {LIST_TYPE}=set"
        found.append(invalid(f"{path}.{key}", items.get(key), detail))
    return found


def _check_map_items(items: Object, keys: list[str], path: str) -> Causes:
    if items.get("type") != "object":
        detail = f"must be object if parent array's {LIST_TYPE} is map"
        return [invalid(f"{path}.items.type", items.get("type", ""), detail)]
    found: list[Cause] = []
    for at, key in enumerate(keys):
        field, place = items.get("properties", {}).get(key), f"{path}.items.properties[{key}]"
        if field is None:
            detail = "entries must all be names of item properties"
            found.append(invalid(f"{path}.{LIST_KEYS}[{at}]", key, detail))
        elif field.get("type") not in _SCALARS:
            detail = f"must be a scalar type if parent array's {LIST_TYPE} is map"
            found.append(invalid(f"{place}.type", field.get("type", ""), detail))
        elif key not in items.get("required", ()) and "default" not in field:
            detail = "this property is in x-kubernetes-list-map-keys, so it must have a default or"
            found.append(required(f"{place}.default", f"{detail} be a required property"))
        elif field.get("nullable"):
            detail = "this property is in x-kubernetes-list-map-keys, so it cannot be nullable"
            found.append(forbidden(f"{place}.nullable", detail))
    return found


# ------------------------------------------------------------------------------------- combinators


def _check_combinators(schema: Object, path: str, level: str) -> Causes:
    """Require that a combinator only restricts what is declared outside of it."""
    return [
        cause
        for place, one in _narrowing_schemas(schema, schema, path)
        for cause in _check_nested(one, schema, place, outside=path)
    ]


def _narrowing_schemas(one: Object, schema: Object, path: str) -> Iterator[tuple[str, Object]]:
    """Yield the schemas inside combinators, except the IntOrString pattern."""
    if schema.get(INT_OR_STRING) and one.get("anyOf") == _INT_OR_STRING_TYPES:
        one = {key: value for key, value in one.items() if key != "anyOf"}
    return _combined_schemas(one, path)


def _check_nested(one: Object, schema: Object, path: str, *, outside: str) -> Iterator[Cause]:
    for key, detail in _FORBIDDEN_IN_COMBINATORS.items():
        if one.get(key) not in (None, False):
            yield forbidden(f"{path}.{key}", detail)
    yield from _check_supported(one, path, "field")
    for name, inner in one.get("properties", {}).items():
        place, known = f"{path}.properties[{name}]", f"{outside}.properties[{name}]"
        if name == "metadata":
            yield forbidden(place, "must not be specified in a nested context")
        elif name not in schema.get("properties", {}):
            yield required(known, f"because it is defined in {place}")
        else:
            yield from _check_nested(inner, schema["properties"][name], place, outside=known)
    if isinstance(one.get("items"), dict):
        if not isinstance(schema.get("items"), dict):
            yield required(f"{outside}.items", f"because it is defined in {path}.items")
        else:
            yield from _check_nested(
                one["items"], schema["items"], f"{path}.items", outside=f"{outside}.items"
            )
    for place, inner in _narrowing_schemas(one, schema, path):
        yield from _check_nested(inner, schema, place, outside=outside)


# --------------------------------------------------------------------------- CEL rules and defaults


def _check_cel_rules(schema: Object, path: str) -> Causes:
    """Return the causes of CEL rules; `cel` is imported on first use to keep start-up fast."""
    if not has_rules(schema):
        return ()
    from phalanx.api.cel.validation_rules import check_rules

    return check_rules(schema, path)


def _check_default(schema: Object, path: str) -> Causes:
    """Require that a default is pruned and valid by its own schema."""
    if "default" not in schema:
        return ()
    default, place = deepcopy(schema["default"]), f"{path}.default"
    reached = _reached_schema(schema, [default])
    try:
        unknown = compile_pruner(reached)(default)
    except Malformed as error:
        return [invalid(place, schema["default"], f"must result in valid metadata: {error}")]
    if unknown:
        return [invalid(place, schema["default"], "must not have unknown fields")]
    causes = compile_schema(reached)(default, CREATED, place)
    rules = None if causes else compile_rules(schema, reached=reached)
    return causes or (rules.validate(default, CREATED, place) if rules else ())


def _reached_schema(schema: Object, values: Sequence[Any]) -> Object:
    """Return the schema of these values without the schemas of fields and items that they lack.

    Small defaults at every level of a large schema are checked in the time of one pass over it.
    """
    reached, fields = dict(schema), schema.get("properties", {})
    inner: dict[str, list[Any]] = {}
    for name, value in (pair for one in values if isinstance(one, dict) for pair in one.items()):
        inner.setdefault(name, []).append(value)
    if fields:
        reached["properties"] = {
            name: _reached_schema(fields[name], found)
            for name, found in inner.items()
            if name in fields
        }
    below = {
        "additionalProperties": [
            value for name, found in inner.items() if name not in fields for value in found
        ],
        "items": [item for one in values if isinstance(one, list) for item in one],
    }
    for key, found in below.items():
        if isinstance(schema.get(key), dict):
            reached[key] = _reached_schema(schema[key], found) if found else {}
    return reached


_SCHEMA_RULES: tuple[_SchemaRule, ...] = (
    _check_supported,
    _check_type,
    _check_items_and_properties,
    _check_extensions,
    _check_metadata,
    _check_list,
    _check_combinators,
)
