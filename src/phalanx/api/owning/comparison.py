"""What lies between two objects, and what an object consists of, as sets of fields.

The first half of field ownership: `ownership.py` decides by these sets who owns what. Equal parts
are never entered, so that a comparison costs what has changed. Objects conform to their schema and
are not changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any, Final, NamedTuple

import orjson

from phalanx.api.owning.fieldset import SELF, FieldSet, Tree, named, sorted_tree
from phalanx.api.owning.shape import ABSENT, Items, Shape, blank_of, shape
from phalanx.api.packing import LONGEST, REMEMBERED, packed
from phalanx.api.schema import Schema
from phalanx.api.wire import Object

#: What says which object it is, or is counted by the server, is nobody's.
_UNOWNED: Final = frozenset({"apiVersion", "kind", "metadata"})
_UNOWNED_METADATA: Final = frozenset({
    "name", "namespace", "uid", "resourceVersion", "generation", "creationTimestamp",
    "deletionTimestamp", "deletionGracePeriodSeconds", "selfLink", "managedFields",
})  # fmt: skip
_METADATA: Final = named("metadata")


#: From one value of a shape to another: what changed, what was removed.
_Inwards = Callable[[Shape, Any, Any], tuple[Tree, Tree]]


class Comparison(NamedTuple):
    """The fields that were added or got another value, and those that are gone."""

    changed: FieldSet
    removed: FieldSet


def compare(schema: Schema, old: Object | None, new: Object) -> Comparison:
    """From an object, or from none, to another. Whatever holds added fields counts as added."""
    if old is None:
        changed, removed = _between(shape(schema), blank_of(schema), _ownable(new), _grown)
    else:
        changed, removed = _between(shape(schema), _ownable(old), _ownable(new))
    return Comparison(FieldSet(changed), FieldSet(removed))


def owned(schema: Schema, obj: Object) -> FieldSet:
    """The fields that an object states: values and items, not the structs that hold them."""
    tree = _tree(shape(schema), _ownable(obj), False, False)
    if not tree[_METADATA]:
        del tree[_METADATA]
    return FieldSet(tree)


def _ownable(obj: Object) -> Object:
    meta = obj.get("metadata") or {}
    visible = {key: value for key, value in obj.items() if key not in _UNOWNED}
    visible["metadata"] = {key: meta[key] for key in meta if key not in _UNOWNED_METADATA}
    return visible


# ------------------------------------------------------------------------------------- one value


def _tree(shape: Shape, value: Any, itself: bool, holders: bool) -> Tree:
    """The tree of what a value holds, and of `itself`.

    Items and the values of maps are members by themselves, structs only if `holders` count.
    """
    tree: Tree = {SELF: {}} if itself else {}
    if isinstance(shape, Items):
        for part in value:
            element, inner = shape.element(part), shape.item
            if inner is None or not part or element in tree:
                tree[element] = {}
            else:
                tree[element] = _tree(inner, part, True, holders)
        return sorted_tree(tree)
    counts = holders or shape.counts
    for name in sorted(value):
        part, inner = value[name], shape.inner(name)
        if inner is None or not part:
            tree[f"f:{name}"] = {}
        else:
            tree[f"f:{name}"] = _tree(inner, part, counts, holders)
    return tree


def _whole(shape: Shape | None, value: Any) -> Tree:
    """The tree of a value that came or went as a whole."""
    if shape is None or not value:
        return {}
    text = packed(value)
    return _remembered(shape, text) if len(text) <= LONGEST else _tree(shape, value, True, True)


@lru_cache(maxsize=REMEMBERED)
def _remembered(shape: Shape, text: bytes) -> Tree:
    """Members of a gang are created with the same words; what these hold is found out once."""
    return _tree(shape, orjson.loads(text), True, True)


# ------------------------------------------------------------------------------------ two values


def _grown(shape: Shape, blank: Any, new: Any) -> tuple[Tree, Tree]:
    """What lies between a part of an object that nobody has said anything of yet and what it is."""
    text = packed(new)
    if len(text) > LONGEST:
        return _between(shape, blank, new)
    return _remembered_growth(shape, packed(blank), text)


@lru_cache(maxsize=REMEMBERED)
def _remembered_growth(shape: Shape, blank: bytes, text: bytes) -> tuple[Tree, Tree]:
    return _between(shape, orjson.loads(blank), orjson.loads(text))


def _between(
    shape: Shape, old: Any, new: Any, inwards: _Inwards | None = None
) -> tuple[Tree, Tree]:
    """The trees of what changed and of what was removed, of two values that are not equal.

    `inwards` goes on in a part that both have.
    """
    changed: Tree = {}
    removed: Tree = {}
    for element, inner, was, now in _unequal(shape, old, new):
        if was is ABSENT:
            changed[element] = _whole(inner, now)
        elif now is ABSENT:
            removed[element] = _whole(inner, was)
        elif inner is None or not (was or now):
            changed[element] = {}
        else:
            more, less = (inwards or _between)(inner, was, now)
            if more:
                changed[element] = more
            if less:
                removed[element] = less
    return sorted_tree(changed), sorted_tree(removed)


_Pair = tuple[str, Shape | None, Any, Any]


def _unequal(shape: Shape, old: Any, new: Any) -> Iterator[_Pair]:
    """The parts in which two values differ, with both sides. Null is the same as empty."""
    if isinstance(shape, Items):
        yield from _unequal_items(shape, old or [], new or [])
        return
    old, new = old or {}, new or {}
    for name, now in new.items():
        was = old.get(name, ABSENT)
        if was != now:
            yield named(name), shape.inner(name), was, now
    for name, was in old.items():
        if name not in new:
            yield named(name), shape.inner(name), was, ABSENT


def _unequal_items(shape: Items, old: list[Any], new: list[Any]) -> Iterator[_Pair]:
    """Items that stand more than once are one field that is compared as a whole."""
    before, after = shape.grouped(old), shape.grouped(new)
    for element, now in after.items():
        was = before.get(element, [ABSENT])
        if was != now:
            inner = shape.item if len(was) == len(now) == 1 else None
            yield element, inner, was[0], now[0]
    for element, was in before.items():
        if element not in after:
            yield element, shape.item if len(was) == 1 else None, was[0], ABSENT
