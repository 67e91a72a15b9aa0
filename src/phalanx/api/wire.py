"""The value protocol between a client and the server: `handle(Request) -> Reply | Stream`.

HTTP and in-process are peers over it. A transport in `client/` produces a Request, `server.app`
answers it, `server.http` carries both over the network. Knows nothing of sockets.
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

#: An object as JSON knows it. Only here, where JSON enters, is it untyped.
Object = dict[str, Any]


class UserInfo(msgspec.Struct, frozen=True):
    """Who asks. `extra` says more about the credential, in rows of a key and a value."""

    name: str
    groups: tuple[str, ...] = ()
    uid: str = ""
    extra: tuple[tuple[str, str], ...] = ()


ANONYMOUS = UserInfo("system:anonymous", ("system:unauthenticated",))


class Request(msgspec.Struct, frozen=True):
    """One question. `query` is raw, header names are lower case, a dict body is handed over."""

    method: str
    path: str
    query: str = ""
    headers: Mapping[str, str] = msgspec.field(default_factory=dict)
    body: bytes | Object = b""
    user: UserInfo = ANONYMOUS


class Reply(msgspec.Struct, frozen=True):
    """One answer, whole."""

    code: int
    body: bytes
    content_type: str = JSON
    headers: tuple[tuple[str, str], ...] = ()


class StreamReply(msgspec.Struct, frozen=True):
    """One answer in pieces, as they come: a watch. Whoever holds it closes `chunks`."""

    code: int
    chunks: AsyncGenerator[bytes, None]
    content_type: str = JSON
    headers: tuple[tuple[str, str], ...] = ()


Handler = Callable[[Request], Awaitable[Reply | StreamReply]]
