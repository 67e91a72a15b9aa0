"""Every fault of a request or a watch, one at a time."""

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
WATCH = collection_request("watch", POD, {}, query={})


class Server:
    """Records when requests arrive, and streams a chunk per second to watches."""

    def __init__(self) -> None:
        self.arrived: list[tuple[float, str]] = []

    async def send(self, request: Request) -> Reply | StreamReply:
        await asyncio.sleep(0.001)
        self.arrived.append((round(asyncio.get_running_loop().time(), 2), request.method))
        return StreamReply(200, self._chunks()) if request == WATCH else Reply(201, b"{}")

    async def close(self) -> None:
        """Do nothing: there is no connection."""

    async def _chunks(self) -> AsyncGenerator[bytes, None]:
        for number in range(1, 100):
            await asyncio.sleep(1.0)
            yield b"%d" % number


def create_channel() -> tuple[FaultyChannel, Server]:
    server = Server()
    return FaultyChannel(server, SeededRandom(1)), server


async def watch_chunks(channel: FaultyChannel, seconds: float) -> list[tuple[float, bytes]]:
    """Return the chunks of a watch with their times, for some seconds."""
    stream, loop = await channel.send(WATCH), asyncio.get_running_loop()
    assert isinstance(stream, StreamReply)
    received: list[tuple[float, bytes]] = []

    def record(chunk: bytes) -> None:
        received.append((round(loop.time(), 1), chunk))

    async def read_stream() -> None:
        async for chunk in stream.chunks:
            record(chunk)

    try:
        await asyncio.wait_for(read_stream(), seconds)
    except TimeoutError:
        await stream.chunks.aclose()
    return received


@in_virtual_time
async def test_channel_without_faults_delivers_requests_and_replies() -> None:
    channel, server = create_channel()
    assert isinstance(await channel.send(BIND), Reply)
    assert isinstance(await channel.send(READ), Reply)
    assert [method for _, method in server.arrived] == ["POST", "GET"]


@pytest.mark.parametrize(
    ("fault", "arrives"),
    [(RequestFault.LOST, False), (RequestFault.UNANSWERED, True), (RequestFault.LATE, False)],
)
@in_virtual_time
async def test_unanswered_request_may_or_may_not_have_been_served(
    fault: RequestFault, arrives: bool
) -> None:
    channel, server = create_channel()
    channel.fail_binds((fault,))
    with pytest.raises(Unreachable):
        await channel.send(BIND)
    assert bool(server.arrived) is arrives
    await channel.close()
    assert len(server.arrived) == (fault is not RequestFault.LOST)


@in_virtual_time
async def test_faults_of_evictions_affect_no_other_requests() -> None:
    channel, server = create_channel()
    channel.fail_evictions((RequestFault.LOST,))
    assert isinstance(await channel.send(BIND), Reply)
    evict = Request("POST", GROUP_EVICTION.url_path("default"))
    with pytest.raises(Unreachable):
        await channel.send(evict)
    assert isinstance(await channel.send(evict), Reply)
    assert len(server.arrived) == 2


@in_virtual_time
async def test_late_request_arrives_after_the_client_gave_up() -> None:
    channel, server = create_channel()
    channel.fail_binds((RequestFault.LATE,))
    with pytest.raises(Unreachable):
        await channel.send(BIND)
    await asyncio.sleep(DELAY[1] + 1)
    ((time, _),) = server.arrived
    assert DELAY[0] <= time <= DELAY[1] + 0.01


@in_virtual_time
async def test_busy_and_failing_replies_do_not_reach_the_server() -> None:
    channel, server = create_channel()
    channel.fail_binds((RequestFault.FAILED, RequestFault.BUSY))
    failed, busy = await channel.send(BIND), await channel.send(BIND)
    assert isinstance(failed, Reply)
    assert isinstance(busy, Reply)
    assert (failed.code, busy.code, server.arrived) == (500, 429, [])
    assert retry_after(busy) in (None, 1.0, 2.0)


@in_virtual_time
async def test_sent_request_is_served_although_its_sender_is_cancelled() -> None:
    channel, server = create_channel()
    sending = asyncio.create_task(channel.send(BIND))
    await asyncio.sleep(0)
    sending.cancel()
    await asyncio.wait([sending])
    await channel.close()
    assert sending.cancelled()
    assert len(server.arrived) == 1


@in_virtual_time
async def test_share_of_requests_fails_until_the_fault_ends() -> None:
    channel, _ = create_channel()
    channel.fail_requests(until=1.0, share=0.5, faults=(RequestFault.LOST,))
    lost = 0
    for _ in range(100):
        try:
            await channel.send(READ)
        except Unreachable:
            lost += 1
    assert 30 < lost < 70
    await asyncio.sleep(1.0)
    for _ in range(20):
        await channel.send(READ)


@in_virtual_time
async def test_lagging_watch_is_late_and_in_order() -> None:
    channel, _ = create_channel()
    channel.lag = 2.5
    assert await watch_chunks(channel, 5.2) == [(3.5, b"1"), (4.5, b"2")]
    channel.lag = 0.0
    assert [chunk for _, chunk in await watch_chunks(channel, 2.1)] == [b"1", b"2"]


@in_virtual_time
async def test_broken_watch_ends_and_loses_events_in_transit() -> None:
    channel, _ = create_channel()
    channel.lag = 1.5
    asyncio.get_running_loop().call_later(3.2, channel.break_watches)
    assert await watch_chunks(channel, 10.0) == [(2.5, b"1"), (3.5, b"2")]


@in_virtual_time
async def test_duplicating_watch_sends_every_event_twice() -> None:
    channel, _ = create_channel()
    channel.duplicates_events = True
    assert [chunk for _, chunk in await watch_chunks(channel, 2.1)] == [b"1", b"1", b"2", b"2"]


@in_virtual_time
async def test_healed_channel_has_no_faults() -> None:
    channel, server = create_channel()
    channel.fail_binds((RequestFault.LOST,))
    channel.fail_requests(until=9.0, share=1.0, faults=(RequestFault.LOST,))
    channel.heal()
    assert isinstance(await channel.send(BIND), Reply)
    assert len(server.arrived) == 1
