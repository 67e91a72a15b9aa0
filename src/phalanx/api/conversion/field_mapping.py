"""Field mappings: the fields of a stored object in another version, and back.

A mapping lists the fields that differ; all others are equal in both versions. A field may have
another name, another parent, other values, or no equivalent. Fields without equivalent are kept in
an annotation of the served object, each with a fingerprint of the fields that it depends on:

    stored                                   served in an older version
    schedulingPolicy: {gang: {minCount: 4}}  policy: {gang: {minCount: 4}}
    disruptionMode: {all: {}}                disruptionMode: PodGroup
    preemptionPolicy: Never                  metadata.annotations:
                                               phalanx.dev/not-in-this-version:
                                                 '{"spec.preemptionPolicy":["Never","5c1d7a0e…"]}'

So a client that reads an object in an older version, changes it and writes it back loses nothing.
A value comes back only while the fields that it depends on are unchanged. The annotation is removed
from every request and never stored; its values are validated like those of any client. An update
without the annotation keeps the stored values (`carry_over_unmapped`).

Pure: arguments are not changed. The mappings of each version are in `hub.py`.
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

#: A value, and the fingerprint of the fields that it depends on.
UnmappedValue = tuple[Any, str]
#: By path in the stored object: `spec.podGroupTemplates[worker].preemptionPolicy`.
UnmappedValues = dict[str, UnmappedValue]


def fingerprint(struct: Object, fields: Iterable[str]) -> str:
    """Return a hash of some fields of a struct, to detect whether they changed."""
    values = [struct.get(field) for field in fields]
    text = orjson.dumps(values, option=orjson.OPT_SORT_KEYS)
    return hashlib.sha256(text).hexdigest()[:_FINGERPRINT_LENGTH]


def attach_unmapped(obj: Object, unmapped: UnmappedValues) -> Object:
    """Return an object with its unmapped values in the annotation, if there are any."""
    if not unmapped:
        return obj
    text = orjson.dumps(unmapped, option=orjson.OPT_SORT_KEYS).decode()
    annotations = {**obj["metadata"].get("annotations", {}), UNMAPPED_ANNOTATION: text}
    return {**obj, "metadata": {**obj["metadata"], "annotations": annotations}}


def detach_unmapped(obj: Object) -> tuple[Object, UnmappedValues]:
    """Return an object without the annotation, and the values of the annotation."""
    meta = obj.get("metadata", {})
    annotations = meta.get("annotations", {})
    if UNMAPPED_ANNOTATION not in annotations:
        return obj, {}
    others = {key: text for key, text in annotations.items() if key != UNMAPPED_ANNOTATION}
    rest = {key: value for key, value in meta.items() if key != "annotations"}
    bare = {**rest, "annotations": others} if others else rest
    return {**obj, "metadata": bare}, _parse_unmapped(annotations[UNMAPPED_ANNOTATION])


def carry_over_unmapped(served: Object, obj: Object) -> Object:
    """Return an object with the unmapped values of its predecessor, unless it has its own."""
    old, new = (one["metadata"].get("annotations") or {} for one in (served, obj))
    if UNMAPPED_ANNOTATION not in old or UNMAPPED_ANNOTATION in new:
        return obj
    annotations = {**new, UNMAPPED_ANNOTATION: old[UNMAPPED_ANNOTATION]}
    return {**obj, "metadata": {**obj["metadata"], "annotations": annotations}}


def _parse_unmapped(text: str) -> UnmappedValues:
    try:
        parsed = orjson.loads(text)
    except orjson.JSONDecodeError:
        return {}
    rows = parsed.items() if isinstance(parsed, dict) else ()
    return {key: (row[0], row[1]) for key, row in rows if isinstance(row, list) and len(row) == 2}


#: The first field of a path, its list item if there is one, and the rest.
_PATH_STEP = re.compile(r"(?P<name>[^.\[]+)(?P<item>\[[^\]]*\])?(?P<rest>.*)")
#: Quoted field names in a message.
_QUOTED_NAMES = re.compile(r"`\w+`(?:, `\w+`)*")


@dataclass(frozen=True, slots=True)
class MappedField:
    """A field with the name `name` in the version, which may be `outer.inner`.

    `fields` maps the struct that it holds, or each struct of its list; `values` pairs stored values
    with those of the version.
    """

    name: str
    fields: FieldMapping = field(default_factory=dict)
    values: tuple[tuple[Any, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class UnmappedField:
    """A field without equivalent in the version.

    Its value is dropped when a field of `depends_on` changes. The default need not be kept.
    """

    depends_on: tuple[str, ...]
    default: Any = None


FieldMapping = Mapping[str, MappedField | UnmappedField]


def to_version(mapping: FieldMapping, obj: Object, at: str = "") -> tuple[Object, UnmappedValues]:
    """Return a stored object in the form of a version, and its unmapped values by path."""
    served: Object = {}
    unmapped: UnmappedValues = {}
    for key, value in obj.items():
        match mapping.get(key):
            case None:
                served[key] = value
            case UnmappedField(depends_on, default):
                if value != default:
                    unmapped[at + key] = (value, fingerprint(obj, depends_on))
            case MappedField() as row:
                inner, more = _value_to_version(row, value, at + key)
                _set_field(served, row.name, inner)
                unmapped |= more
    return served, unmapped


def _value_to_version(row: MappedField, value: Any, at: str) -> tuple[Any, UnmappedValues]:
    for stored, own in row.values:
        if value == stored:
            return own, {}
    if isinstance(value, dict):
        return to_version(row.fields, value, f"{at}.")
    if not isinstance(value, list):
        return value, {}
    items = [to_version(row.fields, item, _item_prefix(at, item)) for item in value]
    unmapped = {key: kept for _, more in items for key, kept in more.items()}
    return [served for served, _ in items], unmapped


def to_stored(
    mapping: FieldMapping, obj: Object, unmapped: UnmappedValues, *, at: str = ""
) -> Object:
    """Return an object of a version in the stored form, with unmapped values that still apply."""
    key_by_name = {
        row.name.partition(".")[0]: key
        for key, row in mapping.items()
        if isinstance(row, MappedField)
    }
    stored: Object = {}
    for name, value in obj.items():
        key = key_by_name.get(name, name)
        row = mapping.get(key)
        stored[key] = (
            _value_to_stored(row, value, unmapped, at=at + key)
            if isinstance(row, MappedField)
            else value
        )
    for key, row in mapping.items():
        if isinstance(row, UnmappedField) and at + key in unmapped:
            value, expected = unmapped[at + key]
            if expected == fingerprint(stored, row.depends_on):
                stored[key] = value
    return stored


def _value_to_stored(row: MappedField, value: Any, unmapped: UnmappedValues, *, at: str) -> Any:
    for step in row.name.split(".")[1:]:
        value = value.get(step, {})
    for stored, own in row.values:
        if value == own:
            return stored
    if isinstance(value, dict):
        return to_stored(row.fields, value, unmapped, at=f"{at}.")
    if isinstance(value, list):
        return [to_stored(row.fields, item, unmapped, at=_item_prefix(at, item)) for item in value]
    return value


def path_in_version(mapping: FieldMapping, path: str) -> str:
    """Convert a path of the stored form to the version; unchanged if the version has none."""
    if path.startswith("."):
        return "." + path_in_version(mapping, path[1:])
    step = _PATH_STEP.fullmatch(path)
    row = mapping.get(step["name"]) if step else None
    if step is None or not isinstance(row, MappedField):
        return path
    place = row.name + (step["item"] or "")
    if not step["rest"] or row.values:
        return place
    return place + path_in_version(row.fields, step["rest"])


def message_in_version(mapping: FieldMapping, path: str, text: str) -> str:
    """Convert the field names in a message about a path of the stored form."""
    rows = _mapping_at(mapping, path)

    def rename(names: re.Match[str]) -> str:
        named = [(name, rows.get(name)) for name in names[0].replace("`", "").split(", ")]
        known = [
            row.name if row else name for name, row in named if not isinstance(row, UnmappedField)
        ]
        return ", ".join(f"`{name}`" for name in known) or names[0]

    return _QUOTED_NAMES.sub(rename, text)


def _mapping_at(mapping: FieldMapping, path: str) -> FieldMapping:
    step = _PATH_STEP.fullmatch(path.removeprefix("."))
    if step is None:
        return mapping
    row = mapping.get(step["name"])
    return _mapping_at(row.fields, step["rest"]) if isinstance(row, MappedField) else {}


def _item_prefix(at: str, item: Object) -> str:
    """Return the path prefix of a list item, by its name, so that reordering does not matter."""
    return f"{at}[{item.get('name', '')}]."


def _set_field(obj: Object, name: str, value: Any) -> None:
    *outer, last = name.split(".")
    for step in outer:
        obj = obj.setdefault(step, {})
    obj[last] = value
