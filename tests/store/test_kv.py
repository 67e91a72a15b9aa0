"""The contract of a store, tested with every implementation."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from phalanx.store.kv import (
    KeyValue,
    RevisionCompacted,
    RevisionConflict,
    Store,
    StoreChange,
    StoreWrite,
)
from tests.builders import in_virtual_time
from tests.store.conftest import Make
from tests.store.writes import (
    delete,
    describe_changes,
    describe_record,
    describe_records,
    everything,
    put,
    written,
)

#: Seconds that a commit takes where a test looks at what is not committed yet.
SLOW = 1.0


def at_once() -> float:
    return 0.0


def slowly() -> float:
    return SLOW


async def a_history(store: Store) -> None:
    """The one that the protocol's own description draws."""
    await written(store, [put("/a", "x")], [put("/b", "x")], [put("/b", "y", 2)])
    await written(store, [put("/a", "y", 1)], [delete("/a", 4)])


# ---- transactions --------------------------------------------------------------------------------


@in_virtual_time
async def test_an_empty_store_has_revision_zero_and_nothing_in_it(make: Make) -> None:
    store = make(at_once)
    assert (store.revision, everything(store), list(store.changes(0))) == (0, [], [])
    assert store.get("/a") is store.pending("/a") is None


@in_virtual_time
async def test_writes_of_one_transaction_have_consecutive_revisions(make: Make) -> None:
    store = make(at_once)
    await written(store, [put("/a", "x")])
    changes = await store.commit([put("/b", "x"), put("/c", "x"), delete("/a", 1)])
    assert [change.revision for change in changes] == [2, 3, 4]
    assert store.revision == 4
    assert everything(store) == ["/b x@2", "/c x@3"]


@in_virtual_time
async def test_commit_returns_old_and_new_values(make: Make) -> None:
    store = make(at_once)
    await store.commit([put("/a", "x")])
    changes = await store.commit([put("/a", "y", 1), put("/b", "x")])
    assert describe_changes(changes) == ["2: /a x@1 -> /a y@2", "3: - -> /b x@3"]
    assert describe_changes(await store.commit([delete("/a", 2)])) == ["4: /a y@2 -> -"]


@in_virtual_time
async def test_create_revision_is_kept_until_the_key_is_deleted(make: Make) -> None:
    store = make(at_once)
    await written(store, [put("/a", "x")], [put("/a", "y", 1)])
    assert store.get("/a") == KeyValue("/a", b"y@2", 2, created=1)
    await written(store, [delete("/a", 2)], [put("/a", "z")])
    assert store.get("/a") == KeyValue("/a", b"z@4", 4, created=4)


@pytest.mark.parametrize(
    ("wrong", "found"),
    [
        (put("/a", "y"), 1),
        (put("/a", "y", 7), 1),
        (delete("/a", 7), 1),
        (put("/new", "y", 1), 0),
        (delete("/new", 1), 0),
    ],
    ids=["is there already", "is another", "to delete is another", "is missing", "to delete"],
)
@in_virtual_time
async def test_transaction_with_one_conflict_writes_nothing(
    make: Make, wrong: StoreWrite, found: int
) -> None:
    store = make(at_once)
    await store.commit([put("/a", "x")])
    with pytest.raises(RevisionConflict) as caught:
        await store.commit([put("/b", "x"), wrong, put("/c", "x")])
    assert (caught.value.key, caught.value.found) == (wrong.key, found)
    assert (store.revision, everything(store)) == (1, ["/a x@1"])
    assert [store.pending(key) for key in ("/b", "/c", "/new")] == [None, None, None]
    assert describe_changes(await store.commit([put("/b", "x")])) == ["2: - -> /b x@2"]


@in_virtual_time
async def test_one_of_two_writers_with_the_same_revision_wins(make: Make) -> None:
    store = make(slowly)
    await store.commit([put("/a", "x")])
    outcomes = await asyncio.gather(
        *(store.commit([put("/a", name, 1)]) for name in "yzw"), return_exceptions=True
    )
    assert [isinstance(outcome, RevisionConflict) for outcome in outcomes] == [False, True, True]
    assert everything(store) == ["/a y@2"]


@in_virtual_time
async def test_failed_encoding_leaves_the_store_unchanged(make: Make) -> None:
    store = make(at_once)

    def unsayable(revision: int) -> bytes:
        raise TypeError

    bad = put("/b", "x")._replace(encode=unsayable)
    with pytest.raises(TypeError):
        await store.commit([put("/a", "x"), bad])
    assert (store.pending("/a"), store.pending("/b")) == (None, None)
    assert describe_changes(await store.commit([put("/a", "x")])) == ["1: - -> /a x@1"]
    assert describe_changes(store.changes(0)) == ["1: - -> /a x@1"]


# ---- what is on its way and what is committed ----------------------------------------------------


@in_virtual_time
async def test_write_is_pending_at_once_and_visible_after_commit(make: Make) -> None:
    store = make(slowly)
    seen: list[StoreChange] = []
    store.subscribe(seen.extend)
    writing = asyncio.ensure_future(store.commit([put("/a", "x")]))
    await asyncio.sleep(SLOW / 2)
    assert describe_record(store.pending("/a")) == "/a x@1"
    assert (store.revision, store.get("/a"), everything(store), seen) == (0, None, [], [])
    assert list(store.changes(0)) == []
    await writing
    assert (store.revision, everything(store)) == (1, ["/a x@1"])
    assert describe_changes(seen) == describe_changes(store.changes(0)) == ["1: - -> /a x@1"]


@in_virtual_time
async def test_pending_range_contains_uncommitted_writes(make: Make) -> None:
    store = make(slowly)
    await store.commit([put("/a/1", "x"), put("/a/3", "x"), put("/b/1", "x")])
    assert describe_records(store.pending_range("/a/")) == ["/a/1 x@1", "/a/3 x@2"]
    writes = [put("/a/2", "x"), delete("/a/3", 2), put("/a/1", "y", 1), delete("/b/1", 3)]
    writing = asyncio.ensure_future(store.commit(writes))
    await asyncio.sleep(SLOW / 2)
    assert describe_records(store.pending_range("/a/")) == ["/a/1 y@6", "/a/2 x@4"]
    assert describe_records(store.range("/a/")) == ["/a/1 x@1", "/a/3 x@2"]
    await writing
    assert describe_records(store.pending_range("/a/")) == describe_records(store.range("/a/"))


@in_virtual_time
async def test_compare_and_swap_sees_uncommitted_writes(make: Make) -> None:
    store = make(slowly)
    first = asyncio.ensure_future(store.commit([put("/a", "x")]))
    await asyncio.sleep(0)
    second = asyncio.ensure_future(store.commit([put("/a", "y", 1)]))
    await asyncio.sleep(0)
    third = asyncio.ensure_future(store.commit([delete("/a", 2)]))
    await asyncio.sleep(0)
    assert store.pending("/a") is None
    with pytest.raises(RevisionConflict):
        await store.commit([put("/a", "z", 2)])
    await asyncio.gather(first, second, third)
    assert describe_changes(store.changes(0)) == [
        "1: - -> /a x@1",
        "2: /a x@1 -> /a y@2",
        "3: /a y@2 -> -",
    ]


@in_virtual_time
async def test_empty_commit_waits_for_earlier_commits(make: Make) -> None:
    store = make(slowly)
    writing = asyncio.ensure_future(store.commit([put("/a", "x")]))
    await asyncio.sleep(0)
    assert await store.commit(()) == []
    assert (store.revision, everything(store)) == (1, ["/a x@1"])
    await writing


@in_virtual_time
async def test_empty_commit_changes_nothing_and_notifies_no_subscriber(make: Make) -> None:
    store = make(at_once)
    deliveries: list[Sequence[StoreChange]] = []
    store.subscribe(deliveries.append)
    assert await store.commit(()) == []
    assert (store.revision, deliveries) == (0, [])


@in_virtual_time
async def test_cancelled_commit_is_still_written(make: Make) -> None:
    store = make(slowly)
    writing = asyncio.ensure_future(store.commit([put("/a", "x"), put("/b", "x")]))
    await asyncio.sleep(SLOW / 2)
    writing.cancel()
    await asyncio.gather(writing, return_exceptions=True)
    assert writing.cancelled()
    await store.commit(())
    assert everything(store) == ["/a x@1", "/b x@2"]


@in_virtual_time
async def test_close_commits_pending_transactions(make: Make) -> None:
    store = make(slowly)
    writing = asyncio.ensure_future(store.commit([put("/a", "x")]))
    await asyncio.sleep(0)
    await store.close()
    assert everything(store) == ["/a x@1"]
    assert describe_changes(await writing) == ["1: - -> /a x@1"]


# ---- the past ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("at", "there"),
    [
        (1, ["/a x@1"]),
        (2, ["/a x@1", "/b x@2"]),
        (3, ["/a x@1", "/b y@3"]),
        (4, ["/a y@4", "/b y@3"]),
        (5, ["/b y@3"]),
        (0, ["/b y@3"]),
    ],
)
@in_virtual_time
async def test_range_reads_any_past_revision(make: Make, at: int, there: list[str]) -> None:
    store = make(at_once)
    await a_history(store)
    assert everything(store, at) == there


@pytest.mark.parametrize("at", [0, 6])
@in_virtual_time
async def test_range_is_ordered_by_key_and_paged(make: Make, at: int) -> None:
    store = make(at_once)
    keys = ["/p/c", "/p/a", "/p", "/q/a", "/p/b", "/pp/a"]
    await store.commit([put(key, "x") for key in keys])
    await store.commit([put("/p/b", "y", 5), put("/p/d", "y")])
    newest = not at

    def page(**options: object) -> list[str]:
        found = store.range("/p/", at=at, **options)  # type: ignore[arg-type]
        return [record.key for record in found]

    everyone = ["/p/a", "/p/b", "/p/c", "/p/d"][: None if newest else 3]
    assert page() == everyone
    assert page(limit=2) == ["/p/a", "/p/b"]
    assert page(after="/p/b", limit=1) == ["/p/c"]
    assert page(after="/p/aa") == everyone[1:]
    assert page(after="/p/z") == []
    assert describe_records(store.range("/p/b", at=at)) == [f"/p/b {'y@7' if newest else 'x@5'}"]


@in_virtual_time
async def test_range_between_delete_and_recreate_lacks_the_key(make: Make) -> None:
    store = make(at_once)
    await written(store, [put("/a", "x")], [delete("/a", 1)], [put("/a", "y")], [delete("/a", 3)])
    states = [everything(store, at) for at in (1, 2, 3, 4)]
    assert states == [["/a x@1"], [], ["/a y@3"], []]


@in_virtual_time
async def test_changes_start_at_any_revision_and_filter_by_prefix(make: Make) -> None:
    store = make(at_once)
    await a_history(store)
    assert describe_changes(store.changes(3)) == ["4: /a x@1 -> /a y@4", "5: /a y@4 -> -"]
    assert describe_changes(store.changes(0, "/b")) == ["2: - -> /b x@2", "3: /b x@2 -> /b y@3"]
    assert [change.revision for change in store.changes(0)] == [1, 2, 3, 4, 5]
    assert list(store.changes(5)) == []


# ---- followers -----------------------------------------------------------------------------------


@in_virtual_time
async def test_subscribers_get_whole_transactions_in_order(make: Make) -> None:
    store = make(slowly)
    deliveries: list[Sequence[StoreChange]] = []
    seen_then: list[int] = []
    store.subscribe(deliveries.append)
    store.subscribe(lambda changes: seen_then.append(store.revision - changes[-1].revision))
    transactions = [[put(f"/{n}/{part}", "x") for part in range(n)] for n in range(1, 6)]
    committed = await asyncio.gather(*(store.commit(writes) for writes in transactions))
    heard = [change for delivery in deliveries for change in delivery]
    assert heard == [change for changes in committed for change in changes]
    for changes in committed:
        assert sum(set(changes) <= set(delivery) for delivery in deliveries) == 1
    assert set(seen_then) == {0}


@in_virtual_time
async def test_unsubscribed_callback_is_not_called(make: Make) -> None:
    store = make(at_once)
    heard: list[StoreChange] = []
    stop = store.subscribe(heard.extend)
    await store.commit([put("/a", "x")])
    stop()
    await store.commit([put("/b", "x")])
    assert describe_changes(heard) == ["1: - -> /a x@1"]


@in_virtual_time
async def test_subscriber_may_unsubscribe_during_delivery(make: Make) -> None:
    store = make(at_once)
    heard: list[int] = []
    stops = [store.subscribe(lambda changes: stops[0]())]
    store.subscribe(lambda changes: heard.append(len(changes)))
    await written(store, [put("/a", "x")], [put("/b", "x")])
    assert heard == [1, 1]


# ---- compaction ----------------------------------------------------------------------------------


@in_virtual_time
async def test_compaction_discards_history_and_keeps_current_values(make: Make) -> None:
    store = make(at_once)
    await a_history(store)
    store.compact(3)
    assert (store.revision, everything(store)) == (5, ["/b y@3"])
    assert everything(store, 3) == ["/a x@1", "/b y@3"]
    assert everything(store, 4) == ["/a y@4", "/b y@3"]
    assert describe_changes(store.changes(3)) == ["4: /a x@1 -> /a y@4", "5: /a y@4 -> -"]


@pytest.mark.parametrize("gone", [0, 1, 2])
@in_virtual_time
async def test_reads_before_the_compacted_revision_raise_with_it(make: Make, gone: int) -> None:
    store = make(at_once)
    await a_history(store)
    store.compact(3)
    with pytest.raises(RevisionCompacted) as caught:
        list(store.changes(gone))
    assert caught.value.compacted_revision == 3
    if gone:
        with pytest.raises(RevisionCompacted):
            everything(store, gone)


@in_virtual_time
async def test_compaction_of_all_history_keeps_current_values(make: Make) -> None:
    store = make(at_once)
    await a_history(store)
    store.compact(5)
    assert everything(store) == everything(store, 5) == ["/b y@3"]
    assert list(store.changes(5)) == []
    await store.commit([put("/a", "z")])
    assert describe_changes(store.changes(5)) == ["6: - -> /a z@6"]
    assert everything(store, 5) == ["/b y@3"]


@in_virtual_time
async def test_compacted_revision_never_decreases(make: Make) -> None:
    store = make(at_once)
    await a_history(store)
    store.compact(4)
    store.compact(2)
    with pytest.raises(RevisionCompacted):
        list(store.changes(3))
    assert [change.revision for change in store.changes(4)] == [5]
