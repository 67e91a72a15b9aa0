"""A protobuf encoder, for tests of the decoder."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Callable
from functools import cache
from typing import Any

import orjson

from phalanx.api import protobuf as messages
from phalanx.api.meta import parse_timestamp
from phalanx.api.protobuf import MAGIC, decode
from phalanx.api.wire import Object

NUMBER_TYPES = ("bool", "int32", "int64")
#: The fields that the envelope has and the message has not.
TYPE_META_FIELDS = ("apiVersion", "kind")


def encode_varint(number: int) -> bytes:
    number &= 2**64 - 1
    parts = []
    while number > 0x7F:
        parts.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes((*parts, number))


def encode_bytes(number: int, content: bytes) -> bytes:
    return encode_varint(number << 3 | 2) + encode_varint(len(content)) + content


def encode_number(number: int, value: int) -> bytes:
    return encode_varint(number << 3) + encode_varint(value)


def encode_envelope(version: str, kind: str, raw: bytes) -> bytes:
    type_meta = encode_bytes(1, version.encode()) + encode_bytes(2, kind.encode())
    return MAGIC + encode_bytes(1, type_meta) + encode_bytes(2, raw)


def time_message(text: str) -> Object:
    whole, _, fraction = text.removesuffix("Z").partition(".")
    return {"seconds": round(parse_timestamp(whole + "Z")), "nanos": int(fraction or 0) * 1000}


def int_or_string_message(value: int | str) -> Object:
    return {"type": 1, "strVal": value} if isinstance(value, str) else {"type": 0, "intVal": value}


#: The fields of messages that JSON encodes differently.
MESSAGE_CONVERTERS: dict[str, Callable[[Any], Object]] = {
    "api.resource.Quantity": lambda text: {"string": text},
    "meta.v1.FieldsV1": lambda value: {"Raw": value},
    "meta.v1.MicroTime": time_message,
    "meta.v1.Time": time_message,
    "runtime.RawExtension": lambda value: {"raw": value},
    "util.intstr.IntOrString": int_or_string_message,
}
BYTE_ENCODERS: dict[str, Callable[[Any], bytes]] = {
    "string": str.encode,
    "bytes": b64decode,
    "json": orjson.dumps,
}


@cache
def field_names(message: str) -> tuple[str, ...]:
    """Return the JSON names of the fields of a message."""
    rows = messages.message_fields(message).values()
    return tuple(
        own for name, node in rows for own in ((name,) if name else field_names(str(node)))
    )


def encode_content(kind: str, value: Any) -> bytes:
    if kind in BYTE_ENCODERS:
        return BYTE_ENCODERS[kind](value)
    fields = MESSAGE_CONVERTERS[kind](value) if kind in MESSAGE_CONVERTERS else value
    parts = []
    for number, (name, node) in messages.message_fields(kind).items():
        if not name:
            inner = {key: fields[key] for key in field_names(str(node)) if key in fields}
            parts.append(encode_field(int(number), node, inner))
        elif name in fields:
            parts.append(encode_field(int(number), node, fields[name]))
    return b"".join(parts)


def encode_field(number: int, node: messages.MessageNode, value: Any) -> bytes:
    if isinstance(node, str):
        return (
            encode_number(number, value)
            if node in NUMBER_TYPES
            else encode_bytes(number, encode_content(node, value))
        )
    if "l" in node:
        return b"".join(encode_field(number, node["l"], item) for item in value)
    pairs = (
        (encode_field(1, "string", key), encode_field(2, node["m"], item))
        for key, item in value.items()
    )
    return b"".join(encode_bytes(number, key + item) for key, item in pairs)


def encode(message: str, obj: Object) -> bytes:
    return encode_envelope(obj["apiVersion"], obj["kind"], encode_content(message, obj))


def decode_pod_spec(spec: bytes) -> Object:
    """Decode a Pod with that spec, and return the spec."""
    fields: Object = decode(encode_envelope("v1", "Pod", encode_bytes(2, spec)))["spec"]
    return fields


def decode_metadata(content: bytes) -> Object:
    """Decode a ConfigMap with that metadata, and return the metadata."""
    fields: Object = decode(encode_envelope("v1", "ConfigMap", encode_bytes(1, content)))[
        "metadata"
    ]
    return fields


def nested_workload(levels: int) -> bytes:
    """Encode a Workload with nested composite templates."""
    group = b""
    for _ in range(levels - 1):
        group = encode_bytes(9, group)
    return encode_envelope(
        "scheduling.k8s.io/v1alpha3", "Workload", encode_bytes(2, encode_bytes(3, group))
    )


def config_map_with_managed_fields(raw: bytes) -> bytes:
    """Encode a ConfigMap with JSON in its managed fields."""
    return encode_envelope(
        "v1", "ConfigMap", encode_bytes(1, encode_bytes(17, encode_bytes(7, encode_bytes(1, raw))))
    )
