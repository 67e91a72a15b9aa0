"""Alias resolution: requests rewritten to stored field names, by the rows of `aliases.py`.

    body, merge patch, strategic patch, configuration    a tree: fields are renamed in place
    JSON patch                                           its paths, and the trees in its values

Runs before merging, so neither merging nor field management sees an alias. If a request has two
names of one field, a null gives way to the other value; two values are refused.

No stored object has an alias, so an alias with null removes nothing: `kubectl apply` sends it for a
name that the manifest no longer uses, even if the manifest now uses the stored name. The field is
removed only if the manifest is sent along and has neither name.

Pure; the server returns the warnings and causes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, reduce
from typing import Any, NamedTuple

import orjson

from phalanx.api.conversion.aliases import (
    ALIASES_BY_STRUCT,
    LIST_DIRECTIVES,
    RETAIN_KEYS,
    FieldAlias,
)
from phalanx.api.conversion.workload_references import ConvertedValue
from phalanx.api.errors import Cause, forbidden, invalid, prefix_causes
from phalanx.api.meta import LAST_APPLIED_ANNOTATION
from phalanx.api.schema import FieldPath, FieldTree, build_field_tree
from phalanx.api.wire import JSON_PATCH, MERGE_PATCH, STRATEGIC_PATCH, Object

Annotations = Mapping[str, str]

_MERGE_PATCHES = (MERGE_PATCH, STRATEGIC_PATCH)
#: Operations of a JSON patch that set the value at their path.
_WRITE_OPERATIONS = ("add", "replace", "copy", "move")


@dataclass(frozen=True, slots=True)
class ResolvedRequest:
    """A request with stored names, warnings for its client, and causes why it is refused.

    `annotations` are to be added after a JSON patch is applied, each with the path of its object.
    """

    value: Any
    warnings: Sequence[str] = ()
    causes: Sequence[Cause] = ()
    annotations: Sequence[tuple[FieldPath, Annotations]] = ()


def resolve_aliases(
    struct: str, content_type: str, body: Any, *, namespace: str = ""
) -> ResolvedRequest | None:
    """Return a request for an object of a struct with stored names; None if it has no alias.

    References with a namespace must name the object's own namespace.
    """
    root = _alias_tree(struct)
    if root is None or not (content_type == JSON_PATCH or _has_aliases(root, body)):
        return None
    resolver, value = _AliasResolver(content_type, namespace), body
    if content_type != JSON_PATCH:
        manifest = _last_applied(body) if content_type in _MERGE_PATCHES else None
        resolver.resolve_tree(
            root, _WalkPosition(body, _FieldLocation(), body, last_applied=manifest)
        )
    elif isinstance(body, list) and all(isinstance(step, dict) for step in body):
        # Applying refuses a patch of any other structure.
        value = [resolver.resolve_operation(root, step) for step in body]
    return ResolvedRequest(
        value, resolver.warnings, resolver.causes, annotations=resolver.annotations
    )


def annotate(obj: Object, annotations: Iterable[tuple[FieldPath, Annotations]]) -> None:
    """Add the annotations of a resolved JSON patch to the patched object."""
    for path, added in annotations:
        owner = reduce(_step_into, path, obj)
        if isinstance(owner, dict):
            _add_annotations(owner, added)


def _step_into(value: Any, step: str) -> Any:
    """Return the child after a patch; later operations may have removed it."""
    if isinstance(value, list) and step.isdecimal():
        return next(iter(value[int(step) :]), None)
    return value.get(step) if isinstance(value, dict) else None


@lru_cache(maxsize=1024)
def _alias_tree(struct: str) -> FieldTree[FieldAlias] | None:
    rows = {
        name: [(alias.parent_path, alias) for alias in found]
        for name, found in ALIASES_BY_STRUCT.items()
    }
    return build_field_tree(struct, rows)


def _has_aliases(tree: FieldTree[FieldAlias], value: Any) -> bool:
    """Whether a request may have an alias; checked for every request, and rarely true."""
    if value.__class__ is dict:
        for alias in tree.rows:
            for key in alias.trigger_keys:
                if key in value:
                    return True
        for step, below in tree.fields.items():
            if step in value and _has_aliases(below, value[step]):
                return True
    elif value.__class__ is list and tree.item is not None:
        return any(_has_aliases(tree.item, item) for item in value)
    return False


def _last_applied(patch: Object) -> Any:
    """Return the manifest that `kubectl apply` sends with its patch, if there is one."""
    try:
        return orjson.loads(patch["metadata"]["annotations"][LAST_APPLIED_ANNOTATION])
    except (KeyError, TypeError, ValueError):
        return None


class _FieldLocation(NamedTuple):
    """The path of a field, as the request has it and with stored names."""

    written: str = ""
    stored: str = ""

    def field(self, written: str, stored: str) -> _FieldLocation:
        return _FieldLocation(_join_path(self.written, written), _join_path(self.stored, stored))

    def item(self, at: object) -> _FieldLocation:
        return _FieldLocation(f"{self.written}[{at}]", f"{self.stored}[{at}]")

    def alias(self, alias: FieldAlias) -> _FieldLocation:
        return self.field(alias.name, alias.stored_name)


class _WalkPosition(NamedTuple):
    """A value of a tree, its path, and the value that the last applied manifest has there.

    Its owner is the struct that has it as its spec: an object, or the path of one outside the tree.
    """

    value: Any
    location: _FieldLocation
    owner: Any
    last_applied: Any


def _children(
    tree: FieldTree[FieldAlias], position: _WalkPosition, spellings: Mapping[str, str]
) -> Iterator[tuple[FieldTree[FieldAlias], _WalkPosition]]:
    """Yield the child positions; `spellings` has the request's names of renamed fields."""
    value, location, _, manifest = position
    if isinstance(value, dict):
        for step, inner in tree.fields.items():
            if step in value:
                last_applied = manifest.get(step) if isinstance(manifest, dict) else None
                inner_location = location.field(spellings.get(step, step), step)
                yield (
                    inner,
                    _WalkPosition(value[step], inner_location, value, last_applied=last_applied),
                )
    elif isinstance(value, list) and tree.item is not None:
        for at, item in enumerate(value):
            yield (
                tree.item,
                _WalkPosition(
                    item,
                    location.item(at),
                    value,
                    last_applied=_find_last_applied_item(manifest, item),
                ),
            )


def _request_spellings(tree: FieldTree[FieldAlias], value: Any) -> dict[str, str]:
    """Return the names that a request uses for fields, by stored name."""
    if not isinstance(value, dict):
        return {}
    rows = [alias for alias in tree.rows if alias.convert is None]
    return {row.stored_name: row.name for row in rows if value.get(row.name) is not None}


def _find_last_applied_item(items: Any, item: Any) -> Any:
    """Return the item of the manifest that agrees with all strings of a patched item."""
    if not isinstance(items, list) or not isinstance(item, dict):
        return None
    texts = {key: text for key, text in item.items() if isinstance(text, str) and key[:1] != "$"}
    known = (one for one in items if isinstance(one, dict))
    return next((one for one in known if texts and texts.items() <= one.items()), None)


def _join_path(path: str, step: str) -> str:
    return f"{path}.{step}" if path else step


class _PatchTarget(NamedTuple):
    """The target of a JSON pointer: the pointer with stored names, its alias, its position."""

    pointer: str
    alias: FieldAlias | None
    tree: FieldTree[FieldAlias] | None
    location: _FieldLocation

    @property
    def owner(self) -> FieldPath:
        """The path of the struct that has the target, or the struct around it, as its spec."""
        path = tuple(self.pointer.split("/")[1:])
        return path[:-1] if self.alias is None else path[:-2]


class _AliasResolver:
    """Resolves the aliases of one request, and collects warnings and causes."""

    def __init__(self, content_type: str, namespace: str) -> None:
        self._content_type, self._namespace = content_type, namespace
        #: The pointer that the JSON patch uses for each stored pointer that it writes.
        self._spellings: dict[str, str] = {}
        self.warnings: list[str] = []
        self.causes: list[Cause] = []
        self.annotations: list[tuple[FieldPath, Annotations]] = []

    # ------------------------------------------------------------------------------------- trees

    def resolve_tree(self, tree: FieldTree[FieldAlias], position: _WalkPosition) -> None:
        """Rename fields in place, here and below."""
        spellings = _request_spellings(tree, position.value)
        if isinstance(position.value, dict):
            for alias in tree.rows:
                if alias.name in position.value:
                    self._resolve_field(alias, position)
                if self._content_type == STRATEGIC_PATCH:
                    _rename_directives(alias, position.value)
        for inner, below in _children(tree, position, spellings):
            self.resolve_tree(inner, below)

    def _resolve_field(self, alias: FieldAlias, position: _WalkPosition) -> None:
        """Move the value of an alias to the stored name."""
        struct, name = position.value, alias.stored_name
        value, location = struct.pop(alias.name), position.location.alias(alias)
        if value is None:
            _clear_stored_field(alias, position)
            return
        self._warn(location)
        value = self._convert(alias, value, location.written, owner=position.owner)
        other = struct.get(name)
        if other is not None and value is not None:
            value = _merge_spellings(alias, other, value)
            if value is None:
                self._reject_duplicate(alias, location.written)
        elif name in struct and other is None and self._content_type == STRATEGIC_PATCH:
            # The patch replaces the stored name by the alias, so it replaces the whole value.
            value = {"$patch": "replace", **value} if isinstance(value, dict) else value
        struct[name] = value

    def _convert(self, alias: FieldAlias, value: Any, location: str, *, owner: Any) -> Any:
        """Convert a value to its stored form."""
        if alias.convert is None:
            return value
        converted = alias.convert(value)
        if not isinstance(converted, ConvertedValue):
            self.causes += prefix_causes(location, converted)
            return None
        if converted.namespace not in ("", self._namespace):
            detail = f"must be the namespace of the object itself, {self._namespace}"
            self.causes.append(invalid(f"{location}.namespace", converted.namespace, detail))
        if converted.annotations:
            self._annotate_owner(owner, converted.annotations)
        return converted.value

    def _annotate_owner(self, owner: Any, annotations: Annotations) -> None:
        if isinstance(owner, dict):
            _add_annotations(owner, annotations)
        elif owner is not None:
            self.annotations.append((owner, annotations))

    # ------------------------------------------------------------------------------ JSON patches

    def resolve_operation(self, root: FieldTree[FieldAlias], step: Object) -> Object:
        """Return one operation of a JSON patch with stored names."""
        result = dict(step)
        if isinstance(step.get("from"), str):
            result["from"] = self._resolve_pointer(root, step["from"]).pointer
        if not isinstance(step.get("path"), str):
            return result
        target = self._resolve_pointer(root, step["path"])
        result["path"] = target.pointer
        if step.get("op") in _WRITE_OPERATIONS:
            spelled = self._spellings.setdefault(target.pointer, step["path"])
            if spelled != step["path"] and target.alias:
                self._reject_duplicate(target.alias, target.location.written)
        owner = None if step.get("op") == "test" else target.owner
        if "value" in step:
            result["value"] = self._resolve_value(target, step["value"], owner)
        return result

    def _resolve_pointer(self, root: FieldTree[FieldAlias], pointer: str) -> _PatchTarget:
        """Follow a JSON pointer field by field, and rename aliases."""
        steps, location = pointer.split("/"), _FieldLocation()
        tree: FieldTree[FieldAlias] | None = root
        alias: FieldAlias | None = None
        for at, step in enumerate(steps[1:], 1):
            if alias is not None and alias.convert is not None:
                self.causes.append(forbidden(location.written, "may only be written as a whole"))
                return _PatchTarget(pointer, None, None, location=location)
            rows = tree.rows if tree is not None else ()
            alias = next((row for row in rows if row.name == step), None)
            is_item = tree is not None and tree.item is not None
            if alias is not None:
                location = location.alias(alias)
                self._warn(location)
                steps[at] = alias.stored_name
            else:
                location = location.item(step) if is_item else location.field(step, step)
            tree = tree.child(steps[at]) if tree is not None else None
        return _PatchTarget("/".join(steps), alias, tree, location=location)

    def _resolve_value(self, target: _PatchTarget, value: Any, owner: FieldPath | None) -> Any:
        """Resolve aliases in the value of an operation."""
        if value is not None and target.alias is not None and target.alias.convert is not None:
            return self._convert(target.alias, value, target.location.written, owner=owner)
        if target.tree is not None:
            self.resolve_tree(
                target.tree, _WalkPosition(value, target.location, owner, last_applied=None)
            )
        return value

    # ---------------------------------------------------------------------------------- findings

    def _warn(self, location: _FieldLocation) -> None:
        text = f"{location.written}: deprecated; use {location.stored} instead"
        if text not in self.warnings:
            self.warnings.append(text)

    def _reject_duplicate(self, alias: FieldAlias, location: str) -> None:
        detail = f"may not be set together with `{alias.stored_name}`, which it is another name of"
        self.causes.append(forbidden(location, detail))


def _clear_stored_field(alias: FieldAlias, position: _WalkPosition) -> None:
    """Set the stored field to null for an alias with null, if the manifest has neither name."""
    manifest, name = position.last_applied, alias.stored_name
    if (
        isinstance(manifest, dict)
        and manifest.get(name) is None
        and position.value.get(name) is None
    ):
        position.value[name] = None


def _merge_spellings(alias: FieldAlias, other: Any, value: Any) -> Any:
    """Merge the values of two names of one field; None if they contradict each other."""
    if alias.is_partial and isinstance(other, dict) and isinstance(value, dict):
        merged = {**other, **value}
        for key in [key for key in other if key in value]:
            merged[key] = _merge_spellings(alias, other[key], value[key])
        return None if None in merged.values() else merged
    return value if alias.convert is not None and other == value else None


def _rename_directives(alias: FieldAlias, struct: Object) -> None:
    """Rename the directives of a strategic merge patch about a field."""
    for prefix in LIST_DIRECTIVES:
        if prefix + alias.name in struct:
            struct[prefix + alias.stored_name] = struct.pop(prefix + alias.name)
    if isinstance(kept := struct.get(RETAIN_KEYS), list):
        struct[RETAIN_KEYS] = [alias.stored_name if key == alias.name else key for key in kept]


def _add_annotations(owner: Object, annotations: Annotations) -> None:
    meta = owner.get("metadata") or {}
    present = meta.get("annotations") or {} if isinstance(meta, dict) else None
    if isinstance(present, dict):  # else the schema check refuses it
        owner["metadata"] = {**meta, "annotations": {**present, **annotations}}
