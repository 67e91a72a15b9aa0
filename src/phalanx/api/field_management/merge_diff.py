"""Comparing objects as sets of fields, and merging applied configurations.

    compare                 the fields that changed, and those that were removed
    owned_fields            the fields that a configuration states
    merge_configuration     structs and maps by key, associative lists by item, all else replaced
    remove_fields           an object without some of its fields
    find_merge_error        why a configuration cannot be merged

`managed_fields.py` decides by these sets which manager owns which field. Equal parts are never
entered, so a comparison costs only what has changed. Objects conform to their schema and are not
changed; results share parts with them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any, Final, NamedTuple

import orjson

from phalanx.api.field_management.field_set import (
    SELF,
    ElementPath,
    FieldSet,
    Tree,
    field_element,
    format_path,
    sort_tree,
)
from phalanx.api.field_management.field_types import (
    ABSENT,
    AssociativeList,
    FieldType,
    StructType,
    empty_object,
    schema_type,
)
from phalanx.api.schema import Schema
from phalanx.api.wire import CACHE_SIZE, MAX_CACHED_BYTES, Object, compact_json

#: Fields without owner: identity, and fields that the server sets.
_UNOWNED: Final = frozenset({"apiVersion", "kind", "metadata"})
_UNOWNED_METADATA: Final = frozenset({
    "name", "namespace", "uid", "resourceVersion", "generation", "creationTimestamp",
    "deletionTimestamp", "deletionGracePeriodSeconds", "selfLink", "managedFields",
})  # fmt: skip
_METADATA: Final = field_element("metadata")


#: From two values of a type to the changed and the removed fields.
_Descend = Callable[[FieldType, Any, Any], tuple[Tree, Tree]]


class FieldComparison(NamedTuple):
    """The fields that were added or changed, and those that were removed."""

    changed: FieldSet
    removed: FieldSet


def compare(schema: Schema, old: Object | None, new: Object) -> FieldComparison:
    """Compare an object, or none, with its next state. Structs with added fields count as added."""
    if old is None:
        changed, removed = _compare_values(
            schema_type(schema),
            empty_object(schema),
            _without_unowned(new),
            descend=_compare_with_empty,
        )
    else:
        changed, removed = _compare_values(
            schema_type(schema), _without_unowned(old), _without_unowned(new)
        )
    return FieldComparison(FieldSet(changed), FieldSet(removed))


def owned_fields(schema: Schema, obj: Object) -> FieldSet:
    """Return the fields that an object states: values and items, without their structs."""
    tree = _value_tree(
        schema_type(schema), _without_unowned(obj), include_self=False, include_structs=False
    )
    if not tree[_METADATA]:
        del tree[_METADATA]
    return FieldSet(tree)


def _without_unowned(obj: Object) -> Object:
    meta = obj.get("metadata") or {}
    visible = {key: value for key, value in obj.items() if key not in _UNOWNED}
    visible["metadata"] = {key: meta[key] for key in meta if key not in _UNOWNED_METADATA}
    return visible


# ------------------------------------------------------------------------------------- one value


def _value_tree(
    value_type: FieldType, value: Any, *, include_self: bool, include_structs: bool
) -> Tree:
    """Return the tree of a value, with itself as a member if `include_self`.

    Items and map values are always members, structs only if `include_structs`.
    """
    tree: Tree = {SELF: {}} if include_self else {}
    if isinstance(value_type, AssociativeList):
        for part in value:
            element, inner = value_type.item_element(part), value_type.item
            if inner is None or not part or element in tree:
                tree[element] = {}
            else:
                tree[element] = _value_tree(
                    inner, part, include_self=True, include_structs=include_structs
                )
        return sort_tree(tree)
    owns_fields = include_structs or value_type.owns_itself
    for name in sorted(value):
        part, inner = value[name], value_type.field_type(name)
        if part == [] and isinstance(inner, AssociativeList) and not include_structs:
            continue  # a list without items states nothing
        if inner is None or not part:
            tree[f"f:{name}"] = {}
        else:
            tree[f"f:{name}"] = _value_tree(
                inner, part, include_self=owns_fields, include_structs=include_structs
            )
    if include_structs and isinstance(value_type, StructType) and value_type.written:
        return sort_tree({**{field_element(name): {} for name in value_type.written}, **tree})
    return tree


def _cached_value_tree(value_type: FieldType | None, value: Any) -> Tree:
    """Return the tree of a value that was added or removed as a whole."""
    if value_type is None or not value:
        return {}
    text = compact_json(value)
    return (
        _tree_of_json(value_type, text)
        if len(text) <= MAX_CACHED_BYTES
        else _value_tree(value_type, value, include_self=True, include_structs=True)
    )


# Cached: pods of a gang are created with equal specs.
@lru_cache(maxsize=CACHE_SIZE)
def _tree_of_json(value_type: FieldType, text: bytes) -> Tree:
    return _value_tree(value_type, orjson.loads(text), include_self=True, include_structs=True)


# ------------------------------------------------------------------------------------ two values


def _compare_with_empty(value_type: FieldType, empty: Any, new: Any) -> tuple[Tree, Tree]:
    """Compare a part of a new object with its state before any field was stated."""
    text = compact_json(new)
    if len(text) > MAX_CACHED_BYTES:
        return _compare_values(value_type, empty, new)
    return _compare_json(value_type, compact_json(empty), text)


@lru_cache(maxsize=CACHE_SIZE)
def _compare_json(value_type: FieldType, empty: bytes, text: bytes) -> tuple[Tree, Tree]:
    return _compare_values(value_type, orjson.loads(empty), orjson.loads(text))


def _compare_values(
    value_type: FieldType, old: Any, new: Any, *, descend: _Descend | None = None
) -> tuple[Tree, Tree]:
    """Return the trees of changed and of removed fields of two unequal values.

    `descend` compares a part that both have.
    """
    changed: Tree = {}
    removed: Tree = {}
    for element, inner, was, now in _differing_parts(value_type, old, new):
        if was is ABSENT:
            changed[element] = _cached_value_tree(inner, now)
        elif now is ABSENT:
            removed[element] = _cached_value_tree(inner, was)
        elif inner is None or not (was or now):
            changed[element] = {}
        else:
            more, less = (descend or _compare_values)(inner, was, now)
            if more:
                changed[element] = more
            if less:
                removed[element] = less
    return sort_tree(changed), sort_tree(removed)


_Difference = tuple[str, FieldType | None, Any, Any]


def _differing_parts(value_type: FieldType, old: Any, new: Any) -> Iterator[_Difference]:
    """Yield the parts in which two values differ, with both sides. Null equals empty."""
    if isinstance(value_type, AssociativeList):
        yield from _differing_items(value_type, old or [], new or [])
        return
    old, new = old or {}, new or {}
    for name, now in new.items():
        was = old.get(name, ABSENT)
        if was != now:
            yield field_element(name), value_type.field_type(name), was, now
    for name, was in old.items():
        if name not in new:
            yield field_element(name), value_type.field_type(name), was, ABSENT


def _differing_items(
    value_type: AssociativeList, old: list[Any], new: list[Any]
) -> Iterator[_Difference]:
    """Yield the items that differ. Items with the same element are compared as one field."""
    before, after = value_type.group_by_element(old), value_type.group_by_element(new)
    for element, now in after.items():
        was = before.get(element, [ABSENT])
        if was != now:
            inner = value_type.item if len(was) == len(now) == 1 else None
            yield element, inner, was[0], now[0]
    for element, was in before.items():
        if element not in after:
            yield element, value_type.item if len(was) == 1 else None, was[0], ABSENT


def merge_configuration(schema: Schema, live: Object, config: Object) -> Object:
    """Return the live object with all fields of a configuration."""
    result: Object = _merge_value(schema_type(schema), live, config)
    return result


def remove_fields(schema: Schema, obj: Object, removed: FieldSet) -> Object:
    """Return an object without some fields and everything below them."""
    result: Object = _remove_from_value(schema_type(schema), obj, removed.to_fields_v1())
    return result


def include_parent_structs(schema: Schema, fields: FieldSet) -> FieldSet:
    """Return a set extended by the structs that hold its members, which come and go with them."""
    return FieldSet(_include_parent_structs(schema_type(schema), fields.to_fields_v1()))


def find_merge_error(schema: Schema, config: Object) -> str:
    """Return why items of a configuration cannot be distinguished; "" if they can."""
    return _find_error(schema_type(schema), config, ())


# -------------------------------------------------------------------------------------- merging


def _merge_value(value_type: FieldType | None, live: Any, config: Any) -> Any:
    if value_type is None or live is None:
        return config
    if not config:
        return live
    if isinstance(value_type, AssociativeList):
        return _merge_items(value_type, live, config)
    inner = {
        name: _merge_value(value_type.field_type(name), live[name], value)
        if name in live
        else value
        for name, value in config.items()
    }
    return {**live, **inner}


def _merge_items(value_type: AssociativeList, live: list[Any], config: list[Any]) -> list[Any]:
    """Return configured items in their order; each other item stays behind its predecessor."""
    live_items = [(value_type.item_element(item), item) for item in live]
    live_by_element = dict(reversed(live_items))
    configured = {value_type.item_element(item): item for item in config}
    result: list[Any] = []
    at = 0
    for element, stop in _next_live_elements(list(configured), live_by_element):
        while at < len(live_items) and live_items[at][0] != stop:
            if live_items[at][0] not in configured:
                result.append(live_items[at][1])
            at += 1
        result.append(
            _merge_value(value_type.item, live_by_element.get(element), configured[element])
        )
    result.extend(item for element, item in live_items[at:] if element not in configured)
    return result


def _next_live_elements(
    elements: list[str], live_by_element: dict[str, Any]
) -> list[tuple[str, str]]:
    """Return each element with the next live one ("" if none): other items before that come
    first.
    """
    stop, stops = "", []
    for element in reversed(elements):
        stop = element if element in live_by_element else stop
        stops.append((element, stop))
    return stops[::-1]


# -------------------------------------------------------------------------------------- pruning


def _remove_from_value(value_type: FieldType | None, value: Any, removed: Tree | None) -> Any:
    if value_type is None or not value or removed is None:
        return value
    if isinstance(value_type, AssociativeList):
        branches = [removed.get(value_type.item_element(item)) for item in value]
        items = zip(value, branches, strict=True)
        return [
            _remove_from_value(value_type.item, item, branch)
            for item, branch in items
            if not _is_removed(branch)
        ]
    kept: Object = {}
    for name, part in value.items():
        branch = removed.get(field_element(name))
        if branch is None:
            kept[name] = part
        elif not _is_removed(branch):
            kept[name] = _remove_from_value(value_type.field_type(name), part, branch)
    return kept


def _is_removed(branch: Tree | None) -> bool:
    return branch is not None and (not branch or SELF in branch)


def _include_parent_structs(value_type: FieldType | None, tree: Tree) -> Tree:
    result: Tree = {}
    for element, branch in tree.items():
        if not branch:
            result[element] = branch
            continue
        inner = (
            value_type.item
            if isinstance(value_type, AssociativeList)
            else value_type and value_type.field_type(element[2:])
        )
        below = _include_parent_structs(inner, branch)
        holds = isinstance(value_type, StructType) and below and SELF not in below
        result[element] = {SELF: {}, **below} if holds else below
    return result


# --------------------------------------------------------------------------------------- faults


def _find_error(value_type: FieldType | None, value: Any, path: ElementPath) -> str:
    if value_type is None or not value:
        return ""
    if isinstance(value_type, AssociativeList):
        return _find_item_error(value_type, value, path)
    below = (
        _find_error(value_type.field_type(name), part, (*path, field_element(name)))
        for name, part in value.items()
        if isinstance(part, (dict, list))
    )
    return next(filter(None, below), "")


def _find_item_error(value_type: AssociativeList, items: list[Any], path: ElementPath) -> str:
    for at, item in enumerate(items):
        for key in value_type.keys:
            if key not in item and key not in value_type.defaults:
                return (
                    f"{format_path(path)}: element {at}: associative list with keys has an element "
                    f'that omits key field "{key}" (and doesn\'t have default value)'
                )
    groups = value_type.group_by_element(items)
    for element, group in groups.items():
        if len(group) > 1:
            return f"{format_path(path)}: duplicate entries for key {format_path((element,))}"
    below = (
        _find_error(value_type.item, one, (*path, element)) for element, (one,) in groups.items()
    )
    return next(filter(None, below), "")
