"""The verbs of the API over a transport: what everything that acts holds in its hand.

Above `requests`, `transports` and `answers`, below `informer`. Every method raises the ApiError
that the server meant, or Unreachable. Comes back when a busy server asks it to, some times; retries
nothing else, caches nothing. A struct that was read is never written back: writes are dicts.

Whether a server knows a kind at all: asked once, before anything relies on it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import aclosing
from typing import Any, TypeVar, Unpack, overload

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from phalanx.api.errors import Expired, NotFound, ServerError
from phalanx.api.kinds import Kind
from phalanx.api.meta import Key
from phalanx.api.wire import MERGE_PATCH, Object, Reply, Request, StreamReply
from phalanx.client.protocol import (
    Listing,
    ListScope,
    WatchDecoder,
    WatchEvent,
    build_request,
    collection_request,
    decode_reply,
    delete_options,
    encode_patch,
    ensure_success,
    error_from_reply,
    list_page_type,
    parse_revision,
    request_headers,
    retry_after,
)
from phalanx.client.transports import Transport
from phalanx.telemetry import AUDIT_ID_HEADER, REQUEST_ID, Metrics

#: Objects in one page of a list.
LIST_PAGE_SIZE = 500
#: How often a server may say "later" to one request.
MAX_RETRIES = 5

T = TypeVar("T")


class Client:
    """An API server, ours or any other, in process or far away.

    Where a method takes a `struct`, the answer is decoded straight into it; else it is a dict.
    """

    def __init__(self, transport: Transport, metrics: Metrics | None = None) -> None:
        self._transport = transport
        #: What is measured in the process of whoever holds this.
        self.metrics = metrics or Metrics()

    async def close(self) -> None:
        """Let go of the transport."""
        await self._transport.close()

    @overload
    async def get(self, kind: Kind, key: Key) -> Object: ...
    @overload
    async def get(self, kind: Kind, key: Key, struct: type[T]) -> T: ...
    async def get(self, kind: Kind, key: Key, struct: type[Any] = dict) -> Any:
        """One object."""
        return decode_reply(await self._request(build_request("get", kind, key)), struct)

    @overload
    async def list(self, kind: Kind, **scope: Unpack[ListScope]) -> Listing[Object]: ...
    @overload
    async def list(self, kind: Kind, struct: type[T], **scope: Unpack[ListScope]) -> Listing[T]: ...
    async def list(
        self, kind: Kind, struct: type[Any] = dict, **scope: Unpack[ListScope]
    ) -> Listing[Any]:
        """All objects of a kind, or of a part of it, at one revision."""
        try:
            return await self._list_pages(kind, struct, scope, LIST_PAGE_SIZE)
        except Expired:
            # The pages outlived the server's history: take everything at once.
            return await self._list_pages(kind, struct, scope, 0)

    @overload
    def watch(
        self, kind: Kind, *, since: int, **scope: Unpack[ListScope]
    ) -> AsyncGenerator[WatchEvent[Object], None]: ...
    @overload
    def watch(
        self, kind: Kind, struct: type[T], *, since: int, **scope: Unpack[ListScope]
    ) -> AsyncGenerator[WatchEvent[T], None]: ...
    async def watch(
        self, kind: Kind, struct: type[Any] = dict, *, since: int, **scope: Unpack[ListScope]
    ) -> AsyncGenerator[WatchEvent[Any], None]:
        """The changes after a revision, until the server ends it. Close it with `aclose`."""
        async with aclosing(
            self.watch_batches(kind, WatchDecoder(struct, since), **scope)
        ) as batches:
            async for batch in batches:
                for event in batch:
                    yield event

    async def watch_batches(
        self, kind: Kind, decoder: WatchDecoder[T], **scope: Unpack[ListScope]
    ) -> AsyncGenerator[Sequence[WatchEvent[T]], None]:
        """A watch from the decoder's revision on, by the pieces that come; close it with `aclose`.

        The first batch is empty and says that the watch is open. What came before the server's last
        word is given before that is raised.
        """
        query = {"resourceVersion": decoder.revision}
        answer = await self._send_with_retries(collection_request("watch", kind, scope, query))
        if isinstance(answer, Reply):
            raise error_from_reply(answer)
        async with aclosing(answer.chunks) as chunks:
            yield ()
            async for chunk in chunks:
                yield decoder.feed(chunk)
                if decoder.error is not None:
                    raise decoder.error

    async def create(self, kind: Kind, new: Object) -> Object:
        """Make an object, in the namespace that it names."""
        at = Key(_object_key(new).namespace, "")
        return decode_reply(await self._request(build_request("create", kind, at, body=new)), dict)

    async def update(self, kind: Kind, new: Object, *, subresource: str = "") -> Object:
        """Put an object, or the part of it that a subresource is, in place of what is there."""
        request = build_request("update", kind, _object_key(new), subresource=subresource, body=new)
        return decode_reply(await self._request(request), dict)

    async def patch(
        self,
        kind: Kind,
        key: Key,
        change: Object | Sequence[Object],
        *,
        content: str = MERGE_PATCH,
        subresource: str = "",
    ) -> Object:
        """Change a part of an object, by merging unless `content` says otherwise."""
        request = build_request(
            "patch", kind, key, subresource=subresource, body=encode_patch(change), content=content
        )
        return decode_reply(await self._request(request), dict)

    async def delete(
        self,
        kind: Kind,
        key: Key,
        *,
        uid: str = "",
        version: str = "",
        grace: int | None = None,
        propagation: str = "",
    ) -> Object:
        """Delete an object, provided that it still has that uid and that version."""
        options = delete_options(uid, version, grace, propagation)
        return decode_reply(
            await self._request(build_request("delete", kind, key, body=options)), dict
        )

    async def post(self, path: str, new: Object) -> Object:
        """Send an object to a path that is no collection: a subresource, a GroupBinding."""
        return decode_reply(
            await self._request(Request("POST", path, "", request_headers(new), new)), dict
        )

    async def get_raw(self, path: str, extra_headers: Mapping[str, str] | None = None) -> bytes:
        """What a path, with or without a query, answers, as it is."""
        path, _, query = path.partition("?")
        request = Request("GET", path, query, {**request_headers(b""), **(extra_headers or {})})
        return ensure_success(await self._request(request)).body

    async def _list_pages(
        self, kind: Kind, struct: type[T], scope: ListScope, limit: int
    ) -> Listing[T]:
        items: list[T] = []
        more = ""
        while True:
            request = collection_request("list", kind, scope, {"limit": limit, "continue": more})
            page = decode_reply(await self._request(request), list_page_type(struct))
            items += page.items or ()
            more = page.metadata.more
            if not more:
                return Listing(items, parse_revision(page.metadata.resource_version))

    async def _request(self, request: Request) -> Reply:
        """The answer in one piece, however it came."""
        answer = await self._send_with_retries(request)
        if isinstance(answer, Reply):
            return answer
        async with aclosing(answer.chunks) as chunks:
            return Reply(
                answer.code, b"".join([chunk async for chunk in chunks]), answer.content_type
            )

    async def _send_with_retries(self, request: Request) -> Reply | StreamReply:
        """Ask, and come back when the server asks for that: it has not begun anything then."""
        if number := REQUEST_ID.get():
            request = replace(request, headers={**request.headers, AUDIT_ID_HEADER: number})
        for _ in range(MAX_RETRIES):
            answer = await self._transport.send(request)
            wait = retry_after(answer) if isinstance(answer, Reply) else None
            if wait is None:
                return answer
            await asyncio.sleep(wait)
        return await self._transport.send(request)


def _object_key(found: Object) -> Key:
    meta = found.get("metadata") or {}
    return Key(meta.get("namespace", ""), meta.get("name", ""))


class _DiscoveredResource(Struct, frozen=True):
    name: str = ""


class _ResourceList(Struct, frozen=True):
    resources: tuple[_DiscoveredResource, ...] = ()


async def is_served(client: Client, kind: Kind) -> bool:
    """Whether discovery shows a kind in the version that we use."""
    return bool(await served_kinds(client, [kind]))


async def served_kinds(client: Client, kinds: Iterable[Kind]) -> list[Kind]:
    """Those of some kinds that discovery shows in the version that we use, in the same order."""
    kinds = tuple(kinds)
    versions = dict.fromkeys((kind.group, kind.version) for kind in kinds)
    answers = await asyncio.gather(*(_list_plurals(client, *version) for version in versions))
    known = dict(zip(versions, answers, strict=True))
    return [kind for kind in kinds if kind.plural in known[kind.group, kind.version]]


async def _list_plurals(client: Client, group: str, version: str) -> frozenset[str]:
    path = f"/apis/{group}/{version}" if group else f"/api/{version}"
    try:
        found = msgspec.json.decode(await client.get_raw(path), type=_ResourceList)
    except NotFound:
        return frozenset()
    except msgspec.DecodeError as error:
        raise ServerError(f"what the server says of {path} cannot be read: {error}") from error
    return frozenset(entry.name for entry in found.resources)
