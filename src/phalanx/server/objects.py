"""Objects and their stored bytes, the representations that clients read, and common errors.

The only module that knows the stored layout: no `kind` and `apiVersion`, `metadata` first with
`name` first in it, and the revision as `resourceVersion`. So a read prepends a header, a list joins
values with commas, and a deletion replaces the revision: reads decode nothing. Tables and
PartialObjectMetadata, which kubectl and the garbage collector ask for, decode each object.

    {"metadata":{"name":"web","namespace":"default",…,"resourceVersion":"7"},"spec":{…}}
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Any

import orjson

from phalanx.api.conversion.hub import CONVERSIONS, from_hub
from phalanx.api.custom_resources.custom_kinds import CustomKind
from phalanx.api.errors import (
    AlreadyExists,
    BadRequest,
    Cause,
    Conflict,
    Forbidden,
    Invalid,
    NotFound,
    join_causes,
)
from phalanx.api.kinds import Kind
from phalanx.api.printing.cells import Column
from phalanx.api.printing.columns import CREATED_AT_COLUMN, DEFAULT_COLUMNS, PRINTER_COLUMNS
from phalanx.api.wire import Object, Reply
from phalanx.store.kv import KeyValue, ValueEncoder


def encoder(obj: Object) -> ValueEncoder:
    """Encodes an object for the store, given the revision that it gets."""
    content, meta = _to_stored_layout(obj), obj["metadata"]

    def encode(revision: int) -> bytes:
        meta["resourceVersion"] = str(revision)
        return orjson.dumps(content)

    return encode


def _to_stored_layout(obj: Object) -> Object:
    """The object in the order of the stored layout; a no-op for an object from the store."""
    meta = obj["metadata"]
    if next(iter(meta)) != "name":
        meta = obj["metadata"] = {"name": meta["name"], **meta}
    content = {**_METADATA_FIRST, **obj}
    for key in _TYPE_META_FIELDS:
        content.pop(key, None)
    return content


_METADATA_FIRST: Object = {"metadata": None}
_TYPE_META_FIELDS = ("apiVersion", "kind")


def decode_record(record: KeyValue) -> Object:
    """Decode a record; the caller may change the object."""
    value = record.value
    if value.startswith(_VERSION_PREFIX):
        value = split_version(value)[1]
    obj: Object = orjson.loads(value)
    return obj


#: The first bytes of a value that names its version; then come the version and the other fields.
_VERSION_PREFIX = b'{"$version":"'


def name_version(version: str, value: bytes) -> bytes:
    """The stored bytes of an object, with the version of the definition that they are in.

    Only objects whose definition has a conversion webhook name their version.
    """
    return b'%s%s",%s' % (_VERSION_PREFIX, version.encode(), value[1:])


def split_version(value: bytes) -> tuple[str, bytes]:
    """The version that stored bytes name, or "", and the bytes without it."""
    if not value.startswith(_VERSION_PREFIX):
        return "", value
    end = value.index(b'"', len(_VERSION_PREFIX))
    return value[len(_VERSION_PREFIX) : end].decode(), b"{" + value[end + 2 :]


@lru_cache(maxsize=1024)
def object_header(kind: str, api_version: str) -> bytes:
    """The first bytes of a reply, before the stored bytes."""
    return orjson.dumps({"kind": kind, "apiVersion": api_version})[:-1] + b","


def serialize_stored(kind: Kind, value: bytes) -> bytes:
    """Stored bytes as a client of a kind reads them."""
    return object_header(kind.name, kind.api_version) + convert_stored(kind, value)[1:]


def convert_stored(kind: Kind, value: bytes) -> bytes:
    """Stored bytes in the version of a kind; decodes only if that differs from the stored one."""
    if isinstance(kind, CustomKind):
        value = split_version(value)[1]
        return _add_new_defaults(kind, value) if kind.add_defaults is not None else value
    conversion = CONVERSIONS.get(kind)
    if conversion is None or conversion.is_identity:
        return value
    return orjson.dumps(conversion.from_hub(orjson.loads(value)))


def convert_all_stored(kind: Kind, values: Sequence[bytes]) -> Iterable[bytes]:
    """Stored values in the version of a kind; of most kinds all are stored in it."""
    conversion = CONVERSIONS.get(kind)
    if not kind.is_custom and (conversion is None or conversion.is_identity):
        return values
    return (convert_stored(kind, value) for value in values)


def _add_new_defaults(kind: CustomKind, value: bytes) -> bytes:
    """Add defaults that the definition has got since the object was stored; they are not stored."""
    obj = orjson.loads(value)
    stored = int(obj["metadata"].get("resourceVersion") or 0)  # A dry run has none.
    if kind.add_defaults is None or stored > kind.revision:
        return value
    kind.add_defaults(obj)
    return orjson.dumps(obj)


def serialize_object(kind: Kind, obj: Object) -> bytes:
    """An object that is not in the store (a dry run, a removed object) as a client reads it."""
    content = _to_stored_layout(obj)
    content["metadata"] = {k: v for k, v in obj["metadata"].items() if v not in (None, "")}
    return serialize_stored(kind, orjson.dumps(content))


def serialize_list(kind: Kind, meta: Object, values: Iterable[bytes]) -> bytes:
    """A list of values that are in the version of the kind."""
    opening = object_header(kind.list_name, kind.api_version) + b'"metadata":' + orjson.dumps(meta)
    return opening + b',"items":[' + b",".join(values) + b"]}"


def encode_deleted_state(record: KeyValue, revision: int) -> bytes:
    """The last state of a removed object, at the revision of its deletion."""
    old, new = b'"resourceVersion":"%d"', b'"resourceVersion":"%d"'
    return record.value.replace(old % record.revision, new % revision, 1)


# ---- representations: watch events, Tables, metadata only ----------------------------------------

#: (event type, stored bytes of the object) -> the event as the client reads it.
EventRenderer = Callable[[str, bytes], bytes]

_INCLUDE = ("", "Metadata", "Object", "None")
#: The version of Tables and PartialObjectMetadata, unless the client asks for another.
META_VERSION = "meta.k8s.io/v1"


@lru_cache(maxsize=1024)
def plain_renderer(kind: Kind) -> EventRenderer:
    """Renders events with whole objects. One function per kind, so that bytes are shared."""

    def render(event: str, value: bytes) -> bytes:
        return b'{"type":"%s","object":%s}\n' % (event.encode(), serialize_stored(kind, value))

    return render


def check_include_object(include: str) -> str:
    """The part of each object that goes into a Table row; raises BadRequest if unknown."""
    if include not in _INCLUDE:
        raise BadRequest(
            "Unable to convert to Table as requested: includeObject: Invalid value: "
            f"\"{include}\": must be 'Metadata', 'Object', 'None', or empty"
        )
    return include or "Metadata"


def render_table(
    kind: Kind,
    values: Iterable[bytes],
    meta: Object,
    *,
    include: str,
    now: float,
    version: str = META_VERSION,
) -> bytes:
    """Stored objects as a Table."""
    columns = _table_columns(kind)
    rows = [
        _table_row(
            kind,
            columns,
            orjson.loads(split_version(value)[1]),
            include=include,
            now=now,
            version=version,
        )
        for value in values
    ]
    # Kubernetes has null where its generic table of names and times is empty.
    is_generic = columns[1:] == (CREATED_AT_COLUMN,)
    body: Object = {
        "kind": "Table",
        "apiVersion": version,
        "metadata": meta,
        "columnDefinitions": [_column_definition(kind, column) for column in columns],
        "rows": rows if rows or not is_generic else None,
    }
    return orjson.dumps(body)


def table_renderer(
    kind: Kind, include: str, now: Callable[[], float], *, version: str = META_VERSION
) -> EventRenderer:
    """Renders watch events as Tables with one row."""

    def render(event: str, value: bytes) -> bytes:
        rows = render_table(kind, [value], {}, include=include, now=now(), version=version)
        return b'{"type":"%s","object":%s}\n' % (event.encode(), rows)

    return render


def metadata_only(value: bytes, version: str = META_VERSION) -> Object:
    """A stored object as PartialObjectMetadata."""
    return {
        "kind": "PartialObjectMetadata",
        "apiVersion": version,
        "metadata": orjson.loads(split_version(value)[1])["metadata"],
    }


def metadata_list(values: Iterable[bytes], meta: Object, version: str = META_VERSION) -> bytes:
    """Stored objects as a PartialObjectMetadataList."""
    body = {
        "kind": "PartialObjectMetadataList",
        "apiVersion": version,
        "metadata": meta,
        "items": [metadata_only(value, version) for value in values],
    }
    return orjson.dumps(body)


@lru_cache(maxsize=2)
def metadata_renderer(version: str) -> EventRenderer:
    """Renders watch events with PartialObjectMetadata. One function, so that bytes are shared."""

    def render(event: str, value: bytes) -> bytes:
        return orjson.dumps({"type": event, "object": metadata_only(value, version)}) + b"\n"

    return render


def _table_columns(kind: Kind) -> tuple[Column, ...]:
    return (
        kind.columns
        if isinstance(kind, CustomKind)
        else PRINTER_COLUMNS.get(kind.name, DEFAULT_COLUMNS)
    )


def _column_definition(kind: Kind, column: Column) -> Object:
    return {
        "name": column.name,
        "type": column.type,
        "format": column.format,
        "description": column.description if kind.is_custom else column.text,
        "priority": column.priority,
    }


def _table_row(
    kind: Kind,
    columns: tuple[Column, ...],
    obj: Object,
    *,
    include: str,
    now: float,
    version: str,
) -> dict[str, Any]:
    row: dict[str, Any] = {"cells": [column.cell(obj, now) for column in columns]}
    if include == "Object":
        served = from_hub(kind, obj)
        row["object"] = {"kind": kind.name, "apiVersion": kind.api_version, **served}
    elif include == "Metadata":
        row["object"] = {
            "kind": "PartialObjectMetadata",
            "apiVersion": version,
            "metadata": obj["metadata"],
        }
    return row


# ---- status and errors ---------------------------------------------------------------------------


def success_reply(code: int, headers: tuple[tuple[str, str], ...] = ()) -> Reply:
    """A Status for a request that returns no object."""
    status = {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Success",
        "code": code,
    }
    return Reply(code, orjson.dumps(status), headers=headers)


def not_found_error(kind: Kind, name: str) -> NotFound:
    """404: no such object."""
    return NotFound(
        f'{kind.resource} "{name}" not found', name=name, group=kind.group, kind=kind.plural
    )


def forbidden_error(
    kind: Kind, name: str, reason: str, *, causes: tuple[Cause, ...] = ()
) -> Forbidden:
    """403 for a reason that does not depend on the user."""
    return Forbidden(
        f'{kind.resource} "{name}" is forbidden: {reason}',
        name=name,
        group=kind.group,
        kind=kind.plural,
        causes=causes,
    )


def raise_if_invalid(kind: Kind, name: str, causes: Sequence[Cause]) -> None:
    """Raise 422 if there are causes."""
    if causes:
        raise Invalid(
            f'{kind.qualified_name} "{name}" is invalid: {join_causes(causes)}',
            name=name,
            group=kind.group,
            kind=kind.name,
            causes=causes,
        )


def already_exists_error(
    kind: Kind, name: str, *, being_deleted: bool = False, is_generated: bool = False
) -> AlreadyExists:
    """409: the name is taken, possibly by an object that is being deleted."""
    prefix = "object is being deleted: " if being_deleted else ""
    suffix = ", the server was not able to generate a unique name for the object"
    return AlreadyExists(
        f'{prefix}{kind.resource} "{name}" already exists{suffix if is_generated else ""}',
        name=name,
        group=kind.group,
        kind=kind.plural,
        retry_after=1 if is_generated else None,
    )


def conflict_error(kind: Kind, name: str, detail: str, *, resource: str = "") -> Conflict:
    """409: the write contradicts the current state."""
    resource = resource or kind.resource
    return Conflict(
        f'Operation cannot be fulfilled on {resource} "{name}": {detail}',
        name=name,
        group=kind.group,
        kind=resource.partition(".")[0],
    )


def modified_error(kind: Kind, name: str) -> Conflict:
    """409: the object was changed since the client read it."""
    advice = "please apply your changes to the latest version and try again"
    return conflict_error(kind, name, f"the object has been modified; {advice}")
