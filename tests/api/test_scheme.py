"""Readers: every field of a struct exists in the schema of its kind, with the same JSON type.

msgspec skips fields that a struct does not name, so a misspelt name would be a field that is never
read; a wrong type would be an object that cannot be decoded.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import msgspec
import pytest

from phalanx.api.core import Pod
from phalanx.api.definitions import SchemaNode, definition, is_reference
from phalanx.api.kinds import POD, SECRET, Kind
from phalanx.api.meta import PartialObjectMetadata
from phalanx.api.scheme import STRUCTS, kind_of, struct_of
from phalanx.api.wire import Object

#: Fields of shared structs that the conditions of some kinds do not have.
NOT_IN_EVERY_SCHEMA = {"observedGeneration"}
#: The Python types that decode each JSON type of a schema.
PYTHON_TYPES: dict[str, set[Any]] = {
    "string": {str},
    "bool": {bool},
    "int32": {int},
    "int64": {int},
    "number": {float},
    "bytes": {str},
    "time": {str},
    "microtime": {str},
    "quantity": {str, int, float},
    "int-or-string": {int, str},
    "opaque": set(),
    "any": set(),
}


def misread_fields(struct: type[msgspec.Struct], fields: Object, path: str) -> Iterator[str]:
    """Yield the fields of a struct, and of the structs in it, that its schema lacks or types
    differently.
    """
    hints = get_type_hints(struct)
    for field in msgspec.structs.fields(struct):
        where = f"{path}.{field.encode_name}"
        if field.encode_name in fields:
            yield from misread_value(hints[field.name], resolve(fields[field.encode_name]), where)
        elif field.encode_name not in NOT_IN_EVERY_SCHEMA:
            yield where


def misread_value(hint: Any, node: Object, path: str) -> Iterator[str]:
    """Yield the parts of a value's type hint that do not fit its schema."""
    options = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    options = tuple(option for option in options if option is not NoneType)
    containers = [get_origin(option) for option in options]
    if Any in options:
        return
    if "l" in node:
        if containers == [tuple]:
            yield from misread_value(get_args(options[0])[0], resolve(node["l"]), f"{path}[]")
        else:
            yield f"{path}: {hint} for a list"
    elif "m" in node:
        if containers == [dict]:
            yield from misread_value(get_args(options[0])[1], resolve(node["m"]), f"{path}{{}}")
        else:
            yield f"{path}: {hint} for a map"
    elif "p" in node:
        if containers == [None] and issubclass(options[0], msgspec.Struct):
            yield from misread_fields(options[0], node["p"], path)
        elif containers != [dict]:
            yield f"{path}: {hint} for a struct"
    elif not PYTHON_TYPES[node["t"]] <= set(options):
        yield f"{path}: {hint} for {node['t']}"


def resolve(node: SchemaNode) -> Object:
    """Follow the references of a node to a struct, a list, a map or a scalar."""
    while isinstance(node, str) or is_reference(node.get("t", "")):
        name = node if isinstance(node, str) else node["t"]
        node = definition(name) if is_reference(name) else {"t": name}
    return node


def fields_of(definition_name: str) -> Object:
    fields: Object = resolve(definition_name)["p"]
    return fields


@pytest.mark.parametrize("kind", STRUCTS, ids=lambda kind: kind.name)
def test_each_struct_reads_fields_that_its_schema_has(kind: Kind) -> None:
    assert list(misread_fields(STRUCTS[kind], fields_of(kind.schema), "")) == []


def test_a_misspelt_field_and_a_wrong_type_are_found() -> None:
    class Port(msgspec.Struct, rename="camel"):
        host_ip: str = ""
        container_port: str = ""
        name: tuple[str, ...] = ()

    assert list(misread_fields(Port, fields_of("core.v1.ContainerPort"), "")) == [
        ".hostIp",
        ".containerPort: <class 'str'> for int32",
        ".name: tuple[str, ...] for string",
    ]


def test_each_struct_decodes_one_kind() -> None:
    assert [kind_of(struct) for struct in STRUCTS.values()] == list(STRUCTS)


def test_a_kind_without_a_row_is_decoded_to_its_metadata() -> None:
    assert struct_of(POD) is Pod
    assert struct_of(SECRET) is PartialObjectMetadata


def test_a_struct_without_a_row_has_no_kind() -> None:
    with pytest.raises(LookupError, match="no row of STRUCTS decodes objects to PartialObject"):
        kind_of(PartialObjectMetadata)
