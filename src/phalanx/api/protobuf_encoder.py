r"""Encodes objects as protobuf, for clients that ask for it.

    object ─▶ the message of its kind ─▶ k8s\0, runtime.Unknown{typeMeta, raw}

The counterpart of `protobuf.py`, with the same messages. Fields that no message has are left out,
and so are nulls: protobuf has none. A watch is a sequence of frames: a length of four bytes, and a
meta.v1.WatchEvent whose object is encoded like a reply.
"""

from __future__ import annotations

import binascii
from collections.abc import Callable
from datetime import UTC, datetime
from functools import cache, lru_cache
from struct import pack
from typing import Any, Final

import orjson

from phalanx.api.protobuf import MAGIC, MessageNode, message_fields, message_name
from phalanx.api.wire import MAX_CACHED_BYTES, Object

_NUMBER_TYPES: Final = ("bool", "int32", "int64")
_LENGTH_BYTES: Final = 4
#: Encoded events that are shared by watches of the same objects.
_EVENT_CACHE_SIZE: Final = 256
#: The number, the name in JSON and the type of a field; a message that JSON has inline has no name.
_FieldRow = tuple[int, str, MessageNode]


def encode(obj: Object) -> bytes | None:
    """Encode an object with its kind and version; None if its kind has no message."""
    name = message_name(obj.get("apiVersion", ""), obj.get("kind", ""))
    return None if name is None else _encode_envelope(obj, _encode_message(name, obj))


def encode_list_opening(head: Object, size: int) -> bytes:
    """Encode a list whose kind has a message, up to its items of a size from `encode_item`."""
    name = message_name(head["apiVersion"], head["kind"])
    assert name is not None
    return _encode_envelope(head, _encode_message(name, head), size)


def _encode_envelope(obj: Object, content: bytes, size: int = 0) -> bytes:
    """Return the kind and version of an object and its message, of which some bytes follow."""
    version, kind = obj.get("apiVersion", ""), obj.get("kind", "")
    type_meta = _delimit(1, version.encode()) + _delimit(2, kind.encode())
    length = _varint(2 << 3 | 2) + _varint(len(content) + size)
    return MAGIC + _delimit(1, type_meta) + length + content


def encode_item(head: Object, item: bytes) -> bytes:
    """Encode one item in JSON of a list with this kind and version, which has a message."""
    name = message_name(head["apiVersion"], head["kind"])
    assert name is not None
    number, _, node = _field_rows(name)[1]["items"]
    return _encode_field(number, node, [orjson.loads(item)])


def encode_event(line: bytes) -> bytes:
    """Encode a watch event in JSON as a frame."""
    return (_encode_cached_event if len(line) <= MAX_CACHED_BYTES else _encode_event)(line)


def _encode_event(line: bytes) -> bytes:
    event = orjson.loads(line)
    content = _delimit(1, event["type"].encode())
    content += _delimit(2, _delimit(1, encode(event["object"]) or b""))
    return len(content).to_bytes(_LENGTH_BYTES, "big") + content


_encode_cached_event = lru_cache(maxsize=_EVENT_CACHE_SIZE)(_encode_event)


# ------------------------------------------------------------------------------------- values


_ONE_BYTE_VARINTS: Final = tuple(bytes([number]) for number in range(0x80))


def _varint(number: int) -> bytes:
    if 0 <= number <= 0x7F:
        return _ONE_BYTE_VARINTS[number]
    number &= 2**64 - 1
    parts = bytearray()
    while number > 0x7F:
        parts.append(number & 0x7F | 0x80)
        number >>= 7
    parts.append(number)
    return bytes(parts)


def _delimit(number: int, content: bytes) -> bytes:
    """Return a field of some bytes: tag, length, bytes."""
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def _time_message(text: str) -> Object:
    moment = datetime.fromisoformat(text).astimezone(UTC)
    return {"seconds": int(moment.timestamp() // 1), "nanos": moment.microsecond * 1000}


def _int_or_string_message(value: Any) -> Object:
    if isinstance(value, str):
        return {"type": 1, "strVal": value}
    return {"type": 0, "intVal": value}


#: Messages that JSON encodes as something else than an object: from that to their fields.
_MESSAGE_CONVERTERS: Final[dict[str, Callable[[Any], Object]]] = {
    "api.resource.Quantity": lambda value: {"string": str(value)},
    "apiextensions.v1.JSON": lambda value: {"raw": value},
    "apiextensions.v1.JSONSchemaPropsOrArray": lambda value: (
        {"jSONSchemas": value} if isinstance(value, list) else {"schema": value}
    ),
    "apiextensions.v1.JSONSchemaPropsOrBool": lambda value: (
        {"allows": value} if isinstance(value, bool) else {"allows": True, "schema": value}
    ),
    "apiextensions.v1.JSONSchemaPropsOrStringArray": lambda value: (
        {"property": value} if isinstance(value, list) else {"schema": value}
    ),
    "authentication.v1.AttestationValue": lambda items: {"items": items},
    "authentication.v1.ExtraValue": lambda items: {"items": items},
    "authorization.v1.ExtraValue": lambda items: {"items": items},
    "meta.v1.FieldsV1": lambda value: {"Raw": value},
    "meta.v1.MicroTime": _time_message,
    "meta.v1.Time": _time_message,
    "meta.v1.Verbs": lambda items: {"items": items},
    "runtime.RawExtension": lambda value: {"raw": value},
    "util.intstr.IntOrString": _int_or_string_message,
}
_CONTENT_ENCODERS: Final[dict[str, Callable[[Any], bytes]]] = {
    "string": lambda text: str(text).encode(),
    "bytes": lambda text: binascii.a2b_base64(text),
    "json": orjson.dumps,
    "octets": bytes,
}


# ------------------------------------------------------------------------------------ messages


def _encode_message(name: str, value: Any) -> bytes:
    """Encode the fields of a message in the order of their numbers."""
    convert = _MESSAGE_CONVERTERS.get(name)
    fields = convert(value) if convert else value
    inline, by_name = _field_rows(name)
    # Of the many fields of a schema or a container, most objects have few.
    present = [by_name[field] for field in fields if field in by_name]
    parts = []
    for number, field, node in sorted((*inline, *present)):
        if not field:
            parts.append(_delimit(number, _encode_message(str(node), fields)))
        elif (inner := fields[field]) is not None:
            parts.append(_encode_field(number, node, inner))
    return b"".join(parts)


@cache
def _field_rows(name: str) -> tuple[tuple[_FieldRow, ...], dict[str, _FieldRow]]:
    """Return the fields of a message that JSON has inline, and the others by name."""
    rows = [(int(number), field, node) for number, (field, node) in message_fields(name).items()]
    return tuple(row for row in rows if not row[1]), {row[1]: row for row in rows if row[1]}


def _encode_field(number: int, node: MessageNode, value: Any) -> bytes:
    if isinstance(node, str):
        return _encode_single(number, node, value)
    if "l" in node:
        return b"".join(_encode_single(number, node["l"], item) for item in value)
    return b"".join(
        _delimit(
            number, _encode_single(1, "string", key) + _encode_single(2, node["m"], value[key])
        )
        for key in sorted(value)
    )


def _encode_single(number: int, kind: str, value: Any) -> bytes:
    if kind in _NUMBER_TYPES:
        return _varint(number << 3) + _varint(int(value))
    if kind == "double":
        return _varint(number << 3 | 1) + pack("<d", value)
    if kind in _CONTENT_ENCODERS:
        return _delimit(number, _CONTENT_ENCODERS[kind](value))
    if value is None:
        return _delimit(number, b"")
    return _delimit(number, _encode_message(kind, value))
