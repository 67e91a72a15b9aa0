"""Which representation a client takes: JSON or YAML; whole, as a Table, or metadata alone."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import orjson
import yaml

from phalanx.api.errors import NotAcceptable
from phalanx.api.wire import JSON, Reply, Request

YAML = "application/yaml"
_ANY = ("*/*", "application/*", JSON)
_TRANSFORMS = ("Table", "PartialObjectMetadata", "PartialObjectMetadataList")


@dataclass(frozen=True, slots=True)
class Accepted:
    """A media type and, besides the plain object, what it is to be turned into."""

    media: str = JSON
    form: str = ""


def negotiate(request: Request) -> Accepted:
    """The first thing in the Accept header that we can give."""
    return _negotiated(request.headers.get("accept", ""))


@lru_cache(maxsize=256)
def _negotiated(header: str) -> Accepted:
    if not header:
        return Accepted()
    for part in header.split(","):
        media, *parameters = (piece.strip() for piece in part.split(";"))
        options = dict(p.split("=", 1) for p in parameters if "=" in p)
        form = options.get("as", "")
        known = not form or (form in _TRANSFORMS and options.get("v") == "v1")
        if media in (*_ANY, YAML) and known:
            return Accepted(YAML if media == YAML else JSON, form)
    raise NotAcceptable(
        f"406: Not Acceptable\n\nAvailable representations: {JSON}, {YAML}, {JSON};stream=watch"
    )


def in_media(reply: Reply, accepted: Accepted) -> Reply:
    """The reply in the media type that was asked for."""
    if accepted.media != YAML or reply.kind != JSON:
        return reply
    text = yaml.safe_dump(orjson.loads(reply.body), sort_keys=True)
    return Reply(reply.code, text.encode(), YAML, reply.headers)
