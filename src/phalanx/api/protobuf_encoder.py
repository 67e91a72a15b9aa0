r"""Encodes objects as protobuf, for clients that ask for it.

    object ─▶ the message of its kind ─▶ k8s\0, runtime.Unknown{typeMeta, raw}

The counterpart of `protobuf.py`, with the same messages. Fields that no message has are left out,
and so are nulls: protobuf has none. A watch is a sequence of frames: a length of four bytes, and a
meta.v1.WatchEvent whose object is encoded like a reply.
"""

from __future__ import annotations

import binascii
from collections.abc import Callable, Iterable
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


def encode(obj: Object, items: Iterable[bytes] = ()) -> bytes | None:
    """Encode an object with its kind and version; None if its kind has no message.

    A list may have its items from `encode_item`: they follow its other fields.
    """
    version, kind = obj.get("apiVersion", ""), obj.get("kind", "")
    name = message_name(version, kind)
    if name is None:
        return None
    type_meta = _delimit(1, version.encode()) + _delimit(2, kind.encode())
    content = b"".join((_encode_message(name, obj), *items))
    return MAGIC + _delimit(1, type_meta) + _delimit(2, content)


def encode_item(head: Object, item: bytes) -> bytes:
    """Encode one item in JSON of a list with this kind and version, which has a message."""
    name = message_name(head["apiVersion"], head["kind"])
    assert name is not None
    number, node = next(
        (number, node) for number, field, node in _ordered_fields(name) if field == "items"
    )
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


def _varint(number: int) -> bytes:
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
    parts = []
    for number, field, node in _ordered_fields(name):
        if not field:
            # A message whose fields JSON has inline.
            parts.append(_delimit(number, _encode_message(str(node), fields)))
        elif (inner := fields.get(field)) is not None:
            parts.append(_encode_field(number, node, inner))
    return b"".join(parts)


@cache
def _ordered_fields(name: str) -> tuple[tuple[int, str, MessageNode], ...]:
    rows = ((int(number), field, node) for number, (field, node) in message_fields(name).items())
    return tuple(sorted(rows, key=lambda row: row[0]))


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
