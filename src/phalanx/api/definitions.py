"""Schema definitions and field descriptions, as package data that is loaded when needed.

A definition has a short name, `core.v1.Pod`. Its file is `schemas/core.v1.json`; its full name,
`io.k8s.api.core.v1.Pod`, is the prefix in that file and the short name. `tools/compact_schemas.py`
writes the files of Kubernetes; those of our own kinds are written by hand, and the fields that we
add to kinds of Kubernetes are in `additions.json`, by definition.

A node is a string or an object. A string with a dot is a reference, one without is a scalar:

    string bool int32 int64 number bytes        as named; bytes are base64
    time microtime                              a timestamp of seconds or of microseconds
    quantity int-or-string                      `500m`; a number or a string such as `50%`
    opaque any                                  an object, or any value, that is not inspected

An object has one of p, l, m and t, and facts beside it:

    p  a struct: its fields        r  required fields      g  [group, version, kind] of it
                                   z  fields omitted when zero or false
                                   n  strings kept when empty
                                   u  unions, as in OpenAPI
    l  a list: its items           lt list type            k  list map keys
    m  a map: its values           mt map type (of structs too)
    t  a scalar or reference
    e  the values of an enum       d  default              mk patch merge key   ps patch strategy

Descriptions for `kubectl explain` are in `glossary/`, one file per group for all its versions:

    Job: Runs pods until enough of them have succeeded or too many have failed.
      parallelism: How many pods run at the same time at most; 1 if absent.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Any, Final

import orjson

from phalanx.api.wire import Object

#: A node of a schema file.
SchemaNode = str | dict[str, Any]

_PACKAGE: Final = resources.files("phalanx.api")


class UnknownDefinition(LookupError):
    """No file has a definition of that name."""


def definition(name: str) -> SchemaNode:
    """Return the node of a definition, by its short name."""
    module, _, own = name.rpartition(".")
    try:
        node: SchemaNode = _load_file(module)["definitions"][own]
    except (KeyError, FileNotFoundError):
        raise UnknownDefinition(name) from None
    return node


def full_definition_name(name: str) -> str:
    """Return the full name: `core.v1.Pod` is `io.k8s.api.core.v1.Pod`."""
    prefix: str = _load_file(name.rpartition(".")[0])["prefix"]
    return prefix + name


def is_reference(kind: str) -> bool:
    """Whether a string refers to a definition, rather than naming a scalar."""
    return "." in kind


@cache
def load_additions() -> dict[str, dict[str, SchemaNode]]:
    """Return the fields that we add to definitions of Kubernetes, by short name."""
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

#: Descriptions of the fields that every kind has; the glossary may override them.
TYPE_META_DESCRIPTIONS: Final[Mapping[str, str]] = {
    "apiVersion": "Group and version of the API that the object is written in.",
    "kind": "What sort of object it is.",
    "metadata": "The object's name, labels, owners and history.",
}


def field_descriptions(name: str) -> Mapping[str, str]:
    """Return the descriptions of a definition's fields; its own is at the key ""."""
    group, own = name.split(".")[0], name.split(".")[-1]
    return load_glossary(group).get(own, {})


@cache
def load_glossary(group: str) -> Mapping[str, Mapping[str, str]]:
    """Return all descriptions of a group, by type and field; none for an unknown group."""
    file, entries = _GLOSSARY_FOLDER / f"{group}.txt", dict[str, dict[str, str]]()
    for line in file.read_text("utf-8").splitlines() if file.is_file() else ():
        name, _, text = line.partition(": ")
        if not name.startswith(" "):
            owner, name = name, ""
        entries.setdefault(owner, {})[name.strip()] = text
    return entries
