"""Protobuf request bodies: from bytes to the object that the same body in JSON would have been.

    k8s\\0, runtime.Unknown{typeMeta, raw} ─▶ the message of that kind ─▶ object

The facts are `messages.py`; one generic reader walks them. What JSON shows in another form than its
message (times, quantities) is a row of FORMS. Field numbers that are not in the facts are stepped
over, as protobuf wants it, so there are no unknown fields to tell of. Called by the server in the
place of a JSON parser: schemas and rules come later. Never writes protobuf.
"""

from __future__ import annotations

import binascii
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from functools import cache, cached_property
from typing import Any, Final

import orjson

from phalanx.api.messages import Fields, Node, fields, message_name
from phalanx.api.wire import Object

MAGIC: Final = b"k8s\0"
#: Messages, and JSON inside them, may be nested so deep.
MAX_DEPTH: Final = 100

_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5
#: The bytes of a record that it does not tell the end of itself, by its wire type.
_SIZES = {_VARINT: 0, _FIXED64: 8, _LENGTH: 0, _FIXED32: 4}
_SIGN32, _SIGN64 = 1 << 31, 1 << 63
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
#: Which field of an IntOrString counts, and what it is when absent.
_CHOICES = {0: ("intVal", 0), 1: ("strVal", "")}

#: What JSON shows for a number; for the bytes from here to there, so deep in messages.
_Number = Callable[[int], Any]
_Content = Callable[[bytes, int, int, int], Any]
#: The same, put into an object.
_PutNumber = Callable[[Object, int], None]
_PutContent = Callable[[Object, bytes, int, int, int], None]


class BadProtobuf(ValueError):
    """A body that cannot be read. The text says why in one sentence."""


def decode(body: bytes) -> Object:
    """The object in a body. Raises BadProtobuf."""
    if not body.startswith(MAGIC):
        raise BadProtobuf("the body does not begin with k8s and a zero byte")
    envelope = _root("runtime.Unknown", body.removeprefix(MAGIC))
    if encoding := envelope.get("contentEncoding"):
        raise BadProtobuf(f'the content encoding "{encoding}" is not known')
    told = envelope.get("typeMeta", {})
    version, kind = told.get("apiVersion", ""), told.get("kind", "")
    name = message_name(version, kind)
    if name is None:
        raise BadProtobuf(f'no message is known for kind "{kind}" of API version "{version}"')
    head = {"apiVersion": version, "kind": kind}
    return head | _root(name, envelope.get("raw", b"")) | head


def _root(name: str, content: bytes) -> Object:
    # Zeros behind it stop a tag and a number that it breaks off: only ends need to be looked at.
    return _message(name).read(content + b"\0\0", 0, len(content), {}, 0)


# ------------------------------------------------------------------------------------- scalars


def _int32(number: int) -> int:
    return (number & 0xFFFF_FFFF ^ _SIGN32) - _SIGN32


def _int64(number: int) -> int:
    return (number ^ _SIGN64) - _SIGN64


def _string(data: bytes, at: int, end: int, depth: int) -> str:
    try:
        return data[at:end].decode()
    except UnicodeDecodeError:
        raise BadProtobuf("a text is not UTF-8") from None


def _bytes(data: bytes, at: int, end: int, depth: int) -> str:
    return binascii.b2a_base64(data[at:end], newline=False).decode()


def _octets(data: bytes, at: int, end: int, depth: int) -> bytes:
    return data[at:end]


def _json(data: bytes, at: int, end: int, depth: int) -> Any:
    if at == end:
        return None
    try:
        value = orjson.loads(data[at:end])
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


_NUMBERS: dict[str, _Number] = {"bool": bool, "int32": _int32, "int64": _int64}
_CONTENTS: dict[str, _Content] = {
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
    """How a message is read. Worked out at its first use, so that a message may hold itself."""

    def __init__(self, told: Fields) -> None:
        self._fields = told

    @cached_property
    def _numbers(self) -> dict[int, _PutNumber]:
        """What to do with a number, by its tag."""
        rows = ((int(n) << 3 | _VARINT, _number(*row)) for n, row in self._fields.items())
        return {tag: put for tag, put in rows if put}

    @cached_property
    def _contents(self) -> dict[int, _PutContent]:
        """What to do with bytes, by their tag."""
        rows = ((int(n) << 3 | _LENGTH, _content(*row)) for n, row in self._fields.items())
        return {tag: put for tag, put in rows if put}

    def read(self, data: bytes, at: int, end: int, into: Object, depth: int) -> Object:
        """Read a message into an object, which may hold some of it already.

        A record is a tag (field number and wire type), then a number, or a length and so many
        bytes. Most tags, numbers and lengths are one byte, which is read in place.
        """
        _check(depth)
        numbers, contents = self._numbers, self._contents
        while at < end:
            tag, at = data[at], at + 1
            if tag > 0x7F:
                tag, at = _long(data, at, tag)
            if tag & 7 == _LENGTH:
                size, at = data[at], at + 1
                if size > 0x7F:
                    size, at = _long(data, at, size)
                start, at = at, at + size
                if at > end:
                    break
                if put_content := contents.get(tag):
                    put_content(into, data, start, at, depth)
                else:
                    self._stray(tag)
            elif tag & 7 == _VARINT:
                number, at = data[at], at + 1
                if number > 0x7F:
                    number, at = _long(data, at, number)
                if put_number := numbers.get(tag):
                    put_number(into, number)
                else:
                    self._stray(tag)
            else:
                at += self._stray(tag)
        _check_end(at, end)
        return into

    def _stray(self, tag: int) -> int:
        """Refuse a record that must not be here; of any other the size, if that is fixed."""
        number, wire = tag >> 3, tag & 7
        if number == 0:
            raise BadProtobuf("a field has the number 0")
        if wire not in _SIZES or str(number) in self._fields:
            raise BadProtobuf(f"field {number} has the wrong wire type {wire}")
        return _SIZES[wire]


@cache
def _message(name: str) -> _Message:
    return _Message(fields(name))


def _long(data: bytes, at: int, first: int) -> tuple[int, int]:
    """A number of several bytes, seven bits in each, and where it ends; the first is read."""
    number = first & 0x7F
    for shift in range(7, 70, 7):
        byte, at = data[at], at + 1
        number |= (byte & 0x7F) << shift
        if byte <= 0x7F:
            return number & 0xFFFF_FFFF_FFFF_FFFF, at
    raise BadProtobuf("a number has more than ten bytes")


def _packed(data: bytes, at: int, end: int) -> Iterator[int]:
    """Numbers without tags between them."""
    while at < end:
        number, at = data[at], at + 1
        if number > 0x7F:
            number, at = _long(data, at, number)
        yield number
    _check_end(at, end)


def _check_end(at: int, end: int) -> None:
    if at > end:
        raise BadProtobuf("a field is longer than what it is part of")


# -------------------------------------------------------------------------------------- fields


def _number(name: str, node: Node) -> _PutNumber | None:
    """What to do with a number in a field, if numbers may be there."""
    read = _NUMBERS.get(_item(node))
    if read is None:
        return None
    if isinstance(node, str):

        def put(into: Object, number: int) -> None:
            into[name] = read(number)
    else:

        def put(into: Object, number: int) -> None:
            into.setdefault(name, []).append(read(number))

    return put


def _content(name: str, node: Node) -> _PutContent | None:
    """What to do with bytes in a field, if bytes may be there."""
    item = _item(node)
    if isinstance(node, str):
        return None if item in _NUMBERS else _one(name, item)
    if "m" in node:
        return _entry(name, item)
    return _extend(name, item) if item in _NUMBERS else _append(name, item)


def _item(node: Node) -> str:
    return node if isinstance(node, str) else node.get("l") or node["m"]


def _value(node: str) -> _Content:
    """How a text, a form or an object is read."""
    if node in _CONTENTS:
        return _CONTENTS[node]
    inner, form = _message(node), FORMS.get(node)
    if form is None:
        return lambda data, at, end, depth: inner.read(data, at, end, {}, depth + 1)
    return lambda data, at, end, depth: form(inner.read(data, at, end, {}, depth + 1))


def _one(name: str, node: str) -> _PutContent:
    """The last value counts, but objects grow together. Nameless ones are part of their holder."""
    if node in _CONTENTS or node in FORMS:
        read = _value(node)

        def put(into: Object, data: bytes, at: int, end: int, depth: int) -> None:
            into[name] = read(data, at, end, depth)
    else:
        inner = _message(node)

        def put(into: Object, data: bytes, at: int, end: int, depth: int) -> None:
            inner.read(data, at, end, into.setdefault(name, {}) if name else into, depth + 1)

    return put


def _append(name: str, node: str) -> _PutContent:
    read = _value(node)

    def put(into: Object, data: bytes, at: int, end: int, depth: int) -> None:
        into.setdefault(name, []).append(read(data, at, end, depth))

    return put


def _extend(name: str, node: str) -> _PutContent:
    read = _NUMBERS[node]

    def put(into: Object, data: bytes, at: int, end: int, depth: int) -> None:
        into.setdefault(name, []).extend(map(read, _packed(data, at, end)))

    return put


def _entry(name: str, node: str) -> _PutContent:
    """One entry of a map is a message of its own; what it leaves out is what no bytes are."""
    read = _value(node)
    pair = _Message({"1": ("key", "string"), "2": ("value", node)})

    def put(into: Object, data: bytes, at: int, end: int, depth: int) -> None:
        told = pair.read(data, at, end, {}, depth + 1)
        value = told["value"] if "value" in told else read(data, end, end, depth)
        into.setdefault(name, {})[told.get("key", "")] = value

    return put
