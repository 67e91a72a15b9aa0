from __future__ import annotations

import asyncio
from typing import cast

import pytest

from phalanx.api.wire import Reply, Request, StreamReply
from phalanx.server.http_parser import HttpLimits
from tests.server.http_peers import (
    GET,
    SHORT_WRITE_TIMEOUT,
    WATCH,
    HeldHandler,
    Peer,
    ServerNetwork,
    StreamingHandler,
    echo,
    on_network,
    request,
    send_unauthorized,
    serve_others,
)

LONG = 4 * 1024 * 1024

pytestmark = pytest.mark.usefixtures("nothing_left")


async def paths(peer: Peer, number: int) -> list[str]:
    return [(await peer.read_response()).json["path"] for _ in range(number)]


# ---- several requests ----------------------------------------------------------------------------


@on_network
async def test_a_connection_serves_several_requests(net: ServerNetwork) -> None:
    async with net.serving(echo):
        peer = await net.connect()
        for number in range(3):
            peer.send(request("POST", f"/{number}?q", "Authorization: Bearer secret", body=b"{}"))
            seen = (await peer.read_response()).json
            assert (seen["path"], seen["query"], seen["body"]) == (f"/{number}", "q", "{}")
            assert seen["user"] == "admin"


@on_network
async def test_pipelined_requests_are_answered_in_order(
    net: ServerNetwork,
) -> None:
    held = HeldHandler()
    async with net.serving(held):
        peer = await net.connect()
        peer.send(*(request("GET", f"/{number}") for number in range(5)))
        await held.arrived.wait()
        await serve_others(net)
        assert [received.path for received in held.requests] == ["/0"]
        held.release.set()
        assert await paths(peer, 5) == ["/0", "/1", "/2", "/3", "/4"]


@on_network
async def test_a_client_that_pipelines_too_much_is_read_only_as_fast_as_it_is_answered(
    net: ServerNetwork,
) -> None:
    held, number, filler = HeldHandler(), 300, "x" * 10_000

    async def send_all(peer: Peer) -> None:
        for n in range(number):
            peer.send(request("GET", f"/{n}", f"X-Filler: {filler}"))
            await peer.writer.drain()

    async with net.serving(held, HttpLimits(pending_requests=2)):
        peer = await net.connect()
        sending = asyncio.create_task(send_all(peer))
        await held.arrived.wait()
        await serve_others(net, 200)
        assert not sending.done()
        held.release.set()
        assert await paths(peer, number) == [f"/{n}" for n in range(number)]
        await sending


@on_network
async def test_an_invalid_request_is_answered_after_the_valid_ones_before_it(
    net: ServerNetwork,
) -> None:
    async with net.serving(echo):
        peer = await net.connect()
        peer.send(GET, b"\0\1garbage\r\n\r\n", GET)
        assert [(await peer.read_response()).code for _ in range(2)] == [200, 400]
        peer.send(GET * 10)
        peer.disconnect()
        assert (await net.ask(GET)).code == 200


@on_network
async def test_a_request_with_connection_close_is_the_last_one(
    net: ServerNetwork,
) -> None:
    async with net.serving(echo):
        peer = await net.connect()
        peer.send(GET, request("GET", "/last", "Connection: close"), GET)
        first, last = await peer.read_response(), await peer.read_response()
        assert (first.all("connection"), last.all("connection")) == ([], ["close"])
        assert (last.json["path"], await peer.read_rest()) == ("/last", b"")


@on_network
async def test_an_http_1_0_client_is_answered_and_closed(net: ServerNetwork) -> None:
    async with net.serving(StreamingHandler(b"ab", b"c", ends=True)):
        peer = await net.connect()
        peer.send(b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
        assert (await peer.read_response()).all("connection") == ["close"]
        assert await peer.read_rest() == b""
        peer = await net.connect()
        peer.send(b"GET /?watch HTTP/1.0\r\n\r\n")
        assert (await peer.read_head()).all("transfer-encoding") == []
        assert await peer.read_rest() == b"abc"


@on_network
async def test_a_head_request_gets_a_content_length_and_no_body(net: ServerNetwork) -> None:
    async with net.serving(StreamingHandler(b"never")):
        peer = await net.connect()
        peer.send(request("HEAD", "/"), GET)
        head = await peer.read_head()
        assert int(head.all("content-length")[0]) > 0
        assert (await peer.read_response()).json["path"] == "/version"
        peer.send(request("HEAD", "/?watch"))
        assert (await peer.read_head()).all("transfer-encoding") == ["chunked"]
        assert await peer.read_rest() == b""


# ---- 100 Continue --------------------------------------------------------------------------------

EXPECTING = b"POST / HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n"


@on_network
async def test_a_client_that_expects_100_continue_gets_it(net: ServerNetwork) -> None:
    async with net.serving(echo):
        peer = await net.connect()
        peer.send(EXPECTING)
        assert (await peer.read_head()).code == 100
        peer.send(b"{}")
        assert (await peer.read_response()).json["body"] == "{}"


@on_network
async def test_100_continue_is_not_sent_during_another_response(net: ServerNetwork) -> None:
    held = HeldHandler()
    async with net.serving(held):
        peer = await net.connect()
        peer.send(GET, EXPECTING)
        await held.arrived.wait()
        held.release.set()
        assert [(await peer.read_response()).code, (await peer.read_head()).code] == [200, 100]
        peer.send(b"{}")
        assert (await peer.read_response()).json["body"] == "{}"


# ---- bodies that are too large -------------------------------------------------------------------

BIG = b" " * (1024 * 1024)
TOO_LARGE = {
    "declared": [request("POST", "/", "Content-Length: 4194304"), *[BIG] * 4],
    "in chunks": [
        request("POST", "/", "Transfer-Encoding: chunked"),
        *[b"100000\r\n" + BIG + b"\r\n"] * 4,
        b"0\r\n\r\n",
    ],
}


@pytest.mark.parametrize("data", TOO_LARGE.values(), ids=TOO_LARGE.keys())
@on_network
async def test_a_client_that_sends_too_much_can_read_the_refusal_afterwards(
    net: ServerNetwork, data: list[bytes]
) -> None:
    async with net.serving(echo):
        peer = await net.connect()
        for piece in data:
            peer.send(piece)
            await peer.writer.drain()
        answer = await peer.read_response()
        assert (answer.code, answer.json["reason"]) == (413, "RequestEntityTooLarge")
        assert (answer.json["kind"], answer.all("connection")) == ("Status", ["close"])


@on_network
async def test_a_client_that_expects_100_continue_for_too_much_is_refused(
    net: ServerNetwork,
) -> None:
    async with net.serving(echo):
        refused = await net.ask(EXPECTING.replace(b"Length: 2", b"Length: 3145729"))
        assert refused.code == 413


@on_network
async def test_a_refused_client_that_does_not_stop_sending_is_disconnected(
    net: ServerNetwork,
) -> None:
    async with net.serving(echo, HttpLimits(discarded_bytes=100_000, close_timeout=60)):
        peer = await net.connect()
        peer.send(b"\0", BIG)
        assert (await peer.read_rest()).startswith(b"HTTP/1.1 400 ")


# ---- time ----------------------------------------------------------------------------------------

SLOW, IDLE = (
    HttpLimits(request_timeout=0.05, close_timeout=0.05, check_interval=0.01),
    HttpLimits(idle_timeout=0.15, close_timeout=0.05, check_interval=0.01),
)


BEGUN = (b"G", GET[:-2], request("POST", "/", "Content-Length: 9") + b"{")


@on_network
async def test_an_incomplete_request_times_out(net: ServerNetwork) -> None:
    async with net.serving(echo, SLOW):
        peers = [await net.connect() for _ in BEGUN]
        for peer, begun in zip(peers, BEGUN, strict=True):
            peer.send(GET, begun)
            assert (await peer.read_response()).code == 200
        for peer in peers:
            late = await peer.read_response()
            assert (late.code, late.json["reason"]) == (408, "Timeout")
            assert await peer.read_rest() == b""


@on_network
async def test_the_time_limit_of_a_request_starts_with_its_first_byte(net: ServerNetwork) -> None:
    loop = asyncio.get_running_loop()
    async with net.serving(echo, SLOW):
        idle = await net.connect()
        assert (await net.ask(BEGUN[0])).code == 408
        idle.send(BEGUN[0])
        begin = loop.time()
        assert (await idle.read_response()).code == 408
        assert loop.time() - begin > SLOW.request_timeout / 2


@on_network
async def test_headers_have_a_shorter_time_limit_than_the_request(net: ServerNetwork) -> None:
    async with net.serving(
        echo,
        HttpLimits(head_timeout=0.05, request_timeout=60, close_timeout=0.05, check_interval=0.01),
    ):
        peers = [await net.connect() for _ in BEGUN]
        for peer, begun in zip(peers, BEGUN, strict=True):
            peer.send(begun)
        *headless, whole = peers
        for peer in headless:
            assert (await peer.read_response()).code == 408
        whole.send(b"12345678")
        assert (await whole.read_response()).code == 200


@on_network
async def test_a_request_that_comes_byte_by_byte_gets_no_more_time(net: ServerNetwork) -> None:
    async with net.serving(echo, HttpLimits(request_timeout=0.2, check_interval=0.01)):
        peer, other = await net.connect(), await net.connect()
        peer.send(request("POST", "/", "Content-Length: 1000000"))
        answer = asyncio.create_task(peer.read_response())
        while not answer.done():
            peer.send(b" ")
            await send_unauthorized(other)
        assert (await answer).code == 408


@on_network
async def test_an_idle_connection_is_closed(net: ServerNetwork) -> None:
    async with net.serving(echo, IDLE):
        served = await net.connect()
        served.send(GET)
        assert (await served.read_response()).code == 200
        silent, hardly = await net.connect(), await net.connect()
        hardly.send(b"\r\n")
        for peer in (served, silent, hardly):
            assert await peer.read_rest() == b""


@on_network
async def test_a_handler_that_takes_too_long_is_a_504_and_the_connection_continues(
    net: ServerNetwork,
) -> None:
    held = HeldHandler()
    async with net.serving(held, HttpLimits(handler_timeout=0.05, check_interval=0.01)):
        peer = await net.connect()
        peer.send(GET)
        late = await peer.read_response()
        assert (late.code, late.json["reason"]) == (504, "Timeout")
        held.release.set()
        peer.send(GET)
        assert (await peer.read_response()).code == 200


@on_network
async def test_a_watch_and_a_slow_answer_are_not_idle(net: ServerNetwork) -> None:
    held, watching = HeldHandler(), StreamingHandler(b"first")

    async def handle(received: Request) -> Reply | StreamReply:
        return await (watching(received) if "watch" in received.query else held(received))

    async with net.serving(handle, IDLE):
        slow = await net.connect()
        slow.send(GET)
        watcher = await net.connect()
        watcher.send(WATCH)
        await watcher.read_head()
        assert await (await net.connect()).read_rest() == b""
        assert not watching.closed.is_set()
        held.release.set()
        assert (await slow.read_response()).code == 200
        begin = asyncio.get_running_loop().time()
        assert await slow.read_rest() == b""
        assert asyncio.get_running_loop().time() - begin > IDLE.idle_timeout / 2


# ---- clients that do not read --------------------------------------------------------------------


async def long(received: Request) -> Reply:
    return Reply(200, b"x" * LONG) if received.path == "/long" else await echo(received)


@on_network
async def test_a_long_reply_is_complete(net: ServerNetwork) -> None:
    async with net.serving(long):
        peer = await net.connect()
        for _ in range(2):
            peer.send(request("GET", "/long"))
            assert (await peer.read_response()).body == b"x" * LONG


@on_network
async def test_a_client_that_does_not_read_is_disconnected_and_delays_no_other(
    net: ServerNetwork, caplog: pytest.LogCaptureFixture
) -> None:
    async with net.serving(long, SHORT_WRITE_TIMEOUT):
        peer = await net.connect()
        peer.send(request("GET", "/long"))
        await peer.read_head()
        while "does not read" not in caplog.text:
            assert (await net.ask(GET)).code == 200
            await asyncio.sleep(0.001)  # The connections of one user are limited.
        assert len(await peer.read_rest()) < LONG // 2


@on_network
async def test_a_client_that_does_not_read_the_last_reply_is_disconnected(
    net: ServerNetwork,
) -> None:
    size = 500_000 if net.is_tls else 250_000

    async def handle(received: Request) -> Reply:
        return Reply(200, b"x" * size)

    async with net.serving(handle, IDLE):
        peer = await net.connect()
        cast(asyncio.Transport, peer.writer.transport).pause_reading()
        peer.send(request("GET", "/", "Connection: close"))
        assert await (await net.connect()).read_rest() == b""
        cast(asyncio.Transport, peer.writer.transport).resume_reading()
        assert len(await peer.read_rest()) < size


@on_network
async def test_a_client_that_disconnects_during_its_reply_is_forgotten(
    net: ServerNetwork,
) -> None:
    async with net.serving(long, HttpLimits(stop_timeout=60)):
        peer = await net.connect()
        peer.send(request("GET", "/long"))
        await peer.read_head()
        await serve_others(net)
        peer.disconnect()
        await serve_others(net)


@on_network
async def test_a_client_that_sends_requests_without_reading_is_disconnected(
    net: ServerNetwork, caplog: pytest.LogCaptureFixture
) -> None:
    async with net.serving(echo, SHORT_WRITE_TIMEOUT):
        peer = await net.connect()
        peer.send(request("GET", "/", f"X-Filler: {'x' * 1000}") * 2000)
        while "does not read" not in caplog.text:
            assert (await net.ask(GET)).code == 200
            await asyncio.sleep(0.001)  # The connections of one user are limited.
        assert (await peer.read_rest()).count(b"HTTP/1.1 200 ") < 2000


# ---- clients that leave --------------------------------------------------------------------------


@on_network
async def test_a_request_is_handled_although_its_client_has_disconnected(
    net: ServerNetwork,
) -> None:
    held = HeldHandler()
    async with net.serving(held):
        peer = await net.connect()
        peer.send(request("POST", "/", body=b"{}"), GET)
        await held.arrived.wait()
        peer.disconnect()
        await serve_others(net)
        held.release.set()
        await held.done.wait()
        assert (await net.ask(GET)).code == 200
    assert [received.method for received in held.requests] == ["POST", "GET"]


@on_network
async def test_an_incomplete_request_of_a_disconnected_client_is_not_handled(
    net: ServerNetwork,
) -> None:
    held = HeldHandler()
    held.release.set()
    async with net.serving(held):
        peer = await net.connect()
        peer.send(request("POST", "/", "Content-Length: 9"), b"{}")
        await peer.writer.drain()
        peer.disconnect()
        assert (await net.ask(GET)).code == 200
    assert [received.method for received in held.requests] == ["GET"]


# ---- failing handlers ----------------------------------------------------------------------------


async def failing_handler(received: Request) -> Reply:
    if received.path == "/failing_handler":
        raise RuntimeError("a secret")
    return await echo(received)


@on_network
async def test_a_handler_that_fails_is_a_500_and_the_connection_continues(
    net: ServerNetwork, caplog: pytest.LogCaptureFixture
) -> None:
    async with net.serving(failing_handler):
        peer = await net.connect()
        peer.send(request("GET", "/failing_handler"), GET)
        failed, fine = await peer.read_response(), await peer.read_response()
        assert (failed.code, failed.json["code"], fine.code) == (500, 500, 200)
        assert b"a secret" not in failed.body
        assert "a secret" in caplog.text


@on_network
async def test_a_cancelled_handler_closes_the_connection(net: ServerNetwork) -> None:
    async def handle(received: Request) -> Reply:
        raise asyncio.CancelledError

    async with net.serving(handle):
        peer = await net.connect()
        peer.send(GET)
        assert await peer.read_rest() == b""


# ---- response headers ----------------------------------------------------------------------------


@on_network
async def test_a_header_value_cannot_end_the_header(net: ServerNetwork) -> None:
    evil = '299 - "ünbekannt 😀 \r\nset-cookie: a\r\n\r\nHTTP/1.1 200 OK \x00\x7f\x85 \ud800"'

    async def handle(received: Request) -> Reply:
        return Reply(201, b"{}", headers=(("warning", evil), ("warning", "another")))

    async with net.serving(handle):
        answer = await net.ask(GET)
        mark = "\N{REPLACEMENT CHARACTER}"
        first, second = answer.all("warning")
        assert first.startswith(f'299 - "ünbekannt 😀 {mark}{mark}set-cookie: a{mark}')
        assert first.endswith(f'OK {mark}{mark}{mark} ?"')
        assert (second, answer.all("set-cookie"), answer.body) == ("another", [], b"{}")


@on_network
async def test_a_reply_is_not_cached_by_default(net: ServerNetwork) -> None:
    async def handle(received: Request) -> Reply:
        own = (("cache-control", "public"),) if received.path == "/public" else ()
        return Reply(200, b"{}", headers=own)

    async with net.serving(handle):
        usual, own = await net.ask(GET), await net.ask(request("GET", "/public"))
        assert usual.all("cache-control") == ["no-cache, private"]
        assert own.all("cache-control") == ["public"]
        for answer in (usual, own):
            assert answer.all("x-content-type-options") == ["nosniff"]
            assert answer.all("server") == []
