"""Events are deleted after their TTL, by the clock of the server."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from phalanx.api.kinds import CONFIG_MAP, EVENT, EVENTS_EVENT
from phalanx.api.wire import Object
from phalanx.clock import LoopClock
from phalanx.randomness import SeededRandom
from phalanx.server.app import Server
from phalanx.server.event_expiry import EVENT_TTL
from phalanx.store.kv import Store, StoreChange
from phalanx.store.memory import MemoryStore
from tests.builders import in_virtual_time
from tests.server.api import EPOCH, Api, names

MINUTE, HOUR = 60.0, 3600.0


def event(name: str) -> Object:
    return {
        "metadata": {"name": name, "namespace": "default"},
        "involvedObject": {"kind": "Pod", "namespace": "default", "name": "a"},
        "reason": "Scheduled",
    }


async def stored(api: Api) -> list[str]:
    return names(await api.list_default(EVENT))


class RestartedApi(Api):
    """A server over the store of another one, with a clock that continues."""

    def __init__(self, store: Store, ttl: float = EVENT_TTL) -> None:
        assert isinstance(store, MemoryStore)
        self.store = store
        clock = LoopClock(asyncio.get_running_loop(), EPOCH)
        self.server = Server(store, clock, SeededRandom(1), event_ttl=ttl)


# ---- when ----------------------------------------------------------------------------------------


@in_virtual_time
async def test_event_is_deleted_an_hour_after_its_creation() -> None:
    api = await Api.start()
    await api.create(EVENT, event("a"))
    await asyncio.sleep(30 * MINUTE)
    await api.create(EVENT, event("b"))
    await asyncio.sleep(30 * MINUTE - 1)
    assert await stored(api) == ["a", "b"]
    await asyncio.sleep(3)
    assert await stored(api) == ["b"]
    await asyncio.sleep(30 * MINUTE)
    assert await stored(api) == []


@in_virtual_time
async def test_every_write_renews_an_event() -> None:
    api = await Api.start()
    await api.create(EVENT, event("a"), event("b"))
    await asyncio.sleep(40 * MINUTE)
    await api.patch(EVENT, "a", {"count": 2})
    await asyncio.sleep(40 * MINUTE)
    assert await stored(api) == ["a"]
    await asyncio.sleep(40 * MINUTE)
    assert await stored(api) == []


@in_virtual_time
async def test_write_in_the_second_of_expiry_renews_an_event() -> None:
    api = await Api.start(latency=lambda: 2.0)
    await api.create(EVENT, event("a"))
    await asyncio.sleep(HOUR - 0.5)
    # Committed two seconds later: the event expires while the write is on its way.
    assert (await api.patch(EVENT, "a", {"count": 2})).code == 200
    await asyncio.sleep(30 * MINUTE)
    assert await stored(api) == ["a"]
    await asyncio.sleep(HOUR)
    assert await stored(api) == []


@in_virtual_time
async def test_events_of_both_api_groups_expire_and_other_objects_stay() -> None:
    api = await Api.start()
    await api.create(CONFIG_MAP, {"metadata": {"name": "kept", "namespace": "default"}})
    answer = await api.ask(
        "POST",
        EVENTS_EVENT.url_path("default"),
        {
            "metadata": {"name": "a", "namespace": "default"},
            "eventTime": "2027-01-15T08:00:00.000000Z",
            "reportingController": "test",
            "reportingInstance": "test-0",
            "action": "Binding",
            "reason": "Scheduled",
            "type": "Normal",
            "regarding": {"kind": "Pod", "namespace": "default", "name": "a"},
        },
    )
    assert answer.code == 201, answer.body
    await asyncio.sleep(HOUR + 2)
    assert names(await api.list_default(EVENTS_EVENT)) == []
    assert names(await api.list_default(CONFIG_MAP)) == ["kept"]


@pytest.mark.parametrize(("ttl", "left"), [(0, ["a"]), (300, [])], ids=["never", "5m"])
@in_virtual_time
async def test_ttl_can_be_chosen(ttl: float, left: list[str]) -> None:
    api = RestartedApi(MemoryStore(), ttl)
    await api.server.start()
    await api.create(EVENT, event("a"))
    await asyncio.sleep(302)
    assert await stored(api) == left
    await asyncio.sleep(48 * HOUR)
    assert await stored(api) == left


@in_virtual_time
async def test_restart_neither_renews_nor_forgets_events() -> None:
    first = await Api.start()
    await first.create(EVENT, event("a"), event("b"), event("c"))
    await asyncio.sleep(20 * MINUTE)
    await first.patch(EVENT, "b", {"count": 2})
    await first.delete(EVENT, "c")
    await asyncio.sleep(20 * MINUTE)
    # The first server is asleep: the second one alone must expire its events.
    second = RestartedApi(MemoryStoreCopy(first.store))
    await second.server.start()
    await asyncio.sleep(20 * MINUTE + 2)
    assert await stored(second) == ["b"]
    await asyncio.sleep(20 * MINUTE)
    assert await stored(second) == []


@in_virtual_time
async def test_write_times_of_clients_in_the_future_delay_no_expiry() -> None:
    first = await Api.start()
    entry = {
        "manager": "client",
        "operation": "Update",
        "apiVersion": "v1",
        "time": "2999-01-01T00:00:00Z",
        "fieldsType": "FieldsV1",
        "fieldsV1": {"f:reason": {}},
    }
    for name in "abc":
        await first.create(EVENT, event(name))
        changed = event(name)
        changed["metadata"]["managedFields"] = [entry]
        path = EVENT.url_path("default", name)
        written = (await first.ask("PUT", path, changed)).body["metadata"]["managedFields"]
        assert [one["time"] for one in written] == [entry["time"]]
    await first.create(EVENT, event("d"))
    second = RestartedApi(MemoryStoreCopy(first.store))
    await second.server.start()
    await asyncio.sleep(HOUR + 2)
    assert await stored(second) == []


class MemoryStoreCopy(MemoryStore):
    """A store with the same records as another one, as if it were read from disk."""

    def __init__(self, other: MemoryStore) -> None:
        super().__init__()
        for change in other.changes(0):
            self._data.apply(change)
        self._last_assigned = other.revision


# ---- how -----------------------------------------------------------------------------------------


@in_virtual_time
async def test_watchers_see_expired_events_as_deleted() -> None:
    api = await Api.start()
    await api.create(EVENT, event("a"))
    last = await api.get(EVENT, "a")
    (seen,) = await api.watch(EVENT, since=api.store.revision, seconds=int(HOUR) + 2)
    assert str(seen) == "DELETED a"
    assert int(seen.object["metadata"]["resourceVersion"]) > int(
        last["metadata"]["resourceVersion"]
    )


@in_virtual_time
async def test_many_events_expire_in_batches() -> None:
    api = await Api.start()
    await asyncio.gather(*(api.create(EVENT, event(f"e{n}")) for n in range(1200)))
    batches: list[int] = []

    def observe(changes: Sequence[StoreChange]) -> None:
        batches.append(len(changes))

    api.store.subscribe(observe)
    await asyncio.sleep(HOUR + 5)
    assert await stored(api) == []
    assert sum(batches) == 1200
    assert max(batches) <= 250
