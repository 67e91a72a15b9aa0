"""Get, list and watch: the same handlers for every kind.

    list ─▶ page ─▶ continue token ─▶ client ─▶ next page at the same revision

A continue token is signed for one list (kind, namespace, selectors): a forged token, or the token
of another list, is refused. Stored bytes are decoded only if a selector or a Table needs that.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import partial

import msgspec
import orjson

from phalanx.api.custom_resources.custom_kinds import CustomKind
from phalanx.api.errors import (
    BadRequest,
    Cause,
    Expired,
    NotAcceptable,
    Timeout,
    TooLarge,
    forbidden,
    unsupported,
)
from phalanx.api.protobuf import message_name
from phalanx.api.wire import Object, Reply, StreamReply
from phalanx.server import watches
from phalanx.server.context import ServerContext
from phalanx.server.converted_store import ConvertedStore, convert_events, render_stored_change
from phalanx.server.objects import (
    EventRenderer,
    check_include_object,
    convert_all_stored,
    decode_record,
    list_opening,
    metadata_only,
    metadata_renderer,
    not_found_error,
    plain_renderer,
    render_metadata_list,
    render_table,
    serialize_stored,
    table_renderer,
)
from phalanx.server.request_info import RequestInfo, SelectionPredicate, invalid_options
from phalanx.server.serialization import (
    MediaTypeOptions,
    encode_list,
    encode_reply,
    encode_stream,
    negotiate,
    take_turns,
)
from phalanx.store.kv import KeyValue, RevisionCompacted

#: Records per read where the rest may not be needed.
_READ_BATCH = 500
#: Instead of a revision: the newest one at the time of the request.
_LATEST_REVISION = -1
_TOO_OLD = "The provided continue parameter is too old to display a consistent list result. "


class ContinuePosition(msgspec.Struct, frozen=True, array_like=True):
    """Where a list continues: its revision, and the last key below its prefix."""

    revision: int
    after: str


@dataclass(frozen=True, slots=True)
class ListPage:
    """Part of a list: its records, their revision, and how to continue."""

    records: list[KeyValue]
    revision: int
    continue_token: str = ""
    remaining: int | None = None

    def meta(self) -> Object:
        """The metadata of the list."""
        meta: Object = {"resourceVersion": str(self.revision)}
        if self.continue_token:
            meta["continue"] = self.continue_token
        if self.remaining:
            meta["remainingItemCount"] = self.remaining
        return meta


class ListPager:
    """The pages of one list request."""

    def __init__(
        self, context: ServerContext, request_info: RequestInfo, selection: SelectionPredicate
    ) -> None:
        self._context, self._selection = context, selection
        # As from the watch cache of Kubernetes, a list of any revision is never cut.
        is_cached = request_info.query.get("resourceVersion") == "0"
        self._limit = 0 if is_cached else max(request_info.int_option("limit") or 0, 0)
        selectors = (
            request_info.query.get(name, "") for name in ("labelSelector", "fieldSelector")
        )
        self._token_purpose = "\0".join(("list", selection.prefix, *selectors))

    async def first_page(self, revision: int) -> ListPage:
        """The list from its beginning at a revision. Raises Expired if that is compacted."""
        try:
            return await self._collect_page(revision, "")
        except RevisionCompacted as error:
            raise Expired("The resourceVersion for the provided list is too old.") from error

    async def next_page(self, token: str) -> ListPage:
        """The list after a continue token. Raises BadRequest if it is not of this list."""
        position, newest = self._decode_token(token), self._context.store.revision
        revision = newest if position.revision == _LATEST_REVISION else position.revision
        try:
            return await self._collect_page(revision, self._selection.prefix + position.after)
        except RevisionCompacted as error:
            raise Expired(
                f"{_TOO_OLD}You can start a new list without the continue parameter, or use the "
                "continue token in this response to retrieve the remainder of the results. "
                "Continuing with the provided token results in an inconsistent list - objects that "
                "were created, modified, or deleted between the time the first chunk was returned "
                "and now may show up in the list.",
                continue_token=self._encode_token(
                    ContinuePosition(_LATEST_REVISION, position.after)
                ),
            ) from error

    async def _collect_page(self, revision: int, after: str) -> ListPage:
        limit, selection, store = self._limit, self._selection, self._context.store
        size = max(limit + 1, _READ_BATCH) if limit else 0
        found: list[KeyValue] = []
        while True:
            records = store.range(selection.prefix, at=revision, after=after, limit=size)
            found += records if selection.matches_all else await self._select(records)
            if not limit or len(found) > limit or len(records) < size:
                break
            after = records[-1].key
        if not limit or len(found) <= limit:
            return ListPage(found, revision)
        found = found[:limit]
        last, remaining = found[-1].key, None
        if selection.matches_all:
            remaining = store.count(selection.prefix, at=revision, after=last)
        more = self._encode_token(ContinuePosition(revision, last.removeprefix(selection.prefix)))
        return ListPage(found, revision, more, remaining)

    async def _select(self, records: Sequence[KeyValue]) -> list[KeyValue]:
        """Return the records that match, of a page only what it needs; lets other requests run."""
        found: list[KeyValue] = []
        async with aclosing(take_turns(record.value for record in records)) as turns:
            for record in records:
                await anext(turns)
                if self._selection.matches(decode_record(record)):
                    found.append(record)
                    if self._limit and len(found) > self._limit:
                        break
        return found

    def _encode_token(self, position: ContinuePosition) -> str:
        return self._context.access.token_signer.sign(
            msgspec.json.encode(position), self._token_purpose
        )

    def _decode_token(self, token: str) -> ContinuePosition:
        raw = self._context.access.token_signer.verify(token, self._token_purpose)
        if raw is None:
            detail = "it was not issued for this list"
            raise BadRequest(f"invalid continue token: continue key is not valid: {detail}")
        return msgspec.json.decode(raw, type=ContinuePosition)


#: Seconds to wait for a revision that is not committed yet.
FUTURE_REVISION_TIMEOUT = 3.0
#: A watch without a time limit ends after a random time in this range, in seconds.
WATCH_TIMEOUT_RANGE = (1800.0, 3600.0)
#: Bytes of objects that one list may have, and a number of objects that never reaches it.
MAX_LIST_BYTES, _SMALL_LIST_LENGTH = 512 << 20, 350


async def get_object(context: ServerContext, request_info: RequestInfo) -> Reply:
    """Handle GET of one object."""
    accepted = negotiate(request_info.request)
    await _wait_for_revision(context, _parse_revision(request_info))
    record = context.store.get(request_info.key)
    if record is None:
        raise not_found_error(request_info.kind, request_info.name)
    if accepted.form == "Table":
        include = check_include_object(request_info.query.get("includeObject", ""))
        meta = {"resourceVersion": str(record.revision)}
        return await render_table(
            request_info.kind,
            [record.value],
            meta,
            include=include,
            now=context.clock.now(),
            accepted=accepted,
        )
    if accepted.form == "PartialObjectMetadata":
        body = orjson.dumps(metadata_only(record.value, accepted.form_version))
    elif accepted.form:
        detail = f"the requested object is not a list ({request_info.kind.name})"
        raise NotAcceptable(f"you requested {accepted.form}, but {detail}")
    else:
        body = serialize_stored(request_info.kind, record.value)
    return encode_reply(Reply(200, body), accepted)


async def list_or_watch(context: ServerContext, request_info: RequestInfo) -> Reply | StreamReply:
    """Handle GET of a collection: a list, or a watch if the query asks for it."""
    return (
        await watch_objects(context, request_info)
        if request_info.is_watch
        else await list_objects(context, request_info)
    )


async def list_objects(context: ServerContext, request_info: RequestInfo) -> Reply:
    """Handle a list: the selected objects, whole or by pages, at one revision."""
    accepted, selection = negotiate(request_info.request), request_info.selection_predicate()
    _check_list_options(request_info)
    request_info.int_option("timeoutSeconds")
    page = await _list_page(context, request_info, selection)
    kind, values = request_info.kind, [record.value for record in page.records]
    _check_size(values)
    if accepted.form == "Table":
        include = check_include_object(request_info.query.get("includeObject", ""))
        now = context.clock.now()
        return await render_table(
            kind, values, page.meta(), include=include, now=now, accepted=accepted
        )
    if accepted.form == "PartialObjectMetadataList":
        return await render_metadata_list(values, page.meta(), accepted)
    opening = list_opening(kind.list_name, kind.api_version, page.meta())
    return await encode_list(opening, await convert_all_stored(kind, values), accepted)


def _check_size(values: Sequence[bytes]) -> None:
    """Refuse a list that would take too much memory; a few objects cannot."""
    if len(values) > _SMALL_LIST_LENGTH and sum(map(len, values)) > MAX_LIST_BYTES:
        raise TooLarge(
            f"the list has more than {MAX_LIST_BYTES >> 20} MiB: read it in pages, with limit=500"
        )


async def _list_page(
    context: ServerContext, request_info: RequestInfo, selection: SelectionPredicate
) -> ListPage:
    pager, revision = ListPager(context, request_info, selection), _parse_revision(request_info)
    if token := request_info.query.get("continue", ""):
        return await pager.next_page(token)
    await _wait_for_revision(context, revision)
    match = request_info.query.get("resourceVersionMatch", "")
    # With a limit, and without a match, Kubernetes lists exactly the requested revision.
    is_exact = match == "Exact" or (not match and request_info.int_option("limit"))
    return await pager.first_page(revision if is_exact and revision else context.store.revision)


def _parse_revision(request_info: RequestInfo) -> int:
    """The requested resourceVersion; 0 means any."""
    text = request_info.query.get("resourceVersion", "")
    if text not in ("", "0") and request_info.query.get("continue"):
        raise BadRequest("specifying resource version is not allowed when using continue")
    if not re.fullmatch(r"\d{0,18}", text):
        detail = f'resourceVersion: Invalid value: "{text}": strconv.ParseUint: parsing "{text}"'
        raise BadRequest(f"invalid resource version: {detail}: invalid syntax")
    return int(text or 0)


async def _wait_for_revision(context: ServerContext, revision: int) -> None:
    """Wait shortly for a revision that is not committed yet."""
    loop, store = asyncio.get_running_loop(), context.store
    if revision <= store.revision:
        return
    reached = loop.create_future()

    def check_revision(_: object) -> None:
        if store.revision >= revision and not reached.done():
            reached.set_result(None)

    unsubscribe = store.subscribe(check_revision)
    try:
        async with asyncio.timeout(FUTURE_REVISION_TIMEOUT):
            await reached
    except TimeoutError:
        raise Timeout(
            f"Timeout: Too large resource version: {revision}, current: {store.revision}",
            causes=[Cause("", "ResourceVersionTooLarge", "Too large resource version")],
            retry_after=1,
        ) from None
    finally:
        unsubscribe()


async def watch_objects(context: ServerContext, request_info: RequestInfo) -> StreamReply:
    """Handle a watch: a stream of changes of a selection."""
    accepted, selection = negotiate(request_info.request), request_info.selection_predicate()
    _check_watch_options(request_info)
    requested, timeout = _parse_revision(request_info), request_info.int_option("timeoutSeconds")
    await _wait_for_revision(context, requested)
    if (
        isinstance(request_info.kind, CustomKind)
        and 0 < requested < request_info.kind.created_revision
    ):
        return StreamReply(200, _stream_expired(requested, request_info.kind.created_revision))
    render = _event_renderer(context, request_info, accepted)
    records: Sequence[KeyValue] = ()
    end = b""
    since = requested or context.store.revision
    # By request, or by default if the watch has no revision to start at.
    send_initial = request_info.query.get("sendInitialEvents")
    if send_initial == "true" or (not requested and send_initial != "false"):
        since = context.store.revision
        records = context.store.range(selection.prefix)
        if send_initial == "true":
            end = watches.bookmark_event(request_info.kind, since, ends_initial=True)
    seconds = float(timeout) if timeout else context.random.between(*WATCH_TIMEOUT_RANGE)
    bookmarks = request_info.query.get("allowWatchBookmarks") in ("true", "1")
    options = watches.WatchOptions(
        request_info.kind,
        selection,
        render,
        since=since,
        seconds=seconds,
        track=partial(context.access.streams.track, request_info, "watch"),
        bookmarks=bookmarks,
    )
    initial = watches.initial_events(selection, records, render, end=end)
    chunks = _open_watch(context, options, initial)
    stream = StreamReply(200, chunks)
    shown = (accepted.form_version, "PartialObjectMetadata") if accepted.form else ()
    name = message_name(*(shown or (request_info.kind.api_version, request_info.kind.name)))
    return encode_stream(stream, accepted, has_message=name is not None)


def _open_watch(
    context: ServerContext, options: watches.WatchOptions, initial: AsyncGenerator[bytes, None]
) -> AsyncGenerator[bytes, None]:
    """The stream of a watch; if a webhook converts the objects, changes are selected after that."""
    kind, store = options.kind, context.store
    if not (isinstance(kind, CustomKind) and isinstance(store, ConvertedStore) and store.converter):
        return watches.watch_stream(context.watch_broadcaster, options, initial)
    selection = options.selection
    names = tuple(term for term in selection.fields if term.field == "metadata.name")
    candidates = replace(selection, labels=(), fields=names)
    stored = replace(options, selection=candidates, render_stored=render_stored_change)
    return convert_events(
        watches.watch_stream(context.watch_broadcaster, stored, initial),
        store.converter,
        kind,
        selection=selection,
        render=options.render,
    )


async def _stream_expired(requested: int, since: int) -> AsyncGenerator[bytes, None]:
    """A watch from before its kind was defined: there is no history of it."""
    yield watches.error_event(Expired(f"too old resource version: {requested} ({since})"))


def _event_renderer(
    context: ServerContext, request_info: RequestInfo, accepted: MediaTypeOptions
) -> EventRenderer:
    if accepted.form == "Table":
        include = check_include_object(request_info.query.get("includeObject", ""))
        return table_renderer(
            request_info.kind, include, context.clock.now, version=accepted.form_version
        )
    if accepted.form.startswith("PartialObjectMetadata"):
        return metadata_renderer(accepted.form_version)
    return plain_renderer(request_info.kind)


def _check_list_options(request_info: RequestInfo) -> None:
    match, version = (
        request_info.query.get("resourceVersionMatch", ""),
        request_info.query.get("resourceVersion"),
    )
    causes: list[Cause] = []
    if "sendInitialEvents" in request_info.query:
        detail = "sendInitialEvents is forbidden for list"
        causes.append(forbidden("sendInitialEvents", detail))
    if match and not version:
        detail = "resourceVersionMatch is forbidden unless resourceVersion is provided"
        causes.append(forbidden("resourceVersionMatch", detail))
    elif match and request_info.query.get("continue"):
        detail = "resourceVersionMatch is forbidden when continue is provided"
        causes.append(forbidden("resourceVersionMatch", detail))
    if match not in ("", "Exact", "NotOlderThan"):
        causes.append(unsupported("resourceVersionMatch", match, ("", "Exact", "NotOlderThan")))
    if match == "Exact" and version == "0":
        detail = 'resourceVersionMatch "exact" is forbidden for resourceVersion "0"'
        causes.append(forbidden("resourceVersionMatch", detail))
    if causes:
        raise invalid_options("ListOptions", causes)


def _check_watch_options(request_info: RequestInfo) -> None:
    match, initial = (
        request_info.query.get("resourceVersionMatch"),
        request_info.query.get("sendInitialEvents"),
    )
    causes: list[Cause] = []
    if initial is not None and match != "NotOlderThan":
        detail = "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan"
        causes.append(forbidden("resourceVersionMatch", detail))
    if initial is None and match:
        detail = "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided"
        causes.append(forbidden("resourceVersionMatch", detail))
    if match not in (None, "", "NotOlderThan"):
        causes.append(unsupported("resourceVersionMatch", match, ("NotOlderThan",)))
    if request_info.query.get("continue"):
        detail = "resourceVersionMatch is forbidden when continue is provided"
        causes.append(forbidden("resourceVersionMatch", detail))
    if causes:
        raise invalid_options("ListOptions", causes)
