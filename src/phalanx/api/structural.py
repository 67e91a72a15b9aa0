"""The model of a kind that users define: what its openAPIV3Schema says, compiled once.

    conform   drops what the schema does not know, and nulls where it knows of none
    fill      adds the defaults that it tells
    begin     forgets a status that is not the maker's to say
    faults    checks values (`structuralchecks.py`); a wrong type is a fault like any other

Metadata is judged as that of every kind. The schema is structural (`schemarules.py`): its fields
are told outside of combinations, so that one walk along them suffices. Rules in CEL are kept and
not enforced (`unsupported`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from typing import Any

from phalanx.api.checks import CREATED
from phalanx.api.conform import Conformed, Malformed, conform
from phalanx.api.definitions import Node
from phalanx.api.errors import Cause
from phalanx.api.kinds import Kind
from phalanx.api.metarules import check_metadata
from phalanx.api.schema import Schema
from phalanx.api.structuralchecks import (
    EMBEDDED,
    INT_OR_STRING,
    LIST_KEYS,
    LIST_TYPE,
    compiled,
)
from phalanx.api.valuechecks import Check
from phalanx.api.wire import Object

PRESERVE = "x-kubernetes-preserve-unknown-fields"
MAP_TYPE = "x-kubernetes-map-type"
RULES = "x-kubernetes-validations"

_META = "meta.v1.ObjectMeta"
_ENVELOPE = ("apiVersion", "kind", "metadata")


class StructuralModel:
    """How objects of one version of a custom kind are judged."""

    def __init__(self, kind: Kind, schema: Object, *, has_status: bool) -> None:
        self._kind, self._has_status = kind, has_status
        self._prune = pruner({**schema, EMBEDDED: True})
        self._fill = _filler(schema) or _leave
        self._check = compiled(schema)
        status = schema.get("properties", {}).get("status")
        self._check_status: Check = compiled(status) if status else _accept
        self._schema = Schema(node(schema))

    @property
    def schema(self) -> Schema:
        """The shape of an object: what field ownership goes by."""
        return self._schema

    def conform(self, obj: Object) -> Conformed:
        """Drop in place what does not belong; only metadata can be malformed."""
        keys = _count(obj)
        return Conformed(tuple(path.removeprefix(".") for path in self._prune(obj)), keys)

    def fill(self, obj: Object) -> None:
        """Add in place the defaults that the schema tells."""
        self._fill(obj)

    def begin(self, obj: Object, now: str) -> None:
        """Forget a status that has its own path."""
        if self._has_status:
            obj.pop("status", None)

    def faults(self, new: Object, old: Object | None, part: str) -> Sequence[Cause]:
        """What is wrong with an object, or with its status."""
        about_meta = check_metadata(self._kind, new, old)
        if part == "status":
            causes = self._status_faults(new, old or {})
        else:
            head = {"apiVersion": self._kind.api_version, "kind": self._kind.name}
            causes = self._check({**head, **new}, CREATED if old is None else {**head, **old}, "")
        return list(dict.fromkeys((*about_meta, *causes))) if about_meta or causes else ()

    def _status_faults(self, new: Object, old: Object) -> Sequence[Cause]:
        if "status" not in new:
            return ()
        return self._check_status(new["status"], old.get("status", CREATED), "status")


def unsupported(schema: Object) -> list[str]:
    """Where a schema asks for what is not enforced: rules in CEL."""
    return [path.removeprefix(".") for path, one in _schemas(schema, "") if one.get(RULES)]


def _schemas(schema: Object, path: str) -> Iterator[tuple[str, Object]]:
    """A schema and those of all that can stand in its values, with where that is."""
    yield path, schema
    for name, one in schema.get("properties", {}).items():
        yield from _schemas(one, f"{path}.{name}")
    if isinstance(schema.get("items"), dict):
        yield from _schemas(schema["items"], f"{path}[*]")
    if isinstance(schema.get("additionalProperties"), dict):
        yield from _schemas(schema["additionalProperties"], f"{path}.*")


def _accept(value: Any, old: Any, path: str) -> Sequence[Cause]:
    return ()


def _leave(value: Any) -> None:
    return None


def _count(value: Any) -> int:
    """How many keys the objects in a value have."""
    keys, todo = 0, [value]
    for inner in todo:
        if inner.__class__ is dict:
            keys += len(inner)
            todo.extend(inner.values())
        elif inner.__class__ is list:
            todo.extend(inner)
    return keys


# ------------------------------------------------------------------------------------------ pruning

#: Prunes a value in place; where it had unknown fields: `.spec.x`, `.list[0].y`.
_Prune = Callable[[Any], Sequence[str]]
_PLAIN = (str, int, float, bool)
#: What makes a schema say something of what is in a value.
_HOLDERS = ("properties", "additionalProperties", "items", EMBEDDED)


def _prune_all(value: Any) -> Sequence[str]:
    """What nobody knows: objects are emptied, whatever else there is stays."""
    if value.__class__ is dict:
        unknown = [f".{key}" for key in value]
        value.clear()
        return unknown
    return _prune_items(_prune_all, value) if value.__class__ is list else ()


def pruner(schema: Object, *, keeps: bool = False) -> _Prune:
    """The pruner of a schema; `keeps` says that unknown fields stay, for its items too."""
    keeps = keeps or bool(schema.get(PRESERVE))
    prune_fields = _field_pruner(schema, keeps=keeps)
    items = schema.get("items")
    prune_item = pruner(items, keeps=keeps) if isinstance(items, dict) else _prune_all

    def prune(value: Any) -> Sequence[str]:
        if value.__class__ is dict:
            return prune_fields(value)
        return _prune_items(prune_item, value) if value.__class__ is list else ()

    return prune if not keeps or any(key in schema for key in _HOLDERS) else _keep


def _keep(value: Any) -> Sequence[str]:
    return ()


def _prune_items(prune: _Prune, value: list[Any]) -> Sequence[str]:
    unknown: list[str] = []
    for at, item in enumerate(value):
        if item.__class__ not in _PLAIN and (found := prune(item)):
            unknown += [f"[{at}]{path}" for path in found]
    return unknown


def _field_pruner(schema: Object, *, keeps: bool) -> _Prune:
    fields = {name: pruner(one) for name, one in schema.get("properties", {}).items()}
    nullable = {n for n, one in schema.get("properties", {}).items() if one.get("nullable")}
    more = schema.get("additionalProperties")
    others = pruner(more) if isinstance(more, dict) else _prune_all if more else None
    keeps_null = others is None or (isinstance(more, dict) and bool(more.get("nullable")))
    if schema.get(EMBEDDED):
        fields |= {"apiVersion": _keep, "kind": _keep, "metadata": _prune_metadata}

    def prune(value: Any) -> Sequence[str]:
        unknown: list[str] = []
        gone: list[str] = []
        for key, inner in value.items():
            prune_inner = fields.get(key, others)
            if prune_inner is None:
                if not keeps:
                    unknown.append(f".{key}")
                    gone.append(key)
            elif inner is None:
                if not (key in nullable if key in fields else keeps_null):
                    gone.append(key)
            elif inner.__class__ not in _PLAIN and (found := prune_inner(inner)):
                unknown += [f".{key}{path}" for path in found]
        for key in gone:
            del value[key]
        return unknown

    return prune


def _prune_metadata(value: Any) -> Sequence[str]:
    """Metadata, the root's or that of an object inside of an object."""
    try:
        return [f".{path}" for path in conform(_META, value).unknown]
    except Malformed as error:
        raise error.within(".metadata") from None


# ----------------------------------------------------------------------------------------- defaults

_Fill = Callable[[Any], None]


def _filler(schema: Object) -> _Fill | None:
    """The filler of a schema, if there can be anything to fill in."""
    fill_fields = _field_filler(schema)
    items = schema.get("items")
    fill_items = _item_filler(items) if isinstance(items, dict) else None
    if fill_fields is None and fill_items is None:
        return None

    def fill(value: Any) -> None:
        if value.__class__ is dict and fill_fields:
            fill_fields(value)
        elif value.__class__ is list and fill_items:
            fill_items(value)

    return fill


def _field_filler(schema: Object) -> _Fill | None:
    fields, more = schema.get("properties", {}), schema.get("additionalProperties")
    scalars, trees = _defaults(fields)
    inner = [(name, filler) for name, one in fields.items() if (filler := _filler(one))]
    others = _filler(more) if isinstance(more, dict) else None
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


def _defaults(fields: Object) -> tuple[list[tuple[str, Any]], list[tuple[str, Any]]]:
    """Defaults that can be shared, and those that must be copied."""
    told = [(name, one["default"]) for name, one in fields.items() if "default" in one]
    scalars = [row for row in told if isinstance(row[1], _PLAIN)]
    return scalars, [row for row in told if not isinstance(row[1], _PLAIN)]


def _item_filler(schema: Object) -> _Fill | None:
    """The filler of a list: of what is in its items, and of items that are null."""
    fill = _filler(schema)
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


# -------------------------------------------------------------------------------------------- shape

_SCALARS = {"string": "string", "boolean": "bool", "integer": "int64", "number": "number"}


def node(schema: Object) -> Node:
    """A schema as a node of `definitions.py`, with structs that stand in it themselves.

    What keeps unknown fields is one value to those who own fields: nobody can tell its parts apart.
    """
    struct = _node(schema)
    fields = struct["p"] if isinstance(struct, dict) and "p" in struct else {}
    head: dict[str, Node] = {"apiVersion": "string", "kind": "string"}
    return {"p": {**fields, **head, "metadata": {"t": _META, "d": {}}}}


def _node(schema: Object) -> Node:
    kind, more = schema.get("type", ""), schema.get("additionalProperties")
    if schema.get(INT_OR_STRING):
        return "int-or-string"
    if kind in _SCALARS:
        return _SCALARS[kind]
    if kind == "array":
        return _list_node(schema)
    if kind == "object" and more:
        return {"m": _node(more) if isinstance(more, dict) else "any", **_map_type(schema)}
    fields = {name: _default_node(one) for name, one in schema.get("properties", {}).items()}
    if kind == "object" and (fields or not schema.get(PRESERVE)):
        return {"p": fields, "r": schema.get("required", []), **_map_type(schema)}
    return "any"


def _default_node(schema: Object) -> Node:
    found = _node(schema)
    facts = {"t": found} if isinstance(found, str) else found
    return {**facts, "d": schema["default"]} if "default" in schema else found


def _list_node(schema: Object) -> Node:
    facts: dict[str, Any] = {"l": _node(schema.get("items") or {})}
    facts["lt"] = schema.get(LIST_TYPE, "atomic")
    return {**facts, "k": schema[LIST_KEYS]} if LIST_KEYS in schema else facts


def _map_type(schema: Object) -> dict[str, Any]:
    return {"mt": schema[MAP_TYPE]} if MAP_TYPE in schema else {}
