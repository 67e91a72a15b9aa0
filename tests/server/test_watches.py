from __future__ import annotations

import asyncio
from contextlib import aclosing
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.api.kinds import CONFIG_MAP, NODE, POD
from phalanx.api.wire import Object
from phalanx.server import watches
from phalanx.server.watches import BOOKMARK_INTERVAL, BUFFER_BYTES, DISPATCH_INTERVAL
from phalanx.store.kv import KeyValue
from tests.builders import in_virtual_time, node, pod, share_of_examples
from tests.server.api import Api, WatchEvent, events, names, revision

TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"
RED = {"labelSelector": "color=red"}
MARKED = {"allowWatchBookmarks": "true"}
INITIAL = {**MARKED, "sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan"}


def config(name: str, data: str = "", **labels: str) -> Object:
    return {
        "metadata": {"name": name, "namespace": "default", "labels": labels},
        "data": {"d": data},
    }


async def relabel(api: Api, name: str, color: str | None) -> None:
    change = {"metadata": {"labels": {"color": color}}}
    assert (await api.patch(CONFIG_MAP, name, change)).code == 200


def summaries(found: list[WatchEvent]) -> list[str]:
    return [str(event) for event in found]


# ---- events --------------------------------------------------------------------------------------


@in_virtual_time
async def test_a_watch_sends_additions_changes_and_deletions() -> None:
    api = await Api.start()
    watching = asyncio.ensure_future(api.watch(CONFIG_MAP, since=api.store.revision))
    await asyncio.sleep(0)
    (made,) = await api.create(CONFIG_MAP, config("a"))
    await relabel(api, "a", "red")
    changed = await api.get(CONFIG_MAP, "a")
    await api.delete(CONFIG_MAP, "a")
    found = await watching
    assert summaries(found) == ["ADDED a", "MODIFIED a", "DELETED a"]
    assert [event.object for event in found[:2]] == [made, changed]
    last = {**changed["metadata"], "resourceVersion": str(api.store.revision)}
    assert found[2].object == {**changed, "metadata": last}


@in_virtual_time
async def test_an_update_without_changes_sends_no_event() -> None:
    api = await Api.start()
    await api.create(CONFIG_MAP, config("a", color="red"))
    before = api.store.revision
    await relabel(api, "a", "red")
    assert api.store.revision == before
    assert await api.watch(CONFIG_MAP, since=before) == []


@pytest.mark.parametrize("is_live", [True, False], ids=["live", "from history"])
@in_virtual_time
async def test_objects_enter_and_leave_a_selector_with_their_labels(is_live: bool) -> None:
    api = await Api.start()
    await api.create(CONFIG_MAP, config("a"))
    since = api.store.revision
    watching = asyncio.ensure_future(api.watch(CONFIG_MAP, RED, since=since))
    if is_live:
        await asyncio.sleep(0)
    for color in ("red", "red", "blue", "red", None):
        await relabel(api, "a", color)
    await relabel(api, "a", "red")
    await api.patch(CONFIG_MAP, "a", {"data": {"d": "new"}})
    await api.delete(CONFIG_MAP, "a")
    found = await (watching if is_live else api.watch(CONFIG_MAP, RED, since=since))
    assert summaries(found) == [
        "ADDED a", "DELETED a", "ADDED a", "DELETED a", "ADDED a", "MODIFIED a", "DELETED a",
    ]  # fmt: skip
    await watching


@in_virtual_time
async def test_an_object_that_leaves_a_selector_is_sent_in_its_old_state_at_the_new_revision() -> (
    None
):
    api = await Api.start()
    (made,) = await api.create(CONFIG_MAP, config("a", color="red"))
    await relabel(api, "a", "blue")
    left = await api.watch(CONFIG_MAP, since=revision(made), query=RED)
    assert summaries(left) == ["DELETED a"]
    assert left[0].object["metadata"]["labels"] == {"color": "red"}
    assert left[0].revision == api.store.revision


@in_virtual_time
async def test_a_watch_by_node_name_sends_only_pods_of_that_node() -> None:
    api = await Api.start()
    await api.create(POD, pod("a"), pod("b"), pod("c", on="n1"))
    before = api.store.revision
    await api.bind("a", "n1")
    await api.bind("b", "n2")
    found = await api.watch(POD, {"fieldSelector": "spec.nodeName=n1"}, since=before)
    assert summaries(found) == ["ADDED a"]


@in_virtual_time
async def test_a_watch_of_one_namespace_or_name_sends_nothing_else() -> None:
    api = await Api.start()
    await api.create(CONFIG_MAP, config("a"))
    elsewhere = config("a")
    elsewhere["metadata"]["namespace"] = "kube-public"
    before = api.store.revision
    await api.create(CONFIG_MAP, config("b"), elsewhere)
    await relabel(api, "a", "red")
    assert summaries(await api.watch(CONFIG_MAP, since=before)) == ["ADDED b", "MODIFIED a"]
    of_a = {"fieldSelector": "metadata.name=a"}
    assert summaries(await api.watch(CONFIG_MAP, of_a, since=before)) == ["MODIFIED a"]


# ---- initial events ------------------------------------------------------------------------------


@pytest.mark.parametrize("since", [None, 0], ids=["no revision", "revision 0"])
@in_virtual_time
async def test_a_watch_without_a_revision_begins_with_the_current_objects(
    since: int | None,
) -> None:
    api = await Api.start()
    await api.create(CONFIG_MAP, config("b"), config("a", color="red"))
    assert summaries(await api.watch(CONFIG_MAP, since=since)) == ["ADDED a", "ADDED b"]
    assert summaries(await api.watch(CONFIG_MAP, RED, since=since)) == ["ADDED a"]


@in_virtual_time
async def test_the_end_of_the_initial_events_is_marked_on_request() -> None:
    api = await Api.start()
    await api.create(CONFIG_MAP, config("a"), config("b"))
    at = api.store.revision
    watching = asyncio.ensure_future(api.watch(CONFIG_MAP, INITIAL))
    await asyncio.sleep(0)
    await api.create(CONFIG_MAP, config("c"))
    found = await watching
    assert summaries(found)[:4] == ["ADDED a", "ADDED b", "BOOKMARK ", "ADDED c"]
    mark = found[2].object["metadata"]
    assert (found[2].revision, mark["annotations"]) == (at, {"k8s.io/initial-events-end": "true"})


@in_virtual_time
async def test_initial_events_are_rendered_as_fast_as_they_are_read() -> None:
    api = await Api.start()
    text = {"a": "x" * 200_000}
    await api.create(CONFIG_MAP, *({**config(f"c{n}"), "data": text} for n in range(6)))
    async with aclosing(api.chunks(CONFIG_MAP, INITIAL)) as chunks:
        first = await anext(chunks)
        assert first.count(b"ADDED") == 2
        # What changes before the client reads on is read from the history.
        await api.ask("DELETE", CONFIG_MAP.url_path("default", "c5"))
        rest = [chunk async for chunk in chunks]
    counts = [(chunk.count(b"ADDED"), chunk.count(b"BOOKMARK")) for chunk in rest[:3]]
    assert counts == [(2, 0), (2, 0), (0, 1)]
    assert b"".join(rest[3:]).count(b"DELETED") == 1


@pytest.mark.parametrize("selector", [{}, {"labelSelector": "absent"}])
@in_virtual_time
async def test_a_watch_of_the_past_reads_few_large_objects_at_a_time(
    selector: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    api = await Api.start()
    await api.create(CONFIG_MAP, *(config(f"c{n}") for n in range(3)))
    since = api.store.revision
    for n in range(8):
        data = {"data": {"a": f"{n}" * 500_000}}
        assert (await api.patch(CONFIG_MAP, "c0", data)).code == 200
    pages: list[int] = []

    class CountingCache(watches.RenderCache):
        def __init__(self) -> None:
            super().__init__()
            pages.append(0)

        def object(self, record: KeyValue) -> Object:
            pages[-1] += 1
            return super().object(record)

    monkeypatch.setattr(watches, "RenderCache", CountingCache)
    found = await api.watch(CONFIG_MAP, selector, since=since)
    assert len(found) == (0 if selector else 8)
    assert len(pages) >= 3
    # Three objects per page, before and after their change.
    assert max(pages) <= 6


@in_virtual_time
async def test_a_list_and_a_watch_from_its_revision_miss_nothing() -> None:
    api = await Api.start(latency=lambda: 0.5)
    writing = asyncio.gather(*(api.create(CONFIG_MAP, config(f"c{n}")) for n in range(5)))
    await asyncio.sleep(0.1)
    listing = await api.list_default(CONFIG_MAP)
    found = await api.watch(CONFIG_MAP, since=revision(listing))
    await writing
    assert sorted([*names(listing), *(event.name for event in found)]) == [
        f"c{n}" for n in range(5)
    ]


@in_virtual_time
async def test_a_watch_from_a_future_revision_waits_shortly() -> None:
    api = await Api.start()
    soon = api.store.revision + 1
    watching = asyncio.ensure_future(api.watch(CONFIG_MAP, since=soon))
    await asyncio.sleep(1)
    await api.create(CONFIG_MAP, config("a"), config("b"))
    assert summaries(await watching) == ["ADDED b"]
    query = {"watch": "true", "resourceVersion": api.store.revision + 5}
    answer = await api.ask("GET", CONFIG_MAP.url_path("default"), query=query)
    assert (answer.code, answer.body["reason"]) == (504, "Timeout")


@pytest.mark.parametrize(
    "query",
    [
        {"resourceVersion": "abc"},
        {"timeoutSeconds": "soon"},
        {"labelSelector": "a in b"},
        {"fieldSelector": "spec.colour=red"},
    ],
    ids=str,
)
@in_virtual_time
async def test_a_watch_with_invalid_options_is_a_bad_request(
    query: dict[str, str],
) -> None:
    api = await Api.start()
    answer = await api.ask("GET", POD.url_path("default"), query={"watch": "true", **query})
    assert answer.code == 400


# ---- timeouts and bookmarks ----------------------------------------------------------------------


@in_virtual_time
async def test_a_watch_ends_when_its_time_is_over() -> None:
    api = await Api.start()
    begin = asyncio.get_running_loop().time()
    await api.watch(CONFIG_MAP, seconds=77)
    assert asyncio.get_running_loop().time() - begin == 77


@in_virtual_time
async def test_a_quiet_watch_gets_a_bookmark_every_minute() -> None:
    api = await Api.start()
    await api.create(CONFIG_MAP, config("a"))
    since = api.store.revision
    watching = asyncio.ensure_future(api.watch(CONFIG_MAP, MARKED, since=since, seconds=150))
    await asyncio.sleep(30)
    await api.create(NODE, node("n1"))
    found = await watching
    assert summaries(found)[:2] == ["BOOKMARK ", "BOOKMARK "]
    assert {event.revision for event in found} == {api.store.revision}
    assert found[0].object["kind"] == "ConfigMap"


@in_virtual_time
async def test_bookmarks_are_sent_only_on_request() -> None:
    api = await Api.start()
    assert await api.watch(CONFIG_MAP, seconds=150) == []


@pytest.mark.parametrize("early", [0.0, 0.001, 0.5])
@in_virtual_time
async def test_no_older_event_follows_a_bookmark(early: float) -> None:
    """The change is committed exactly when a bookmark is due, or just before."""
    loop = asyncio.get_running_loop()
    due = loop.time()
    api = await Api.start(latency=lambda: max(due - early - loop.time(), 0))
    watching = asyncio.ensure_future(api.watch(CONFIG_MAP, MARKED, since=0, seconds=200))
    await asyncio.sleep(0)
    due = loop.time() + BOOKMARK_INTERVAL
    await asyncio.sleep(1)
    await api.create(CONFIG_MAP, config("a"))
    found = await watching
    at = summaries(found).index("ADDED a")
    assert all(event.revision < found[at].revision for event in found[:at])
    assert all(event.revision >= found[at].revision for event in found[at:])


# ---- slow readers --------------------------------------------------------------------------------


async def read_slowly(api: Api, since: int, pause: asyncio.Event) -> list[WatchEvent]:
    """Open a watch, wait until the event is set, then read on."""
    chunks = api.chunks(CONFIG_MAP, seconds=100, since=since)
    found = events(await anext(chunks))
    await pause.wait()
    async with aclosing(chunks):
        return found + [event async for chunk in chunks for event in events(chunk)]


@pytest.mark.parametrize("writes", [5, 40, 1300])
@in_virtual_time
async def test_a_slow_reader_misses_nothing_and_gets_nothing_twice(writes: int) -> None:
    api = await Api.start()
    go_on = asyncio.Event()
    before = api.store.revision
    reading = asyncio.ensure_future(read_slowly(api, before, go_on))
    await asyncio.sleep(0)
    await api.create(CONFIG_MAP, config("big"))
    await asyncio.sleep(0.1)
    size = 2 * BUFFER_BYTES // writes
    for number in range(writes):
        await api.patch(CONFIG_MAP, "big", {"data": {"d": f"{number:>{size}}"}})
    go_on.set()
    await asyncio.sleep(0)
    await api.create(CONFIG_MAP, config("after"))
    found = await reading
    assert [event.revision for event in found] == list(range(before + 1, before + writes + 3))
    assert summaries(found) == ["ADDED big", *["MODIFIED big"] * writes, "ADDED after"]


@in_virtual_time
async def test_a_slow_reader_catches_up_in_chunks_of_about_the_buffer_size() -> None:
    api = await Api.start()
    await api.create(CONFIG_MAP, config("big"))
    since, size = api.store.revision, BUFFER_BYTES // 4
    for number in range(20):
        await api.patch(CONFIG_MAP, "big", {"data": {"d": f"{number:>{size}}"}})
    pieces = [len(chunk) async for chunk in api.chunks(CONFIG_MAP, since=since)]
    assert sum(pieces) > 20 * size
    assert max(pieces) < BUFFER_BYTES + 2 * size


@in_virtual_time
async def test_a_closed_watch_is_removed() -> None:
    api = await Api.start()
    await api.create(CONFIG_MAP, config("a"))
    chunks = api.chunks(CONFIG_MAP, seconds=100)
    await anext(chunks)
    assert len(api.server.context.watch_broadcaster) == 1
    await chunks.aclose()
    assert len(api.server.context.watch_broadcaster) == 0


# ---- compacted history ---------------------------------------------------------------------------


@in_virtual_time
async def test_a_watch_from_before_the_history_expires() -> None:
    api = await Api.start()
    await api.create(CONFIG_MAP, config("a"), config("b"))
    api.store.compact(api.store.revision - 1)
    begin = asyncio.get_running_loop().time()
    (only,) = await api.watch(CONFIG_MAP, seconds=100, since=1)
    assert only.type == "ERROR"
    status = only.object
    assert (status["kind"], status["code"], status["reason"]) == ("Status", 410, "Expired")
    assert asyncio.get_running_loop().time() == begin


@in_virtual_time
async def test_a_watch_from_the_last_revision_of_the_history_continues() -> None:
    api = await Api.start()
    await api.create(CONFIG_MAP, config("a"), config("b"))
    api.store.compact(api.store.revision - 1)
    at = api.store.revision - 1
    assert summaries(await api.watch(CONFIG_MAP, since=at)) == ["ADDED b"]


@in_virtual_time
async def test_a_slow_reader_whose_position_is_compacted_expires() -> None:
    api = await Api.start()
    go_on = asyncio.Event()
    reading = asyncio.ensure_future(read_slowly(api, api.store.revision, go_on))
    await asyncio.sleep(0)
    await api.create(CONFIG_MAP, config("big"))
    await asyncio.sleep(0.1)
    for number in range(10):
        await api.patch(CONFIG_MAP, "big", {"data": {"d": f"{number:>300000}"}})
    api.store.compact(api.store.revision)
    go_on.set()
    found = await reading
    assert summaries(found)[0] == "ADDED big"
    assert (found[-1].type, found[-1].object["code"]) == ("ERROR", 410)


# ---- timing --------------------------------------------------------------------------------------


async def timed_chunks(
    api: Api, since: int, query: dict[str, str]
) -> list[tuple[float, list[WatchEvent]]]:
    """The chunks of a watch, each with the seconds after which it came."""
    loop, pieces = (
        asyncio.get_running_loop(),
        api.chunks(CONFIG_MAP, query, since=since, seconds=100),
    )
    begin = loop.time()
    return [(loop.time() - begin, events(piece)) async for piece in pieces]


@in_virtual_time
async def test_the_first_change_is_sent_at_once_and_the_following_ones_together() -> None:
    api = await Api.start()
    await asyncio.sleep(1)
    watching = asyncio.ensure_future(timed_chunks(api, api.store.revision, {}))
    await asyncio.sleep(1)
    await api.create(CONFIG_MAP, config("a"))
    for name in "bcd":
        await asyncio.sleep(DISPATCH_INTERVAL / 5)
        await api.create(CONFIG_MAP, config(name))
    await asyncio.sleep(1)
    await api.create(CONFIG_MAP, config("e"))
    (first, one), (second, several), (third, last) = await watching
    assert [summaries(found) for found in (one, several, last)] == [
        ["ADDED a"], ["ADDED b", "ADDED c", "ADDED d"], ["ADDED e"],
    ]  # fmt: skip
    assert [first, second] == pytest.approx([1, 1 + DISPATCH_INTERVAL])
    assert third == pytest.approx(2 + 3 * DISPATCH_INTERVAL / 5)


@in_virtual_time
async def test_a_bookmark_does_not_pass_undispatched_changes() -> None:
    api = await Api.start()
    await asyncio.sleep(1)
    watching = asyncio.ensure_future(timed_chunks(api, api.store.revision, MARKED))
    await asyncio.sleep(BOOKMARK_INTERVAL - DISPATCH_INTERVAL / 2)
    (made,) = await api.create(POD, pod("x"))
    await asyncio.sleep(DISPATCH_INTERVAL / 4)
    await api.create(CONFIG_MAP, config("a"))
    (first, (mark,)), (second, (news,)), *_ = await watching
    assert (str(mark), mark.revision) == ("BOOKMARK ", revision(made))
    assert (str(news), news.revision) == ("ADDED a", revision(made) + 1)
    assert [first, second] == pytest.approx(
        [BOOKMARK_INTERVAL, BOOKMARK_INTERVAL + DISPATCH_INTERVAL / 2]
    )


@in_virtual_time
async def test_every_event_delays_the_next_bookmark() -> None:
    api = await Api.start()
    await asyncio.sleep(1)
    watching = asyncio.ensure_future(timed_chunks(api, api.store.revision, MARKED))
    await asyncio.sleep(35)
    await api.create(CONFIG_MAP, config("a"))
    (first, news), (second, mark), *_ = await watching
    assert [summaries(news), summaries(mark)] == [["ADDED a"], ["BOOKMARK "]]
    assert [first, second] == pytest.approx([35, 35 + BOOKMARK_INTERVAL])


# ---- Tables and metadata -------------------------------------------------------------------------


@in_virtual_time
async def test_kubectl_watches_tables() -> None:
    api = await Api.start()
    await api.create(POD, pod("a"))
    watching = asyncio.ensure_future(api.watch(POD, accept=TABLE))
    await asyncio.sleep(0)
    await api.bind("a", "n1")
    await api.delete(POD, "a", {"gracePeriodSeconds": 0})
    found = await watching
    assert summaries(found) == ["ADDED a", "MODIFIED a", "DELETED a"]
    table = found[0].object
    assert (table["kind"], table["rows"][0]["cells"][:3]) == ("Table", ["a", "0/1", "Pending"])
    assert [column["name"] for column in table["columnDefinitions"]][:2] == ["Name", "Ready"]


@in_virtual_time
async def test_metadata_only_can_be_watched() -> None:
    api = await Api.start()
    await api.create(CONFIG_MAP, config("a", "secret"))
    accept = "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io"
    (event,) = await api.watch(CONFIG_MAP, accept=accept)
    assert (event.object["kind"], str(event)) == ("PartialObjectMetadata", "ADDED a")
    assert "data" not in event.object


# ---- properties ----------------------------------------------------------------------------------

COLORS = ("red", "blue")
acts = st.lists(
    st.tuples(st.sampled_from(("make", "change", "delete")), st.sampled_from("abc"),
              st.sampled_from(COLORS)),
    max_size=15,
)  # fmt: skip


async def play(api: Api, acts: list[tuple[str, str, str]]) -> None:
    for what, name, color in acts:
        match what:
            case "make":
                await api.ask("POST", CONFIG_MAP.url_path("default"), config(name, color=color))
            case "change":
                change = {"metadata": {"labels": {"color": color}}}
                await api.patch(CONFIG_MAP, name, change)
            case _:
                await api.delete(CONFIG_MAP, name)


async def states(api: Api, since: int, query: dict[str, str]) -> list[dict[str, Object]]:
    """The list at each revision since one."""
    found = []
    for at in range(since, api.store.revision + 1):
        exact = {"resourceVersion": at, "resourceVersionMatch": "Exact", **query}
        listing = await api.list_default(CONFIG_MAP, exact)
        found.append({item["metadata"]["name"]: item for item in listing["items"]})
    return found


def differences(states: list[dict[str, Object]]) -> list[str]:
    """The events that a watch must send between consecutive states."""
    found = []
    for before, after in pairwise(states):
        for name in sorted({*before, *after}):
            if name not in after:
                found.append(f"DELETED {name}")
            elif name not in before:
                found.append(f"ADDED {name}")
            elif before[name] != after[name]:
                found.append(f"MODIFIED {name}")
    return found


@share_of_examples(0.6)
@given(acts, acts, st.sampled_from(({}, RED)), st.data())
@in_virtual_time
async def test_an_interrupted_watch_sends_the_difference_of_lists(
    first: list[tuple[str, str, str]],
    second: list[tuple[str, str, str]],
    query: dict[str, str],
    data: st.DataObject,
) -> None:
    api = await Api.start()
    since = api.store.revision
    await play(api, first)
    watching = asyncio.ensure_future(api.watch(CONFIG_MAP, query, since=since))
    await asyncio.sleep(0)
    await play(api, second)
    found = await watching
    assert summaries(found) == differences(await states(api, since, query))
    assert len({event.revision for event in found}) == len(found)
    stop = data.draw(st.integers(since, api.store.revision), "stop")
    rest = await api.watch(CONFIG_MAP, query, since=stop)
    assert [event for event in found if event.revision <= stop] + rest == found
