"""JSON objects, and requests and replies as values: `handle(Request) -> Reply | StreamReply`.

The HTTP listener and the in-process transport both use them: a transport in `client/` builds a
Request, `server/app.py` handles it, `server/http_server.py` carries both over the network.

`compact_json` makes cache keys. Pods of a gang are created with equal specs, so validation
(`checks.cached`), defaulting and field management cache their results by the JSON of the part that
they processed.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from typing import Any

import msgspec
import orjson

JSON = "application/json"
MERGE_PATCH = "application/merge-patch+json"
JSON_PATCH = "application/json-patch+json"
STRATEGIC_PATCH = "application/strategic-merge-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"

#: A JSON object.
Object = dict[str, Any]
#: The number of entries of one cache, and the length of the longest key.
CACHE_SIZE, MAX_CACHED_BYTES = 256, 16 * 1024


def compact_json(value: Any) -> bytes:
    """Encode a value as JSON that occupies no more memory than its length."""
    # Copied: the bytes that orjson returns keep a buffer of many times their length.
    return bytes(memoryview(orjson.dumps(value)))


class UserInfo(msgspec.Struct, frozen=True):
    """The authenticated user. `extra` holds pairs of key and value about the credential."""

    name: str
    groups: tuple[str, ...] = ()
    uid: str = ""
    extra: tuple[tuple[str, str], ...] = ()


ANONYMOUS = UserInfo("system:anonymous", ("system:unauthenticated",))


class Request(msgspec.Struct, frozen=True):
    """One API request. `query` is raw, header names are lower case, a dict body is handed over.

    `actor` is the authenticated user if it impersonates `user`. `expires` is when the client
    certificate of the connection expires, in seconds since the Unix epoch.
    """

    method: str
    path: str
    query: str = ""
    headers: Mapping[str, str] = msgspec.field(default_factory=dict)
    body: bytes | Object = b""
    user: UserInfo = ANONYMOUS
    actor: UserInfo | None = None
    expires: float | None = None


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
