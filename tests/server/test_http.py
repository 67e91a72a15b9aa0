"""Bytes on a connection, as no well-behaved client sends them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from phalanx.api.kinds import CONFIG_MAP, POD
from phalanx.api.wire import Reply, Request
from phalanx.server.access import ADMIN, Tokens
from phalanx.server.http import (
    ARRIVAL_SECONDS,
    IDLE_SECONDS,
    MAX_HEADER_BYTES,
    MAX_HEADERS,
    MAX_PIPELINED,
    Connection,
)
from tests.builders import in_virtual_time
from tests.server.api import Api

CONFIGS = CONFIG_MAP.path("default")
TOKEN = "secret"


class Wire(asyncio.Transport):
    """The other end: keeps what is written to it."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.is_closed = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if not self.is_closed:
            self.written += data

    def close(self) -> None:
        self.is_closed = True

    def abort(self) -> None:
        self.is_closed = True

    def is_closing(self) -> bool:
        return self.is_closed


class Client:
    """One connection to a server, in process."""

    def __init__(self, api: Api) -> None:
        self.wire = Wire()
        self._open: set[Connection] = set()
        self.connection = Connection(api.server.handle, Tokens({TOKEN: ADMIN}), self._open)
        self.connection.connection_made(self.wire)

    async def send(self, *pieces: bytes) -> list[int]:
        """Send pieces, wait until all is answered; the codes of the answers since."""
        before = len(self.wire.written)
        for piece in pieces:
            self.connection.data_received(piece)
        await asyncio.sleep(0)
        await self.connection.answered()
        return codes(self.wire.written[before:])

    def leave(self) -> None:
        self.connection.connection_lost(None)

    def sweep(self, seconds: float) -> None:
        """Look after so long whether it is to be cut off."""
        self.connection.sweep(asyncio.get_running_loop().time() + seconds)


def codes(written: bytes) -> list[int]:
    lines = written.split(b"\r\n")
    return [int(line.split()[1]) for line in lines if line.startswith(b"HTTP/1.1 ")]


def request(method: str, path: str, *headers: str, body: bytes = b"") -> bytes:
    length = [f"content-length: {len(body)}"] if body else []
    lines = [f"{method} {path} HTTP/1.1", "host: x", f"authorization: Bearer {TOKEN}", *headers]
    return "\r\n".join([*lines, *length, "", ""]).encode("latin-1") + body


def config(name: str) -> bytes:
    return b'{"metadata":{"name":"%s"}}' % name.encode()


GET = request("GET", "/version")


# ---- one after the other -------------------------------------------------------------------------


@in_virtual_time
async def test_a_connection_serves_one_request_after_the_other() -> None:
    client = Client(await Api.started())
    assert await client.send(GET) == [200]
    assert await client.send(request("POST", CONFIGS, body=config("a"))) == [201]
    assert await client.send(request("GET", f"{CONFIGS}/a")) == [200]
    assert not client.wire.is_closed


@in_virtual_time
async def test_a_request_may_come_byte_by_byte() -> None:
    client = Client(await Api.started())
    whole = request("POST", CONFIGS, body=config("a"))
    assert await client.send(*(bytes([byte]) for byte in whole)) == [201]


@in_virtual_time
async def test_requests_that_come_together_are_answered_in_order() -> None:
    api = await Api.started(latency=lambda: 1.0)
    client = Client(api)
    together = request("POST", CONFIGS, body=config("a")) + request("GET", f"{CONFIGS}/a") + GET
    assert await client.send(together) == [201, 200, 200]


@in_virtual_time
async def test_what_cannot_be_understood_is_answered_after_what_could() -> None:
    api = await Api.started(latency=lambda: 1.0)
    client = Client(api)
    mixed = request("POST", CONFIGS, body=config("a")) + b"\x00\x01garbage\r\n\r\n"
    assert await client.send(mixed) == [201, 400]
    assert client.wire.is_closed


@in_virtual_time
async def test_a_client_that_asks_too_much_at_once_is_cut_off() -> None:
    client = Client(await Api.started(latency=lambda: 1.0))
    await client.send(GET * (MAX_PIPELINED + 5))
    assert client.wire.is_closed


@in_virtual_time
async def test_a_client_that_wants_to_close_is_closed() -> None:
    client = Client(await Api.started())
    assert await client.send(request("GET", "/version", "connection: close")) == [200]
    assert client.wire.is_closed
    assert b"connection: close" in client.wire.written


@in_virtual_time
async def test_a_head_has_the_length_but_no_body() -> None:
    client = Client(await Api.started())
    await client.send(request("HEAD", "/version"))
    head, _, body = client.wire.written.partition(b"\r\n\r\n")
    assert (b"content-length: " in head, body) == (True, b"")


@in_virtual_time
async def test_who_asks_whether_to_go_on_is_told_so() -> None:
    client = Client(await Api.started())
    head = request("POST", CONFIGS, "expect: 100-continue", "content-length: 25")
    await client.send(head)
    assert client.wire.written == b"HTTP/1.1 100 Continue\r\n\r\n"
    assert await client.send(config("a").ljust(25)) == [201]


# ---- what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "bad",
    [
        b"\x16\x03\x01\x02\x00", b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"\r\n\r\nnonsense\r\n\r\n",
        b"GET / HTTP/1.1\r\nno colon here\r\n\r\n",
        b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n",
        b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: -5\r\n\r\n",
        b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ],
)  # fmt: skip
@in_virtual_time
async def test_what_is_no_request_is_refused_and_the_connection_closed(bad: bytes) -> None:
    client = Client(await Api.started())
    assert await client.send(bad) == [400]
    assert client.wire.is_closed


@pytest.mark.parametrize(
    ("target", "code"),
    [
        ("/api/v1/pods/\xff", 400),
        ("/api/v1/pods?labelSelector=\xe9", 400),
        ("http://elsewhere/api", 400),
        ("*", 400),
        ("/api/v1/pods?" + "a" * 1000, 200),
    ],
)
@in_virtual_time
async def test_a_target_is_a_path_in_ascii(target: str, code: int) -> None:
    client = Client(await Api.started())
    assert await client.send(request("GET", target)) == [code]


@in_virtual_time
async def test_protocols_are_not_changed() -> None:
    client = Client(await Api.started())
    upgrade = request("GET", "/version", "connection: upgrade", "upgrade: websocket")
    assert codes(client.wire.written) == []
    assert await client.send(upgrade) in ([400], [200])


@in_virtual_time
async def test_a_compressed_body_is_not_read() -> None:
    client = Client(await Api.started())
    assert await client.send(request("POST", CONFIGS, "content-encoding: gzip", body=b"x")) == [400]


@in_virtual_time
async def test_two_credentials_are_no_credential() -> None:
    client = Client(await Api.started())
    assert await client.send(request("GET", CONFIGS, f"authorization: Bearer {TOKEN}")) == [400]


@in_virtual_time
async def test_a_body_in_pieces_has_the_same_limit() -> None:
    client = Client(await Api.started())
    piece = b"%x\r\n%s\r\n" % (2**20, b" " * 2**20)
    head = request("POST", CONFIGS, "transfer-encoding: chunked")
    assert await client.send(head, piece, piece, piece, piece, b"0\r\n\r\n") == [413]
    assert await client.send(GET) == [200]


@in_virtual_time
async def test_a_body_without_end_is_cut_off() -> None:
    client = Client(await Api.started())
    await client.send(request("POST", CONFIGS, "content-length: 999999999999"))
    for _ in range(100):
        await client.send(b" " * 2**20)
        if client.wire.is_closed:
            return
    pytest.fail("100 MiB were taken in")


@pytest.mark.parametrize(
    "headers",
    [
        [f"x-{n}: y" for n in range(MAX_HEADERS)],
        ["x: " + "y" * MAX_HEADER_BYTES],
        [f"x-{n}: {'y' * 1000}" for n in range(80)],
    ],
    ids=["too many", "one too long", "too long together"],
)
@in_virtual_time
async def test_headers_have_a_limit(headers: list[str]) -> None:
    client = Client(await Api.started())
    assert await client.send(request("GET", "/version", *headers)) == [431]


@pytest.mark.parametrize(
    "endless", [lambda n: b"a" * 10_000, lambda n: b" HTTP/1.1\r\n" * (not n) + b"x-%d: y\r\n" % n * 9],
    ids=["target", "headers"],
)  # fmt: skip
@in_virtual_time
async def test_headers_without_end_are_not_kept(endless: Callable[[int], bytes]) -> None:
    client = Client(await Api.started())
    await client.send(b"GET /")
    for number in range(1000):
        await client.send(endless(number))
        if client.wire.is_closed:
            assert codes(client.wire.written) == [431]
            return
    pytest.fail("headers were taken in without end")


@in_virtual_time
async def test_what_a_client_says_does_not_become_a_header_of_the_answer() -> None:
    api = await Api.started()
    client = Client(api)
    body = b'{"metadata":{"name":"a"},"x\\r\\nx-evil: 1\\r\\n\\r\\nHTTP/1.1 200 OK":1}'
    assert await client.send(request("POST", CONFIGS, body=body)) == [201]
    head = client.wire.written.partition(b"\r\n\r\n")[0]
    assert b"\r\nx-evil" not in head
    assert b"\r\nwarning: 299 " in head


# ---- time ----------------------------------------------------------------------------------------


@in_virtual_time
async def test_a_request_that_takes_too_long_to_arrive_is_refused() -> None:
    client = Client(await Api.started())
    await client.send(b"GET /version HT")
    client.sweep(ARRIVAL_SECONDS - 1)
    assert not client.wire.is_closed
    client.sweep(ARRIVAL_SECONDS + 1)
    assert (codes(client.wire.written), client.wire.is_closed) == ([408], True)


@in_virtual_time
async def test_an_idle_connection_is_kept_for_a_while_and_closed_without_a_word() -> None:
    client = Client(await Api.started())
    await client.send(GET)
    said = client.wire.written
    client.sweep(ARRIVAL_SECONDS + 1)
    assert (client.wire.written, client.wire.is_closed) == (said, False)
    client.sweep(IDLE_SECONDS + 1)
    assert (client.wire.written, client.wire.is_closed) == (said, True)


@in_virtual_time
async def test_a_client_that_never_says_anything_is_closed() -> None:
    client = Client(await Api.started())
    client.sweep(IDLE_SECONDS + 1)
    assert client.wire.is_closed


@in_virtual_time
async def test_a_watch_is_not_idle() -> None:
    client = Client(await Api.started())
    client.connection.data_received(request("GET", f"{CONFIGS}?watch=true&timeoutSeconds=500"))
    await asyncio.sleep(300)
    client.sweep(0)
    assert not client.wire.is_closed
    client.leave()


# ---- streams -------------------------------------------------------------------------------------


@in_virtual_time
async def test_a_watch_comes_in_chunks_and_the_connection_goes_on() -> None:
    api = await Api.started()
    client = Client(api)
    asking = asyncio.ensure_future(
        client.send(request("GET", f"{CONFIGS}?watch=true&timeoutSeconds=5"))
    )
    await asyncio.sleep(1)
    assert codes(client.wire.written) == [200]
    await api.create(CONFIG_MAP, {"metadata": {"name": "a", "namespace": "default"}})
    await asyncio.sleep(1)
    assert client.wire.written.count(b'"type":"ADDED"') == 1
    await asking
    assert client.wire.written.endswith(b"\r\n0\r\n\r\n")
    assert await client.send(GET) == [200]


@in_virtual_time
async def test_a_client_that_leaves_its_watch_is_forgotten() -> None:
    api = await Api.started()
    client = Client(api)
    client.connection.data_received(request("GET", f"{CONFIGS}?watch=true"))
    await asyncio.sleep(1)
    watchers = api.server.context.hub._watchers[CONFIG_MAP.prefix()]
    assert len(watchers) == 1
    client.leave()
    await asyncio.sleep(1)
    assert len(watchers) == 0


@in_virtual_time
async def test_a_client_that_does_not_read_is_not_written_to() -> None:
    api = await Api.started()
    client = Client(api)
    client.connection.data_received(request("GET", f"{CONFIGS}?watch=true"))
    await asyncio.sleep(1)
    client.connection.pause_writing()
    named = {"metadata": {"name": "a", "namespace": "default"}}
    await api.create(CONFIG_MAP, named)
    for number in range(20):
        await api.patch(CONFIG_MAP, "a", {"data": {"d": f"{number:>200000}"}})
        await asyncio.sleep(1)
    assert len(client.wire.written) < 1_000_000
    client.connection.resume_writing()
    await asyncio.sleep(1)
    assert client.wire.written.count(b'"type":"MODIFIED"') == 20
    client.leave()


@in_virtual_time
async def test_a_client_that_leaves_has_still_written() -> None:
    api = await Api.started(latency=lambda: 1.0)
    client = Client(api)
    client.connection.data_received(request("POST", CONFIGS, body=config("a")))
    await asyncio.sleep(0.5)
    client.leave()
    await asyncio.sleep(2)
    assert (await api.ask("GET", f"{CONFIGS}/a")).code == 200


@in_virtual_time
async def test_a_handler_sees_the_request_as_it_was_sent() -> None:
    seen: list[Request] = []

    async def handle(asked: Request) -> Reply:
        seen.append(asked)
        return Reply(200, b"{}")

    connection = Connection(handle, Tokens({TOKEN: ADMIN}), set())
    connection.connection_made(Wire())
    path = POD.path("default", "a%2Fb")
    connection.data_received(request("PUT", f"{path}?a=b&c=%20", "X-Mixed: Case", body=b"body"))
    await asyncio.sleep(0)
    await connection.answered()
    (asked,) = seen
    assert (asked.method, asked.path, asked.query, asked.body) == (
        "PUT",
        path,
        "a=b&c=%20",
        b"body",
    )
    assert (asked.headers["x-mixed"], asked.user) == ("Case", ADMIN)
