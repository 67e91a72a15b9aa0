"""Applied configurations: merged into an object, and what they no longer say taken out of it.

    merged      structs and maps by key, keyed lists and sets by item, everything else replaced
    pruned      an object without some of its fields
    fault       why a configuration cannot be merged

Results share parts with what they were made of; nothing is changed in place. Whose fields may be
set or taken out is decided in `ownership.py`.
"""

from __future__ import annotations

from typing import Any

from phalanx.api.owning.fieldset import SELF, FieldSet, Path, Tree, dotted, named
from phalanx.api.owning.shape import Items, Shape, Struct, shape
from phalanx.api.schema import Schema
from phalanx.api.wire import Object


def merged(schema: Schema, live: Object, config: Object) -> Object:
    """The live object with all that a configuration says."""
    result: Object = _merged(shape(schema), live, config)
    return result


def pruned(schema: Schema, obj: Object, gone: FieldSet) -> Object:
    """An object without some fields and whatever is below them."""
    result: Object = _pruned(shape(schema), obj, gone.to_fields_v1())
    return result


def with_structs(schema: Schema, fields: FieldSet) -> FieldSet:
    """A set with the fields of structs that hold its members, as these come and go with them."""
    return FieldSet(_with_structs(shape(schema), fields.to_fields_v1()))


def fault(schema: Schema, config: Object) -> str:
    """Why items of a configuration cannot be told apart, "" if they can."""
    return _fault(shape(schema), config, ())


# -------------------------------------------------------------------------------------- merging


def _merged(shape: Shape | None, live: Any, config: Any) -> Any:
    if shape is None or live is None:
        return config
    if not config:
        return live
    if isinstance(shape, Items):
        return _merged_items(shape, live, config)
    inner = {
        name: _merged(shape.inner(name), live[name], value) if name in live else value
        for name, value in config.items()
    }
    return {**live, **inner}


def _merged_items(shape: Items, live: list[Any], config: list[Any]) -> list[Any]:
    """Configured items in their order; each other item stays behind what it stood behind."""
    theirs = [(shape.element(item), item) for item in live]
    were = dict(reversed(theirs))
    ours = {shape.element(item): item for item in config}
    result: list[Any] = []
    at = 0
    for element, stop in _stops(list(ours), were):
        while at < len(theirs) and theirs[at][0] != stop:
            if theirs[at][0] not in ours:
                result.append(theirs[at][1])
            at += 1
        result.append(_merged(shape.item, were.get(element), ours[element]))
    result.extend(item for element, item in theirs[at:] if element not in ours)
    return result


def _stops(elements: list[str], were: dict[str, Any]) -> list[tuple[str, str]]:
    """Each element with the live one that follows it: items before that come first; "" for all."""
    stop, stops = "", []
    for element in reversed(elements):
        stop = element if element in were else stop
        stops.append((element, stop))
    return stops[::-1]


# -------------------------------------------------------------------------------------- pruning


def _pruned(shape: Shape | None, value: Any, gone: Tree | None) -> Any:
    if shape is None or not value or gone is None:
        return value
    if isinstance(shape, Items):
        branches = [gone.get(shape.element(item)) for item in value]
        items = zip(value, branches, strict=True)
        return [_pruned(shape.item, item, branch) for item, branch in items if not _goes(branch)]
    return {
        name: _pruned(shape.inner(name), part, gone.get(named(name)))
        for name, part in value.items()
        if not _goes(gone.get(named(name)))
    }


def _goes(branch: Tree | None) -> bool:
    return branch is not None and (not branch or SELF in branch)


def _with_structs(shape: Shape | None, tree: Tree) -> Tree:
    result: Tree = {}
    for element, branch in tree.items():
        inner = shape.item if isinstance(shape, Items) else shape and shape.inner(element[2:])
        below = _with_structs(inner, branch)
        holds = isinstance(shape, Struct) and below and SELF not in below
        result[element] = {SELF: {}, **below} if holds else below
    return result


# --------------------------------------------------------------------------------------- faults


def _fault(shape: Shape | None, value: Any, path: Path) -> str:
    if shape is None or not value:
        return ""
    if isinstance(shape, Items):
        return _items_fault(shape, value, path)
    below = (_fault(shape.inner(name), part, (*path, named(name))) for name, part in value.items())
    return next(filter(None, below), "")


def _items_fault(shape: Items, items: list[Any], path: Path) -> str:
    for at, item in enumerate(items):
        for key in shape.keys:
            if key not in item and key not in shape.defaults:
                return (
                    f"{dotted(path)}: element {at}: associative list with keys has an element "
                    f'that omits key field "{key}" (and doesn\'t have default value)'
                )
    groups = shape.grouped(items)
    for element, group in groups.items():
        if len(group) > 1:
            return f"{dotted(path)}: duplicate entries for key {dotted((element,))}"
    below = (_fault(shape.item, one, (*path, element)) for element, (one,) in groups.items())
    return next(filter(None, below), "")
