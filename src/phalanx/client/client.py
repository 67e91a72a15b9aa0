"""The verbs of the Kubernetes API over a transport.

Every method raises the ApiError that the server returned, or Unreachable. Requests that the server
rejected because it is busy (429, 503 with Retry-After) are sent again, a few times; nothing else is
retried or cached. Structs are for reading: writes take dicts, so that fields that a struct lacks
are never lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from typing import Any, TypeVar, Unpack, overload

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from phalanx.api.errors import Expired, NotFound, ServerError
from phalanx.api.kinds import Kind
from phalanx.api.meta import Key
from phalanx.api.wire import MERGE_PATCH, Object, Reply, Request, StreamReply
from phalanx.client.error_containment import ErrorContainment
from phalanx.client.protocol import (
    Listing,
    ListScope,
    OnUnreadable,
    WatchDecoder,
    WatchEvent,
    build_request,
    collection_request,
    decode_page,
    decode_reply,
    decode_written,
    delete_options,
    encode_patch,
    ensure_success,
    error_from_reply,
    parse_revision,
    request_headers,
    retry_after,
)
from phalanx.client.transports import Transport
from phalanx.telemetry import AUDIT_ID_HEADER, REQUEST_ID, Metrics

#: Objects per page of a list.
LIST_PAGE_SIZE = 500
#: How often one request is retried when the server is busy.
MAX_RETRIES = 5

T = TypeVar("T")


class Client:
    """A client of one API server.

    Where a method takes a `struct`, the reply is decoded into it; otherwise it is a dict. The
    components that use the client raise unexpected exceptions, or contain them, by `raise_errors`.
    Without `records_events` they write no Events.
    """

    def __init__(
        self,
        transport: Transport,
        metrics: Metrics | None = None,
        *,
        raise_errors: bool = True,
        records_events: bool = True,
    ) -> None:
        self._transport, self.records_events = transport, records_events
        #: The metrics of this process.
        self.metrics = metrics or Metrics()
        self.errors = ErrorContainment(self.metrics, raise_errors=raise_errors)

    def with_transport(self, wrap: Callable[[Transport], Transport]) -> Client:
        """Return a client with the same metrics that sends through a wrapped transport."""
        other = Client(wrap(self._transport), self.metrics, records_events=self.records_events)
        other.errors = self.errors
        return other

    async def close(self) -> None:
        """Close the transport."""
        await self._transport.close()

    @overload
    async def get(self, kind: Kind, key: Key) -> Object: ...
    @overload
    async def get(self, kind: Kind, key: Key, struct: type[T]) -> T: ...
    async def get(self, kind: Kind, key: Key, struct: type[Any] = dict) -> Any:
        """Return one object."""
        return decode_reply(await self._request(build_request("get", kind, key)), struct)

    @overload
    async def list(self, kind: Kind, **scope: Unpack[ListScope]) -> Listing[Object]: ...
    @overload
    async def list(self, kind: Kind, struct: type[T], **scope: Unpack[ListScope]) -> Listing[T]: ...
    async def list(
        self, kind: Kind, struct: type[Any] = dict, **scope: Unpack[ListScope]
    ) -> Listing[Any]:
        """Return all objects of a kind, or of a part of it, at one revision."""
        return await self.list_readable(kind, struct, None, **scope)

    async def list_readable(
        self,
        kind: Kind,
        struct: type[T],
        on_unreadable: OnUnreadable | None,
        **scope: Unpack[ListScope],
    ) -> Listing[T]:
        """Like `list`, but an object that cannot be decoded is passed to `on_unreadable`."""
        try:
            return await self._list_pages(
                kind, struct, scope, limit=LIST_PAGE_SIZE, on_unreadable=on_unreadable
            )
        except Expired:
            # The continue token expired: list everything in one request.
            return await self._list_pages(kind, struct, scope, limit=0, on_unreadable=on_unreadable)

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
        """Yield the changes after a revision until the watch ends; close it with `aclose`."""
        async with aclosing(
            self.watch_batches(kind, WatchDecoder(struct, since), **scope)
        ) as batches:
            async for batch in batches:
                for event in batch:
                    yield event

    async def watch_batches(
        self, kind: Kind, decoder: WatchDecoder[T], **scope: Unpack[ListScope]
    ) -> AsyncGenerator[Sequence[WatchEvent[T]], None]:
        """Yield batches of watch events from the decoder's revision on; close with `aclose`.

        The first batch is empty: the watch is open. Events that precede the server's final error
        are yielded before it is raised.
        """
        query = {"resourceVersion": decoder.revision}
        reply = await self._send_with_retries(collection_request("watch", kind, scope, query=query))
        if isinstance(reply, Reply):
            raise error_from_reply(reply)
        async with aclosing(reply.chunks) as chunks:
            yield ()
            async for chunk in chunks:
                yield decoder.feed(chunk)
                if decoder.error is not None:
                    raise decoder.error

    def batches(
        self, kind: Kind, decoder: WatchDecoder[T], **scope: Unpack[ListScope]
    ) -> AsyncGenerator[Sequence[WatchEvent[T]], None]:
        """Call `watch_batches`, which had this name in version 0.1."""
        return self.watch_batches(kind, decoder, **scope)

    async def create(
        self,
        kind: Kind,
        new: Object,
        *,
        dry_run: bool = False,
        brief: bool = False,
        strict: bool = False,
    ) -> Object:
        """Create an object in its namespace; a dry run only returns what would be created.

        If `brief`, only its name, uid and version are returned. A `strict` server rejects fields
        that it does not know instead of dropping them.
        """
        at = Key(_object_key(new).namespace, "")
        query = {"dryRun": "All" if dry_run else "", "fieldValidation": "Strict" if strict else ""}
        request = build_request("create", kind, at, query=query, body=new)
        return decode_written(await self._request(request), brief=brief)

    async def update(self, kind: Kind, new: Object, *, subresource: str = "") -> Object:
        """Replace an object, or one of its subresources."""
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
        brief: bool = False,
    ) -> Object:
        """Patch an object, by JSON merge patch unless `content` names another type.

        If `brief`, only its name, uid and version are returned.
        """
        request = build_request(
            "patch", kind, key, subresource=subresource, body=encode_patch(change), content=content
        )
        return decode_written(await self._request(request), brief=brief)

    async def delete(
        self,
        kind: Kind,
        key: Key,
        *,
        uid: str = "",
        version: str = "",
        grace: int | None = None,
        propagation: str = "",
        brief: bool = False,
    ) -> Object:
        """Delete an object; uid and resource version are preconditions.

        If `brief`, only its name, uid and version are returned.
        """
        options = delete_options(
            uid=uid,
            resource_version=version,
            grace_period_seconds=grace,
            propagation_policy=propagation,
        )
        request = build_request("delete", kind, key, body=options)
        return decode_written(await self._request(request), brief=brief)

    async def post(self, path: str, new: Object) -> Object:
        """POST an object to a path that is no collection: a subresource, a GroupBinding."""
        return decode_reply(
            await self._request(Request("POST", path, "", request_headers(new), new)), dict
        )

    async def get_raw(self, path: str, extra_headers: Mapping[str, str] | None = None) -> bytes:
        """Return the unparsed body of the reply of a path."""
        return ensure_success(await self.get_reply(path, extra_headers)).body

    async def get_reply(self, path: str, extra_headers: Mapping[str, str] | None = None) -> Reply:
        """Return the reply of a path, whatever its code."""
        path, _, query = path.partition("?")
        request = Request("GET", path, query, {**request_headers(b""), **(extra_headers or {})})
        return await self._request(request)

    async def _list_pages(
        self,
        kind: Kind,
        struct: type[T],
        scope: ListScope,
        *,
        limit: int,
        on_unreadable: OnUnreadable | None,
    ) -> Listing[T]:
        items: list[T] = []
        more = ""
        while True:
            request = collection_request(
                "list", kind, scope, query={"limit": limit, "continue": more}
            )
            page = decode_page(await self._request(request), struct, on_unreadable)
            items += page.items or ()
            more = page.metadata.more
            if not more:
                return Listing(items, parse_revision(page.metadata.resource_version))

    async def _request(self, request: Request) -> Reply:
        """Return the whole reply, even if the server streams it."""
        reply = await self._send_with_retries(request)
        if isinstance(reply, Reply):
            return reply
        async with aclosing(reply.chunks) as chunks:
            body = b"".join([chunk async for chunk in chunks])
        return Reply(reply.code, body, reply.content_type)

    async def _send_with_retries(self, request: Request) -> Reply | StreamReply:
        """Send a request; repeat it while the server is busy and has not started it."""
        if number := REQUEST_ID.get():
            request = replace(request, headers={**request.headers, AUDIT_ID_HEADER: number})
        for _ in range(MAX_RETRIES):
            reply = await self._transport.send(request)
            wait = retry_after(reply) if isinstance(reply, Reply) else None
            if wait is None:
                return reply
            await asyncio.sleep(wait)
        return await self._transport.send(request)


def _object_key(obj: Object) -> Key:
    meta = obj.get("metadata") or {}
    return Key(meta.get("namespace", ""), meta.get("name", ""))


class _DiscoveredResource(Struct, frozen=True):
    name: str = ""


class _ResourceList(Struct, frozen=True):
    resources: tuple[_DiscoveredResource, ...] = ()


async def is_served(client: Client, kind: Kind) -> bool:
    """Whether discovery lists a kind in the version that we use."""
    return bool(await served_kinds(client, [kind]))


async def served_kinds(client: Client, kinds: Iterable[Kind]) -> list[Kind]:
    """Return the kinds that discovery lists in the version that we use, in the given order."""
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
        raise ServerError(f"the discovery document {path} cannot be read: {error}") from error
    return frozenset(entry.name for entry in found.resources)
