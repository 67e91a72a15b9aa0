"""Requests and replies as values: `handle(Request) -> Reply | StreamReply`.

The HTTP listener and the in-process transport both use them: a transport in `client/` builds a
Request, `server/app.py` handles it, `server/http_server.py` carries both over the network.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from typing import Any

import msgspec

JSON = "application/json"
MERGE_PATCH = "application/merge-patch+json"
JSON_PATCH = "application/json-patch+json"
STRATEGIC_PATCH = "application/strategic-merge-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"

#: A JSON object.
Object = dict[str, Any]


class UserInfo(msgspec.Struct, frozen=True):
    """The authenticated user. `extra` holds pairs of key and value about the credential."""

    name: str
    groups: tuple[str, ...] = ()
    uid: str = ""
    extra: tuple[tuple[str, str], ...] = ()


ANONYMOUS = UserInfo("system:anonymous", ("system:unauthenticated",))


class Request(msgspec.Struct, frozen=True):
    """One API request. `query` is raw, header names are lower case, a dict body is handed over."""

    method: str
    path: str
    query: str = ""
    headers: Mapping[str, str] = msgspec.field(default_factory=dict)
    body: bytes | Object = b""
    user: UserInfo = ANONYMOUS


class Reply(msgspec.Struct, frozen=True):
    """One complete reply."""

    code: int
    body: bytes
    content_type: str = JSON
    headers: tuple[tuple[str, str], ...] = ()


class StreamReply(msgspec.Struct, frozen=True):
    """A reply in chunks, for watches and logs. Its receiver closes `chunks`."""

    code: int
    chunks: AsyncGenerator[bytes, None]
    content_type: str = JSON
    headers: tuple[tuple[str, str], ...] = ()


Handler = Callable[[Request], Awaitable[Reply | StreamReply]]
