"""Patches: merge patch, JSON patch and strategic merge patch of an object.

Pure; the server validates and stores the result. `apply_patch` may change the given object in
place, so the caller must not use it afterwards. A patch that cannot be applied raises PatchFailed.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Collection
from typing import Any

import jsonpatch
import jsonpointer
import orjson

from phalanx.api.schema import Schema
from phalanx.api.wire import JSON_PATCH, MERGE_PATCH, STRATEGIC_PATCH, Object

#: The largest number of operations in one JSON patch, as in Kubernetes.
MAX_OPERATIONS = 10_000
#: The bytes that `copy` operations of one JSON patch may add: each could double the object.
MAX_COPIED_BYTES = 3 * 1024 * 1024
#: The levels that the paths of one JSON patch may have in total: each is a step from the root.
MAX_PATH_LEVELS = 100_000

_SET_ELEMENT_ORDER = "$setElementOrder/"
_DELETE_FROM_LIST = "$deleteFromPrimitiveList/"
_PATHS = ("path", "from")
#: Operations whose missing value is null, as in Kubernetes.
_OPERATIONS_WITH_VALUE = ("add", "replace", "test")
_ADDING = ("add", "copy", "move")
_NEGATIVE_INDEX = re.compile(r"/-[1-9]\d{0,8}(?=/|$)")
_DIRECTIVE = "$patch"
_RETAIN_KEYS = "$retainKeys"


class PatchFailed(ValueError):
    """The patch does not fit the object, or has a wrong structure."""


class MalformedPatch(PatchFailed):
    """The patch is not of the JSON type that its content type requires."""


class TooManyOperations(PatchFailed):
    """The JSON patch has too many operations, or copies too many bytes."""


def apply_patch(content_type: str, schema: Schema, obj: Object, *, patch: Any) -> Object:
    """Return the object after a patch of the given content type."""
    return _APPLY_BY_TYPE[content_type](schema, obj, patch)


def affected_fields(content_type: str, obj: Object, patch: Any) -> Collection[str]:
    """Return the top-level fields that a patch of the given content type may change."""
    if content_type == JSON_PATCH or any(key.startswith("$") for key in patch or ()):
        return tuple(obj)
    return [key for key in patch or () if key in obj]


def merge_patch(obj: Any, patch: Any) -> Any:
    """Apply a merge patch: objects are merged, null removes, everything else replaces."""
    if not isinstance(patch, dict):
        return patch
    result = obj if isinstance(obj, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merge_patch(result.get(key), value)
    return result


def _apply_merge_patch(schema: Schema, obj: Object, patch: Any) -> Object:
    if not isinstance(patch, dict):
        raise MalformedPatch("error decoding patch: a merge patch must be an object")
    merged: Object = merge_patch(obj, patch)
    return merged


def _apply_json_patch(schema: Schema, obj: Object, patch: Any) -> Object:
    patch = [] if patch is None else patch
    if not isinstance(patch, list):
        raise MalformedPatch("error decoding patch: a JSON patch must be a list of operations")
    if not all(isinstance(step, (dict, type(None))) for step in patch):
        raise MalformedPatch("an operation of a JSON patch must be an object")
    if None in patch:
        raise PatchFailed("an operation of a JSON patch must not be null")
    if len(patch) > MAX_OPERATIONS:
        raise TooManyOperations(
            f"the allowed maximum operations in a JSON patch is {MAX_OPERATIONS}, got {len(patch)}"
        )
    if sum(str(step.get(key, "")).count("/") for step in patch for key in _PATHS) > MAX_PATH_LEVELS:
        raise TooManyOperations(
            f"the paths of a JSON patch may have no more than {MAX_PATH_LEVELS} levels in total"
        )
    changed: Any = obj
    copied = 0
    for step in patch:
        changed, size = _apply_operation(changed, step)
        copied += size
        if copied > MAX_COPIED_BYTES:
            raise TooManyOperations(f"a JSON patch may copy no more than {MAX_COPIED_BYTES} bytes")
    if not isinstance(changed, dict):
        raise PatchFailed("a JSON patch must leave an object")
    return changed


def _apply_operation(obj: Any, step: Object) -> tuple[Any, int]:
    """Return the object after one operation, and the number of bytes that it copied."""
    try:
        size = 0
        for key in _PATHS:
            if "/-" in str(step.get(key, "")):
                adds = key == "path" and step.get("op") in _ADDING
                step = {**step, key: _from_start(obj, step[key], adds=adds)}
        if step.get("op") == "copy":
            source = orjson.dumps(jsonpointer.resolve_pointer(obj, step["from"]))
            size = len(source)
            step = {"op": "add", "path": step["path"], "value": orjson.loads(source)}
        if step.get("op") in _OPERATIONS_WITH_VALUE:
            step = {"value": None, **step}
        if _is_test_of_absence(obj, step):
            return obj, size
        return jsonpatch.JsonPatch([_replace_as_add(obj, step)]).apply(obj, in_place=True), size
    except (
        jsonpatch.JsonPatchException,
        jsonpointer.JsonPointerException,
        KeyError,
        TypeError,
        AttributeError,
    ) as error:
        raise PatchFailed(str(error)) from error


def _from_start(obj: Any, pointer: Any, *, adds: bool) -> Any:
    """Return a pointer whose indexes from the end of a list count from its start.

    Kubernetes takes `-1` for the last item, and for the end of a list that an item is added to.
    """
    if not isinstance(pointer, str) or not _NEGATIVE_INDEX.search(pointer):
        return pointer
    tokens, value = pointer.split("/"), obj
    for at, token in enumerate(tokens[1:], start=1):
        if isinstance(value, list) and _NEGATIVE_INDEX.fullmatch(f"/{token}"):
            index = int(token) + len(value) + (adds and at == len(tokens) - 1)
            if index < 0:
                raise PatchFailed(f"unable to access invalid index: {token}")
            tokens[at] = token = str(index)
        value = jsonpointer.JsonPointer(f"/{token}").resolve(value, None)
    return "/".join(tokens)


def _is_test_of_absence(obj: Object, step: Object) -> bool:
    """Whether an operation tests for null a field that is absent: Kubernetes finds it equal."""
    if step.get("op") != "test" or step["value"] is not None or not step.get("path"):
        return False
    path, _, key = str(step["path"]).rpartition("/")
    parent = jsonpointer.JsonPointer(path).resolve(obj, None)
    return isinstance(parent, dict) and jsonpointer.unescape(key) not in parent


def _replace_as_add(obj: Object, step: Object) -> Object:
    """Turn a `replace` of a missing field into `add`: Kubernetes creates it, the library fails."""
    if step.get("op") != "replace" or not isinstance(step.get("path"), str) or not step["path"]:
        return step
    parent = jsonpointer.JsonPointer(step["path"].rpartition("/")[0]).resolve(obj, None)
    return {**step, "op": "add"} if isinstance(parent, dict) else step


def _apply_strategic_patch(schema: Schema, obj: Object, patch: Any) -> Object:
    if patch is None:
        return obj
    if not isinstance(patch, dict):
        raise MalformedPatch("a strategic merge patch must be an object")
    merged = _merge_maps(schema, obj, patch)
    return {} if merged is None else merged


def _merge_maps(schema: Schema | None, obj: Object, patch: Object) -> Object | None:
    """Merge one object into another; None removes the object."""
    directives = [key for key in patch if key.startswith("$")]
    if not directives:
        _merge_fields(schema, obj, patch)
        return obj
    directive = patch.get(_DIRECTIVE)
    if directive == "delete":
        return None
    if directive == "replace":
        return {key: value for key, value in patch.items() if key != _DIRECTIVE}
    if directive not in (None, "merge"):
        raise PatchFailed(f"unknown $patch: {directive}")
    result = _retain_keys(obj, patch)
    fields = {key: value for key, value in patch.items() if key not in directives}
    # As in Kubernetes, the list of a directive is merged once, with its directive.
    for key in directives:
        if key.startswith(_SET_ELEMENT_ORDER):
            _reorder(schema, result, key, fields=fields, wanted=_directive_list(patch, key))
    _merge_fields(schema, result, fields)
    for key in directives:
        if key.startswith(_DELETE_FROM_LIST):
            name = key.removeprefix(_DELETE_FROM_LIST)
            removed = set(map(_hashable, _directive_list(patch, key)))
            result[name] = [
                item for item in _list_field(result, name) if _hashable(item) not in removed
            ]
    return result


def _directive_list(patch: Object, key: str) -> list[Any]:
    """Return the value of a directive, which is a list."""
    value = patch[key]
    if not isinstance(value, list):
        raise MalformedPatch(f"{key} must be a list")
    return value


def _list_field(obj: Object, name: str) -> list[Any]:
    """Return the list that a directive refers to."""
    found = obj.get(name) or []
    if not isinstance(found, list):
        raise PatchFailed(f"{name} must be a list")
    return found


def _retain_keys(obj: Object, patch: Object) -> Object:
    keys = patch.get(_RETAIN_KEYS)
    if not isinstance(keys, (list, type(None))):
        raise MalformedPatch(f"{_RETAIN_KEYS} must be a list of names")
    if keys is None:
        return obj
    retained = set(map(_hashable, keys))
    return {key: value for key, value in obj.items() if key in retained}


def _merge_fields(schema: Schema | None, result: Object, fields: Object) -> None:
    for key, value in fields.items():
        # A large patch consists of scalars mostly: these do not need the schema.
        if value is None:
            result.pop(key, None)
        elif isinstance(value, (dict, list)):
            _merge_field(schema.field(key) if schema else None, result, key, value=value)
        else:
            result[key] = value


def _merge_field(
    schema: Schema | None, result: Object, key: str, *, value: Object | list[Any]
) -> None:
    """Merge an object or a list into the field of an object."""
    old = result.get(key)
    if isinstance(value, dict):
        if schema and schema.patch_strategy == "replace":
            result[key] = value
            return
        merged = _merge_maps(schema, old if isinstance(old, dict) else {}, value)
        if merged is None:
            result.pop(key, None)
        else:
            result[key] = merged
    elif schema and "merge" in schema.patch_strategy.split(","):
        if old is None and not any(isinstance(i, dict) and _DIRECTIVE in i for i in value):
            result[key] = value  # A new list is taken as it is, without comparing keys.
        else:
            result[key] = _merge_lists(schema, old if isinstance(old, list) else [], value)
    else:
        result[key] = value


def _merge_lists(schema: Schema, old: list[Any], patch: list[Any]) -> list[Any]:
    if not schema.merge_key:
        known = set(map(_hashable, old))
        both = [*old, *(item for item in patch if _hashable(item) not in known)]
        return _order_items(both, old, patch, key="")
    if not all(isinstance(item, dict) for item in patch):
        raise PatchFailed("a list that is merged by key must hold objects")
    if any(item.get(_DIRECTIVE) == "replace" for item in patch):
        return [item for item in patch if _DIRECTIVE not in item]
    return _order_items(_merge_keyed_items(schema, old, patch), old, patch, key=schema.merge_key)


def _merge_keyed_items(schema: Schema, old: list[Any], patch: list[Any]) -> list[Any]:
    """Delete every item whose key the patch deletes, then merge its other items or append them.

    As in Kubernetes the place of a deletion in the patch does not matter. An item is merged into
    the first one with the same key.
    """
    key = schema.merge_key
    for item in patch:
        if not isinstance(item.get(key), (str, int)):
            raise PatchFailed(f"map: {item} does not contain declared merge key: {key}")
    deleted = {item[key] for item in patch if item.get(_DIRECTIVE) == "delete"}
    kept = [
        (found, item)
        for found, item in zip(_identities(old, key), old, strict=True)
        if found not in deleted
    ]
    result = [item for _, item in kept]
    places: dict[Any, int] = {}
    for at, (found, _) in enumerate(kept):
        places.setdefault(found, at)
    for item in patch:
        if item.get(_DIRECTIVE) == "delete":
            continue
        place = places.setdefault(item[key], len(result))
        if place == len(result):
            result.append({})
        result[place] = _merge_maps(schema.items, result[place], item)
    return result


def _reorder(
    schema: Schema | None, result: Object, directive: str, *, fields: Object, wanted: list[Any]
) -> None:
    """Merge a list and order it as `$setElementOrder` says; take it out of the patch's fields."""
    name = directive.removeprefix(_SET_ELEMENT_ORDER)
    inner = schema.field(name) if schema else None
    if inner is None:
        raise PatchFailed(f"{directive} does not fit the object")
    old = list(_list_field(result, name))
    if name in fields:
        _merge_fields(schema, result, {name: fields.pop(name)})
    if name in result:
        result[name] = _order_items(_list_field(result, name), old, wanted, key=inner.merge_key)


def _order_items(items: list[Any], old: list[Any], wanted: list[Any], *, key: str) -> list[Any]:
    """Order the listed items as listed; each other item stays behind its predecessor."""
    place = {found: at for at, found in enumerate(_identities(wanted, key))}
    known = list(zip(_identities(items, key), items, strict=True))
    named = [row for row in known if row[0] in place]
    named.sort(key=lambda row: place[row[0]])
    if len(named) == len(items):
        return [item for _, item in named]
    was = {found: at for at, found in enumerate(_identities(old, key))}
    others = deque(row for row in known if row[0] not in place)
    result: list[Any] = []
    for found, item in named:
        first = was.get(found)
        while others and first is not None and was.get(others[0][0], len(old)) < first:
            result.append(others.popleft()[1])
        result.append(item)
    return [*result, *(item for _, item in others)]


def _hashable(item: Any) -> Any:
    """Return a list item for use in a set: containers as JSON."""
    if isinstance(item, (dict, list)):
        return orjson.dumps(item, option=orjson.OPT_SORT_KEYS)
    return item


def _identities(items: list[Any], key: str) -> list[Any]:
    """Return the identity of each list item: its merge key, or the item itself."""
    identities = [item.get(key) if isinstance(item, dict) else item for item in items]
    for found in identities:
        if isinstance(found, (dict, list)):
            raise PatchFailed(f"{found} cannot tell one item of a list from another")
    return identities


_APPLY_BY_TYPE: dict[str, Callable[[Schema, Object, Any], Object]] = {
    MERGE_PATCH: _apply_merge_patch,
    JSON_PATCH: _apply_json_patch,
    STRATEGIC_PATCH: _apply_strategic_patch,
}
