"""The facts of every schema, as package data: one file per group version, read when needed.

A definition is known by its short name, `core.v1.Pod`; its file is `schemas/core.v1.json` and its
full name, `io.k8s.api.core.v1.Pod`, is the file's prefix and the short name. The files of
Kubernetes are written by `tools/compact_schemas.py`, those of our own kinds by hand; fields that we
add to kinds of Kubernetes stand apart, in `additions.json`, by definition.

A node is a text or an object. A text with a dot refers to a definition; one without is a scalar:

    string bool int32 int64 number bytes        what their name says; bytes are base64
    time microtime                              a moment, of seconds or of microseconds
    quantity int-or-string                      `500m`; a number or a text such as `50%`
    opaque any                                  an object, or anything, that nobody looks into

An object has one of the first four, and more facts beside it:

    p  a struct: its fields        r  the required ones    g  [group, version, kind] of it
                                   z  fields that are gone when zero or false
                                   n  texts that are not gone when empty
                                   u  unions, as OpenAPI tells them
    l  a list: its items           lt list type            k  list map keys
    m  a map: its values           mt map type (of structs too)
    t  a scalar or reference
    e  the values of an enum       d  default              mk patch merge key   ps patch strategy

What types and fields are for, as `kubectl explain` tells it: one sentence each, in our words.

Package data, read when a client first asks for OpenAPI. The sentences of a group serve all its
versions: those of `batch.v1.Job` stand in `glossary/batch.txt`. A type begins its line, its fields
follow indented:

    Job: Runs pods until enough of them have succeeded or too many have failed.
      suspend: Whether the Job is held; setting it stops the pods, clearing it starts them again.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Any, Final

import orjson

from phalanx.api.wire import Object

#: A node as the files hold it.
SchemaNode = str | dict[str, Any]

_PACKAGE: Final = resources.files("phalanx.api")


class UnknownDefinition(LookupError):
    """No file holds a definition of that name."""


def definition(name: str) -> SchemaNode:
    """The node of a definition, by its short name."""
    module, _, own = name.rpartition(".")
    try:
        node: SchemaNode = _load_file(module)["definitions"][own]
    except (KeyError, FileNotFoundError):
        raise UnknownDefinition(name) from None
    return node


def full_definition_name(name: str) -> str:
    """`core.v1.Pod` is `io.k8s.api.core.v1.Pod`."""
    prefix: str = _load_file(name.rpartition(".")[0])["prefix"]
    return prefix + name


def is_reference(kind: str) -> bool:
    """Whether a text refers to a definition instead of naming a scalar."""
    return "." in kind


@cache
def load_additions() -> dict[str, dict[str, SchemaNode]]:
    """The fields that definitions of Kubernetes have from us, by short name."""
    content: dict[str, dict[str, SchemaNode]] = orjson.loads(
        (_PACKAGE / "additions.json").read_bytes()
    )
    return content


@cache
def _load_file(module: str) -> Object:
    content: Object = orjson.loads((_PACKAGE / "schemas" / f"{module}.json").read_bytes())
    for name, added in load_additions().items():
        of, _, own = name.rpartition(".")
        if of == module:
            node = content["definitions"][own]
            node["p"] = dict(sorted({**node["p"], **added}.items()))
    return content


_GLOSSARY_FOLDER: Final = resources.files("phalanx.api") / "glossary"

#: The fields that every kind begins with, unless the glossary says more of one.
TYPE_META_DESCRIPTIONS: Final[Mapping[str, str]] = {
    "apiVersion": "Group and version of the API that the object is written in.",
    "kind": "What sort of object it is.",
    "metadata": "The object's name, labels, owners and history.",
}


def field_descriptions(name: str) -> Mapping[str, str]:
    """The sentences of a definition's fields, by field; that of the definition itself at ""."""
    group, own = name.split(".")[0], name.split(".")[-1]
    return load_glossary(group).get(own, {})


@cache
def load_glossary(group: str) -> Mapping[str, Mapping[str, str]]:
    """All sentences of a group, by type and field; none for a group that is not served."""
    file, entries = _GLOSSARY_FOLDER / f"{group}.txt", dict[str, dict[str, str]]()
    for line in file.read_text("utf-8").splitlines() if file.is_file() else ():
        name, _, text = line.partition(": ")
        if not name.startswith(" "):
            owner, name = name, ""
        entries.setdefault(owner, {})[name.strip()] = text
    return entries
