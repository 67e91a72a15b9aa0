"""Watches are complete: each event once and in order, or 410, whatever happens to connections."""

from __future__ import annotations

import asyncio
import random
import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import orjson
import pytest
import uvloop
from msgspec.structs import replace

from phalanx.api.errors import ApiError, NotFound
from phalanx.api.kinds import CONFIG_MAP, NAMESPACE
from phalanx.api.meta import Key
from phalanx.api.wire import Object, Reply, StreamReply, UserInfo
from phalanx.client.client import Client
from phalanx.client.http import HttpClientLimits, HttpTransport
from phalanx.client.protocol import collection_request
from phalanx.client.transports import InProcessTransport, Unreachable
from phalanx.server import watches
from phalanx.server.security.authorization import ADMIN, MASTERS
from phalanx.store.kv import StoreChange, StoreWrite, ValueEncoder
from phalanx.store.sqlite import SqliteStore
from tests.conformance.compacting_server import TOKEN, running_server
from tests.conformance.faulty_proxy import FaultyProxy
from tests.conformance.watch_oracle import (
    ExpectedEvent,
    WatchedScope,
    WatchOracle,
    expected_event,
    object_key,
)

#: Small objects in two namespaces, and large ones that soon fill every buffer.
SPACES = {"a": 100, "b": 100, "large": 24 * 1024}
NAMES, WRITERS = 12, 8
#: Revisions that are kept; the store is compacted at random, on average after as many writes.
KEPT, COMPACTION = 300, 50


def label(obj: Object, name: str) -> str | None:
    found: str | None = obj["metadata"].get("labels", {}).get(name)
    return found


def is_in(obj: Object, namespace: str) -> bool:
    return object_key(obj).startswith(f"{namespace}/")


VIEWS = (
    WatchedScope({}, lambda obj: True),
    WatchedScope({"namespace": "a"}, lambda obj: is_in(obj, "a")),
    WatchedScope(
        {"label_selector": "color=red,size!=large"},
        lambda obj: label(obj, "color") == "red" and label(obj, "size") != "large",
    ),
    WatchedScope(
        {"namespace": "b", "label_selector": "color!=red"},
        lambda obj: is_in(obj, "b") and label(obj, "color") != "red",
    ),
    WatchedScope(
        {"namespace": "a", "field_selector": "metadata.name=n-3"},
        lambda obj: object_key(obj) == "a/n-3",
    ),
    WatchedScope({"namespace": "b"}, lambda obj: is_in(obj, "b")),
)


@dataclass(frozen=True, slots=True)
class WatchLoad:
    """The number of watchers and writes; slow watchers let so many revisions pass."""

    watchers: int = 64
    writes: int = 1_600
    #: A watcher begins at most so many revisions before or after the newest.
    around: int = 100
    idlers: tuple[int, ...] = (200, 1_000)
    seed: int = 1


class RunState:
    """The progress of the writers, and whether they are done."""

    def __init__(self, store: SqliteStore) -> None:
        self.end: int | None = None
        self._store = store
        self._waiting: list[tuple[int, asyncio.Event]] = []
        store.subscribe(self._wake)

    def is_over(self, revision: int) -> bool:
        """Whether nothing is written after a revision."""
        return self.end is not None and revision >= self.end

    async def wait_for(self, revision: int) -> None:
        """Wait for a revision, or for the end."""
        if self.end is None and self._store.revision < revision:
            passed = asyncio.Event()
            self._waiting.append((revision, passed))
            await passed.wait()

    def finish(self) -> None:
        """Mark the end of the writes."""
        self.end = self._store.revision
        self._wake(())

    def _wake(self, changes: Sequence[StoreChange]) -> None:
        for revision, passed in self._waiting:
            if self.end is not None or self._store.revision >= revision:
                passed.set()


@dataclass(slots=True)
class WatchStretch:
    """The events from one revision to another without a gap, after the initial list."""

    begin: int
    end: int
    listed: dict[str, int] | None = None
    events: list[ExpectedEvent] = field(default_factory=list)


class WatchReader:
    """Watches a scope; reconnects when it is disconnected, and lists again after a 410."""

    def __init__(
        self, http: HttpTransport, store: SqliteStore, view: WatchedScope, since: int, idle: int
    ) -> None:
        self.view, self.stretches = view, [WatchStretch(since, since)]
        self._http, self._store, self._idle = http, store, idle
        self._is_late = False

    async def run(self, course: RunState) -> None:
        """Watch until all events were received."""
        while not course.is_over(self.stretches[-1].end):
            with suppress(Unreachable):
                if self._is_late:
                    await self._list()
                await self._watch(course)

    async def _list(self) -> None:
        reply = await self._http.send(
            collection_request("list", CONFIG_MAP, self.view.scope, query={})
        )
        assert isinstance(reply, Reply)
        assert reply.code == 200
        found = orjson.loads(reply.body)
        at = int(found["metadata"]["resourceVersion"])
        listed = {
            object_key(obj): int(obj["metadata"]["resourceVersion"]) for obj in found["items"]
        }
        self.stretches.append(WatchStretch(at, at, listed))
        self._is_late = False

    async def _watch(self, course: RunState) -> None:
        since = {"resourceVersion": self.stretches[-1].end}
        answer = await self._http.send(
            collection_request("watch", CONFIG_MAP, self.view.scope, query=since)
        )
        if isinstance(answer, Reply):
            # The revision was not committed in time: no event is missing.
            assert answer.code == 504
            return
        tail = b""
        async with aclosing(answer.chunks) as chunks:
            async for chunk in chunks:
                *lines, tail = (tail + chunk).split(b"\n")
                for line in lines:
                    self._read(orjson.loads(line))
                if self._is_late or course.is_over(self.stretches[-1].end):
                    return
                await course.wait_for(self.stretches[-1].end + self._idle)

    def _read(self, event: Object) -> None:
        kind, obj, stretch = event["type"], event["object"], self.stretches[-1]
        if kind == "ERROR":
            assert obj["code"] == 410
            compacted = self._store.compacted_revision
            assert stretch.end < compacted, "nothing of what it asked for was forgotten"
            self._is_late = True
            return
        revision = int(obj["metadata"]["resourceVersion"])
        if kind == "BOOKMARK":
            assert revision >= stretch.end
        else:
            assert revision > stretch.end
            stretch.events.append(expected_event(kind, obj, revision))
        stretch.end = revision


async def write(client: Client, store: SqliteStore, rng: random.Random, until: int) -> None:
    """Create, change, label and delete at random, and compact the store now and then."""
    while store.revision < until:
        namespace = rng.choices(list(SPACES), (10, 10, 1))[0]
        with suppress(ApiError):
            await _write_one(client, rng, namespace, f"n-{rng.randrange(NAMES)}")
        if not rng.randrange(COMPACTION):
            store.compact(store.revision - KEPT)


async def _write_one(client: Client, rng: random.Random, namespace: str, name: str) -> None:
    key, serial = Key(namespace, name), str(rng.randrange(10**9))
    if not rng.randrange(5):
        await client.delete(CONFIG_MAP, key)
        return
    size = "large" if namespace == "large" else "small"
    change: Object = {
        "metadata": {"labels": {"color": rng.choice(("red", "blue", None)), "size": size}},
        "data": {"serial": serial, "filling": "x" * SPACES[namespace]},
    }
    try:
        await client.patch(CONFIG_MAP, key, change)
    except NotFound:
        marks = {"name": name, "namespace": namespace, "labels": {"color": "red", "size": size}}
        await client.create(CONFIG_MAP, {**change, "metadata": marks})


@dataclass(frozen=True, slots=True)
class WatchRunResult:
    """What all readers received, what really happened, and how often connections were cut."""

    readers: Sequence[WatchReader]
    oracle: WatchOracle
    cuts: int

    def check(self) -> None:
        """Compare the events of each reader with what happened."""
        for reader in self.readers:
            for stretch in reader.stretches:
                if stretch.listed is not None:
                    assert stretch.listed == self.oracle.expected_objects(
                        reader.view, stretch.begin
                    )
                happened = self.oracle.expected_events(reader.view, stretch.begin, stretch.end)
                assert stretch.events == happened

    @property
    def relist_count(self) -> int:
        """How often a reader had to list again."""
        return sum(len(reader.stretches) - 1 for reader in self.readers)

    @property
    def events(self) -> int:
        """The number of events that were received in total."""
        return sum(len(stretch.events) for reader in self.readers for stretch in reader.stretches)


async def observe(folder: Path, load: WatchLoad) -> WatchRunResult:
    """Write while all readers watch."""
    rng = random.Random(load.seed)
    async with running_server(folder) as found:
        store, oracle = found.store, WatchOracle(found.store)
        client = Client(InProcessTransport(found.server.handle, UserInfo("writer", (MASTERS,))))
        for namespace in SPACES:
            await client.create(NAMESPACE, {"metadata": {"name": namespace}})
        await write(client, store, rng, store.revision + 2 * load.around)
        wire = FaultyProxy(found.port, rng, shortest=16 * 1024, longest=1024 * 1024)
        async with wire.listen() as port, _connected(port, found.authority, load) as http:
            readers, course = _readers(http, store, load), RunState(store)
            async with asyncio.TaskGroup() as reading:
                for reader in readers:
                    reading.create_task(reader.run(course))
                await _write_all(client, store, load)
                course.finish()
        return WatchRunResult(readers, oracle, wire.cuts)


@asynccontextmanager
async def _connected(port: int, authority: str, load: WatchLoad) -> AsyncIterator[HttpTransport]:
    tls = ssl.create_default_context(cadata=authority)
    limits = HttpClientLimits(max_connections=2 * load.watchers)
    http = HttpTransport(f"https://127.0.0.1:{port}", token=TOKEN, tls=tls, limits=limits)
    try:
        yield http
    finally:
        await http.close()


def _readers(http: HttpTransport, store: SqliteStore, load: WatchLoad) -> list[WatchReader]:
    """Watchers of every scope, spread evenly around the newest revision; the first are slow."""
    step = 2 * load.around / load.watchers
    return [
        WatchReader(
            http, store, VIEWS[0] if n < len(load.idlers) else VIEWS[n % len(VIEWS)],
            store.revision - load.around + int(n * step),
            load.idlers[n] if n < len(load.idlers) else 0,
        )
        for n in range(load.watchers)
    ]  # fmt: skip


async def _write_all(client: Client, store: SqliteStore, load: WatchLoad) -> None:
    until = store.revision + load.writes
    async with asyncio.TaskGroup() as writing:
        for n in range(WRITERS):
            rng = random.Random(f"{load.seed} {n}")
            writing.create_task(write(client, store, rng, until))


@pytest.fixture
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make watches fall behind, page and send bookmarks a hundred times as often."""
    monkeypatch.setattr(watches, "BUFFER_BYTES", 16 * 1024)
    monkeypatch.setattr(watches, "PAGE_SIZE", 20)
    monkeypatch.setattr(watches, "BOOKMARK_INTERVAL", 0.05)


@pytest.mark.slow
@pytest.mark.usefixtures("small_steps")
@pytest.mark.parametrize(
    ("load", "cuts", "events"),
    [
        (WatchLoad(watchers=32, writes=800, idlers=(200, 700)), 25, 5_000),
        (WatchLoad(), 100, 10_000),
    ],
    ids=["32 watchers", "64 watchers"],
)
def test_every_event_is_sent_once_and_in_order_or_the_watch_expires(
    tmp_path: Path, load: WatchLoad, cuts: int, events: int
) -> None:
    outcome = uvloop.run(observe(tmp_path, load))
    outcome.check()
    assert outcome.cuts >= cuts
    assert outcome.relist_count >= 1
    assert outcome.events >= events


@pytest.mark.soak
@pytest.mark.usefixtures("small_steps")
@pytest.mark.parametrize("seed", range(5))
def test_watches_are_complete_in_a_long_run(tmp_path: Path, seed: int) -> None:
    load = WatchLoad(watchers=200, writes=20_000, idlers=(200, 1_000, 300, 5_000), seed=seed)
    outcome = uvloop.run(observe(tmp_path, load))
    outcome.check()
    assert outcome.cuts >= 1_000


async def _search(folder: Path, pages: int) -> int:
    """How often the event loop runs other tasks while a watch scans many changes."""
    async with running_server(folder) as found:
        store, since = found.store, found.store.revision
        names = [f"n-{n}" for n in range(pages * watches.PAGE_SIZE)]
        body = {"apiVersion": "v1", "kind": "ConfigMap"}
        await store.commit([
            StoreWrite(CONFIG_MAP.store_key("default", name), _encoder({**body, "metadata": {
                "name": name, "namespace": "default", "labels": {"last": str(name == names[-1])},
            }}), 0)
            for name in names
        ])  # fmt: skip
        request = collection_request(
            "watch", CONFIG_MAP, {"label_selector": "last=True"}, query={"resourceVersion": since}
        )
        answer = await found.server.handle(replace(request, user=ADMIN))
        assert isinstance(answer, StreamReply)
        async with aclosing(answer.chunks) as chunks:
            event, turns = asyncio.ensure_future(anext(chunks)), 0
            while not event.done():
                turns += 1
                await asyncio.sleep(0)
            assert names[-1].encode() in event.result()
        return turns


def _encoder(obj: Object) -> ValueEncoder:
    return lambda revision: orjson.dumps(
        {**obj, "metadata": {**obj["metadata"], "resourceVersion": str(revision)}}
    )


def test_a_long_scan_of_the_history_does_not_block_the_event_loop(tmp_path: Path) -> None:
    assert uvloop.run(_search(tmp_path, pages=10)) >= 10
