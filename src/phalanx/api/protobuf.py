r"""Protobuf request bodies, decoded to the object that the same body in JSON would be.

    k8s\0, runtime.Unknown{typeMeta, raw} ─▶ the message of that kind ─▶ object

The messages are package data (`messages.json`, written by `tools/compact_protobuf.py`), by the
short name of their definition, `core.v1.Pod`. A field is [its JSON name, node]; nodes are those of
`definitions.py` with other scalars:

    string bool int32 int64 double as named
    bytes json octets              base64 in JSON, embedded JSON, not in JSON at all

A field without a name is a message whose fields JSON has inline. Messages that JSON encodes
differently (times, quantities) are rows of JSON_CONVERTERS. Unknown field numbers are skipped, as
protobuf demands. The server calls `decode` in place of a JSON parser. `protobuf_encoder.py` writes
protobuf.
"""

from __future__ import annotations

import binascii
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from functools import cache, cached_property, lru_cache
from importlib import resources
from struct import unpack_from
from typing import Any, Final

import orjson

from phalanx.api.wire import Object

MessageNode = str | dict[str, str]
#: The name and node of each field, by its number in decimal.
MessageFields = Mapping[str, tuple[str, MessageNode]]

#: The API versions that have messages, and the prefix of their short names.
MESSAGE_MODULES: Final = {
    "v1": "core.v1",
    "admissionregistration.k8s.io/v1": "admissionregistration.v1",
    "apiextensions.k8s.io/v1": "apiextensions.v1",
    "apiregistration.k8s.io/v1": "apiregistration.v1",
    "apps/v1": "apps.v1",
    "authentication.k8s.io/v1": "authentication.v1",
    "authorization.k8s.io/v1": "authorization.v1",
    "autoscaling/v1": "autoscaling.v1",
    "autoscaling/v2": "autoscaling.v2",
    "batch/v1": "batch.v1",
    "certificates.k8s.io/v1": "certificates.v1",
    "certificates.k8s.io/v1beta1": "certificates.v1beta1",
    "coordination.k8s.io/v1": "coordination.v1",
    "discovery.k8s.io/v1": "discovery.v1",
    "events.k8s.io/v1": "events.v1",
    "flowcontrol.apiserver.k8s.io/v1": "flowcontrol.v1",
    "meta.k8s.io/v1": "meta.v1",
    "networking.k8s.io/v1": "networking.v1",
    "node.k8s.io/v1": "node.v1",
    "policy/v1": "policy.v1",
    "rbac.authorization.k8s.io/v1": "rbac.v1",
    "resource.k8s.io/v1": "resource.v1",
    "resource.k8s.io/v1beta1": "resource.v1beta1",
    "resource.k8s.io/v1beta2": "resource.v1beta2",
    "scheduling.k8s.io/v1": "scheduling.v1",
    "scheduling.k8s.io/v1alpha3": "scheduling.v1alpha3",
    "scheduling.k8s.io/v1beta1": "scheduling.v1beta1",
    "storage.k8s.io/v1": "storage.v1",
    "storagemigration.k8s.io/v1": "storagemigration.v1",
    "storagemigration.k8s.io/v1beta1": "storagemigration.v1beta1",
}
#: Every API version also has the kinds of this prefix, such as DeleteOptions.
SHARED_MODULE: Final = "meta.v1"
#: The length of the longest API version and kind together.
_MAX_NAMES: Final = 512


def message_name(api_version: str, kind: str) -> str | None:
    """Return the short name of the message of a kind, if there is one.

    Clients choose both: no long text is kept in the cache.
    """
    return _find_message(api_version, kind) if len(api_version) + len(kind) <= _MAX_NAMES else None


@lru_cache(maxsize=1024)
def _find_message(api_version: str, kind: str) -> str | None:
    modules = (MESSAGE_MODULES.get(api_version, SHARED_MODULE), SHARED_MODULE)
    return next((name for m in modules if (name := f"{m}.{kind}") in _load_messages()), None)


def message_fields(name: str) -> MessageFields:
    """Return the fields of a message, by its short name."""
    return _load_messages()[name]


@cache
def _load_messages() -> dict[str, MessageFields]:
    file = resources.files("phalanx.api") / "messages.json"
    content: dict[str, MessageFields] = orjson.loads(file.read_bytes())
    return content


MAGIC: Final = b"k8s\0"
#: The depth limit of messages, and of JSON inside them; the limit of fields and items.
MAX_DEPTH: Final = 100
MAX_RECORDS: Final = 100_000

_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5
#: The fixed part of the size of a record, by its wire type.
_SIZES = {_VARINT: 0, _FIXED64: 8, _LENGTH: 0, _FIXED32: 4}
_SIGN32, _SIGN64 = 1 << 31, 1 << 63
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
#: The field of an IntOrString that holds its value, and the default, by its type.
_INT_OR_STRING_FIELDS = {0: ("intVal", 0), 1: ("strVal", "")}


class BadProtobuf(ValueError):
    """The body cannot be decoded; the message says why."""


class _Body(bytes):
    """The bytes of a message, and the records that may still be read from them."""

    left: int = MAX_RECORDS

    def spend(self, records: int) -> None:
        """Count records. Raises BadProtobuf."""
        self.left -= records
        if self.left < 0:
            raise BadProtobuf(f"the body has more than {MAX_RECORDS} fields and items")


#: From a number to its JSON value; from a range of bytes at some depth to its JSON value.
_NumberDecoder = Callable[[int], Any]
_ContentDecoder = Callable[[_Body, int, int, int], Any]
#: The same, stored in an object.
_NumberSetter = Callable[[Object, int], None]
_ContentSetter = Callable[[Object, _Body, int, int, int], None]


def decode(body: bytes) -> Object:
    """Decode a request body. Raises BadProtobuf."""
    if not body.startswith(MAGIC):
        raise BadProtobuf("the body does not begin with k8s and a zero byte")
    envelope = _decode_message("runtime.Unknown", body.removeprefix(MAGIC))
    if encoding := envelope.get("contentEncoding"):
        raise BadProtobuf(f'the content encoding "{encoding}" is not known')
    type_meta = envelope.get("typeMeta", {})
    version, kind = type_meta.get("apiVersion", ""), type_meta.get("kind", "")
    name = message_name(version, kind)
    if name is None:
        raise BadProtobuf(f'no message is known for kind "{kind}" of API version "{version}"')
    head = {"apiVersion": version, "kind": kind}
    return head | _decode_message(name, envelope.get("raw", b"")) | head


def _decode_message(name: str, content: bytes) -> Object:
    # Two zero bytes end a truncated tag and number, so the decoder needs to check only ends.
    return _message_decoder(name).decode(_Body(content + b"\0\0"), 0, len(content), {}, 0)


# ------------------------------------------------------------------------------------- scalars


def _decode_int32(number: int) -> int:
    return (number & 0xFFFF_FFFF ^ _SIGN32) - _SIGN32


def _decode_int64(number: int) -> int:
    return (number ^ _SIGN64) - _SIGN64


def _decode_string(data: _Body, at: int, end: int, depth: int) -> str:
    try:
        return data[at:end].decode()
    except UnicodeDecodeError:
        raise BadProtobuf("a text is not UTF-8") from None


def _decode_bytes(data: _Body, at: int, end: int, depth: int) -> str:
    return binascii.b2a_base64(data[at:end], newline=False).decode()


def _raw_bytes(data: _Body, at: int, end: int, depth: int) -> bytes:
    return data[at:end]


def _decode_json(data: _Body, at: int, end: int, depth: int) -> Any:
    if at == end:
        return None
    try:
        value = orjson.loads(data[at:end])
    except orjson.JSONDecodeError:
        raise BadProtobuf("an embedded object is not JSON") from None
    level = [value]
    while level:
        _check_depth(depth)
        data.spend(len(level))
        level = [inner for outer in level for inner in _children(outer)]
        depth += 1
    return value


def _children(value: Any) -> Any:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


def _check_depth(depth: int) -> None:
    if depth > MAX_DEPTH:
        raise BadProtobuf(f"the body is nested deeper than {MAX_DEPTH} levels")


_NUMBER_DECODERS: dict[str, _NumberDecoder] = {
    "bool": bool,
    "int32": _decode_int32,
    "int64": _decode_int64,
}
_CONTENT_DECODERS: dict[str, _ContentDecoder] = {
    "string": _decode_string,
    "bytes": _decode_bytes,
    "json": _decode_json,
    "octets": _raw_bytes,
}


# --------------------------------------------------------------------------------------- forms


def _format_time(message: Object, nanos: int, precision: str) -> str | None:
    """Format a time; an empty message is an unset time."""
    if not message:
        return None
    try:
        moment = _EPOCH + timedelta(seconds=message.get("seconds", 0), microseconds=nanos // 1000)
    except OverflowError:
        raise BadProtobuf("a time is outside the years 1 to 9999") from None
    return moment.isoformat(timespec=precision).replace("+00:00", "Z")


def _decode_time(message: Object) -> str | None:
    return _format_time(message, 0, "seconds")


def _decode_microtime(message: Object) -> str | None:
    return _format_time(message, message.get("nanos", 0), "microseconds")


def _decode_int_or_string(message: Object) -> int | str:
    choice = _INT_OR_STRING_FIELDS.get(message.get("type", 0))
    if choice is None:
        raise BadProtobuf("a value is neither a number nor a text")
    value: int | str = message.get(*choice)
    return value


def _decode_items(message: Object) -> list[str]:
    items: list[str] = message.get("items", [])
    return items


#: Messages that JSON encodes as something else than an object: from their fields to that.
JSON_CONVERTERS: Final[dict[str, Callable[[Object], Any]]] = {
    "api.resource.Quantity": lambda message: message.get("string", "0"),
    "apiextensions.v1.JSON": lambda message: message.get("raw"),
    "apiextensions.v1.JSONSchemaPropsOrArray": lambda message: (
        message["schema"] if "schema" in message else message.get("jSONSchemas", [])
    ),
    "apiextensions.v1.JSONSchemaPropsOrBool": lambda message: (
        message["schema"] if "schema" in message else message.get("allows", False)
    ),
    "apiextensions.v1.JSONSchemaPropsOrStringArray": lambda message: (
        message["schema"] if "schema" in message else message.get("property", [])
    ),
    "authentication.v1.AttestationValue": _decode_items,
    "authentication.v1.ExtraValue": _decode_items,
    "authorization.v1.ExtraValue": _decode_items,
    "meta.v1.FieldsV1": lambda message: message.get("Raw"),
    "meta.v1.MicroTime": _decode_microtime,
    "meta.v1.Time": _decode_time,
    "meta.v1.Verbs": _decode_items,
    "runtime.RawExtension": lambda message: message.get("raw"),
    "util.intstr.IntOrString": _decode_int_or_string,
}


# ------------------------------------------------------------------------------------ messages


class _MessageDecoder:
    """Decoder of one message, compiled at its first use: messages may be recursive."""

    def __init__(self, fields: MessageFields) -> None:
        self._fields = fields

    @cached_property
    def _number_setters(self) -> dict[int, _NumberSetter]:
        rows = ((int(n) << 3 | _VARINT, _number_setter(*row)) for n, row in self._fields.items())
        return {tag: put for tag, put in rows if put}

    @cached_property
    def _double_fields(self) -> dict[int, str]:
        rows = self._fields.items()
        return {int(n) << 3 | _FIXED64: name for n, (name, node) in rows if node == "double"}

    @cached_property
    def _content_setters(self) -> dict[int, _ContentSetter]:
        rows = ((int(n) << 3 | _LENGTH, _content_setter(*row)) for n, row in self._fields.items())
        return {tag: put for tag, put in rows if put}

    def decode(self, data: _Body, at: int, end: int, into: Object, depth: int) -> Object:
        """Decode a message into an object, which may have some of its fields already.

        A record is a tag (field number and wire type), then a number, or a length and that many
        bytes. Most tags, numbers and lengths are one byte, which is read inline.
        """
        _check_depth(depth)
        numbers, contents = self._number_setters, self._content_setters
        while at < end:
            data.spend(1)
            tag, at = data[at], at + 1
            if tag > 0x7F:
                tag, at = _read_varint(data, at, tag)
            if tag & 7 == _LENGTH:
                size, at = data[at], at + 1
                if size > 0x7F:
                    size, at = _read_varint(data, at, size)
                start, at = at, at + size
                if at > end:
                    break
                if put_content := contents.get(tag):
                    put_content(into, data, start, at, depth)
                else:
                    self._skip_unknown(tag)
            elif tag & 7 == _VARINT:
                number, at = data[at], at + 1
                if number > 0x7F:
                    number, at = _read_varint(data, at, number)
                if put_number := numbers.get(tag):
                    put_number(into, number)
                else:
                    self._skip_unknown(tag)
            elif name := self._double_fields.get(tag):
                at += _SIZES[_FIXED64]
                if at > end:
                    break
                number_read: float = unpack_from("<d", data, at - _SIZES[_FIXED64])[0]
                into[name] = int(number_read) if number_read.is_integer() else number_read
            else:
                at += self._skip_unknown(tag)
        _check_end(at, end)
        return into

    def _skip_unknown(self, tag: int) -> int:
        """Return the fixed size of a record with an unknown tag; refuse one that must not occur."""
        number, wire = tag >> 3, tag & 7
        if number == 0:
            raise BadProtobuf("a field has the number 0")
        if wire not in _SIZES or str(number) in self._fields:
            raise BadProtobuf(f"field {number} has the wrong wire type {wire}")
        return _SIZES[wire]


@cache
def _message_decoder(name: str) -> _MessageDecoder:
    return _MessageDecoder(message_fields(name))


def _read_varint(data: _Body, at: int, first: int) -> tuple[int, int]:
    """Read a number of several bytes, seven bits each, after its first; return it and its end."""
    number = first & 0x7F
    for shift in range(7, 70, 7):
        byte, at = data[at], at + 1
        number |= (byte & 0x7F) << shift
        if byte <= 0x7F:
            return number & 0xFFFF_FFFF_FFFF_FFFF, at
    raise BadProtobuf("a number has more than ten bytes")


def _read_packed(data: _Body, at: int, end: int) -> Iterator[int]:
    """Yield numbers that have no tags between them."""
    while at < end:
        number, at = data[at], at + 1
        if number > 0x7F:
            number, at = _read_varint(data, at, number)
        yield number
    _check_end(at, end)


def _check_end(at: int, end: int) -> None:
    if at > end:
        raise BadProtobuf("a field is longer than what it is part of")


# -------------------------------------------------------------------------------------- fields


def _number_setter(name: str, node: MessageNode) -> _NumberSetter | None:
    """Return the setter of a field for numbers, if its type has numbers."""
    read = _NUMBER_DECODERS.get(_item_type(node))
    if read is None:
        return None
    if isinstance(node, str):

        def put(into: Object, number: int) -> None:
            into[name] = read(number)
    else:

        def put(into: Object, number: int) -> None:
            into.setdefault(name, []).append(read(number))

    return put


def _content_setter(name: str, node: MessageNode) -> _ContentSetter | None:
    """Return the setter of a field for bytes, if its type has bytes."""
    item = _item_type(node)
    if isinstance(node, str):
        is_number = item in _NUMBER_DECODERS or item == "double"
        return None if is_number else _singular_setter(name, item)
    if "m" in node:
        return _map_setter(name, item)
    return _packed_setter(name, item) if item in _NUMBER_DECODERS else _repeated_setter(name, item)


def _item_type(node: MessageNode) -> str:
    return node if isinstance(node, str) else node.get("l") or node["m"]


def _value_decoder(node: str) -> _ContentDecoder:
    """Return the decoder of a string, a converted message or an object."""
    if node in _CONTENT_DECODERS:
        return _CONTENT_DECODERS[node]
    inner, form = _message_decoder(node), JSON_CONVERTERS.get(node)
    if form is None:
        return lambda data, at, end, depth: inner.decode(data, at, end, {}, depth + 1)
    return lambda data, at, end, depth: form(inner.decode(data, at, end, {}, depth + 1))


def _singular_setter(name: str, node: str) -> _ContentSetter:
    """Return the setter of a single value: the last one wins, messages are merged, nameless ones
    are inline.
    """
    if node in _CONTENT_DECODERS or node in JSON_CONVERTERS:
        read = _value_decoder(node)

        def put(into: Object, data: _Body, at: int, end: int, depth: int) -> None:
            into[name] = read(data, at, end, depth)
    else:
        inner = _message_decoder(node)

        def put(into: Object, data: _Body, at: int, end: int, depth: int) -> None:
            inner.decode(data, at, end, into.setdefault(name, {}) if name else into, depth + 1)

    return put


def _repeated_setter(name: str, node: str) -> _ContentSetter:
    read = _value_decoder(node)

    def put(into: Object, data: _Body, at: int, end: int, depth: int) -> None:
        into.setdefault(name, []).append(read(data, at, end, depth))

    return put


def _packed_setter(name: str, node: str) -> _ContentSetter:
    read = _NUMBER_DECODERS[node]

    def put(into: Object, data: _Body, at: int, end: int, depth: int) -> None:
        data.spend(end - at)
        into.setdefault(name, []).extend(map(read, _read_packed(data, at, end)))

    return put


def _map_setter(name: str, node: str) -> _ContentSetter:
    """Return the setter of a map entry, a message of key and value, which may both be omitted."""
    read = _value_decoder(node)
    pair = _MessageDecoder({"1": ("key", "string"), "2": ("value", node)})

    def put(into: Object, data: _Body, at: int, end: int, depth: int) -> None:
        message = pair.decode(data, at, end, {}, depth + 1)
        value = message["value"] if "value" in message else read(data, end, end, depth)
        into.setdefault(name, {})[message.get("key", "")] = value

    return put
