"""A writer of protobuf, for tests of its reader."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Callable
from functools import cache
from typing import Any

import orjson

from phalanx.api import messages
from phalanx.api.meta import seconds
from phalanx.api.protobuf import MAGIC, decode
from phalanx.api.wire import Object

NUMBERS = ("bool", "int32", "int64")
#: What the envelope says of an object, and its message does not.
HEAD = ("apiVersion", "kind")


def varint(number: int) -> bytes:
    number &= 2**64 - 1
    parts = []
    while number > 0x7F:
        parts.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes((*parts, number))


def chunk(number: int, content: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(content)) + content


def numeral(number: int, value: int) -> bytes:
    return varint(number << 3) + varint(value)


def envelope(version: str, kind: str, raw: bytes) -> bytes:
    told = chunk(1, version.encode()) + chunk(2, kind.encode())
    return MAGIC + chunk(1, told) + chunk(2, raw)


def moment(text: str) -> Object:
    whole, _, fraction = text.removesuffix("Z").partition(".")
    return {"seconds": round(seconds(whole + "Z")), "nanos": int(fraction or 0) * 1000}


def int_or_string(value: int | str) -> Object:
    return {"type": 1, "strVal": value} if isinstance(value, str) else {"type": 0, "intVal": value}


#: What a message that JSON shows in another form holds.
FIELDS: dict[str, Callable[[Any], Object]] = {
    "api.resource.Quantity": lambda text: {"string": text},
    "meta.v1.FieldsV1": lambda value: {"Raw": value},
    "meta.v1.MicroTime": moment,
    "meta.v1.Time": moment,
    "runtime.RawExtension": lambda value: {"raw": value},
    "util.intstr.IntOrString": int_or_string,
}
BYTES: dict[str, Callable[[Any], bytes]] = {
    "string": str.encode,
    "bytes": b64decode,
    "json": orjson.dumps,
}


@cache
def names(message: str) -> tuple[str, ...]:
    """The fields of a message as JSON shows them."""
    rows = messages.fields(message).values()
    return tuple(own for name, node in rows for own in ((name,) if name else names(str(node))))


def content(kind: str, value: Any) -> bytes:
    if kind in BYTES:
        return BYTES[kind](value)
    told = FIELDS[kind](value) if kind in FIELDS else value
    parts = []
    for number, (name, node) in messages.fields(kind).items():
        if not name:
            inner = {key: told[key] for key in names(str(node)) if key in told}
            parts.append(field(int(number), node, inner))
        elif name in told:
            parts.append(field(int(number), node, told[name]))
    return b"".join(parts)


def field(number: int, node: messages.Node, value: Any) -> bytes:
    if isinstance(node, str):
        return numeral(number, value) if node in NUMBERS else chunk(number, content(node, value))
    if "l" in node:
        return b"".join(field(number, node["l"], item) for item in value)
    pairs = ((field(1, "string", key), field(2, node["m"], item)) for key, item in value.items())
    return b"".join(chunk(number, key + item) for key, item in pairs)


def encode(message: str, obj: Object) -> bytes:
    return envelope(obj["apiVersion"], obj["kind"], content(message, obj))


def pod(spec: bytes) -> Object:
    """What a Pod with that spec has in it."""
    told: Object = decode(envelope("v1", "Pod", chunk(2, spec)))["spec"]
    return told


def meta(content: bytes) -> Object:
    """What a ConfigMap with that metadata has in it."""
    told: Object = decode(envelope("v1", "ConfigMap", chunk(1, content)))["metadata"]
    return told


def nested(levels: int) -> bytes:
    """A Workload of groups in groups."""
    group = b""
    for _ in range(levels - 1):
        group = chunk(9, group)
    return envelope("scheduling.k8s.io/v1alpha3", "Workload", chunk(2, chunk(3, group)))


def managed(raw: bytes) -> bytes:
    """A ConfigMap with JSON in its managed fields."""
    return envelope("v1", "ConfigMap", chunk(1, chunk(17, chunk(7, chunk(1, raw)))))
