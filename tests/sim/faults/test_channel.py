"""Every trouble that a request or a watch can get into, alone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import pytest

from phalanx.api.kinds import GROUP_BINDING, GROUP_EVICTION, POD
from phalanx.api.wire import Reply, Request, Stream
from phalanx.chance import SeededChance
from phalanx.client.answers import wait_asked_for
from phalanx.client.requests import collection
from phalanx.client.transports import Unreachable
from phalanx.sim.faults.channel import LATE, Channel, Trouble
from tests.builders import in_virtual_time

BIND = Request("POST", GROUP_BINDING.path("default"))
READ = Request("GET", POD.path("default", "p"))
WATCH = collection("watch", POD, {}, {})


class Server:
    """Notes when what arrives, and shows a chunk a second to whoever watches."""

    def __init__(self) -> None:
        self.arrived: list[tuple[float, str]] = []

    async def send(self, request: Request) -> Reply | Stream:
        await asyncio.sleep(0.001)
        self.arrived.append((round(asyncio.get_running_loop().time(), 2), request.method))
        return Stream(200, self._chunks()) if request == WATCH else Reply(201, b"{}")

    async def close(self) -> None:
        """Nothing is held."""

    async def _chunks(self) -> AsyncGenerator[bytes, None]:
        for number in range(1, 100):
            await asyncio.sleep(1.0)
            yield b"%d" % number


def channel() -> tuple[Channel, Server]:
    server = Server()
    return Channel(server, SeededChance(1)), server


async def heard(way: Channel, seconds: float) -> list[tuple[float, bytes]]:
    """What comes out of a watch, and when, for a while."""
    stream, loop = await way.send(WATCH), asyncio.get_running_loop()
    assert isinstance(stream, Stream)
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
    [(Trouble.LOST, False), (Trouble.UNANSWERED, True), (Trouble.LATE, False)],
)
@in_virtual_time
async def test_who_hears_nothing_cannot_know_whether_it_was_done(
    trouble: Trouble, arrives: bool
) -> None:
    way, server = channel()
    way.spoil_binds((trouble,))
    with pytest.raises(Unreachable):
        await way.send(BIND)
    assert bool(server.arrived) is arrives
    await way.close()
    assert len(server.arrived) == (trouble is not Trouble.LOST)


@in_virtual_time
async def test_what_happens_to_evictions_happens_to_nothing_else() -> None:
    way, server = channel()
    way.spoil_evictions((Trouble.LOST,))
    assert isinstance(await way.send(BIND), Reply)
    evict = Request("POST", GROUP_EVICTION.path("default"))
    with pytest.raises(Unreachable):
        await way.send(evict)
    assert isinstance(await way.send(evict), Reply)
    assert len(server.arrived) == 2


@in_virtual_time
async def test_what_is_late_arrives_when_nobody_counts_on_it_any_more() -> None:
    way, server = channel()
    way.spoil_binds((Trouble.LATE,))
    with pytest.raises(Unreachable):
        await way.send(BIND)
    await asyncio.sleep(LATE[1] + 1)
    ((time, _),) = server.arrived
    assert LATE[0] <= time <= LATE[1] + 0.01


@in_virtual_time
async def test_a_busy_or_failing_server_says_so_and_does_nothing() -> None:
    way, server = channel()
    way.spoil_binds((Trouble.FAILED, Trouble.BUSY))
    failed, busy = await way.send(BIND), await way.send(BIND)
    assert isinstance(failed, Reply)
    assert isinstance(busy, Reply)
    assert (failed.code, busy.code, server.arrived) == (500, 429, [])
    assert wait_asked_for(busy) in (None, 1.0, 2.0)


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
    way.spoil(until=1.0, share=0.5, troubles=(Trouble.LOST,))
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
    asyncio.get_running_loop().call_later(3.2, way.cut)
    assert await heard(way, 10.0) == [(2.5, b"1"), (3.5, b"2")]


@in_virtual_time
async def test_a_watch_that_stutters_tells_everything_twice() -> None:
    way, _ = channel()
    way.stutters = True
    assert [chunk for _, chunk in await heard(way, 2.1)] == [b"1", b"1", b"2", b"2"]


@in_virtual_time
async def test_once_healed_nothing_goes_wrong() -> None:
    way, server = channel()
    way.spoil_binds((Trouble.LOST,))
    way.spoil(until=9.0, share=1.0, troubles=(Trouble.LOST,))
    way.heal()
    assert isinstance(await way.send(BIND), Reply)
    assert len(server.arrived) == 1
