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
from phalanx.server.serialization import MediaTypeOptions, encode_list, encode_reply, take_turns
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


async def convert_all_stored(kind: Kind, values: list[bytes]) -> list[bytes]:
    """Stored values in the version of a kind; of most kinds all are stored in it.

    As in Kubernetes, each item of a custom kind also has its kind and version.
    """
    if kind.is_custom:
        return [serialize_stored(kind, value) async for value in take_turns(values)]
    conversion = CONVERSIONS.get(kind)
    if conversion is None or conversion.is_identity:
        return values
    return [convert_stored(kind, value) async for value in take_turns(values)]


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


def list_opening(kind: str, api_version: str, meta: Object) -> bytes:
    """A list up to its first item, as `encode_list` needs it."""
    return b'%s"metadata":%s,"items":[' % (object_header(kind, api_version), orjson.dumps(meta))


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


def table_opening(kind: Kind, meta: Object, version: str = META_VERSION) -> bytes:
    """A Table up to its first row."""
    columns = [_column_definition(kind, column) for column in _table_columns(kind)]
    head = {"kind": "Table", "apiVersion": version, "metadata": meta, "columnDefinitions": columns}
    return orjson.dumps(head)[:-1] + b',"rows":['


async def render_table(
    kind: Kind,
    values: Iterable[bytes],
    meta: Object,
    *,
    include: str,
    now: float,
    accepted: MediaTypeOptions,
) -> Reply:
    """Stored objects as a Table."""
    version = accepted.form_version
    opening = table_opening(kind, meta, version)
    # Kubernetes has null where its generic table of names and times is empty.
    if not values and _table_columns(kind)[1:] == (CREATED_AT_COLUMN,):
        return encode_reply(Reply(200, opening[:-1] + b"null}"), accepted)
    rows = [
        render_row(kind, value, include=include, now=now, version=version)
        async for value in take_turns(values)
    ]
    return await encode_list(opening, rows, accepted)


def table_renderer(
    kind: Kind, include: str, now: Callable[[], float], *, version: str = META_VERSION
) -> EventRenderer:
    """Renders watch events as Tables with one row."""

    def render(event: str, value: bytes) -> bytes:
        row = render_row(kind, value, include=include, now=now(), version=version)
        table = table_opening(kind, {}, version) + row + b"]}"
        return b'{"type":"%s","object":%s}\n' % (event.encode(), table)

    return render


def metadata_only(value: bytes, version: str = META_VERSION) -> Object:
    """A stored object as PartialObjectMetadata."""
    return {
        "kind": "PartialObjectMetadata",
        "apiVersion": version,
        "metadata": orjson.loads(split_version(value)[1])["metadata"],
    }


async def render_metadata_list(
    values: Iterable[bytes], meta: Object, accepted: MediaTypeOptions
) -> Reply:
    """Stored objects as a PartialObjectMetadataList."""
    version = accepted.form_version
    items = [orjson.dumps(metadata_only(value, version)) async for value in take_turns(values)]
    opening = list_opening("PartialObjectMetadataList", version, meta)
    return await encode_list(opening, items, accepted)


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


def render_row(kind: Kind, value: bytes, *, include: str, now: float, version: str) -> bytes:
    """A stored object as a row of a Table."""
    obj = orjson.loads(split_version(value)[1])
    row: Object = {"cells": [column.cell(obj, now) for column in _table_columns(kind)]}
    if include == "Object":
        served = from_hub(kind, obj)
        row["object"] = {"kind": kind.name, "apiVersion": kind.api_version, **served}
    elif include == "Metadata":
        row["object"] = {
            "kind": "PartialObjectMetadata",
            "apiVersion": version,
            "metadata": obj["metadata"],
        }
    return orjson.dumps(row)


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
