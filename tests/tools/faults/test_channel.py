"""Every trouble that a request or a watch can get into, alone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import pytest

from phalanx.api.kinds import GROUP_BINDING, GROUP_EVICTION, POD
from phalanx.api.wire import Reply, Request, StreamReply
from phalanx.client.protocol import collection_request, retry_after
from phalanx.client.transports import Unreachable
from phalanx.randomness import SeededRandom
from tests.builders import in_virtual_time
from tools.faults.channel import DELAY, FaultyChannel, RequestFault

BIND = Request("POST", GROUP_BINDING.url_path("default"))
READ = Request("GET", POD.url_path("default", "p"))
WATCH = collection_request("watch", POD, {}, {})


class Server:
    """Notes when what arrives, and shows a chunk a second to whoever watches."""

    def __init__(self) -> None:
        self.arrived: list[tuple[float, str]] = []

    async def send(self, request: Request) -> Reply | StreamReply:
        await asyncio.sleep(0.001)
        self.arrived.append((round(asyncio.get_running_loop().time(), 2), request.method))
        return StreamReply(200, self._chunks()) if request == WATCH else Reply(201, b"{}")

    async def close(self) -> None:
        """Nothing is held."""

    async def _chunks(self) -> AsyncGenerator[bytes, None]:
        for number in range(1, 100):
            await asyncio.sleep(1.0)
            yield b"%d" % number


def channel() -> tuple[FaultyChannel, Server]:
    server = Server()
    return FaultyChannel(server, SeededRandom(1)), server


async def heard(way: FaultyChannel, seconds: float) -> list[tuple[float, bytes]]:
    """What comes out of a watch, and when, for a while."""
    stream, loop = await way.send(WATCH), asyncio.get_running_loop()
    assert isinstance(stream, StreamReply)
    found: list[tuple[float, bytes]] = []

    def note(chunk: bytes) -> None:
        found.append((round(loop.time(), 1), chunk))

    async def listen() -> None:
        async for chunk in stream.chunks:
            note(chunk)

    try:
        await asyncio.wait_for(listen(), seconds)
    except TimeoutError:
        await stream.chunks.aclose()
    return found


@in_virtual_time
async def test_without_trouble_everything_arrives_and_is_answered() -> None:
    way, server = channel()
    assert isinstance(await way.send(BIND), Reply)
    assert isinstance(await way.send(READ), Reply)
    assert [method for _, method in server.arrived] == ["POST", "GET"]


@pytest.mark.parametrize(
    ("trouble", "arrives"),
    [(RequestFault.LOST, False), (RequestFault.UNANSWERED, True), (RequestFault.LATE, False)],
)
@in_virtual_time
async def test_who_hears_nothing_cannot_know_whether_it_was_done(
    trouble: RequestFault, arrives: bool
) -> None:
    way, server = channel()
    way.fail_binds((trouble,))
    with pytest.raises(Unreachable):
        await way.send(BIND)
    assert bool(server.arrived) is arrives
    await way.close()
    assert len(server.arrived) == (trouble is not RequestFault.LOST)


@in_virtual_time
async def test_what_happens_to_evictions_happens_to_nothing_else() -> None:
    way, server = channel()
    way.fail_evictions((RequestFault.LOST,))
    assert isinstance(await way.send(BIND), Reply)
    evict = Request("POST", GROUP_EVICTION.url_path("default"))
    with pytest.raises(Unreachable):
        await way.send(evict)
    assert isinstance(await way.send(evict), Reply)
    assert len(server.arrived) == 2


@in_virtual_time
async def test_what_is_late_arrives_when_nobody_counts_on_it_any_more() -> None:
    way, server = channel()
    way.fail_binds((RequestFault.LATE,))
    with pytest.raises(Unreachable):
        await way.send(BIND)
    await asyncio.sleep(DELAY[1] + 1)
    ((time, _),) = server.arrived
    assert DELAY[0] <= time <= DELAY[1] + 0.01


@in_virtual_time
async def test_a_busy_or_failing_server_says_so_and_does_nothing() -> None:
    way, server = channel()
    way.fail_binds((RequestFault.FAILED, RequestFault.BUSY))
    failed, busy = await way.send(BIND), await way.send(BIND)
    assert isinstance(failed, Reply)
    assert isinstance(busy, Reply)
    assert (failed.code, busy.code, server.arrived) == (500, 429, [])
    assert retry_after(busy) in (None, 1.0, 2.0)


@in_virtual_time
async def test_what_was_sent_is_done_even_if_the_sender_dies() -> None:
    way, server = channel()
    sending = asyncio.create_task(way.send(BIND))
    await asyncio.sleep(0)
    sending.cancel()
    await asyncio.wait([sending])
    await way.close()
    assert sending.cancelled()
    assert len(server.arrived) == 1


@in_virtual_time
async def test_bad_weather_spoils_a_share_of_everything_and_passes() -> None:
    way, _ = channel()
    way.fail_requests(until=1.0, share=0.5, faults=(RequestFault.LOST,))
    lost = 0
    for _ in range(100):
        try:
            await way.send(READ)
        except Unreachable:
            lost += 1
    assert 30 < lost < 70
    await asyncio.sleep(1.0)
    for _ in range(20):
        await way.send(READ)


@in_virtual_time
async def test_a_watch_that_lags_is_late_and_in_order() -> None:
    way, _ = channel()
    way.lag = 2.5
    assert await heard(way, 5.2) == [(3.5, b"1"), (4.5, b"2")]
    way.lag = 0.0
    assert [chunk for _, chunk in await heard(way, 2.1)] == [b"1", b"2"]


@in_virtual_time
async def test_a_watch_that_is_cut_ends_and_loses_what_was_on_its_way() -> None:
    way, _ = channel()
    way.lag = 1.5
    asyncio.get_running_loop().call_later(3.2, way.break_watches)
    assert await heard(way, 10.0) == [(2.5, b"1"), (3.5, b"2")]


@in_virtual_time
async def test_a_watch_that_stutters_tells_everything_twice() -> None:
    way, _ = channel()
    way.duplicates_events = True
    assert [chunk for _, chunk in await heard(way, 2.1)] == [b"1", b"1", b"2", b"2"]


@in_virtual_time
async def test_once_healed_nothing_goes_wrong() -> None:
    way, server = channel()
    way.fail_binds((RequestFault.LOST,))
    way.fail_requests(until=9.0, share=1.0, faults=(RequestFault.LOST,))
    way.heal()
    assert isinstance(await way.send(BIND), Reply)
    assert len(server.arrived) == 1
