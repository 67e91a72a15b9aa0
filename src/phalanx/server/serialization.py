"""Media types: request bodies to plain values, and the representation of replies.

Bodies are JSON, YAML as Kubernetes reads it, or protobuf, which some clients always send. Limits on
size, nesting and YAML aliases apply before anything is expanded. Replies are JSON or YAML; a client
may ask for a Table or for metadata only. Knows no kinds: `request_bodies.py` checks the values.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from typing import Any

import orjson
import yaml

from phalanx.api import protobuf
from phalanx.api.errors import BadRequest, NotAcceptable, TooLarge, UnsupportedMediaType
from phalanx.api.wire import (
    APPLY_PATCH,
    JSON,
    JSON_PATCH,
    MERGE_PATCH,
    STRATEGIC_PATCH,
    Object,
    Reply,
    Request,
)

PROTOBUF = "application/vnd.kubernetes.protobuf"
YAML = "application/yaml"
#: Media types in which an object may be sent.
OBJECT_MEDIA_TYPES = (JSON, YAML, PROTOBUF)
#: Limits of a body: size and nesting.
MAX_BODY_BYTES = 3 * 1024 * 1024
MAX_DEPTH = 250
_MAX_ALIASES = 100

#: The separator of YAML documents.
_DOCUMENT_SEPARATOR = re.compile(r"^---(?:[ \t].*)?$", re.MULTILINE)
_JSON_STRINGS = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_DEPTH_STEPS = {byte: 1 if byte in b"[{" else -1 for byte in b"[]{}"}


def media_type(request: Request) -> str:
    """The media type of a request body, without parameters."""
    given = request.headers.get("content-type", JSON).partition(";")[0].strip().lower() or JSON
    return YAML if given == "application/x-yaml" else given


def parse_manifests(text: str) -> Iterator[Object]:
    """The objects of a file of manifests, parsed like a request body in YAML.

    The items of a List are returned one by one. Raises an ApiError if a document is not an object.
    """
    for part in _DOCUMENT_SEPARATOR.split(text):
        obj = load_body(Request("POST", "", headers={"content-type": YAML}, body=part.encode()))
        if isinstance(obj, dict):
            yield from obj.get("items") or () if obj.get("kind") == "List" else (obj,)
        elif obj is not None:
            raise BadRequest(f"a manifest must be an object, not {part.strip()[:40]!r}")


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
    if raw.count(b"[") + raw.count(b"{") > MAX_DEPTH and _json_depth(raw) > MAX_DEPTH:
        raise _json_error("exceeded max depth")
    try:
        return orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise _json_error(str(error).partition(":")[0]) from error


def _json_error(detail: str) -> BadRequest:
    return BadRequest(f"couldn't get version/kind; json parse error: {detail}")


def _json_depth(raw: bytes) -> int:
    """The nesting depth of JSON, computed before a parser recurses into it."""
    brackets = _JSON_STRINGS.sub(b"", raw).translate(None, _NO_BRACKETS)
    return max(accumulate(_DEPTH_STEPS[byte] for byte in brackets), default=0)


def _read_protobuf(raw: bytes) -> Any:
    try:
        return protobuf.decode(raw)
    except protobuf.BadProtobuf as error:
        raise BadRequest(f"the protobuf body cannot be read: {error}") from error


def _read_configuration(raw: bytes) -> Any:
    """Server-side apply declares YAML, but most clients send JSON."""
    return _read_json(raw) if raw.lstrip()[:1] == b"{" else _read_yaml(raw)


class _YamlLoader(yaml.SafeLoader):
    """A YAML loader that gives what Kubernetes reads: no dates, no base 60, few aliases."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        """Limit the number of aliases: a few bytes of them can expand to gigabytes."""
        if self.check_event(yaml.AliasEvent):
            self.aliases = getattr(self, "aliases", 0) + 1
            if self.aliases > _MAX_ALIASES:
                raise yaml.YAMLError("excessive aliasing")
        return super().compose_node(parent, index)


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
_YamlLoader.bool_values = {**yaml.SafeLoader.bool_values, "y": True, "n": False}


def _read_yaml(raw: bytes) -> Any:
    try:
        value = yaml.load(raw, Loader=_YamlLoader)
        _check_expansion(value)
        # Through JSON and back: refuses values that JSON lacks, and turns aliases into copies.
        return orjson.loads(orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS))
    except (yaml.YAMLError, orjson.JSONEncodeError, RecursionError, ValueError) as error:
        first_line = str(error).partition("\n")[0]
        raise BadRequest(f"error converting YAML to JSON: yaml: {first_line}") from error


def _check_expansion(value: Any) -> None:
    """Refuse aliases that expand to more than a body may have, before expanding them."""
    size, todo = 0, [value]
    while todo:
        item = todo.pop()
        size += 2 + (len(item) if isinstance(item, str) else 0)
        if size > MAX_BODY_BYTES:
            raise BadRequest("error converting YAML to JSON: yaml: excessive aliasing")
        if isinstance(item, dict):
            todo.extend(item)
            todo.extend(item.values())
        elif isinstance(item, list):
            todo.extend(item)


_BODY_READERS: Mapping[str, Callable[[bytes], Any]] = {
    JSON: _read_json,
    YAML: _read_yaml,
    PROTOBUF: _read_protobuf,
    JSON_PATCH: _read_json,
    MERGE_PATCH: _read_json,
    STRATEGIC_PATCH: _read_json,
    APPLY_PATCH: _read_configuration,
}


_YAML_REPLY = "application/yaml"
_JSON_MEDIA_TYPES = ("*/*", "application/*", JSON)
_TRANSFORMS = ("Table", "PartialObjectMetadata", "PartialObjectMetadataList")


@dataclass(frozen=True, slots=True)
class MediaTypeOptions:
    """The media type of a reply, and the representation: "" is the object itself."""

    media: str = JSON
    form: str = ""


def negotiate(request: Request) -> MediaTypeOptions:
    """The first representation in the Accept header that the server can give."""
    return _parse_accept(request.headers.get("accept", ""))


@lru_cache(maxsize=256)
def _parse_accept(header: str) -> MediaTypeOptions:
    if not header:
        return MediaTypeOptions()
    for part in header.split(","):
        media, *parameters = (piece.strip() for piece in part.split(";"))
        options = dict(p.split("=", 1) for p in parameters if "=" in p)
        form = options.get("as", "")
        known = not form or (form in _TRANSFORMS and options.get("v") == "v1")
        if media in (*_JSON_MEDIA_TYPES, _YAML_REPLY) and known:
            return MediaTypeOptions(_YAML_REPLY if media == _YAML_REPLY else JSON, form)
    raise NotAcceptable(
        f"406: Not Acceptable\n\nAvailable representations: {JSON}, {_YAML_REPLY}, "
        f"{JSON};stream=watch"
    )


def encode_reply(reply: Reply, accepted: MediaTypeOptions) -> Reply:
    """Encode a reply in the negotiated media type."""
    if accepted.media != _YAML_REPLY or reply.content_type != JSON:
        return reply
    text = yaml.safe_dump(orjson.loads(reply.body), sort_keys=True)
    return Reply(reply.code, text.encode(), _YAML_REPLY, reply.headers)
