"""One reader of the store, fanned out to every watch. Where STORE becomes WATCH.

The hub follows the store and hands each committed change to the watchers of its kind: at once after
a quiet moment; in the midst of many, all that was committed meanwhile together. A watcher that
keeps up has a small buffer; one that does not loses its buffer but not its place: it reads on from
the store's history, so that a slow reader costs nothing and misses nothing, or learns that the
history is gone (410).

    state        what comes next
    in step      the buffer, filled by the hub
    behind       pages of the store's history, until the cursor meets the present
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache

import orjson

from phalanx.api.errors import ApiError, Expired
from phalanx.api.kinds import Kind
from phalanx.api.selectors import field_value
from phalanx.api.wire import Object
from phalanx.server.objects import decode_record, deleted_state, serialize_stored
from phalanx.server.request_info import UNINDEXED, SelectionPredicate
from phalanx.store.kv import KeyValue, RevisionCompacted, StoreChange, StoreReader
from phalanx.telemetry import StageMeter

#: A watcher may have this much waiting for it before it falls behind.
BUFFER = 1024 * 1024
#: Changes that a watcher that is behind takes from the history at a time.
PAGE = 500
#: Seconds between bookmarks.
BOOKMARK = 60.0
#: Seconds between two rounds of handing out: so long somebody waits at most, when much is written.
DISPATCH_INTERVAL = 0.005

#: (event type, the object as stored bytes) -> the event as the client reads it.
EventRenderer = Callable[[str, bytes], bytes]


class WatchBroadcaster:
    """Hands every committed change to the watchers that it may concern.

    A watcher stands on one shelf: by a field that must have one value, by namespace, or with those
    of its kind that want everything. A change is shown to the shelves that it touches, before and
    after, so that a thousand watchers of a thousand nodes cost no more than one.
    """

    def __init__(self, store: StoreReader, meter: StageMeter) -> None:
        #: Everything up to here was handed out.
        self.revision = store.revision
        self._meter, self._store = meter, store
        self._watchers: dict[str, dict[str, dict[str, dict[Watcher, None]]]] = {}
        self._undispatched: list[StoreChange] = []
        self._dispatch_timer: asyncio.TimerHandle | None = None
        self._next_dispatch = 0.0
        store.subscribe(self._on_commit)

    def __len__(self) -> int:
        fields = (shelves for kind in self._watchers.values() for shelves in kind.values())
        return sum(len(shelf) for shelves in fields for shelf in shelves.values())

    def open(self, options: WatchOptions) -> Watcher:
        """A watcher of what is committed after a revision."""
        watcher = Watcher(self, self._store, options)
        prefix, field, value = options.selection.index_key
        shelves = self._watchers.setdefault(prefix, {}).setdefault(field, {})
        shelves.setdefault(value, {})[watcher] = None
        return watcher

    def close(self, watcher: Watcher) -> None:
        """Stop handing changes to it."""
        watcher.close()
        prefix, field, value = watcher.selection.index_key
        shelves = self._watchers[prefix][field]
        shelves[value].pop(watcher, None)
        if not shelves[value]:
            del shelves[value]
        if not shelves:
            del self._watchers[prefix][field]

    def end_watches(self, prefix: str) -> None:
        """Have every watch of a kind end: it is served no more."""
        self._dispatch()
        for shelves in self._watchers.get(prefix, {}).values():
            for watchers in shelves.values():
                for watcher in watchers:
                    watcher.end()

    def _on_commit(self, changes: Sequence[StoreChange]) -> None:
        """Take what was just committed; hand it out now, or with what comes until the next time."""
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
        self._next_dispatch = asyncio.get_running_loop().time() + DISPATCH_INTERVAL
        rendered = RenderCache()
        with self._meter.stage("publish"):
            for change in changes:
                for watcher in self._interested_watchers(change, rendered):
                    watcher.enqueue(change, rendered)
                self.revision = change.revision

    def _interested_watchers(self, change: StoreChange, rendered: RenderCache) -> Iterator[Watcher]:
        _, group, plural, *place = change.key.split("/")
        for field, shelves in self._watchers.get(f"/{group}/{plural}/", {}).items():
            for value in _index_values(field, place, change, rendered):
                yield from shelves.get(value, ())


def _index_values(
    field: str, path: list[str], change: StoreChange, rendered: RenderCache
) -> Iterable[str]:
    """What a field is before and after a change, each once; where it can, told by the key."""
    if field == UNINDEXED:
        return ("",)
    if field == "metadata.name":
        return (path[-1],)
    if field == "metadata.namespace":
        return (path[0],)
    records = (record for record in (change.before, change.after) if record)
    return dict.fromkeys(field_value(rendered.object(record), field) for record in records)


class RenderCache:
    """What was already decoded or rendered of the changes at hand, shared by all watchers."""

    def __init__(self) -> None:
        self._objects: dict[int, Object] = {}
        self._events: dict[tuple[EventRenderer, str, int], bytes] = {}

    def object(self, record: KeyValue) -> Object:
        """A record as an object to look at, never to change."""
        if record.revision not in self._objects:
            self._objects[record.revision] = decode_record(record)
        return self._objects[record.revision]

    def event(self, render: EventRenderer, kind: str, revision: int, value: bytes) -> bytes:
        """An event as bytes."""
        key = (render, kind, revision)
        if key not in self._events:
            self._events[key] = render(kind, value)
        return self._events[key]


class Watcher:
    """One client's watch. The reader has seen everything up to `cursor`."""

    def __init__(
        self, broadcaster: WatchBroadcaster, store: StoreReader, options: WatchOptions
    ) -> None:
        self.selection, self.cursor = options.selection, options.since
        self._broadcaster, self._store, self._render = broadcaster, store, options.render
        self._prefix, self._matches_all = self.selection.prefix, self.selection.matches_all
        self._is_behind = options.since < store.revision
        self._buffer: list[bytes] = []
        self._size = 0
        self._last_revision = options.since
        self._has_ended = False
        # Who waits for news, until when, and the timer that looks after that.
        self._waiter: asyncio.Future[None] | None = None
        self._deadline = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def enqueue(self, change: StoreChange, rendered: RenderCache) -> None:
        """Take a change that was just committed, or note that it must be read from history."""
        if self._is_behind or change.revision <= self._last_revision:
            return
        if not (event := self._render_change(change, rendered)):
            return
        self._buffer.append(event)
        self._size += len(event)
        self._last_revision = change.revision
        if self._size > BUFFER:
            self._buffer, self._size, self._is_behind = [], 0, True
        self._wake()

    def end(self) -> None:
        """Take nothing more than what is there."""
        self._has_ended = True
        self._wake()

    def close(self) -> None:
        """Wait for nothing any more."""
        if self._timer:
            self._timer.cancel()

    @property
    def is_finished(self) -> bool:
        """Whether it has ended and everything was taken."""
        return self._has_ended and not self._buffer and not self._is_behind

    async def next_chunk(self, seconds: float) -> bytes | None:
        """What there is to send, or None when nothing came in that time. Raises Expired."""
        if not self._has_data:
            await self._wait_for_data(seconds)
        if self._is_behind:
            return self._catch_up()
        if self._has_data:
            return self._drain()
        self.cursor = max(self.cursor, self._broadcaster.revision)
        return None

    @property
    def _has_data(self) -> bool:
        return bool(self._buffer) or self._is_behind or self._has_ended

    async def _wait_for_data(self, seconds: float) -> None:
        """Wait, but not longer than so. One timer serves many waits: it rings late, never early."""
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
        """The time may be over, or somebody else's was: the wait has begun anew since."""
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
        """The next piece of history; the watcher is in step again when there is no more."""
        try:
            changes = self._store.changes(self.cursor, self._prefix)
        except RevisionCompacted as error:
            raise Expired(f"too old resource version: {self.cursor} ({error.floor})") from error
        rendered = RenderCache()
        events: list[bytes] = []
        size = 0
        for change in changes:
            event = self._render_change(change, rendered)
            events.append(event)
            size += len(event)
            self.cursor = change.revision
            if size > BUFFER or len(events) >= PAGE:
                return b"".join(events)
        self.cursor = self._last_revision = self._store.revision
        self._is_behind = False
        return b"".join(events)

    def _render_change(self, change: StoreChange, rendered: RenderCache) -> bytes:
        """What the change means to this watcher: ADDED, MODIFIED, DELETED or nothing."""
        if not change.key.startswith(self._prefix):
            return b""
        was, now = self._matches(change.before, rendered), self._matches(change.after, rendered)
        if now and change.after:
            kind, value = "MODIFIED" if was else "ADDED", change.after.value
        elif was and change.before:
            kind, value = "DELETED", deleted_state(change.before, change.revision)
        else:
            return b""
        return rendered.event(self._render, kind, change.revision, value)

    def _matches(self, record: KeyValue | None, rendered: RenderCache) -> bool:
        if record is None:
            return False
        return self._matches_all or self.selection.matches(rendered.object(record))


@cache
def plain_renderer(kind: Kind) -> EventRenderer:
    """Events whose objects are whole. One function per kind, so that its bytes are shared."""

    def render(event: str, value: bytes) -> bytes:
        return b'{"type":"%s","object":%s}\n' % (event.encode(), serialize_stored(kind, value))

    return render


def bookmark_event(kind: Kind, revision: int, *, ends_initial: bool = False) -> bytes:
    """An event that says: until here you have seen everything (or all that was there first)."""
    meta: Object = {"resourceVersion": str(revision)}
    if ends_initial:
        meta["annotations"] = {"k8s.io/initial-events-end": "true"}
    shown = {"kind": kind.name, "apiVersion": kind.api_version, "metadata": meta}
    return orjson.dumps({"type": "BOOKMARK", "object": shown}) + b"\n"


def error_event(error: ApiError) -> bytes:
    """An event that ends a watch with a reason."""
    return orjson.dumps({"type": "ERROR", "object": error.status()}) + b"\n"


def initial_events(
    selection: SelectionPredicate, records: Sequence[KeyValue], render: EventRenderer
) -> Iterator[bytes]:
    """The present state as ADDED events."""
    for record in records:
        if selection.matches_all or selection.matches(decode_record(record)):
            yield render("ADDED", record.value)


@dataclass(frozen=True, slots=True)
class WatchOptions:
    """What a client wants to watch: from where, how rendered, for how long.

    The kind is the one that is served; the selection is about the stored one.
    """

    kind: Kind
    selection: SelectionPredicate
    render: EventRenderer
    since: int
    seconds: float
    bookmarks: bool = False


async def watch_stream(
    broadcaster: WatchBroadcaster, options: WatchOptions, first: bytes
) -> AsyncGenerator[bytes, None]:
    """A watch as chunks: what is there first, then what comes, until the time is over.

    The watcher is opened when the first chunk is asked for, so that a stream which nobody reads
    leaves nothing behind; what happened meanwhile it reads from history.
    """
    loop = asyncio.get_running_loop()
    end = loop.time() + options.seconds
    watcher = broadcaster.open(options)
    try:
        if first:
            yield first
        while not watcher.is_finished and (left := end - loop.time()) > 0:
            data = await watcher.next_chunk(min(left, BOOKMARK))
            if data is None and options.bookmarks:
                data = bookmark_event(options.kind, watcher.cursor)
            if data:
                yield data
            else:
                # A long search through history must let others have their turn.
                await asyncio.sleep(0)
    except Expired as error:
        yield error_event(error)
    finally:
        broadcaster.close(watcher)
