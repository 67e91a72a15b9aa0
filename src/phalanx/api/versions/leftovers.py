"""Leftovers: what a version cannot express of an object, kept in an annotation where it is served.

A client that reads an object in an old version, changes what it knows of it and writes it back does
not lose what it cannot see. Beside each leftover stands a fingerprint of what it was said beside:

    phalanx.dev/not-in-this-version: '{"spec.preemptionPolicy":["Never","5c1d7a0e…"]}'

The annotation is written where an object leaves in an old version and taken out of every object
that comes in, whatever its version: it never reaches the store. Nobody need believe it: what comes
back is held against the schema and the rules of the stored version as if the client had said it.
An update without it means no harm either: it is about what there is (`handed_on`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

import orjson

from phalanx.api.wire import Object

ANNOTATION = "phalanx.dev/not-in-this-version"
_DIGITS = 16

#: A value, and the fingerprint of the fields that it was said beside.
Leftover = tuple[Any, str]
#: By where it stands in the stored object: `spec.podGroupTemplates[worker].preemptionPolicy`.
Leftovers = dict[str, Leftover]


def fingerprint(struct: Object, fields: Iterable[str]) -> str:
    """Tells whether fields of a struct are still what they were."""
    said = [struct.get(field) for field in fields]
    text = orjson.dumps(said, option=orjson.OPT_SORT_KEYS)
    return hashlib.sha256(text).hexdigest()[:_DIGITS]


def attached(obj: Object, left: Leftovers) -> Object:
    """An object with what is left over of it in an annotation; as it is if nothing is."""
    if not left:
        return obj
    text = orjson.dumps(left, option=orjson.OPT_SORT_KEYS).decode()
    annotations = {**obj["metadata"].get("annotations", {}), ANNOTATION: text}
    return {**obj, "metadata": {**obj["metadata"], "annotations": annotations}}


def detached(obj: Object) -> tuple[Object, Leftovers]:
    """An object without the annotation, and what that said, if it can be read."""
    meta = obj.get("metadata", {})
    annotations = meta.get("annotations", {})
    if ANNOTATION not in annotations:
        return obj, {}
    others = {key: text for key, text in annotations.items() if key != ANNOTATION}
    rest = {key: value for key, value in meta.items() if key != "annotations"}
    bare = {**rest, "annotations": others} if others else rest
    return {**obj, "metadata": bare}, _read(annotations[ANNOTATION])


def handed_on(served: Object, obj: Object) -> Object:
    """An object with the leftovers of the one that it replaces, unless it brings its own."""
    there, said = (one["metadata"].get("annotations") or {} for one in (served, obj))
    if ANNOTATION not in there or ANNOTATION in said:
        return obj
    annotations = {**said, ANNOTATION: there[ANNOTATION]}
    return {**obj, "metadata": {**obj["metadata"], "annotations": annotations}}


def _read(text: str) -> Leftovers:
    try:
        said = orjson.loads(text)
    except orjson.JSONDecodeError:
        return {}
    rows = said.items() if isinstance(said, dict) else ()
    return {key: (row[0], row[1]) for key, row in rows if isinstance(row, list) and len(row) == 2}
