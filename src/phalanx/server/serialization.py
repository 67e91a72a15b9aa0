"""Media types: request bodies to plain values, and the representation of replies.

Bodies are JSON, YAML as Kubernetes reads it, or protobuf, which some clients always send. Limits on
size, nesting and YAML aliases apply before anything is expanded. Replies are JSON, YAML or
protobuf; a client may ask for a Table or for metadata only. Knows no kinds: `request_bodies.py`
checks the values.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from functools import lru_cache
from io import BytesIO
from itertools import accumulate
from typing import Any

import orjson
import yaml

from phalanx.api import protobuf, protobuf_encoder
from phalanx.api.errors import BadRequest, NotAcceptable, TooLarge, UnsupportedMediaType
from phalanx.api.kinds import Kind
from phalanx.api.protobuf import message_name
from phalanx.api.wire import (
    APPLY_PATCH,
    JSON,
    JSON_PATCH,
    MERGE_PATCH,
    STRATEGIC_PATCH,
    Object,
    Reply,
    Request,
    StreamReply,
)

PROTOBUF = "application/vnd.kubernetes.protobuf"
YAML = "application/yaml"
#: Media types in which an object may be sent.
OBJECT_MEDIA_TYPES = (JSON, YAML, PROTOBUF)
#: Limits of a body: its size, its nesting, and its fields and items. YAML takes longer to parse.
MAX_BODY_BYTES = 3 * 1024 * 1024
MAX_YAML_BYTES = 256 * 1024
MAX_DEPTH = 250
MAX_BODY_VALUES = 200_000
_MAX_YAML_NODES = 40_000
_MAX_ALIASES = 100

#: The separator of YAML documents.
_DOCUMENT_SEPARATOR = re.compile(r"^---(?:[ \t].*)?$", re.MULTILINE)
#: A string in JSON. It never backtracks, and a string without end reaches to the end of the body:
#: so the strings of a body are found in linear time.
_JSON_STRINGS = re.compile(rb'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_DEPTH_STEPS = {byte: 1 if byte in b"[{" else -1 for byte in b"[]{}"}


def media_type(request: Request) -> str:
    """The media type of a request body, without parameters."""
    return request.headers.get("content-type", JSON).partition(";")[0].strip().lower() or JSON


def parse_manifests(text: str) -> Iterator[Object]:
    """The objects of a file of manifests, parsed like a request body in YAML of any size.

    The items of a List are returned one by one. Raises an ApiError if a document is not an object,
    or has a key twice.
    """
    line = 0
    for part in _DOCUMENT_SEPARATOR.split(text):
        obj = _read_yaml(part.encode(), MAX_BODY_VALUES, first_line=line)
        line += part.count("\n")
        items = [] if obj is None else [obj]
        if isinstance(obj, dict) and obj.get("kind") == "List":
            items = obj.get("items") or []
            if not isinstance(items, list):
                raise BadRequest("the items of a List must be a list")
        for item in items:
            if not isinstance(item, dict):
                shown = part.strip() if item is obj else orjson.dumps(item).decode()
                raise BadRequest(f"a manifest must be an object, not {shown[:40]!r}")
            yield item


def load_body(request: Request, accepted: tuple[str, ...] = OBJECT_MEDIA_TYPES) -> Any:
    """Parse a body in one of the accepted media types; a dict is returned as it is."""
    if isinstance(request.body, dict):
        return request.body
    kind = media_type(request)
    if kind not in accepted:
        raise UnsupportedMediaType(
            "the body of the request was in an unknown format - accepted media types include: "
            + ", ".join(accepted)
        )
    if len(request.body) > MAX_BODY_BYTES:
        raise TooLarge(f"Request entity too large: limit is {MAX_BODY_BYTES}")
    return _BODY_READERS[kind](request.body)


def _read_json(raw: bytes) -> Any:
    if not raw:
        raise _json_error("unexpected end of JSON input")
    _check_structure(raw)
    try:
        return orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise _json_error(str(error).partition(":")[0]) from error


def _json_error(detail: str) -> BadRequest:
    return BadRequest(f"couldn't get version/kind; json parse error: {detail}")


def _check_structure(raw: bytes) -> None:
    """Refuse JSON with too many values or levels, before a parser builds them.

    A value is a container, or follows a comma or the opening bracket of its container.
    """
    openings = raw.count(b"[") + raw.count(b"{")
    if openings <= MAX_DEPTH and openings + raw.count(b",") <= MAX_BODY_VALUES:
        return
    # At most two strings per value, a key and itself; quotes within strings are escaped.
    if raw.count(b'"') - raw.count(b'\\"') > 4 * MAX_BODY_VALUES:
        raise _too_many_values()
    structure = _JSON_STRINGS.sub(b"", raw)
    # More brackets than these have too many values.
    brackets = structure.translate(None, _NO_BRACKETS)[: 2 * MAX_BODY_VALUES]
    if max(accumulate(_DEPTH_STEPS[byte] for byte in brackets), default=0) > MAX_DEPTH:
        raise _json_error("exceeded max depth")
    if structure.count(b"[") + structure.count(b"{") + structure.count(b",") > MAX_BODY_VALUES:
        raise _too_many_values()


def _too_many_values() -> TooLarge:
    return TooLarge(f"Request entity too large: limit is {MAX_BODY_VALUES} fields and items")


def _read_protobuf(raw: bytes) -> Any:
    try:
        return protobuf.decode(raw)
    except protobuf.BadProtobuf as error:
        raise BadRequest(f"the protobuf body cannot be read: {error}") from error


def _read_configuration(raw: bytes) -> Any:
    """Server-side apply declares YAML, but most clients send JSON."""
    return _read_json(raw) if raw.lstrip()[:1] == b"{" else _read_limited_yaml(raw)


class _YamlLoader(yaml.CSafeLoader):
    """A YAML loader that gives what Kubernetes reads: no dates, no base 60, few aliases.

    libyaml parses; `resolve` is called for each node, so limits apply while it does. `read` builds
    values from nodes; an alias gives the value of its anchor, not a copy. `first_line` is the line
    of a file in which the text begins: then duplicate keys are errors.
    """

    def __init__(self, raw: bytes, max_nodes: int, first_line: int | None) -> None:
        super().__init__(raw)
        self._depth = self._nodes = self._aliases = 0
        self._max_nodes, self._first_line = max_nodes, first_line
        self._built: dict[int, Any] = {}

    def resolve(self, kind: Any, value: Any, implicit: Any) -> Any:
        """The tag of a node; counts the nodes."""
        self._count(1)
        return super().resolve(kind, value, implicit)  # type: ignore[no-untyped-call]

    def _count(self, nodes: int) -> None:
        self._nodes += nodes
        if self._nodes > self._max_nodes:
            raise yaml.YAMLError(f"more than {self._max_nodes} keys and values; send JSON instead")

    def descend_resolver(self, parent: Any, index: Any) -> None:
        """Limit the depth on the way down."""
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise yaml.YAMLError("exceeded max depth")

    def ascend_resolver(self) -> None:
        """Leave a node."""
        self._depth -= 1

    def read(self, node: Any) -> Any:
        """The value of a node."""
        if id(node) in self._built:
            self._aliases += 1
            if self._aliases > _MAX_ALIASES:
                raise yaml.YAMLError("excessive aliasing")
            return self._built[id(node)]
        tag = node.tag.removeprefix("tag:yaml.org,2002:")
        value: Any
        if tag == "map" and isinstance(node, yaml.MappingNode):
            value = self._built[id(node)] = {}
            self._fill_mapping(value, node)
        elif tag == "seq" and isinstance(node, yaml.SequenceNode):
            value = self._built[id(node)] = []
            value.extend(map(self.read, node.value))
        elif tag in _SCALAR_TAGS and isinstance(node, yaml.ScalarNode):
            value = self._built[id(node)] = _SCALAR_TAGS[tag](self, node)
        else:
            raise yaml.YAMLError(f"the tag {node.tag!r} cannot be used here")
        return value

    def _fill_mapping(self, mapping: dict[Any, Any], node: Any) -> None:
        """Set the fields of a mapping: merged ones first, earlier ones before later ones."""
        own: dict[Any, Any] = {}
        merged: list[Any] = []
        for key_node, value_node in node.value:
            if key_node.tag != _MERGE_TAG:
                key = self.read(key_node)
                if key in own and self._first_line is not None:
                    line = self._first_line + key_node.start_mark.line + 1
                    raise yaml.YAMLError(f'line {line}: key "{key}" already set in map')
                own[key] = self.read(value_node)
                continue
            value = self.read(value_node)
            merged += value if isinstance(value, list) else [value]
        for part in reversed(merged):
            if not isinstance(part, dict):
                raise yaml.YAMLError("map merge requires map or sequence of maps as the value")
            self._count(len(part))
            mapping.update(part)
        mapping.update(own)


_MERGE_TAG = "tag:yaml.org,2002:merge"
_SCALAR_TAGS: Mapping[str, Callable[[_YamlLoader, Any], Any]] = {
    "str": lambda loader, node: node.value,
    "null": lambda loader, node: None,
    "bool": yaml.CSafeLoader.construct_yaml_bool,
    "int": yaml.CSafeLoader.construct_yaml_int,
    "float": yaml.CSafeLoader.construct_yaml_float,
}
_YamlLoader.yaml_implicit_resolvers = {}
#: The types of plain scalars as Kubernetes reads them, unlike YAML 1.1 (no dates, no base 60).
for _tag, _pattern, _first in (
    ("bool", "y|Y|n|N|yes|Yes|YES|no|No|NO|true|True|TRUE|false|False|FALSE|on|On|ON|off|Off|OFF",
     "yYnNtTfFoO"),
    ("int", "[-+]?(?:0|[1-9][0-9_]*|0[0-7_]+|0b[01_]+|0x[0-9a-fA-F_]+)", "-+0123456789"),
    ("float", r"[-+]?(?:[0-9][0-9_]*\.[0-9_]*|\.[0-9][0-9_]*|[0-9]+(?=[eE]))(?:[eE][-+]?[0-9]+)?",
     "-+.0123456789"),
    ("null", "~|null|Null|NULL|", ("~", "n", "N", "")),
    ("merge", "<<", "<"),
):  # fmt: skip
    _YamlLoader.add_implicit_resolver(
        f"tag:yaml.org,2002:{_tag}", re.compile(f"^(?:{_pattern})$"), list(_first)
    )
_YamlLoader.bool_values = {**yaml.CSafeLoader.bool_values, "y": True, "n": False}


def _read_limited_yaml(raw: bytes) -> Any:
    if len(raw) > MAX_YAML_BYTES:
        raise TooLarge(
            f"Request entity too large: limit is {MAX_YAML_BYTES} for YAML; send JSON instead"
        )
    return _read_yaml(raw, _MAX_YAML_NODES)


def _read_yaml(raw: bytes, max_nodes: int, first_line: int | None = None) -> Any:
    """The value of a YAML document. With the number of its first line a duplicate key is an error,
    and an error has its line and column.

    Without, the last value of a key counts, as in a request body.
    """
    loader = None
    try:
        loader = _YamlLoader(raw, max_nodes, first_line)
        node = loader.get_single_node()
        value = None if node is None else loader.read(node)
        _check_expansion(value)
        # Through JSON and back: refuses values that JSON lacks, and turns aliases into copies.
        return orjson.loads(orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS))
    except (yaml.YAMLError, ValueError, TypeError, RecursionError) as error:
        problem = str(error).partition("\n")[0]
        mark = getattr(error, "problem_mark", None)
        if first_line is not None and mark is not None:
            place = f"line {first_line + mark.line + 1}, column {mark.column + 1}"
            problem = f"{place}: {getattr(error, 'problem', problem)}"
        raise BadRequest(f"error converting YAML to JSON: yaml: {problem}") from error
    finally:
        if loader:
            loader.dispose()


def _check_expansion(value: Any) -> None:
    """Refuse aliases that expand to more than a body may have, before expanding them."""
    size, values, todo = 0, 0, [value]
    while todo:
        item = todo.pop()
        size += 2 + (len(item) if isinstance(item, str) else 0)
        values += 1
        if size > MAX_BODY_BYTES or values > MAX_BODY_VALUES:
            raise yaml.YAMLError("excessive aliasing")
        if isinstance(item, dict):
            todo.extend(item)
            todo.extend(item.values())
        elif isinstance(item, list):
            todo.extend(item)


_BODY_READERS: Mapping[str, Callable[[bytes], Any]] = {
    JSON: _read_json,
    YAML: _read_limited_yaml,
    PROTOBUF: _read_protobuf,
    JSON_PATCH: _read_json,
    MERGE_PATCH: _read_json,
    STRATEGIC_PATCH: _read_json,
    APPLY_PATCH: _read_configuration,
}


_YAML_REPLY = "application/yaml"
#: Replies up to this size are in block style; larger ones take too long to convert.
_MAX_BLOCK_STYLE_BYTES = 32 * 1024
#: Characters that JSON allows in strings and YAML does not, or folds as line breaks.
_YAML_ESCAPES = tuple(
    (chr(code).encode(), b"\\u%04x" % code)
    for code in (*range(0x7F, 0xA0), 0x2028, 0x2029, 0xFEFF, 0xFFFE, 0xFFFF)
)
#: One search for all of them: most replies have none.
_YAML_ESCAPED = re.compile(
    rb"\x7f|\xc2[\x80-\x9f]|\xe2\x80[\xa8\xa9]|\xef(?:\xbb\xbf|\xbf[\xbe\xbf])"
)
_JSON_MEDIA_TYPES = ("*/*", JSON)
_LIST_END = b"]}"
#: Values and bytes that are decoded or encoded before other requests have their turn.
_TURN_VALUES, _TURN_BYTES = 100, 256 * 1024
#: The longest list that is joined in one piece, which takes a few milliseconds.
_MAX_JOINED_BYTES = 4 * 1024 * 1024
_REPLY_MEDIA_TYPES = {JSON: JSON, "*/*": JSON, _YAML_REPLY: _YAML_REPLY, PROTOBUF: PROTOBUF}
_TRANSFORMS = ("Table", "PartialObjectMetadata", "PartialObjectMetadataList")
_TRANSFORM_GROUP, _TRANSFORM_VERSIONS = "meta.k8s.io", ("v1", "v1beta1")


class _YamlDumper(yaml.CSafeDumper):
    """A YAML dumper that quotes as Kubernetes does: texts that look like other values, doubly."""


def _represent_text(dumper: _YamlDumper, text: str) -> yaml.ScalarNode:
    tag = "tag:yaml.org,2002:str"
    if "\n" in text:
        return dumper.represent_scalar(tag, text, style="|")
    is_plain = dumper.resolve(yaml.ScalarNode, text, (True, False)) == tag  # type: ignore[no-untyped-call]
    return dumper.represent_scalar(tag, text, style=None if is_plain else '"')


_YamlDumper.add_representer(str, _represent_text)


@dataclass(frozen=True, slots=True)
class MediaTypeOptions:
    """The media type of a reply, and the representation: "" is the object itself."""

    media: str = JSON
    form: str = ""
    form_version: str = "meta.k8s.io/v1"
    #: Whether JSON is accepted too, for kinds without a protobuf message.
    allows_json: bool = True


def negotiate(request: Request) -> MediaTypeOptions:
    """The first representation in the Accept header that the server can give."""
    return _parse_accept(request.headers.get("accept", ""))


@lru_cache(maxsize=256)
def _parse_accept(header: str) -> MediaTypeOptions:
    if not header:
        return MediaTypeOptions()
    for part in sorted(header.split(","), key=_quality, reverse=True):
        media, *parameters = (piece.strip() for piece in part.split(";"))
        options = dict(p.split("=", 1) for p in parameters if "=" in p)
        form, version = options.get("as", ""), options.get("v", "")
        known = form in _TRANSFORMS and version in _TRANSFORM_VERSIONS
        known = known and options.get("g", _TRANSFORM_GROUP) == _TRANSFORM_GROUP
        if media not in _REPLY_MEDIA_TYPES or not (known or not form):
            continue
        if media == PROTOBUF and form == "Table":
            continue  # Cells of a Table are untyped: Kubernetes has no Tables in protobuf.
        return MediaTypeOptions(
            _REPLY_MEDIA_TYPES[media],
            form,
            f"{_TRANSFORM_GROUP}/{version or 'v1'}",
            allows_json=any(json in header for json in _JSON_MEDIA_TYPES),
        )
    raise _not_acceptable()


def _quality(part: str) -> float:
    """The weight of a media type in an Accept header: `q`, or 1."""
    found = re.search(r";\s*q=([01](?:\.\d{0,3})?)\s*(?:;|$)", part)
    return float(found[1]) if found else 1.0


def _not_acceptable() -> NotAcceptable:
    available = ", ".join((JSON, _YAML_REPLY, PROTOBUF))
    return NotAcceptable(f"406: Not Acceptable\n\nAvailable representations: {available}")


def encode_stream(reply: StreamReply, accepted: MediaTypeOptions, has_message: bool) -> StreamReply:
    """Encode a stream of watch events in the negotiated media type."""
    if accepted.media != PROTOBUF:
        return reply
    if not has_message:
        if accepted.allows_json:
            return reply
        raise _not_acceptable()
    content_type = f"{PROTOBUF};stream=watch"
    return StreamReply(reply.code, _event_frames(reply.chunks), content_type, reply.headers)


async def _event_frames(chunks: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    async with aclosing(chunks):
        async for chunk in chunks:
            yield b"".join(map(protobuf_encoder.encode_event, chunk.splitlines()))


def _encode_protobuf(reply: Reply, accepted: MediaTypeOptions) -> Reply:
    body = protobuf_encoder.encode(orjson.loads(reply.body))
    if body is not None:
        return Reply(reply.code, body, PROTOBUF, reply.headers)
    if accepted.allows_json:
        return reply
    raise _not_acceptable()


def encode_reply(reply: Reply, accepted: MediaTypeOptions) -> Reply:
    """Encode a reply in the negotiated media type.

    A large reply in YAML is in flow style: JSON is YAML, and nothing needs to be parsed.
    """
    if accepted.media == JSON or reply.content_type != JSON:
        return reply
    if accepted.media == PROTOBUF:
        return _encode_protobuf(reply, accepted)
    if len(reply.body) <= _MAX_BLOCK_STYLE_BYTES:
        text = yaml.dump(orjson.loads(reply.body), Dumper=_YamlDumper).encode()
    else:
        text = _to_flow_style(reply.body) + b"\n"
    return Reply(reply.code, text, _YAML_REPLY, reply.headers)


def _to_flow_style(text: bytes) -> bytes:
    """JSON as YAML."""
    if _YAML_ESCAPED.search(text):
        for character, escaped in _YAML_ESCAPES[: 1 if text.isascii() else None]:
            text = text.replace(character, escaped)
    return text


async def take_turns(values: Iterable[bytes]) -> AsyncGenerator[bytes, None]:
    """Yield stored values; other requests have their turn after some values or bytes."""
    count = size = 0
    for value in values:
        yield value
        count, size = count + 1, size + len(value)
        if count >= _TURN_VALUES or size >= _TURN_BYTES:
            count = size = 0
            await asyncio.sleep(0)


async def encode_list(opening: bytes, items: list[bytes], accepted: MediaTypeOptions) -> Reply:
    """Encode a list in the negotiated media type; other requests run meanwhile.

    The opening is the list in JSON up to its first item; each item is JSON too.
    """
    is_block_style = len(opening) + sum(map(len, items)) <= _MAX_BLOCK_STYLE_BYTES
    if accepted.media == JSON or (accepted.media == YAML and is_block_style):
        return encode_reply(Reply(200, await _join_list(opening, items)), accepted)
    if accepted.media == YAML:
        parts = [_to_flow_style(item) async for item in take_turns(items)]
        text = await _join_list(_to_flow_style(opening), parts, end=_LIST_END + b"\n")
        return Reply(200, text, _YAML_REPLY)
    head = orjson.loads(opening + _LIST_END)
    if message_name(head["apiVersion"], head["kind"]) is None:
        if not accepted.allows_json:
            raise _not_acceptable()
        return Reply(200, await _join_list(opening, items))
    encoded = [protobuf_encoder.encode_item(head, item) async for item in take_turns(items)]
    start = protobuf_encoder.encode_list_opening(head, sum(map(len, encoded)))
    return Reply(200, await _join_in_turns([start, *encoded]), PROTOBUF)


async def _join_list(opening: bytes, items: list[bytes], *, end: bytes = _LIST_END) -> bytes:
    """Join a list with one copy of its items."""
    parts = [opening + items[0], *items[1:]] if items else [opening]
    parts[-1] += end
    return await _join_in_turns(parts, b",")


async def _join_in_turns(parts: list[bytes], separator: bytes = b"") -> bytes:
    """Join parts with one copy of each; other requests have their turn while many are copied."""
    if sum(map(len, parts)) <= _MAX_JOINED_BYTES:
        return separator.join(parts)
    # Grows without a second copy, and gives up its buffer as it is.
    joined, is_first = BytesIO(), True
    async for part in take_turns(parts):
        if not is_first:
            joined.write(separator)
        joined.write(part)
        is_first = False
    return joined.getvalue()


def encode_if_accepted(
    request: Request, kind: Kind, reply: Reply | StreamReply
) -> Reply | StreamReply:
    """Encode what a handler has left in JSON, an error or a review, as the client prefers it."""
    accept = request.headers.get("accept")
    if not accept or not ("protobuf" in accept or "yaml" in accept):
        return reply
    if not isinstance(reply, Reply):
        return reply
    try:
        accepted = negotiate(request)
        is_final = reply.code < 400 and message_name(kind.api_version, kind.name) is None
        if accepted.media == PROTOBUF and is_final:
            return reply  # A list of any size, which would be parsed to find that out.
        return encode_reply(reply, accepted)
    except NotAcceptable:
        return reply  # It says so itself.
