"""Rules for the schema of a custom resource: it must be structural.

Fields, items and their types are told once, outside of combinations (allOf, anyOf, oneOf, not);
these only narrow the values down. So it is known of every field what it is, and a walk can drop,
fill and own fields without trying alternatives. Part of the rules of definitions (`crd.py`).

A schema is a tree of schemas; a rule looks at one of them: the schema, where it stands, and at what
level (the root, a field, an item).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import deepcopy
from typing import Any

from phalanx.api.causes import Causes, duplicate, forbidden, invalid, required, unsupported
from phalanx.api.conform import Malformed, conform
from phalanx.api.custom.checks import (
    EMBEDDED,
    INT_OR_STRING,
    LIST_KEYS,
    LIST_TYPE,
    RULES,
    compiled,
)
from phalanx.api.custom.structural import MAP_TYPE, has_rules, judge
from phalanx.api.custom.walks import PRESERVE, pruner
from phalanx.api.errors import Cause
from phalanx.api.regex import BadPattern, pattern
from phalanx.api.rules.checks import CREATED, again
from phalanx.api.wire import Object

PROPS = "apiextensions.v1.JSONSchemaProps"
#: Where the definition of a schema says "anything", and another schema may stand.
OPEN = ("items", "additionalProperties", "additionalItems")
_COMBINED = ("allOf", "anyOf", "oneOf")
_TYPES = ("array", "boolean", "integer", "number", "object", "string")
_SCALARS = ("boolean", "integer", "number", "string")
_EITHER = [{"type": "integer"}, {"type": "string"}]

_UNSUPPORTED = (
    "$ref", "additionalItems", "definitions", "dependencies", "id", "patternProperties",
)  # fmt: skip
_TYPELESS = {
    "root": "must not be empty at the root",
    "item": "must not be empty for specified array items",
    "field": "must not be empty for specified object fields",
}
#: What may not stand in a combination.
_OUTSIDE = {
    "type": "must be empty to be structural",
    "additionalProperties": "must be undefined to be structural",
    "default": "must be undefined to be structural",
    "title": "must be empty to be structural",
    "description": "must be empty to be structural",
    "nullable": "must be false to be structural",
    "externalDocs": "must be undefined to be structural",
    PRESERVE: "must be false to be structural",
    EMBEDDED: "must be false to be structural",
    INT_OR_STRING: "must be false to be structural",
    LIST_KEYS: "must be empty to be structural",
    LIST_TYPE: "must be undefined to be structural",
    MAP_TYPE: "must be undefined to be structural",
    RULES: "must be empty to be structural",
}

_Rule = Callable[[Object, str, str], Causes]


def check_schema(schema: Object, path: str) -> Causes:
    """What is wrong with a schema."""
    if misfits := list(_misfits(schema, path)):
        return misfits
    found = [
        cause
        for one, place, level in _schemas(schema, path, "root")
        for rule in _RULES
        for cause in rule(one, place, level)
    ]
    # Rules and defaults can be judged only by a schema that is sound.
    return (
        found
        or _rules(schema, path)
        or [c for s, p, _ in _schemas(schema, path, "root") for c in _default(s, p)]
    )


def _schemas(schema: Object, path: str, level: str) -> Iterator[tuple[Object, str, str]]:
    """A schema and those that tell fields and items; not those in combinations."""
    yield schema, path, level
    for name, one in schema.get("properties", {}).items():
        yield from _schemas(one, f"{path}.properties[{name}]", "field")
    for key, below in (("items", "item"), ("additionalProperties", "field")):
        if isinstance(schema.get(key), dict):
            yield from _schemas(schema[key], f"{path}.{key}", below)


def _misfits(schema: Object, path: str) -> Iterator[Cause]:
    """Schemas of a wrong shape, where nothing but their definition's "anything" was asked."""
    for place, inner in _open(schema, path):
        if isinstance(inner, bool) and not place.endswith("items"):
            continue
        if isinstance(inner, list):
            yield forbidden(place, "items must be a schema object and not an array")
            continue
        try:
            conform(PROPS, deepcopy(inner))
        except Malformed as error:
            yield invalid(place, "", f"must be a schema: {error}")
        else:
            yield from _misfits(inner, place)


def _open(schema: Object, path: str) -> Iterator[tuple[str, Any]]:
    """Every open place in a schema and in those that are known to be schemas."""
    for key in OPEN:
        if key in schema:
            yield f"{path}.{key}", schema[key]
    for name, one in schema.get("properties", {}).items():
        yield from _open(one, f"{path}.properties[{name}]")
    for place, one in _combined(schema, path):
        yield from _open(one, place)


def _combined(schema: Object, path: str) -> Iterator[tuple[str, Object]]:
    for key in _COMBINED:
        for at, one in enumerate(schema.get(key, ())):
            yield f"{path}.{key}[{at}]", one
    if "not" in schema:
        yield f"{path}.not", schema["not"]


# ------------------------------------------------------------------------------------ one by one


def _is_known(schema: Object, path: str, level: str) -> Causes:
    """Nothing that we could not honour."""
    found = [forbidden(f"{path}.{key}", f"{key} is not supported") for key in _UNSUPPORTED
             if key in schema]  # fmt: skip
    if schema.get("uniqueItems"):
        why = "uniqueItems cannot be set to true since the runtime complexity becomes quadratic"
        found.append(forbidden(f"{path}.uniqueItems", why))
    if "pattern" in schema:
        found += _pattern(schema["pattern"], f"{path}.pattern")
    if schema.get(PRESERVE) is False:
        found.append(invalid(f"{path}.{PRESERVE}", False, "must be true or undefined"))
    return found


def _pattern(text: str, path: str) -> Causes:
    try:
        pattern(text)
    except BadPattern as error:
        return [invalid(path, text, f"must be a valid regular expression, but isn't: {error}")]
    return ()


def _has_type(schema: Object, path: str, level: str) -> Causes:
    kind, place = schema.get("type", ""), f"{path}.type"
    embedded = "must be object if x-kubernetes-embedded-resource is true"
    if kind == "null":
        return [forbidden(place, "type cannot be set to null, use nullable as an alternative")]
    if kind and kind not in _TYPES:
        return [unsupported(place, kind, _TYPES)]
    if schema.get(EMBEDDED) and kind != "object":
        return [invalid(place, kind, embedded) if kind else required(place, embedded)]
    if level == "root" and kind and kind != "object":
        return [invalid(place, kind, "must be object at the root")]
    if not kind and not schema.get(INT_OR_STRING) and not schema.get(PRESERVE):
        return [required(place, _TYPELESS[level])]
    return ()


def _has_parts(schema: Object, path: str, level: str) -> Causes:
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
    if schema.get(EMBEDDED):
        detail = "must not be used if x-kubernetes-embedded-resource is set"
        found.append(forbidden(place, detail))
    return found


def _agrees(schema: Object, path: str, level: str) -> Causes:
    """Extensions that exclude or need each other."""
    found: list[Cause] = []
    if schema.get(INT_OR_STRING):
        found += [
            invalid(f"{path}.{key}", True, f"must be false if {INT_OR_STRING} is true")
            for key in (PRESERVE, EMBEDDED)
            if schema.get(key)
        ]
    if schema.get(EMBEDDED) and not schema.get(PRESERVE) and not schema.get("properties"):
        detail = f"must not be empty if {EMBEDDED} is true without {PRESERVE}"
        found.append(required(f"{path}.properties", detail))
    for key, known, kind in (
        (MAP_TYPE, ("atomic", "granular"), "object"),
        (LIST_TYPE, ("atomic", "map", "set"), "array"),
    ):
        if key in schema and schema[key] not in known:
            found.append(unsupported(f"{path}.{key}", schema[key], known))
        if key in schema and schema.get("type") != kind:
            detail = f"must be {kind} if {key} is specified"
            found.append(invalid(f"{path}.type", schema.get("type", ""), detail))
    return found


def _metadata(schema: Object, path: str, level: str) -> Causes:
    """What every object has is known: a schema may restrict names, and nothing else."""
    if level != "root" and not schema.get(EMBEDDED):
        return ()
    fields = schema.get("properties", {})
    wanted = (("apiVersion", "string"), ("kind", "string"), ("metadata", "object"))
    found = [
        invalid(f"{path}.properties[{name}].type", fields[name].get("type", ""), f"must be {kind}")
        for name, kind in wanted
        if name in fields and fields[name].get("type") != kind
    ]
    meta = fields.get("metadata", {})
    told = [key for key in meta if key not in ("type", "properties")]
    known = all(name in ("name", "generateName") for name in meta.get("properties", {}))
    if level == "root" and (told or not known):
        detail = (
            "must not specify anything other than name and generateName, but metadata is "
            "implicitly specified"
        )
        found.append(forbidden(f"{path}.properties[metadata]", detail))
    return found


# -------------------------------------------------------------------------------------------- lists


def _list(schema: Object, path: str, level: str) -> Causes:
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
        return _set_items(items, f"{path}.items")
    if kind != "map":
        return ()
    if not keys:
        return [required(place, f"must not be empty if {LIST_TYPE} is map")]
    twice = [duplicate(f"{place}[{at}]", keys[at]) for at in again(keys)]
    return [*twice, *_map_items(items, keys, path)]


def _set_items(items: Object, path: str) -> Causes:
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


def _map_items(items: Object, keys: list[str], path: str) -> Causes:
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


# ------------------------------------------------------------------------------------ combinations


def _combinations(schema: Object, path: str, level: str) -> Causes:
    """What stands in a combination narrows down what stands outside of it, and nothing more."""
    return [
        cause
        for place, one in _narrowing(schema, schema, path)
        for cause in _nested(one, schema, place, path)
    ]


def _narrowing(one: Object, schema: Object, path: str) -> Iterator[tuple[str, Object]]:
    """What a schema combines, but for the one way in which types may be told there."""
    if schema.get(INT_OR_STRING) and one.get("anyOf") == _EITHER:
        one = {key: value for key, value in one.items() if key != "anyOf"}
    return _combined(one, path)


def _nested(one: Object, schema: Object, path: str, outside: str) -> Iterator[Cause]:
    for key, detail in _OUTSIDE.items():
        if one.get(key) not in (None, False):
            yield forbidden(f"{path}.{key}", detail)
    yield from _is_known(one, path, "field")
    for name, inner in one.get("properties", {}).items():
        place, known = f"{path}.properties[{name}]", f"{outside}.properties[{name}]"
        if name == "metadata":
            yield forbidden(place, "must not be specified in a nested context")
        elif name not in schema.get("properties", {}):
            yield required(known, f"because it is defined in {place}")
        else:
            yield from _nested(inner, schema["properties"][name], place, known)
    if isinstance(one.get("items"), dict):
        if not isinstance(schema.get("items"), dict):
            yield required(f"{outside}.items", f"because it is defined in {path}.items")
        else:
            yield from _nested(one["items"], schema["items"], f"{path}.items", f"{outside}.items")
    for place, inner in _narrowing(one, schema, path):
        yield from _nested(inner, schema, place, outside)


# ------------------------------------------------------------------------------- rules and defaults


def _rules(schema: Object, path: str) -> Causes:
    """What is wrong with rules in CEL. The language is loaded when somebody first uses it."""
    if not has_rules(schema):
        return ()
    from phalanx.api.cel.rulechecks import check_rules

    return check_rules(schema, path)


def _default(schema: Object, path: str) -> Causes:
    """A default must be what it would fill in: known to its own schema, and valid."""
    if "default" not in schema:
        return ()
    default, place = deepcopy(schema["default"]), f"{path}.default"
    try:
        unknown = pruner(schema)(default)
    except Malformed as error:
        return [invalid(place, schema["default"], f"must result in valid metadata: {error}")]
    if unknown:
        return [invalid(place, schema["default"], "must not have unknown fields")]
    causes, rules = compiled(schema)(default, CREATED, place), judge(schema)
    return causes or (rules.causes(default, CREATED, place) if rules else ())


_RULES: tuple[_Rule, ...] = (
    _is_known, _has_type, _has_parts, _agrees, _metadata, _list, _combinations,
)  # fmt: skip
