"""Protobuf request bodies: from bytes to the object that the same body in JSON would have been.

    k8s\\0, runtime.Unknown{typeMeta, raw} ─▶ the message of that kind ─▶ object

The facts are `messages.py`; one generic reader walks them. What JSON shows in another form than its
message (times, quantities) is a row of FORMS. Numbers that are not in the facts are stepped over,
as protobuf wants it, so there are no unknown fields to tell of. Called by the server in the place of
a JSON parser: schemas and rules come later. Never writes protobuf.
"""

from __future__ import annotations

import binascii
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from functools import cache, cached_property
from typing import Any, Final

import orjson

from phalanx.api.messages import Fields, Node, fields, message
from phalanx.api.wire import Object

MAGIC: Final = b"k8s\0"
#: Messages, and JSON inside them, may be nested so deep.
MAX_DEPTH: Final = 100

_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5
_SIZES = {_FIXED64: 8, _FIXED32: 4}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
#: Which field of an IntOrString counts, and what it is when absent.
_CHOICES = {0: ("intVal", 0), 1: ("strVal", "")}

#: From what a record holds, a number or bytes, and how deep it is, to what JSON shows.
_Read = Callable[[Any, int], Any]
#: The same, into the field of an object.
_Put = Callable[[Object, Any, int], None]


class BadProtobuf(ValueError):
    """A body that cannot be read. The text says why in one sentence."""


def decode(body: bytes) -> Object:
    """The object in a body. Raises BadProtobuf."""
    if not body.startswith(MAGIC):
        raise BadProtobuf("the body does not begin with k8s and a zero byte")
    envelope = _message("runtime.Unknown").read(memoryview(body)[len(MAGIC) :], {}, 0)
    if encoding := envelope.get("contentEncoding"):
        raise BadProtobuf(f'the content encoding "{encoding}" is not known')
    told = envelope.get("typeMeta", {})
    version, kind = told.get("apiVersion", ""), told.get("kind", "")
    name = message(version, kind)
    if name is None:
        raise BadProtobuf(f'no message is known for kind "{kind}" of API version "{version}"')
    head = {"apiVersion": version, "kind": kind}
    return _message(name).read(envelope.get("raw", b""), {**head}, 0) | head


# ------------------------------------------------------------------------------------- records


def _records(content: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    """The records of a message: the tag (number and wire type), then a number or bytes."""
    at, end = 0, len(content)
    while at < end:
        tag, at = _varint(content, at)
        wire = tag & 7
        if tag < 8:
            raise BadProtobuf("a field has the number 0")
        if wire == _VARINT:
            number, at = _varint(content, at)
            yield tag, number
            continue
        size, at = _varint(content, at) if wire == _LENGTH else (_SIZES.get(wire), at)
        if size is None:
            raise BadProtobuf(f"a field has the wire type {wire}, which is not known")
        start, at = at, at + size
        if at > end:
            raise BadProtobuf("a field is longer than what it is part of")
        yield tag, content[start:at]


def _varint(content: memoryview, at: int) -> tuple[int, int]:
    """A number of up to 64 bits, seven in each byte, and where it ends."""
    number = shift = 0
    try:
        while (byte := content[at]) > 0x7F:
            number |= (byte & 0x7F) << shift
            shift, at = shift + 7, at + 1
            if shift > 63:
                raise BadProtobuf("a number has more than ten bytes")
    except IndexError:
        raise BadProtobuf("the body ends within a number") from None
    return (number | byte << shift) & 0xFFFF_FFFF_FFFF_FFFF, at + 1


def _varints(content: memoryview) -> Iterator[int]:
    """A packed list."""
    at, end = 0, len(content)
    while at < end:
        number, at = _varint(content, at)
        yield number


# ------------------------------------------------------------------------------------- scalars


def _int32(number: int, depth: int) -> int:
    return (number & 0xFFFF_FFFF ^ 1 << 31) - (1 << 31)


def _int64(number: int, depth: int) -> int:
    return (number ^ 1 << 63) - (1 << 63)


def _bool(number: int, depth: int) -> bool:
    return number != 0


def _string(content: memoryview, depth: int) -> str:
    try:
        return str(content, "utf-8")
    except UnicodeDecodeError:
        raise BadProtobuf("a text is not UTF-8") from None


def _bytes(content: memoryview, depth: int) -> str:
    return binascii.b2a_base64(content, newline=False).decode()


def _octets(content: memoryview, depth: int) -> memoryview:
    return content


def _json(content: memoryview, depth: int) -> Any:
    if not content:
        return None
    try:
        value = orjson.loads(content)
    except orjson.JSONDecodeError:
        raise BadProtobuf("an embedded object is not JSON") from None
    level = [value]
    while level:
        _check(depth)
        level = [inner for outer in level for inner in _inside(outer)]
        depth += 1
    return value


def _inside(value: Any) -> Any:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


def _check(depth: int) -> None:
    if depth > MAX_DEPTH:
        raise BadProtobuf(f"the body is nested deeper than {MAX_DEPTH} levels")


_NUMBERS: dict[str, _Read] = {"bool": _bool, "int32": _int32, "int64": _int64}
_CONTENTS: dict[str, _Read] = {
    "string": _string,
    "bytes": _bytes,
    "json": _json,
    "octets": _octets,
}


# --------------------------------------------------------------------------------------- forms


def _moment(told: Object, nanos: int, precision: str) -> str | None:
    """A time; a message without anything in it is the one that nobody set."""
    if not told:
        return None
    try:
        moment = _EPOCH + timedelta(seconds=told.get("seconds", 0), microseconds=nanos // 1000)
    except OverflowError:
        raise BadProtobuf("a time is outside the years 1 to 9999") from None
    return moment.isoformat(timespec=precision).replace("+00:00", "Z")


def _time(told: Object) -> str | None:
    return _moment(told, 0, "seconds")


def _microtime(told: Object) -> str | None:
    return _moment(told, told.get("nanos", 0), "microseconds")


def _int_or_string(told: Object) -> int | str:
    choice = _CHOICES.get(told.get("type", 0))
    if choice is None:
        raise BadProtobuf("a value is neither a number nor a text")
    value: int | str = told.get(*choice)
    return value


def _items(told: Object) -> list[str]:
    items: list[str] = told.get("items", [])
    return items


#: Messages that JSON shows as something else than an object, made from their fields.
FORMS: Final[dict[str, Callable[[Object], Any]]] = {
    "api.resource.Quantity": lambda told: told.get("string", "0"),
    "authentication.v1.AttestationValue": _items,
    "authentication.v1.ExtraValue": _items,
    "authorization.v1.ExtraValue": _items,
    "meta.v1.FieldsV1": lambda told: told.get("Raw"),
    "meta.v1.MicroTime": _microtime,
    "meta.v1.Time": _time,
    "meta.v1.Verbs": _items,
    "runtime.RawExtension": lambda told: told.get("raw"),
    "util.intstr.IntOrString": _int_or_string,
}


# ------------------------------------------------------------------------------------ messages


class _Message:
    """How a message is read. Made at its first use, so that a message may hold itself."""

    def __init__(self, told: Fields) -> None:
        self._fields = told

    @cached_property
    def _puts(self) -> dict[int, _Put]:
        """What to do with a record, by its tag."""
        return {
            int(number) << 3 | wire: put
            for number, (name, node) in self._fields.items()
            for wire, put in _field(name, node)
        }

    def read(self, content: memoryview, into: Object, depth: int) -> Object:
        """Read a message into an object, which may hold some of it already."""
        _check(depth)
        puts = self._puts
        for tag, value in _records(content):
            put = puts.get(tag)
            if put is not None:
                put(into, value, depth)
            elif str(tag >> 3) in self._fields:
                raise BadProtobuf(f"field {tag >> 3} has the wrong wire type {tag & 7}")
        return into


@cache
def _message(name: str) -> _Message:
    return _Message(fields(name))


def _read(node: str) -> _Read:
    """How one value is read: a scalar, a form, an object."""
    if scalar := _NUMBERS.get(node) or _CONTENTS.get(node):
        return scalar
    inner, form = _message(node), FORMS.get(node)
    if form is None:
        return lambda content, depth: inner.read(content, {}, depth + 1)
    return lambda content, depth: form(inner.read(content, {}, depth + 1))


def _field(name: str, node: Node) -> Iterator[tuple[int, _Put]]:
    """How a field is put into its object, per wire type that it may come in."""
    item = node if isinstance(node, str) else node.get("l") or node["m"]
    wire = _VARINT if item in _NUMBERS else _LENGTH
    if isinstance(node, str):
        yield wire, _one(name, node)
    elif "m" in node:
        yield wire, _entry(name, item)
    else:
        yield wire, _append(name, item)
        if wire == _VARINT:
            yield _LENGTH, _extend(name, item)


def _one(name: str, node: str) -> _Put:
    """The last value counts, but objects grow together. Nameless ones are part of their holder."""
    if node in _NUMBERS or node in _CONTENTS or node in FORMS:
        read = _read(node)

        def put(into: Object, value: Any, depth: int) -> None:
            into[name] = read(value, depth)
    else:
        inner = _message(node)

        def put(into: Object, value: Any, depth: int) -> None:
            inner.read(value, into.setdefault(name, {}) if name else into, depth + 1)

    return put


def _append(name: str, node: str) -> _Put:
    read = _read(node)

    def put(into: Object, value: Any, depth: int) -> None:
        into.setdefault(name, []).append(read(value, depth))

    return put


def _extend(name: str, node: str) -> _Put:
    read = _read(node)

    def put(into: Object, content: memoryview, depth: int) -> None:
        into.setdefault(name, []).extend(read(number, depth) for number in _varints(content))

    return put


def _entry(name: str, node: str) -> _Put:
    """One entry of a map is a message of its own; what it leaves out is what no bytes are."""
    read = _read(node)
    pair = _Message({"1": ("key", "string"), "2": ("value", node)})

    def put(into: Object, content: memoryview, depth: int) -> None:
        told = pair.read(content, {}, depth + 1)
        value = told["value"] if "value" in told else read(b"", depth)
        into.setdefault(name, {})[told.get("key", "")] = value

    return put
