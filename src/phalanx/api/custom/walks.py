"""Walks along a structural schema: what of a value is unknown, does not fit, or is missing.

    pruner    drops what the schema does not know, in place, and says where that was
    fitter    whether objects and lists stand where the schema has them
    filler    adds the defaults that the schema tells, in place

Each is made once per schema (`structural.py`) and goes only where there can be something to do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any

from phalanx.api.conform import Malformed, conform
from phalanx.api.custom.checks import EMBEDDED, LIST_TYPE
from phalanx.api.wire import Object

PRESERVE = "x-kubernetes-preserve-unknown-fields"
META = "meta.v1.ObjectMeta"

# ------------------------------------------------------------------------------------------ pruning

#: Prunes a value in place; where it had unknown fields: `.spec.x`, `.list[0].y`.
Prune = Callable[[Any], Sequence[str]]
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


def pruner(schema: Object, *, keeps: bool = False) -> Prune:
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


def _prune_items(prune: Prune, value: list[Any]) -> Sequence[str]:
    unknown: list[str] = []
    for at, item in enumerate(value):
        if item.__class__ not in _PLAIN and (found := prune(item)):
            unknown += [f"[{at}]{path}" for path in found]
    return unknown


def _field_pruner(schema: Object, *, keeps: bool) -> Prune:
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
            elif inner.__class__ not in _PLAIN or prune_inner is _prune_metadata:
                unknown += [f".{key}{path}" for path in prune_inner(inner)]
        for key in gone:
            del value[key]
        return unknown

    return prune


def _prune_metadata(value: Any) -> Sequence[str]:
    """Metadata, the root's or that of an object inside of an object."""
    try:
        return [f".{path}" for path in conform(META, value).unknown]
    except Malformed as error:
        raise error.within(".metadata") from None


# ------------------------------------------------------------------------------------------ fitting

Fits = Callable[[Any], bool]


def fitter(schema: Object) -> Fits | None:
    """Whether a value is an object or a list where its schema says so; None if it says neither."""
    if schema.get("type") == "array":
        return _list_fitter(schema)
    if schema.get("type") != "object":
        return None
    more = schema.get("additionalProperties")
    fields = [(n, fits) for n, s in schema.get("properties", {}).items() if (fits := fitter(s))]
    values = fitter(more) if isinstance(more, dict) else None

    def fits_map(value: Any) -> bool:
        if value.__class__ is not dict:
            return value is None
        if values is not None and not all(map(values, value.values())):
            return False
        return all(fits(value[name]) for name, fits in fields if name in value)

    return fits_map


def _list_fitter(schema: Object) -> Fits:
    item = fitter(schema.get("items") or {})
    # Items that are told apart by keys must have some.
    null = schema.get(LIST_TYPE) != "map"

    def fits_list(value: Any) -> bool:
        if value.__class__ is not list:
            return value is None
        return item is None or all(item(one) and (one is not None or null) for one in value)

    return fits_list


# ----------------------------------------------------------------------------------------- defaults

Fill = Callable[[Any], None]


def filler(schema: Object) -> Fill | None:
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


def _field_filler(schema: Object) -> Fill | None:
    fields, more = schema.get("properties", {}), schema.get("additionalProperties")
    scalars, trees = _defaults(fields)
    inner = [(name, made) for name, one in fields.items() if (made := filler(one))]
    others = filler(more) if isinstance(more, dict) else None
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


def _item_filler(schema: Object) -> Fill | None:
    """The filler of a list: of what is in its items, and of items that are null."""
    fill = filler(schema)
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
