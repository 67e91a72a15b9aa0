"""Requests in the names that are stored: every row of `aliases.py`, in every sort of body.

    body, merge patch, strategic patch, configuration    a tree: fields are renamed in place
    JSON patch                                           paths, and trees in its values

Runs before anything is merged, so that neither merging nor ownership ever meets another name. Of
two spellings of one field in a request, one that says null gives way to one that says something;
two that both say something are refused.

No object has a field of another name, so null for one takes nothing away: `kubectl` says it for a
name that a manifest gave up, even if for the stored name. Only the manifest, if it is sent along
and has neither, tells that the field is to go.

Pure; the server (`bodies.py`) hands the findings on.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, reduce
from typing import Any, NamedTuple

import orjson

from phalanx.api.conversion.aliases import (
    ALIASES_BY_STRUCT,
    LIST_DIRECTIVES,
    RETAIN_KEYS,
    FieldAlias,
)
from phalanx.api.conversion.workload_references import ConvertedValue
from phalanx.api.errors import Cause
from phalanx.api.field_errors import forbidden, invalid, prefix_causes
from phalanx.api.field_tree import FieldPath, FieldTree, build_field_tree
from phalanx.api.wire import JSON_PATCH, MERGE_PATCH, STRATEGIC_PATCH, Object

#: Where `kubectl apply` keeps the manifest that it applied.
LAST_APPLIED_ANNOTATION = "kubectl.kubernetes.io/last-applied-configuration"
#: Annotations to put on.
Annotations = Mapping[str, str]

_MERGE_PATCHES = (MERGE_PATCH, STRATEGIC_PATCH)
#: Operations of a JSON patch that say what is to stand at their path.
_WRITE_OPERATIONS = ("add", "replace", "copy", "move")


@dataclass(frozen=True, slots=True)
class ResolvedRequest:
    """A request in stored names; what its author should be told; why it cannot be.

    `marks` are what a JSON patch leaves to do once it is applied: annotations, and of what.
    """

    value: Any
    warnings: Sequence[str] = ()
    causes: Sequence[Cause] = ()
    annotations: Sequence[tuple[FieldPath, Annotations]] = ()


def resolve_aliases(
    struct: str, content_type: str, body: Any, namespace: str = ""
) -> ResolvedRequest | None:
    """A request for an object of a struct; None where it has no other names in it.

    References that may lead into another namespace must lead into the object's own.
    """
    root = _alias_tree(struct)
    if root is None or not (content_type == JSON_PATCH or _has_aliases(root, body)):
        return None
    renaming, value = _AliasResolver(content_type, namespace), body
    if content_type != JSON_PATCH:
        manifest = _last_applied(body) if content_type in _MERGE_PATCHES else None
        renaming.resolve_tree(root, _WalkPosition(body, _FieldLocation(), body, manifest))
    elif _is_patch(body):
        value = [renaming.resolve_operation(root, step) for step in body]
    return ResolvedRequest(value, renaming.warnings, renaming.causes, renaming.annotations)


def annotate(obj: Object, annotations: Iterable[tuple[FieldPath, Annotations]]) -> None:
    """Put marks on an object."""
    for way, said in annotations:
        owner = reduce(_step_into, way, obj)
        if isinstance(owner, dict):
            _add_annotations(owner, said)


def _step_into(value: Any, step: str) -> Any:
    """What stands there after a patch, whose later operations may have left nothing."""
    if isinstance(value, list) and step.isdecimal():
        return next(iter(value[int(step) :]), None)
    return value.get(step) if isinstance(value, dict) else None


@cache
def _alias_tree(struct: str) -> FieldTree[FieldAlias] | None:
    rows = {
        name: [(alias.parent_path, alias) for alias in found]
        for name, found in ALIASES_BY_STRUCT.items()
    }
    return build_field_tree(struct, rows)


def _has_aliases(site: FieldTree[FieldAlias], value: Any) -> bool:
    """Whether there is anything to do: every request asks, and most have nothing."""
    if value.__class__ is dict:
        for alias in site.rows:
            for sign in alias.trigger_keys:
                if sign in value:
                    return True
        for step, below in site.fields.items():
            if step in value and _has_aliases(below, value[step]):
                return True
    elif value.__class__ is list and site.item is not None:
        return any(_has_aliases(site.item, item) for item in value)
    return False


def _is_patch(patch: Any) -> bool:
    """Whether a JSON patch has the shape of one; what has not is refused when it is applied."""
    return isinstance(patch, list) and all(isinstance(step, dict) for step in patch)


def _last_applied(patch: Object) -> Any:
    """The manifest that `kubectl apply` sends along with its patch, if it does."""
    try:
        return orjson.loads(patch["metadata"]["annotations"][LAST_APPLIED_ANNOTATION])
    except (KeyError, TypeError, ValueError):
        return None


class _FieldLocation(NamedTuple):
    """Where something stands, as its author wrote it and in stored names."""

    written: str = ""
    stored: str = ""

    def field(self, written: str, stored: str) -> _FieldLocation:
        """The place of a field."""
        return _FieldLocation(_join_path(self.written, written), _join_path(self.stored, stored))

    def item(self, at: object) -> _FieldLocation:
        """The place of an item of a list."""
        return _FieldLocation(f"{self.written}[{at}]", f"{self.stored}[{at}]")

    def alias(self, alias: FieldAlias) -> _FieldLocation:
        """The place of a field that is called by another name."""
        return self.field(alias.name, alias.stored_name)


class _WalkPosition(NamedTuple):
    """A value on the way down a tree, where it stands, and what the manifest says there.

    Its owner is what has it as its spec: an object, or the way to one that is not in the tree.
    """

    value: Any
    location: _FieldLocation
    owner: Any
    last_applied: Any


def _children(
    site: FieldTree[FieldAlias], spot: _WalkPosition, spelled: Mapping[str, str]
) -> Iterator[tuple[FieldTree[FieldAlias], _WalkPosition]]:
    """Where a walk goes on, given how fields were spelled before they were renamed."""
    value, place, _, manifest = spot
    if isinstance(value, dict):
        for step, inner in site.fields.items():
            if step in value:
                told = manifest.get(step) if isinstance(manifest, dict) else None
                there = place.field(spelled.get(step, step), step)
                yield inner, _WalkPosition(value[step], there, value, told)
    elif isinstance(value, list) and site.item is not None:
        for at, item in enumerate(value):
            yield (
                site.item,
                _WalkPosition(item, place.item(at), value, _find_last_applied_item(manifest, item)),
            )


def _request_spellings(site: FieldTree[FieldAlias], value: Any) -> dict[str, str]:
    """How fields are spelled that keep their form, by their stored names."""
    if not isinstance(value, dict):
        return {}
    rows = [alias for alias in site.rows if alias.convert is None]
    return {row.stored_name: row.name for row in rows if value.get(row.name) is not None}


def _find_last_applied_item(items: Any, item: Any) -> Any:
    """The item that a patch was computed from: what the patch says of it, it says too."""
    if not isinstance(items, list) or not isinstance(item, dict):
        return None
    said = {key: text for key, text in item.items() if isinstance(text, str) and key[:1] != "$"}
    known = (one for one in items if isinstance(one, dict))
    return next((one for one in known if said and said.items() <= one.items()), None)


def _join_path(path: str, step: str) -> str:
    return f"{path}.{step}" if path else step


class _PatchTarget(NamedTuple):
    """Where a path of a JSON patch leads: in stored names, by which row, to which place."""

    pointer: str
    alias: FieldAlias | None
    tree: FieldTree[FieldAlias] | None
    location: _FieldLocation

    @property
    def owner(self) -> FieldPath:
        """The way to what has it, or the struct that it is a field of, as its spec."""
        way = tuple(self.pointer.split("/")[1:])
        return way[:-1] if self.alias is None else way[:-2]


class _AliasResolver:
    """One request on its way into stored names, and what is found on the way."""

    def __init__(self, form: str, namespace: str) -> None:
        self._content_type, self._namespace = form, namespace
        #: How each place that a JSON patch writes to was spelled.
        self._spellings: dict[str, str] = {}
        self.warnings: list[str] = []
        self.causes: list[Cause] = []
        self.annotations: list[tuple[FieldPath, Annotations]] = []

    # ------------------------------------------------------------------------------------- trees

    def resolve_tree(self, site: FieldTree[FieldAlias], spot: _WalkPosition) -> None:
        """Rename in place what is here and further down."""
        spelled = _request_spellings(site, spot.value)
        if isinstance(spot.value, dict):
            for alias in site.rows:
                if alias.name in spot.value:
                    self._resolve_field(alias, spot)
                if self._content_type == STRATEGIC_PATCH:
                    _rename_directives(alias, spot.value)
        for inner, below in _children(site, spot, spelled):
            self.resolve_tree(inner, below)

    def _resolve_field(self, alias: FieldAlias, spot: _WalkPosition) -> None:
        """Put the value of one field under its stored name."""
        struct, name = spot.value, alias.stored_name
        value, place = struct.pop(alias.name), spot.location.alias(alias)
        if value is None:
            _clear_stored_field(alias, spot)
            return
        self._warn(place)
        value = self._convert(alias, value, place.written, spot.owner)
        there = struct.get(name)
        if there is not None and value is not None:
            value = _merge_spellings(alias, there, value)
            if value is None:
                self._reject_duplicate(alias, place.written)
        elif name in struct and there is None and self._content_type == STRATEGIC_PATCH:
            # The stored name was given up for this one: what stands there goes as a whole.
            value = {"$patch": "replace", **value} if isinstance(value, dict) else value
        struct[name] = value

    def _convert(self, alias: FieldAlias, value: Any, place: str, owner: Any) -> Any:
        """A value in the form that is stored."""
        if alias.convert is None:
            return value
        turned = alias.convert(value)
        if not isinstance(turned, ConvertedValue):
            self.causes += prefix_causes(place, turned)
            return None
        if turned.namespace not in ("", self._namespace):
            detail = f"must be the namespace of the object itself, {self._namespace}"
            self.causes.append(invalid(f"{place}.namespace", turned.namespace, detail))
        if turned.annotations:
            self._annotate_owner(owner, turned.annotations)
        return turned.value

    def _annotate_owner(self, owner: Any, marks: Annotations) -> None:
        if isinstance(owner, dict):
            _add_annotations(owner, marks)
        elif owner is not None:
            self.annotations.append((owner, marks))

    # ------------------------------------------------------------------------------ JSON patches

    def resolve_operation(self, root: FieldTree[FieldAlias], step: Object) -> Object:
        """One operation of a JSON patch in stored names."""
        result = dict(step)
        if isinstance(step.get("from"), str):
            result["from"] = self._resolve_pointer(root, step["from"]).pointer
        if not isinstance(step.get("path"), str):
            return result
        target = self._resolve_pointer(root, step["path"])
        result["path"] = target.pointer
        if step.get("op") in _WRITE_OPERATIONS:
            self._record_spelling(target, step["path"])
        owner = None if step.get("op") == "test" else target.owner
        if "value" in step:
            result["value"] = self._resolve_value(target, step["value"], owner)
        return result

    def _resolve_pointer(self, root: FieldTree[FieldAlias], pointer: str) -> _PatchTarget:
        """Follow a path, field by field, and rename those that have other names."""
        steps, place = pointer.split("/"), _FieldLocation()
        site: FieldTree[FieldAlias] | None = root
        alias: FieldAlias | None = None
        for at, step in enumerate(steps[1:], 1):
            if alias is not None and alias.convert is not None:
                self.causes.append(forbidden(place.written, "may only be written as a whole"))
                return _PatchTarget(pointer, None, None, place)
            rows = site.rows if site is not None else ()
            alias = next((row for row in rows if row.name == step), None)
            is_item = site is not None and site.item is not None
            if alias is not None:
                place = place.alias(alias)
                self._warn(place)
                steps[at] = alias.stored_name
            else:
                place = place.item(step) if is_item else place.field(step, step)
            site = site.child(steps[at]) if site is not None else None
        return _PatchTarget("/".join(steps), alias, site, place)

    def _resolve_value(self, target: _PatchTarget, value: Any, owner: FieldPath | None) -> Any:
        """The value of an operation, which may have other names in it."""
        if value is not None and target.alias is not None and target.alias.convert is not None:
            return self._convert(target.alias, value, target.location.written, owner)
        if target.tree is not None:
            self.resolve_tree(target.tree, _WalkPosition(value, target.location, owner, None))
        return value

    def _record_spelling(self, target: _PatchTarget, spelled: str) -> None:
        if self._spellings.setdefault(target.pointer, spelled) != spelled and target.alias:
            self._reject_duplicate(target.alias, target.location.written)

    # ---------------------------------------------------------------------------------- findings

    def _warn(self, place: _FieldLocation) -> None:
        text = f"{place.written}: deprecated; use {place.stored} instead"
        if text not in self.warnings:
            self.warnings.append(text)

    def _reject_duplicate(self, alias: FieldAlias, place: str) -> None:
        detail = f"may not be set together with `{alias.stored_name}`, which it is another name of"
        self.causes.append(forbidden(place, detail))


def _clear_stored_field(alias: FieldAlias, spot: _WalkPosition) -> None:
    """A name that says null is about the field if the manifest has neither name of it."""
    told, name = spot.last_applied, alias.stored_name
    if isinstance(told, dict) and told.get(name) is None and spot.value.get(name) is None:
        spot.value[name] = None


def _merge_spellings(alias: FieldAlias, there: Any, value: Any) -> Any:
    """What a field is by two names of it; None where both say something else."""
    if alias.is_partial and isinstance(there, dict) and isinstance(value, dict):
        whole = {**there, **value}
        for key in [key for key in there if key in value]:
            whole[key] = _merge_spellings(alias, there[key], value[key])
        return None if None in whole.values() else whole
    return value if alias.convert is not None and there == value else None


def _rename_directives(alias: FieldAlias, struct: Object) -> None:
    """What a strategic merge patch says of a field beside its value."""
    for prefix in LIST_DIRECTIVES:
        if prefix + alias.name in struct:
            struct[prefix + alias.stored_name] = struct.pop(prefix + alias.name)
    if isinstance(kept := struct.get(RETAIN_KEYS), list):
        struct[RETAIN_KEYS] = [alias.stored_name if key == alias.name else key for key in kept]


def _add_annotations(owner: Object, marks: Annotations) -> None:
    """Put annotations on an object or a template."""
    meta = owner.get("metadata") or {}
    there = meta.get("annotations") or {} if isinstance(meta, dict) else None
    if isinstance(there, dict):  # of what it is not, the schema will complain
        owner["metadata"] = {**meta, "annotations": {**there, **marks}}
