"""The formats that bodies come in: bytes to plain values, within limits, or a 4xx.

JSON, YAML as Kubernetes reads it, and protobuf, which some clients cannot be talked out of. Knows
nothing of kinds; `bodies.py` holds what comes out against them.

Which representation a client takes: JSON or YAML; whole, as a Table, or metadata alone.
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
#: What an object may be sent in.
OBJECT_MEDIA_TYPES = (JSON, YAML, PROTOBUF)
#: A body may have so many bytes and be nested so deep.
MAX_BODY_BYTES = 3 * 1024 * 1024
MAX_DEPTH = 250
_MAX_ALIASES = 100

#: What stands between two manifests of a file.
_DOCUMENT_SEPARATOR = re.compile(r"^---(?:[ \t].*)?$", re.MULTILINE)
_JSON_STRINGS = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_DEPTH_STEPS = {byte: 1 if byte in b"[{" else -1 for byte in b"[]{}"}


def media_type(request: Request) -> str:
    """What the body claims to be, without parameters."""
    given = request.headers.get("content-type", JSON).partition(";")[0].strip().lower() or JSON
    return YAML if given == "application/x-yaml" else given


def parse_manifests(text: str) -> Iterator[Object]:
    """The objects of a file of manifests, read as what is posted: the same words mean the same.

    The items of a list are told one by one. Raises an ApiError where something is no object.
    """
    for part in _DOCUMENT_SEPARATOR.split(text):
        found = load_body(Request("POST", "", headers={"content-type": YAML}, body=part.encode()))
        if isinstance(found, dict):
            yield from found.get("items") or () if found.get("kind") == "List" else (found,)
        elif found is not None:
            raise BadRequest(f"a manifest is an object, and {part.strip()[:40]!r} is none")


def load_body(request: Request, accepted: tuple[str, ...] = OBJECT_MEDIA_TYPES) -> Any:
    """The value of a body in one of the accepted formats; a dict is handed over as it is."""
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
    """How deep JSON is nested, before any parser recurses into it."""
    brackets = _JSON_STRINGS.sub(b"", raw).translate(None, _NO_BRACKETS)
    return max(accumulate(_DEPTH_STEPS[byte] for byte in brackets), default=0)


def _read_protobuf(raw: bytes) -> Any:
    try:
        return protobuf.decode(raw)
    except protobuf.BadProtobuf as error:
        raise BadRequest(f"the protobuf body cannot be read: {error}") from error


def _read_configuration(raw: bytes) -> Any:
    """What is applied comes as YAML, which clients mostly fill with JSON."""
    return _read_json(raw) if raw.lstrip()[:1] == b"{" else _read_yaml(raw)


class _YamlLoader(yaml.SafeLoader):
    """YAML that becomes JSON: no dates, no octal surprises, few aliases."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        """Count aliases: a few bytes of them can stand for gigabytes."""
        if self.check_event(yaml.AliasEvent):
            self.aliases = getattr(self, "aliases", 0) + 1
            if self.aliases > _MAX_ALIASES:
                raise yaml.YAMLError("excessive aliasing")
        return super().compose_node(parent, index)


_YamlLoader.yaml_implicit_resolvers = {}
#: What a bare word means: as Kubernetes reads it, not as YAML 1.1 would (no dates, no base 60).
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
        # Through JSON and back: what JSON cannot say is refused, and aliases become copies.
        return orjson.loads(orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS))
    except (yaml.YAMLError, orjson.JSONEncodeError, RecursionError, ValueError) as error:
        raise BadRequest(f"error converting YAML to JSON: yaml: {_first_line(error)}") from error


def _check_expansion(value: Any) -> None:
    """Refuse what aliases make larger than a body may be, before it is spelled out."""
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


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


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
class Accepted:
    """A media type and, besides the plain object, what it is to be turned into."""

    media: str = JSON
    form: str = ""


def negotiate(request: Request) -> Accepted:
    """The first thing in the Accept header that we can give."""
    return _parse_accept(request.headers.get("accept", ""))


@lru_cache(maxsize=256)
def _parse_accept(header: str) -> Accepted:
    if not header:
        return Accepted()
    for part in header.split(","):
        media, *parameters = (piece.strip() for piece in part.split(";"))
        options = dict(p.split("=", 1) for p in parameters if "=" in p)
        form = options.get("as", "")
        known = not form or (form in _TRANSFORMS and options.get("v") == "v1")
        if media in (*_JSON_MEDIA_TYPES, _YAML_REPLY) and known:
            return Accepted(_YAML_REPLY if media == _YAML_REPLY else JSON, form)
    raise NotAcceptable(
        f"406: Not Acceptable\n\nAvailable representations: {JSON}, {_YAML_REPLY}, {JSON};stream=watch"
    )


def encode_reply(reply: Reply, accepted: Accepted) -> Reply:
    """The reply in the media type that was asked for."""
    if accepted.media != _YAML_REPLY or reply.content_type != JSON:
        return reply
    text = yaml.safe_dump(orjson.loads(reply.body), sort_keys=True)
    return Reply(reply.code, text.encode(), _YAML_REPLY, reply.headers)
