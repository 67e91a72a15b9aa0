"""What lies between two objects, and what an object consists of, as sets of fields.

The first half of field ownership: `ownership.py` decides by these sets who owns what. Equal parts
are never entered, so that a comparison costs what has changed. Objects conform to their schema and
are not changed.

Applied configurations: merged into an object, and what they no longer say taken out of it.

    merged      structs and maps by key, keyed lists and sets by item, everything else replaced
    pruned      an object without some of its fields
    fault       why a configuration cannot be merged

Results share parts with what they were made of; nothing is changed in place. Whose fields may be
set or taken out is decided in `ownership.py`.
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
from phalanx.api.json_cache import CACHE_SIZE, MAX_CACHED_BYTES, compact_json
from phalanx.api.schema import Schema
from phalanx.api.wire import Object

#: What says which object it is, or is counted by the server, is nobody's.
_UNOWNED: Final = frozenset({"apiVersion", "kind", "metadata"})
_UNOWNED_METADATA: Final = frozenset({
    "name", "namespace", "uid", "resourceVersion", "generation", "creationTimestamp",
    "deletionTimestamp", "deletionGracePeriodSeconds", "selfLink", "managedFields",
})  # fmt: skip
_METADATA: Final = field_element("metadata")


#: From one value of a shape to another: what changed, what was removed.
_Descend = Callable[[FieldType, Any, Any], tuple[Tree, Tree]]


class FieldComparison(NamedTuple):
    """The fields that were added or got another value, and those that are gone."""

    changed: FieldSet
    removed: FieldSet


def compare(schema: Schema, old: Object | None, new: Object) -> FieldComparison:
    """From an object, or from none, to another. Whatever holds added fields counts as added."""
    if old is None:
        changed, removed = _compare_values(
            schema_type(schema), empty_object(schema), _without_unowned(new), _compare_with_empty
        )
    else:
        changed, removed = _compare_values(
            schema_type(schema), _without_unowned(old), _without_unowned(new)
        )
    return FieldComparison(FieldSet(changed), FieldSet(removed))


def owned_fields(schema: Schema, obj: Object) -> FieldSet:
    """The fields that an object states: values and items, not the structs that hold them."""
    tree = _value_tree(schema_type(schema), _without_unowned(obj), False, False)
    if not tree[_METADATA]:
        del tree[_METADATA]
    return FieldSet(tree)


def _without_unowned(obj: Object) -> Object:
    meta = obj.get("metadata") or {}
    visible = {key: value for key, value in obj.items() if key not in _UNOWNED}
    visible["metadata"] = {key: meta[key] for key in meta if key not in _UNOWNED_METADATA}
    return visible


# ------------------------------------------------------------------------------------- one value


def _value_tree(shape: FieldType, value: Any, include_self: bool, include_structs: bool) -> Tree:
    """The tree of what a value holds, and of `itself`.

    Items and the values of maps are members by themselves, structs only if `holders` count.
    """
    tree: Tree = {SELF: {}} if include_self else {}
    if isinstance(shape, AssociativeList):
        for part in value:
            element, inner = shape.item_element(part), shape.item
            if inner is None or not part or element in tree:
                tree[element] = {}
            else:
                tree[element] = _value_tree(inner, part, True, include_structs)
        return sort_tree(tree)
    counts = include_structs or shape.owns_itself
    for name in sorted(value):
        part, inner = value[name], shape.field_type(name)
        if inner is None or not part:
            tree[f"f:{name}"] = {}
        else:
            tree[f"f:{name}"] = _value_tree(inner, part, counts, include_structs)
    return tree


def _cached_value_tree(shape: FieldType | None, value: Any) -> Tree:
    """The tree of a value that came or went as a whole."""
    if shape is None or not value:
        return {}
    text = compact_json(value)
    return (
        _tree_of_json(shape, text)
        if len(text) <= MAX_CACHED_BYTES
        else _value_tree(shape, value, True, True)
    )


@lru_cache(maxsize=CACHE_SIZE)
def _tree_of_json(shape: FieldType, text: bytes) -> Tree:
    """Members of a gang are created with the same words; what these hold is found out once."""
    return _value_tree(shape, orjson.loads(text), True, True)


# ------------------------------------------------------------------------------------ two values


def _compare_with_empty(shape: FieldType, blank: Any, new: Any) -> tuple[Tree, Tree]:
    """What lies between a part of an object that nobody has said anything of yet and what it is."""
    text = compact_json(new)
    if len(text) > MAX_CACHED_BYTES:
        return _compare_values(shape, blank, new)
    return _compare_json(shape, compact_json(blank), text)


@lru_cache(maxsize=CACHE_SIZE)
def _compare_json(shape: FieldType, blank: bytes, text: bytes) -> tuple[Tree, Tree]:
    return _compare_values(shape, orjson.loads(blank), orjson.loads(text))


def _compare_values(
    shape: FieldType, old: Any, new: Any, descend: _Descend | None = None
) -> tuple[Tree, Tree]:
    """The trees of what changed and of what was removed, of two values that are not equal.

    `inwards` goes on in a part that both have.
    """
    changed: Tree = {}
    removed: Tree = {}
    for element, inner, was, now in _differing_parts(shape, old, new):
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


def _differing_parts(shape: FieldType, old: Any, new: Any) -> Iterator[_Difference]:
    """The parts in which two values differ, with both sides. Null is the same as empty."""
    if isinstance(shape, AssociativeList):
        yield from _differing_items(shape, old or [], new or [])
        return
    old, new = old or {}, new or {}
    for name, now in new.items():
        was = old.get(name, ABSENT)
        if was != now:
            yield field_element(name), shape.field_type(name), was, now
    for name, was in old.items():
        if name not in new:
            yield field_element(name), shape.field_type(name), was, ABSENT


def _differing_items(
    shape: AssociativeList, old: list[Any], new: list[Any]
) -> Iterator[_Difference]:
    """Items that stand more than once are one field that is compared as a whole."""
    before, after = shape.group_by_element(old), shape.group_by_element(new)
    for element, now in after.items():
        was = before.get(element, [ABSENT])
        if was != now:
            inner = shape.item if len(was) == len(now) == 1 else None
            yield element, inner, was[0], now[0]
    for element, was in before.items():
        if element not in after:
            yield element, shape.item if len(was) == 1 else None, was[0], ABSENT


def merge_configuration(schema: Schema, live: Object, config: Object) -> Object:
    """The live object with all that a configuration says."""
    result: Object = _merge_value(schema_type(schema), live, config)
    return result


def remove_fields(schema: Schema, obj: Object, gone: FieldSet) -> Object:
    """An object without some fields and whatever is below them."""
    result: Object = _remove_from_value(schema_type(schema), obj, gone.to_fields_v1())
    return result


def include_parent_structs(schema: Schema, fields: FieldSet) -> FieldSet:
    """A set with the fields of structs that hold its members, as these come and go with them."""
    return FieldSet(_include_parent_structs(schema_type(schema), fields.to_fields_v1()))


def find_merge_error(schema: Schema, config: Object) -> str:
    """Why items of a configuration cannot be told apart, "" if they can."""
    return _find_error(schema_type(schema), config, ())


# -------------------------------------------------------------------------------------- merging


def _merge_value(shape: FieldType | None, live: Any, config: Any) -> Any:
    if shape is None or live is None:
        return config
    if not config:
        return live
    if isinstance(shape, AssociativeList):
        return _merge_items(shape, live, config)
    inner = {
        name: _merge_value(shape.field_type(name), live[name], value) if name in live else value
        for name, value in config.items()
    }
    return {**live, **inner}


def _merge_items(shape: AssociativeList, live: list[Any], config: list[Any]) -> list[Any]:
    """Configured items in their order; each other item stays behind what it stood behind."""
    theirs = [(shape.item_element(item), item) for item in live]
    were = dict(reversed(theirs))
    ours = {shape.item_element(item): item for item in config}
    result: list[Any] = []
    at = 0
    for element, stop in _next_live_elements(list(ours), were):
        while at < len(theirs) and theirs[at][0] != stop:
            if theirs[at][0] not in ours:
                result.append(theirs[at][1])
            at += 1
        result.append(_merge_value(shape.item, were.get(element), ours[element]))
    result.extend(item for element, item in theirs[at:] if element not in ours)
    return result


def _next_live_elements(elements: list[str], were: dict[str, Any]) -> list[tuple[str, str]]:
    """Each element with the live one that follows it: items before that come first; "" for all."""
    stop, stops = "", []
    for element in reversed(elements):
        stop = element if element in were else stop
        stops.append((element, stop))
    return stops[::-1]


# -------------------------------------------------------------------------------------- pruning


def _remove_from_value(shape: FieldType | None, value: Any, gone: Tree | None) -> Any:
    if shape is None or not value or gone is None:
        return value
    if isinstance(shape, AssociativeList):
        branches = [gone.get(shape.item_element(item)) for item in value]
        items = zip(value, branches, strict=True)
        return [
            _remove_from_value(shape.item, item, branch)
            for item, branch in items
            if not _is_removed(branch)
        ]
    return {
        name: _remove_from_value(shape.field_type(name), part, gone.get(field_element(name)))
        for name, part in value.items()
        if not _is_removed(gone.get(field_element(name)))
    }


def _is_removed(branch: Tree | None) -> bool:
    return branch is not None and (not branch or SELF in branch)


def _include_parent_structs(shape: FieldType | None, tree: Tree) -> Tree:
    result: Tree = {}
    for element, branch in tree.items():
        inner = (
            shape.item
            if isinstance(shape, AssociativeList)
            else shape and shape.field_type(element[2:])
        )
        below = _include_parent_structs(inner, branch)
        holds = isinstance(shape, StructType) and below and SELF not in below
        result[element] = {SELF: {}, **below} if holds else below
    return result


# --------------------------------------------------------------------------------------- faults


def _find_error(shape: FieldType | None, value: Any, path: ElementPath) -> str:
    if shape is None or not value:
        return ""
    if isinstance(shape, AssociativeList):
        return _find_item_error(shape, value, path)
    below = (
        _find_error(shape.field_type(name), part, (*path, field_element(name)))
        for name, part in value.items()
    )
    return next(filter(None, below), "")


def _find_item_error(shape: AssociativeList, items: list[Any], path: ElementPath) -> str:
    for at, item in enumerate(items):
        for key in shape.keys:
            if key not in item and key not in shape.defaults:
                return (
                    f"{format_path(path)}: element {at}: associative list with keys has an element "
                    f'that omits key field "{key}" (and doesn\'t have default value)'
                )
    groups = shape.group_by_element(items)
    for element, group in groups.items():
        if len(group) > 1:
            return f"{format_path(path)}: duplicate entries for key {format_path((element,))}"
    below = (_find_error(shape.item, one, (*path, element)) for element, (one,) in groups.items())
    return next(filter(None, below), "")
