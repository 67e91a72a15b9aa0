"""Watches over HTTP: produced as fast as they are read, closed when the client disconnects."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import pytest

from phalanx.api.wire import Reply, Request, StreamReply
from tests.server.http_peers import (
    GET,
    SHORT_WRITE_TIMEOUT,
    WATCH,
    HeldHandler,
    ServerNetwork,
    StreamingHandler,
    on_network,
    serve_others,
)

LONG = 4 * 1024 * 1024

pytestmark = pytest.mark.usefixtures("nothing_left")


CHUNKS = [b"%d" % (number % 10) * 65536 for number in range(60)]


@on_network
async def test_a_watch_is_produced_no_faster_than_it_is_read(net: ServerNetwork) -> None:
    watching = StreamingHandler(*CHUNKS, ends=True)
    async with net.serving(watching):
        peer = await net.connect()
        peer.send(WATCH)
        head = await peer.read_head()
        assert (head.code, head.all("transfer-encoding")) == (200, ["chunked"])
        await serve_others(net, 200)
        assert 0 < watching.chunks_taken < 40
        assert [chunk async for chunk in peer.chunks()] == CHUNKS
        assert await peer.read_rest() == b""
        await watching.closed.wait()


@on_network
async def test_a_watch_that_is_not_read_is_disconnected_and_closed(
    net: ServerNetwork, caplog: pytest.LogCaptureFixture
) -> None:
    watching = StreamingHandler(*CHUNKS)
    async with net.serving(watching, SHORT_WRITE_TIMEOUT):
        peer = await net.connect()
        peer.send(WATCH)
        await watching.closed.wait()
        assert watching.chunks_taken < 40
        assert "does not read" in caplog.text
        assert not (await peer.read_rest()).endswith(b"0\r\n\r\n")


@on_network
async def test_the_headers_of_a_quiet_watch_are_sent_at_once(net: ServerNetwork) -> None:
    async with net.serving(StreamingHandler()):
        peer = await net.connect()
        peer.send(WATCH)
        assert (await peer.read_head()).code == 200


@on_network
async def test_long_chunks_are_split_and_empty_chunks_do_not_end_the_watch(
    net: ServerNetwork,
) -> None:
    async with net.serving(StreamingHandler(b"a", b"", b"x" * LONG, ends=True)):
        assert (await net.ask(WATCH)).body == b"a" + b"x" * LONG


@pytest.mark.parametrize("behind", [b"", GET, GET * 100], ids=["alone", "one", "many"])
@on_network
async def test_a_watch_is_closed_when_its_client_disconnects(
    net: ServerNetwork, behind: bytes
) -> None:
    watching = StreamingHandler(b"first")
    async with net.serving(watching):
        peer = await net.connect()
        peer.send(WATCH, behind)
        await peer.read_head()
        await anext(peer.chunks())
        peer.disconnect()
        await watching.closed.wait()
    assert watching.chunks_taken == 1


@on_network
async def test_a_watch_is_closed_when_its_client_half_closes(net: ServerNetwork) -> None:
    watching = StreamingHandler(b"first")
    async with net.serving(watching):
        peer = await net.connect()
        peer.send(WATCH)
        await peer.read_head()
        peer.writer.close()
        await watching.closed.wait()


@on_network
async def test_a_watch_whose_client_has_disconnected_is_closed_unread(
    net: ServerNetwork,
) -> None:
    held, watching = HeldHandler(), StreamingHandler(b"first")

    async def handle(received: Request) -> Reply | StreamReply:
        await held(received)
        return await watching(received)

    async with net.serving(handle):
        peer = await net.connect()
        peer.send(WATCH)
        await held.arrived.wait()
        peer.disconnect()
        await serve_others(net)
        held.release.set()
        await held.done.wait()
    assert watching.chunks_taken == 0


@pytest.mark.parametrize("said", [[], [b"first"]], ids=["at once", "later"])
@on_network
async def test_a_watch_that_fails_is_aborted(
    net: ServerNetwork, said: list[bytes], caplog: pytest.LogCaptureFixture
) -> None:
    async def chunks() -> AsyncGenerator[bytes, None]:
        for chunk in said:
            yield chunk
        raise RuntimeError("a secret")

    async def handle(received: Request) -> StreamReply:
        return StreamReply(200, chunks())

    async with net.serving(handle):
        peer = await net.connect()
        peer.send(WATCH)
        rest = await peer.read_rest()
        assert not rest.endswith(b"0\r\n\r\n")
        assert b"a secret" not in rest
        assert "a secret" in caplog.text
