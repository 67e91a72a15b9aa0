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
from .fake_api import LOST, FakeApi, refused
from .structs import short


class InformerFixture:
    """An informer, and what its handlers heard of a server."""

    def __init__(self, api: FakeApi) -> None:
        self.api, self.heard = api, list[str]()
        client = Client(InProcessTransport(api.handle, ANONYMOUS))
        self.pods = Informer(client, POD, Pod, random=SeededRandom(1), namespace="default")
        self.pods.cache.subscribe(self._hear)
        self.pods.on_batch.append(lambda: self.heard.append("settled"))

    def _hear(self, old: Pod | None, new: Pod | None) -> None:
        self.heard.append(f"{short(old)} {short(new)}")

    def news(self) -> list[str]:
        heard, self.heard = self.heard, []
        return heard

    @property
    def asked(self) -> list[str]:
        return ["watch" if is_watch(request) else "list" for request in self.api.requests]


@asynccontextmanager
async def following(api: FakeApi) -> AsyncIterator[InformerFixture]:
    story = InformerFixture(api)
    task = asyncio.create_task(story.pods.run())
    try:
        await story.pods.synced.wait()
        await asyncio.sleep(MAX_BACKOFF)
        yield story
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        assert api.watched == 0


def told(api: FakeApi, scenario: Callable[[InformerFixture], Awaitable[None]]) -> None:
    """Run a scenario beside an informer that has listed the server's pods."""

    async def whole() -> None:
        async with following(api) as story:
            await scenario(story)

    run(whole())


@pytest.fixture
def api() -> FakeApi:
    api = FakeApi()
    api.put("a")
    api.put("b")
    return api


def test_it_lists_and_then_follows_every_change(api: FakeApi) -> None:
    async def scenario(story: InformerFixture) -> None:
        assert story.news() == ["- a@2", "- b@3", "settled"]
        api.put("a", node="x")
        api.remove("b")
        await asyncio.sleep(0.1)
        assert story.news() == ["a@2 a@4", "settled", "b@3 -", "settled"]
        assert story.pods.cache[Key("default", "a")].occupied_node == "x"
        assert story.asked == ["list", "watch"]

    told(api, scenario)


def test_an_empty_collection_is_known_to_be_empty() -> None:
    async def scenario(story: InformerFixture) -> None:
        assert story.news() == ["settled"]

    told(FakeApi(), scenario)


def test_changes_that_come_together_settle_together(api: FakeApi) -> None:
    async def scenario(story: InformerFixture) -> None:
        story.news()
        api.cut()
        for name in "cde":
            api.put(name)
        await asyncio.sleep(0.1)
        assert story.news() == ["- c@4", "- d@5", "- e@6", "settled"]

    told(api, scenario)


def test_bookmarks_and_repetitions_settle_nothing(api: FakeApi) -> None:
    async def scenario(story: InformerFixture) -> None:
        story.news()
        api.bookmark()
        api.repeat(2)
        await asyncio.sleep(0.1)
        assert story.news() == []

    told(api, scenario)


@pytest.mark.parametrize("trouble", [None, LOST])
def test_after_a_cut_it_resumes_at_once_where_it_was(
    api: FakeApi, trouble: Unreachable | None
) -> None:
    async def scenario(story: InformerFixture) -> None:
        api.put("c")
        await asyncio.sleep(0.1)
        story.news()
        api.cut(trouble)
        api.put("d")
        await asyncio.sleep(0.1)
        assert story.news() == ["- d@5", "settled"]
        assert story.asked == ["list", "watch", "watch"]
        assert "resourceVersion=4" in api.requests[-1].query

    told(api, scenario)


def test_a_bookmark_is_a_place_to_resume_from(api: FakeApi) -> None:
    async def scenario(story: InformerFixture) -> None:
        api.revision = 50
        api.bookmark()
        await asyncio.sleep(0.1)
        api.cut()
        await asyncio.sleep(0.1)
        assert "resourceVersion=50" in api.requests[-1].query

    told(api, scenario)


def test_when_its_place_is_forgotten_it_lists_again_and_tells_what_differs(api: FakeApi) -> None:
    async def scenario(story: InformerFixture) -> None:
        story.news()
        api.cut()
        api.remove("a")
        api.put("c")
        api.compact()
        await asyncio.sleep(5)
        assert story.news() == ["a@2 -", "- c@5", "settled"]
        assert story.asked == ["list", "watch", "watch", "list", "watch"]

    told(api, scenario)


def test_a_watch_that_expires_while_it_runs_leads_to_a_list_at_once(api: FakeApi) -> None:
    async def scenario(story: InformerFixture) -> None:
        api.put("c")
        await asyncio.sleep(0.1)
        api.expire()
        await asyncio.sleep(0.1)
        assert story.asked == ["list", "watch", "list", "watch"]

    told(api, scenario)


def test_a_server_that_forgets_at_once_is_not_listed_all_the_time(api: FakeApi) -> None:
    async def scenario(story: InformerFixture) -> None:
        api.floor = 10**6
        api.expire()
        await asyncio.sleep(60)
        assert 4 < len(api.requests) < 20

    told(api, scenario)


def test_a_list_from_before_is_not_believed_and_asked_for_again(api: FakeApi) -> None:
    async def scenario(story: InformerFixture) -> None:
        api.remove("a")
        await asyncio.sleep(0.1)
        story.news()
        api.stale_lists = [3, 3]
        api.expire()
        await asyncio.sleep(0.1)
        assert "revision 3, but revision 4 was seen" in str(story.pods.failure)
        await asyncio.sleep(60)
        assert story.news() == ["settled"]
        assert story.pods.failure is None

    told(api, scenario)


def test_a_server_with_another_history_is_listed_again_once_it_has_caught_up(api: FakeApi) -> None:
    async def scenario(story: InformerFixture) -> None:
        api.cut(LOST)
        api.revision, api.snapshots, api.history = 1, [{}, {}], []
        await asyncio.sleep(60)
        assert list(story.pods.cache) == [Key("default", "a"), Key("default", "b")]
        for name in "xyz":
            api.put(name)
        await asyncio.sleep(60)
        assert sorted(key.name for key in story.pods.cache) == ["x", "y", "z"]

    told(api, scenario)


def test_a_server_that_is_away_is_asked_less_and_less_often() -> None:
    async def scenario() -> list[float]:
        moments: list[float] = []
        loop = asyncio.get_running_loop()

        async def away(request: Request) -> Reply:
            moments.append(loop.time())
            raise LOST

        client = Client(InProcessTransport(away, ANONYMOUS))
        lonely = asyncio.create_task(Informer(client, POD, Pod, random=SeededRandom(1)).run())
        await asyncio.sleep(300)
        lonely.cancel()
        return moments

    pauses = [later - sooner for sooner, later in pairwise(run(scenario()))]
    assert all(MIN_BACKOFF <= pause <= MAX_BACKOFF for pause in pauses)
    assert pauses[0] <= 2
    assert pauses[1] <= 4
    assert max(pauses) > 8
    assert len(set(pauses)) == len(pauses)


def test_what_is_wrong_can_be_seen_until_it_is_right_again(api: FakeApi) -> None:
    async def scenario(story: InformerFixture) -> None:
        assert story.pods.failure is None
        api.troubles = [refused(Forbidden("not for you"))]
        api.cut()
        await asyncio.sleep(0.1)
        assert str(story.pods.failure) == "not for you"
        await asyncio.sleep(5)
        assert story.pods.failure is None

    told(api, scenario)


@pytest.mark.parametrize("error", [Forbidden("not for you"), NotFound("no such kind")])
@pytest.mark.parametrize("optional", [True, False])
def test_one_that_is_optional_does_not_wait_for_what_it_may_not_read_or_what_is_not_there(
    error: ApiError, optional: bool
) -> None:
    async def scenario() -> None:
        async def closed(request: Request) -> Reply:
            return refused(error)

        client = Client(InProcessTransport(closed, ANONYMOUS))
        pods = Informer(client, POD, Pod, random=SeededRandom(1), optional=optional)
        running = asyncio.create_task(pods.run())
        await asyncio.sleep(60)
        assert pods.synced.is_set() is optional
        assert str(pods.failure) == str(error)
        running.cancel()

    run(scenario())


def test_a_quiet_watch_that_ends_is_no_failure(api: FakeApi) -> None:
    async def scenario(story: InformerFixture) -> None:
        for _ in range(10):
            api.cut()
            await asyncio.sleep(0.1)
            assert api.watched == 1
            await asyncio.sleep(1800)

    told(api, scenario)


def test_a_handler_that_fails_is_a_bug_and_ends_the_informer(api: FakeApi) -> None:
    async def scenario() -> None:
        def fail(old: Pod | None, new: Pod | None) -> None:
            raise ZeroDivisionError

        story = InformerFixture(api)
        story.pods.cache.subscribe(fail)
        with pytest.raises(ZeroDivisionError):
            await story.pods.run()

    run(scenario())


class Histories(RuleBasedStateMachine):
    """Whatever a server does, the informer's story is one that could have happened."""

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
        self.pods.cache.subscribe(self.hear)
        self.task = self.loop.create_task(self.pods.run())

    def hear(self, old: Pod | None, new: Pod | None) -> None:
        one = new or old
        assert one is not None
        key = one.metadata.key
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

    @rule(trouble=st.sampled_from([None, LOST]))
    def cut(self, trouble: Exception | None) -> None:
        self.api.cut(trouble)

    @rule(trouble=st.sampled_from([LOST, refused(Forbidden("no"))]))
    def trouble(self, trouble: Exception) -> None:
        self.api.troubles.append(trouble)

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
    def list_from_before(self, data: st.DataObject) -> None:
        self.api.stale_lists.append(data.draw(st.integers(1, self.api.revision)))

    @rule(seconds=st.sampled_from([0.005, 0.05, 3.0]))
    def wait(self, seconds: float) -> None:
        self.loop.run_until_complete(asyncio.sleep(seconds))

    def teardown(self) -> None:
        try:
            self.api.troubles, self.api.stale_lists = [], []
            self.wait(120.0)
            assert not self.task.done()
            self.check()
        finally:
            self.task.cancel()
            self.loop.run_until_complete(asyncio.gather(self.task, return_exceptions=True))
            self.loop.close()

    def check(self) -> None:
        """The cache is the server's truth, and the index the cache's."""
        there = {
            name: found["metadata"]["resourceVersion"] for name, found in self.api.pods.items()
        }
        assert {key.name: pod.metadata.resource_version for key, pod in self.known.items()} == there
        for node in ("x", "y"):
            placed = {pod.metadata.name for pod in self.known.values() if pod.occupied_node == node}
            assert {pod.metadata.name for pod in self.by_node[node]} == placed


Histories.TestCase.settings = settings(max_examples=200, stateful_step_count=30, deadline=None)
test_no_history_of_the_server_leads_the_cache_astray = Histories.TestCase
