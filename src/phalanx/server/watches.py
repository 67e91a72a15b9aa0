"""Watches: one subscription to the store, fanned out to every open watch.

`WatchBroadcaster` subscribes to the store and hands each committed change to the watchers that it
may concern: at once if nothing was dispatched for a while, otherwise together with all changes of
the dispatch interval. A watcher that keeps up has a small buffer. A watcher that falls behind
loses its buffer but not its position: it reads on from the history of the store. So a slow client
costs little memory and misses nothing, or gets 410 when the history was compacted.

    state       source of the next events
    in step     the buffer, filled by the broadcaster
    behind      pages of the store's history, until the cursor reaches the current revision
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, aclosing
from dataclasses import dataclass
from typing import NamedTuple

import orjson

from phalanx import logs
from phalanx.api.errors import ApiError, Expired
from phalanx.api.kinds import Kind
from phalanx.api.selectors import field_value
from phalanx.api.wire import Object
from phalanx.server.objects import EventRenderer, decode_record, encode_deleted_state
from phalanx.server.request_info import UNINDEXED, SelectionPredicate
from phalanx.server.serialization import take_turns
from phalanx.store.kv import KeyValue, RevisionCompacted, StoreChange, StoreReader
from phalanx.telemetry import StageMeter

LOG = logs.component("server")

#: Bytes that a watcher may buffer before it falls behind.
BUFFER_BYTES = 1024 * 1024
_NO_RECORD = KeyValue("", b"", 0, 0)
#: Changes that a watcher that is behind reads from the history at a time.
PAGE_SIZE = 500
#: Bytes of initial events that are sent at a time.
INITIAL_BYTES = 256 * 1024
#: Seconds between bookmarks.
BOOKMARK_INTERVAL = 60.0
#: Seconds between two dispatches: the longest delay of an event under load.
DISPATCH_INTERVAL = 0.005


class WatchIntervals(NamedTuple):
    """Seconds between two dispatches, and between bookmarks; None is the default.

    In virtual time a dispatch without delay lets clients react at the time of the change.
    """

    dispatch: float | None = None
    bookmark: float | None = None


class WatchBroadcaster:
    """Hands every committed change to the watchers that it may concern.

    Watchers are indexed by a field that must have one value, by namespace, or by kind only. A
    change is offered to the watchers at its index values before and after the change, so that a
    thousand watches of a thousand nodes cost no more than one.
    """

    def __init__(
        self, store: StoreReader, meter: StageMeter, intervals: WatchIntervals | None = None
    ) -> None:
        self._intervals = intervals or WatchIntervals()
        bookmark = self._intervals.bookmark
        #: Seconds between bookmarks.
        self.bookmark_interval = BOOKMARK_INTERVAL if bookmark is None else bookmark
        #: Everything up to this revision was dispatched.
        self.revision = store.revision
        self._meter, self._store = meter, store
        self._watchers: dict[str, dict[str, dict[str, dict[Watcher, None]]]] = {}
        self._undispatched: list[StoreChange] = []
        self._dispatch_timer: asyncio.TimerHandle | None = None
        self._next_dispatch = 0.0
        store.subscribe(self._on_commit)

    def __len__(self) -> int:
        indexes = (index for kind in self._watchers.values() for index in kind.values())
        return sum(len(watchers) for index in indexes for watchers in index.values())

    def open(self, options: WatchOptions) -> Watcher:
        """Register a watcher of what is committed after a revision."""
        watcher = Watcher(self, self._store, options)
        prefix, field, value = options.selection.index_key
        index = self._watchers.setdefault(prefix, {}).setdefault(field, {})
        index.setdefault(value, {})[watcher] = None
        return watcher

    def close(self, watcher: Watcher) -> None:
        """Remove a watcher."""
        watcher.close()
        prefix, field, value = watcher.selection.index_key
        index = self._watchers[prefix][field]
        index[value].pop(watcher, None)
        if not index[value]:
            del index[value]
        if not index:
            del self._watchers[prefix][field]
        if not self._watchers[prefix]:
            del self._watchers[prefix]

    def end_watches(self, prefix: str) -> None:
        """End all watches of a kind that is no longer served."""
        self._dispatch()
        for index in self._watchers.get(prefix, {}).values():
            for watchers in index.values():
                for watcher in watchers:
                    watcher.end()

    def _on_commit(self, changes: Sequence[StoreChange]) -> None:
        """Dispatch a commit now, or together with others at the end of the interval."""
        self._undispatched += changes
        loop = asyncio.get_running_loop()
        if loop.time() >= self._next_dispatch:
            self._dispatch()
        elif self._dispatch_timer is None:
            self._dispatch_timer = loop.call_at(self._next_dispatch, self._dispatch)

    def _dispatch(self) -> None:
        changes, self._undispatched = self._undispatched, []
        if self._dispatch_timer:
            self._dispatch_timer.cancel()
            self._dispatch_timer = None
        seconds = self._intervals.dispatch
        seconds = DISPATCH_INTERVAL if seconds is None else seconds
        self._next_dispatch = asyncio.get_running_loop().time() + seconds
        rendered = RenderCache()
        with self._meter.stage("publish"):
            for change in changes:
                for watcher in self._find_watchers(change, rendered):
                    watcher.enqueue(change, rendered)
                self.revision = change.revision

    def _find_watchers(self, change: StoreChange, rendered: RenderCache) -> Iterator[Watcher]:
        _, group, plural, *path = change.key.split("/")
        for field, index in self._watchers.get(f"/{group}/{plural}/", {}).items():
            for value in _index_values(field, path, change, rendered=rendered):
                yield from index.get(value, ())


def _index_values(
    field: str, path: list[str], change: StoreChange, *, rendered: RenderCache
) -> Iterable[str]:
    """The values of an index field before and after a change, without decoding if possible."""
    if field == UNINDEXED:
        return ("",)
    if field == "metadata.name":
        return (path[-1],)
    if field == "metadata.namespace":
        return (path[0],)
    records = (record for record in (change.before, change.after) if record)
    return dict.fromkeys(field_value(rendered.object(record), field) for record in records)


class RenderCache:
    """Objects and events that were already decoded or encoded, shared by all watchers."""

    def __init__(self) -> None:
        self._objects: dict[int, Object] = {}
        self._events: dict[tuple[EventRenderer, str, int], bytes] = {}

    def object(self, record: KeyValue) -> Object:
        """A decoded record; callers must not change it."""
        if record.revision not in self._objects:
            self._objects[record.revision] = decode_record(record)
        return self._objects[record.revision]

    def event(self, render: EventRenderer, kind: str, change: StoreChange) -> bytes:
        """The encoded event of a change: ADDED, MODIFIED or DELETED."""
        key = (render, kind, change.revision)
        if key not in self._events:
            if kind != "DELETED" and change.after:
                value = change.after.value
            else:
                assert change.before is not None
                value = encode_deleted_state(change.before, change.revision)
            self._events[key] = render(kind, value)
        return self._events[key]


class Watcher:
    """One watch of one client. The client has received everything up to `cursor`."""

    def __init__(
        self, broadcaster: WatchBroadcaster, store: StoreReader, options: WatchOptions
    ) -> None:
        self.selection, self.cursor = options.selection, options.since
        self._broadcaster, self._store, self._render = broadcaster, store, options.render
        self._render_stored = options.render_stored
        self._prefix, self._matches_all = self.selection.prefix, self.selection.matches_all
        self._is_behind = options.since < store.revision
        self._buffer: list[bytes] = []
        self._size = 0
        self._last_revision = options.since
        self._has_ended = False
        self._refusal: ApiError | None = None
        # The pending wait, its deadline, and the timer that ends it.
        self._waiter: asyncio.Future[None] | None = None
        self._deadline = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def enqueue(self, change: StoreChange, rendered: RenderCache) -> None:
        """Buffer a change that was just committed, or mark the watcher as behind."""
        if self._is_behind or change.revision <= self._last_revision:
            return
        if not (event := self._render_change(change, rendered)):
            return
        self._buffer.append(event)
        self._size += len(event)
        self._last_revision = change.revision
        if self._size > BUFFER_BYTES:
            LOG.debug("watch buffer overrun", prefix=self._prefix, revision=change.revision)
            self._buffer, self._size, self._is_behind = [], 0, True
        self._wake()

    def end(self) -> None:
        """Take no further changes; the buffered ones are still sent."""
        self._has_ended = True
        self._wake()

    def refuse(self, error: ApiError) -> None:
        """End the watch with an error; no further change is sent."""
        self._refusal = error
        self._wake()

    def close(self) -> None:
        """Cancel the timer."""
        if self._timer:
            self._timer.cancel()

    def check_access(self) -> None:
        """Raise the error with which the watch was refused."""
        if self._refusal is not None:
            raise self._refusal

    @property
    def is_finished(self) -> bool:
        """Whether the watcher has ended and all its events were taken."""
        return self._has_ended and not self._buffer and not self._is_behind

    async def next_chunk(self, seconds: float) -> bytes | None:
        """The next events, or None if none came in that time.

        Raises Expired, or the error with which the watch was refused.
        """
        if not self._has_data:
            await self._wait_for_data(seconds)
        self.check_access()
        if self._is_behind:
            return self._catch_up()
        if self._has_data:
            return self._drain()
        self.cursor = max(self.cursor, self._broadcaster.revision)
        return None

    @property
    def _has_data(self) -> bool:
        is_over = self._has_ended or self._refusal is not None
        return bool(self._buffer) or self._is_behind or is_over

    async def _wait_for_data(self, seconds: float) -> None:
        """Wait at most so long. One timer serves many waits: it may fire late, never early."""
        loop = asyncio.get_running_loop()
        self._deadline = loop.time() + seconds
        if self._timer is None or self._timer.when() > self._deadline:
            self._start_timer()
        self._waiter = loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _start_timer(self) -> None:
        if self._timer:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_at(self._deadline, self._on_timer)

    def _on_timer(self) -> None:
        """End the wait, or restart the timer if a later wait has begun since it was set."""
        self._timer = None
        if self._waiter and asyncio.get_running_loop().time() < self._deadline:
            self._start_timer()
        else:
            self._wake()

    def _wake(self) -> None:
        if self._waiter and not self._waiter.done():
            self._waiter.set_result(None)

    def _drain(self) -> bytes:
        data, self._buffer, self._size = b"".join(self._buffer), [], 0
        self.cursor = self._last_revision
        return data

    def _catch_up(self) -> bytes:
        """The next page of history; the watcher is in step again after the last page."""
        try:
            changes = self._store.changes(self.cursor, self._prefix)
        except RevisionCompacted as error:
            raise Expired(
                f"too old resource version: {self.cursor} ({error.compacted_revision})"
            ) from error
        rendered = RenderCache()
        events: list[bytes] = []
        size = 0
        for change in changes:
            events.append(self._render_change(change, rendered))
            # An object that is decoded and not selected takes its time, too.
            size += len((change.after or change.before or _NO_RECORD).value)
            self.cursor = change.revision
            if size > BUFFER_BYTES or len(events) >= PAGE_SIZE:
                return b"".join(events)
        self.cursor = self._last_revision = self._store.revision
        self._is_behind = False
        return b"".join(events)

    def _render_change(self, change: StoreChange, rendered: RenderCache) -> bytes:
        """The event of a change for this watcher: ADDED, MODIFIED, DELETED or none."""
        if not change.key.startswith(self._prefix):
            return b""
        if self._render_stored is not None:
            return self._render_stored(change)
        matched = self._matches(change.before, rendered)
        matches = self._matches(change.after, rendered)
        if matches:
            return rendered.event(self._render, "MODIFIED" if matched else "ADDED", change)
        return rendered.event(self._render, "DELETED", change) if matched else b""

    def _matches(self, record: KeyValue | None, rendered: RenderCache) -> bool:
        if record is None:
            return False
        return self._matches_all or self.selection.matches(rendered.object(record))


def bookmark_event(kind: Kind, revision: int, *, ends_initial: bool = False) -> bytes:
    """A BOOKMARK: everything up to the revision was sent (`ends_initial`: all initial events)."""
    meta: Object = {"resourceVersion": str(revision)}
    if ends_initial:
        meta["annotations"] = {"k8s.io/initial-events-end": "true"}
    obj = {"kind": kind.name, "apiVersion": kind.api_version, "metadata": meta}
    return orjson.dumps({"type": "BOOKMARK", "object": obj}) + b"\n"


def error_event(error: ApiError) -> bytes:
    """An ERROR event, the last one of a watch."""
    return orjson.dumps({"type": "ERROR", "object": error.status()}) + b"\n"


async def initial_events(
    selection: SelectionPredicate,
    records: Sequence[KeyValue],
    render: EventRenderer,
    *,
    end: bytes = b"",
) -> AsyncGenerator[bytes, None]:
    """The current objects of a selection as ADDED events, and a last event, in chunks.

    A chunk is rendered when the client has read the one before, so that clients that do not read
    occupy little memory.
    """
    events: list[bytes] = []
    size = 0
    async with aclosing(take_turns(record.value for record in records)) as turns:
        for record in records:
            await anext(turns)
            if selection.matches_all or selection.matches(decode_record(record)):
                events.append(render("ADDED", record.value))
                size += len(events[-1])
            if size >= INITIAL_BYTES:
                yield b"".join(events)
                events, size = [], 0
    if last := b"".join((*events, end)):
        yield last


@dataclass(frozen=True, slots=True)
class WatchOptions:
    """What a client watches: from which revision, how rendered, for how long.

    `kind` is the served kind; `selection` is about the stored kind. `track` monitors the access of
    the client while the watch is open: it gets the function that refuses the watch.
    """

    kind: Kind
    selection: SelectionPredicate
    render: EventRenderer
    since: int
    seconds: float
    track: Callable[[Callable[[ApiError], None]], AbstractContextManager[None]]
    bookmarks: bool = False
    #: Instead of `render` and the selection, if the stream is converted before it is sent.
    render_stored: Callable[[StoreChange], bytes] | None = None


async def watch_stream(
    broadcaster: WatchBroadcaster, options: WatchOptions, initial: AsyncGenerator[bytes, None]
) -> AsyncGenerator[bytes, None]:
    """A watch as chunks: the initial events, then changes, until time or access ends.

    The watcher is registered when the first chunk is requested, so that a stream that is never read
    leaves nothing behind. Changes of the meantime are read from the history.
    """
    loop = asyncio.get_running_loop()
    end = loop.time() + options.seconds
    watcher = broadcaster.open(options)
    try:
        with options.track(watcher.refuse):
            async with aclosing(initial):
                async for chunk in initial:
                    yield chunk
                    watcher.check_access()
            while not watcher.is_finished and (left := end - loop.time()) > 0:
                data = await watcher.next_chunk(min(left, broadcaster.bookmark_interval))
                if data is None and options.bookmarks:
                    data = bookmark_event(options.kind, watcher.cursor)
                if data:
                    yield data
                else:
                    # A long scan of the history must not block the event loop.
                    await asyncio.sleep(0)
    except ApiError as error:
        yield error_event(error)
    finally:
        broadcaster.close(watcher)
