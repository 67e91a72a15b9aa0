from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from itertools import pairwise

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from phalanx.api.core import Pod
from phalanx.api.errors import ApiError, Forbidden, NotFound
from phalanx.api.kinds import POD
from phalanx.api.meta import Key
from phalanx.api.wire import ANONYMOUS, Reply, Request
from phalanx.client.client import Client
from phalanx.client.informer import MAX_BACKOFF, MIN_BACKOFF, Informer
from phalanx.client.protocol import is_watch
from phalanx.client.transports import InProcessTransport, Unreachable
from phalanx.randomness import SeededRandom

from .conftest import JumpLoop, run
from .fake_api import CONNECTION_LOST, FakeApi, status_reply
from .structs import short_form


class InformerFixture:
    """An informer of a fake server, and the changes that its handlers received."""

    def __init__(self, api: FakeApi) -> None:
        self.api, self.changes = api, list[str]()
        client = Client(InProcessTransport(api.handle, ANONYMOUS))
        self.pods = Informer(client, POD, Pod, random=SeededRandom(1), namespace="default")
        self.pods.cache.subscribe(self._record_change)
        self.pods.on_batch.append(lambda: self.changes.append("batch"))

    def _record_change(self, old: Pod | None, new: Pod | None) -> None:
        self.changes.append(f"{short_form(old)} {short_form(new)}")

    def take_changes(self) -> list[str]:
        changes, self.changes = self.changes, []
        return changes

    @property
    def requests_sent(self) -> list[str]:
        return ["watch" if is_watch(request) else "list" for request in self.api.requests]


@asynccontextmanager
async def running_informer(api: FakeApi) -> AsyncIterator[InformerFixture]:
    fixture = InformerFixture(api)
    task = asyncio.create_task(fixture.pods.run())
    try:
        await fixture.pods.synced.wait()
        await asyncio.sleep(MAX_BACKOFF)
        yield fixture
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        assert api.open_watches == 0


def run_scenario(api: FakeApi, scenario: Callable[[InformerFixture], Awaitable[None]]) -> None:
    """Run a scenario with an informer that has listed the server's pods."""

    async def run_with_informer() -> None:
        async with running_informer(api) as fixture:
            await scenario(fixture)

    run(run_with_informer())


@pytest.fixture
def api() -> FakeApi:
    api = FakeApi()
    api.put("a")
    api.put("b")
    return api


def test_informer_lists_and_then_watches_every_change(api: FakeApi) -> None:
    async def scenario(fixture: InformerFixture) -> None:
        assert fixture.take_changes() == ["- a@2", "- b@3", "batch"]
        api.put("a", node="x")
        api.remove("b")
        await asyncio.sleep(0.1)
        assert fixture.take_changes() == ["a@2 a@4", "batch", "b@3 -", "batch"]
        assert fixture.pods.cache[Key("default", "a")].occupied_node == "x"
        assert fixture.requests_sent == ["list", "watch"]

    run_scenario(api, scenario)


def test_informer_of_an_empty_collection_syncs() -> None:
    async def scenario(fixture: InformerFixture) -> None:
        assert fixture.take_changes() == ["batch"]

    run_scenario(FakeApi(), scenario)


def test_events_that_arrive_together_are_one_batch(api: FakeApi) -> None:
    async def scenario(fixture: InformerFixture) -> None:
        fixture.take_changes()
        api.cut()
        for name in "cde":
            api.put(name)
        await asyncio.sleep(0.1)
        assert fixture.take_changes() == ["- c@4", "- d@5", "- e@6", "batch"]

    run_scenario(api, scenario)


def test_bookmarks_and_repeated_events_are_no_batch(api: FakeApi) -> None:
    async def scenario(fixture: InformerFixture) -> None:
        fixture.take_changes()
        api.bookmark()
        api.repeat(2)
        await asyncio.sleep(0.1)
        assert fixture.take_changes() == []

    run_scenario(api, scenario)


@pytest.mark.parametrize("failure", [None, CONNECTION_LOST])
def test_watch_that_ends_is_resumed_at_once_from_the_last_revision(
    api: FakeApi, failure: Unreachable | None
) -> None:
    async def scenario(fixture: InformerFixture) -> None:
        api.put("c")
        await asyncio.sleep(0.1)
        fixture.take_changes()
        api.cut(failure)
        api.put("d")
        await asyncio.sleep(0.1)
        assert fixture.take_changes() == ["- d@5", "batch"]
        assert fixture.requests_sent == ["list", "watch", "watch"]
        assert "resourceVersion=4" in api.requests[-1].query

    run_scenario(api, scenario)


def test_watch_resumes_from_a_bookmark(api: FakeApi) -> None:
    async def scenario(fixture: InformerFixture) -> None:
        api.revision = 50
        api.bookmark()
        await asyncio.sleep(0.1)
        api.cut()
        await asyncio.sleep(0.1)
        assert "resourceVersion=50" in api.requests[-1].query

    run_scenario(api, scenario)


def test_informer_lists_again_after_compaction_and_reports_the_differences(api: FakeApi) -> None:
    async def scenario(fixture: InformerFixture) -> None:
        fixture.take_changes()
        api.cut()
        api.remove("a")
        api.put("c")
        api.compact()
        await asyncio.sleep(5)
        assert fixture.take_changes() == ["a@2 -", "- c@5", "batch"]
        assert fixture.requests_sent == ["list", "watch", "watch", "list", "watch"]

    run_scenario(api, scenario)


def test_watch_that_expires_is_followed_by_a_list_at_once(api: FakeApi) -> None:
    async def scenario(fixture: InformerFixture) -> None:
        api.put("c")
        await asyncio.sleep(0.1)
        api.expire()
        await asyncio.sleep(0.1)
        assert fixture.requests_sent == ["list", "watch", "list", "watch"]

    run_scenario(api, scenario)


def test_lists_back_off_when_every_watch_expires_at_once(api: FakeApi) -> None:
    async def scenario(fixture: InformerFixture) -> None:
        api.compacted_revision = 10**6
        api.expire()
        await asyncio.sleep(60)
        assert 4 < len(api.requests) < 20

    run_scenario(api, scenario)


def test_stale_list_is_rejected_and_repeated(api: FakeApi) -> None:
    async def scenario(fixture: InformerFixture) -> None:
        api.remove("a")
        await asyncio.sleep(0.1)
        fixture.take_changes()
        api.stale_lists = [3, 3]
        api.expire()
        await asyncio.sleep(0.1)
        assert "revision 3, but revision 4 was seen" in str(fixture.pods.failure)
        await asyncio.sleep(60)
        assert fixture.take_changes() == ["batch"]
        assert fixture.pods.failure is None

    run_scenario(api, scenario)


def test_server_with_a_reset_history_is_listed_once_its_revision_has_caught_up(
    api: FakeApi,
) -> None:
    async def scenario(fixture: InformerFixture) -> None:
        api.cut(CONNECTION_LOST)
        api.revision, api.snapshots, api.history = 1, [{}, {}], []
        await asyncio.sleep(60)
        assert list(fixture.pods.cache) == [Key("default", "a"), Key("default", "b")]
        for name in "xyz":
            api.put(name)
        await asyncio.sleep(60)
        assert sorted(key.name for key in fixture.pods.cache) == ["x", "y", "z"]

    run_scenario(api, scenario)


def test_requests_to_an_unreachable_server_back_off() -> None:
    async def scenario() -> list[float]:
        times: list[float] = []
        loop = asyncio.get_running_loop()

        async def unreachable(request: Request) -> Reply:
            times.append(loop.time())
            raise CONNECTION_LOST

        client = Client(InProcessTransport(unreachable, ANONYMOUS))
        task = asyncio.create_task(Informer(client, POD, Pod, random=SeededRandom(1)).run())
        await asyncio.sleep(300)
        task.cancel()
        return times

    pauses = [later - earlier for earlier, later in pairwise(run(scenario()))]
    assert all(MIN_BACKOFF <= pause <= MAX_BACKOFF for pause in pauses)
    assert pauses[0] <= 2
    assert pauses[1] <= 4
    assert max(pauses) > 8
    assert len(set(pauses)) == len(pauses)


def test_failure_is_reported_until_the_next_success(api: FakeApi) -> None:
    async def scenario(fixture: InformerFixture) -> None:
        assert fixture.pods.failure is None
        api.failures = [status_reply(Forbidden("not for you"))]
        api.cut()
        await asyncio.sleep(0.1)
        assert str(fixture.pods.failure) == "not for you"
        await asyncio.sleep(5)
        assert fixture.pods.failure is None

    run_scenario(api, scenario)


@pytest.mark.parametrize("error", [Forbidden("not for you"), NotFound("no such kind")])
@pytest.mark.parametrize("optional", [True, False])
def test_optional_informer_counts_as_synced_when_its_kind_is_forbidden_or_missing(
    error: ApiError, optional: bool
) -> None:
    async def scenario() -> None:
        async def deny(request: Request) -> Reply:
            return status_reply(error)

        client = Client(InProcessTransport(deny, ANONYMOUS))
        pods = Informer(client, POD, Pod, random=SeededRandom(1), optional=optional)
        running = asyncio.create_task(pods.run())
        await asyncio.sleep(60)
        assert pods.synced.is_set() is optional
        assert str(pods.failure) == str(error)
        running.cancel()

    run(scenario())


def test_end_of_an_idle_watch_is_not_a_failure(api: FakeApi) -> None:
    async def scenario(fixture: InformerFixture) -> None:
        for _ in range(10):
            api.cut()
            await asyncio.sleep(0.1)
            assert api.open_watches == 1
            await asyncio.sleep(1800)

    run_scenario(api, scenario)


def test_exception_of_a_handler_ends_the_informer(api: FakeApi) -> None:
    async def scenario() -> None:
        def fail(old: Pod | None, new: Pod | None) -> None:
            raise ZeroDivisionError

        fixture = InformerFixture(api)
        fixture.pods.cache.subscribe(fail)
        with pytest.raises(ZeroDivisionError):
            await fixture.pods.run()

    run(scenario())


class HistoryMachine(RuleBasedStateMachine):
    """Whatever a server does, the informer reports a history that could have happened."""

    def __init__(self) -> None:
        super().__init__()
        self.loop, self.api = JumpLoop(), FakeApi()
        self.pods = Informer(
            Client(InProcessTransport(self.api.handle, ANONYMOUS)), POD, Pod, random=SeededRandom(1)
        )
        self.by_node = self.pods.cache.index(
            lambda pod: [pod.occupied_node] if pod.occupied_node else []
        )
        self.known: dict[Key, Pod] = {}
        self.newest: dict[Key, int] = {}
        self.pods.cache.subscribe(self.check_change)
        self.task = self.loop.create_task(self.pods.run())

    def check_change(self, old: Pod | None, new: Pod | None) -> None:
        changed = new or old
        assert changed is not None
        key = changed.metadata.key
        assert self.known.pop(key, None) is old
        if new is not None:
            version = int(new.metadata.resource_version)
            assert version > self.newest.get(key, 0)
            assert old is None or old.metadata.uid == new.metadata.uid
            self.known[key], self.newest[key] = new, version
        assert self.known == dict(self.pods.cache)

    @rule(name=st.sampled_from("abcd"), node=st.sampled_from(["", "x", "y"]))
    def put(self, name: str, node: str) -> None:
        self.api.put(name, node=node)

    @rule(data=st.data())
    @precondition(lambda self: self.api.pods)
    def remove(self, data: st.DataObject) -> None:
        self.api.remove(data.draw(st.sampled_from(sorted(self.api.pods))))

    @rule(failure=st.sampled_from([None, CONNECTION_LOST]))
    def cut(self, failure: Exception | None) -> None:
        self.api.cut(failure)

    @rule(failure=st.sampled_from([CONNECTION_LOST, status_reply(Forbidden("no"))]))
    def fail_next_request(self, failure: Exception) -> None:
        self.api.failures.append(failure)

    @rule()
    def compact(self) -> None:
        self.api.compact()

    @rule()
    def expire(self) -> None:
        self.api.expire()

    @rule()
    def bookmark(self) -> None:
        self.api.bookmark()

    @rule(count=st.integers(1, 6))
    def repeat(self, count: int) -> None:
        self.api.repeat(count)

    @rule(data=st.data())
    def list_stale(self, data: st.DataObject) -> None:
        self.api.stale_lists.append(data.draw(st.integers(1, self.api.revision)))

    @rule(seconds=st.sampled_from([0.005, 0.05, 3.0]))
    def wait(self, seconds: float) -> None:
        self.loop.run_until_complete(asyncio.sleep(seconds))

    def teardown(self) -> None:
        try:
            self.api.failures, self.api.stale_lists = [], []
            self.wait(120.0)
            assert not self.task.done()
            self.check()
        finally:
            self.task.cancel()
            self.loop.run_until_complete(asyncio.gather(self.task, return_exceptions=True))
            self.loop.close()

    def check(self) -> None:
        """The cache equals the server's objects, and the index equals the cache."""
        expected = {
            name: found["metadata"]["resourceVersion"] for name, found in self.api.pods.items()
        }
        assert {
            key.name: pod.metadata.resource_version for key, pod in self.known.items()
        } == expected
        for node in ("x", "y"):
            placed = {pod.metadata.name for pod in self.known.values() if pod.occupied_node == node}
            assert {pod.metadata.name for pod in self.by_node[node]} == placed


HistoryMachine.TestCase.settings = settings(max_examples=200, stateful_step_count=30, deadline=None)
test_cache_equals_the_server_after_any_history = HistoryMachine.TestCase
