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

from phalanx.api.causes import forbidden, invalid, under
from phalanx.api.errors import Cause
from phalanx.api.sites import Site, Way, sites
from phalanx.api.versions.aliases import BY_STRUCT, LIST_DIRECTIVES, RETAIN_KEYS, Alias
from phalanx.api.versions.turning import Turned
from phalanx.api.wire import JSON_PATCH, MERGE_PATCH, STRATEGIC_PATCH, Object

#: Where `kubectl apply` keeps the manifest that it applied.
MANIFEST = "kubectl.kubernetes.io/last-applied-configuration"
#: Annotations to put on.
Marks = Mapping[str, str]

_MERGED = (MERGE_PATCH, STRATEGIC_PATCH)
#: Operations of a JSON patch that say what is to stand at their path.
_WRITES = ("add", "replace", "copy", "move")


@dataclass(frozen=True, slots=True)
class Renamed:
    """A request in stored names; what its author should be told; why it cannot be.

    `marks` are what a JSON patch leaves to do once it is applied: annotations, and of what.
    """

    value: Any
    warnings: Sequence[str] = ()
    causes: Sequence[Cause] = ()
    marks: Sequence[tuple[Way, Marks]] = ()


def renamed(struct: str, form: str, wanted: Any, namespace: str = "") -> Renamed | None:
    """A request for an object of a struct; None where it has no other names in it.

    References that may lead into another namespace must lead into the object's own.
    """
    root = _root(struct)
    if root is None or not (form == JSON_PATCH or _has_aliases(root, wanted)):
        return None
    renaming, value = _Renaming(form, namespace), wanted
    if form != JSON_PATCH:
        manifest = _manifest(wanted) if form in _MERGED else None
        renaming.tree(root, _Spot(wanted, _Place(), wanted, manifest))
    elif _is_patch(wanted):
        value = [renaming.operation(root, step) for step in wanted]
    return Renamed(value, renaming.warnings, renaming.causes, renaming.marks)


def annotate(obj: Object, marks: Iterable[tuple[Way, Marks]]) -> None:
    """Put marks on an object."""
    for way, said in marks:
        owner = reduce(_part, way, obj)
        if isinstance(owner, dict):
            _mark(owner, said)


def _part(value: Any, step: str) -> Any:
    """What stands there after a patch, whose later operations may have left nothing."""
    if isinstance(value, list) and step.isdecimal():
        return next(iter(value[int(step) :]), None)
    return value.get(step) if isinstance(value, dict) else None


@cache
def _root(struct: str) -> Site[Alias] | None:
    rows = {name: [(alias.way, alias) for alias in found] for name, found in BY_STRUCT.items()}
    return sites(struct, rows)


def _has_aliases(site: Site[Alias], value: Any) -> bool:
    """Whether there is anything to do: every request asks, and most have nothing."""
    if value.__class__ is dict:
        for alias in site.rows:
            for sign in alias.signs:
                if sign in value:
                    return True
        for step, below in site.fields.items():
            if step in value and _has_aliases(below, value[step]):
                return True
    elif value.__class__ is list and site.item is not None:
        return any(_has_aliases(site.item, item) for item in value)
    return False


def _is_patch(wanted: Any) -> bool:
    """Whether a JSON patch has the shape of one; what has not is refused when it is applied."""
    return isinstance(wanted, list) and all(isinstance(step, dict) for step in wanted)


def _manifest(patch: Object) -> Any:
    """The manifest that `kubectl apply` sends along with its patch, if it does."""
    try:
        return orjson.loads(patch["metadata"]["annotations"][MANIFEST])
    except (KeyError, TypeError, ValueError):
        return None


class _Place(NamedTuple):
    """Where something stands, as its author wrote it and in stored names."""

    written: str = ""
    stored: str = ""

    def field(self, written: str, stored: str) -> _Place:
        """The place of a field."""
        return _Place(_joined(self.written, written), _joined(self.stored, stored))

    def item(self, at: object) -> _Place:
        """The place of an item of a list."""
        return _Place(f"{self.written}[{at}]", f"{self.stored}[{at}]")

    def of(self, alias: Alias) -> _Place:
        """The place of a field that is called by another name."""
        return self.field(alias.name, alias.stands_for)


class _Spot(NamedTuple):
    """A value on the way down a tree, where it stands, and what the manifest says there.

    Its owner is what has it as its spec: an object, or the way to one that is not in the tree.
    """

    value: Any
    place: _Place
    owner: Any
    manifest: Any


def _below(
    site: Site[Alias], spot: _Spot, spelled: Mapping[str, str]
) -> Iterator[tuple[Site[Alias], _Spot]]:
    """Where a walk goes on, given how fields were spelled before they were renamed."""
    value, place, _, manifest = spot
    if isinstance(value, dict):
        for step, inner in site.fields.items():
            if step in value:
                told = manifest.get(step) if isinstance(manifest, dict) else None
                there = place.field(spelled.get(step, step), step)
                yield inner, _Spot(value[step], there, value, told)
    elif isinstance(value, list) and site.item is not None:
        for at, item in enumerate(value):
            yield site.item, _Spot(item, place.item(at), value, _counterpart(manifest, item))


def _spelled(site: Site[Alias], value: Any) -> dict[str, str]:
    """How fields are spelled that keep their form, by their stored names."""
    if not isinstance(value, dict):
        return {}
    rows = [alias for alias in site.rows if alias.turn is None]
    return {row.stands_for: row.name for row in rows if value.get(row.name) is not None}


def _counterpart(items: Any, item: Any) -> Any:
    """The item that a patch was computed from: what the patch says of it, it says too."""
    if not isinstance(items, list) or not isinstance(item, dict):
        return None
    said = {key: text for key, text in item.items() if isinstance(text, str) and key[:1] != "$"}
    known = (one for one in items if isinstance(one, dict))
    return next((one for one in known if said and said.items() <= one.items()), None)


def _joined(path: str, step: str) -> str:
    return f"{path}.{step}" if path else step


class _Target(NamedTuple):
    """Where a path of a JSON patch leads: in stored names, by which row, to which place."""

    pointer: str
    alias: Alias | None
    site: Site[Alias] | None
    place: _Place

    @property
    def owner(self) -> Way:
        """The way to what has it, or the struct that it is a field of, as its spec."""
        way = tuple(self.pointer.split("/")[1:])
        return way[:-1] if self.alias is None else way[:-2]


class _Renaming:
    """One request on its way into stored names, and what is found on the way."""

    def __init__(self, form: str, namespace: str) -> None:
        self._form, self._namespace = form, namespace
        #: How each place that a JSON patch writes to was spelled.
        self._spelled: dict[str, str] = {}
        self.warnings: list[str] = []
        self.causes: list[Cause] = []
        self.marks: list[tuple[Way, Marks]] = []

    # ------------------------------------------------------------------------------------- trees

    def tree(self, site: Site[Alias], spot: _Spot) -> None:
        """Rename in place what is here and further down."""
        spelled = _spelled(site, spot.value)
        if isinstance(spot.value, dict):
            for alias in site.rows:
                if alias.name in spot.value:
                    self._field(alias, spot)
                if self._form == STRATEGIC_PATCH:
                    _rename_directives(alias, spot.value)
        for inner, below in _below(site, spot, spelled):
            self.tree(inner, below)

    def _field(self, alias: Alias, spot: _Spot) -> None:
        """Put the value of one field under its stored name."""
        struct, name = spot.value, alias.stands_for
        value, place = struct.pop(alias.name), spot.place.of(alias)
        if value is None:
            _forget(alias, spot)
            return
        self._warn(place)
        value = self._turned(alias, value, place.written, spot.owner)
        there = struct.get(name)
        if there is not None and value is not None:
            value = _agreed(alias, there, value)
            if value is None:
                self._clash(alias, place.written)
        elif name in struct and there is None and self._form == STRATEGIC_PATCH:
            # The stored name was given up for this one: what stands there goes as a whole.
            value = {"$patch": "replace", **value} if isinstance(value, dict) else value
        struct[name] = value

    def _turned(self, alias: Alias, value: Any, place: str, owner: Any) -> Any:
        """A value in the form that is stored."""
        if alias.turn is None:
            return value
        turned = alias.turn(value)
        if not isinstance(turned, Turned):
            self.causes += under(place, turned)
            return None
        if turned.namespace not in ("", self._namespace):
            detail = f"must be the namespace of the object itself, {self._namespace}"
            self.causes.append(invalid(f"{place}.namespace", turned.namespace, detail))
        if turned.marks:
            self._leave(owner, turned.marks)
        return turned.value

    def _leave(self, owner: Any, marks: Marks) -> None:
        if isinstance(owner, dict):
            _mark(owner, marks)
        elif owner is not None:
            self.marks.append((owner, marks))

    # ------------------------------------------------------------------------------ JSON patches

    def operation(self, root: Site[Alias], step: Object) -> Object:
        """One operation of a JSON patch in stored names."""
        result = dict(step)
        if isinstance(step.get("from"), str):
            result["from"] = self._target(root, step["from"]).pointer
        if not isinstance(step.get("path"), str):
            return result
        target = self._target(root, step["path"])
        result["path"] = target.pointer
        if step.get("op") in _WRITES:
            self._spell(target, step["path"])
        owner = None if step.get("op") == "test" else target.owner
        if "value" in step:
            result["value"] = self._operand(target, step["value"], owner)
        return result

    def _target(self, root: Site[Alias], pointer: str) -> _Target:
        """Follow a path, field by field, and rename those that have other names."""
        steps, place = pointer.split("/"), _Place()
        site: Site[Alias] | None = root
        alias: Alias | None = None
        for at, step in enumerate(steps[1:], 1):
            if alias is not None and alias.turn is not None:
                self.causes.append(forbidden(place.written, "may only be written as a whole"))
                return _Target(pointer, None, None, place)
            rows = site.rows if site is not None else ()
            alias = next((row for row in rows if row.name == step), None)
            is_item = site is not None and site.item is not None
            if alias is not None:
                place = place.of(alias)
                self._warn(place)
                steps[at] = alias.stands_for
            else:
                place = place.item(step) if is_item else place.field(step, step)
            site = site.below(steps[at]) if site is not None else None
        return _Target("/".join(steps), alias, site, place)

    def _operand(self, target: _Target, value: Any, owner: Way | None) -> Any:
        """The value of an operation, which may have other names in it."""
        if value is not None and target.alias is not None and target.alias.turn is not None:
            return self._turned(target.alias, value, target.place.written, owner)
        if target.site is not None:
            self.tree(target.site, _Spot(value, target.place, owner, None))
        return value

    def _spell(self, target: _Target, spelled: str) -> None:
        if self._spelled.setdefault(target.pointer, spelled) != spelled and target.alias:
            self._clash(target.alias, target.place.written)

    # ---------------------------------------------------------------------------------- findings

    def _warn(self, place: _Place) -> None:
        text = f"{place.written}: deprecated; use {place.stored} instead"
        if text not in self.warnings:
            self.warnings.append(text)

    def _clash(self, alias: Alias, place: str) -> None:
        detail = f"may not be set together with `{alias.stands_for}`, which it is another name of"
        self.causes.append(forbidden(place, detail))


def _forget(alias: Alias, spot: _Spot) -> None:
    """A name that says null is about the field if the manifest has neither name of it."""
    told, name = spot.manifest, alias.stands_for
    if isinstance(told, dict) and told.get(name) is None and spot.value.get(name) is None:
        spot.value[name] = None


def _agreed(alias: Alias, there: Any, value: Any) -> Any:
    """What a field is by two names of it; None where both say something else."""
    if alias.is_part and isinstance(there, dict) and isinstance(value, dict):
        whole = {**there, **value}
        for key in [key for key in there if key in value]:
            whole[key] = _agreed(alias, there[key], value[key])
        return None if None in whole.values() else whole
    return value if alias.turn is not None and there == value else None


def _rename_directives(alias: Alias, struct: Object) -> None:
    """What a strategic merge patch says of a field beside its value."""
    for prefix in LIST_DIRECTIVES:
        if prefix + alias.name in struct:
            struct[prefix + alias.stands_for] = struct.pop(prefix + alias.name)
    if isinstance(kept := struct.get(RETAIN_KEYS), list):
        struct[RETAIN_KEYS] = [alias.stands_for if key == alias.name else key for key in kept]


def _mark(owner: Object, marks: Marks) -> None:
    """Put annotations on an object or a template."""
    meta = owner.get("metadata") or {}
    there = meta.get("annotations") or {} if isinstance(meta, dict) else None
    if isinstance(there, dict):  # of what it is not, the schema will complain
        owner["metadata"] = {**meta, "annotations": {**there, **marks}}
