"""Get, list and watch: once, for every kind. Nothing is decoded that need not be."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Sequence

import orjson

from phalanx.api.causes import forbidden, unsupported
from phalanx.api.custom.kinds import CustomKind
from phalanx.api.errors import BadRequest, Cause, Expired, Timeout, TooLarge
from phalanx.api.wire import Reply, Stream
from phalanx.server import tables, watches
from phalanx.server.call import Call, bad_options
from phalanx.server.context import Context
from phalanx.server.negotiation import Accepted, in_media, negotiate
from phalanx.server.objects import in_form, listed, not_found, presented
from phalanx.server.paging import Page, Paging
from phalanx.server.selection import Selection
from phalanx.store.kv import Record

#: Seconds to wait for a revision that is not there yet.
FUTURE = 3.0
#: A watch without a time limit ends after a random time in this range, in seconds.
WATCH_SECONDS = (1800.0, 3600.0)
#: Bytes of objects that one list may have, and how many objects cannot come near that.
LARGEST, _FEW = 512 << 20, 350


async def get(context: Context, call: Call) -> Reply:
    """One object."""
    accepted = negotiate(call.request)
    await _reach(context, _revision(call))
    record = context.store.get(call.key)
    if record is None:
        raise not_found(call.kind, call.name)
    return in_media(Reply(200, _one(context, call, accepted, record)), accepted)


def _one(context: Context, call: Call, accepted: Accepted, record: Record) -> bytes:
    if accepted.form == "Table":
        include = tables.check_include(call.query.get("includeObject", ""))
        meta = {"resourceVersion": str(record.revision)}
        return tables.table(call.kind, [record.value], meta, include, context.clock.now())
    if accepted.form == "PartialObjectMetadata":
        return orjson.dumps(tables.metadata_only(record.value))
    return presented(call.kind, record.value)


async def list_or_watch(context: Context, call: Call) -> Reply | Stream:
    """A list, or a watch when that is asked for."""
    return await watch(context, call) if call.is_watch else await list_objects(context, call)


async def list_objects(context: Context, call: Call) -> Reply:
    """The objects of a selection, whole or page by page, at one revision."""
    accepted, selection = negotiate(call.request), call.selection()
    _check_list(call)
    page = await _page(context, call, selection)
    values = [record.value for record in page.records]
    _check_size(values)
    if accepted.form == "Table":
        include = tables.check_include(call.query.get("includeObject", ""))
        now = context.clock.now()
        body = tables.table(call.kind, values, page.meta(), include, now)
    elif accepted.form == "PartialObjectMetadataList":
        body = tables.metadata_list(values, page.meta())
    else:
        body = listed(call.kind, page.meta(), (in_form(call.kind, v) for v in values))
    return in_media(Reply(200, body), accepted)


def _check_size(values: Sequence[bytes]) -> None:
    """Refuse an answer that would take the memory of everybody else; few objects cannot."""
    if len(values) > _FEW and sum(map(len, values)) > LARGEST:
        raise TooLarge(f"the list has more than {LARGEST >> 20} MiB: ask for pages with limit=500")


async def _page(context: Context, call: Call, selection: Selection) -> Page:
    paging, wanted = Paging(context, call, selection), _revision(call)
    if token := call.query.get("continue", ""):
        return paging.after(token)
    await _reach(context, wanted)
    is_exact = call.query.get("resourceVersionMatch", "") == "Exact" and wanted
    return paging.at(wanted if is_exact else context.store.revision)


def _revision(call: Call) -> int:
    """The resourceVersion that is asked for; 0 is any."""
    text = call.query.get("resourceVersion", "")
    if text not in ("", "0") and call.query.get("continue"):
        raise BadRequest("specifying resource version is not allowed when using continue")
    if not re.fullmatch(r"\d{0,18}", text):
        detail = f'resourceVersion: Invalid value: "{text}": strconv.ParseUint: parsing "{text}"'
        raise BadRequest(f"invalid resource version: {detail}: invalid syntax")
    return int(text or 0)


async def _reach(context: Context, revision: int) -> None:
    """Wait a little for a revision that is still to come."""
    loop, store = asyncio.get_running_loop(), context.store
    if revision <= store.revision:
        return
    reached = loop.create_future()

    def look(_: object) -> None:
        if store.revision >= revision and not reached.done():
            reached.set_result(None)

    stop = store.follow(look)
    try:
        async with asyncio.timeout(FUTURE):
            await reached
    except TimeoutError:
        raise Timeout(
            f"Timeout: Too large resource version: {revision}, current: {store.revision}",
            causes=[Cause("", "ResourceVersionTooLarge", "Too large resource version")],
            retry_after=1,
        ) from None
    finally:
        stop()


async def watch(context: Context, call: Call) -> Stream:
    """Changes of a selection, as they come."""
    accepted, selection = negotiate(call.request), call.selection()
    _check_watch(call)
    asked, limit = _revision(call), call.number("timeoutSeconds")
    await _reach(context, asked)
    if isinstance(call.kind, CustomKind) and 0 < asked < call.kind.since:
        return Stream(200, _outdated(asked, call.kind.since))
    render = _render(context, call, accepted)
    initial = b""
    since = asked or context.store.revision
    if _wants_initial(call, asked):
        since = context.store.revision
        records = context.store.range(selection.prefix)
        initial = b"".join(watches.initial(selection, records, render))
        if call.query.get("sendInitialEvents") == "true":
            initial += watches.bookmark(call.kind, since, ends_initial=True)
    seconds = float(limit) if limit else context.chance.between(*WATCH_SECONDS)
    bookmarks = call.query.get("allowWatchBookmarks") in ("true", "1")
    wish = watches.Wish(call.kind, selection, render, since, seconds, bookmarks)
    return Stream(200, watches.stream(context.hub, wish, initial))


async def _outdated(asked: int, since: int) -> AsyncGenerator[bytes, None]:
    """A watch from before its kind was defined: there is no history to tell."""
    yield watches.failure(Expired(f"too old resource version: {asked} ({since})"))


def _wants_initial(call: Call, asked: int) -> bool:
    """A watch from nowhere begins with what is there, and so does one that asks for it."""
    wish = call.query.get("sendInitialEvents")
    return wish == "true" or (not asked and wish != "false")


def _render(context: Context, call: Call, accepted: Accepted) -> watches.Render:
    if accepted.form == "Table":
        include = tables.check_include(call.query.get("includeObject", ""))
        return tables.table_events(call.kind, include, context.clock.now)
    if accepted.form.startswith("PartialObjectMetadata"):
        return tables.metadata_event
    return watches.plain(call.kind)


def _check_list(call: Call) -> None:
    match, version = call.query.get("resourceVersionMatch", ""), call.query.get("resourceVersion")
    causes: list[Cause] = []
    if "sendInitialEvents" in call.query:
        detail = "sendInitialEvents is forbidden for list"
        causes.append(forbidden("sendInitialEvents", detail))
    if match and not version:
        detail = "resourceVersionMatch is forbidden unless resourceVersion is provided"
        causes.append(forbidden("resourceVersionMatch", detail))
    elif match and call.query.get("continue"):
        detail = "resourceVersionMatch is forbidden when continue is provided"
        causes.append(forbidden("resourceVersionMatch", detail))
    if match not in ("", "Exact", "NotOlderThan"):
        causes.append(unsupported("resourceVersionMatch", match, ("", "Exact", "NotOlderThan")))
    if match == "Exact" and version == "0":
        detail = 'resourceVersionMatch "exact" is forbidden for resourceVersion "0"'
        causes.append(forbidden("resourceVersionMatch", detail))
    if causes:
        raise bad_options("ListOptions", causes)


def _check_watch(call: Call) -> None:
    match, wish = call.query.get("resourceVersionMatch"), call.query.get("sendInitialEvents")
    causes: list[Cause] = []
    if wish is not None and match != "NotOlderThan":
        causes.append(forbidden(
            "resourceVersionMatch",
            "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan",
        ))  # fmt: skip
    if wish is None and match:
        causes.append(forbidden(
            "resourceVersionMatch",
            "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided",
        ))  # fmt: skip
    elif match not in (None, "", "NotOlderThan"):
        causes.append(unsupported("resourceVersionMatch", match, ("NotOlderThan",)))
    if causes:
        raise bad_options("ListOptions", causes)
