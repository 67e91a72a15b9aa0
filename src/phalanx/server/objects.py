"""Between objects and the bytes that are stored: the one place that knows their layout.

Stored bytes hold an object without `kind` and `apiVersion`, its metadata first and the name
first in it, its own revision inside. So a read puts a head before them, a list puts commas
between them, and a deletion swaps the revision; nothing is decoded to serve a read.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache

import orjson

from phalanx.api.conversion.hub import CONVERSIONS
from phalanx.api.errors import (
    AlreadyExists,
    Cause,
    Conflict,
    Forbidden,
    Invalid,
    NotFound,
    join_causes,
)
from phalanx.api.kinds import Kind
from phalanx.api.wire import Object, Reply
from phalanx.store.kv import KeyValue, ValueEncoder


def encoder(obj: Object) -> ValueEncoder:
    """The bytes of an object, given the revision that it gets."""
    content, meta = _to_stored_layout(obj), obj["metadata"]

    def encode(revision: int) -> bytes:
        meta["resourceVersion"] = str(revision)
        return orjson.dumps(content)

    return encode


def _to_stored_layout(obj: Object) -> Object:
    """An object in the order in which it is stored, in which one that was stored is already."""
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
    """A fresh object that the caller may change."""
    obj: Object = orjson.loads(record.value)
    return obj


@lru_cache(maxsize=1024)
def object_header(kind: str, api_version: str) -> bytes:
    """The beginning of an object, up to where its stored bytes go on."""
    return orjson.dumps({"kind": kind, "apiVersion": api_version})[:-1] + b","


def serialize_stored(kind: Kind, value: bytes) -> bytes:
    """Stored bytes as a client of a kind reads them."""
    return object_header(kind.name, kind.api_version) + convert_stored(kind, value)[1:]


def convert_stored(kind: Kind, value: bytes) -> bytes:
    """Stored bytes in the form of a kind; only other forms than the stored one are decoded."""
    conversion = CONVERSIONS.get(kind)
    if conversion is None or conversion.is_identity:
        return value
    return orjson.dumps(conversion.from_hub(orjson.loads(value)))


def serialize_object(kind: Kind, obj: Object) -> bytes:
    """An object in the stored form that is not stored (a dry run, a deleted one), as it is read."""
    content = _to_stored_layout(obj)
    content["metadata"] = {k: v for k, v in obj["metadata"].items() if v not in (None, "")}
    return serialize_stored(kind, orjson.dumps(content))


def serialize_list(kind: Kind, meta: Object, values: Iterable[bytes]) -> bytes:
    """A list of objects that are already in the form of their kind."""
    opening = object_header(kind.list_name, kind.api_version) + b'"metadata":' + orjson.dumps(meta)
    return opening + b',"items":[' + b",".join(values) + b"]}"


def deleted_state(record: KeyValue, revision: int) -> bytes:
    """The last state of a deleted object, at the revision of its deletion."""
    old, new = b'"resourceVersion":"%d"', b'"resourceVersion":"%d"'
    return record.value.replace(old % record.revision, new % revision, 1)


def success_reply(code: int) -> Reply:
    """The Status of an act that leaves no object to show."""
    return Reply(code, orjson.dumps({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": code,
    }))  # fmt: skip


def not_found_error(kind: Kind, name: str) -> NotFound:
    """No such object of that kind."""
    return NotFound(
        f'{kind.resource} "{name}" not found', name=name, group=kind.group, kind=kind.plural
    )


def forbidden_error(
    kind: Kind, name: str, reason: str, causes: tuple[Cause, ...] = ()
) -> Forbidden:
    """Not allowed, whoever asks."""
    return Forbidden(
        f'{kind.resource} "{name}" is forbidden: {reason}',
        name=name, group=kind.group, kind=kind.plural, causes=causes,
    )  # fmt: skip


def raise_if_invalid(kind: Kind, name: str, causes: Sequence[Cause]) -> None:
    """Raise what is wrong with an object, if anything is."""
    if causes:
        raise Invalid(
            f'{kind.qualified_name} "{name}" is invalid: {join_causes(causes)}',
            name=name, group=kind.group, kind=kind.name, causes=causes,
        )  # fmt: skip


def already_exists_error(
    kind: Kind, name: str, *, being_deleted: bool = False, is_generated: bool = False
) -> AlreadyExists:
    """The name is taken, if only by something that is going away; another may be free soon."""
    prefix = "object is being deleted: " if being_deleted else ""
    rest = ", the server was not able to generate a unique name for the object"
    return AlreadyExists(
        f'{prefix}{kind.resource} "{name}" already exists{rest if is_generated else ""}',
        name=name, group=kind.group, kind=kind.plural, retry_after=1 if is_generated else None,
    )  # fmt: skip


def conflict_error(kind: Kind, name: str, detail: str, *, resource: str = "") -> Conflict:
    """A write that cannot be fulfilled in the present state."""
    resource = resource or kind.resource
    return Conflict(
        f'Operation cannot be fulfilled on {resource} "{name}": {detail}',
        name=name, group=kind.group, kind=resource.partition(".")[0],
    )  # fmt: skip


def modified_error(kind: Kind, name: str) -> Conflict:
    """Somebody else has changed the object since the caller read it."""
    advice = "please apply your changes to the latest version and try again"
    return conflict_error(kind, name, f"the object has been modified; {advice}")
