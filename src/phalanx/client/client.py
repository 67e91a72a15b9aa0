"""The verbs of the API over a transport: what everything that acts holds in its hand.

Above `requests`, `transports` and `answers`, below `informer`. Every method raises the ApiError
that the server meant, or Unreachable. Comes back when a busy server asks it to, some times; retries
nothing else, caches nothing. A struct that was read is never written back: writes are dicts.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import Any, TypeVar, Unpack, overload

from msgspec.structs import replace

from phalanx.api.errors import Expired
from phalanx.api.kinds import Kind
from phalanx.api.meta import Key
from phalanx.api.wire import MERGE_PATCH, Object, Reply, Request, Stream
from phalanx.client.answers import (
    Event,
    Listing,
    WatchDecoder,
    page_of,
    read,
    refusal,
    revision,
    succeeded,
    wait_asked_for,
)
from phalanx.client.requests import Scope, build, changes, collection, delete_options, headers
from phalanx.client.transports import Transport
from phalanx.telemetry import NUMBER, NUMBER_HEADER, Metrics

#: Objects in one page of a list.
PAGE = 500
#: How often a server may say "later" to one request.
PATIENCE = 5

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
        return read(await self._ask(build("get", kind, key)), struct)

    @overload
    async def list(self, kind: Kind, **scope: Unpack[Scope]) -> Listing[Object]: ...
    @overload
    async def list(self, kind: Kind, struct: type[T], **scope: Unpack[Scope]) -> Listing[T]: ...
    async def list(
        self, kind: Kind, struct: type[Any] = dict, **scope: Unpack[Scope]
    ) -> Listing[Any]:
        """All objects of a kind, or of a part of it, at one revision."""
        try:
            return await self._pages(kind, struct, scope, PAGE)
        except Expired:
            # The pages outlived the server's history: take everything at once.
            return await self._pages(kind, struct, scope, 0)

    @overload
    def watch(
        self, kind: Kind, *, since: int, **scope: Unpack[Scope]
    ) -> AsyncGenerator[Event[Object], None]: ...
    @overload
    def watch(
        self, kind: Kind, struct: type[T], *, since: int, **scope: Unpack[Scope]
    ) -> AsyncGenerator[Event[T], None]: ...
    async def watch(
        self, kind: Kind, struct: type[Any] = dict, *, since: int, **scope: Unpack[Scope]
    ) -> AsyncGenerator[Event[Any], None]:
        """The changes after a revision, until the server ends it. Close it with `aclose`."""
        async with aclosing(self.batches(kind, WatchDecoder(struct, since), **scope)) as batches:
            async for batch in batches:
                for event in batch:
                    yield event

    async def batches(
        self, kind: Kind, decoder: WatchDecoder[T], **scope: Unpack[Scope]
    ) -> AsyncGenerator[Sequence[Event[T]], None]:
        """A watch from the decoder's revision on, by the pieces that come; close it with `aclose`.

        The first batch is empty and says that the watch is open. What came before the server's last
        word is given before that is raised.
        """
        query = {"resourceVersion": decoder.revision}
        answer = await self._send(collection("watch", kind, scope, query))
        if isinstance(answer, Reply):
            raise refusal(answer)
        async with aclosing(answer.chunks) as chunks:
            yield ()
            async for chunk in chunks:
                yield decoder.feed(chunk)
                if decoder.error is not None:
                    raise decoder.error

    async def create(self, kind: Kind, new: Object) -> Object:
        """Make an object, in the namespace that it names."""
        at = Key(_key(new).namespace, "")
        return read(await self._ask(build("create", kind, at, body=new)), dict)

    async def update(self, kind: Kind, new: Object, *, subresource: str = "") -> Object:
        """Put an object, or the part of it that a subresource is, in place of what is there."""
        request = build("update", kind, _key(new), subresource=subresource, body=new)
        return read(await self._ask(request), dict)

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
        request = build(
            "patch", kind, key, subresource=subresource, body=changes(change), content=content
        )
        return read(await self._ask(request), dict)

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
        return read(await self._ask(build("delete", kind, key, body=options)), dict)

    async def post(self, path: str, new: Object) -> Object:
        """Send an object to a path that is no collection: a subresource, a GroupBinding."""
        return read(await self._ask(Request("POST", path, "", headers(new), new)), dict)

    async def get_raw(self, path: str, more: Mapping[str, str] | None = None) -> bytes:
        """What a path, with or without a query, answers, as it is."""
        path, _, query = path.partition("?")
        request = Request("GET", path, query, {**headers(b""), **(more or {})})
        return succeeded(await self._ask(request)).body

    async def _pages(self, kind: Kind, struct: type[T], scope: Scope, limit: int) -> Listing[T]:
        items: list[T] = []
        more = ""
        while True:
            request = collection("list", kind, scope, {"limit": limit, "continue": more})
            page = read(await self._ask(request), page_of(struct))
            items += page.items or ()
            more = page.metadata.more
            if not more:
                return Listing(items, revision(page.metadata.resource_version))

    async def _ask(self, request: Request) -> Reply:
        """The answer in one piece, however it came."""
        answer = await self._send(request)
        if isinstance(answer, Reply):
            return answer
        async with aclosing(answer.chunks) as chunks:
            return Reply(answer.code, b"".join([chunk async for chunk in chunks]), answer.kind)

    async def _send(self, request: Request) -> Reply | Stream:
        """Ask, and come back when the server asks for that: it has not begun anything then."""
        if number := NUMBER.get():
            request = replace(request, headers={**request.headers, NUMBER_HEADER: number})
        for _ in range(PATIENCE):
            answer = await self._transport.send(request)
            wait = wait_asked_for(answer) if isinstance(answer, Reply) else None
            if wait is None:
                return answer
            await asyncio.sleep(wait)
        return await self._transport.send(request)


def _key(found: Object) -> Key:
    meta = found.get("metadata") or {}
    return Key(meta.get("namespace", ""), meta.get("name", ""))
