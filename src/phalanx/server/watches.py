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
from phalanx.server.objects import buried, decoded, presented
from phalanx.server.selection import EVERYTHING, Selection
from phalanx.store.kv import Change, Compacted, Reader, Record
from phalanx.telemetry import Meter

#: A watcher may have this much waiting for it before it falls behind.
BUFFER = 1024 * 1024
#: Changes that a watcher that is behind takes from the history at a time.
PAGE = 500
#: Seconds between bookmarks.
BOOKMARK = 60.0
#: Seconds between two rounds of handing out: so long somebody waits at most, when much is written.
PACE = 0.005

#: (event type, the object as stored bytes) -> the event as the client reads it.
Render = Callable[[str, bytes], bytes]


class Hub:
    """Hands every committed change to the watchers that it may concern.

    A watcher stands on one shelf: by a field that must have one value, by namespace, or with those
    of its kind that want everything. A change is shown to the shelves that it touches, before and
    after, so that a thousand watchers of a thousand nodes cost no more than one.
    """

    def __init__(self, store: Reader, meter: Meter) -> None:
        #: Everything up to here was handed out.
        self.revision = store.revision
        self._meter, self._store = meter, store
        self._shelves: dict[str, dict[str, dict[str, dict[Watcher, None]]]] = {}
        self._committed: list[Change] = []
        self._round: asyncio.TimerHandle | None = None
        self._rest = 0.0
        store.follow(self._gather)

    def __len__(self) -> int:
        fields = (shelves for kind in self._shelves.values() for shelves in kind.values())
        return sum(len(shelf) for shelves in fields for shelf in shelves.values())

    def open(self, wish: Wish) -> Watcher:
        """A watcher of what is committed after a revision."""
        watcher = Watcher(self, self._store, wish)
        prefix, field, value = wish.selection.shelf
        shelves = self._shelves.setdefault(prefix, {}).setdefault(field, {})
        shelves.setdefault(value, {})[watcher] = None
        return watcher

    def close(self, watcher: Watcher) -> None:
        """Stop handing changes to it."""
        watcher.close()
        prefix, field, value = watcher.selection.shelf
        shelves = self._shelves[prefix][field]
        shelves[value].pop(watcher, None)
        if not shelves[value]:
            del shelves[value]
        if not shelves:
            del self._shelves[prefix][field]

    def end(self, prefix: str) -> None:
        """Have every watch of a kind end: it is served no more."""
        self._hand_out()
        for shelves in self._shelves.get(prefix, {}).values():
            for watchers in shelves.values():
                for watcher in watchers:
                    watcher.end()

    def _gather(self, changes: Sequence[Change]) -> None:
        """Take what was just committed; hand it out now, or with what comes until the next time."""
        self._committed += changes
        loop = asyncio.get_running_loop()
        if loop.time() >= self._rest:
            self._hand_out()
        elif self._round is None:
            self._round = loop.call_at(self._rest, self._hand_out)

    def _hand_out(self) -> None:
        changes, self._committed = self._committed, []
        if self._round:
            self._round.cancel()
            self._round = None
        self._rest = asyncio.get_running_loop().time() + PACE
        rendered = Rendered()
        with self._meter.stage("publish"):
            for change in changes:
                for watcher in self._concerned(change, rendered):
                    watcher.offer(change, rendered)
                self.revision = change.revision

    def _concerned(self, change: Change, rendered: Rendered) -> Iterator[Watcher]:
        _, group, plural, *place = change.key.split("/")
        for field, shelves in self._shelves.get(f"/{group}/{plural}/", {}).items():
            for value in _values(field, place, change, rendered):
                yield from shelves.get(value, ())


def _values(field: str, place: list[str], change: Change, rendered: Rendered) -> Iterable[str]:
    """What a field is before and after a change, each once; where it can, told by the key."""
    if field == EVERYTHING:
        return ("",)
    if field == "metadata.name":
        return (place[-1],)
    if field == "metadata.namespace":
        return (place[0],)
    records = (record for record in (change.before, change.after) if record)
    return dict.fromkeys(field_value(rendered.object(record), field) for record in records)


class Rendered:
    """What was already decoded or rendered of the changes at hand, shared by all watchers."""

    def __init__(self) -> None:
        self._objects: dict[int, Object] = {}
        self._events: dict[tuple[Render, str, int], bytes] = {}

    def object(self, record: Record) -> Object:
        """A record as an object to look at, never to change."""
        if record.revision not in self._objects:
            self._objects[record.revision] = decoded(record)
        return self._objects[record.revision]

    def event(self, render: Render, kind: str, revision: int, value: bytes) -> bytes:
        """An event as bytes."""
        key = (render, kind, revision)
        if key not in self._events:
            self._events[key] = render(kind, value)
        return self._events[key]


class Watcher:
    """One client's watch. The reader has seen everything up to `cursor`."""

    def __init__(self, hub: Hub, store: Reader, wish: Wish) -> None:
        self.selection, self.cursor = wish.selection, wish.since
        self._hub, self._store, self._render = hub, store, wish.render
        self._prefix, self._takes_all = self.selection.prefix, self.selection.is_everything
        self._behind = wish.since < store.revision
        self._buffer: list[bytes] = []
        self._size = 0
        self._offered = wish.since
        self._ended = False
        # Who waits for news, until when, and the timer that looks after that.
        self._waiting: asyncio.Future[None] | None = None
        self._until = 0.0
        self._alarm: asyncio.TimerHandle | None = None

    def offer(self, change: Change, rendered: Rendered) -> None:
        """Take a change that was just committed, or note that it must be read from history."""
        if self._behind or change.revision <= self._offered:
            return
        if not (event := self._event(change, rendered)):
            return
        self._buffer.append(event)
        self._size += len(event)
        self._offered = change.revision
        if self._size > BUFFER:
            self._buffer, self._size, self._behind = [], 0, True
        self._wake()

    def end(self) -> None:
        """Take nothing more than what is there."""
        self._ended = True
        self._wake()

    def close(self) -> None:
        """Wait for nothing any more."""
        if self._alarm:
            self._alarm.cancel()

    @property
    def is_over(self) -> bool:
        """Whether it has ended and everything was taken."""
        return self._ended and not self._buffer and not self._behind

    async def take(self, seconds: float) -> bytes | None:
        """What there is to send, or None when nothing came in that time. Raises Expired."""
        if not self._has_news:
            await self._news(seconds)
        if self._behind:
            return self._catch_up()
        if self._has_news:
            return self._drain()
        self.cursor = max(self.cursor, self._hub.revision)
        return None

    @property
    def _has_news(self) -> bool:
        return bool(self._buffer) or self._behind or self._ended

    async def _news(self, seconds: float) -> None:
        """Wait, but not longer than so. One timer serves many waits: it rings late, never early."""
        loop = asyncio.get_running_loop()
        self._until = loop.time() + seconds
        if self._alarm is None or self._alarm.when() > self._until:
            self._set_alarm()
        self._waiting = loop.create_future()
        try:
            await self._waiting
        finally:
            self._waiting = None

    def _set_alarm(self) -> None:
        if self._alarm:
            self._alarm.cancel()
        self._alarm = asyncio.get_running_loop().call_at(self._until, self._ring)

    def _ring(self) -> None:
        """The time may be over, or somebody else's was: the wait has begun anew since."""
        self._alarm = None
        if self._waiting and asyncio.get_running_loop().time() < self._until:
            self._set_alarm()
        else:
            self._wake()

    def _wake(self) -> None:
        if self._waiting and not self._waiting.done():
            self._waiting.set_result(None)

    def _drain(self) -> bytes:
        data, self._buffer, self._size = b"".join(self._buffer), [], 0
        self.cursor = self._offered
        return data

    def _catch_up(self) -> bytes:
        """The next piece of history; the watcher is in step again when there is no more."""
        try:
            changes = self._store.changes(self.cursor, self._prefix)
        except Compacted as error:
            raise Expired(f"too old resource version: {self.cursor} ({error.floor})") from error
        rendered = Rendered()
        events: list[bytes] = []
        size = 0
        for change in changes:
            event = self._event(change, rendered)
            events.append(event)
            size += len(event)
            self.cursor = change.revision
            if size > BUFFER or len(events) >= PAGE:
                return b"".join(events)
        self.cursor = self._offered = self._store.revision
        self._behind = False
        return b"".join(events)

    def _event(self, change: Change, rendered: Rendered) -> bytes:
        """What the change means to this watcher: ADDED, MODIFIED, DELETED or nothing."""
        if not change.key.startswith(self._prefix):
            return b""
        was, now = self._holds(change.before, rendered), self._holds(change.after, rendered)
        if now and change.after:
            kind, value = "MODIFIED" if was else "ADDED", change.after.value
        elif was and change.before:
            kind, value = "DELETED", buried(change.before, change.revision)
        else:
            return b""
        return rendered.event(self._render, kind, change.revision, value)

    def _holds(self, record: Record | None, rendered: Rendered) -> bool:
        if record is None:
            return False
        return self._takes_all or self.selection.holds(rendered.object(record))


@cache
def plain(kind: Kind) -> Render:
    """Events whose objects are whole. One function per kind, so that its bytes are shared."""

    def render(event: str, value: bytes) -> bytes:
        return b'{"type":"%s","object":%s}\n' % (event.encode(), presented(kind, value))

    return render


def bookmark(kind: Kind, revision: int, *, ends_initial: bool = False) -> bytes:
    """An event that says: until here you have seen everything (or all that was there first)."""
    meta: Object = {"resourceVersion": str(revision)}
    if ends_initial:
        meta["annotations"] = {"k8s.io/initial-events-end": "true"}
    shown = {"kind": kind.name, "apiVersion": kind.api_version, "metadata": meta}
    return orjson.dumps({"type": "BOOKMARK", "object": shown}) + b"\n"


def failure(error: ApiError) -> bytes:
    """An event that ends a watch with a reason."""
    return orjson.dumps({"type": "ERROR", "object": error.status()}) + b"\n"


def initial(selection: Selection, records: Sequence[Record], render: Render) -> Iterator[bytes]:
    """The present state as ADDED events."""
    for record in records:
        if selection.is_everything or selection.holds(decoded(record)):
            yield render("ADDED", record.value)


@dataclass(frozen=True, slots=True)
class Wish:
    """What a client wants to watch: from where, how rendered, for how long.

    The kind is the one that is served; the selection is about the stored one.
    """

    kind: Kind
    selection: Selection
    render: Render
    since: int
    seconds: float
    bookmarks: bool = False


async def stream(hub: Hub, wish: Wish, first: bytes) -> AsyncGenerator[bytes, None]:
    """A watch as chunks: what is there first, then what comes, until the time is over.

    The watcher is opened when the first chunk is asked for, so that a stream which nobody reads
    leaves nothing behind; what happened meanwhile it reads from history.
    """
    loop = asyncio.get_running_loop()
    end = loop.time() + wish.seconds
    watcher = hub.open(wish)
    try:
        if first:
            yield first
        while not watcher.is_over and (left := end - loop.time()) > 0:
            data = await watcher.take(min(left, BOOKMARK))
            if data is None and wish.bookmarks:
                data = bookmark(wish.kind, watcher.cursor)
            if data:
                yield data
            else:
                # A long search through history must let others have their turn.
                await asyncio.sleep(0)
    except Expired as error:
        yield failure(error)
    finally:
        hub.close(watcher)
