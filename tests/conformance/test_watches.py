"""The promise of watches: each event once and in order, or 410, whatever happens on the way."""

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

#: Small things in two namespaces, and large ones that soon fill every buffer on the way.
SPACES = {"a": 100, "b": 100, "large": 24 * 1024}
NAMES, WRITERS = 12, 8
#: Revisions that are kept; a compaction comes after as many writes, by lot, on average.
KEPT, COMPACTION = 300, 50


def label(obj: Object, name: str) -> str | None:
    found: str | None = obj["metadata"].get("labels", {}).get(name)
    return found


def is_in(obj: Object, space: str) -> bool:
    return object_key(obj).startswith(f"{space}/")


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
    """How many watch how much; some of them are in no hurry and let so many revisions pass."""

    watchers: int = 64
    writes: int = 1_600
    #: A watcher begins at most so many revisions before or after the newest.
    around: int = 100
    idlers: tuple[int, ...] = (200, 1_000)
    seed: int = 1


class RunState:
    """How far the writing has come, and whether it is over."""

    def __init__(self, store: SqliteStore) -> None:
        self.end: int | None = None
        self._store = store
        self._waiting: list[tuple[int, asyncio.Event]] = []
        store.subscribe(self._wake)

    def is_over(self, revision: int) -> bool:
        """Whether nothing comes after a revision."""
        return self.end is not None and revision >= self.end

    async def reaches(self, revision: int) -> None:
        """Wait for a revision, or for the end."""
        if self.end is None and self._store.revision < revision:
            passed = asyncio.Event()
            self._waiting.append((revision, passed))
            await passed.wait()

    def finish(self) -> None:
        """Say that nothing more will be written."""
        self.end = self._store.revision
        self._wake(())

    def _wake(self, changes: Sequence[StoreChange]) -> None:
        for revision, passed in self._waiting:
            if self.end is not None or self._store.revision >= revision:
                passed.set()


@dataclass(slots=True)
class WatchStretch:
    """What was seen from one revision to another without a gap, after what was there first."""

    begin: int
    end: int
    listed: dict[str, int] | None = None
    told: list[ExpectedEvent] = field(default_factory=list)


class WatchReader:
    """Watches a view; comes back when it is cut off and lists anew when that is too late."""

    def __init__(
        self, http: HttpTransport, store: SqliteStore, view: WatchedScope, since: int, idle: int
    ) -> None:
        self.view, self.stretches = view, [WatchStretch(since, since)]
        self._http, self._store, self._idle = http, store, idle
        self._is_late = False

    async def run(self, course: RunState) -> None:
        """Look on until everything was told."""
        while not course.is_over(self.stretches[-1].end):
            with suppress(Unreachable):
                if self._is_late:
                    await self._list()
                await self._watch(course)

    async def _list(self) -> None:
        reply = await self._http.send(collection_request("list", CONFIG_MAP, self.view.scope, {}))
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
            collection_request("watch", CONFIG_MAP, self.view.scope, since)
        )
        if isinstance(answer, Reply):
            # The revision has not come in time: nothing was missed.
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
                await course.reaches(self.stretches[-1].end + self._idle)

    def _read(self, event: Object) -> None:
        kind, obj, stretch = event["type"], event["object"], self.stretches[-1]
        if kind == "ERROR":
            assert obj["code"] == 410
            assert stretch.end < self._store.floor, "nothing of what it asked for was forgotten"
            self._is_late = True
            return
        revision = int(obj["metadata"]["resourceVersion"])
        if kind == "BOOKMARK":
            assert revision >= stretch.end
        else:
            assert revision > stretch.end
            stretch.told.append(expected_event(kind, obj, revision))
        stretch.end = revision


async def write(client: Client, store: SqliteStore, lots: random.Random, until: int) -> None:
    """Make, change, mark and delete by lot, and let the store forget what is old."""
    while store.revision < until:
        space = lots.choices(list(SPACES), (10, 10, 1))[0]
        with suppress(ApiError):
            await _write_one(client, lots, space, f"n-{lots.randrange(NAMES)}")
        if not lots.randrange(COMPACTION):
            store.compact(store.revision - KEPT)


async def _write_one(client: Client, lots: random.Random, space: str, name: str) -> None:
    key, serial = Key(space, name), str(lots.randrange(10**9))
    if not lots.randrange(5):
        await client.delete(CONFIG_MAP, key)
        return
    size = "large" if space == "large" else "small"
    change: Object = {
        "metadata": {"labels": {"color": lots.choice(("red", "blue", None)), "size": size}},
        "data": {"serial": serial, "filling": "x" * SPACES[space]},
    }
    try:
        await client.patch(CONFIG_MAP, key, change)
    except NotFound:
        marks = {"name": name, "namespace": space, "labels": {"color": "red", "size": size}}
        await client.create(CONFIG_MAP, {**change, "metadata": marks})


@dataclass(frozen=True, slots=True)
class WatchRunResult:
    """What all readers saw, what really happened, and how often the wire was cut."""

    readers: Sequence[WatchReader]
    oracle: WatchOracle
    cuts: int

    def check(self) -> None:
        """Hold what each reader saw against what happened."""
        for reader in self.readers:
            for stretch in reader.stretches:
                if stretch.listed is not None:
                    assert stretch.listed == self.oracle.expected_objects(
                        reader.view, stretch.begin
                    )
                happened = self.oracle.expected_events(reader.view, stretch.begin, stretch.end)
                assert stretch.told == happened

    @property
    def late(self) -> int:
        """How often a reader had to list anew."""
        return sum(len(reader.stretches) - 1 for reader in self.readers)

    @property
    def told(self) -> int:
        """Events that were seen in all."""
        return sum(len(stretch.told) for reader in self.readers for stretch in reader.stretches)


async def observe(folder: Path, load: WatchLoad) -> WatchRunResult:
    """Write while all look on; what came of it."""
    lots = random.Random(load.seed)
    async with running_server(folder) as found:
        store, chronicle = found.store, WatchOracle(found.store)
        client = Client(InProcessTransport(found.server.handle, UserInfo("writer", (MASTERS,))))
        for space in SPACES:
            await client.create(NAMESPACE, {"metadata": {"name": space}})
        await write(client, store, lots, store.revision + 2 * load.around)
        wire = FaultyProxy(found.port, lots, shortest=16 * 1024, longest=1024 * 1024)
        async with wire.listen() as port, _connected(port, found.authority, load) as http:
            readers, course = _readers(http, store, load), RunState(store)
            async with asyncio.TaskGroup() as reading:
                for reader in readers:
                    reading.create_task(reader.run(course))
                await _write_all(client, store, load)
                course.finish()
        return WatchRunResult(readers, chronicle, wire.cuts)


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
    """Watchers of every view, spread evenly around the newest revision; the first ones idle."""
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
            lots = random.Random(f"{load.seed} {n}")
            writing.create_task(write(client, store, lots, until))


@pytest.fixture
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have watches fall behind, page and mark a hundred times as often."""
    monkeypatch.setattr(watches, "BUFFER", 16 * 1024)
    monkeypatch.setattr(watches, "PAGE", 20)
    monkeypatch.setattr(watches, "BOOKMARK", 0.05)


@pytest.mark.usefixtures("small_steps")
def test_every_event_is_told_once_and_in_order_or_its_loss_is(tmp_path: Path) -> None:
    outcome = uvloop.run(observe(tmp_path, WatchLoad()))
    outcome.check()
    assert outcome.cuts >= 100
    assert outcome.late >= 1
    assert outcome.told >= 10_000


@pytest.mark.soak
@pytest.mark.usefixtures("small_steps")
@pytest.mark.parametrize("seed", range(5))
def test_watches_keep_their_promise_for_long(tmp_path: Path, seed: int) -> None:
    load = WatchLoad(watchers=200, writes=20_000, idlers=(200, 1_000, 300, 5_000), seed=seed)
    outcome = uvloop.run(observe(tmp_path, load))
    outcome.check()
    assert outcome.cuts >= 1_000


async def _search(folder: Path, pages: int) -> int:
    """How often the server turns to something else while a watch looks for one of many changes."""
    async with running_server(folder) as found:
        store, since = found.store, found.store.revision
        names = [f"n-{n}" for n in range(pages * watches.PAGE)]
        body = {"apiVersion": "v1", "kind": "ConfigMap"}
        await store.commit([
            StoreWrite(CONFIG_MAP.store_key("default", name), _encoder({**body, "metadata": {
                "name": name, "namespace": "default", "labels": {"last": str(name == names[-1])},
            }}), 0)
            for name in names
        ])  # fmt: skip
        request = collection_request(
            "watch", CONFIG_MAP, {"label_selector": "last=True"}, {"resourceVersion": since}
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


def test_a_long_search_lets_others_have_their_turn(tmp_path: Path) -> None:
    assert uvloop.run(_search(tmp_path, pages=10)) >= 10
