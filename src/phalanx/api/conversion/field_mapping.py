"""Leftovers: what a version cannot express of an object, kept in an annotation where it is served.

A client that reads an object in an old version, changes what it knows of it and writes it back does
not lose what it cannot see. Beside each leftover stands a fingerprint of what it was said beside:

    phalanx.dev/not-in-this-version: '{"spec.preemptionPolicy":["Never","5c1d7a0e…"]}'

The annotation is written where an object leaves in an old version and taken out of every object
that comes in, whatever its version: it never reaches the store. Nobody need believe it: what comes
back is held against the schema and the rules of the stored version as if the client had said it.
An update without it means no harm either: it is about what there is (`handed_on`).

Forms: how the fields of a stored object are called in another version, there and back.

A form is a table of the fields that differ; all others are the same in both. A field may have
another name, stand deeper, hold other values, or have no place in the version at all: those are
left over, and come back only where the fields that they were said beside are still the same.

    stored                                   in a version whose form renames and leaves over
    schedulingPolicy: {gang: {minCount: 4}}  policy: {gang: {minCount: 4}}
    disruptionMode: {all: {}}                disruptionMode: PodGroup
    preemptionPolicy: Never                  left over: {"preemptionPolicy": …}

Pure: nothing that is given is changed. Which forms there are is `workload.py`'s business,
how leftovers travel with an object is `leftovers.py`'s.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from phalanx.api.wire import Object

UNMAPPED_ANNOTATION = "phalanx.dev/not-in-this-version"
_FINGERPRINT_LENGTH = 16

#: A value, and the fingerprint of the fields that it was said beside.
UnmappedValue = tuple[Any, str]
#: By where it stands in the stored object: `spec.podGroupTemplates[worker].preemptionPolicy`.
UnmappedValues = dict[str, UnmappedValue]


def fingerprint(struct: Object, fields: Iterable[str]) -> str:
    """Tells whether fields of a struct are still what they were."""
    said = [struct.get(field) for field in fields]
    text = orjson.dumps(said, option=orjson.OPT_SORT_KEYS)
    return hashlib.sha256(text).hexdigest()[:_FINGERPRINT_LENGTH]


def attach_unmapped(obj: Object, left: UnmappedValues) -> Object:
    """An object with what is left over of it in an annotation; as it is if nothing is."""
    if not left:
        return obj
    text = orjson.dumps(left, option=orjson.OPT_SORT_KEYS).decode()
    annotations = {**obj["metadata"].get("annotations", {}), UNMAPPED_ANNOTATION: text}
    return {**obj, "metadata": {**obj["metadata"], "annotations": annotations}}


def detach_unmapped(obj: Object) -> tuple[Object, UnmappedValues]:
    """An object without the annotation, and what that said, if it can be read."""
    meta = obj.get("metadata", {})
    annotations = meta.get("annotations", {})
    if UNMAPPED_ANNOTATION not in annotations:
        return obj, {}
    others = {key: text for key, text in annotations.items() if key != UNMAPPED_ANNOTATION}
    rest = {key: value for key, value in meta.items() if key != "annotations"}
    bare = {**rest, "annotations": others} if others else rest
    return {**obj, "metadata": bare}, _parse_unmapped(annotations[UNMAPPED_ANNOTATION])


def carry_over_unmapped(served: Object, obj: Object) -> Object:
    """An object with the leftovers of the one that it replaces, unless it brings its own."""
    there, said = (one["metadata"].get("annotations") or {} for one in (served, obj))
    if UNMAPPED_ANNOTATION not in there or UNMAPPED_ANNOTATION in said:
        return obj
    annotations = {**said, UNMAPPED_ANNOTATION: there[UNMAPPED_ANNOTATION]}
    return {**obj, "metadata": {**obj["metadata"], "annotations": annotations}}


def _parse_unmapped(text: str) -> UnmappedValues:
    try:
        said = orjson.loads(text)
    except orjson.JSONDecodeError:
        return {}
    rows = said.items() if isinstance(said, dict) else ()
    return {key: (row[0], row[1]) for key, row in rows if isinstance(row, list) and len(row) == 2}


#: The first field of a path, the item that is meant of it, and the rest.
_PATH_STEP = re.compile(r"(?P<name>[^.\[]+)(?P<item>\[[^\]]*\])?(?P<rest>.*)")
#: Fields that a message names.
_QUOTED_NAMES = re.compile(r"`\w+`(?:, `\w+`)*")


@dataclass(frozen=True, slots=True)
class MappedField:
    """A field that the version has: as `name`, which may be `outer.inner`.

    `form` is that of the struct that it holds, or of each struct in its list; `values` pairs what
    is stored with what the version says for it.
    """

    name: str
    fields: FieldMapping = field(default_factory=dict)
    values: tuple[tuple[Any, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class UnmappedField:
    """A field that the version does not have.

    It was said beside others of the same struct and goes when they change. What is there anyway
    when nobody says it need not be kept.
    """

    depends_on: tuple[str, ...]
    default: Any = None


FieldMapping = Mapping[str, MappedField | UnmappedField]


def to_version(form: FieldMapping, obj: Object, at: str = "") -> tuple[Object, UnmappedValues]:
    """A stored object in the form of a version, and what is left over, by where it stands."""
    shown: Object = {}
    left: UnmappedValues = {}
    for key, value in obj.items():
        match form.get(key):
            case None:
                shown[key] = value
            case UnmappedField(beside, default):
                if value != default:
                    left[at + key] = (value, fingerprint(obj, beside))
            case MappedField() as told:
                inner, more = _value_to_version(told, value, at + key)
                _set_field(shown, told.name, inner)
                left |= more
    return shown, left


def _value_to_version(told: MappedField, value: Any, at: str) -> tuple[Any, UnmappedValues]:
    for stored, own in told.values:
        if value == stored:
            return own, {}
    if isinstance(value, dict):
        return to_version(told.fields, value, f"{at}.")
    if not isinstance(value, list):
        return value, {}
    items = [to_version(told.fields, item, _item_prefix(at, item)) for item in value]
    left = {key: kept for _, more in items for key, kept in more.items()}
    return [shown for shown, _ in items], left


def to_stored(form: FieldMapping, obj: Object, left: UnmappedValues, at: str = "") -> Object:
    """An object in the form of a version as it is stored, with what fits of what was left over."""
    told = {
        row.name.partition(".")[0]: key for key, row in form.items() if isinstance(row, MappedField)
    }
    stored: Object = {}
    for name, value in obj.items():
        key = told.get(name, name)
        row = form.get(key)
        stored[key] = (
            _value_to_stored(row, value, left, at + key) if isinstance(row, MappedField) else value
        )
    for key, row in form.items():
        if isinstance(row, UnmappedField) and at + key in left:
            value, said_beside = left[at + key]
            if said_beside == fingerprint(stored, row.depends_on):
                stored[key] = value
    return stored


def _value_to_stored(told: MappedField, value: Any, left: UnmappedValues, at: str) -> Any:
    for step in told.name.split(".")[1:]:
        value = value.get(step, {})
    for stored, own in told.values:
        if value == own:
            return stored
    if isinstance(value, dict):
        return to_stored(told.fields, value, left, f"{at}.")
    if isinstance(value, list):
        return [to_stored(told.fields, item, left, _item_prefix(at, item)) for item in value]
    return value


def path_in_version(form: FieldMapping, path: str) -> str:
    """Where a version has what a path of the stored form leads to; as it is if it has not."""
    if path.startswith("."):
        return "." + path_in_version(form, path[1:])
    step = _PATH_STEP.fullmatch(path)
    row = form.get(step["name"]) if step else None
    if step is None or not isinstance(row, MappedField):
        return path
    place = row.name + (step["item"] or "")
    if not step["rest"] or row.values:
        return place
    return place + path_in_version(row.fields, step["rest"])


def message_in_version(form: FieldMapping, path: str, text: str) -> str:
    """A message about what a path of the stored form leads to, with the fields of the version."""
    rows = _mapping_at(form, path)

    def told(names: re.Match[str]) -> str:
        named = [(name, rows.get(name)) for name in names[0].replace("`", "").split(", ")]
        known = [
            row.name if row else name for name, row in named if not isinstance(row, UnmappedField)
        ]
        return ", ".join(f"`{name}`" for name in known) or names[0]

    return _QUOTED_NAMES.sub(told, text)


def _mapping_at(form: FieldMapping, path: str) -> FieldMapping:
    step = _PATH_STEP.fullmatch(path.removeprefix("."))
    if step is None:
        return form
    row = form.get(step["name"])
    return _mapping_at(row.fields, step["rest"]) if isinstance(row, MappedField) else {}


def _item_prefix(at: str, item: Object) -> str:
    """Items of lists are known by their names: a list may be put in another order."""
    return f"{at}[{item.get('name', '')}]."


def _set_field(obj: Object, name: str, value: Any) -> None:
    *outer, last = name.split(".")
    for step in outer:
        obj = obj.setdefault(step, {})
    obj[last] = value
