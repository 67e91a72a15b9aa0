"""Watches over HTTP: taken as fast as they are read, and closed when nobody is left to read."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import pytest

from phalanx.api.wire import Reply, Request, Stream
from tests.server.peers import (
    GET,
    UNREAD,
    WATCH,
    Held,
    Net,
    Watching,
    meanwhile,
    on_a_net,
)

LONG = 4 * 1024 * 1024

pytestmark = pytest.mark.usefixtures("nothing_left")


CHUNKS = [b"%d" % (number % 10) * 65536 for number in range(60)]


@on_a_net
async def test_a_watch_is_taken_no_faster_than_it_is_read(net: Net) -> None:
    watching = Watching(*CHUNKS, ends=True)
    async with net.serving(watching):
        peer = await net.connect()
        peer.send(WATCH)
        head = await peer.head()
        assert (head.code, head.all("transfer-encoding")) == (200, ["chunked"])
        await meanwhile(net, 200)
        assert 0 < watching.taken < 40
        assert [chunk async for chunk in peer.chunks()] == CHUNKS
        assert await peer.rest() == b""
        await watching.closed.wait()


@on_a_net
async def test_a_watch_that_is_not_read_is_cut_off_and_closed(
    net: Net, caplog: pytest.LogCaptureFixture
) -> None:
    watching = Watching(*CHUNKS)
    async with net.serving(watching, UNREAD):
        peer = await net.connect()
        peer.send(WATCH)
        await watching.closed.wait()
        assert watching.taken < 40
        assert "does not read" in caplog.text
        assert not (await peer.rest()).endswith(b"0\r\n\r\n")


@on_a_net
async def test_a_watch_with_little_to_tell_says_at_once_that_it_stands(net: Net) -> None:
    async with net.serving(Watching()):
        peer = await net.connect()
        peer.send(WATCH)
        assert (await peer.head()).code == 200


@on_a_net
async def test_a_long_chunk_comes_in_pieces_and_an_empty_one_does_not_end_the_watch(
    net: Net,
) -> None:
    async with net.serving(Watching(b"a", b"", b"x" * LONG, ends=True)):
        assert (await net.ask(WATCH)).body == b"a" + b"x" * LONG


@pytest.mark.parametrize("behind", [b"", GET, GET * 100], ids=["alone", "one", "many"])
@on_a_net
async def test_a_watch_is_closed_when_its_client_leaves(net: Net, behind: bytes) -> None:
    watching = Watching(b"first")
    async with net.serving(watching):
        peer = await net.connect()
        peer.send(WATCH, behind)
        await peer.head()
        await anext(peer.chunks())
        peer.leave()
        await watching.closed.wait()
    assert watching.taken == 1


@on_a_net
async def test_a_watch_is_closed_when_its_client_closes_its_side(net: Net) -> None:
    watching = Watching(b"first")
    async with net.serving(watching):
        peer = await net.connect()
        peer.send(WATCH)
        await peer.head()
        peer.writer.close()
        await watching.closed.wait()


@on_a_net
async def test_a_watch_that_comes_too_late_for_its_client_is_closed_unread(net: Net) -> None:
    held, watching = Held(), Watching(b"first")

    async def handle(asked: Request) -> Reply | Stream:
        await held(asked)
        return await watching(asked)

    async with net.serving(handle):
        peer = await net.connect()
        peer.send(WATCH)
        await held.came.wait()
        peer.leave()
        await meanwhile(net)
        held.may.set()
        await held.done.wait()
    assert watching.taken == 0


@pytest.mark.parametrize("said", [[], [b"first"]], ids=["at once", "later"])
@on_a_net
async def test_a_watch_that_fails_is_cut_off_without_a_word(
    net: Net, said: list[bytes], caplog: pytest.LogCaptureFixture
) -> None:
    async def chunks() -> AsyncGenerator[bytes, None]:
        for chunk in said:
            yield chunk
        raise RuntimeError("a secret")

    async def handle(asked: Request) -> Stream:
        return Stream(200, chunks())

    async with net.serving(handle):
        peer = await net.connect()
        peer.send(WATCH)
        rest = await peer.rest()
        assert not rest.endswith(b"0\r\n\r\n")
        assert b"a secret" not in rest
        assert "a secret" in caplog.text
