"""The strategy of custom resources: pruning, defaulting and validation by a structural schema.

Each function is compiled once per schema and enters only parts in which it has something to do:

    compile_pruner             removes unknown fields in place, and returns their paths
    compile_structure_check    whether objects and lists are where the schema has them
    compile_defaulter          adds the defaults of the schema in place

CustomResourceStrategy combines them with the validation of values (`schema_validation.py`), then
with the CEL rules (`cel/validation_rules.py`). Metadata is validated as that of every kind. A
structural schema (`validation/structural_schema.py`) defines its fields outside of combinations,
so one walk suffices.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import orjson

from phalanx.api.custom_resources.schema_validation import (
    EMBEDDED_RESOURCE,
    INT_OR_STRING,
    LIST_KEYS,
    LIST_TYPE,
    VALIDATIONS,
)
from phalanx.api.definitions import SchemaNode
from phalanx.api.errors import Cause, invalid
from phalanx.api.kinds import Kind
from phalanx.api.normalization import (
    MAX_UNKNOWN_FIELDS,
    Malformed,
    NormalizationResult,
    normalize,
)
from phalanx.api.schema import Schema
from phalanx.api.validation.checks import CREATED
from phalanx.api.validation.metadata import check_metadata
from phalanx.api.validation.schema_values import SchemaCheck
from phalanx.api.wire import Object

if TYPE_CHECKING:
    from phalanx.api.cel.validation_rules import RuleValidator
    from phalanx.api.custom_resources.compiled_schemas import SharedSchema


PRESERVE_UNKNOWN_FIELDS = "x-kubernetes-preserve-unknown-fields"
OBJECT_META = "meta.v1.ObjectMeta"

# ------------------------------------------------------------------------------------------ pruning

#: Prunes a value in place; returns the paths of the first unknown fields: `.spec.x`, `.list[0].y`.
#: Not of all: thousands of fields may be below a key of a megabyte.
Pruner = Callable[[Any], Sequence[str]]
_SCALAR_TYPES = (str, int, float, bool)
#: The keywords with which a schema describes the content of a value.
_CONTENT_KEYS = ("properties", "additionalProperties", "items", EMBEDDED_RESOURCE)


def _prune_all(value: Any) -> Sequence[str]:
    """Prune a value without a schema: objects are emptied, other values stay."""
    if value.__class__ is dict:
        unknown = [f".{key}" for key in value][:MAX_UNKNOWN_FIELDS]
        value.clear()
        return unknown
    return _prune_items(_prune_all, value) if value.__class__ is list else ()


def compile_pruner(schema: Object, *, preserve_unknown: bool = False) -> Pruner:
    """Return the pruner of a schema; `preserve_unknown` keeps unknown fields, of items too."""
    preserve_unknown = preserve_unknown or bool(schema.get(PRESERVE_UNKNOWN_FIELDS))
    prune_fields = _compile_field_pruner(schema, preserve_unknown=preserve_unknown)
    items = schema.get("items")
    prune_item = (
        compile_pruner(items, preserve_unknown=preserve_unknown)
        if isinstance(items, dict)
        else _prune_all
    )

    def prune(value: Any) -> Sequence[str]:
        if value.__class__ is dict:
            return prune_fields(value)
        return _prune_items(prune_item, value) if value.__class__ is list else ()

    return (
        prune
        if not preserve_unknown or any(key in schema for key in _CONTENT_KEYS)
        else _prune_nothing
    )


def _prune_nothing(value: Any) -> Sequence[str]:
    return ()


def _prune_items(prune: Pruner, value: list[Any]) -> Sequence[str]:
    unknown: list[str] = []
    for at, item in enumerate(value):
        found = () if item.__class__ in _SCALAR_TYPES else prune(item)
        if found and len(unknown) < MAX_UNKNOWN_FIELDS:
            unknown += [f"[{at}]{path}" for path in found]
    return unknown[:MAX_UNKNOWN_FIELDS]


def _compile_field_pruner(schema: Object, *, preserve_unknown: bool) -> Pruner:
    fields = {name: compile_pruner(one) for name, one in schema.get("properties", {}).items()}
    nullable = {n for n, one in schema.get("properties", {}).items() if one.get("nullable")}
    more = schema.get("additionalProperties")
    others = compile_pruner(more) if isinstance(more, dict) else _prune_all if more else None
    keeps_null = others is None or (isinstance(more, dict) and bool(more.get("nullable")))
    if schema.get(EMBEDDED_RESOURCE):
        fields |= {
            "apiVersion": _prune_nothing,
            "kind": _prune_nothing,
            "metadata": _prune_metadata,
        }

    def prune(value: Any) -> Sequence[str]:
        unknown: list[str] = []
        pruned: list[str] = []
        for key, inner in value.items():
            prune_inner = fields.get(key, others)
            if prune_inner is None:
                if not preserve_unknown:
                    unknown.append(f".{key}")
                    pruned.append(key)
            elif inner is None:
                if not (key in nullable if key in fields else keeps_null):
                    pruned.append(key)
            elif inner.__class__ not in _SCALAR_TYPES or prune_inner is _prune_metadata:
                found = prune_inner(inner)
                if found and len(unknown) < MAX_UNKNOWN_FIELDS:
                    unknown += [f".{key}{path}" for path in found]
        for key in pruned:
            del value[key]
        return unknown[:MAX_UNKNOWN_FIELDS]

    return prune


def _prune_metadata(value: Any) -> Sequence[str]:
    """Prune the metadata of the object, or of an embedded object."""
    try:
        return [f".{path}" for path in normalize(OBJECT_META, value).unknown_fields]
    except Malformed as error:
        raise error.prefix_path(".metadata") from None


# ------------------------------------------------------------------------------------------ fitting

StructureCheck = Callable[[Any], bool]


def compile_structure_check(schema: Object) -> StructureCheck | None:
    """Return the check that objects and lists are where the schema has them; None if it has
    none.
    """
    if schema.get("type") == "array":
        return _compile_list_check(schema)
    if schema.get("type") != "object":
        return None
    more = schema.get("additionalProperties")
    fields = [
        (n, fits)
        for n, s in schema.get("properties", {}).items()
        if (fits := compile_structure_check(s))
    ]
    values = compile_structure_check(more) if isinstance(more, dict) else None

    def fits_map(value: Any) -> bool:
        if value.__class__ is not dict:
            return value is None
        if values is not None and not all(map(values, value.values())):
            return False
        return all(fits(value[name]) for name, fits in fields if name in value)

    return fits_map


def _compile_list_check(schema: Object) -> StructureCheck:
    item = compile_structure_check(schema.get("items") or {})
    # Items that are identified by keys cannot be null.
    allows_null = schema.get(LIST_TYPE) != "map"

    def fits_list(value: Any) -> bool:
        if value.__class__ is not list:
            return value is None
        return item is None or all(item(one) and (one is not None or allows_null) for one in value)

    return fits_list


# ----------------------------------------------------------------------------------------- defaults

Defaulter = Callable[[Any], None]


def compile_defaulter(schema: Object) -> Defaulter | None:
    """Return the defaulter of a schema; None if it has no defaults."""
    fill_fields = _compile_field_defaulter(schema)
    items = schema.get("items")
    fill_items = _compile_item_defaulter(items) if isinstance(items, dict) else None
    if fill_fields is None and fill_items is None:
        return None

    def fill(value: Any) -> None:
        if value.__class__ is dict and fill_fields:
            fill_fields(value)
        elif value.__class__ is list and fill_items:
            fill_items(value)

    return fill


def _compile_field_defaulter(schema: Object) -> Defaulter | None:
    fields, more = schema.get("properties", {}), schema.get("additionalProperties")
    defaults = [(name, one["default"]) for name, one in fields.items() if "default" in one]
    # Scalars can be shared, other defaults must be copied.
    scalars = [row for row in defaults if isinstance(row[1], _SCALAR_TYPES)]
    trees = [row for row in defaults if not isinstance(row[1], _SCALAR_TYPES)]
    inner = [(name, made) for name, one in fields.items() if (made := compile_defaulter(one))]
    others = compile_defaulter(more) if isinstance(more, dict) else None
    if not (scalars or trees or inner or others):
        return None

    def fill(value: Any) -> None:
        for name, default in scalars:
            value.setdefault(name, default)
        for name, default in trees:
            if name not in value:
                value[name] = deepcopy(default)
        for name, fill_inner in inner:
            if name in value:
                fill_inner(value[name])
        if others is not None:
            for one in value.values():
                others(one)

    return fill


def _compile_item_defaulter(schema: Object) -> Defaulter | None:
    """Return the defaulter of the items of a list, and of null items."""
    fill = compile_defaulter(schema)
    replaces = "default" in schema and not schema.get("nullable")
    if fill is None and not replaces:
        return None

    def fill_items(value: Any) -> None:
        for at, item in enumerate(value):
            if item is None and replaces:
                value[at] = deepcopy(schema["default"])
            if fill is not None:
                fill(value[at])

    return fill_items


MAP_TYPE = "x-kubernetes-map-type"
#: Errors that prevent the evaluation of rules.
_RULE_BLOCKING_REASONS = frozenset((
    "FieldValueRequired", "FieldValueTooLong", "FieldValueTooMany", "FieldValueTypeInvalid",
))  # fmt: skip
_RULES_NOT_CHECKED = (
    "some validation rules were not checked because the object was invalid; correct the existing "
    "errors to complete validation"
)

_STANDARD_FINALIZERS = ("foregroundDeletion", "orphan")


@dataclass(frozen=True, slots=True)
class CompiledSchema:
    """What a schema does to objects: see the head of the module."""

    matches_structure: StructureCheck
    prune: Pruner
    #: None if the schema has no defaults.
    apply_defaults: Defaulter | None
    check: SchemaCheck
    check_status: SchemaCheck
    rules: RuleValidator | None
    schema: Schema


class CustomResourceStrategy:
    """The strategy of one version of a custom kind."""

    def __init__(self, kind: Kind, schema: SharedSchema, *, has_status: bool) -> None:
        self._kind, self._has_status = kind, has_status
        #: Referred to, so that later revisions of the definition share it.
        self._shared, compiled = schema, schema.compiled
        self._matches_structure, self._prune = compiled.matches_structure, compiled.prune
        self._apply_defaults = compiled.apply_defaults or (lambda obj: None)
        self._check, self._check_status = compiled.check, compiled.check_status
        self._rules = compiled.rules

    @property
    def schema(self) -> Schema:
        """The schema, for patches and field management."""
        return self._shared.compiled.schema

    def normalize(self, obj: Object, *, keep_empty: bool = False) -> NormalizationResult:
        """Prune unknown fields in place. Raises Malformed for metadata only."""
        return NormalizationResult(tuple(path.removeprefix(".") for path in self._prune(obj)))

    def matches_structure(self, obj: Object) -> bool:
        """Whether the object has objects and lists where the schema has them; else it is
        invalid.
        """
        return self._matches_structure(obj)

    def apply_defaults(self, obj: Object) -> None:
        """Add the defaults of the schema in place."""
        self._apply_defaults(obj)

    def prepare_for_create(self, obj: Object, now: str) -> None:
        """Remove a status that is written through its subresource."""
        if self._has_status:
            obj.pop("status", None)

    def prepare_for_update(self, new: Object, old: Object, now: str) -> None:
        """Do nothing: no field of a custom resource follows from a change."""

    def validate(self, new: Object, old: Object | None, subresource: str) -> Sequence[Cause]:
        """Return what is invalid in an object, or in its status."""
        meta_causes = check_metadata(self._kind, new, old)
        head = {"apiVersion": self._kind.api_version, "kind": self._kind.name}
        whole, before = {**head, **new}, CREATED if old is None else {**head, **old}
        if subresource == "status":
            causes = (
                self._check_status(new["status"], (old or {}).get("status", CREATED), "status")
                if "status" in new
                else ()
            )
        else:
            causes = self._check(whole, before, "")
        if self._rules is not None:
            if any(cause.reason in _RULE_BLOCKING_REASONS for cause in causes):
                causes = [*causes, invalid("<nil>", None, _RULES_NOT_CHECKED)]
            else:
                causes = [*causes, *self._rules.validate(whole, before)]
        return list(dict.fromkeys((*meta_causes, *causes))) if meta_causes or causes else ()

    def warnings(self, new: Object, old: Object | None) -> Sequence[str]:
        """Warn of new finalizers without a domain, which other writers may use too."""
        known = (old or {"metadata": {}})["metadata"].get("finalizers") or ()
        return [
            f'metadata.finalizers: "{name}": prefer a domain-qualified finalizer name including a '
            "path (/) to avoid accidental conflicts with other finalizer writers"
            for name in new["metadata"].get("finalizers") or ()
            if "/" not in name and name not in known and name not in _STANDARD_FINALIZERS
        ]


def has_rules(schema: Object) -> bool:
    """Whether a schema has CEL rules at any level."""
    parts = (schema.get("items"), schema.get("additionalProperties"))
    inner = [*schema.get("properties", {}).values(), *(one for one in parts if one)]
    return bool(schema.get(VALIDATIONS)) or any(has_rules(one) for one in inner if one is not True)


def count_rules(value: Any) -> int:
    """Return how many CEL rules there are in schemas, which may be malformed."""
    count, unvisited = 0, [value] if VALIDATIONS.encode() in orjson.dumps(value) else []
    while unvisited:
        one = unvisited.pop()
        if isinstance(one, dict):
            rules = one.get(VALIDATIONS)
            count += len(rules) if isinstance(rules, list) else 0
            unvisited += one.values()
        elif isinstance(one, list):
            unvisited += one
    return count


def compile_rules(
    schema: Object, *, root: bool = False, reached: Object | None = None
) -> RuleValidator | None:
    """Return the validator of the CEL rules of a schema, or of a part of it (`reached`).

    Imports the CEL package at first use.
    """
    if not has_rules(schema if reached is None else reached):
        return None
    from phalanx.api.cel.validation_rules import compile_validator

    return compile_validator(schema, root=root, reached=reached)


# -------------------------------------------------------------------------------------------- shape

_SCALARS = {"string": "string", "boolean": "bool", "integer": "int64", "number": "number"}


def schema_node(schema: Object) -> SchemaNode:
    """Convert a schema to a node of `definitions.py` with inline structs.

    An object that preserves unknown fields without declaring any is owned as one value.
    """
    struct = _value_node(schema)
    fields = struct["p"] if isinstance(struct, dict) and "p" in struct else {}
    head: dict[str, SchemaNode] = {"apiVersion": "string", "kind": "string"}
    return {"p": {**fields, **head, "metadata": {"t": OBJECT_META, "d": {}}}}


def _value_node(schema: Object) -> SchemaNode:
    kind, more = schema.get("type", ""), schema.get("additionalProperties")
    if schema.get(INT_OR_STRING):
        return "int-or-string"
    if kind in _SCALARS:
        return _SCALARS[kind]
    if kind == "array":
        keys = {"k": schema[LIST_KEYS]} if LIST_KEYS in schema else {}
        items = _value_node(schema.get("items") or {})
        return {"l": items, "lt": schema.get(LIST_TYPE, "atomic"), **keys}
    if kind == "object" and more:
        return {"m": _value_node(more) if isinstance(more, dict) else "any", **_map_type(schema)}
    fields: dict[str, SchemaNode] = {}
    for name, one in schema.get("properties", {}).items():
        node = fields[name] = _value_node(one)
        if "default" in one:
            facts = {"t": node} if isinstance(node, str) else node
            fields[name] = {**facts, "d": one["default"]}
    if kind == "object" and (fields or not schema.get(PRESERVE_UNKNOWN_FIELDS)):
        return {"p": fields, "r": schema.get("required", []), **_map_type(schema)}
    return "any"


def _map_type(schema: Object) -> dict[str, Any]:
    return {"mt": schema[MAP_TYPE]} if MAP_TYPE in schema else {}
